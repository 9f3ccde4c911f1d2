"""What a person asks of a running loop, done in a rank while its loop stands between two steps.

The gate (:mod:`.steering`) holds the ranks of a run at the same step, has each of them check an act, and only then has
them do it: on the thread of the loop, which stands in the hook that has counted the step. The names of an act are those
that the user's code sees there, see :func:`.loops.user_frames`.

Under failure: what the person's code raises is the answer of this rank, and the loop goes on. Stop, and what ends a
cell on purpose, goes through to the loop. A check changes nothing.
"""

from __future__ import annotations

import ast
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.events import Acted
from jupyter_dtrain.core.steering import LoopAct
from jupyter_dtrain.plugins.framework import CellEnds

from .debugging import CellQuit
from .differences import StepComparison
from .interrupts import CellStopped
from .loop_values import CannotSet, LoopNames, ReplacedValue, find
from .loops import LoopEnd, ending, user_frames
from .ring import Ring
from .snapshots import stage
from .user_text import words_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from jupyter_dtrain.core.snapshots import SnapshotOrder

    from .cell_sources import CellSources
    from .plugins import Plugins
    from .tracebacks import Tracebacks

_THROUGH: Final = (CellStopped, CellQuit, CellEnds)
UNDONE: Final = 100
"""How many sets of a cell can be undone."""


class LoopActs:
    """Does the acts of one rank. The thread of the loop calls it."""

    def __init__(
        self,
        shell: Any,
        plugins: Plugins,
        sources: CellSources,
        tracebacks: Tracebacks,
        say: Callable[[str], object],
        stop: Callable[[FrameType, str], object],
        asks: Callable[[], bool],
        placed: Callable[[SnapshotOrder], SnapshotOrder] = lambda order: order,
    ) -> None:
        """``shell``: the rank's IPython; ``say`` shows a sentence in the cell.

        ``stop`` opens a debugger in a frame, which says a sentence, and raises :class:`RuntimeError` where nobody can
        answer it. ``asks``: whether another rank asks a person. ``placed`` adds the run and its step to an order.
        """
        self._placed = placed
        self._say = say
        self._ring = Ring(plugins, say)
        self._stop = stop
        self._asks = asks
        self.keeps = False
        """Whether the cell keeps states."""
        self._whole = True
        """Whether the cell runs on all ranks."""
        self.afterwards: list[Callable[[int, FrameType], bool]] = []
        """What the newest act wants done after each step from now on, until it says that it is over."""
        self._shell = shell
        self._plugins = plugins
        self._sources = sources
        self._tracebacks = tracebacks
        self.raised: BaseException | None = None
        """What the person's code in the newest act has raised."""
        self._showing = False
        self._unshown: BaseException | None = None
        self._replaced: deque[list[ReplacedValue]] = deque(maxlen=UNDONE)
        """What each ``set`` of this cell has replaced, without those that were undone."""
        self._ending: LoopEnd | None = None
        """What a ``stop-after`` does once the loop goes on."""
        self._ends: LoopEnd | None = None
        """What ends the loop of this cell at its next line."""

    def begin(self, count: int = 0, every: int = 0, *, whole: bool = True) -> None:
        """Begin a cell that keeps its last ``count`` states, one every ``every`` steps; 0: none. Main thread.

        ``whole``: it runs on all ranks.
        """
        self._whole = whole
        self._ring.begin(count, every)
        self.keeps = count > 0

    def check(self, act: LoopAct, frame: FrameType, step: int = 0) -> Acted:
        """Whether the act can be done here, and if not, why. ``frame``: where the ``step`` was counted."""
        match act.kind:
            case "between":
                return self._compiled("between", act.code)[1]
            case "set":
                return self._check_values(act, self._names(frame))
            case "undo" if not self._replaced:
                return Acted(ok=False, text="there is nothing to undo: no set of this cell is left")
            case "stop-after":
                return self._check_end(act.count, frame, step)
            case "save" | "until-differs" if not self._whole:
                return Acted(ok=False, text="this cell does not run on all ranks")
            case "until-differs":
                return self._check_number(act, frame)
            case "save" if act.order is not None:
                seen = self._names(frame).read()
                missing = [name for name in act.order.names if name not in seen]
                return Acted(ok=False, text=f"it has no {', '.join(missing)}") if missing else Acted()
            case "rewind":
                return self._kept()
        return Acted()

    def apply(self, act: LoopAct, number: int, frame: FrameType, step: int = 0) -> Acted:
        """Do the act. ``number``: the act's, which names its code. ``frame``: where the ``step`` was counted."""
        self.raised = None
        names = self._names(frame)
        match act.kind:
            case "between":
                return self._run(f"between {number}", act.code, names)
            case "set":
                return self._set(act, names)
            case "undo":
                return self._undo(names)
            case "stop-after" if act.count > step:
                self.afterwards.append(lambda at, where: self._ends_at(act.count, at, where))
                return Acted(text=f"The loop ends after step {act.count}")
            case "stop-after":
                return self._end_loop(frame)
            case "until-differs":
                self.afterwards.append(self._comparison(act).begun().passed)
                return Acted(text=f"The ranks stop where {act.code} differs")
            case "save" if act.order is not None:
                return self._save(act.order, names, step)
            case "rewind":
                self._ring.rewind(act.count)
                return Acted(text=f"The state of step {act.count} is loaded, and the loop goes on with its own data")
        return Acted()

    def stepped(self, step: int, frame: FrameType) -> None:
        """Keep the state after ``step`` where that is asked for; before any act. ``frame``: where it was counted."""
        self._ring.step(step, lambda: self._names(frame).read())

    def go_on(self) -> None:
        """Let the loop go on after the acts: the last that the gate calls, on the thread of the loop."""
        if (ending := self._ending) is not None:
            self._ending = None
            ending.begin()
            self._ends = ending

    def end(self) -> None:
        """End the cell: what its acts have replaced cannot be put back any more, and takes no memory. Main thread.

        Where the cell's trace function is in force, before that is kept for the next cell.
        """
        self._ring.end()
        self._replaced.clear()
        self.afterwards.clear()
        self.raised = self._ending = None
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None

    def cannot_show(self, error: BaseException) -> bool:
        """Take ``error``, which a value's own representation has raised, if an act shows that value now."""
        if self._showing:
            self._unshown = error
        return self._showing

    def _is_users(self, file: str) -> bool:
        return self._sources.name_of(file) is not None or self._tracebacks.is_own(file)

    def _names(self, frame: FrameType) -> LoopNames:
        return LoopNames(user_frames(frame, self._is_users))

    def _check_values(self, act: LoopAct, names: LoopNames) -> Acted:
        for one in act.settings:
            try:
                find(one.path, names, self._plugins).fitting(ast.literal_eval(one.value))
            except CannotSet as error:
                return Acted(ok=False, text=str(error))
        return Acted()

    def _set(self, act: LoopAct, names: LoopNames) -> Acted:
        """Set all values or none."""
        replaced: list[ReplacedValue] = []
        said: dict[str, None] = {}
        path = ""
        try:
            for one in act.settings:
                path = one.path
                place = find(path, names, self._plugins)
                new = place.fitting(ast.literal_eval(one.value))
                replaced.append(place.replace([new] * len(place.values)))
                said[replaced[-1].words] = None
                said[place.note] = None
        except BaseException as error:
            for done in reversed(replaced):
                with contextlib.suppress(Exception):
                    done.put_back(names)
            # An undo must find the same number of sets on all ranks.
            self._replaced.append([])
            if not isinstance(error, Exception) or self._plugins.is_interrupt(error):
                raise
            why = str(error) if isinstance(error, CannotSet) else f"{path} takes no new value: {words_of(error)}"
            return Acted(ok=False, text=why)
        self._replaced.append(replaced)
        return Acted(text="; ".join(filter(None, said)))

    def _undo(self, names: LoopNames) -> Acted:
        said, ok = [], True
        for one in reversed(self._replaced.pop() if self._replaced else []):
            try:
                said.append(one.put_back(names))
            except Exception as error:  # noqa: BLE001 — the others are put back all the same
                ok = False
                said.append(f"{one.path} could not be put back: {words_of(error)}")
        return Acted(ok=ok, text="; ".join(said) or "there was nothing to put back")

    def _kept(self) -> Acted:
        """The steps of the states that the ring has, newest first: the ranks load one that all of them have."""
        steps = self._ring.steps
        return Acted(ok=bool(steps), text=",".join(map(str, steps)) or self._ring.lacks())

    def _check_end(self, last: int, frame: FrameType, step: int) -> Acted:
        if 0 < last < step:
            return Acted(ok=False, text=f"step {last} is over, as the loop is at step {step}")
        if threading.current_thread() is not threading.main_thread():
            return Acted(ok=False, text="its loop runs in a thread, which cannot be ended so")
        if isinstance(why := ending(frame, self._is_users), str):
            # The cell could be ended, but who asks for this counts on what stands below the loop.
            return Acted(ok=False, text=f"{why}, so it cannot be ended alone; %distributed interrupt ends the cell")
        return Acted()

    def _end_loop(self, frame: FrameType) -> Acted:
        found = ending(frame, self._is_users)
        if isinstance(found, str):
            return Acted(ok=False, text=f"The loop goes on, as it cannot be ended alone: {found}")
        self._ending = found
        return Acted(text="The loop ended as asked, and the cell went on below it")

    def _ends_at(self, last: int, step: int, frame: FrameType) -> bool:
        """End the loop after the step ``last``; whether that is yet to come."""
        if step < last:
            return True
        self._say(f"{self._end_loop(frame).text} (after step {step}).")
        return False

    def _comparison(self, act: LoopAct) -> StepComparison:
        def stop(frame: FrameType, words: str) -> None:
            frames = user_frames(frame, self._is_users)
            try:
                self._stop(frames[0] if frames else frame, words)
            except RuntimeError as error:  # nobody can answer
                self._say(f"{words} The loop goes on: {error}")

        return StepComparison(act.code, act.tolerance, self._names, self._say, stop, self._asks)

    def _check_number(self, act: LoopAct, frame: FrameType) -> Acted:
        try:
            self._comparison(act).value(frame)
        except Exception as error:  # noqa: BLE001 — a person's own expression
            return Acted(ok=False, text=f"{act.code} is no number here: {words_of(error)}")
        return Acted()

    def _save(self, order: SnapshotOrder, names: LoopNames, step: int) -> Acted:
        """Copy what is to be saved on all ranks together; threads write it while the loop goes on."""
        saving = stage(self._placed(order), names.read(), self._plugins, step)
        saving.go_on(self._say)
        notes = "".join(f". {note}" for note in saving.notes)
        return Acted(
            text=f"{', '.join(order.names)} saved as {order.name!r}, and written while the loop goes on{notes}"
        )

    def _compiled(self, name: str, code: str) -> tuple[ast.Module | None, Acted]:
        """The syntax tree of a person's code, or why there is none."""
        try:
            text = self._shell.transform_cell(code)
            file = self._sources.add(name, text)
            tree = compile(text, file, "exec", ast.PyCF_ONLY_AST | self._shell.compile.flags, dont_inherit=True)
        except Exception as error:  # noqa: BLE001 — a transformer of the user's may raise anything
            return None, self._raised(error)
        return tree, Acted()

    def _run(self, name: str, code: str, names: LoopNames) -> Acted:
        """Run code as a cell would, in ``names``: what it prints is shown, and the value of its last expression."""
        tree, found = self._compiled(name, code)
        if tree is None:
            return found
        text = self._shell.transform_cell(code)
        file, flags = self._sources.add(name, text), self._shell.compile.flags
        is_shown = not code.rstrip().endswith(";")
        try:
            names.run(tree, text, file, flags, show=lambda value: self._show(value) if is_shown else None)
        except BaseException as error:
            if isinstance(error, _THROUGH) or self._plugins.is_interrupt(error):
                raise
            return self._raised(error)
        return Acted()

    def _show(self, value: Any) -> None:
        """Show a value as a cell shows that of its last expression; it is no result of the cell's, though.

        Raises what the value's own representation raises.
        """
        if value is None:
            return
        self._showing, self._unshown = True, None
        try:
            data, metadata = self._shell.display_formatter.format(value)
            if self._unshown is not None:
                raise self._unshown
        finally:
            self._showing, self._unshown = False, None
        if data:
            self._shell.display_pub.publish(data=data, metadata=metadata)

    def _raised(self, error: BaseException) -> Acted:
        self.raised = error
        return Acted(ok=False, error=self._tracebacks.error(error))

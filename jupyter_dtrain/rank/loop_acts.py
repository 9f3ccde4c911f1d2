"""What a person asks of a running loop, done in a rank while its loop stands between two steps.

The gate (:mod:`.steering`) holds the ranks of a run at the same step, has each of them check an act, and only then has
them do it: on the thread of the loop, which stands in the hook that has counted the step. The names of an act are those
that the user's code sees there, see :func:`.loops.user_frames`.

Under failure: what the person's code raises is the answer of this rank, and the loop goes on. Stop, and what ends a
cell on purpose, goes through to the loop. A check changes nothing.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.events import Acted
from jupyter_dtrain.core.steering import LoopAct
from jupyter_dtrain.plugins.framework import CellEnds, locals_of

from .debugging import CellQuit
from .interrupts import CellStopped
from .loops import user_frames

if TYPE_CHECKING:
    from types import FrameType

    from .cell_sources import CellSources
    from .plugins import Plugins
    from .tracebacks import Tracebacks

_THROUGH: Final = (CellStopped, CellQuit, CellEnds)
_PLAIN_LOCALS: Final = sys.version_info >= (3, 13)
"""Whether ``f_locals`` of a function writes to its variables."""


class LoopActs:
    """Does the acts of one rank. The thread of the loop calls it."""

    def __init__(self, shell: Any, plugins: Plugins, sources: CellSources, tracebacks: Tracebacks) -> None:
        """``shell``: the rank's IPython."""
        self._shell = shell
        self._plugins = plugins
        self._sources = sources
        self._tracebacks = tracebacks
        self.raised: BaseException | None = None
        """What the person's code in the newest act has raised."""
        self._showing = False
        self._unshown: BaseException | None = None

    def check(self, act: LoopAct, frame: FrameType) -> Acted:
        """Whether the act can be done here, and if not, why. ``frame``: where the step was counted."""
        del frame
        match act.kind:
            case "between":
                return self._compiled("between", act.code)[1]
        return Acted()

    def apply(self, act: LoopAct, number: int, frame: FrameType) -> Acted:
        """Do the act. ``number``: the act's, which names its code. ``frame``: where the step was counted."""
        self.raised = None
        names = LoopNames(user_frames(frame, self._is_users))
        match act.kind:
            case "between":
                return self._run(f"between {number}", act.code, names)
        return Acted()

    def cannot_show(self, error: BaseException) -> bool:
        """Take ``error``, which a value's own representation has raised, if an act shows that value now."""
        if self._showing:
            self._unshown = error
        return self._showing

    def _is_users(self, file: str) -> bool:
        return self._sources.name_of(file) is not None or self._tracebacks.is_own(file)

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
        file, flags = self._sources.add(name, self._shell.transform_cell(code)), self._shell.compile.flags
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        if code.rstrip().endswith(";") and last is not None:
            tree.body.append(last)
            last = None
        try:
            with names:
                exec(compile(tree, file, "exec", flags, dont_inherit=True), names.seen)  # noqa: S102 — the person's code
                if isinstance(last, ast.Expr):
                    value = ast.Expression(last.value)
                    self._show(eval(compile(value, file, "eval", flags, dont_inherit=True), names.seen))  # noqa: S307
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


class LoopNames:
    """The names that some frames see together, as one dictionary for code that runs there.

    The first frame's own names come first, then those of its module, then those of the frames around it. Within a
    ``with``, a name that the code binds anew is bound where it was found; a new name becomes a module's.
    """

    def __init__(self, frames: list[FrameType]) -> None:
        """``frames``: from the innermost outwards; empty for no names."""
        self._frames = frames
        self.seen: dict[str, Any] = {}
        """The names, once they are needed."""
        self._before: dict[str, Any] = {}

    def __enter__(self) -> None:
        self.seen = self.read()
        self._before = dict(self.seen)

    def __exit__(self, *_: object) -> None:
        before, self._before = self._before, {}
        changed = {name: value for name, value in self.seen.items() if name not in before or before[name] is not value}
        self.bind(changed)

    def read(self) -> dict[str, Any]:
        """All names with their values; the module's own dictionary where that has all of them."""
        if not self._frames:
            return {}
        first = self._frames[0]
        if all(_is_module(one) and one.f_globals is first.f_globals for one in self._frames):
            return first.f_globals
        merged: dict[str, Any] = {}
        for frame in reversed(self._frames[1:]):
            merged.update(frame.f_globals)
            merged.update(locals_of(frame))
        merged.update(first.f_globals)
        merged.update(locals_of(first))
        return merged

    def bind(self, changed: Mapping[str, Any]) -> None:
        """Bind names where they were found, or in the first frame's module."""
        left = dict(changed)
        for frame in self._frames:
            for own in (locals_of(frame), frame.f_globals):
                mine = {name: left.pop(name) for name in list(left) if name in own}
                if mine and own is frame.f_globals:
                    own.update(mine)
                elif mine:
                    _bind_locals(frame, mine)
        if self._frames:
            self._frames[0].f_globals.update(left)


def _is_module(frame: FrameType) -> bool:
    return not frame.f_code.co_flags & inspect.CO_OPTIMIZED and frame.f_locals is frame.f_globals


def _bind_locals(frame: FrameType, values: Mapping[str, Any]) -> None:
    found: Any = frame.f_locals
    found.update(values)
    if not _PLAIN_LOCALS and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    del found
    locals_of(frame)  # so that the frame keeps no values by the way

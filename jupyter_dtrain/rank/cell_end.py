"""The end of a cell on its rank. A cell reaches it whatever the cell, a plug-in or a device does.

These are the steps. Each is guarded, so that the next one gets its turn:

1. The rank tells the steward that the cell failed. The steward then releases ranks that wait for this one, even while
   the steps below run.
2. The error becomes an event. Its texts are made by the user's classes, so they have :data:`.user_text.PATIENCE`
seconds.
3. Processes that an interrupted cell has started end, within deadlines.
4. The rank waits for the output of child processes, the plug-ins, the last points of the metrics and what was logged
   beside them, within deadlines. A cell that has not failed may compute for longer; there Stop ends the wait.
5. ``Finished`` is the last event.

Under failure: the cell says what is missing. Only native code that never returns on the main thread, or keeps the
interpreter lock, holds the end up.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Literal

import msgspec

from jupyter_dtrain.core.declarations import echoes
from jupyter_dtrain.core.events import Error
from jupyter_dtrain.core.exits import describe_request
from jupyter_dtrain.plugins.framework import CellEnds, NothingToJoin
from jupyter_dtrain.wire.reports import Ended, Report

from . import end_reason
from .debugging import CellQuit
from .interrupts import CellStopped
from .memory import clear_frames, is_out_of_memory, let_go
from .tracebacks import causes, missing_name
from .user_text import PATIENCE, Words, type_name, words_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from jupyter_dtrain.core.events import Outcome, Spent
    from jupyter_dtrain.core.world import Placement

    from .descriptors import DescriptorReader
    from .interrupts import Interrupts
    from .main_thread import MainThread
    from .media import MediaLog
    from .metrics import MetricBuffer
    from .plugins import Plugins
    from .process_tree import CellProcesses
    from .recorder import Recorder
    from .resources import Sampler
    from .tracebacks import Tracebacks

METRICS_PATIENCE = 5.0
"""Seconds that a device has for the last values of a cell that failed."""
MEDIA_PATIENCE = 10.0
"""Seconds in which pictures and other media of a cell that ended well may be encoded."""
LEAVING = 1.0
"""Seconds for each wait of a rank that received SIGTERM: there is no second interrupt, and its own end comes soon."""
MEMORY_PATIENCE = 10.0
"""Seconds for dropping the values of a failed cell: this may run code of the user's objects."""

_STOPS = (KeyboardInterrupt, CellStopped, asyncio.CancelledError)


class CellEnd:
    """Ends the cells of one rank. Main thread only."""

    def __init__(
        self,
        place: Placement,
        recorder: Recorder,
        descriptors: DescriptorReader,
        plugins: Plugins,
        metrics: MetricBuffer,
        sampler: Sampler,
        tracebacks: Tracebacks,
        main_thread: MainThread,
        interrupts: Interrupts,
        processes: CellProcesses,
        report: Callable[[Report], None],
        elder: int | None = None,
        media: MediaLog | None = None,
    ) -> None:
        """``place``: the rank's; ``report`` sends to the steward; ``media``: what the cell logs beside numbers.

        ``elder``: for a rank that came into a living world, one of those that were there; None for any other.
        """
        self._place = place
        self._recorder = recorder
        self._descriptors = descriptors
        self._plugins = plugins
        self._metrics = metrics
        self._sampler = sampler
        self._tracebacks = tracebacks
        self._main_thread = main_thread
        self._interrupts = interrupts
        self._processes = processes
        self._report = report
        self._elder = elder
        self._media = media
        self._failed: BaseException | None = None
        """What ended the last cell that failed; Python keeps it, too, for those who look at ``sys.last_value``."""
        self.words_patience = PATIENCE
        """Seconds for the texts of an error."""
        self.metrics_patience = METRICS_PATIENCE
        """Seconds, see :data:`METRICS_PATIENCE`."""

    def end(
        self,
        run: int,
        exception: BaseException | None,
        *,
        released: bool = False,
        recovering: bool = False,
        spent: Spent | None = None,
        over: Callable[[], None] = lambda: None,
    ) -> None:
        """End ``run``. ``exception`` ended its cell; ``released``: ranks were released before that.

        ``recovering``: something ended it while the frameworks were made whole, which is to be done again on all ranks.
        ``over`` is called before the last event: whoever reads that may ask the rank at once, and must find it idle.
        ``spent``: how the rank spent its time, where the cell asked for that.
        """
        exception = self._interrupts.restored(exception)
        outcome = self._outcome(exception)
        # The waits below begin interrupts anew.
        interrupted = self._interrupts.requested
        words, regroup = "", False
        steps: dict[str, int] = {}
        threads: Literal["", "alive", "waiting"] = ""
        try:
            with self._interrupts.closing():
                if outcome != "ok":
                    with contextlib.suppress(Exception):
                        # A person who has quit waits for nobody.
                        self._report(Ended(self._place.rank, run, at_once=issubclass(type(exception), CellQuit)))
                if exception is not None and outcome != "ok":
                    with self._despite("The cell's error is missing"):
                        self._tell(exception, released=released)
                with self._despite("Processes that this cell has started may still run"):
                    self._end_children(interrupted=interrupted)
                with self._despite("The last output of child processes may be missing"):
                    self._descriptors.drain()
                with self._despite("A framework may not be ready for the next cell"):
                    self._plugins.after_cell(failed=outcome != "ok")
                regroup = self._plugins.was_cut
                # After an interrupt that the cell has swallowed, no other comes that would end the wait.
                waited = self._end_metrics(failed=outcome != "ok" or interrupted or regroup)
                self._end_media(failed=outcome != "ok" or interrupted)
                if outcome == "ok" and (regroup or not waited):
                    # Something that the cell had begun was still to come.
                    outcome = "interrupted"
                if self._interrupts.ending:
                    outcome, words = "lost", describe_request(self._place.rank, end_reason.own.words)
                with self._despite("The process groups will be rebuilt"):
                    regroup = self._plugins.needs_regroup() or regroup
                    regroup = regroup or (outcome != "ok" and self._plugins.is_apart())
                    threads = self._main_thread.end()
                    regroup = regroup or (outcome != "ok" and threads == "waiting")
                    steps = self._plugins.steps()
                with contextlib.suppress(Exception):
                    self.say_failures()
        finally:
            self._sampler.end()
            over()
            regroup = regroup or recovering
            self._recorder.finish(outcome, words, regroup=regroup, steps=steps, spent=spent, threads=threads)

    def forget(self) -> None:
        """Let go of what ended the last cell that failed."""
        self._failed = None

    def say_failures(self) -> None:
        """Show the notices of the plug-ins' failures in the cell."""
        for notice in self._plugins.take_notices():
            self._recorder.write("stderr", f"[jupyter-dtrain] {notice}\n")

    def _end_children(self, *, interrupted: bool) -> None:
        """End the processes that an interrupted cell has started; any other cell may leave processes behind."""
        if not interrupted or self._interrupts.ending:
            self._processes.leave()
            return
        ended, left = self._processes.end()
        self._plugins.children_ended(ended)
        if left:
            names = ", ".join(f"{child.name} (pid {child.pid})" for child in left)
            self._recorder.write(
                "stderr",
                f"[jupyter-dtrain] These processes are still running: {names}. %distributed restart ends them.\n",
            )
        with self._despite("A pool of processes may still be busy with tasks of this cell"):
            self._processes.interrupt_pools()

    def _outcome(self, exception: BaseException | None) -> Outcome:
        if exception is None or issubclass(type(exception), CellEnds):
            return "ok"
        if issubclass(type(exception), (NothingToJoin, CellQuit)):
            return "interrupted"
        return "interrupted" if self._interrupts.requested and issubclass(type(exception), _STOPS) else "error"

    def _tell(self, exception: BaseException, *, released: bool) -> None:
        stopped = issubclass(type(exception), _STOPS)
        words = Words(self.words_patience, self._wait)
        if not (stopped and self._interrupts.ending):
            try:
                waited = "" if stopped else words.ask(lambda: self._main_thread.waited_in(exception), lambda _: "")
                released = released or words.ask(lambda: self._is_released(exception), lambda _: False)
                error = self._tracebacks.error(exception, words)
                notes = [*self._newcomers_note(exception), *error.notes]
                error = msgspec.structs.replace(error, waited=waited, released=released, notes=notes)
            except BaseException as failure:  # noqa: BLE001 — no memory, say: the cause is shown all the same
                why = f"<its traceback could not be made: {type_name(failure)}>"
                error = Error(type_name(exception), why, [])
            self._recorder.append(error)
        if words.ask(lambda: is_out_of_memory(exception, self._plugins), lambda _: False):
            with self._despite("The memory of the failed cell may still be in use"):
                told = self._interrupts.bounded(lambda: let_go(exception, self._plugins), MEMORY_PATIENCE)
                self._recorder.write("stderr", f"[jupyter-dtrain] {told}\n")
        failed, self._failed = self._failed, exception
        if failed is not None and failed is not exception:
            with self._despite("The memory of an earlier failed cell may still be in use"):
                self._interrupts.bounded(lambda: clear_frames(failed), MEMORY_PATIENCE)

    def _is_released(self, exception: BaseException) -> bool:
        return any(self._plugins.is_released(one) for one in causes(exception))

    def lost_others(self, exception: BaseException) -> bool:
        """Whether ``exception`` came out of a wait for ranks of which one was released, or has died."""
        if self._is_released(exception):
            return True
        # Any connection may be reset; these words tell of a rank in a wait for ranks alone.
        said = words_of(exception) if self._main_thread.waited_in(exception) else ""
        return any(words in said for words in echoes())

    def _newcomers_note(self, exception: BaseException) -> list[str]:
        """Why a new rank lacks a variable, and how it gets one."""
        name = missing_name(exception)
        if self._elder is None or not name:
            return []
        lacks = f"Rank {self._place.rank} is a new process, without the variables that cells made before it came."
        fix = f"%distributed broadcast --from {self._elder} {name} copies {name} from rank {self._elder}."
        return [f"{lacks} {fix}"]

    def _wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for ``event`` at most ``seconds``; return whether it came. Stop ends the wait."""
        if self._interrupts.ending:
            return event.wait(min(seconds, LEAVING))
        try:
            with self._interrupts.enabled():
                return event.wait(seconds)
        except (KeyboardInterrupt, CellStopped):
            return False

    def _end_metrics(self, *, failed: bool) -> bool:
        """Record the last points of the metrics; return whether that was possible."""
        loss = "The last points of this cell's metrics are missing"
        done = stopped = False
        with self._despite(loss):
            try:
                if self._interrupts.ending:
                    done = self._metrics.end(LEAVING)
                else:
                    with self._interrupts.enabled():
                        done = self._metrics.end(self.metrics_patience if failed else None)
            except (KeyboardInterrupt, CellStopped):
                stopped = True
            if not done:
                why = (
                    "an interrupt ended the wait"
                    if stopped
                    else f"they were not ready after {self.metrics_patience:g} s"
                )
                self._recorder.write("stderr", f"[jupyter-dtrain] {loss}: {why}.\n")
        return done

    def _end_media(self, *, failed: bool) -> None:
        """Record what the cell has logged beside numbers. Stop ends the wait."""
        if self._media is None:
            return
        with self._despite("Some of what this cell has logged beside numbers is missing"):
            if self._interrupts.ending:
                self._media.end(LEAVING)
                return
            with contextlib.suppress(KeyboardInterrupt, CellStopped), self._interrupts.enabled():
                self._media.end(self.metrics_patience if failed else MEDIA_PATIENCE)

    @contextlib.contextmanager
    def _despite(self, loss: str) -> Iterator[None]:
        """Go on, whatever is raised inside, and say which ``loss`` that causes."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 — a run that was begun must end
            with contextlib.suppress(Exception):
                self._recorder.write("stderr", f"[jupyter-dtrain] {loss}: {words_of(error)}.\n")

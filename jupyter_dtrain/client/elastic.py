"""Replaces the ranks that die in an elastic run while the others go on, and has the new ones join it.

An elastic run uses nothing of all ranks: its cell goes on without those that die, as a training with a fault-tolerant
library does. A :class:`Companion` is a thread beside one such run. When one of its ranks has died, it has the steward
heal the world beside the run, runs the set-up cells on the new rank alone, and then the run's own cell, as a run of its
own that *joins* the first: the new rank gets the others' state from the library.

Under failure: a death during all of this makes it begin again, for all ranks that are dead by then. Where a rank cannot
be replaced, dies again and again, or fails in a set-up cell, the run goes on without it and says why. Stop ends all
runs, and whatever comes next is left out; a heal that the steward has begun ends by itself. If the run ends before a
new rank has joined it, the rank does not begin: it would work alone, from the start. If the world is lost, or another
client drives it, the thread ends and the run is one like any other.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.causes import summary
from jupyter_dtrain.core.errors import DtrainError, RanksBusy, RanksDead, ReplaceFailed
from jupyter_dtrain.core.events import RunContext
from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.wire.messages import Cell

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.core.stop_button import StopButton
    from jupyter_dtrain.core.world import AddressedWorld
    from jupyter_dtrain.view import RunView
    from jupyter_dtrain.wire.healing_messages import HealState

    from .cells import CellRunner
    from .link import Link
    from .notices import Notices
    from .run_scheduler import RunScheduler

POLL: Final = 0.05
"""Seconds between two looks at the run and its ranks."""
SOON: Final = 60.0
"""Seconds after its start within which the death of a new rank is likely to have the cause of the death before it."""
DEATHS: Final = 3
"""After so many such deaths in succession a rank is not replaced again."""

_log = logging.getLogger(__name__)


class Companion:
    """Beside one elastic run."""

    def __init__(
        self,
        link: Link,
        scheduler: RunScheduler,
        cells: CellRunner,
        notices: Notices,
        heal: Callable[[], HealState],
        beside: set[int],
        set_up: Mapping[int, str],
        make_view: Callable[[Run], RunView | None],
        **options: Any,
    ) -> None:
        """``heal`` replaces dead ranks beside the runs in ``beside``, to which this adds its own.

        ``set_up``: the cells that a new rank runs first, by their run; ``make_view`` makes the view of a run that
        joins, and ``options`` are those of :meth:`.CellRunner.run` for the cell: the runs that join have the same.
        ``heal`` raises :class:`ReplaceFailed`.
        """
        self._link = link
        self._scheduler = scheduler
        self._cells = cells
        self._notices = notices
        self._heal = heal
        self._beside = beside
        self._set_up = set_up
        self._make_view = make_view
        self._options = options
        self._pids: dict[int, int] = {}
        """The process by which each rank has begun the run, or has joined it last."""
        self._joins: list[Run] = []
        self._given_up: set[int] = set()
        """The dead ranks that cannot be replaced; another try follows when another rank dies."""
        self._came: dict[int, float] = {}
        """When each new rank came, by ``time.monotonic``."""
        self._deaths: dict[int, int] = {}
        """How often in succession a rank has died soon after it came."""
        self._took = ""
        """How long the last heal took, in words."""
        self._healing = False

    def follow(self, run: Run) -> Callable[[StopButton], None]:
        """Follow ``run``, which is on its way to its ranks, on a thread; returns the wait for that thread's end."""
        self._run = run
        self._beside.add(run.number)
        self._note_processes(run.ranks)
        # Views that are made on the thread belong to this cell.
        in_cell = contextvars.copy_context().run
        self._thread = threading.Thread(target=in_cell, args=(self._follow,), name="dtrain-elastic", daemon=True)
        self._thread.start()
        return self._wait

    def _wait(self, stop_button: StopButton) -> None:
        """Wait for the new ranks, once the run has ended. Stop ends the wait for a heal."""
        while self._thread.is_alive() and not (self._healing and (self._run.interrupted or stop_button.fell)):
            self._thread.join(POLL)
        self._notices.show()

    # The thread.

    def _follow(self) -> None:
        try:
            while self._goes_on:
                try:
                    if not self._step():
                        self._run.wait(POLL)
                except (RanksDead, RanksBusy):  # another rank has died, or another client heals
                    self._run.wait(POLL)
            world = self._link.world
            if late := [rank for rank in self._lost if self._is_new(rank, world)]:
                self._come_late(late)
            for join in self._joins:
                join.wait()
        except DtrainError as error:
            _log.info("Run %s is no longer followed: %s", self._run.number, error)
        except Exception:  # noqa: BLE001 — the run goes on without this thread
            _log.exception("New ranks do not join run %s any more", self._run.number)
        finally:
            self._beside -= {run.number for run in (self._run, *self._joins)}

    @property
    def _goes_on(self) -> bool:
        """Whether there is something to join."""
        return self._run.outcome == "running" and bool(self._run.unfinished) and not self._run.interrupted

    def _step(self) -> bool:
        """Do what is due for the ranks that are lost; whether there was something."""
        world = self._link.world
        dead = [rank for rank in self._lost if world.rank(rank).state == "dead"]
        if fresh := [rank for rank in dead if rank not in self._given_up]:
            self._count_deaths(fresh)
            if not self._given_up.issuperset(dead):
                self._replace(dead)
            return True
        if new := [rank for rank in self._lost if self._is_new(rank, world)]:
            self._let_join(new, world)
            return True
        return False

    @property
    def _lost(self) -> list[int]:
        """The ranks that have not been through with the run, nor with one that joins it."""
        return [rank for rank in self._run.ranks if rank in self._last(rank).lost]

    def _is_new(self, rank: int, world: AddressedWorld) -> bool:
        """Whether a lost rank has another process now, which has not joined and was not left out."""
        return world.rank(rank).state != "dead" and world.rank(rank).pid != self._pids[rank]

    def _last(self, rank: int) -> Run:
        """The run in which this rank worked last: the elastic one, or one that joins it."""
        return next((join for join in reversed(self._joins) if rank in join.ranks), self._run)

    def _count_deaths(self, dead: list[int]) -> None:
        """Give up ranks that die again and again: what kills them would kill the next process, too."""
        now = time.monotonic()
        for rank in dead:
            came = self._came.pop(rank, None)
            if came is None:
                continue
            self._deaths[rank] = self._deaths.get(rank, 0) + 1 if now - came < SOON else 0
            if self._deaths[rank] >= DEATHS:
                self._given_up.add(rank)
                self._say(
                    f"Rank {rank} has died {DEATHS} times within {SOON:g} s of its start, so it is not replaced again. "
                    f"This cell goes on without it."
                )

    def _replace(self, dead: list[int]) -> None:
        who = count_ranks(dead)
        causes = dict.fromkeys(self._link.world.rank(rank).words for rank in dead)
        said = "".join(f"{words[:1].upper()}{words[1:]}. " for words in causes if words)
        self._say(f"{said}{who.capitalize()} will be replaced while the others go on.")
        self._healing = True
        try:
            state = self._heal()
        except ReplaceFailed as error:
            # Where another client was faster, no rank is dead any more.
            if {*dead} & {rank.rank for rank in self._link.world.dead}:
                self._given_up = {*dead}
                self._say(f"{str(error).rstrip('.')}. This cell goes on without {who}.")
            return
        finally:
            self._healing = False
        self._given_up, self._took = set(), state.words
        self._came |= dict.fromkeys((rank.rank for rank in state.ranks), time.monotonic())

    def _let_join(self, new: list[int], world: AddressedWorld) -> None:
        for number, code in self._set_up.items():
            if not self._prepare(new, number, code):
                return
        if not self._goes_on:
            return
        join = self._cells.run(
            self._run.source,
            new,
            self._make_view,
            wait=False,
            cell=Cell(
                run_name=f"run {self._run.number}, joined",
                context=RunContext(first_step=self._run.fold.first_step),
            ),
            joins=self._run.number,
            **self._options,
        )
        self._beside.add(join.number)
        self._joins.append(join)
        self._run.joined_by(join)
        self._pids |= {rank.rank: rank.pid for rank in world.ranks if rank.rank in new}
        many = len(new) > 1
        said = f"{count_ranks(new).capitalize()} {'have new processes' if many else 'has a new process'}"
        said += f" after {self._took}," if self._took else ","
        if self._set_up:
            runs = ", ".join(map(str, self._set_up))
            said += f" ran the cell{'s' if len(self._set_up) > 1 else ''} of run {runs} again"
        self._say(f"{said.rstrip(',')} and {'join' if many else 'joins'} this cell as run {join.number}.")
        if self._run.interrupted and not join.interrupted:
            self._scheduler.interrupt()  # Stop came while the cell was on its way

    def _prepare(self, new: list[int], number: int, code: str) -> bool:
        """Run a set-up cell on new ranks; whether it ended well."""
        run = self._cells.run_aside(code, new, f"run {number} again", wait=False)
        self._beside.add(run.number)
        run.wait()
        self._beside.discard(run.number)
        if run.outcome in ("error", "interrupted") and not self._run.interrupted:
            self._note_processes(new)
            self._say(
                f"{count_ranks(new).capitalize()} cannot join: the cell of run {number} did not end well there. "
                f"{summary(run)}"
            )
        return run.outcome == "ok"

    def _note_processes(self, ranks: list[int]) -> None:
        self._pids |= {rank.rank: rank.pid for rank in self._link.world.ranks if rank.rank in ranks}

    def _come_late(self, new: list[int]) -> None:
        """There is nothing to join any more."""
        many = len(new) > 1
        words = f"{count_ranks(new).capitalize()} {'have new processes' if many else 'has a new process'}"
        if self._run.interrupted:
            self._say(f"{words}, without variables: the cell was interrupted before {'they' if many else 'it'} joined.")
            return
        source = min({*self._run.ranks} - {*new}, default=0)
        self._say(
            f"{words}, but this cell had ended on the others before {'they' if many else 'it'} could join. "
            f"%distributed broadcast --from {source} NAMES copies what {'they lack' if many else 'it lacks'}."
        )

    def _say(self, words: str) -> None:
        """Show ``words`` with the run, or in the next cell where it has ended."""
        if self._run.outcome == "running":
            self._scheduler.note(self._run.number, words)
        else:
            self._notices.hear(words)

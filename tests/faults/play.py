"""Plays a situation of the failure table in a real world, and compares the world with the table."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jupyter_dtrain import NoWorld, RanksBusy, RanksDead, ReplaceFailed, Run, Session, WorldLost
from jupyter_dtrain.core.causes import blocks
from jupyter_dtrain.core.events import Finished
from jupyter_dtrain.core.failures import After, Situation
from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.wire.spool import read_file, spool_path
from jupyter_dtrain.wire.steward_messages import ReadState
from tests.faults import cells
from tests.faults.plans import DEATHS, LIBRARIES, ROWS, Plan
from tests.faults.worlds import HANG, SETTINGS, World, Worlds
from tests.hosts.launching import process_at
from tests.session.cells import Notes
from tests.steward.until import child_named, runs, stays, steward_of, until

INTERRUPT = 2.0
"""Seconds in which a cell has ended after the last step of an interrupt, whatever it does."""
SLACK = 6.0
"""Seconds that a busy machine may add to what the table says."""
PATIENCE = 30.0

IMPORTS = 300.0
"""Seconds that ranks may take to import a library."""


class Play:
    """A play in one of the worlds; :attr:`problems` has the differences from the table, in words."""

    def __init__(self, worlds: Worlds, plan: Plan) -> None:
        self.plan = plan
        self.row: Situation = ROWS[plan.situation]
        self.problems: list[str] = []
        self.broken = False
        """Whether the world is not to be used again."""
        self.old_mpi = plan.situation == "no-ulfm"
        self._worlds = worlds
        self._go = worlds.meeting / f"go-{secrets.token_hex(4)}"
        self._others = [rank for rank in range(plan.size) if rank != plan.victim]
        self._notes = Notes()

    def run(self) -> tuple[float, str]:
        """Play it; the seconds to the end of the cell, and its outcome."""
        world = self._worlds.world(self.plan.size, old_mpi=self.old_mpi)
        before = self._processes(world.session)
        self._hosts = [rank.host for rank in world.session.world.ranks]
        if self.plan.framework in LIBRARIES:
            # Imported and warm: what is timed below is the failure.
            warm = f"{cells.MEET[self.plan.framework]}\nmeet()"
            world.session.run(warm, view=None, timeout=IMPORTS)
        run = world.session.run(self.code, wait=False, view=self._notes)
        self._until(lambda: self._said(run, 1), "all ranks have begun")
        if self.plan.mode == "alone":
            world.session.leave()
        began = time.monotonic()
        self._befall(world)
        self._go.touch()
        if self.plan.mode == "alone":
            self._wait_alone(world.session, run, began)
            if self.row.after == "ended":
                seconds = time.monotonic() - began
                self._check_ended(world)
                return seconds, "lost"
            alone = time.monotonic() - began
            world.session = Session.attach(world.mark, view=lambda *_: self._notes)
            run = world.session.last_run
        if self.plan.mode == "interrupted" or self.row.ends is None:
            self._until(lambda: self._has_befallen(world.session, run), "it has come about on all ranks")
            if self.plan.mode != "interrupted":
                self._hear_of_hang()
            return self._interrupt(world, run, before)
        limit = self.row.ends.of(SETTINGS)
        self._check(run.wait(limit + SLACK), f"the cell goes on after {limit + SLACK:g} s")
        seconds = alone if self.plan.mode == "alone" else time.monotonic() - began
        if self.row.after == "unhealable":
            self._comes(lambda: self._notices(world), "nothing is told")
        self._check(run.outcome == self.row.outcome, f"ended as {run.outcome}, not as {self.row.outcome}")
        self._hear("\n".join([*blocks(run), *self._notes.words, *self._texts(run), *self._notices(world)]))
        self._check_after(world, before, self.row.after)
        return seconds, run.outcome

    @property
    def code(self) -> str:
        """The cell, for all ranks."""
        begin = cells.BEGIN.format(meet=cells.MEET[self.plan.framework], victim=self.plan.victim, go=str(self._go))
        return begin + cells.cell_of(self.plan.situation, self.plan.framework)

    def _befall(self, world: World) -> None:
        match self.plan.situation:
            case "steward-killed":
                steward_of(world.session).kill()
            case "controller-killed":
                child_named(world.session, "controller").kill()
            case "mpiexec-killed":
                child_named(world.session, "prterun").kill()

    def _wait_alone(self, session: Session, run: Run, began: float) -> None:
        """Wait without a client: until the ranks' logs have the end, or for as long as the report of a hang takes."""
        if self.row.ends is None:
            # A rank that raises has ended; nothing is to come of the others meanwhile.
            stays(lambda: len(self._ended(session, run)) < self.plan.size, HANG)
            return
        limit = began + self.row.ends.of(SETTINGS) + SLACK
        if self.row.after == "ended":
            ends = limit - time.monotonic()
            self._comes(lambda: not Path(session.request.folder).exists(), "without a client the world goes on", ends)
            return

        # No process writes the end of a rank whose watch is gone, nor where the disk is full.
        ranks = list(range(self.plan.size))
        if self.plan.situation == "watch-killed":
            ranks = [rank for rank in ranks if self._hosts[rank] != self._hosts[self.plan.victim]]
        elif self.plan.situation == "disk-full":
            ranks = self._others
        ends = limit - time.monotonic()
        self._comes(lambda: self._ended(session, run).issuperset(ranks), "without a client it goes on", ends)

    def _ended(self, session: Session, run: Run) -> set[int]:
        """The ranks that have ended the run, read from their spools without a connection."""
        ended = set()
        for rank in range(self.plan.size):
            with contextlib.suppress(OSError):
                events = read_file(spool_path(session.request.spool, run.number, rank))
                ended |= {rank for event in events if isinstance(event.body, Finished)}
        return ended

    def _hear_of_hang(self) -> None:
        wanted = [words for words in self.row.words if not words.startswith("This MPI")]
        if not wanted:
            return
        told = HANG + 2 + SLACK
        self._comes(
            lambda: any("moved for" in words for words in self._notes.words), "nobody tells that it hangs", told
        )
        self._hear("\n".join(self._notes.words), wanted)

    def _interrupt(self, world: World, run: Run, before: dict[int, Any]) -> tuple[float, str]:
        began = time.monotonic()
        world.session.interrupt()
        limit = self._worlds.settings.interrupt_timeout + INTERRUPT + SLACK
        self._check(run.wait(limit), f"the cell goes on {limit:g} s after the interrupt")
        seconds = time.monotonic() - began
        self._check(run.outcome in ("interrupted", self.row.outcome), f"ended as {run.outcome} after the interrupt")
        if self.row.words and self.old_mpi:
            self._hear("\n".join(self._notices(world)), [self.row.words[-1]])
        self._check_after(world, before, self.row.interrupted)
        return seconds, run.outcome

    def _check_after(self, world: World, before: dict[int, Any], after: After) -> None:
        session = world.session
        everybody = dict.fromkeys(range(self.plan.size))
        match after:
            case "ended":
                self._check_ended(world)
            case "whole":
                self._check_ranks(session, before, everybody, meet=True)
            case "unhealable":
                self._comes(lambda: session._link.ask(ReadState()).healable is False, "it is said to be healable")
                self._check_ranks(session, before, everybody, meet=True)
                self.broken = True
            case "empty":
                gone = [rank for rank, host in enumerate(self._hosts) if host == self._hosts[self.plan.victim]]
                self._until(lambda: len(session.world.dead) >= len(gone), "all ranks of that host are dead")
                dead = [rank.rank for rank in session.world.dead]
                self._check(dead == gone, f"{count_ranks(dead)} dead, not {count_ranks(gone)}")
                with contextlib.suppress(RanksDead):
                    session.run("1", view=None)
                    self.problems.append("a cell on all ranks is not refused")
                if living := [rank for rank in everybody if rank not in gone]:
                    self._check_ranks(session, before, living, meet=False)
                world.restart()
            case "dead" | "doubtful":
                # An interrupt may be over before the death is noticed.
                self._until(lambda: session.world.dead, "a rank is dead")
                dead = [rank.rank for rank in session.world.dead]
                self._check(len(dead) == 1, f"{count_ranks(dead)} dead, not one")
                with contextlib.suppress(RanksDead):
                    session.run("1", view=None)
                    self.problems.append("a cell on all ranks is not refused")
                self._check_ranks(session, before, [rank for rank in everybody if rank not in dead], meet=False)
                if self._worlds.network is None:
                    self._check_heal(world, before, dead, may_fail=after == "doubtful")
                else:
                    world.restart()
            case "busy":
                self._check_busy(world, before)

    def _check_heal(self, world: World, before: dict[int, Any], dead: list[int], *, may_fail: bool) -> None:
        """A heal replaces what is dead; all ranks meet again, and the others are as they were."""
        session = world.session
        try:
            session.replace()
        except ReplaceFailed as error:
            self._check(may_fail and "made no progress" in str(error), str(error))
            world.restart()
            return
        session.run("pass", view=None)
        session.run(cells.PREPARE, dead, view=None)
        after = {rank.rank: (rank.pid,) for rank in session.world.ranks}
        changed = [rank for rank in after if after[rank] != before[rank]]
        self._check(changed == dead, f"a heal of {count_ranks(dead)} has replaced {changed}")
        self._check_ranks(session, after, range(self.plan.size), meet=True)

    def _check_busy(self, world: World, before: dict[int, Any]) -> None:
        session = world.session
        busy = sorted(session._scheduler.left_behind())
        with contextlib.suppress(RanksBusy):
            session.run("1", view=None)
            self.problems.append("a cell on all ranks is not refused")
        free = [rank for rank in range(self.plan.size) if rank not in busy]
        if self.old_mpi:
            self._check(self.plan.victim not in busy, "the rank that raised is busy")
            self.broken = True
            return
        held = self._others if self.plan.situation == "endless-mpi" else [self.plan.victim]
        self._check(busy == held, f"{count_ranks(busy)} busy")
        if free:
            self._check_ranks(session, before, free, meet=False)
        if self.plan.situation == "stopped":
            process_at(self._worlds.network, session, self.plan.victim).resume()
            self._until(lambda: not session._scheduler.left_behind(), "the rank that goes on takes the interrupt")
            self._check_ranks(session, before, range(self.plan.size), meet=True)
        else:
            session.kill(busy)
            self._check([rank.rank for rank in session.world.dead] == busy, "the rank that was killed is not dead")
            world.restart()

    def _check_ended(self, world: World) -> None:
        self.broken = True
        if self.plan.mode != "alone":
            with contextlib.suppress(WorldLost):
                world.session.run("1", view=None)
                self.problems.append("a world that has ended takes a cell")

    def _check_ranks(self, session: Session, before: dict[int, Any], ranks: Any, *, meet: bool) -> None:
        """The next cell: the same processes, the same objects, and where all take part an all-reduce."""
        code = cells.LOOK.format(meet=cells.MEET[self.plan.framework], met="meet()" if meet else "None")
        run = session.run(code, list(ranks), view=None, timeout=PATIENCE)
        for rank in ranks:
            wanted = (before[rank][0], True, float(self.plan.size) if meet else None)
            found = run.results[rank].data["text/plain"]
            self._check(found == repr(wanted), f"rank {rank} is {found}, not {wanted}")

    def _processes(self, session: Session) -> dict[int, Any]:
        self._real = [process_at(self._worlds.network, session, rank) for rank in range(self.plan.size)]
        return {rank.rank: (rank.pid,) for rank in session.world.ranks}

    def _notices(self, world: World) -> list[str]:
        with contextlib.suppress(NoWorld, WorldLost):
            return list(world.session._link.ask(ReadState()).notices)
        return []

    def _texts(self, run: Run) -> Iterator[str]:
        return (run.text(rank, "stderr") for rank in run.ranks if rank in run.logs)

    def _said(self, run: Run | None, lines: int) -> bool:
        assert run is not None
        return run.done or all(
            totals.lines >= lines or rank in run.lost or rank in run.outcomes for rank, totals in run.totals.items()
        )

    def _has_befallen(self, session: Session, run: Run) -> bool:
        if self.plan.situation in DEATHS:
            # The last words of dead ranks come with their death, and by then the others may have ended.
            return not all(runs(process) for process in self._real)
        match self.plan.situation:
            case "stopped":
                return session.world.ranks[self.plan.victim].state == "stopped"
            case "native-locked":
                stack = session.stacks([self.plan.victim], timeout=0.2)[self.plan.victim]
                return stack is not None and stack.state == "native"
            case "endless-mpi":
                # An interrupt ends a rank that is on its way there.
                waits = [stack and stack.waits for stack in session.stacks(self._others, timeout=1).values()]
                return all(wait is not None and wait.call == "Win.Lock" for wait in waits)
        return self._said(run, 2)

    def _until(self, condition: Callable[[], object], what: str) -> None:
        try:
            until(condition, PATIENCE)
        except AssertionError as error:
            raise TimeoutError(f"it did not come to this: {what}") from error

    def _comes(self, condition: Callable[[], object], words: str, patience: float = PATIENCE) -> None:
        """Note ``words`` as a problem if ``condition`` does not come true in time."""
        try:
            until(condition, patience)
        except AssertionError:
            self.problems.append(words)

    def _hear(self, text: str, wanted: list[str] | None = None) -> None:
        """Check that ``text`` has the words of the table."""
        call = cells.CALL.get(self.plan.framework, "")
        if self.plan.situation == "never-arrives" and self.plan.framework == "torch":
            call = "init_process_group"
        values = {
            "rank": self.plan.victim,
            "were": "was" if len(self._others) == 1 else "were",
            "last": self.plan.size - 1,
            "call": call,
            "hang": f"{HANG:g}",
        }
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        for words in self.row.words if wanted is None else wanted:
            line = words.format(**values)
            self._check(line.lower() in plain.lower(), f"not told: {line!r}. What was told:\n{plain}")

    def _check(self, holds: object, words: str) -> None:
        if not holds:
            self.problems.append(words)

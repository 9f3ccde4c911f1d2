"""Plays of heals and resizes: a rank or ``mpiexec`` dies while the world changes, or no process can be started.

No cell runs in them, so they are no rows of the failure table; docs/failures.md has a section on them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Final

import psutil

from jupyter_dtrain import ReplaceFailed, Session
from tests.faults import cells
from tests.faults.plans import Plan
from tests.faults.worlds import World, Worlds
from tests.steward.until import child_named, until

LIMIT: Final = 60.0
"""Seconds in which a change has ended, however it ends; one of a quiet machine takes one or two."""
MORE: Final = 2
"""How many ranks a world gains or loses."""


class ChangePlay:
    """A change of a world in which something is struck; :attr:`problems` has what went wrong, in words."""

    old_mpi = False

    def __init__(self, worlds: Worlds, plan: Plan) -> None:
        self.plan = plan
        self.problems: list[str] = []
        self.broken = False
        """Whether the world is not to be used again."""
        self._worlds = worlds
        self._change, _, self._target = plan.situation.partition("-")
        self._struck: list[int] = []

    def run(self) -> tuple[float, str]:
        """Play it; the seconds that the change took, and whether it is ``ok`` or has ``failed``."""
        world = self._worlds.world(self.plan.size, old_mpi=False)
        session = world.session
        session.run(f"{cells.MEET[self.plan.framework]}\nmeet()", view=None, timeout=60.0)
        before = {rank.rank: rank.pid for rank in session.world.ranks}
        size, dead = self.plan.size, []
        gone: list[int] = []  # the ranks that the change ends
        if self._change == "heal":
            dead = [(self.plan.victim + 1) % size]
            session.kill(dead)
        elif self._change == "drop":
            gone = [(self.plan.victim + 1) % size]
            size -= 1
        else:
            size = size + MORE if self._change == "grow" else max(1, size - MORE)
            gone = list(range(size, self.plan.size))
        keep = self._forbid(session) if self._target == "no-process" else None
        began, why = time.monotonic(), ""
        try:
            if self._change == "heal":
                session.replace(progress=lambda words: self._strike(session, dead, words))
            else:
                drop = gone if self._change == "drop" else None
                session.resize(
                    None if drop else size,
                    drop=drop,
                    progress=lambda words: self._strike(session, [self.plan.size], words),
                )
            outcome = "ok"
        except ReplaceFailed as failed:
            outcome, why = "failed", f": {failed}"
            fix = "%distributed restart" if self._change == "heal" else f"%distributed start -n {size}"
            self._check(fix in str(failed), f"no way on: {failed}")
        finally:
            if keep is not None:
                keep()
        seconds = time.monotonic() - began
        self._check(seconds < LIMIT, f"it took {seconds:.0f} s")
        died = {*dead, self.plan.victim} if self._target == "other-killed" else {*dead}
        left = {*range(self.plan.size)} - died - {*gone}
        fails = self._target in ("mpiexec-killed", "no-process") or not left
        struck = self._target == "no-process" or bool(self._struck)
        self._check(not struck or outcome == ("failed" if fails else "ok"), f"ended as {outcome}{why}")
        stay = [rank for rank in range(self.plan.size) if outcome == "failed" or rank not in gone]
        self._mend(world, {number: before[rank] for number, rank in enumerate(stay) if rank not in died}, before)
        return seconds, outcome

    def _strike(self, session: Session, new: list[int], words: str) -> None:
        """Kill what is to die, once the change has come so far."""
        if self._struck or self._target == "no-process":
            return
        if self._target == "mpiexec-killed":
            process: psutil.Process | None = child_named(session, "prterun")
        elif self._target == "other-killed":
            process = psutil.Process(session.world.ranks[self.plan.victim].pid)
        else:
            process = self._newcomer(session) if f"rank {new[0]} starts" in words else None
        if process is not None:
            self._struck.append(process.pid)
            os.kill(process.pid, signal.SIGKILL)

    def _newcomer(self, session: Session) -> psutil.Process | None:
        """The newest process that the watch has forked, if it is none of the world's ranks."""
        known = {rank.pid for rank in session.world.ranks}
        living = next(rank.pid for rank in session.world.ranks if rank.state != "dead")
        new = [child for child in psutil.Process(living).parent().children() if child.pid not in known]
        return max(new, key=lambda child: child.create_time(), default=None)

    def _forbid(self, session: Session) -> Any:
        """Let ``mpiexec`` open no more files, so that it can start nothing; returns what gives them back."""
        mpiexec = child_named(session, "prterun")
        limits = mpiexec.rlimit(psutil.RLIMIT_NOFILE)
        mpiexec.rlimit(psutil.RLIMIT_NOFILE, (mpiexec.num_fds(), limits[1]))
        return lambda: mpiexec.rlimit(psutil.RLIMIT_NOFILE, limits)

    def _mend(self, world: World, stay: dict[int, int], before: dict[int, int]) -> None:
        """The ranks that were not struck are as before; all meet again; then the world is as it was.

        ``stay``: their processes by the numbers that they have now; ``before``: those of all ranks before the change.
        """
        session = world.session
        if self._struck and (struck := [rank.rank for rank in session.world.ranks if rank.pid in self._struck]):
            # It was over when the rank died.
            until(lambda: {*struck} <= {rank.rank for rank in session.world.dead})
        living = {rank.rank: rank.pid for rank in session.world.ranks if not rank.has_ended}
        moved = [rank for rank in stay if rank in living and stay[rank] != living[rank]]
        self._check(not moved, f"not the processes of before: {living}, not {stay}")
        if self._target == "mpiexec-killed":
            self.broken = True
            return
        if session.world.dead:
            with contextlib.suppress(ReplaceFailed):
                session.replace()
        if session.world.dead:
            world.restart()
        elif session.world.size != self.plan.size:
            session.resize(self.plan.size)
        # A cell on all ranks first: new ones come along in the others' groups.
        session.run("pass", view=None)
        new = [rank.rank for rank in session.world.ranks if before.get(rank.rank) != rank.pid]
        if new:
            session.run(cells.PREPARE, new, view=None)
        found = session.run(f"{cells.MEET[self.plan.framework]}\nmeet()", view=None, timeout=60.0).results
        met = {rank: result.data["text/plain"] for rank, result in found.items()}
        self._check(met == dict.fromkeys(range(self.plan.size), repr(float(self.plan.size))), f"they meet as {met}")

    def _check(self, holds: object, words: str) -> None:
        if not holds:
            self.problems.append(words)

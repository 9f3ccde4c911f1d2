"""A play of an elastic cell: a rank of it is killed, the others go on, and a new process joins them."""

from __future__ import annotations

import time
from typing import Any

from jupyter_dtrain import Run, Session
from jupyter_dtrain.core.failures import After
from tests.faults import cells
from tests.faults.play import PATIENCE, SLACK, Play
from tests.faults.worlds import SETTINGS, World

DEATHS = {"elastic-killed": 1, "elastic-new-killed": 2}
"""The processes that are killed, one in the place of the other."""


class ElasticPlay(Play):
    """It kills the victim, and perhaps the process that replaces it, once that has joined."""

    def run(self) -> tuple[float, str]:
        world = self._worlds.world(self.plan.size, old_mpi=False)
        session = world.session
        before = self._processes(session)
        set_up = session.run(cells.SET_UP, view=None)
        run = session.run(self.code, wait=False, view=self._notes, elastic=True, replay=[set_up.number])
        self._until(lambda: self._said(run, 1), "all ranks have begun")
        began = time.monotonic()
        self._go.touch()
        if self.plan.mode == "interrupted":
            self._until(lambda: self._has_befallen(session, run), "the rank is about to be replaced")
            return self._interrupt(world, run, before)
        assert self.row.ends is not None
        limit = self.row.ends.of(SETTINGS)
        self._check(run.wait(limit + SLACK), f"the cell goes on after {limit + SLACK:g} s")
        seconds = time.monotonic() - began
        for join in run.joined:
            self._check(join.wait(PATIENCE), f"run {join.number}, which joined, goes on")
        ended = [join.outcome for join in run.joined]
        wanted = ["lost"] * (DEATHS[self.plan.situation] - 1) + ["ok"]
        self._check(ended == wanted, f"those that joined ended as {ended}, not as {wanted}")
        self._check(run.outcome == self.row.outcome, f"ended as {run.outcome}, not as {self.row.outcome}")
        self._check(run.remark == f"rank {self.plan.victim} was replaced", f"remarked: {run.remark!r}")
        self._hear("\n".join(self._notes.words))
        self._check_after(world, before, self.row.after)
        return seconds, run.outcome

    @property
    def code(self) -> str:
        begin = cells.BEGIN.format(meet="", victim=self.plan.victim, go=str(self._go))
        return begin + cells.cell_of(self.plan.situation, self.plan.framework)

    def _has_befallen(self, session: Session, run: Run) -> bool:
        del session, run
        return any("will be replaced" in words for words in self._notes.words)

    def _check_after(self, world: World, before: dict[int, Any], after: After) -> None:
        """The others are as they were; the new rank takes cells, and meets them."""
        assert after == "replaced"
        session, victim = world.session, self.plan.victim
        self._until(lambda: not session.world.dead, "the rank has a new process")
        now = {rank.rank: (rank.pid,) for rank in session.world.ranks}
        changed = [rank for rank in now if now[rank] != before[rank]]
        self._check(changed == [victim], f"new processes on ranks {changed}")
        session.run("pass", view=None)
        if self.plan.mode != "interrupted":
            session.run("assert callable(go)", [victim], view=None)
        session.run(cells.PREPARE, [victim], view=None)
        self._check_ranks(session, now, range(self.plan.size), meet=True)

"""A play with TensorFlow's parameter servers, in which a rank that works for the chief dies."""

from __future__ import annotations

import contextlib
import time

from jupyter_dtrain import NoWorld, RanksDead, Session
from jupyter_dtrain.core.causes import blocks
from jupyter_dtrain.launch import worlds
from tests.faults import cells
from tests.faults.play import IMPORTS, PATIENCE, SLACK, Play
from tests.faults.worlds import QUICK, SETTINGS, environment, left_of, new_mark
from tests.hosts.launching import process_at
from tests.processes import loose_segments
from tests.session.cells import Notes
from tests.steward.until import runs


class ServersPlay(Play):
    """It kills a worker or a parameter server in the middle of the chief's loop."""

    def run(self) -> tuple[float, str]:
        plan = self.plan
        mark, shared, notes = new_mark(), loose_segments(), Notes()
        with environment(DTRAIN_TEST_MARK=mark):
            session = Session.start(plan.size, name=mark, settings=QUICK, chief=True, ps=1, **self._worlds.options)
        try:
            session.run(cells.SERVERS, view=None, timeout=IMPORTS)
            run = session.run(cells.LOOP, 0, wait=False, view=notes)
            self._until(lambda: "here" in run.text(0), "the loop has begun")
            began = time.monotonic()
            victim = process_at(self._worlds.network, session, plan.victim)
            victim.kill()
            if plan.mode == "interrupted":
                self._until(lambda: not runs(victim), "the rank has ended")
                session.interrupt()
            limit = self.row.ends.of(SETTINGS) if self.row.ends else PATIENCE
            self._check(run.wait(limit + SLACK), "the chief's loop goes on")
            seconds = time.monotonic() - began
            # A loop that only lost a worker comes to its end.
            wanted = {"interrupted", self.row.outcome} if plan.mode == "interrupted" else {self.row.outcome or "ok"}
            self._check(run.outcome in wanted, f"ended as {run.outcome}, not as {wanted}")
            self._until(lambda: session.world.dead, "a rank is dead")
            if plan.mode == "attended":
                self._hear("\n".join([*blocks(run), *notes.words]))
            with contextlib.suppress(RanksDead):
                session.run("1", view=None)
                self.problems.append("a cell on all ranks is not refused")
            living = [rank for rank in range(plan.size) if rank != plan.victim]
            look = session.run("id(kept) == kept_id", living, view=None, timeout=PATIENCE)
            kept = {rank: result.data["text/plain"] for rank, result in look.results.items()}
            self._check(kept == dict.fromkeys(living, "True"), f"kept: {kept}")
            return seconds, run.outcome
        finally:
            session.leave()
            with contextlib.suppress(NoWorld):
                worlds.stop_world(mark)
            self.problems += left_of(mark, session.request.passing_folders, shared)

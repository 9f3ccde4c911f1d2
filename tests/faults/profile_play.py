"""Plays of profiles of a running loop in which something fails: the profile ends, and the loop is not harmed.

No cell fails by a profile, so they are no rows of the failure table; docs/failures.md has a section on them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

from jupyter_dtrain import DistributedError, DistributedInterrupt, DtrainError, Run
from tests.faults.changes import LIMIT, ChangePlay
from tests.faults.play import PATIENCE
from tests.steward.until import until

LOOP = """
import time, torch, torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group()
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range({steps}):
    net(torch.ones(4, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
"""
RAISING = """
import torch.autograd.profiler as profiler
kept = profiler.profile.__enter__
def enter(self):
    raise RuntimeError("planted")
profiler.profile.__enter__ = enter
"""
MENDED = "profiler.profile.__enter__ = kept"
MANY = 100_000
"""Steps of a loop, or of a profile, that Stop or a death ends."""


class ProfilePlay(ChangePlay):
    """A profile in which something is struck; :attr:`problems` has what went wrong, in words."""

    def run(self) -> tuple[float, str]:
        """Play it; the seconds from the fault to the end of the profile, and whether that is ``ok`` or ``failed``."""
        world = self._worlds.world(self.plan.size, old_mpi=False)
        session, victim, target = world.session, self.plan.victim, self._target
        before = {rank.rank: rank.pid for rank in session.world.ranks}
        if target == "raises":
            session.run(RAISING, [victim], view=None)
        run = session.run(LOOP.format(steps=MANY), wait=False, view=None)
        until(lambda: run.done or (run.fold.step or 0) > 1, PATIENCE)
        file = Path("/dev/full") if target == "no-disk" else self._worlds.folder / f"{self.plan}.json"
        lasts = target in ("killed", "healed", "stopped")
        ended: list[DtrainError | str] = []

        def profile() -> None:
            try:
                found = session.profile(MANY if lasts else 3, path=file)
                ended.append(" ".join(found.notes))
            except DtrainError as error:
                ended.append(error)

        asking = threading.Thread(target=profile, daemon=True)
        asking.start()
        began = time.monotonic()
        if lasts:
            self._befall(before, run)
        asking.join(LIMIT)
        seconds = time.monotonic() - began
        self._check(ended, f"the profile goes on after {LIMIT:g} s")
        said = str(ended[0]) if ended else ""
        if target in ("raises", "no-disk"):
            wanted = "planted" if target == "raises" else "/dev/full"
            self._check(wanted in said, f"not told: {wanted!r}. What was told: {said!r}")
            step = run.fold.step or 0
            until(lambda: run.done or (run.fold.step or 0) > step + 1, PATIENCE)
            self._check(not run.done, f"the loop has ended: {run.outcome}")
        if not run.done and target not in ("killed", "healed"):
            session.interrupt()
        with contextlib.suppress(DistributedError, DistributedInterrupt):
            self._check(run.wait(PATIENCE), "the cell goes on")
        wanted = "lost" if target in ("killed", "healed") else "interrupted"
        self._check(run.outcome == wanted, f"the cell ended as {run.outcome}, not as {wanted}")
        if target == "raises":
            session.run(MENDED, [victim], view=None)
        dies = {victim} if target in ("killed", "healed") else set()
        self._mend(world, {rank: pid for rank, pid in before.items() if rank not in dies}, before)
        return seconds, "failed" if ended and isinstance(ended[0], DtrainError) else "ok"

    def _befall(self, before: dict[int, int], run: Run) -> None:
        """Strike once the ranks profile."""
        session = self._worlds.world(self.plan.size, old_mpi=False).session
        time.sleep(1.0)  # the profile has begun, or is about to: both are to end well
        if self._target == "stopped":
            session.interrupt()
            return
        self._struck.append(before[self.plan.victim])
        os.kill(before[self.plan.victim], signal.SIGKILL)
        if self._target == "healed":
            until(lambda: run.done and session.world.dead, PATIENCE)
            session.replace()

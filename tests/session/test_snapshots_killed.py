"""Ranks that are killed at any moment of a save: the snapshot that loads afterwards is whole."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time

import pytest

from jupyter_dtrain import DistributedError
from tests.session.cells import run, values
from tests.steward.until import until

pytestmark = [pytest.mark.slow, pytest.mark.here("it kills processes of ranks")]

KILLS = 25
SIZE = 3
FILL = """
import os
from array import array
rank = int(os.environ["RANK"])
version = {version}
parts = [array("d", [float({version} * 10 + rank)]) * 1_000_000 for _ in range(6)]
"""
"""48 MB on each rank."""
HELD = "(version, sorted({one for part in parts for one in part}), len(parts))"


def test_every_kill_leaves_the_snapshot_of_before_or_the_new_one(launch, tmp_path, monkeypatch):
    """At 25 random moments, from before a save's first file to after its last; any rank."""
    monkeypatch.setenv("DTRAIN_SNAPSHOTS", str(tmp_path))
    seed = random.randrange(1 << 30)  # noqa: S311 — no secret
    chance = random.Random(seed)  # noqa: S311
    found = []
    with launch(n=SIZE) as world:
        run(world, FILL.format(version=0))
        began = time.monotonic()
        world.save("kept", ["version", "parts"])
        lasts, whole = time.monotonic() - began, 0
        for version in range(1, KILLS + 1):
            run(world, FILL.format(version=version))
            victim = chance.randrange(SIZE)
            pid = world.world.ranks[victim].pid
            killer = threading.Timer(chance.uniform(0.0, 1.3 * lasts), os.kill, (pid, signal.SIGKILL))
            killer.start()
            ended = False
            with contextlib.suppress(DistributedError):
                world.save("kept", ["version", "parts"])
                ended = True
            killer.join()
            until(lambda: world.world.dead)
            world.replace()
            run(world, "import os\nrank = int(os.environ['RANK'])\nversion = parts = None")
            world.load("kept")
            held = values(run(world, HELD))
            got = held[0][0]
            found.append(got == version)
            assert held == {rank: (got, [float(got * 10 + rank)], 6) for rank in range(SIZE)}, f"seed {seed}"
            assert got == version if ended else got in (whole, version), f"seed {seed}"
            whole = got
    assert 0 < sum(found) < KILLS, f"seed {seed}: no kill came in the middle of a save, or none after it"

"""What the store knows of the end of a run: who or what has interrupted it, and which ranks were lost."""

from __future__ import annotations

import os

import pytest

from jupyter_dtrain import DistributedError, DistributedInterrupt
from jupyter_dtrain.core.processes import describe_process
from jupyter_dtrain.launch.worlds import interrupt_world
from jupyter_dtrain.store import Store
from tests.session.cells import run
from tests.steward.until import until

FRESH_WORLD = True
WAITS = "import time\nprint('on')\nwhile True: time.sleep(0.01)"


def words(found):
    """What happened to a run, once the store has its end."""
    return [one.words for one in until(lambda: Store.open().run_of(found).happenings)]


def test_the_store_says_who_has_interrupted_a_run(world):
    """Its own notebook, its timeout, or somebody else."""
    with pytest.raises(DistributedError):
        run(world, WAITS, timeout=0.5)
    timed = world.last_run
    own = run(world, WAITS, wait=False)
    assert until(lambda: "on" in own.text(2))
    world.interrupt()
    with pytest.raises(DistributedInterrupt):
        own.result()
    other = run(world, WAITS, wait=False)
    assert until(lambda: "on" in other.text(2))
    interrupt_world(world.name)
    with pytest.raises(DistributedInterrupt):
        other.result()

    assert words(timed) == ["Interrupted by its timeout."]
    assert words(own) == [f"Interrupted by {describe_process()}."]
    (told,) = words(other)
    assert told.startswith("Interrupted by ")
    assert str(os.getpid()) in told


def test_the_store_says_which_rank_was_lost(world):
    """With the words that its cell has."""
    code = "import os, signal\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(DistributedError):
        run(world, code)
    lost = world.last_run

    assert any("SIGKILL" in one for one in words(lost))

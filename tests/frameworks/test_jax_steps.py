"""Snapshots by themselves where JAX alone trains: its steps are not seen, so a time saves between cells."""

from __future__ import annotations

import importlib.util

import pytest

from jupyter_dtrain import BadRequest, DistributedError
from jupyter_dtrain.core.snapshots import newest, read_manifest
from tests.session.cells import run

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed"),
    pytest.mark.here("the snapshots' folder must be shared"),
]

TRAIN = """
import jax, jax.numpy as jnp
params = jnp.ones(3) if "params" not in dir() else params
step = jax.jit(jax.grad(lambda p: (p ** 2).sum()))
for _ in range(4):
    params = params - 0.1 * step(params)
"""
IMPORTS = 180


@pytest.fixture(scope="module")
def pair(launch, snapshot_folder):
    """Two ranks that save ``params`` every tenth of a second, once it is there."""
    with launch(n=2, env={"JAX_PLATFORMS": "cpu"}, snapshot_every="0.1s params") as session:
        yield session


def time_of(folder, name):
    """When the newest snapshot of that name was saved; None before the first."""
    try:
        return read_manifest(newest(folder, name)).saved
    except BadRequest:
        return None


def test_a_time_saves_at_the_end_of_a_cell_and_steps_are_refused(pair, snapshot_folder, capsys):
    """An order of before the import of JAX says so once; a failed cell, or one of some ranks, saves nothing."""
    auto = f"auto-{pair.name}"
    pair.save("early", ["params"], every=2)
    run(pair, "pass")
    assert time_of(snapshot_folder, auto) is None  # there is no such variable yet
    first = run(pair, TRAIN, timeout=IMPORTS)
    saved = time_of(snapshot_folder, auto)
    assert saved is not None
    assert "The steps of JAX cannot be seen, so no snapshot 'early'" in first.text(0)
    assert "%distributed save early params --every 10m saves at the end of a cell" in first.text(0)
    assert time_of(snapshot_folder, "early") is None

    with pytest.raises(DistributedError, match="The steps of JAX cannot be seen"):
        pair.save("late", ["params"], every=2)
    with pytest.raises(DistributedError):
        run(pair, "import time; time.sleep(0.2); 1 / 0")
    run(pair, "pass", 0)
    assert time_of(snapshot_folder, auto) == saved
    second = run(pair, TRAIN)
    assert time_of(snapshot_folder, auto) > saved
    assert "cannot be seen" not in second.text(0)

    # No pickle takes a generator; and a save is due again after a tenth of a second.
    run(pair, "import time; time.sleep(0.2)\nparams, kept = (n for n in range(3)), params")
    assert f"Snapshot {auto!r} was not saved after run " in capsys.readouterr().err
    run(pair, "params = kept")
    pair.stop_saving()
    saved = time_of(snapshot_folder, auto)
    run(pair, "import time; time.sleep(0.2)")
    assert time_of(snapshot_folder, auto) == saved

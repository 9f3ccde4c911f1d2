"""Loops that no optimizer of PyTorch counts are steered, too, once they say where a step ends."""

from __future__ import annotations

import pytest

from tests.session.cells import begin, texts
from tests.steward.until import PATIENCE

LOOPS = {
    "jax": """
import time, jax, jax.numpy as jnp, jupyter_dtrain as dtrain
def train():
    weight, rate, go = jnp.ones(3), 0.1, True
    slope = jax.jit(jax.grad(lambda weight: (weight**2).sum()))
    while go:
        weight = weight - rate * slope(weight)
        time.sleep(0.01)
        dtrain.step()
    return rate
print(train())
""",
    "tensorflow": """
import time, tensorflow as tf, jupyter_dtrain as dtrain
def train():
    opt, weight, rate, go = tf.keras.optimizers.SGD(0.1), tf.Variable([1.0, 2.0]), 0.1, True
    while go:
        opt.learning_rate.assign(rate)
        with tf.GradientTape() as tape: loss = tf.reduce_sum(weight**2)
        opt.apply_gradients([(tape.gradient(loss, weight), weight)])
        time.sleep(0.01)
        dtrain.step()
    return round(float(opt.learning_rate), 3)
print(train())
""",
    "mpi4py": """
import time, jupyter_dtrain as dtrain
from mpi4py import MPI
def train():
    rate, go = 0.1, True
    while MPI.COMM_WORLD.allreduce(int(go)):
        time.sleep(0.01)
        dtrain.step()
    return rate
print(train())
""",
}


@pytest.fixture(scope="module")
def pair(launch):
    """Two ranks."""
    with launch(n=2) as session:
        yield session


@pytest.mark.parametrize("framework", LOOPS)
def test_a_loop_of_another_framework_is_steered(pair, framework):
    """Paused, given another rate, and ended, in the names of its function."""
    pytest.importorskip(framework)
    cell = begin(pair, LOOPS[framework])
    paused = pair.loop.pause()
    assert "rate: 0.1 -> 0.05" in pair.loop.set("rate=0.05").words
    assert pair.loop.step(3).step == paused.step + 3
    pair.loop.between("go = False")
    pair.loop.resume()
    assert cell.wait(PATIENCE)

    assert cell.outcome == "ok"
    assert {text.splitlines()[-1] for text in texts(cell).values()} == {"0.05"}

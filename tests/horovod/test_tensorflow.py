"""Horovod itself, with TensorFlow, in the ranks of a world: ``make horovod``."""

from __future__ import annotations

import importlib.util

import pytest

from jupyter_dtrain import DistributedError
from tests.frameworks.horovod_cells import play
from tests.horovod.test_torch import has_horovod, until_it_waits

pytestmark = pytest.mark.skipif(
    not has_horovod() or importlib.util.find_spec("tensorflow") is None,
    reason="needs Horovod with TensorFlow: make horovod",
)

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
BEGIN = """
import time
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
rank = hvd.rank()
weights = tf.Variable(tf.zeros([4, 1]))

def step():
    x = tf.random.normal([8, 4])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(x, weights) - tf.reduce_sum(x, 1, keepdims=True)) ** 2)
    (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [weights])
    weights.assign_sub(0.05 * gradient)
    return loss

graph = tf.function(step)

def train(step, steps, fails_at=None):
    for index in range(steps):
        if index == fails_at and rank == 1:
            raise RuntimeError("one of them")
        step()
    return alike()

def alike():
    mine = repr(weights.numpy().tolist())
    return len(set(hvd.allgather_object(mine))), float(weights.numpy().sum())
"""
KERAS = """
import numpy
import tf_keras
import horovod.tensorflow.keras as hvd

hvd.init()
rank = hvd.rank()
random = numpy.random.default_rng(rank)
x = random.normal(size=(64, 4)).astype("float32")
y = x.sum(1, keepdims=True)

class Fails(tf_keras.callbacks.Callback):
    on = False

    def on_train_batch_begin(self, batch, logs=None):
        if self.on and batch == 3 and rank == 1:
            raise RuntimeError("one of them")

fails = Fails()
tf_keras.utils.set_random_seed(rank)
model = tf_keras.Sequential([tf_keras.layers.Dense(8, activation="relu"), tf_keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.05)), "mse")

def fit():
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), fails]
    model.fit(x, y, epochs=1, batch_size=8, verbose=0, callbacks=callbacks)
    return float(sum(weight.sum() for weight in model.get_weights()))
"""


@pytest.fixture(scope="module")
def pair(launch):
    """A world of two ranks in which Horovod is set up."""
    session = launch(n=2, env=QUIET)
    play(session, BEGIN + "rank")
    yield session
    session.stop()


@pytest.mark.parametrize("step", ["step", "graph"])
def test_ranks_that_wait_are_released_and_train_on(pair, step):
    """The loop runs eagerly and as a graph; the weights are alike before and afterwards."""
    _, before = play(pair, f"train({step}, 5)")
    with pytest.raises(DistributedError) as raised:
        play(pair, f"train({step}, 5, fails_at=3)")
    _, after = play(pair, f"train({step}, 5)")

    assert before[0] == before[1]
    assert after[0] == after[1]
    assert before[0][0] == after[0][0] == 1
    assert after[0][1] != before[0][1]
    assert str(raised.value).startswith("RuntimeError: one of them (rank 1)")
    assert "rank 0 stopped because of that" in str(raised.value)


def test_the_stop_button_ends_a_graph_that_waits(pair):
    run = pair.run("train(graph, 5) if rank == 0 else time.sleep(600)", view=None, wait=False)
    until_it_waits(pair, "tf.function")
    pair.interrupt()

    assert run.wait(20)
    assert run.outcome == "interrupted"
    assert play(pair, "train(graph, 5)[0]")[1] == {0: 1, 1: 1}


@pytest.mark.parametrize("module", ["horovod.keras", "horovod.tensorflow.keras", "horovod.tensorflow"])
def test_an_optimizer_of_keras_3_is_refused(pair, module):
    """Horovod would let each rank train alone, and say nothing."""
    with pytest.raises(DistributedError, match=r"no gradients of Keras 3 \(SGD\).*TF_USE_LEGACY_KERAS=1"):
        play(pair, f"import keras, {module} as hk\nhk.DistributedOptimizer(keras.optimizers.SGD(0.1))")


def test_keras_2_trains_and_goes_on_after_a_failure(launch):
    with launch(n=2, env={**QUIET, "TF_USE_LEGACY_KERAS": "1"}) as session:
        _, first = play(session, KERAS + "fit()")
        with pytest.raises(DistributedError, match=r"one of them \(rank 1\); rank 0 stopped because of that"):
            play(session, "fails.on = True\nfit()")
        _, second = play(session, "fails.on = False\nfit()")

    assert first[0] == pytest.approx(first[1], abs=1e-6)
    assert second[0] == pytest.approx(second[1], abs=1e-6)
    assert second[0] != first[0]


def test_both_of_its_libraries_go_on_in_one_world(pair):
    """The one for PyTorch was set up later; a failure in one ends the calls in both."""
    play(pair, "import torch, horovod.torch as ht\nht.init()\nrank")
    with pytest.raises(DistributedError, match=r"rank 0 stopped because of that"):
        play(pair, "ht.allreduce(torch.ones(1)) if rank == 0 else 1 / 0")

    assert play(pair, "ht.allreduce(torch.ones(1), op=ht.Sum).item(), train(graph, 1)[0]")[1] == {
        0: (2.0, 1),
        1: (2.0, 1),
    }

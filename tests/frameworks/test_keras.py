"""Keras in the ranks: what ``fit`` shows on each backend, and that it trains as one process would."""

from __future__ import annotations

import ast
import importlib.util
import re

import pytest

from jupyter_dtrain import DistributedError
from tests.session.cells import Told


def needs(*packages):
    lacking = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(lacking), reason=f"needs {', '.join(lacking)}")


PATIENCE = 200
BEGIN = """
import os
import numpy as np
import keras
rank = int(os.environ["RANK"])
rng = np.random.default_rng(0)
x = rng.random((64, 4), dtype="float32")
y = x.sum(1, keepdims=True)

def make(seed=1):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(8, activation="relu", name="wide"), keras.layers.Dense(1, name="out")]
    model = keras.Sequential([keras.layers.Input((4,)), *layers])
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", metrics=["mae"])
    return model

def part(values, of=2, batch=8):
    per = batch // of
    return values.reshape(-1, of, per, values.shape[-1])[:, rank].reshape(-1, values.shape[-1])
"""
OLDER = BEGIN.replace("import keras", "import tf_keras as keras")
FIT = "history = make().fit(x, y, batch_size=8, epochs=2, validation_split=0.25, shuffle=False).history"


def play(session, code, ranks=None, view=None):
    """Run a cell; the run, and the value of its last line, by rank."""
    run = session.run(code, ranks, view=view, timeout=PATIENCE)
    return run, {rank: ast.literal_eval(result.data["text/plain"]) for rank, result in run.results.items()}


@pytest.fixture(scope="module")
def worlds(launch):
    """Worlds of two ranks, by backend: with nothing but Keras imported."""
    started = {}

    def world(backend):
        if backend not in started:
            env = {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
            started[backend] = launch(n=2, env=env)
            started[backend].run(BEGIN, view=None, timeout=PATIENCE)
        return started[backend]

    yield world
    for session in started.values():
        session.stop()


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("torch", marks=[needs("keras", "torch"), pytest.mark.slow]),
        pytest.param("jax", marks=needs("keras", "jax")),
        pytest.param("tensorflow", marks=[needs("keras", "tensorflow"), pytest.mark.slow]),
        pytest.param("tf_keras", marks=[needs("tf_keras"), pytest.mark.slow]),
    ],
)
def test_fit_shows_what_it_logs_once_and_one_bar(worlds, backend):
    session = worlds("tensorflow" if backend == "tf_keras" else backend)
    begin = OLDER if backend == "tf_keras" else ""
    told = Told()
    run, found = play(session, f"{begin}\n{FIT}\nhistory", view=told)
    known = {"optimizer": "SGD", "epochs": 2, "batch_size": 8, "validation_split": 0.25}
    known |= {} if backend == "tf_keras" else {"learning_rate": 0.05}
    assert {name: told.values.get(name) for name in known} == known
    for rank, history in found.items():
        series = {name: of_rank[rank] for name, of_rank in run.metrics.items()}
        assert sorted(series) == ["loss", "mae", "val_loss", "val_mae"]
        assert list(series["loss"].steps) == list(range(12))
        assert [series["loss"].values[at] for at in (5, 11)] == pytest.approx(history["loss"], rel=1e-6)
        assert list(series["val_mae"].steps) == [5, 11]
        assert list(series["val_mae"].values) == pytest.approx(history["val_mae"], rel=1e-6)
        # Keras would draw its bar over and over.
        assert run.text(rank).count("\r") == 0
        assert "━" not in run.text(rank)


@needs("keras", "jax")
def test_a_cell_without_metrics_shows_none(worlds):
    session = worlds("jax")
    run = session.run(FIT, metrics=False, view=None, timeout=PATIENCE)
    assert not run.metrics


BREAK = """
from jupyter_dtrain.frameworks import keras as ours
kept = ours._trains_alone, ours._state_of
ours._trains_alone = ours._state_of = lambda *_: 1 / 0
"""
MEND = "ours._trains_alone, ours._state_of = kept"


@needs("keras", "jax")
def test_fit_goes_on_where_our_part_of_it_fails(worlds):
    """The cell says once what is lost."""
    session = worlds("jax")
    try:
        run, found = play(session, f"{BREAK}\n{FIT}\nlen(history['loss'])")
    finally:
        session.run(MEND, view=None, timeout=PATIENCE)
    assert found == {0: 2, 1: 2}
    assert not run.metrics
    for rank in (0, 1):
        for name in ("fit", "on_train_batch_end", "on_epoch_end"):
            assert len(re.findall(rf"A part of jupyter-dtrain failed inside \S*\b{name} of keras", run.text(rank))) == 1
        assert "and the call went on without it: values that fit() logs are not shown." in run.text(rank)
    assert sorted(session.run(FIT, view=None, timeout=PATIENCE).metrics) == ["loss", "mae", "val_loss", "val_mae"]


ALONE = "losses = make().fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history['loss']\nlosses"
UP = """
keras.distribution.initialize()
import jax
assert (jax.process_count(), jax.process_index()) == (2, rank)
"""
DATA = "keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))\n"
MODEL = """
mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], keras.distribution.list_devices())
layout = keras.distribution.LayoutMap(mesh)
layout[".*wide/kernel"] = (None, "model")
layout[".*wide/bias"] = ("model",)
spread = keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch", auto_shard_dataset=False)
keras.distribution.set_distribution(spread)
model = make()
model.layers[0].kernel.value.sharding.spec[-1] == "model" or 1 / 0
losses = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
losses
"""


@pytest.mark.slow
@needs("keras", "jax")
def test_jax_trains_across_the_ranks_as_one_process_would(worlds):
    """Data parallel, each rank with its part of each batch, and model parallel."""
    session = worlds("jax")
    run, alone = play(session, DATA + ALONE)
    assert run.text(0).count("[jupyter-dtrain] keras.distribution spans this rank's devices alone") == 1
    fit = "make().fit(part(x), part(y), batch_size=4, epochs=2, shuffle=False, verbose=0)"
    run, data = play(session, f"{UP}{DATA}losses = {fit}.history['loss']\nlosses")
    assert "keras.distribution" not in run.text(0)
    assert "Keras' own models, seed and distribution: each holds arrays or devices of the JAX that" in run.text(0)
    _, model = play(session, MODEL)
    assert alone[0] == alone[1]
    for rank in (0, 1):
        assert data[rank] == pytest.approx(alone[0], rel=1e-6)
        assert model[rank] == pytest.approx(alone[0], rel=1e-6)
    # The other rank is released, what it has is whole.
    with pytest.raises(DistributedError, match="division by zero"):
        session.run(f"{DATA}if rank == 1: 1 / 0\n{fit}", view=None, timeout=PATIENCE)
    _, again = play(session, f"{DATA}losses = {fit}.history['loss']\nlosses")
    assert again[0] == pytest.approx(alone[0], rel=1e-6)


WRAPPED = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()

def fit_wrapped(x, y, batch, wrap):
    torch.manual_seed(3)
    inner = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    layer = keras.layers.TorchModuleWrapper(wrap(inner))
    model = keras.Sequential([layer])
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
    model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0)
    return [float(one.detach().sum()) for one in inner.parameters()]
"""


@pytest.mark.slow
@needs("keras", "torch")
def test_torch_averages_what_is_wrapped_and_says_what_is_not(worlds):
    session = worlds("torch")
    run, found = play(session, WRAPPED + "fit_wrapped(part(x), part(y), 4, DistributedDataParallel)")
    assert "averages nothing" not in run.text(0)
    run, alone = play(session, "fit_wrapped(x, y, 8, lambda inner: inner)")
    assert "averages nothing" in run.text(0)
    assert found[0] == found[1]
    assert found[0] == pytest.approx(alone[0], rel=1e-5)


@pytest.mark.slow
@needs("keras", "tensorflow")
def test_a_distribution_that_spans_no_ranks_gets_an_error_with_the_fix(worlds):
    """Once, and before the error of a set-up that this backend does not have."""
    session = worlds("tensorflow")
    run, losses = play(session, f"import keras\n{DATA * 2}{ALONE}")
    assert len(losses) == 2
    told = "[jupyter-dtrain] keras.distribution spans no ranks on Keras' tensorflow backend: each rank trains a model"
    assert run.text(0).count(told) == 1
    assert "%distributed start --env KERAS_BACKEND=jax" in run.text(0)
    with pytest.raises(DistributedError) as failure:
        session.run("import keras; keras.distribution.initialize()", view=None, timeout=PATIENCE)
    assert told in failure.value.run.text(0)

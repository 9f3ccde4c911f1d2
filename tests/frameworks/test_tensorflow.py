"""TensorFlow in the ranks: strategies of several ranks at any time, released strategies, and TensorFlow alone."""

from __future__ import annotations

import ast
import importlib.util
import socket
import subprocess
import sys
import time

import psutil
import pytest

from jupyter_dtrain import DistributedError, RunTimeout
from tests.steward.until import until

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")

PATIENCE = 120
IMPORTS = """
import os
import numpy as np
import tensorflow as tf
rank = int(os.environ["RANK"])
"""
BEFORE = """
earlier = tf.Variable([1.0, 2.0])
numbers = iter(tf.data.Dataset.range(5))
float(tf.reduce_sum(earlier)), int(next(numbers))
"""
TRAIN = """
x = np.linspace(-1, 1, 32, dtype="float32").reshape(8, 4)
y = x @ np.array([[1.0], [-2.0], [3.0], [0.5]], "float32")
share = slice(None) if strategy.num_replicas_in_sync == 1 else slice(rank, None, 2)
with strategy.scope():
    weights = tf.Variable(tf.fill([4, 1], 0.1 * (rank + 1)))

@tf.function
def train_step(images, labels):
    def replica(images, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((images @ weights - labels) ** 2) / 8
        gradient = tf.distribute.get_replica_context().all_reduce("SUM", tape.gradient(loss, weights))
        weights.assign_sub(0.1 * gradient)
        return loss
    return strategy.reduce("SUM", strategy.run(replica, args=(images, labels)), axis=None)

def train(steps, fails_at=None):
    for step in range(steps):
        if step == fails_at and rank == 1:
            raise RuntimeError("one of them")
        loss = train_step(x[share], y[share])
    return [round(float(loss), 6), *(round(float(value), 6) for value in weights.numpy()[:, 0])]
"""
MULTI = "strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
ALONE = "import os, numpy as np, tensorflow as tf\nrank = 0\nstrategy = tf.distribute.get_strategy()\n"


def values(run):
    """The results of a run as Python values, by rank."""
    return {rank: ast.literal_eval(result.data["text/plain"]) for rank, result in sorted(run.results.items())}


def cell(session, code, **options):
    """Run code without a view; the results by rank. A cell that takes too long says where its ranks are."""
    try:
        return values(session.run(code, view=None, timeout=PATIENCE, **options))
    except RunTimeout as error:
        raise AssertionError(f"{error}\n{session.stacks(native=True, timeout=10)}") from error


def alike(found):
    """The one value that all ranks have."""
    first, *others = found.values()
    assert others
    assert all(other == first for other in others), found
    return first


def alone(code):
    """The value that a process without a world gets."""
    script = f"{ALONE}{code}"
    *rest, last = script.rstrip().splitlines()
    ended = subprocess.run(
        [sys.executable, "-c", "\n".join([*rest, f"print({last})"])], capture_output=True, text=True, check=True
    )
    return ast.literal_eval(ended.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def world(launch, long_hold, soon):
    """Two ranks in which TensorFlow was used before a strategy was made."""
    session = launch(n=2, settings=soon)
    set_up(session)
    yield session
    session.stop()


def set_up(session):
    """Use TensorFlow, then make a strategy."""
    cell(session, IMPORTS + BEFORE)
    session.run(MULTI + TRAIN, view=None, timeout=PATIENCE)


@pytest.fixture
def ranks(world):
    """The same, whole again for each test: one that a test has left in native code would fail all that follow."""
    if world.world.dead or world._scheduler.left_behind():
        world.restart()
        set_up(world)
    yield world
    assert not world.world.dead
    assert not world._scheduler.left_behind()


@pytest.mark.slow
def test_a_strategy_that_is_made_late_trains_as_one_process_does(ranks):
    """Tensors, variables and iterators from before it go on."""
    trained = alike(cell(ranks, TRAIN + "train(5)"))
    before = alike(cell(ranks, "[float(value) for value in earlier.assign_add([1.0, 1.0])], int(next(numbers))"))

    assert trained == pytest.approx(alone(TRAIN + "train(5)"), abs=1e-5)
    assert before == ([2.0, 3.0], 1)


def test_ranks_that_wait_for_a_failed_one_are_released_and_the_strategy_goes_on(ranks):
    """Strategy, variables and the traced function are those of before."""
    before = alike(cell(ranks, TRAIN + "train(2); train(1)"))
    began = time.monotonic()
    with pytest.raises(DistributedError) as failure:
        ranks.run("train(3, fails_at=1)", view=None, timeout=PATIENCE)
    ended = time.monotonic() - began
    kept = cell(ranks, "weights.numpy().shape, train_step.experimental_get_tracing_count()")
    after = alike(cell(ranks, "train(2)"))

    assert "RuntimeError: one of them (rank 1)" in str(failure.value)
    assert "rank 0 stopped because of that" in str(failure.value)
    assert ended < 20
    assert alike(kept) == ((4, 1), 1)
    assert after[0] < before[0]


def test_a_variable_that_is_read_across_ranks_is_known_to_wait_without_being_asked(ranks):
    """Any attribute of it may be a collective, in which the thread that is to release would wait itself."""
    make = "with strategy.scope():\n    total = tf.Variable(0.0, trainable=False, synchronization=tf.Variable"
    make += "Synchronization.ON_READ, aggregation=tf.VariableAggregation.SUM)\n"
    with pytest.raises(DistributedError) as failure:
        ranks.run(f"{make}if rank == 1: raise RuntimeError('one of them')\ntotal.read_value()", view=None, timeout=30)

    assert "RuntimeError: one of them (rank 1)" in str(failure.value)
    assert alike(cell(ranks, "float(total.read_value())")) == 0.0


def own_addresses():
    """The addresses of this host, without loopback."""
    found = [one for interface in psutil.net_if_addrs().values() for one in interface]
    return [one.address for one in found if one.family == socket.AF_INET and not one.address.startswith("127.")]


@pytest.mark.skipif(not own_addresses(), reason="this host has no address but loopback")
def test_the_server_of_a_rank_hears_its_own_host_alone(ranks):
    """TensorFlow has it listen at all addresses, for every client."""
    found = cell(ranks, "import json\njson.loads(os.environ['TF_CONFIG'])['cluster']['worker'][rank]")
    for address in found.values():
        port = int(address.rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
        with pytest.raises(TimeoutError):
            socket.create_connection((own_addresses()[0], port), timeout=1)


def wait_until_waiting(session, rank, call):
    """Wait until the stack of ``rank`` has ``call``."""
    deadline = time.monotonic() + PATIENCE
    while (stack := session.stacks()[rank]) is None or stack.waits is None or stack.waits.call != call:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_stop_ends_a_rank_that_waits_in_a_collective(ranks):
    """It is known to wait, and in what; everything is there afterwards."""
    run = ranks.run("import time\ntrain(1) if rank == 0 else time.sleep(600)", view=None, wait=False)
    wait_until_waiting(ranks, 0, "train_step")
    ranks.interrupt()

    assert run.wait(20)
    assert run.outcome == "interrupted"
    assert len(alike(cell(ranks, "train(1)"))) == 5


def test_a_strategy_of_one_rank_alone_does_not_keep_the_next_of_all_ranks_from_meeting(ranks):
    """No rank failed, and none was released: ranks must count alike even so."""
    ranks.run(MULTI.replace("strategy =", "lone ="), "0", view=None, timeout=PATIENCE)
    total = "float(both.reduce('SUM', both.run(lambda: tf.constant(1.0)), axis=None))"
    sums = f"both.run(lambda: tf.distribute.get_replica_context().all_reduce('SUM', tf.constant(rank + 1.0)))\n{total}"

    assert alike(cell(ranks, MULTI.replace("strategy =", "both =") + sums)) == 2.0


def test_a_jacobian_is_no_loss(ranks):
    """TensorFlow asks the tape for each of its rows."""
    code = "with tf.GradientTape(persistent=True) as tape:\n    y = earlier * earlier\n"
    run = ranks.run(
        f"{code}tape.jacobian(y, earlier), tape.jacobian(y, earlier, experimental_use_pfor=False)\n0", view=None
    )

    assert dict(run.metrics) == {}


def test_ten_strategies_in_a_row_do_not_meet_each_other(ranks):
    """Their variables have different shapes, and an older one goes on beside the newer."""
    code = MULTI.replace("strategy =", "newer =") + (
        "with newer.scope():\n    own = tf.Variable([1.0 * rank] * {size})\n"
        "total = newer.run(lambda: tf.distribute.get_replica_context().all_reduce('SUM', own + rank))\n"
        "total.numpy().tolist()"
    )
    totals = [alike(cell(ranks, code.format(size=size))) for size in range(1, 11)]
    older = alike(cell(ranks, "train(1)"))

    assert totals == [[1.0] * size for size in range(1, 11)]
    assert len(older) == 5


def test_stop_ends_a_loop_of_collectives_as_an_interrupt_on_every_rank(ranks):
    """The signal and the release may meet in native code, which turns them into another error (pybind11).

    A rank that Stop reaches after it has ended the other one may have been released by then.
    """
    for _ in range(3):
        run = ranks.run("while True: print(train(20)[0], flush=True)", view=None, wait=False)
        until(lambda run=run: all(run.text(rank) for rank in (0, 1)), PATIENCE)
        ranks.interrupt()
        assert run.wait(PATIENCE)
        others = {rank: run.errors.get(rank) for rank, outcome in run.outcomes.items() if outcome != "interrupted"}
        assert run.outcome == "interrupted"
        assert len(others) < 2
        assert all(error is not None and error.released for error in others.values()), others
    assert len(alike(cell(ranks, "train(1)"))) == 5


def test_a_collective_that_an_interrupt_has_left_behind_does_not_crash_the_next_cell(ranks):
    """Outside functions a thread of the strategy waits in it, and goes on when the main thread is interrupted."""
    pids = cell(ranks, "os.getpid()")
    reduce = "strategy.reduce('SUM', tf.constant(1.0), axis=None)"
    code = f"import time\nprint('there', flush=True)\nif rank == 1: {reduce}\nwhile True: time.sleep(0.1)"
    run = ranks.run(code, view=None, wait=False)
    until(lambda: all(run.text(rank) for rank in (0, 1)), PATIENCE)
    ranks.interrupt()
    assert run.wait(PATIENCE)
    assert alike(cell(ranks, f"float({reduce})")) == 2.0
    assert cell(ranks, "os.getpid()") == pids


def test_a_strategy_for_another_cluster_is_refused_with_the_fix(ranks):
    """TensorFlow would say that collectives must be configured at program startup."""
    code = """
import json
from unittest import mock
config = json.loads(os.environ["TF_CONFIG"])
config["cluster"]["worker"] = config["cluster"]["worker"][:1] + ["localhost:1"]
with mock.patch.dict(os.environ, TF_CONFIG=json.dumps(config)):
    tf.distribute.MultiWorkerMirroredStrategy()
"""
    with pytest.raises(DistributedError, match=r"serves another cluster.*%distributed restart") as failure:
        ranks.run(code, view=None, timeout=PATIENCE)

    assert "(ranks 0-1)" in str(failure.value)
    assert len(alike(cell(ranks, "train(1)"))) == 5


def test_a_strategy_is_made_although_our_part_of_it_fails(ranks):
    """The cell says once what is lost."""
    begin = "from unittest import mock\nfrom jupyter_dtrain.frameworks.tensorflow.collectives import Collectives\n"
    broken = "mock.patch.object(Collectives, '_start', side_effect=ZeroDivisionError('ours'))"
    made = f"with {broken}:\n    {MULTI.replace('strategy =', 'plain =')}plain.num_replicas_in_sync"
    run = ranks.run(begin + made, view=None, timeout=PATIENCE)

    assert alike(values(run)) == 2
    for rank in (0, 1):
        assert run.text(rank).count("CollectiveAllReduceStrategy.__init__ of tensorflow") == 1
        assert "(ZeroDivisionError: ours), and the call went on without it: strategies of several" in run.text(rank)
    assert len(alike(cell(ranks, "train(1)"))) == 5


def test_logs_of_native_code_stay_out_of_the_cell_and_in_the_spool(ranks, capsys):
    """Warnings, below errors, with the options that follow one; also in two pieces. The user's lines are shown."""
    lines = [
        "I0000 00:00:1795365951.411525    7994 port.cc:153] one that is rather long",
        "2026-11-22 10:00:00.123456: W tensorflow/core/framework/local_rendezvous.cc:412] two",
        "\t [[{{node CollectiveReduceV2}}]] [type.googleapis.com/tensorflow.DerivedStatus='']",
        "I0000 00:00:1795365951.411525    7994 service.cc:355] SessionOptions: goo.gle/debugstr    ",
        "device_count {",
        '  key: "CPU"',
        "}",
        "",
        "mine: in 2026-11-22",
        "E0000 00:00:1795365951.411525    7994 ring_alg.cc:291] three",
    ]
    code = f"for line in {lines!r}:\n    os.write(2, line[:72].encode()); os.write(2, (line[72:] + chr(10)).encode())"
    run = ranks.run(code, timeout=PATIENCE)

    assert capsys.readouterr().err.splitlines() == [f"[0-1] {lines[-2]}", f"[0-1] {lines[-1]}"]
    assert run.text(0, "stderr").splitlines() == lines


FIT = """
if strategy.num_replicas_in_sync == 2:
    import {keras} as keras
else:
    import keras
from sklearn.datasets import load_digits
keras.utils.set_random_seed(1)
pixels, digits = load_digits(return_X_y=True)
pixels, digits = (pixels[:256] / 16).astype("float32"), digits[:256]
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
def by_batches(size):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((pixels, digits)).batch(size).with_options(options)
history = model.fit(by_batches(64), epochs=2, verbose=0).history
evaluated = model.evaluate(by_batches(64), verbose=0)
predicted = model.predict(pixels[:64], verbose=0)
[float(x) for x in (*history["loss"], *history["accuracy"], *evaluated, np.abs(predicted).sum() / 1000)]
"""


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["keras", "tf_keras"])
def test_fit_trains_on_all_ranks_as_it_does_in_one_process(ranks, keras):
    """Keras 3, which fails there as it comes, and Keras 2: history, evaluation and predictions, equal on all ranks."""
    pytest.importorskip("sklearn")
    if importlib.util.find_spec(keras) is None:
        pytest.skip(f"no {keras}")
    found = alike(cell(ranks, MULTI + FIT.replace("{keras}", keras)))

    assert found == pytest.approx(alone(FIT.replace("import {keras} as keras", "pass")), abs=1e-5)


CLASSIC = """
np.random.seed(0)
images, labels = np.random.rand(256, 28, 28).astype("float32"), np.random.randint(0, 10, 256)
mirrored = tf.distribute.MirroredStrategy()
with mirrored.scope():
    classifier = tf.keras.Sequential([
        tf.keras.layers.Flatten(input_shape=(28, 28)),
        tf.keras.layers.Dense(128, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ])
    classifier.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = classifier.fit(images, labels, epochs=5, batch_size=64, verbose=0).history
len(history["loss"]), bool(history["loss"][-1] < history["loss"][0]), mirrored.num_replicas_in_sync
"""


@pytest.mark.slow
def test_the_classic_example_of_a_mirrored_strategy_runs_as_it_is_written(ranks):
    """Each rank runs it alone."""
    assert alike(cell(ranks, CLASSIC)) == (5, True, 1)


MIXED = """
import os
{imports}
rank = int(os.environ["RANK"])
dist.is_initialized() or dist.init_process_group("gloo")
strategy = tf.distribute.MultiWorkerMirroredStrategy()
summed = torch.tensor([1.0 + rank])
dist.all_reduce(summed)
of_tensorflow = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0 + rank)))
float(summed), float(of_tensorflow), float(MPI.COMM_WORLD.allreduce(1.0 + rank))
"""
MIX = ["import torch, torch.distributed as dist", "import tensorflow as tf", "from mpi4py import MPI"]


@pytest.mark.slow
@pytest.mark.parametrize("imports", [MIX, MIX[::-1]], ids=["torch first", "MPI first"])
def test_pytorch_tensorflow_and_mpi_meet_in_one_rank(launch, imports):
    """Whichever is imported first."""
    pytest.importorskip("torch")
    session = launch(n=2)
    found = alike(cell(session, MIXED.format(imports="\n".join(imports))))
    with pytest.raises(DistributedError):
        session.run(
            "if rank == 0: raise RuntimeError\nstrategy.run(lambda: "
            "tf.distribute.get_replica_context().all_reduce('SUM', tf.constant(1.0)))",
            view=None,
            timeout=PATIENCE,
        )
    again = alike(cell(session, MIXED.format(imports="\n".join(imports))))
    session.stop()

    assert found == again == (3.0, 3.0, 3.0)


LOSSES = """
scale = tf.Variable(1.0)
def one_step(number):
    with tf.GradientTape() as tape:
        error = (scale * float(number) - 1.0) ** 2
    tape.gradient(error, scale)
    return error
traced = tf.function(one_step)
compiled = tf.function(one_step, jit_compile=True)
"""


def test_losses_of_tapes_are_seen_in_eager_and_in_traced_functions(ranks):
    """Each has its variable's name, and each call counts. Losses in XLA's code, or without metrics, are not seen."""
    code = LOSSES + "[float({steps}(tf.constant(float(n)))) for n in range(4)]"
    runs = {
        steps: ranks.run(code.replace("{steps}", steps), view=None, timeout=PATIENCE)
        for steps in ("one_step", "traced", "compiled")
    }
    again = ranks.run("[float(traced(tf.constant(float(n)))) for n in range(4)]", view=None, timeout=PATIENCE)
    unseen = ranks.run("traced(tf.constant(5.0))", view=None, timeout=PATIENCE, metrics=False)

    for run in (runs["one_step"], runs["traced"], again):
        assert [list(run.metrics["error"][rank].values) for rank in (0, 1)] == [[1.0, 0.0, 1.0, 4.0]] * 2
    assert "error" not in runs["compiled"].metrics
    assert alike(values(runs["compiled"])) == [1.0, 0.0, 1.0, 4.0]
    assert "error" not in unseen.metrics


def test_tensors_and_variables_have_names(ranks):
    """Also those of a model."""
    cell(ranks, "held = [tf.ones((100, 200))]\nkept = tf.Variable(tf.ones((300, 100)))")
    (found, _) = ranks.memory(most=500).ranks.values()
    cell(ranks, "del held, kept")
    names = {name: one for one in found.largest for name in one.names}

    assert (names["held[0]"].size, names["held[0]"].shape, names["held[0]"].device) == (80_000, [100, 200], "cpu")
    assert (names["kept"].size, names["kept"].dtype) == (120_000, "float32")

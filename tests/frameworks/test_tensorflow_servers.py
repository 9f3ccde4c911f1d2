"""ParameterServerStrategy with ranks as chief, workers and parameter server, cell after cell and after failures."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import time

import pytest

from jupyter_dtrain import DistributedError, RanksDead, Settings
from tests.session.cells import Notes
from tests.steward.until import stays, until

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="tensorflow is not installed")

PATIENCE = 180

SCRIPT = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()
    print("behind the end")

def make():
    global strategy, coordinator, weight
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weight = tf.Variable(0.0)

def loop(steps, work=0, fails=False, tells=False):
    total = weight

    @tf.function
    def step():
        tf.debugging.Assert(not fails, ["a step that fails"])
        busy = tf.random.uniform([300, 300])
        for _ in range(work):
            busy = tf.linalg.matmul(busy, busy) / 300
        total.assign_add(tf.minimum(1.0, 1.0 + tf.abs(busy[0, 0])))  # 1; what nobody uses TensorFlow leaves out
        return total.device

    scheduled = []
    for k in range(steps):
        scheduled.append(coordinator.schedule(step))
        if tells and k % 100 == 0:
            print("schedules", flush=True)
    if tells:
        scheduled[5].fetch()
        print("some steps are done", flush=True)
    coordinator.join()
    print(f"total: {float(total):.0f} on {total.device}", flush=True)

make()
loop(20)
"""
SECOND_INTERRUPT = """
queue = coordinator._cluster.closure_queue
cancel = queue._cancel_all_closures
def interrupted():
    queue._cancel_all_closures = cancel
    raise KeyboardInterrupt
queue._cancel_all_closures = interrupted
"""
"""Another one, which comes while the coordinator waits for work that it has cancelled."""
FIT = """
import tf_keras as keras

def batches(context):
    x = tf.reshape(tf.range(64.0), [32, 2]) / 64
    return tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, 1, keepdims=True))).repeat().batch(8)

if resolver.task_type == "chief":
    with tf.distribute.ParameterServerStrategy(resolver).scope():
        model = keras.Sequential([keras.layers.Dense(1, input_shape=(2,))])
        model.compile("sgd", "mse", steps_per_execution=4)
    creator = keras.utils.experimental.DatasetCreator(batches)
    tells = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: print("an epoch", flush=True))
    first, *_, last = model.fit(creator, epochs=4, steps_per_epoch=16, verbose=0, callbacks=[tells]).history["loss"]
    print("learns:", last < first / 2)
"""
TAPE = """
make()

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = (weight - 3.0) ** 2
    weight.assign_sub(0.25 * tape.gradient(loss, weight))
    return loss

losses = []
for _ in range(3):
    losses.append(coordinator.schedule(step))
    coordinator.join()
print([float(loss) for loss in coordinator.fetch(losses)], float(weight))
"""
KERAS_3 = """
import keras
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(tf.data.Dataset.from_tensors((tf.ones((4, 1)), tf.ones((4, 1)))))
"""


@pytest.fixture(scope="module")
def cluster(launch):
    """A chief, two workers, a parameter server; the script has run on all of them."""
    with launch(n=4, chief=True, ps=1, settings=Settings(hang_notice=2.0)) as session:
        session.first = session.run(SCRIPT, view=None, timeout=PATIENCE)
        yield session


@pytest.fixture
def mortal(launch):
    """The same, for one test."""
    with launch(n=4, chief=True, ps=1) as session:
        session.run(SCRIPT, view=None, timeout=PATIENCE)
        yield session


def on_chief(session, code):
    """The text that ``code`` prints on the chief."""
    return session.run(code, 0, view=None, timeout=PATIENCE).text(0, "stdout")


def begin_loop(session, steps=3000, work=2, before=""):
    """Begin a loop on the chief, in the middle of which something can happen."""
    notes = Notes()
    on_chief(session, f"make()\n{before}")
    run = session.run(f"loop({steps}, {work}, tells=True)", 0, view=notes, wait=False, timeout=PATIENCE)
    until(lambda: "some steps are done" in run.text(0), PATIENCE)
    assert not run.done
    return run, notes


@pytest.mark.slow
def test_a_script_of_tensorflows_own_runs_on_all_ranks_and_its_cell_ends(cluster):
    """A second time, too, with the same servers; code behind join() does not run, as in plain TensorFlow."""
    again = cluster.run(SCRIPT, view=None, timeout=PATIENCE)

    for run in (cluster.first, again):
        assert run.outcome == "ok"
        assert "total: 20 on /job:ps/replica:0/task:0" in run.text(0)
        assert all("server.join() ends this cell" in run.text(rank) for rank in (1, 2, 3))
        assert not any("behind the end" in run.text(rank) for rank in range(4))
    assert [rank.role for rank in cluster.world.ranks] == ["chief", "worker", "worker", "ps"]


@pytest.mark.slow
def test_ten_strategies_one_after_the_other(cluster):
    """Each with variables of its own."""
    found = on_chief(cluster, "for _ in range(10):\n    make()\n    loop(8)")

    assert found.count("total: 8 on /job:ps") == 10


def test_a_step_takes_gradients_on_its_worker(cluster):
    """The chief sees no losses of tapes on workers; a line of the cell says how to show them."""
    taken = cluster.run(TAPE, 0, view=None, timeout=PATIENCE)
    assert taken.text(0, "stdout") == "[9.0, 2.25, 0.5625] 2.625\n"
    assert taken.text(0, "stderr").count("jupyter_dtrain.log(loss=coordinator.fetch(value))") == 1


def test_a_step_that_fails_is_the_chiefs_error_and_the_next_strategy_works(cluster):
    """The workers are idle all the while."""
    with pytest.raises(DistributedError, match="Graph execution error"):
        on_chief(cluster, "loop(8, fails=True)")
    with pytest.raises(DistributedError, match="ZeroDivisionError"):
        on_chief(cluster, "coordinator.schedule(tf.function(lambda: weight.assign_add(1.0)))\n1 / 0")
    on_all = cluster.run("__import__('os').environ['RANK']", view=None, timeout=PATIENCE)

    assert "total: 8 on" in on_chief(cluster, "make()\nloop(8)")
    assert [on_all.results[rank].data["text/plain"] for rank in range(4)] == ["'0'", "'1'", "'2'", "'3'"]


@pytest.mark.parametrize("again", ["", SECOND_INTERRUPT], ids=["one interrupt", "two"])
def test_an_interrupt_ends_the_loop_with_all_that_it_has_scheduled(cluster, again):
    """The variables stay, and stand still once the loop begins again; a second one may come while it waits for work."""
    run, _ = begin_loop(cluster, before=again)
    cluster.interrupt()
    assert run.wait(20)
    look = "import time\na = float(weight)\ntime.sleep(0.5)\nprint(0 < a < 3000, a == float(weight))"
    stays = on_chief(cluster, look)

    assert run.outcome == "interrupted"
    assert again or stays == "True True\n"
    assert "on /job:ps" in on_chief(cluster, "loop(8)")
    assert on_chief(cluster, look.replace("a < 3000", "a < 3008")) == "True True\n"


@pytest.mark.slow
def test_a_chief_whose_workers_do_steps_does_not_count_as_hung(cluster):
    """Its main thread waits; a note comes once the workers are stopped."""
    run, notes = begin_loop(cluster, steps=500, work=60)
    stays(lambda: not run.done and not notes.words, 4.0)
    workers = [rank.pid for rank in cluster.world.ranks if rank.role != "chief"]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        told = until(lambda: [words for words in notes.words if "moved" in words])
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
    cluster.interrupt()
    assert run.wait(20)

    assert "join" in told[0]


@pytest.mark.slow
def test_a_loop_that_is_interrupted_while_it_schedules_leaves_no_scope_behind(cluster):
    """The interrupt often falls into the scope that each call enters and leaves."""
    for k in range(5):
        on_chief(cluster, "make()")
        run = cluster.run("loop(10**6, tells=True)", 0, view=None, wait=False)
        until(lambda run=run, k=k: run.text(0).count("schedules") > k, PATIENCE)
        cluster.interrupt()
        assert run.wait(20)
        assert run.outcome == "interrupted"

    assert "total: 8 on" in on_chief(cluster, "make()\nloop(8)")


def test_a_script_file_is_one_cell_that_ends_too(cluster, tmp_path):
    """`%distributed run` of what runs under TensorFlow's own launchers."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = cluster.run_script(script, view=None, timeout=PATIENCE)

    assert run.outcome == "ok"
    assert "total: 20 on" in run.text(0)


def test_a_rank_that_works_for_a_chief_makes_no_strategy_and_gets_an_error(cluster):
    """The rank would wait for itself."""
    words = "Only the chief makes a ParameterServerStrategy; this rank is worker 0"
    with pytest.raises(DistributedError, match=words) as refused:
        cluster.run("tf.distribute.ParameterServerStrategy(resolver)", 1, view=None, timeout=PATIENCE)

    assert "-r 0" in str(refused.value.run.errors[1].evalue)


def test_tensorflow_itself_says_what_is_wrong_with_a_servers_arguments(cluster):
    """What this package puts around them is not at fault."""
    with pytest.raises(DistributedError, match="unexpected keyword argument 'place'") as refused:
        cluster.run("tf.distribute.Server(resolver.cluster_spec(), place=1)", 1, view=None, timeout=PATIENCE)

    assert "jupyter-dtrain failed" not in refused.value.run.text(1)


def test_keras_3_names_the_fix_instead_of_failing_in_a_fit(cluster):
    """The error comes before any computation."""
    with pytest.raises(DistributedError) as refused:
        on_chief(cluster, KERAS_3)

    assert "TF_USE_LEGACY_KERAS=1" in refused.value.run.errors[0].evalue


def test_ranks_report_their_tasks_and_servers(cluster):
    """The report has the variables that were set for them."""
    found = [cluster.info()[rank] for rank in range(4)]
    facts = [one.frameworks["tensorflow_cluster"].details for one in found]

    assert [one["task"] for one in facts] == ["chief 0", "worker 0", "worker 1", "ps 0"]
    assert [one.get("server", "").partition(":")[0] for one in facts] == ["", "listening", "listening", "listening"]
    assert all("GRPC_FAIL_FAST" in {variable.name for variable in one.variables} for one in found)


@pytest.mark.slow
def test_a_worker_that_dies_is_named_and_the_loop_goes_on_with_the_others(mortal):
    """TensorFlow promises that each step is done at least once, and it is."""
    run, notes = begin_loop(mortal)
    os.kill(mortal.world.ranks[2].pid, signal.SIGKILL)

    assert run.wait(PATIENCE)
    assert run.outcome == "ok"
    assert int(re.findall(r"total: (\d+)", run.text(0))[0]) >= 3000
    assert any(words.startswith("Rank 2 was killed (SIGKILL)") for words in notes.words), notes.words
    assert [rank.rank for rank in mortal.world.dead] == [2]
    with pytest.raises(RanksDead):
        mortal.run("1", view=None)
    patience = "import jupyter_dtrain.frameworks.tensorflow.servers as servers\nservers.PATIENCE = 1.0\nmake()"
    with pytest.raises(DistributedError) as refused:
        on_chief(mortal, patience)
    assert "No TensorFlow server listens for rank 2 (worker 1)" in refused.value.run.errors[0].evalue

    mortal.restart()
    assert "total: 20" in mortal.run(SCRIPT, view=None, timeout=PATIENCE).text(0)


@pytest.mark.slow
def test_a_worker_that_dies_while_it_has_a_part_in_the_cell_does_not_end_the_chiefs(mortal):
    """Its own part is lost, and the cell fails for it, once the loop is through."""
    run = mortal.run(
        "import time\n"
        "if resolver.task_type == 'chief':\n    make()\n    loop(3000, 2, tells=True)\nelse:\n    time.sleep(8)",
        view=None,
        wait=False,
        timeout=PATIENCE,
    )
    until(lambda: "some steps are done" in run.text(0), PATIENCE)
    os.kill(mortal.world.ranks[1].pid, signal.SIGKILL)

    assert run.wait(PATIENCE)
    assert run.outcome == "lost"
    assert list(run.lost) == [1]
    assert "total: " in run.text(0)
    assert not run.errors


@pytest.mark.slow
def test_a_parameter_server_that_dies_is_the_chiefs_error_in_time(mortal):
    """Its variables are gone: no rank can go on."""
    run, _ = begin_loop(mortal)
    began = time.monotonic()
    os.kill(mortal.world.ranks[3].pid, signal.SIGKILL)

    assert run.wait(30)
    assert time.monotonic() - began < 30
    assert run.outcome == "error"
    assert run.errors[0].ename == "UnavailableError"
    assert [rank.rank for rank in mortal.world.dead] == [3]
    assert on_chief(mortal, "print('answers')") == "answers\n"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("tf_keras") is None, reason="tf_keras is not installed")
def test_keras_of_tensorflow_2_fits(cluster):
    """Again and again, also after an interrupt."""
    first = cluster.run(FIT, view=None, timeout=PATIENCE)
    longer = cluster.run(FIT.replace("epochs=4", "epochs=4000"), view=None, wait=False, timeout=PATIENCE)
    until(lambda: "an epoch" in longer.text(0), PATIENCE)
    cluster.interrupt()
    assert longer.wait(20)
    again = cluster.run(FIT, view=None, timeout=PATIENCE)

    assert longer.outcome == "interrupted"
    assert "learns: True" in first.text(0)
    assert [list(points.steps) for points in first.metrics["loss"].values()] == [[15, 31, 47, 63]]
    assert "learns: True" in again.text(0)

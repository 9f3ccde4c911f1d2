"""JAX in the ranks: plain multi-process JAX, set up again and again, and what happens when it goes wrong."""

from __future__ import annotations

import ast
import importlib.util
import os
import threading
import time
import types

import pytest

from jupyter_dtrain import DistributedError, DistributedInterrupt
from jupyter_dtrain.frameworks.jax.groups import JaxGroups
from jupyter_dtrain.wire.requests import Desk

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")

PATIENCE = 90
BEGIN = """
import os, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
rank = int(os.environ["RANK"])
"""
UP = """
jax.distributed.initialize()
mesh = jax.make_mesh((jax.process_count(),), ("ranks",))
mine = jax.make_array_from_process_local_data(NamedSharding(mesh, P("ranks")), np.full(1, rank + 1.0))
"""
TOTAL = """
total = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "ranks"), mesh=mesh, in_specs=P("ranks"), out_specs=P()))
"""
UP += TOTAL
DOWN = "jax.distributed.shutdown()\n"
FAIL = "if rank == 1: raise RuntimeError('on purpose')\n"
SUM = "float(total(mine)[0])"


def play(session, code, ranks=None, **options):
    """Run a cell; the value of its last line, by rank."""
    run = session.run(code, ranks, view=None, timeout=PATIENCE, **options)
    return {rank: ast.literal_eval(result.data["text/plain"]) for rank, result in run.results.items()}


@pytest.fixture(scope="module")
def pair(launch, soon):
    session = launch(n=2, env={"JAX_PLATFORMS": "cpu"}, settings=soon)
    session.run(BEGIN, view=None, timeout=PATIENCE)
    yield session
    session.stop()


@pytest.fixture
def up(pair):
    """Two ranks that have met."""
    play(pair, UP + "None")
    return pair


def failing(session, code):
    """Run a cell in which rank 1 raises; the error."""
    with pytest.raises(DistributedError) as caught:
        session.run(code, view=None, timeout=PATIENCE)
    assert caught.value.run.outcome == "error"
    assert "on purpose" in str(caught.value)
    return caught.value


def test_initialize_needs_no_argument_and_may_come_again(pair):
    assert play(pair, UP + SUM) == {0: 3.0, 1: 3.0}
    assert play(pair, "jax.distributed.initialize()\n" + SUM) == {0: 3.0, 1: 3.0}
    assert play(pair, "jax.process_count(), jax.process_index(), jax.device_count()") == {0: (2, 0, 2), 1: (2, 1, 2)}


def test_it_may_come_after_computations_whose_arrays_stay_in_trees(pair):
    """In what JAX calls a pytree: a dictionary keeps its order, and names that share a list go on to share it."""
    begin = """
import collections, dataclasses
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    w: jax.Array
    rest: list
Pair = collections.namedtuple("Pair", "one two")
tree = {"w": [Layer(jnp.arange(3.0) + rank, [None, 5])], "b": Pair(jnp.float32(rank), "text"), 3: None}
del tree[3]
shared = [jnp.float32(rank + 3)]
also = {"shared": shared}
key = jax.random.key(7)
"""
    read = (
        "(np.asarray(tree['w'][0].w * 2).tolist(), tree['w'][0].rest, float(tree['b'].one + 1), tree['b'].two, "
        "list(tree), float(jax.random.uniform(key)), float(shared[0] * 2), also['shared'] is shared)"
    )
    before = play(pair, DOWN + "total = None\n" + begin + read)
    run = pair.run(UP + read, view=None, timeout=PATIENCE)

    assert {rank: ast.literal_eval(result.data["text/plain"]) for rank, result in run.results.items()} == before
    assert before[1][0] == [2.0, 4.0, 6.0]
    assert before[1][4] == ["w", "b"]
    assert "[jupyter-dtrain]" not in run.text(0)
    assert play(pair, SUM) == {0: 3.0, 1: 3.0}


def test_what_is_no_tree_is_named_and_its_arrays_are_not_carried(pair):
    """Attributes, what functions close over, and a dictionary that JAX cannot sort. Nothing deeper is looked at."""
    begin = """
class Model: pass
model, deeper, plain = Model(), Model(), Model()
model.layers, deeper.model, plain.width = [{"w": jnp.ones(3)}], model, 3
scale = jax.jit((lambda factor: lambda x: x * factor)(jnp.float32(3)))
mixed = {"w": jnp.ones(1), 3: None}
kept = jnp.ones(2)
"""
    play(pair, DOWN + begin + "None")
    run = pair.run(UP + "float(kept.sum())", view=None, timeout=PATIENCE)

    assert run.results[0].data["text/plain"] == "2.0"
    words = "each holds arrays or devices of the JAX that has ended; make it again."
    told = [line for line in run.text(0).splitlines() if words in line]
    assert len(told) == 1
    assert told[0].endswith(f"] mixed, model, scale, total: {words}")
    pair.run("del model, deeper, plain, scale, mixed, kept", view=None)


@pytest.mark.parametrize(
    "arguments",
    ['f\'{os.environ["MASTER_ADDR"]}:{os.environ["MASTER_PORT"]}\', 2, rank', "cluster_detection_method='mpi4py'"],
)
def test_the_worlds_own_address_means_the_world(pair, arguments):
    assert play(pair, DOWN + UP.replace("initialize()", f"initialize({arguments})") + SUM) == {0: 3.0, 1: 3.0}


def test_an_address_of_the_cells_own_is_taken(pair, free_port):
    own = UP.replace("initialize()", f"initialize('127.0.0.1:{free_port}', 2, 1 - rank)")
    assert play(pair, DOWN + own + "jax.process_index()") == {0: 1, 1: 0}
    assert play(pair, DOWN + UP + "jax.process_index()") == {0: 0, 1: 1}


@pytest.fixture
def free_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def test_ten_times_in_a_row(pair):
    assert play(
        pair, f"for _ in range(10):\n    {DOWN}{UP.replace(chr(10), chr(10) + '    ')}\n    last = {SUM}\nlast"
    ) == {
        0: 3.0,
        1: 3.0,
    }


WAITING = {
    "in a jitted function": (UP + SUM, FAIL + "total(mine)"),
    "for an array": (UP + SUM, FAIL + "jax.block_until_ready(total(mine))"),
    "for the first connections": (DOWN + UP + "None", FAIL + "total(mine)"),
    "for the devices": ("None", DOWN + "jax.distributed.initialize()\n" + FAIL + "jax.devices()"),
}


@pytest.mark.parametrize("where", WAITING)
def test_ranks_that_wait_for_a_failed_one_are_released_and_the_next_cell_works(pair, where):
    before, fails = WAITING[where]
    pids = play(pair, before + "\nkept = 5 + rank\nos.getpid()")
    failing(pair, fails)
    assert play(pair, "kept, os.getpid()") == {rank: (5 + rank, pid) for rank, pid in pids.items()}
    assert play(pair, UP + SUM) == {0: 3.0, 1: 3.0}


def test_arrays_and_meshes_go_on_after_a_release(up):
    """What was jitted on a mesh is named, and computes again once it is made again."""
    play(up, SUM)
    error = failing(up, FAIL + "total(mine)")
    assert "rank 0 stopped because of that" in str(error)
    run = up.run("float(jax.jit(jnp.sum)(mine))", view=None, timeout=PATIENCE)
    assert {rank: result.data["text/plain"] for rank, result in run.results.items()} == {0: "3.0", 1: "3.0"}
    assert "total: each holds arrays or devices of the JAX that has ended; make it again." in run.text(0)
    assert play(up, TOTAL + SUM) == {0: 3.0, 1: 3.0}


LOOP = """
replicated = NamedSharding(mesh, P())
inputs = np.full((64, 512), (rank + 1) / 512, np.float32)
data = jax.make_array_from_process_local_data(NamedSharding(mesh, P("ranks")), inputs)
def loss_of(params, x):
    return jnp.mean((x @ params["w"] + params["b"] - 3.0) ** 2)
@jax.jit
def step(params, state, x):
    loss, slopes = jax.value_and_grad(loss_of)(params, x)
    state = jax.tree.map(lambda old, slope: 0.9 * old + slope, state, slopes)
    return jax.tree.map(lambda old, change: old - 0.01 * change, params, state), state, loss
def begin():
    params = {"w": jax.device_put(jnp.ones((512, 512)), replicated), "b": jax.device_put(jnp.zeros(()), replicated)}
    return params, jax.tree.map(jnp.zeros_like, params)
"""


def test_an_ordinary_loop_goes_on_after_a_failure(up):
    """A waiting rank's names hold results that never come: it takes the other's values of before that step."""
    whole = "params, state = begin()\nfor _ in range(5): params, state, loss = step(params, state, data)\n"
    expected = play(up, f"{LOOP}{whole}float(loss)")
    up.run("params, state = begin()\nfor _ in range(3): params, state, loss = step(params, state, data)", view=None)
    failing(up, f"{FAIL}params, state, loss = step(params, state, data)\nfloat(loss)")
    run = up.run("for _ in range(2): params, state, loss = step(params, state, data)\nfloat(loss)", view=None)

    assert {rank: float(result.data["text/plain"]) for rank, result in run.results.items()} == expected
    assert "params, state: lost with the failed computation, and restored with the values of rank 1" in run.text(0)


def test_a_computation_begun_when_another_rank_failed_does_not_meet_the_next_cell(up):
    big = "big = jax.make_array_from_process_local_data(NamedSharding(mesh, P('ranks')), np.ones((1, 500_000)))\n"
    begun = f"{big}{FAIL}later = jax.jit(lambda x: total(jnp.sin(x)) * 2)(big)"
    play(up, SUM)
    failing(up, begun)
    assert play(up, TOTAL + SUM) == {0: 3.0, 1: 3.0}


def test_a_cell_that_fails_while_its_computation_waits_for_a_rank_that_is_done_is_released(up):
    """The computation that it began asynchronously has no counterpart there, and ends."""
    begun = (
        "big = jax.make_array_from_process_local_data(NamedSharding(mesh, P('ranks')), np.ones((1, 500_000)))\n"
        "if rank == 0:\n    later = jax.jit(lambda x: total(jnp.sin(x)) * 2)(big)\n    raise RuntimeError('on purpose')"
    )
    play(up, SUM)
    with pytest.raises(DistributedError, match="on purpose") as caught:
        up.run(begun, view=None, timeout=60)

    assert caught.value.run.outcome == "error"
    assert play(up, TOTAL + SUM) == {0: 3.0, 1: 3.0}


def test_names_that_cannot_be_looked_into_hinder_no_recovery(up):
    """Deeper than Python goes; an object that answers nothing; a list that holds itself."""
    define = (
        "class Node:\n    def __init__(self, following): self.following = following\n"
        "class Closed:\n    def __getattr__(self, name): raise OSError(name)\n"
        "chain, closed = None, Closed()\nfor _ in range(3000): chain = Node(chain)\n"
        "deep, round = [], [jnp.ones(1)]\nround.append(round)\nfor _ in range(3000): deep = [deep]\n"
    )
    failing(up, define + FAIL + SUM)
    assert play(up, TOTAL + SUM + "\n") == {0: 3.0, 1: 3.0}
    up.run("del chain, closed, deep, round", view=None)


def test_resync_keeps_the_order_of_a_dictionary(up):
    """JAX's own walk would sort its keys, also of one that holds no array of JAX."""
    up.run("grads = {'w': 1.0, 'b': jnp.ones(1), 3: None} if rank == 0 else None", view=None)
    up.broadcast(["grads"])

    assert play(up, "list(grads), float(grads['b'][0])") == {rank: (["w", "b", 3], 1.0) for rank in range(2)}


def test_a_rank_that_does_not_come_is_named(pair):
    error = failing(pair, DOWN + FAIL + "jax.distributed.initialize()")
    assert "initialize: rank 1 did not arrive" in error.run.errors[0].evalue
    assert play(pair, UP + SUM) == {0: 3.0, 1: 3.0}


@pytest.mark.parametrize("waits", ["total(mine)", DOWN + "    jax.distributed.initialize()"])
def test_stop_ends_a_wait(up, waits):
    play(up, SUM)
    timer = threading.Timer(2.0, up.interrupt)
    timer.start()
    with pytest.raises(DistributedInterrupt):
        up.run(f"if rank == 0:\n    {waits}\nelse:\n    time.sleep(60)", view=None, timeout=PATIENCE)
    timer.join()
    assert play(up, UP + SUM) == {0: 3.0, 1: 3.0}


def test_arrays_are_logged_as_numbers_also_from_jitted_code(up):
    code = """
import jupyter_dtrain
@jax.jit
def step(x):
    loss = x * 2
    jax.debug.callback(lambda value: jupyter_dtrain.log(inner=value), loss)
    return loss
for index in range(3):
    jupyter_dtrain.log(loss=step(jnp.float32(index)), step=index)
"""
    run = up.run(code, view=None, timeout=PATIENCE)
    assert list(run.metrics["loss"][0].values) == [0.0, 2.0, 4.0]
    assert sorted(run.metrics["inner"][1].values) == [0.0, 2.0, 4.0]


def test_collectives_through_mpi_are_refused_before_they_end_the_rank(pair):
    chosen = "jax.config.update('jax_cpu_collectives_implementation', '{}')\n"
    with pytest.raises(DistributedError, match="end the process"):
        pair.run(DOWN + chosen.format("mpi") + "jax.distributed.initialize()", view=None, timeout=PATIENCE)
    assert play(pair, chosen.format("gloo") + UP + SUM) == {0: 3.0, 1: 3.0}


BREAK = """
from jupyter_dtrain.frameworks.jax import groups as ours
kept = ours._keep_sigterm
ours._keep_sigterm = lambda: 1 / 0
"""


def test_ranks_are_set_up_although_our_part_of_it_fails(pair):
    """The cell says once what is lost."""
    mended = "ours._keep_sigterm = kept\nkept()\n"
    run = pair.run(DOWN + BREAK + UP + mended + SUM, view=None, timeout=PATIENCE)

    assert {rank: result.data["text/plain"] for rank, result in run.results.items()} == {0: "3.0", 1: "3.0"}
    for rank in (0, 1):
        assert run.text(rank).count("A part of jupyter-dtrain failed inside initialize of jax") == 1
        assert "ZeroDivisionError: division by zero), and the call went on without it: jax.dist" in run.text(rank)


def test_another_jax_stays_as_it_is():
    """One whose initialize() lacks an argument that ranks give it."""

    def initialize(coordinator_address=None, num_processes=None, process_id=None, cluster_detection_method=None):
        """JAX's own."""

    jax = types.SimpleNamespace(initialize=initialize, _jax=types.SimpleNamespace())
    groups = JaxGroups(None, 0, Desk("localhost", 1, ""))
    with pytest.raises(TypeError, match="takes no heartbeat_timeout_seconds, initialization_timeout, local_device_ids"):
        groups.hook(jax)

    assert jax.initialize is initialize
    assert not groups.is_up


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        ({"n": 2}, {0: ("0", None), 1: ("1", None)}),
        ({"n": 1}, {0: ("all", None)}),
        ({"n": 2, "gpus_per_rank": 2}, {0: ("all", "0,1"), 1: ("all", "2,3")}),
    ],
)
def test_each_rank_sees_the_gpus_of_its_own(launch, tmp_path, monkeypatch, asked, seen):
    """A machine without a GPU shows this much: the driver's tool lists four, and JAX gets the right ones."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\nfor i in 0 1 2 3; do echo "GPU $i: A (UUID: GPU-$i)"; done\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    session = launch(**asked, env={"JAX_PLATFORMS": "cpu", "PATH": os.environ["PATH"]})
    code = (
        "import os, jax\nfrom jax._src import xla_bridge\n"
        "xla_bridge.CUDA_VISIBLE_DEVICES.value, os.environ.get('CUDA_VISIBLE_DEVICES')"
    )
    assert play(session, code) == seen
    session.stop()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_the_others_survive_a_rank_that_dies_and_end_as_they_should(launch, tmp_path, victim):
    session = launch(n=2, env={"JAX_PLATFORMS": "cpu"})
    play(session, BEGIN + UP + SUM)
    with pytest.raises(DistributedError):
        session.run(f"if rank == {victim}: os.kill(os.getpid(), 9)\ntotal(mine)", view=None, timeout=PATIENCE)
    other = 1 - victim
    # JAX ends the clients of a dead coordinator within a second or so, if at all.
    assert play(session, "time.sleep(3)\nfloat(jnp.ones(3).sum()), rank", [other]) == {other: (3.0, other)}
    left = tmp_path / "left"
    session.run(
        f"try:\n    open({str(left)!r} + '-', 'w')\n    time.sleep(60)\nfinally:\n    open({str(left)!r}, 'w')",
        [other],
        view=None,
        wait=False,
    )
    deadline = time.monotonic() + PATIENCE
    while not left.with_name("left-").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    session.stop()
    assert left.exists()  # JAX takes SIGTERM for itself, unless it is kept from that


def test_arrays_have_names_and_the_size_of_the_ranks_own_part(up):
    """Views as numpy's arrays share it; an array that was deleted, and a key, have none. No rank waits for another."""
    play(
        up,
        "params = {'dense': {'kernel': jnp.ones((300, 400))}}\nlooked = np.asarray(params['dense']['kernel'])\n"
        "spread = jax.make_array_from_process_local_data(NamedSharding(mesh, P('ranks')), np.full(5000, rank + 1.0))\n"
        "gone = jnp.ones(7000)\ngone.delete()\nkey = jax.random.key(0)\nNone",
    )
    found = [{name: one for one in rank.largest for name in one.names} for rank in up.memory(most=100).ranks.values()]
    play(up, "del params, looked, spread, gone, key\nNone")

    for names in found:
        kernel = names["looked"]
        assert set(kernel.names) == {"looked", 'params["dense"]["kernel"]'}
        assert (kernel.size, kernel.dtype, kernel.device) == (480_000, "float32", "cpu")
        assert (names["spread"].shape, names["spread"].size) == ([10_000], 5000 * 4)
        assert not {"gone", "key"} & set(names)

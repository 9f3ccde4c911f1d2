"""A loop of JAX that runs is profiled: its steps are what it logs, and XLA's operators and collectives are known."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from jupyter_dtrain import BadRequest, DistributedInterrupt, ProfileFailed
from tests.frameworks.test_torch_profile import TOLD, begin, end, nested
from tests.pace import slack
from tests.session.cells import run, same
from tests.steward.until import until

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")

SET_UP = """
import os, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import jupyter_dtrain
jax.distributed.initialize()
rank = jax.process_index()
mesh = jax.make_mesh((jax.process_count(),), ("ranks",))
replicated, spread = NamedSharding(mesh, P()), NamedSharding(mesh, P("ranks"))
data = jax.make_array_from_process_local_data(spread, np.full((32, 256), (rank + 1) / 256, np.float32))
def loss_of(params, x):
    return jnp.mean((jnp.tanh(x @ params["w"]) + params["b"] - 3.0) ** 2)
@jax.jit
def update(params, x):
    loss, slopes = jax.value_and_grad(loss_of)(params, x)
    return jax.tree.map(lambda old, slope: old - 0.01 * slope, params, slopes), loss
params = {"w": jax.device_put(jnp.ones((256, 256)), replicated), "b": jax.device_put(jnp.zeros(()), replicated)}
def step(pause=0.02):
    global params
    times.append([time.time_ns()])
    params, loss = update(params, data)
    jax.block_until_ready((params, loss))
    times[-1].append(time.time_ns())
    time.sleep(pause)
    return loss
def recorded():
    return jax._src.profiler._profile_state.profile_session is not None
times = []
step()
"""
GOES_ON = """
from mpi4py import MPI
def goes_on():
    return not MPI.COMM_WORLD.allreduce(int(os.path.exists({end!r})))
"""
"""Ranks leave their loop at the same step, once there is a file: no one waits for another that is done."""
LOOP = """
times = []
while goes_on():
    loss = step()
    jupyter_dtrain.log(loss=loss)
"""


@pytest.fixture(scope="module")
def pair(launch):
    """Two ranks that have met, with a jitted training step."""
    session = launch(n=2, env={"JAX_PLATFORMS": "cpu"})
    run(session, SET_UP, timeout=120 * slack())
    yield session
    session.stop()


@pytest.fixture
def loop(pair, tmp_path):
    """Starts a cell that goes on; :attr:`ends` ends it, as the end of the test does."""
    file, runs = tmp_path / "end", []

    def start(code=LOOP):
        file.unlink(missing_ok=True)
        runs.append(pair.run(GOES_ON.format(end=str(file)) + code, wait=False, view=None))
        return runs[-1]

    def ends():
        file.touch()
        for one in runs:
            one.result(60 * slack())

    start.ends = ends
    yield start
    ends()


def read(profile):
    """The merged trace."""
    return json.loads(gzip.decompress(profile.path.read_bytes()))


def test_a_jitted_loop_is_profiled_by_what_it_logs(pair, loop, tmp_path):
    """The loop goes on; operators, collectives and steps are those of the program, and all collectives are matched."""
    cell = loop()
    found = pair.profile(4, path=tmp_path / "p.json.gz")

    assert not cell.done
    assert (found.run, found.steps, found.ranks, found.notes) == (cell.number, 4, [0, 1], [])
    said = found.analysis
    assert (said.matched, said.unmatched) == (2 * sum(one.calls for one in said.collectives), 0)
    assert [(one.name, one.ranks) for one in said.collectives] == [("all_reduce", 2)]
    assert said.collectives[0].calls % 4 == 0
    assert said.collectives[0].size is None
    assert sum(one.name.startswith("jit_update: ") for one in said.operators) > 5
    assert all(one.own > 0 for one in said.operators)
    assert all(0 < one.computing < 1 and 0 < one.communicating < 1 for one in said.ranks)
    assert not said.on_device
    shown = repr(found)
    assert "jit_update: " in shown
    assert "100% of the ranks' collectives are matched" in shown


def test_a_loop_that_waits_for_nothing(pair, loop, tmp_path):
    """JAX computes while it goes on; each step of the profile has all that belongs to it."""
    loop(
        "while goes_on():\n    params, loss = update(params, data)\n    jupyter_dtrain.log(loss=loss)\n"
        "    time.sleep(0.001)"
    )
    found = pair.profile(4, path=tmp_path / "p.json.gz")

    assert (found.steps, found.notes) == (4, [])
    said = found.analysis
    assert (said.matched, said.unmatched) == (2 * sum(one.calls for one in said.collectives), 0)
    assert said.matched > 0
    ours = [one.calls for one in said.operators if one.name.startswith("jit_update: ")]
    assert len(ours) > 5
    assert all(calls % (4 * 2) == 0 for calls in ours)
    assert all(one.computing > 0 for one in said.ranks)


def test_the_trace_is_of_the_loops_own_time(pair, loop, tmp_path):
    """Marks and events have one clock: a step's operators are between its call and its result."""
    loop()
    found = pair.profile(4, path=tmp_path / "p.json.gz")
    document = read(found)
    loop.ends()
    own, events = document["dtrain"], [event for event in document["traceEvents"] if event["ph"] == "X"]

    assert {event["pid"] for event in document["traceEvents"]} == {0, 1}
    assert nested(events)
    for rank, steps in pair["times"].items():
        micros = [[(one - own["began_ns"]) / 1000 for one in times] for times in steps]
        for first, last in itertools.pairwise(own["marks"][str(rank)]):
            ((called, result),) = [times for times in micros if first < times[1] < last]
            parts = [e for e in events if e["pid"] == rank and first <= begin(e) < last and is_operator(e)]
            assert parts
            # A thread may tell that it is done before it has noted the end of its operator.
            assert min(begin(event) - called for event in parts) > -500
            assert max(end(event) - result for event in parts) < 500
    threads = [e for e in document["traceEvents"] if e["name"] == "thread_name" and e["pid"] == 0]
    assert {e["args"]["name"] for e in threads} >= {"steps", "python"}
    assert all(0 <= e["tid"] < 1000 for e in threads)


def is_operator(event):
    """Whether XLA has computed something of the training in it, or communicated."""
    return event.get("args", {}).get("hlo_module") == "jit_update"


def test_a_second_profile_and_some_ranks(pair, loop, tmp_path):
    """The profiler starts again in the same process."""
    loop()
    assert pair.profile(2, [1], path=tmp_path / "p.json").ranks == [1]
    second = pair.profile(2, path=tmp_path / "p.json")
    assert (second.ranks, second.notes) == ([0, 1], [])
    assert "Beside the last profile" in repr(second)


def test_perfetto_reads_it(pair, loop, tmp_path):
    """Its own trace_processor: two processes, no error, and every collective on each of them."""
    processor = pytest.importorskip("perfetto.trace_processor", reason="perfetto is not installed")
    loop()
    found = pair.profile(3, path=tmp_path / "p.json.gz")
    try:
        reader = processor.TraceProcessor(trace=str(found.path))
    except Exception as error:  # noqa: BLE001 — the package fetches its program when it is used first
        pytest.skip(f"perfetto's trace_processor cannot be had here: {error}")
    with reader as trace:
        rows = trace.query(
            "select pid, count(*) as n from slice join thread_track on slice.track_id = thread_track.id "
            "join thread using (utid) join process using (upid) where slice.name like 'all-reduce%' group by pid"
        )
        assert {row.pid: row.n for row in rows} == same(found.analysis.matched // 2, 2)
        assert [row.name for row in trace.query("select name from stats where severity = 'error' and value > 0")] == []


def test_a_loop_that_logs_nothing(pair, loop, tmp_path):
    """Its steps cannot be seen, and the sentence names the line that helps."""
    cell = loop("while goes_on(): step()")
    with pytest.raises(BadRequest, match=r"^No step was seen within 1 s: .* jupyter_dtrain\.log\(loss=loss\)"):
        pair.profile(3, path=tmp_path / "p.json", timeout=1)
    assert not cell.done
    assert not (tmp_path / "p.json").exists()


def test_stop_in_the_middle_keeps_the_steps_that_there_were(launch, tmp_path):
    """And the profiler has stopped."""
    with launch(n=2, env={"JAX_PLATFORMS": "cpu"}) as session:
        run(session, SET_UP, timeout=120 * slack())
        code = f"{TOLD}for _ in range(100_000):\n    jupyter_dtrain.log(loss=step())\n    tell()"
        cell = session.run(code, wait=False, view=None)
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(session.profile, 1000, path=tmp_path / "p.json", timeout=60 * slack())
            until(lambda: all("recorded" in cell.text(rank) for rank in cell.ranks), 30 * slack())
            time.sleep(0.2)  # some steps
            session.interrupt()
            profile = found.result(60 * slack())
        assert 0 < profile.steps < 1000
        assert any("of 1,000 steps: the cell was interrupted or failed" in note for note in profile.notes)
        with pytest.raises(DistributedInterrupt):
            cell.result(30 * slack())
        run(session, "after = recorded()")
        assert session["after"] == same(False, 2)


def test_a_rank_that_dies_meanwhile(launch, tmp_path):
    """The other, which waits for it in a collective, is released as ever, and its steps are kept."""
    with launch(n=2, env={"JAX_PLATFORMS": "cpu"}) as session:
        run(session, SET_UP, timeout=120 * slack())
        session.run(
            f"{TOLD}left = 5\nfor _ in range(100_000):\n    jupyter_dtrain.log(loss=step())\n    left -= tell()\n"
            "    if rank == 1 and not left: os._exit(3)",
            wait=False,
            view=None,
        )
        found = session.profile(1000, path=tmp_path / "p.json", timeout=60 * slack())

    assert found.ranks == [0]
    assert 1 < found.steps < 20
    assert sorted(found.notes) == [
        f"Rank 0: {found.steps} of 1,000 steps: the cell was interrupted or failed.",
        "Rank 1: missing: died while it was profiled.",
    ]


def test_a_profiler_of_the_cells_own_is_left_alone(pair, loop, tmp_path):
    """There is no profile then."""
    cell = loop(
        "import tempfile\nwith tempfile.TemporaryDirectory() as folder, jax.profiler.trace(folder):\n"
        "    while goes_on(): jupyter_dtrain.log(loss=step())"
    )
    with pytest.raises(ProfileFailed, match="the cell's own profiler is running"):
        pair.profile(3, path=tmp_path / "p.json")
    assert not cell.done


def test_a_profiler_that_the_cell_starts_meanwhile(pair, loop, tmp_path):
    """It records, and ours has the steps until then."""
    cell = loop(
        f"import glob, tempfile\n{TOLD}"
        "left = 5\nwhile left:\n    jupyter_dtrain.log(loss=step())\n"
        "    left -= MPI.COMM_WORLD.allreduce(int(tell())) == 2\n"
        "with tempfile.TemporaryDirectory() as folder:\n    jax.profiler.start_trace(folder)\n"
        "    for _ in range(10): jupyter_dtrain.log(loss=step())\n"
        "    jax.profiler.stop_trace()\n"
        "    mine = len(glob.glob(f'{folder}/plugins/profile/*/*.xplane.pb'))"
    )
    found = pair.profile(500, path=tmp_path / "p.json")

    assert 3 < found.steps < 10
    assert found.notes == [f"Ranks 0-1: {found.steps} of 500 steps: the cell has started a profiler of its own."]
    cell.result(60 * slack())
    assert pair["mine"] == same(1, 2)


def test_a_trace_that_cannot_be_written(pair, loop, tmp_path):
    """The loop goes on, and JAX does not take the profiler for running ever after."""
    cell = loop(
        "import shutil, tempfile\n"
        "kept, mine = tempfile.tempdir, tempfile.mkdtemp()\n"
        "if rank == 1: tempfile.tempdir = mine\n"
        "while goes_on():\n    jupyter_dtrain.log(loss=step())\n"
        "    if recorded() and rank == 1 and tempfile.tempdir == mine:\n"
        "        shutil.rmtree(mine)\n        open(mine, 'w').close()\n        tempfile.tempdir = kept\n"
        "os.remove(mine) if rank == 1 else os.rmdir(mine)"
    )
    found = pair.profile(3, path=tmp_path / "p.json")

    assert found.ranks == [0]
    assert len(found.notes) == 1
    assert found.notes[0].startswith("Rank 1: missing: JaxRuntimeError: ")
    assert not cell.done
    assert pair.profile(3, path=tmp_path / "p.json").notes == []

"""A loop that runs is profiled: on all ranks from the same step on, whatever happens to it meanwhile."""

from __future__ import annotations

import bisect
import contextlib
import gzip
import importlib.util
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from jupyter_dtrain import BadRequest, DistributedError, DistributedInterrupt, ProfileFailed, RanksDead, Session
from jupyter_dtrain.wire.profile_messages import BeginProfile, EndProfile, ReadProfile
from tests.pace import slack
from tests.session.cells import run, same, until

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

SET_UP = """
import os, time, zlib
import torch, torch.distributed as dist
from torch.autograd import profiler as kineto
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group()
rank = dist.get_rank()
def make(together=True):
    global model, opt
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    model = DistributedDataParallel(net) if together else net
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
def step(pause=0.02):
    opt.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    opt.step()
    time.sleep(pause)
def recorded():
    return kineto._is_profiler_enabled
"""
LOOP = """
make()
ended, digests = [], []
while True:
    step()
    ended.append(time.time_ns())
    digests.append(zlib.crc32(b"".join(part.detach().numpy().tobytes() for part in model.parameters())))
"""
TOLD = """
said = False
def tell():
    global said
    if recorded() and not said:
        said = True
        print("recorded", flush=True)
    return said
"""
"""It tells, once, that a rank is profiled."""


@pytest.fixture(scope="module")
def four(launch):
    """Four ranks with a group."""
    session = launch(n=4)
    run(session, SET_UP, timeout=120 * slack())
    yield session
    session.stop()


@pytest.fixture
def loop(four):
    """Starts a cell that goes on, and ends it after the test."""
    runs = []

    def start(code=LOOP, ranks=None):
        runs.append(four.run(code, ranks, wait=False, view=None))
        return runs[-1]

    yield start
    for one in runs:
        if not one.done:
            four.interrupt()
        with contextlib.suppress(DistributedError, DistributedInterrupt):
            one.result(30 * slack())
    assert not four.world.dead


def read(profile):
    """The merged trace."""
    return json.loads(gzip.decompress(profile.path.read_bytes()))


def told(cell, ranks=None):
    """Wait until the ranks say that they are profiled."""
    until(lambda: all("recorded" in cell.text(rank) for rank in ranks or cell.ranks), 30 * slack())


def test_all_ranks_are_profiled_from_the_same_step_on(four, loop, tmp_path):
    """The loop does not stop for it, and trains as before."""
    cell = loop()
    found = four.profile(3, path=tmp_path / "p.json.gz")

    assert (found.run, found.steps, found.ranks, found.notes) == (cell.number, 3, [0, 1, 2, 3], [])
    assert not cell.done
    document = read(found)
    own = document["dtrain"]
    four.interrupt()
    with pytest.raises(DistributedInterrupt):
        cell.result(30 * slack())
    for rank, ended in four["ended"].items():
        marks = [own["began_ns"] + round(1000 * mark) for mark in own["marks"][str(rank)]]
        # A mark is taken in the step, a moment before the cell takes its own.
        assert [bisect.bisect(ended, mark) + 1 for mark in marks] == [found.step + place for place in range(4)]
    # Some ranks may have made one step more before the interrupt.
    steps = list(zip(*four["digests"].values(), strict=False))
    assert len(steps) >= found.step + 2
    assert all(len(set(digests)) == 1 for digests in steps)


def test_the_trace_has_a_process_for_each_rank_and_all_collectives_are_matched(four, loop, tmp_path):
    """Nothing of another process is in it, and what a thread does is nested, as Perfetto wants it."""
    loop()
    found = four.profile(4, path=tmp_path / "p.json")
    document = json.loads(found.path.read_bytes())
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]

    assert {event["pid"] for event in document["traceEvents"]} == {0, 1, 2, 3}
    names = {e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert names == {rank.rank: f"rank {rank.rank} ({rank.host})" for rank in four.world.ranks}
    steps = {rank: [e["name"] for e in events if e["pid"] == rank and e.get("cat") == "step"] for rank in range(4)}
    assert steps == same([f"step {found.step + place}" for place in (1, 2, 3, 4)], 4)
    assert (found.analysis.matched, found.analysis.unmatched) == (16, 0)
    assert [(one.name, one.ranks, one.calls) for one in found.analysis.collectives] == [("all_reduce", 4, 4)]
    size = 4 * (64 * 64 + 64 + 64 * 8 + 8)
    assert found.analysis.collectives[0].size == size
    assert found.analysis.collectives[0].bandwidth > 0
    assert nested(events)
    # Nobody ends an all-reduce before all have come: clocks that differ would show it otherwise.
    reduced = sorted((event for event in events if event["name"] == "gloo:all_reduce"), key=begin)
    by_rank = {rank: [event for event in reduced if event["pid"] == rank] for rank in range(4)}
    for several in zip(*by_rank.values(), strict=True):
        assert max(map(begin, several)) - min(map(end, several)) < 1000
    assert {one.name for one in found.analysis.operators} >= {"aten::addmm", "aten::mm"}
    assert all(0 < one.computing < 1 and 0 < one.communicating < 1 for one in found.analysis.ranks)


def begin(event):
    """When it begins."""
    return event["ts"]


def end(event):
    """When it ends."""
    return event["ts"] + event["dur"]


def nested(events):
    """Whether of two events of one thread that overlap, one holds the other."""
    threads = {}
    for event in events:
        threads.setdefault((event["pid"], event["tid"]), []).append(event)
    for several in threads.values():
        stack = []
        for event in sorted(several, key=lambda event: (begin(event), -event["dur"])):
            while stack and end(stack[-1]) <= begin(event) + 0.001:  # nanoseconds in floats
                stack.pop()
            if stack and end(event) > end(stack[-1]) + 0.01:
                return False
            stack.append(event)
    return True


def test_perfetto_reads_it(four, loop, tmp_path):
    """Its own trace_processor: four processes, no error, and every collective on each of them."""
    processor = pytest.importorskip("perfetto.trace_processor", reason="perfetto is not installed")
    loop()
    found = four.profile(3, path=tmp_path / "p.json.gz")
    try:
        reader = processor.TraceProcessor(trace=str(found.path))
    except Exception as error:  # noqa: BLE001 — the package fetches its program when it is used first
        pytest.skip(f"perfetto's trace_processor cannot be had here: {error}")
    with reader as trace:
        rows = trace.query(
            "select pid, count(*) as n from slice join thread_track on slice.track_id = thread_track.id "
            "join thread using (utid) join process using (upid) where slice.name like 'gloo:%' group by pid"
        )
        assert {row.pid: row.n for row in rows} == same(3, 4)
        assert [row.name for row in trace.query("select name from stats where severity = 'error' and value > 0")] == []


def test_some_ranks(four, loop, tmp_path):
    """And the next profile is shown beside this one."""
    loop()
    assert four.profile(2, "1,3", path=tmp_path / "p.json").ranks == [1, 3]
    second = four.profile(2, path=tmp_path / "p.json")

    assert second.last is not None
    assert second.last.ranks == [1, 3]
    assert "Beside the last profile" in repr(second)
    assert "<table>" in second._repr_mimebundle_()["text/html"]


def test_stop_in_the_middle_keeps_the_steps_that_there_were(four, loop, tmp_path):
    """And the ranks are as after any stop."""
    cell = loop(TOLD + "make()\nwhile True:\n    step()\n    tell()")
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(four.profile, 1000, path=tmp_path / "p.json", timeout=60 * slack())
        told(cell)
        time.sleep(0.2)  # some steps
        four.interrupt()
        profile = found.result(60 * slack())

    assert 0 < profile.steps < 1000
    assert profile.ranks == [0, 1, 2, 3]
    assert any("of 1,000 steps: the cell was interrupted or failed" in note for note in profile.notes)
    run(four, "after = recorded()")
    assert four["after"] == same(False, 4)


def test_an_interrupt_that_comes_while_the_profiler_stops(four, loop, tmp_path):
    """It waits until the profiler has stopped: the profile is whole, and so is the next one."""
    cell = loop(
        "import signal\nmake()\nfirst = kineto.profile.__exit__\nstruck = []\ndef strike(self, *given):\n"
        "    signal.raise_signal(signal.SIGINT)\n    struck.append(recorded())\n    return first(self, *given)\n"
        "kineto.profile.__exit__ = strike\nwhile True: step()"
    )
    found = four.profile(3, path=tmp_path / "p.json")
    assert (found.steps, found.ranks, found.notes) == (3, [0, 1, 2, 3], [])
    with pytest.raises(DistributedInterrupt):
        cell.result(30 * slack())
    # Not in the cell itself: its end stops the profiler of a rank whose last step is not over when others end.
    run(four, "after = recorded()\nkineto.profile.__exit__ = first")
    assert (four["struck"], four["after"]) == (same([True], 4), same(False, 4))

    loop()
    assert four.profile(3, path=tmp_path / "p.json").notes == []


def test_a_stop_that_an_exception_breaks_is_repeated(four, loop, tmp_path):
    """As by one that no shield delays: the cell's end stops the profiler, and keeps the steps."""
    cell = loop(
        "make()\nfirst = kineto.profile.__exit__\nbroken = []\ndef breaks(self, *given):\n"
        "    if not broken:\n        broken.append(recorded())\n        raise KeyboardInterrupt\n"
        "    return first(self, *given)\nkineto.profile.__exit__ = breaks\nwhile True: step()"
    )
    found = four.profile(3, path=tmp_path / "p.json")
    assert (found.steps, found.ranks, found.notes) == (3, [0, 1, 2, 3], [])
    until(lambda: cell.done, 30 * slack())
    run(four, "kineto.profile.__exit__ = first\nafter = recorded()")
    assert (four["broken"], four["after"]) == (same([True], 4), same(False, 4))


def test_a_loop_on_another_thread(four, loop, tmp_path):
    """It is refused: its cell may end before it."""
    cell = loop(
        "import threading\nmake()\nover = threading.Event()\n"
        "thread = threading.Thread(target=lambda: [step() for _ in iter(over.is_set, True)])\nthread.start()\n"
        "try:\n    while True: time.sleep(0.01)\nfinally:\n    over.set()\n    thread.join(20)"
    )
    with pytest.raises(
        ProfileFailed,
        match=r"Ranks 0-3: missing: its loop runs on another thread than the main thread, which cannot be profiled\.",
    ):
        four.profile(3, path=tmp_path / "p.json")
    assert not cell.done


def test_a_cell_that_ends_early(four, loop, tmp_path):
    """The profile has the steps up to there."""
    cell = loop(TOLD + "make()\nleft = 5\nwhile left:\n    step()\n    left -= tell()")
    found = four.profile(500, path=tmp_path / "p.json")

    assert 3 < found.steps < 10
    assert any("of 500 steps: the cell has ended" in note for note in found.notes)
    cell.result(30 * slack())


def test_a_profiler_that_raises_is_named_and_the_training_goes_on(four, loop, tmp_path):
    """On one rank; the others are in the trace."""
    cell = loop(
        "make()\nfirst = kineto.profile.__enter__\ndef refuse(self):\n    raise OSError('no profiler today')\n"
        "if rank == 1: kineto.profile.__enter__ = refuse\n"
        "try:\n    while True: step()\nfinally:\n    kineto.profile.__enter__ = first"
    )
    found = four.profile(3, path=tmp_path / "p.json")

    assert found.ranks == [0, 2, 3]
    assert found.notes == ["Rank 1: missing: OSError: no profiler today."]
    assert not cell.done


def test_a_profiler_of_the_cells_own(four, loop, tmp_path):
    """One that runs is left alone; one that the cell starts in the middle ends ours."""
    cell = loop("make()\nwith torch.profiler.profile() as mine:\n    while True: step()")
    with pytest.raises(ProfileFailed, match="the cell's own profiler is running"):
        four.profile(3, path=tmp_path / "p.json")
    assert not cell.done
    four.interrupt()
    until(lambda: cell.done, 30 * slack())
    loop(
        TOLD + "make()\nleft = 3\nwhile left:\n    step()\n    left -= tell()\n"
        "with torch.profiler.profile() as mine:\n    while True: step()"
    )
    found = four.profile(500, path=tmp_path / "p.json")

    assert 1 < found.steps < 10
    assert found.notes == [f"Ranks 0-3: {found.steps} of 500 steps: the cell has started a profiler of its own."]


def test_bad_input(four, loop, tmp_path):
    """Each gets one sentence, and nothing is written."""
    with pytest.raises(BadRequest, match=r"^Nothing runs on ranks 0-3, so there is nothing to profile: .*--no-wait"):
        four.profile()
    with pytest.raises(BadRequest, match=r"^A profile has 1 to 1000 steps, not 0\.$"):
        four.profile(0)
    with pytest.raises(BadRequest, match="9"):
        four.profile(3, 9)
    with pytest.raises(BadRequest, match="is no folder"):
        four.profile(3, path=tmp_path / "absent" / "p.json")
    cell = loop("time.sleep(60)")
    with pytest.raises(BadRequest, match=r"^No step was seen within 1 s: .*optimizer\.step\(\)"):
        four.profile(3, path=tmp_path / "p.json", timeout=1)
    assert not cell.done
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_does_not_end_is_cut_off(four, loop, tmp_path):
    """Such as one with an evaluation: the main thread stops the profiler amid it."""
    cell = loop(
        "import jupyter_dtrain.rank.profiling as profiling\nprofiling.LONGEST = 1.0\n"
        + TOLD
        + "make()\nwhile not tell(): step()\nstep()\n"
        "while recorded(): time.sleep(0.01)\nprofiling.LONGEST = 120.0\nprint('free', flush=True)\ntime.sleep(60)"
    )
    found = four.profile(500, path=tmp_path / "p.json")

    assert 0 < found.steps < 5
    assert found.notes == [f"Ranks 0-3: {found.steps} of 500 steps: it was cut off after 1 s."]
    until(lambda: all("free" in cell.text(rank) for rank in cell.ranks), 30 * slack())


def test_a_profile_that_nobody_asks_for_any_more_is_dropped(four, loop):
    """As when the notebook has died: the profiler ends at the next step."""
    loop(
        "import jupyter_dtrain.rank.profiling as profiling\nprofiling.FORGOTTEN = 3.0\n"
        + TOLD
        # Without collectives: a rank may drop it a step before another, and leave the loop.
        + "make(together=False)\nwhile not tell(): step()\nwhile recorded(): step()\n"
        "profiling.FORGOTTEN = 15.0\nprint('free', flush=True)\ntime.sleep(60)"
    )
    requests = four._requests
    until(lambda: all(one and one.step > 1 for one in asked(requests, ReadProfile("mine")).values()), 30 * slack())
    answers = asked(requests, ReadProfile("mine"))
    after = max(one.step for one in answers.values()) + 30
    assert {one.state for one in asked(requests, BeginProfile("mine", after, 1000)).values()} == {"armed"}
    other = asked(requests, BeginProfile("other", after, 10))
    assert {(one.state, one.words) for one in other.values()} == {
        ("failed", "another profile is being made; try again once it is there")
    }
    until(lambda: {one.state for one in asked(requests, ReadProfile("mine")).values()} == {"recording"}, 30 * slack())
    until(lambda: all("free" in four.last_run.text(rank) for rank in range(4)), 30 * slack())
    asked(requests, EndProfile("mine"))


def asked(requests, question):
    """The answers of all ranks."""
    return requests.ask_agents([0, 1, 2, 3], 5, question)


def test_a_client_that_only_reads_may_profile(four, loop, tmp_path):
    """It asks the ranks as the one that controls the world does; and both find a rank that is not there."""
    loop()
    other = Session.attach(four.name)
    try:
        assert not other.controls
        found = other.profile(2, path=tmp_path / "p.json")
    finally:
        other.leave()
    assert (found.ranks, found.notes) == ([0, 1, 2, 3], [])


def test_a_file_that_cannot_be_written(four, loop):
    """The disk is full."""
    loop()
    with pytest.raises(ProfileFailed, match=r"^The profile cannot be written to /dev/full"):
        four.profile(1, path="/dev/full")


def test_a_rank_that_dies_meanwhile_is_named(launch, tmp_path):
    """The traces of the others are merged. A dead rank from the start is named, too."""
    with launch(n=3) as session:
        run(session, SET_UP, timeout=120 * slack())
        # Without collectives: the others would wait for it.
        session.run(
            TOLD + "make(together=False)\nwhile True:\n    step()\n    if tell() and rank == 2: os._exit(3)",
            wait=False,
            view=None,
        )
        found = session.profile(20, path=tmp_path / "p.json")
        assert found.ranks == [0, 1]
        assert found.notes == ["Rank 2: missing: died while it was profiled."]

        with pytest.raises(RanksDead, match="Rank 2 is dead"):
            session.profile(3, 2)


def test_a_loop_without_a_profiler(launch):
    """The cell goes on."""
    with launch(n=1) as session:
        cell = session.run("import time; time.sleep(60)", wait=False, view=None)
        until(lambda: session.world.ranks[0].state == "running", 10 * slack())
        with pytest.raises(
            BadRequest, match=r"^The loop cannot be profiled: no framework is in use\. Loops of JAX and PyTorch can"
        ):
            session.profile()
        assert not cell.done
        session.interrupt()

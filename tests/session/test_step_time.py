"""Faults that are planted into a loop of real ranks: the sentence names each while it runs, from thirty steps."""

from __future__ import annotations

import importlib.util
import re

import pytest

from jupyter_dtrain.core.events import StepParts
from jupyter_dtrain.core.fold import RunFold
from jupyter_dtrain.core.step_time import PARTS
from tests.session.cells import Notes, values

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

PATIENCE = 90
STEPS = 30
"""From their reports a fault must be named. They take 0.12 s or more: the first sentence comes after up to 3.5 s."""
MORE = 10
"""Steps in which the loop goes on, so that reports come after the one that must suffice."""
OF_THE_MACHINE = {"processors", "busy processor"}
"""Kinds that tests beside this one can cause for a second."""

START = """
import os, subprocess, sys, tempfile, time, torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile, record_function
dist.init_process_group("gloo")
torch.set_num_threads(1)
rank, size = dist.get_rank(), dist.get_world_size()
"""
LOOP = """
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(256, 256)
    def forward(self, x):
        time.sleep(0.04)
        return self.a(x).relu()
class Data(torch.utils.data.Dataset):
    def __init__(self, pause):
        self.pause = pause
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(self.pause)  # a sample
        return torch.randn(256)
def train(steps, pause=0.0, batch=16, workers=0, blocks=2, after=lambda i: None, before=lambda i: None, model=None):
    model = model or DDP(torch.nn.Sequential(*[Block() for _ in range(blocks)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = iter(torch.utils.data.DataLoader(Data(pause), batch_size=batch, num_workers=workers))
    for step in range(steps):
        x = next(batches)
        before(step)
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after(step)
"""

FAULTS = {
    "a slow loader on one rank": (
        "slow loader",
        "train(STEPS, pause=0.006 if rank == min(2, size - 1) else 0)",
        lambda size: [min(2, size - 1)],
        "# a sample",
    ),
    "a slow layer on rank 0": (
        "slow rank",
        """
class Slow(Block):
    def forward(self, x):
        time.sleep(0.1 if rank == 0 else 0)  # slow
        return super().forward(x)
train(STEPS, model=DDP(torch.nn.Sequential(Slow(), Block())))
""",
        lambda _: [0],
        "# slow",
    ),
    "an oversized all-reduce": (
        "communication",
        "big = torch.zeros(40_000_000)\ntrain(STEPS, blocks=1, after=lambda i: dist.all_reduce(big))",
        lambda size: list(range(size)),
        "",
    ),
    "a rank on a busy core": (
        "busy processor",
        """
all_cores, others = os.sched_getaffinity(0), []
def work(step):
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
if rank == 1:
    core = max(all_cores)
    os.sched_setaffinity(0, {core})
    spin = "import os; os.sched_setaffinity(0, {%d})\\nwhile True: pass" % core
    others = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(5)]
try:
    train(STEPS, blocks=1, before=work)
finally:
    for other in others:
        other.kill()
        other.wait()
    os.sched_setaffinity(0, all_cores)
""",
        lambda _: [1],
        "",
    ),
    "a checkpoint in each tenth step": (
        "saving",
        """
big = torch.zeros(1_000_000)
def save(step):
    end = time.monotonic() + 0.8
    while step % 10 == 9 and rank == 0 and time.monotonic() < end:
        torch.save(big, os.path.join(tempfile.gettempdir(), f"dtrain-{os.getpid()}.pt"))  # save
try:
    train(STEPS, after=save)
finally:
    if rank == 0:
        os.remove(os.path.join(tempfile.gettempdir(), f"dtrain-{os.getpid()}.pt"))
""",
        lambda _: [0],
        "# save",
    ),
    "a leak of 1 MB a step": (
        "memory",
        """
kept = []
try:
    train(STEPS, blocks=4, after=lambda i: kept.append(bytearray(b"1") * 1_000_000))
finally:
    kept.clear()
""",
        lambda size: list(range(size)),
        "",
    ),
    "one loader worker": (
        "data",
        "train(STEPS, pause=0.008, workers=1, blocks=1)",
        lambda size: list(range(size)),
        "",
    ),
    "a pipeline bubble": (
        "pipeline",
        """
class Stage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(64, 64)
    def forward(self, x):
        time.sleep(0.03 if rank else 0.06)
        return self.a(x).relu()
mine = Stage()
stage = PipelineStage(mine, rank, size, torch.device("cpu"))
schedule = Schedule1F1B(stage, size, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.SGD(mine.parameters(), lr=1e-3)
features, targets = torch.randn(8, 64), torch.randn(8, 64)
for _ in range(STEPS):
    schedule.step(*([features] if rank == 0 else []), **({"target": targets} if rank == size - 1 else {}))
    optimizer.step()
    optimizer.zero_grad()
""",
        lambda size: list(range(size)),
        "",
    ),
    "unequal batches": (
        "unequal batches",
        """
class Each(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(256, 256)
    def forward(self, x):
        time.sleep(0.003 * len(x))
        return self.a(x)
train(STEPS, batch=40 if rank == 0 else 16, model=DDP(Each()))
""",
        lambda _: [0],
        "",
    ),
}
"""By name: the kind of the finding, a cell, the ranks that cause it in a world of a size, and a mark of the line."""


@pytest.fixture(scope="module")
def worlds(launch):
    """A world of each size, started when a test first wants it."""
    made = {}

    def get(size):
        if size not in made:
            made[size] = launch(n=size)
            made[size].run(START, view=None)  # imports take as long as the machine is busy
        return made[size]

    yield get
    for world in made.values():
        world.stop()


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.slow)])
def world(request, worlds):
    """The world of this test."""
    return worlds(request.param)


class Reader(Notes):
    """A view that folds the events as they come, and keeps at which step of the reports each sentence was first told.

    Not at which step somebody looks: on a full machine the loop may be steps further by then.
    """

    def __init__(self, ranks):
        super().__init__()
        self.fold = RunFold(ranks)
        self.told = {}

    def feed(self, batch, now):  # noqa: ARG002 — the protocol's shape
        """Each event may be the one from which a sentence is true."""
        for event in batch.events:
            self.fold.take(event)
            if self.fold.unfinished and isinstance(event.body, StepParts):
                step = max((one.step or 0 for one in self.fold.step_times.ranks.values()), default=0)
                for found in self.fold.slow:
                    self.told.setdefault(found.kind, step)


def play(world, code):
    """Run a cell to its end: the run, its source, and by kind of sentence the step of the reports that first told it.

    Only what was told while the cell ran is there.
    """
    source = LOOP + f"STEPS = {STEPS + MORE}\n" + code
    reader = Reader(range(world.world.size))
    run = world.run(source, view=reader, timeout=PATIENCE)
    print("told while it ran:", reader.told)
    assert run.outcome == "ok", "".join(run.text(rank) for rank in run.ranks)
    for rank, shares in run.step_time.items():
        print(rank, {part: round(share, 2) for part, share in shares.items()})
    print(*run.slow, sep="\n")
    return run, source, reader.told


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_with_its_ranks_and_line(world, fault):
    """While the cell runs, and after it."""
    kind, code, ranks, mark = FAULTS[fault]
    run, source, told = play(world, code)
    found = [one for one in run.slow if one.kind == kind]

    assert run.slow, run.step_time
    assert told.get(kind, STEPS + 1) <= STEPS, told
    assert found == run.slow[:1] or kind == "memory", run.slow
    assert found[0].ranks == ranks(len(run.ranks))
    if mark:
        lines = source.splitlines()
        told = int(re.findall(r", line (\d+)\)", found[0].words)[0])
        assert lines[told - 1].endswith(mark)


def test_a_healthy_loop_has_no_sentence(world):
    """Its shares are those of its sleeps."""
    run, _, told = play(world, "train(100)")

    assert run.slow == []
    assert told.keys() <= OF_THE_MACHINE
    assert set(run.step_time) == set(run.ranks)
    assert all(shares["forward"] > 0.5 for shares in run.step_time.values())
    assert all(set(shares) <= set(PARTS) for shares in run.step_time.values())


def test_a_cell_that_is_not_observed_tells_nothing(worlds):
    run = worlds(2).run(LOOP + "train(10)", view=None, timeout=PATIENCE, step_time=False)

    assert run.outcome == "ok"
    assert (run.step_time, run.slow, run.spent) == ({}, [], {})


PROFILED = """
model = DDP(torch.nn.Sequential(*[torch.nn.Linear(1000, 1000) for _ in range(4)]))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
batches = iter(torch.utils.data.DataLoader(Data(0.0008), batch_size=64))
widen = torch.randn(256, 1000)
def loop(seconds):
    began, step = time.monotonic(), 0
    while True:
        with record_function("own data"):
            x = next(batches)
        with record_function("own forward"):
            loss = model(x @ widen).pow(2).mean()
        with record_function("own backward"):
            loss.backward()
        with record_function("own optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        with record_function("own communication"):
            over = torch.tensor([float(time.monotonic() - began > seconds)])
            dist.all_reduce(over)  # so all ranks make as many steps
        step += 1
        if over.item():
            return
loop(1)
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    with record_function("own loop"):
        loop(30)
events = profiler.events()
main = next(one.thread for one in events if one.name == "own loop")
events = [one for one in events if one.thread == main]
def took(name):
    return sum(one.time_range.elapsed_us() for one in events if one.name == name)
parts = {part: took("own " + part) for part in ("data", "forward", "backward", "optimizer", "communication")}
# The backward pass has an event for each of its nodes; between them, and after the last one, it waits.
nodes = sum(one.time_range.elapsed_us() for one in events if one.name.startswith("autograd::engine::evaluate_function"))
parts["communication"] += parts["backward"] - nodes
parts["backward"] = nodes
{part: spent / took("own loop") for part, spent in parts.items()}
"""


@pytest.mark.slow
def test_the_shares_are_those_of_the_profiler(worlds):
    """Of the same loop, within five points each."""
    run = worlds(2).run(LOOP + PROFILED, view=None, timeout=3 * PATIENCE)
    assert run.outcome == "ok", run.text(0)

    for rank, expected in values(run).items():
        seen = run.fold.step_times.ranks[rank].whole
        print(rank, {part: (round(run.step_time[rank].get(part, 0), 3), round(expected[part], 3)) for part in expected})
        print(seen.looks, "looks in", seen.seconds, "s")
        assert {part: run.step_time[rank].get(part, 0.0) for part in expected} == pytest.approx(expected, abs=0.05)

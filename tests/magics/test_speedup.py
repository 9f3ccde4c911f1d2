"""``%%speedup`` and ``jupyter_dtrain.speedup``: a cell at several sizes of a world."""

from __future__ import annotations

import importlib.util
import re

import pytest

import jupyter_dtrain
from jupyter_dtrain import BadRequest, BadSyntax
from jupyter_dtrain.launch.worlds import list_worlds

pytestmark = pytest.mark.slow

PATIENCE = 240
NAP = """
import os, time
time.sleep(1.2 / int(os.environ["WORLD_SIZE"]))
"""
LOOP = """
import os, time, torch, torch.distributed as dist, jupyter_dtrain
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
class Numbers(Dataset):
    def __init__(self, nap):
        self.nap = nap
    def __len__(self):
        return 64
    def __getitem__(self, place):
        time.sleep(self.nap)
        return torch.full((4,), float(place))
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
def train(loader, nap=0.0):
    for batch in loader:
        time.sleep(nap)
        model(batch).mean().backward()
        optimizer.step()
"""
torch_only = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture(autouse=True)
def nothing_left(home):
    """Each test's worlds have ended, whatever happened in them."""
    yield
    assert [world.name for world in list_worlds() if world.name.startswith("speedup")] == []


def test_halved_work_is_twice_as_fast():
    """Sleep scales as it should, on any machine."""
    told = []
    found = jupyter_dtrain.speedup(NAP, [1, 2], repeats=2, warmup=0, progress=lambda so_far: told.append(so_far.now))

    one, two = found.sizes
    assert one.seconds == pytest.approx(1.2, abs=0.6)
    assert 1.2 < found.speedup(two) < 2.4
    low, high = found.speedup_span(two)
    assert low <= found.speedup(two) <= high
    assert one.share("communication") < 0.2
    assert [word for word in told if word] == [
        "1 rank: starting a world",
        "1 rank: run 1 of 2",
        "1 rank: run 2 of 2",
        "2 ranks: starting a world",
        "2 ranks: run 1 of 2",
        "2 ranks: run 2 of 2",
    ]
    assert len(found.to_pandas()) == 4


def test_a_cell_that_fails_at_one_size_is_named_and_the_others_are_kept():
    code = "import os\nassert os.environ['WORLD_SIZE'] != '2', 'two is odd'"
    found = jupyter_dtrain.speedup(code, [2, 1], repeats=1, warmup=0)

    assert [(size.ranks, len(size.repeats)) for size in found.sizes] == [(2, 0), (1, 1)]
    assert "two is odd" in found.sizes[0].failure
    assert found.conclusions()[0].startswith("2 ranks: the cell failed: AssertionError: two is odd")


def test_a_cell_that_lacks_a_name_is_told_that_it_runs_in_fresh_worlds():
    """The notebook's imports are not there."""
    found = jupyter_dtrain.speedup("DDP", [1], repeats=1, warmup=0)

    assert re.search(r"NameError.*DDP.* The cell runs in fresh worlds.*imports", found.sizes[0].failure)


def test_a_run_that_takes_too_long_ends_its_size():
    code = "import os, time\nwhile os.environ['WORLD_SIZE'] == '1':\n    time.sleep(0.1)"
    found = jupyter_dtrain.speedup(code, [1, 2], repeats=1, warmup=0, timeout=8)

    assert [(size.failure, len(size.repeats)) for size in found.sizes] == [
        ("the cell took longer than 8 s", 0),
        ("", 1),
    ]
    assert not found.interrupted


@torch_only
def test_a_batch_is_divided_and_a_slow_rank_and_slow_data_are_named():
    """The cell gets its batch as a variable; each size trains on all the data."""
    slow = LOOP + "train(jupyter_dtrain.shard(DataLoader(Numbers(0), batch_size=batch_size)), nap=0.15 * rank)"
    found = jupyter_dtrain.speedup(slow, [2], global_batch=16, repeats=1)
    (size,) = found.sizes
    assert (size.batch, size.steps) == (8, 4)
    waits = size.waits()
    assert waits[0] > waits[1] + 0.1
    assert size.share("slow rank") > 0.05

    late = LOOP + "train(jupyter_dtrain.shard(DataLoader(Numbers(0.02), batch_size=batch_size)))"
    found = jupyter_dtrain.speedup(late, [1, 2], per_rank_batch=8, repeats=1)
    assert [(size.batch, size.steps) for size in found.sizes] == [(8, 8), (8, 4)]
    assert found.sizes[0].share("data") > 0.4
    assert not found.grows


@torch_only
def test_a_cell_with_a_batch_of_its_own_is_told_so():
    code = LOOP + "train(jupyter_dtrain.shard(DataLoader(Numbers(0), batch_size=16)))"
    found = jupyter_dtrain.speedup(code, [2], per_rank_batch=32, repeats=1, warmup=0)

    assert found.sizes[0].notes[-1].startswith("a rank reads 16 samples a step, not batch_size = 32")


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
def test_a_deepspeed_cell_is_measured():
    code = """
import os
os.environ["CXX"] = "no-such-compiler"  # nothing is compiled
import deepspeed, jupyter_dtrain, torch
from torch import nn
from torch.utils.data import DataLoader
torch.set_num_threads(1)
torch.manual_seed(0)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)
    def forward(self, x):
        return self.layer(x).square().mean()
model = Model()
config = {
    "train_micro_batch_size_per_gpu": batch_size,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}
deepspeed.init_distributed("gloo")
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=config)
for x in jupyter_dtrain.shard(DataLoader(torch.randn(64, 8), batch_size=batch_size)):
    engine.backward(engine(x))
    engine.step()
"""
    found = jupyter_dtrain.speedup(code, [1, 2], global_batch=16, repeats=1)

    assert [size.failure for size in found.sizes] == ["", ""]
    assert [(size.batch, size.steps) for size in found.sizes] == [(16, 4), (8, 4)]
    assert all(0 <= size.share("communication") <= 1 for size in found.sizes)
    assert found.speedup(found.sizes[1]) > 0


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((NAP, "1 2"), {}, "whole numbers, such as"),
        ((NAP, [1, "2"]), {}, "whole number of ranks above 0, not '2'"),
        ((NAP, [0]), {}, "above 0, not 0"),
        ((NAP, []), {}, "Name the sizes"),
        ((NAP, [1, 1000]), {}, "1000 ranks are too many"),
        ((NAP, [1, 2, 3]), {"global_batch": 64}, "A batch of 64 cannot be divided among 3 ranks"),
        ((NAP, [1]), {"global_batch": 64, "per_rank_batch": 8}, "not both"),
        ((NAP, [1]), {"per_rank_batch": 0}, "a whole number of samples above 0, not 0"),
        ((NAP, [1]), {"repeats": 0}, "repeats must be at least 1"),
        (("", [1]), {}, "The cell is empty"),
        ((NAP, [1]), {"start": {"n": 3}}, "decides itself about n"),
        ((NAP, [1]), {"start": {"colour": "red"}}, "There is no option 'colour'"),
        ((NAP, [8]), {"start": {"hosts": "a:2,b:2"}}, "too few for 8 ranks"),
    ],
)
def test_bad_requests_start_no_world(arguments, options, words):
    with pytest.raises(BadRequest, match=words):
        jupyter_dtrain.speedup(*arguments, **options, progress=lambda _: pytest.fail("a world was started"))


def test_a_cell_that_does_not_parse_starts_no_world():
    with pytest.raises(BadSyntax):
        jupyter_dtrain.speedup("for", [1])


def test_a_notebook_shows_the_report_and_its_own_world_is_left_alone(notebook):
    notebook.ok("%distributed start -n 1")
    notebook.ok("%%distributed\nkept = 7")
    whole = notebook.ok(f"%%speedup 1 2 --repeats 1 --warmup 0 -o report\n{NAP}", PATIENCE)
    again = notebook.ok("%%distributed\nprint('still', kept)")
    said = notebook.ok("print(len(report.measured), report.sizes[0].ranks, report.interrupted)")

    (text,) = whole.display_texts
    lines = text.splitlines()
    assert lines[0] == "Scaling of a cell: batch fixed by the cell, measured once"
    assert [line.split()[0] for line in lines[2:4]] == ["1", "2"]
    assert any(line.startswith("2 ranks: ") for line in lines)
    assert "still 7" in again.out
    assert "2 1 False" in said.out


def test_wrong_lines_and_help_in_a_notebook(notebook):
    helped = notebook.ok("%%speedup -h\nx")
    words = notebook.run("%%speedup one two\nx = 1")
    both = notebook.run("%%speedup 1 --global-batch 4 --per-rank-batch 4\nx = 1")
    start = notebook.run("%%speedup 1 --slurm --hosts a:1\nx = 1")

    assert "each say where the ranks run" in start.said
    assert "--per-rank-batch" in helped.out
    assert "'one' is not a whole number above 0" in words.said
    assert "not allowed with argument" in both.said


def test_stop_ends_the_measurement_and_keeps_what_is_there(notebook):
    code = "import os, time\nwhile os.environ['WORLD_SIZE'] == '2':\n    time.sleep(0.1)"
    cell = notebook.send(f"%%speedup 1 2 --repeats 1 --warmup 0 -o report\n{code}")
    cell.wait_for(lambda one: any("now 2 ranks: run 1 of 1" in text for text in one.display_texts), PATIENCE)
    notebook.interrupt()
    cell.wait(PATIENCE)
    said = notebook.ok("print(report.interrupted, [len(size.repeats) for size in report.sizes])")

    assert "True [1, 0]" in said.out

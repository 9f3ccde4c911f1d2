"""A version of PyTorch that lacks what this package changes: it imports and trains, and cells say once what is lost."""

from __future__ import annotations

import importlib.util
import os

import pytest

from tests.session.cells import run, same, texts, values

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

HIDER = """
import sys, types
import wrapt
from jupyter_dtrain.frameworks import Framework

class Hidden(types.ModuleType):
    '''Has no private names for this package; torch itself finds them.'''

    def __getattribute__(self, name):
        if name.startswith("_") and not name.startswith("__"):
            asks = sys._getframe().f_back
            if asks is not None and str(asks.f_globals.get("__name__")).startswith("jupyter_dtrain."):
                raise AttributeError(f"module {types.ModuleType.__getattribute__(self, '__name__')!r} has no {name}")
        return super().__getattribute__(name)

def hide(module):
    module.__class__ = Hidden

class Hider(Framework):
    name = "a-hider"

    def prepare(self):
        parts = ("", ".utils.data.dataloader", ".distributed.distributed_c10d", ".distributed.rendezvous")
        parts += (".distributed.rpc.api", ".distributed.rpc", ".distributed.pipelining.schedules")
        for part in parts:
            wrapt.register_post_import_hook(hide, f"torch{part}")
"""
TRAIN = """
import os
import torch, torch.distributed as dist, torch.distributed.rpc as rpc, torch.distributed.pipelining
from torch.nn.parallel import DistributedDataParallel
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2):
    loss = (model(x * (rank + 1)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
total = model.module.weight.detach().sum()
dist.all_reduce(total)
torch.allclose(total, 2 * model.module.weight.sum())
"""
CALL = """
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
answer = rpc.rpc_sync(f"worker{1 - rank}", int, args=(7,))
rpc.shutdown()
answer
"""
LOST = (
    "'torch.utils.data.dataloader' has no _BaseDataLoaderIter): samples/s and the batch of all ranks are not shown.",
    "has no _world, _new_process_group_helper): a process group is torch's own, so init_process_group() works once,",
    "_ignore_rref_leak, _finalize_shutdown): torch.distributed.rpc is torch's own, so init_rpc() works once,",
    "has no _PipelineSchedule): a pipeline shows the values given to backward(), and no steps.",
    "has no _PipelineSchedule): what the stages of a pipeline compute is not shown.",
    "has no _PipelineStageBase): transfers of a pipeline are not shown.",
)


@pytest.fixture
def other_torch(launch, tmp_path, monkeypatch):
    """A world of two ranks whose torch has no private names for this package."""
    (tmp_path / "a_hider.py").write_text(HIDER)
    info = tmp_path / "a_hider-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-hider\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[jupyter_dtrain.frameworks]\na-hider = a_hider:Hider\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    session = launch(n=2)
    yield session
    session.stop()


@pytest.mark.slow
def test_a_torch_without_what_is_private_trains_and_cells_say_once_what_is_lost(other_torch):
    """``import torch``, DDP, losses and a plain rpc go on."""
    runs = [run(other_torch, code) for code in (TRAIN, CALL, "rank")]

    assert [values(one) for one in runs] == [same(True, 2), same(7, 2), {0: 0, 1: 1}]
    assert [len(points.values) for points in runs[0].metrics["loss"].values()] == [2, 2]
    for rank in (0, 1):
        first, *later = (texts(one)[rank] for one in runs)
        assert [(words, first.count(words)) for words in LOST] == [(words, 1) for words in LOST]
        assert "%distributed info names the tested version." in first
        assert "lacks parts that jupyter-dtrain uses" not in "".join(later)

"""Numbers are read from tensors as they were at the call, without a wait for a device."""

from __future__ import annotations

import pytest

from tests.frameworks.torch_curves import PATIENCE, curve, losses, points, train


def test_a_value_is_the_one_at_the_call(torch_pair):
    """Later changes of the tensor do not matter; type and shape do not matter either."""
    code = """
model, optimizer = make()
noted = []
for kind in (torch.float64, torch.bfloat16, torch.float16):
    for shape in ((), (1,), (1, 1)):
        loss = lose(model).to(kind).reshape(shape)
        loss.backward()
        noted.append(loss.item())
        loss.detach().fill_(9.)
        optimizer.step()
noted
"""
    run, noted = train(torch_pair, code)

    assert points(run, "loss") == curve(noted[0])


def test_sharded_training_shows_each_ranks_own_loss(torch_pair):
    """The gradients of FSDP2 are DTensors: their norm is that of the local shards."""
    code = """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group('gloo')
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
noted, norms = [], []
for _ in range(3):
    optimizer.zero_grad()
    loss = model(torch.full((2, 6), rank + 1.)).square().mean()
    loss.backward()
    norms.append(sum(p.grad.to_local().square().sum().item() for p in model.parameters()) ** 0.5)
    optimizer.step()
    noted.append(loss.item())
dist.destroy_process_group()
noted, norms
"""
    run, results = train(torch_pair, code, None, grad_norm=True)

    for rank, (noted, norms) in results.items():
        assert points(run, "loss", rank) == curve(noted)
        assert points(run, "grad_norm", rank) == curve(norms)
    assert results[0][0] != results[1][0]


def test_the_training_loop_never_waits_for_a_device(torch_pair):
    """torch's lazy device computes nothing before a read, and the cell's thread reads nothing."""
    code = """
import torch._lazy, torch._lazy.ts_backend
import jupyter_dtrain
torch._lazy.ts_backend.init()
waited, kept, true, norms = [], [], [], []
def watch(name):
    original = getattr(torch.Tensor, name)
    def call(tensor, *args, **kwargs):
        if tensor.device.type == 'lazy' and threading.current_thread() is threading.main_thread():
            waited.append(name)
        return original(tensor, *args, **kwargs)
    setattr(torch.Tensor, name, call)
    return lambda: setattr(torch.Tensor, name, original)
undo = [watch(name) for name in ('item', 'tolist', 'cpu', '__float__', '__bool__', '__int__')]
model = nn.Linear(3, 1).to('lazy')
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index in range(12):
    loss = model(torch.randn(4, 3).to('lazy')).square().mean()
    true.append(loss.detach().clone())
    loss = loss / 4
    jupyter_dtrain.log(logged=loss)
    loss.backward()
    loss.detach().fill_(9.)
    if index % 4 == 3:
        norms.append(torch.stack([p.grad.square().sum() for p in model.parameters()]).sum().sqrt())
        optimizer.step()
        optimizer.zero_grad()
        whole = model(torch.ones(1, 3, device='lazy')).sum()
        kept.append(whole.detach().clone())
        whole.backward()
        optimizer.step()
        optimizer.zero_grad()
found = list(waited)
for call in undo: call()
found
"""
    run, waited = train(torch_pair, code, grad_norm=True)
    _, noted = train(torch_pair, "[[one.item() for one in each] for each in (true, kept, norms)]")
    true, kept, norms = noted[0]

    assert waited == {0: []}
    assert points(run, "loss") == [(step, pytest.approx(sum(true[2 * step : 2 * step + 4]) / 4)) for step in (0, 2, 4)]
    assert points(run, "whole") == [(2 * index + 1, pytest.approx(value)) for index, value in enumerate(kept)]
    assert points(run, "logged") == curve([value / 4 for value in true])
    assert points(run, "grad_norm")[::2] == [(2 * index, pytest.approx(value)) for index, value in enumerate(norms)]


def test_a_complex_loss_is_complained_about_once(torch_pair):
    code = """
z = torch.ones((), dtype=torch.complex64, requires_grad=True)
for _ in range(3):
    loss = z * 2
    loss.backward(torch.ones((), dtype=torch.complex64))
"""
    run = torch_pair.run(code, 0, view=None, timeout=PATIENCE)

    assert losses(run) == []
    assert run.text(0).count("'loss' is left out: it is complex") == 1


def test_logged_tensors_are_read_later_and_odd_ones_left_out(torch_pair):
    """``log()`` with tensors of all kinds: the value is that of the call."""
    code = """
import jupyter_dtrain
value = torch.tensor([[2.5]], requires_grad=True)
with torch.no_grad():
    jupyter_dtrain.log(value=value, whole=torch.tensor(3), yes=torch.tensor(True), half=torch.tensor(0.5).half())
    value.fill_(7.)
jupyter_dtrain.log(three=torch.ones(3), none=torch.ones(0), turned=torch.tensor(1j))
"""
    run = torch_pair.run(code, 0, view=None, timeout=PATIENCE)

    assert {name: points(run, name)[0][1] for name in run.metrics} == {"value": 2.5, "whole": 3, "yes": 1, "half": 0.5}
    assert "'three' is left out: a tensor with 3 elements is not one number" in run.text(0)
    assert "'turned' is left out: it is complex" in run.text(0)


def test_no_graph_is_kept_alive(torch_pair):
    """Neither is an optimizer or a tensor of the user's."""
    code = """
import gc, weakref
model, optimizer = make()
for _ in range(3):
    loss = lose(model)
    loss.backward()
    optimizer.step()
gone = [weakref.ref(loss), weakref.ref(optimizer), weakref.ref(model)]
del loss, optimizer, model
gc.collect()
[one() is None for one in gone]
"""
    _, gone = train(torch_pair, code)

    assert gone == {0: [True, True, True]}

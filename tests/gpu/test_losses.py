"""Losses of a CUDA loop: they are the true ones, and neither the loop nor what it captures or compiles is disturbed."""

from __future__ import annotations

import importlib.util

import pytest

from tests.frameworks.torch_curves import curve, points
from tests.gpu.cells import PATIENCE
from tests.session.cells import run, values

pytestmark = pytest.mark.gpu


@pytest.fixture
def train(single):
    """Run a cell on one rank; the run, and the value of its last line."""

    def train(code, **options):
        cell = run(single, code, timeout=PATIENCE, **options)
        return cell, values(cell).get(0)

    return train


@pytest.mark.parametrize(
    "optimizer", ["SGD(weights, lr=0.1)", "Adam(weights, lr=torch.tensor(0.1).cuda(), fused=True)"]
)
def test_a_loop_is_never_made_to_wait_for_its_device(train, optimizer):
    """torch raises at each wait meanwhile, on every thread; the metrics are flushed in that time, with norms."""
    code = f"""
import jupyter_dtrain
model, _ = make()
weights = list(model.parameters())
optimizer = torch.optim.{optimizer}
data = batches(1)[0]
losses, norms = [], []
torch.cuda.set_sync_debug_mode("error")
try:
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        jupyter_dtrain.log(logged=loss)
        norms.append(torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()])))
        optimizer.step()
        losses.append(loss.detach().clone())
        time.sleep(0.01)
finally:
    torch.cuda.set_sync_debug_mode("default")
[one.item() for one in losses], [one.item() for one in norms]
"""
    cell, (losses, norms) = train(code, grad_norm=True)

    assert "[jupyter-dtrain]" not in cell.text(0)
    assert len(losses) > 20
    assert points(cell, "loss") == curve(losses)
    assert points(cell, "logged") == curve(losses)
    assert {round(value, 6) for _, value in points(cell, "lr")} == {0.1}
    assert points(cell, "grad_norm") == [(step, pytest.approx(norm, rel=1e-4)) for step, norm in enumerate(norms)]


def test_losses_on_a_stream_of_the_users_with_a_scaler_are_the_true_ones(train):
    """The third step overflows: it is a step that changes nothing."""
    code = """
model, optimizer = make()
scaler, kept, weights = torch.amp.GradScaler('cuda', init_scale=1024.), [], []
torch.cuda.synchronize()
with torch.cuda.stream(torch.cuda.Stream()):
    for index in range(30):
        optimizer.zero_grad()
        with torch.autocast('cuda', torch.float16):
            loss = model(torch.randn(16, 64, device=device)).float().square().mean()
        if index == 2:
            loss = loss * float('inf')
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        kept.append(loss.detach().clone())
        weights.append(model[0].weight.sum())
        loss.detach().fill_(9.)
torch.cuda.synchronize()
[one.item() for one in kept if one.isfinite()], (weights[1] == weights[2]).item(), kept[2].item() == float('inf')
"""
    cell, (noted, unchanged, overflowed) = train(code)
    found = points(cell, "loss")

    assert unchanged
    assert overflowed
    assert [step for step, _ in found] == [*range(30)]
    assert found[2] == (2, float("inf"))
    assert [value for step, value in found if step != 2] == pytest.approx(noted)


def test_graphed_callables_train_as_without_graphs(train):
    """Forward and backward are replayed as CUDA graphs inside a plain loop: equal losses, each of them shown."""
    code = """
data = batches(8)
plain = train(*make(), data)
model, optimizer = make()
model = torch.cuda.make_graphed_callables(model, (torch.zeros(16, 64, device=device),))
optimizer.zero_grad()
plain, train(model, optimizer, data)
"""
    cell, (plain, graphed) = train(code)

    assert graphed == pytest.approx(plain, rel=1e-4)
    assert [value for _, value in points(cell, "loss")] == pytest.approx([*plain, *graphed], rel=1e-4)


def test_a_graph_can_be_captured_while_losses_are_read(train):
    """The capture takes longer than the time between two flushes, and more losses come from its stream before it."""
    code = """
import jupyter_dtrain
stream = torch.cuda.Stream()
static = torch.ones(64, device=device)
torch.cuda.synchronize()
for _ in range(3):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        jupyter_dtrain.log(before=static.sum())
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(40):
            static.mul_(1.01)
            time.sleep(0.05)
    graph.replay()
    torch.cuda.synchronize()
    jupyter_dtrain.log(after=static.sum())
static.sum().item()
"""
    cell, total = train(code)
    each = [64 * 1.01 ** (40 * time) for time in range(4)]

    assert "[jupyter-dtrain]" not in cell.text(0)
    assert total == pytest.approx(each[3], rel=1e-3)
    assert [value for _, value in points(cell, "before")] == pytest.approx(each[:3], rel=1e-3)
    assert [value for _, value in points(cell, "after")] == pytest.approx(each[1:], rel=1e-3)


def test_a_whole_step_in_a_graph_runs_with_what_the_user_logs(train):
    """A replay calls no ``backward()``, so the cell logs the loss that the graph leaves; the capture shows none."""
    code = """
import jupyter_dtrain
data = batches(10)
plain = train(*make(), data)
model, optimizer = make()
static = data[0].clone()
warm, _ = make()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        warm(static).square().mean().backward()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    static_loss = model(static).square().mean()
    static_loss.backward()
    optimizer.step()
replayed = []
for batch in data:
    static.copy_(batch)
    graph.replay()
    jupyter_dtrain.log(replayed=static_loss)
    replayed.append(static_loss.clone())
    optimizer.zero_grad(set_to_none=False)
plain, [one.item() for one in replayed]
"""
    cell, (plain, replayed) = train(code)

    assert [value for _, value in points(cell, "replayed")] == pytest.approx(replayed)
    assert replayed == pytest.approx(plain, rel=1e-3)
    assert "static_loss" not in cell.metrics


def test_a_step_that_a_graph_captures_is_no_step(pair, snapshot_folder):
    """It is neither counted nor measured, checked or saved; what runs in a replay is the user's code alone."""
    code = """
data = batches(10)
def build():
    model, _ = make()
    return model, torch.optim.Adam(
        model.parameters(), lr=torch.tensor(0.01, device=device), fused=True, capturable=True
    )
def captured(model, optimizer, batch):
    loss = model(batch).square().mean()
    loss.backward()
    time.sleep(1.2)  # losses are read meanwhile
    optimizer.step()
def whole():
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        warm = train(model, optimizer, data[:1] * 3)
    torch.cuda.current_stream().wait_stream(side)
    static, graph = data[0].clone(), torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        captured(model, optimizer, static)
    for batch in data:
        static.copy_(batch)
        graph.replay()
    torch.cuda.synchronize()
    return warm, weights(model)
torch.manual_seed(100)
data = [torch.randn(16, 64, device=device) for _ in range(10)]
model, optimizer = build()
train(model, optimizer, data[:1] * 3 + data)
plain = weights(model)
model, optimizer = build()
plain
"""
    plain = values(run(pair, code, timeout=PATIENCE))
    pair.save("captured", ["model"], every=1)
    try:
        cell = run(pair, "whole()", timeout=PATIENCE, grad_norm=True, check="model", check_every=1)
    finally:
        pair.stop_saving()

    for rank, (warm, replayed) in values(cell).items():
        assert "[jupyter-dtrain]" not in cell.text(rank)
        assert replayed == pytest.approx(plain[rank], rel=1e-2, abs=1e-3)
        assert points(cell, "loss", rank) == curve(warm)
        assert len(points(cell, "grad_norm", rank)) == len(warm)
    assert cell.checked == 3
    assert cell.divergence is None


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: it is not installed")
def test_a_model_compiled_to_reduce_overhead_trains_as_without(train):
    """One graph, in spite of the hooks: ``fullgraph`` raises at a break, and none is counted."""
    code = """
from torch._dynamo.utils import counters
data = batches(12)
plain = train(*make(), data)
model, optimizer = make()
counters.clear()
compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
found = []
for batch in data:
    torch.compiler.cudagraph_mark_step_begin()
    found += train(compiled, optimizer, [batch])
plain, found, dict(counters["graph_break"])
"""
    cell, (plain, compiled, breaks) = train(code)

    assert breaks == {}
    assert compiled == pytest.approx(plain, rel=1e-3)
    assert [value for _, value in points(cell, "loss")] == pytest.approx([*plain, *compiled], rel=1e-4)


def test_pinned_batches_of_a_loader_are_counted_and_stay_pinned(train):
    """Workers load them, a thread of torch's pins them, and the copy to the device is the user's."""
    code = """
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(128, 64)), batch_size=16, num_workers=2, pin_memory=True)
model, optimizer = make()
pinned, losses = [], []
for (batch,) in loader:
    pinned.append(batch.is_pinned())
    losses += train(model, optimizer, [batch.to(device, non_blocking=True)])
all(pinned), losses
"""
    cell, (pinned, losses) = train(code)

    assert pinned
    assert len(losses) == 8
    assert points(cell, "loss") == curve(losses)
    assert "samples/s" in cell.metrics


def test_the_profiler_sees_the_users_kernels_and_no_copy_to_the_device_of_ours(train):
    """The data is on the device before. Losses come back in a few copies, not in one a step."""
    code = """
from torch.profiler import ProfilerActivity, profile
model, optimizer = make()
data = batches(40)
train(model, optimizer, data[:2])
losses = []
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
    for batch in data:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    torch.cuda.synchronize()
names = [event.name for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
copies = {way: sum(name.startswith(f"Memcpy {way}") for name in names) for way in ("HtoD", "DtoH")}
len(names), copies, [one.item() for one in losses]
"""
    cell, (kernels, copies, losses) = train(code)

    assert kernels > 40
    assert copies["HtoD"] == 0
    assert copies["DtoH"] < 10
    assert [value for _, value in points(cell, "loss")][2:] == pytest.approx(losses)


def test_no_device_memory_is_held_once_losses_are_read(train):
    """The copies of losses are as short-lived as the second in which they are collected."""
    held = "torch.cuda.synchronize(); torch.cuda.memory_allocated()"
    train("model, optimizer = make()\ndata = batches(60)\nlosses = train(model, optimizer, data)")
    before = train(held)[1]
    train("losses = train(model, optimizer, data)\nNone", grad_norm=True)

    assert train(held)[1] <= before

"""Two devices, one for each rank, over NCCL: ways to train in parallel, and ranks that fail in a collective."""

from __future__ import annotations

import os
import signal

import pytest

from jupyter_dtrain import Settings
from tests.frameworks.torch_curves import curve, points
from tests.gpu.cells import PATIENCE, START, SUM, Readings, driver, told
from tests.session.cells import Notes, begin, fail, hang, pids, run, same, until, values

pytestmark = pytest.mark.gpus(2)

PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
def alike():
    torch.manual_seed(7)
    return [torch.randn(16, 64, device=device) for _ in range(4)]
"""
DDP = """
model, optimizer = make()
model = DistributedDataParallel(model, device_ids=[device])
before = train(model, optimizer, batches(3))
"""


@pytest.fixture(scope="module")
def two(begun):
    """A group of NCCL's on two devices."""
    session = begun(2, settings=Settings(hang_notice=5))
    run(session, f"{PARALLEL}\ndist.init_process_group()")
    yield session
    if not session.closed:
        session.stop()


@pytest.fixture
def whole(two):
    """The same, with all of its ranks and a group that works."""
    if two.world.dead:
        two.replace()
        run(two, START, timeout=PATIENCE)
        run(two, f"{PARALLEL}\nif not dist.is_initialized(): dist.init_process_group()", timeout=PATIENCE)
    assert values(run(two, SUM, timeout=PATIENCE)) == same(2.0, 2)
    return two


def test_ddp_trains_over_nccl_and_shows_the_loss_of_each_rank(whole):
    cell = run(whole, f"{DDP}before", timeout=PATIENCE)

    assert values(run(whole, "dist.group.WORLD._get_backend(device).name()")) == same("nccl", 2)
    for rank, losses in values(cell).items():
        assert points(cell, "loss", rank) == curve(losses)


def test_ranks_read_their_own_device_and_hold_nothing_on_another(whole, meeting):
    """The thread that reads losses has used no device before; it must not make a context on the first one."""
    end = meeting / "end"
    code = f"""
held = torch.ones(1 << 28, device=device)
model, optimizer = make()
while not os.path.exists({str(end)!r}):
    train(model, optimizer, batches(1))
    time.sleep(0.05)
torch.cuda.memory_reserved()
"""
    view = Readings()
    cell = whole.run(code, wait=False, view=view)
    try:
        until(lambda: all((gpu := view.last.get(rank)) and (gpu.reserved or 0) >= 1 << 30 for rank in (0, 1)), PATIENCE)
        until(lambda: all(points(cell, "loss", rank) for rank in (0, 1)), PATIENCE)
        there = users(0)
    finally:
        end.touch()
    assert cell.wait(PATIENCE)
    run(whole, "del held")

    assert {rank: gpu.index for rank, gpu in view.last.items()} == {0: 0, 1: 1}
    # In a container the driver may know processes by other numbers: then this says nothing.
    assert pids(whole)[1] not in there


def users(device):
    """The processes of this machine that compute on a device, by NVML."""
    import pynvml as nvml

    nvml.nvmlInit()
    found = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(device))
    nvml.nvmlShutdown()
    return {one.pid for one in found}


def test_fsdp_trains_as_one_process(whole):
    code = """
plain = train(*make(), alike())
model, _ = make()
for layer in model:
    fully_shard(layer)
fully_shard(model)
found = train(model, torch.optim.SGD(model.parameters(), lr=0.1), alike())
plain, found
"""
    cell = run(whole, code, timeout=PATIENCE)
    for plain, found in values(cell).values():
        assert found == pytest.approx(plain, rel=1e-4)
    run(whole, "del model")


def test_tensor_parallel_layers_train_as_one_process(whole):
    code = """
plain = train(*make(), alike())
model, _ = make()
model = parallelize_module(model, init_device_mesh("cuda", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
found = train(model, torch.optim.SGD(model.parameters(), lr=0.1), alike())
plain, found
"""
    for plain, found in values(run(whole, code, timeout=PATIENCE)).values():
        assert found == pytest.approx(plain, rel=1e-4)
    run(whole, "del model")


def test_a_pipeline_is_one_loss_a_step_with_a_timeline(whole):
    """Times are those of launches on a GPU."""
    code = """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
torch.manual_seed(0)
parts = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()).to(device) for _ in range(2)]
features, targets = torch.ones(8, 64, device=device), torch.zeros(8, 64, device=device)
stage = PipelineStage(parts[rank], rank, 2, device)
schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(parts[rank].parameters(), lr=0.5)
for _ in range(3):
    schedule.step(*([features] if rank == 0 else []), **(dict(target=targets) if rank == 1 else {}))
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
"""
    cell = run(whole, code, timeout=PATIENCE)
    (timeline,) = cell.pipelines
    losses = [value for _, value in points(cell, "loss", 1)]

    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    assert (timeline.stages, timeline.microbatches) == (2, 4)


def test_context_parallel_attention_is_that_of_one_process(whole):
    code = """
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel
torch.manual_seed(0)
q, k, v = (torch.randn(2, 4, 64, 32, device=device, dtype=torch.bfloat16) for _ in range(3))
mesh = init_device_mesh("cuda", (2,))
with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
    expected = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).float()
    parts = [one.clone() for one in (q, k, v)]
    with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2, 2, 2]):
        part = nn.functional.scaled_dot_product_attention(*parts, is_causal=True).float().sum()
dist.all_reduce(part)
part.item(), expected.sum().item()
"""
    for found, expected in values(run(whole, code, timeout=PATIENCE)).values():
        assert found == pytest.approx(expected, abs=2.0)


@pytest.mark.parametrize(
    "wait", ["dist.barrier()", "total = torch.ones(1, device=device); dist.all_reduce(total); total.item()", None]
)
def test_a_rank_that_raises_frees_the_other_by_abort_and_the_same_ddp_goes_on(whole, wait):
    """The other waits in a collective, for a value, or trains; its processor polls. Three seconds, and no rank ends."""
    run(whole, DDP, timeout=PATIENCE)
    before = pids(whole)
    code = wait or "for _ in range(10_000):\n    train(model, optimizer, batches(1))"
    failed = fail(whole, f"if rank == 1: raise ValueError('a bug')\n{code}", timeout=PATIENCE)

    assert failed.errors[1].ename == "ValueError"
    assert failed.elapsed <= 3.0 + 1.0  # the grace of a release is 2 s; the last second is for the next collective
    assert pids(whole) == before
    again = run(whole, "train(model, optimizer, batches(3))", timeout=PATIENCE)
    for rank, losses in values(again).items():
        assert points(again, "loss", rank) == curve(losses)
    run(whole, "del model")


def test_a_wait_within_a_scaler_is_released_too(whole):
    """The scaler asks the device what it has found, in torch's own code."""
    code = """
scaler = torch.amp.GradScaler("cuda")
scaler.scale(model(batches(1)[0]).square().mean()).backward()
scaler.step(optimizer)
scaler.update()
torch.cuda.synchronize()
dist.barrier()
"""
    run(whole, DDP, timeout=PATIENCE)
    failed = fail(whole, f"if rank == 1: raise ValueError('a bug')\n{code}", timeout=PATIENCE)
    run(whole, "del model")

    assert failed.errors[1].ename == "ValueError"
    assert failed.elapsed <= 6.0


def test_a_killed_peer_is_named_and_healed(whole):
    """The one that waits for it is released by abort, and keeps its variables; the group spans both again."""
    run(whole, "kept = torch.ones(4, device=device) * 5")
    cell = begin(whole, "if rank == 1: time.sleep(600)\ndist.all_reduce(kept.clone())\ntorch.cuda.synchronize()")
    with driver() as memory:
        before = memory(1)
        os.kill(pids(whole)[1], signal.SIGKILL)
        until(lambda: memory(1) < before, 2.0)
    assert cell.wait(20)
    assert cell.outcome == "lost"
    assert "rank 1 was killed (SIGKILL)" in told(cell)

    whole.replace()
    run(whole, START, ranks=1, timeout=PATIENCE)
    assert values(run(whole, SUM, timeout=PATIENCE)) == same(2.0, 2)
    assert values(run(whole, "kept.sum().item()", ranks=0)) == {0: 20.0}


def test_a_stopped_peer_is_named_and_goes_on(whole):
    """SIGSTOP in a collective: nothing is ended, the notice says so, and SIGCONT lets the cell end well."""
    notes = Notes()
    code = "time.sleep(1)\ntotal = torch.ones(1, device=device)\ndist.all_reduce(total)\ntotal.item()"
    cell = whole.run(f"print('begun', flush=True)\n{code}", wait=False, view=notes)
    until(lambda: all(totals.bytes for totals in cell.totals.values()))
    os.kill(pids(whole)[1], signal.SIGSTOP)
    try:
        said = until(lambda: notes.words and notes.words[0], 30)
    finally:
        os.kill(pids(whole)[1], signal.SIGCONT)

    assert "Rank 1: stopped (SIGSTOP)" in said
    assert "Rank 0: waiting in item" in said
    assert cell.wait(30)
    assert values(cell) == same(2.0, 2)


def test_collectives_that_differ_are_named_from_the_recorder(whole):
    """NCCL has a recorder of its own."""
    code = """
t = torch.ones(3, device=device)
if rank == 1:
    dist.broadcast(t, 0)
else:
    dist.all_reduce(t)
torch.cuda.synchronize()
dist.barrier()
torch.cuda.synchronize()
"""
    said = "\n".join(hang(whole, code))

    assert "is not the same on all ranks" in said
    assert "all_reduce of float[3] on rank 0" in said
    assert "broadcast of float[3] on rank 1" in said


def test_two_ranks_on_one_device_learn_how_each_gets_its_own(begun):
    """NCCL finds it in the first collective."""
    session = begun(2)
    run(session, "torch.cuda.set_device(0)\ndevice = torch.device('cuda', 0)\ndist.init_process_group('nccl')")
    said = told(fail(session, "total = torch.ones(1, device=device); dist.all_reduce(total); total.item()"))
    session.stop()

    assert 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))' in said

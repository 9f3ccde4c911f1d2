"""Ranks, devices and groups: which device a rank has, which backend fits, and what its driver reports."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests import devices
from tests.frameworks.torch_curves import curve, points
from tests.gpu.cells import GIB, PATIENCE, START, SUM, Readings, driver, used
from tests.session.cells import fail, run, same, until, values

pytestmark = pytest.mark.gpu


def test_each_rank_has_the_device_of_its_local_rank(pair):
    """Ranks beyond the devices share them in turn, and each shows the readings of its own."""
    count = len(devices.look().names)
    own = [one % count for one in range(2)]

    assert [rank.device for rank in pair.world.ranks] == [f"cuda:{one}" for one in own]
    view = Readings()
    assert pair.run("time.sleep(2.5)", view=view, timeout=PATIENCE).outcome == "ok"
    assert [view.last[one].index for one in range(2)] == own
    assert values(run(pair, "int(os.environ['LOCAL_RANK'])")) == {0: 0, 1: 1}
    assert values(run(pair, "torch.cuda.current_device()")) == {0: 0, 1: 1 % count}


def test_a_world_of_one_rank_trains_over_nccl(single):
    """The group that fits, without a word about it; gloo beside it serves tensors on the processor."""
    run(single, "dist.init_process_group()")
    kinds = "[dist.group.WORLD._get_backend(torch.device(one)).name() for one in ('cuda', 'cpu')]"
    assert values(run(single, kinds)) == {0: ["nccl", "gloo"]}
    assert values(run(single, SUM)) == {0: 1.0}
    cell = run(
        single,
        "model, optimizer = make()\nmodel = DistributedDataParallel(model, device_ids=[device])\n"
        "train(model, optimizer, batches(6))",
    )
    assert points(cell, "loss") == curve(values(cell)[0])


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_share_a_device_train_over_gloo(begun, size):
    """Collectives and DDP on CUDA tensors; the weights stay the same on all ranks."""
    session = begun(size)
    run(session, "dist.init_process_group('gloo')")
    assert values(run(session, SUM)) == same(float(size), size)
    code = """
model, optimizer = make()
model = DistributedDataParallel(model, device_ids=[device])
losses = train(model, optimizer, batches(6))
found = [None] * size
dist.all_gather_object(found, weights(model))
losses, found.count(found[0]) == size
"""
    cell = run(session, code, timeout=PATIENCE)
    for rank, (losses, alike) in values(cell).items():
        assert alike
        assert points(cell, "loss", rank) == curve(losses)
    session.stop()


def test_more_ranks_than_devices_are_refused_under_nccl_with_what_works(begun):
    """At the set-up, not in the first collective; the fix that is named works."""
    count = len(devices.look().names)
    session = begun(count + 1)
    refused = fail(session, "dist.init_process_group('nccl')")
    words = refused.errors[0].evalue
    has = f"{count} GPU{'s' if count > 1 else ''}"
    assert f"NCCL needs one GPU for each rank, but the {count + 1} ranks of this host share {has}." in words
    assert f"%distributed start -n {count} starts one rank for each GPU." in words
    assert values(run(session, f"dist.init_process_group()\n{SUM}")) == same(count + 1.0, count + 1)
    session.stop()


def test_readings_agree_with_torch_and_nvidia_smi(single, meeting):
    """Memory that torch holds, memory in use, and the size of the device."""
    end = meeting / "end"
    code = f"""
held = torch.ones(2 << 28, device=device)
torch.cuda.synchronize()
print(torch.cuda.memory_reserved(), torch.cuda.get_device_properties(0).total_memory, flush=True)
while not os.path.exists({str(end)!r}):
    time.sleep(0.05)
"""
    view = Readings()
    cell = single.run(code, wait=False, view=view)
    try:
        until(lambda: cell.text(0).count("\n"), PATIENCE)
        reserved, total = map(int, cell.text(0).split())
        gpu = until(lambda: (found := view.last.get(0)) and found.reserved == reserved and found)
        smi = used()
    finally:
        end.touch()
    assert cell.wait(PATIENCE)
    run(single, "del held; torch.cuda.empty_cache()")

    assert reserved >= 2 * GIB
    assert gpu.used >= reserved
    assert gpu.used == pytest.approx(smi, abs=GIB // 4)
    assert gpu.total == pytest.approx(total, rel=0.05)
    assert gpu.index == 0


def test_the_device_memory_of_a_killed_rank_is_free_within_two_seconds(begun):
    """The other rank goes on, and a heal brings the world back."""
    session = begun(2)
    run(session, "held = torch.ones(1 << 30, device=device); torch.cuda.synchronize()", ranks=1)
    with driver() as memory:
        before = memory()
        session.kill(1)
        until(lambda: before - memory() >= 4 * GIB, 2.0)
    session.replace()
    run(session, START, timeout=PATIENCE)
    assert values(run(session, "torch.ones(2, device=device).sum().item()")) == same(2.0, 2)
    session.stop()


TWO = devices.why_not(2)
CUDA_OF_JAX = any(importlib.util.find_spec(f"jax_cuda{one}_plugin") for one in (12, 13))


@pytest.mark.skipif(not CUDA_OF_JAX, reason="needs JAX with CUDA: no jax_cuda12_plugin or jax_cuda13_plugin")
def test_ranks_of_jax_have_one_device_each_and_divide_its_memory(launch):
    """JAX takes three quarters of a GPU at once; ranks that share one must leave room for each other."""
    session = launch(n=2)
    code = """
import os, jax, jax.numpy as jnp
jax.config.update("jax_platforms", "cuda")
total = float((jnp.arange(1 << 20) % 7).sum())
stats = jax.local_devices()[0].memory_stats()
len(jax.local_devices()), total, stats["bytes_limit"], os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "")
"""
    found = values(run(session, code, timeout=PATIENCE))
    session.stop()
    count = len(devices.look().names)
    size = total_memory()
    for devices_of_rank, total, limit, fraction in found.values():
        assert devices_of_rank == 1
        assert total == pytest.approx(sum(one % 7 for one in range(1 << 20)))
        assert fraction == ("0.375" if count == 1 else "")
        assert limit <= size * (0.4 if count == 1 else 0.8)


@pytest.mark.skipif(not CUDA_OF_JAX, reason="needs JAX with CUDA: no jax_cuda12_plugin or jax_cuda13_plugin")
def test_the_only_rank_of_jax_has_all_devices(launch):
    session = launch(n=1)
    code = 'import jax\njax.config.update("jax_platforms", "cuda")\nlen(jax.devices())'
    assert values(run(session, code, timeout=PATIENCE)) == {0: len(devices.look().names)}
    session.stop()


@pytest.mark.parametrize("each", [1, pytest.param(2, marks=pytest.mark.skipif(bool(TWO), reason=TWO))])
def test_a_rank_with_gpus_of_its_own_sees_no_others(launch, each):
    """As many ranks as there are GPUs for; the backend that fits is NCCL, and it works."""
    count = len(devices.look().names)
    session = launch(n=count // each, gpus_per_rank=each)
    seen = "import os, torch, torch.distributed as dist\ndist.init_process_group()\ntorch.cuda.device_count()"
    assert values(run(session, seen, timeout=PATIENCE)) == same(each, count // each)
    kinds = "dist.group.WORLD._get_backend(torch.device('cuda')).name()"
    assert values(run(session, kinds)) == same("nccl", count // each)
    total = "x = torch.ones(1, device='cuda:0'); dist.all_reduce(x); x.item()"
    assert values(run(session, total, timeout=PATIENCE)) == same(float(count // each), count // each)
    session.stop()


def total_memory() -> int:
    """Bytes of the first device, by NVML."""
    import pynvml as nvml

    nvml.nvmlInit()
    size = int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).total)
    nvml.nvmlShutdown()
    return size


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow: it is not installed")
def test_ranks_of_tensorflow_see_one_device_each_and_take_memory_as_they_need_it(launch):
    session = launch(n=2)
    built = values(run(session, "import os, tensorflow as tf\ntf.test.is_built_with_cuda()", timeout=PATIENCE))
    if not built[0]:
        session.stop()
        pytest.skip("needs TensorFlow with CUDA: this one is built without it")
    code = """
tf.reduce_sum(tf.ones(8))
[one.device_type for one in tf.config.list_logical_devices("GPU")], os.environ["TF_FORCE_GPU_ALLOW_GROWTH"]
"""
    assert values(run(session, code, timeout=PATIENCE)) == same((["GPU"], "true"), 2)
    session.stop()


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow: it is not installed")
def test_the_only_rank_of_tensorflow_has_all_devices_for_a_mirrored_strategy(launch):
    session = launch(n=1)
    built = values(run(session, "import tensorflow as tf\ntf.test.is_built_with_cuda()", timeout=PATIENCE))
    if not built[0]:
        session.stop()
        pytest.skip("needs TensorFlow with CUDA: this one is built without it")
    code = "tf.distribute.MirroredStrategy().num_replicas_in_sync"
    assert values(run(session, code, timeout=PATIENCE)) == {0: len(devices.look().names)}
    session.stop()


def test_the_facts_of_a_rank_name_the_device(single):
    """``%distributed info`` asks no GPU, and names what torch has found."""
    (facts,) = (one for one in single.info(0).values() if one is not None)
    details = facts.frameworks["torch"].details

    assert details["GPUs"] == str(len(devices.look().names))
    assert re.fullmatch(r"\d+\.\d+(\.\d+)*", details["NCCL"])

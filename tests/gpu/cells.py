"""Cells that train on a CUDA device, and what tests ask of the driver beside the ranks."""

from __future__ import annotations

import re
import subprocess
from contextlib import contextmanager
from typing import Any

from jupyter_dtrain import DistributedError, RanksBusy
from jupyter_dtrain.core.causes import blocks
from jupyter_dtrain.core.events import Sample
from tests.session.cells import Notes
from tests.steward.until import until

PATIENCE = 120.0
"""Seconds for a cell; the first one of a rank loads the libraries of CUDA."""
GIB = 1 << 30

START = """
import os, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
rank, size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
device = torch.device("cuda", local_rank % torch.cuda.device_count())
torch.cuda.set_device(device)

def make(width=64, lr=0.1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=lr)

def batches(count, width=64):
    torch.manual_seed(100 + rank)
    return [torch.randn(16, width, device=device) for _ in range(count)]

def train(model, optimizer, data):
    kept = []
    for batch in data:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        kept.append(loss.detach().clone())
    return [one.item() for one in kept]

def weights(model):
    return [round(one.double().sum().item(), 6) for one in model.parameters()]
"""
"""Each rank takes the device of its local rank; ranks beyond the devices share them."""
SUM = "total = torch.ones(1, device=device); dist.all_reduce(total); total.item()"

ILLEGAL = '''
import ctypes
PTX = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry poke()
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    mov.u64 %rd1, 8;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""

def poke():
    """Write where nothing is: the driver itself compiles the kernel."""
    torch.zeros(1, device=device)
    cuda, module, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(ctypes.byref(module), PTX) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"poke") == 0
    assert cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
    torch.cuda.synchronize()
'''
"""A function that makes an illegal memory access; it needs no compiler."""

SLEEP = """
torch.cuda._sleep(1_000_000)
torch.cuda.synchronize()
began = time.perf_counter()
torch.cuda._sleep(200_000_000)
torch.cuda.synchronize()
cycles = 200_000_000 / (time.perf_counter() - began)

def busy(seconds):
    torch.cuda._sleep(int(seconds * cycles))
"""
"""``busy(seconds)``: a kernel that takes so long."""


class Readings(Notes):
    """A view that keeps what ranks read of their GPUs."""

    def __init__(self):
        super().__init__()
        self.last = {}

    def feed(self, batch, now):  # noqa: ARG002 — the protocol's shape
        """Keep the newest by rank."""
        for event in batch.events:
            if isinstance(event.body, Sample) and event.body.gpu is not None:
                self.last[batch.rank] = event.body.gpu


def told(run: Any) -> str:
    """The lines that a person reads when the cell has failed, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(blocks(DistributedError(run).run)))


def used(device: int = 0) -> int:
    """Bytes of memory in use on a device, by nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={device}"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    return int(said.split()[0]) << 20


@contextmanager
def driver():
    """NVML, which answers in a millisecond: ``ask(device)`` gives the bytes in use there."""
    import pynvml as nvml

    nvml.nvmlInit()
    handles: dict[int, Any] = {}

    def ask(device: int = 0) -> int:
        handle = handles.setdefault(device, nvml.nvmlDeviceGetHandleByIndex(device))
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)

    try:
        yield ask
    finally:
        nvml.nvmlShutdown()


def when_idle(session: Any, code: str, patience: float = PATIENCE) -> Any:
    """Run a cell as soon as all ranks take one."""

    def attempt() -> Any:
        try:
            return session.run(code, view=None, timeout=PATIENCE)
        except RanksBusy:
            return None

    return until(attempt, patience)

"""A rank's memory on CUDA devices, and errors when it runs out, with devices as torch would count them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from jupyter_dtrain.frameworks.torch.plugin import Torch  # noqa: E402


def test_the_memory_of_all_devices_counts(monkeypatch):
    """The thread that asks has another current device than user code, so none is asked for by default."""
    held = {0: 0, 1: 5_000, 2: 70}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(held))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: held[device])

    assert Torch().reserved() == 5_070


def test_a_rank_that_has_not_used_a_device_holds_nothing_there():
    """Not even the question may make CUDA begin."""
    assert Torch().reserved() is None


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("CUDA error: out of memory"), False),
    ],
)
def test_errors_that_say_that_memory_ran_out_are_known(error, ran_out):
    assert Torch().is_out_of_memory(error) is ran_out

"""Samples what a rank uses of its host, processor, memory and GPU, once a second while a cell runs.

GPUs answer through NVML, where its Python package and the driver exist; else a sample has no GPU. Nothing here raises:
a sample shows what a GPU did answer, and leaves out the rest.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import psutil

from jupyter_dtrain.core.events import Gpu, Sample

PERIOD = 1.0
"""Seconds between two samples."""


class Sampler:
    """Takes samples of this process while it is on; a thread of its own."""

    def __init__(
        self,
        emit: Callable[[Sample], object],
        step: Callable[[], int | None],
        reserved: Callable[[], int | None],
        gpu: GpuReader | None,
    ) -> None:
        """``step``: the newest step; ``reserved``: bytes of GPU memory that frameworks hold; ``gpu``: None without."""
        self._emit = emit
        self._step = step
        self._reserved = reserved
        self._gpu = gpu
        self._still: Callable[[], float] = float
        self._process = psutil.Process()
        self._host = psutil.virtual_memory().total
        self._on = threading.Event()
        self._off = threading.Event()
        threading.Thread(target=self._loop, name="dtrain-resources", daemon=True).start()

    def begin(self, still: Callable[[], float]) -> None:
        """A run begins. ``still``: seconds for which its cell has not moved."""
        self._still = still
        self._off.clear()
        self._on.set()

    def end(self) -> None:
        """The run ends."""
        self._on.clear()
        self._off.set()

    def _loop(self) -> None:
        while True:
            self._on.wait()
            spent, at = self._spent(), time.monotonic()
            while not self._off.wait(_pause()):
                before, since = spent, at
                spent, at = self._spent(), time.monotonic()
                # One sample may fail; the next may work.
                with contextlib.suppress(Exception):
                    self._emit(self._sample(100 * (spent - before) / (at - since)))

    def _spent(self) -> float:
        # An audit hook of the user's may refuse to open the file that says it, by any exception.
        with contextlib.suppress(Exception):
            times = self._process.cpu_times()
            return float(times.user + times.system)
        return 0.0

    def _sample(self, cpu: float) -> Sample:
        gpu = None if self._gpu is None else self._gpu.read(self._reserved())
        rss, still = self._process.memory_info().rss, round(self._still(), 1)
        return Sample(round(cpu, 1), rss, self._step(), gpu, still, self._host)


def _pause() -> float:
    """Seconds until the next sample. Metrics are flushed then, too, so that both leave the rank together."""
    rest = PERIOD - time.time() % PERIOD
    # A much shorter time would not measure the use of the processor.
    return rest if rest > PERIOD / 2 else rest + PERIOD


class GpuReader:
    """One GPU, through NVML."""

    def __init__(self, nvml: ModuleType, handle: Any, index: int) -> None:
        self._nvml = nvml
        self._handle = handle
        self._index = index

    @classmethod
    def of_rank(cls, local_rank: int, environ: Mapping[str, str] = os.environ) -> GpuReader | None:
        """The GPU that a rank uses by convention, the ``local_rank``-th visible one; None where there is none."""
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        names = None if visible is None else [name.strip() for name in visible.split(",") if name.strip()]
        try:
            import pynvml as nvml

            nvml.nvmlInit()
            if names is None:
                return cls(nvml, nvml.nvmlDeviceGetHandleByIndex(local_rank), local_rank)
            name = names[local_rank]
            if name.isdecimal():
                return cls(nvml, nvml.nvmlDeviceGetHandleByIndex(int(name)), local_rank)
            return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(name), local_rank)
        except Exception:  # noqa: BLE001 — no package, no driver, no such GPU: not available
            return None

    def read(self, reserved: int | None) -> Gpu | None:
        """The GPU as it is now; None when it does not even report its memory."""
        nvml, handle = self._nvml, self._handle
        # The newer form leaves out the part that the driver keeps for itself, as nvidia-smi does.
        memory = self._ask(lambda _: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        memory = memory or self._ask(nvml.nvmlDeviceGetMemoryInfo)
        if memory is None:
            return None
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates)
        temperature = self._ask(lambda _: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage)
        return Gpu(
            self._index,
            None if rates is None else float(rates.gpu),
            int(memory.used),
            int(memory.total),
            reserved,
            None if temperature is None else float(temperature),
            None if milliwatts is None else milliwatts / 1000,
        )

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        try:
            return question(self._handle)
        except Exception:  # noqa: BLE001 — a GPU need not know everything
            return None

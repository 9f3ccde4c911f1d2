"""Samples what a rank and its workers use of their host, processor, memory and GPU, once a second while a cell runs.

GPUs answer through NVML, where its Python package and the driver exist; else a sample has no GPU. Nothing here raises:
a sample shows what a GPU did answer, and leaves out the rest.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import psutil

from jupyter_dtrain.core.events import Body, Gpu, Sample
from jupyter_dtrain.core.gpus import visible_gpus

from .process_tree import workers

if TYPE_CHECKING:
    from .step_time import StepTimer

_Traffic = tuple[int | None, int | None, int | None, int | None]
"""Bytes that the host has read from disks, written to them, received and sent so far; None: unknown."""

FIRST = 0.1
"""Seconds of a run before the first look."""
PERIOD = 1.0
"""Seconds between two samples."""


class Sampler:
    """Takes samples of this rank and its workers while a run goes on, on a thread of its own."""

    def __init__(
        self,
        emit: Callable[[Body], object],
        step: Callable[[], int | None],
        reserved: Callable[[], int | None],
        gpu: GpuReader | None,
        services: Collection[str] = (),
    ) -> None:
        """``step``: the newest step; ``reserved``: bytes of GPU memory that frameworks hold; ``gpu``: None without.

        ``services``: words in the command lines of processes that are no workers.
        """
        self._emit = emit
        self._step = step
        self._reserved = reserved
        self._gpu = gpu
        self._services = tuple(services)
        self._timer: StepTimer | None = None
        self._known: dict[tuple[int, int], bool] = {}
        self._still: Callable[[], float] = float
        self._process = psutil.Process()
        self._host = psutil.virtual_memory().total
        self._on = threading.Event()
        self._off = threading.Event()
        threading.Thread(target=self._loop, name="dtrain-resources", daemon=True).start()

    def begin(self, still: Callable[[], float], timer: StepTimer) -> None:
        """Begin to take samples. ``still`` returns the seconds for which the run's cell has not moved.

        ``timer`` begins to observe the main thread at the first look, and is asked at each sample for what it has seen.
        """
        self._still, self._timer = still, timer
        self._off.clear()
        self._on.set()

    def end(self) -> None:
        """Take no more samples: the run ends."""
        self._on.clear()
        self._off.set()

    def _loop(self) -> None:
        while True:
            self._on.wait()
            # Most cells are over by then, and looking at all processes of the session takes longer than they do.
            if self._off.wait(FIRST):
                continue
            timer = self._timer
            if timer is not None:
                with contextlib.suppress(Exception):  # no thread can be started, say
                    timer.go()
            (own, family), at, traffic = self._spent(self._found()), time.monotonic(), _traffic()
            while not self._off.wait(_pause()):
                # One sample may fail; the next may work.
                with contextlib.suppress(Exception):
                    before, since, found, earlier = (own, family), at, self._found(), traffic
                    (own, family), at, traffic = self._spent(found), time.monotonic(), _traffic()
                    # Workers that somebody else has waited for have taken their time along.
                    spent = max(own - before[0], family - before[1])
                    sample = self._sample(100 * spent / (at - since), found, _rates(earlier, traffic, at - since))
                    self._emit(sample)
                    if timer is not None and (window := timer.take(sample.step)) is not None:
                        self._emit(window)

    def _found(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        # An audit hook of the user's may refuse to open the files that say it, by any exception.
        with contextlib.suppress(Exception):
            for pid in workers(self._services, self._known):
                with contextlib.suppress(psutil.Error):  # it has ended
                    found.append(psutil.Process(pid))
        return found

    def _spent(self, workers: list[psutil.Process]) -> tuple[float, float]:
        """Processor time of the rank alone; and with its workers, those that have ended included."""
        try:
            times = self._process.cpu_times()
        except Exception:  # noqa: BLE001 — as above
            return 0.0, 0.0
        own = float(times.user + times.system)
        family = own + times.children_user + times.children_system
        for worker in workers:
            with contextlib.suppress(psutil.Error):
                family += sum(worker.cpu_times()[:4])
        return own, family

    def _sample(self, cpu: float, workers: list[psutil.Process], rates: _Traffic) -> Sample:
        gpu = None if self._gpu is None else self._gpu.read(self._reserved())
        rss, still = self._process.memory_info().rss, round(self._still(), 1)
        held = []
        for worker in workers:
            with contextlib.suppress(psutil.Error):
                held.append(worker.memory_info().rss)
        return Sample(round(cpu, 1), rss, self._step(), gpu, still, self._host, len(held), sum(held), *rates)


def _traffic() -> _Traffic:
    """What has gone through the host's disks and networks; a container may see those of its host, or none."""
    disk: tuple[int | None, int | None] = None, None
    net: tuple[int | None, int | None] = None, None
    with contextlib.suppress(Exception):  # files of the system that are not there, or that an audit hook refuses
        if (disks := psutil.disk_io_counters()) is not None:
            disk = disks.read_bytes, disks.write_bytes
    with contextlib.suppress(Exception):
        cards = [card for name, card in psutil.net_io_counters(pernic=True).items() if name != "lo"]
        if cards:
            net = sum(card.bytes_recv for card in cards), sum(card.bytes_sent for card in cards)
    return *disk, *net


def _rates(before: _Traffic, now: _Traffic, seconds: float) -> _Traffic:
    """Bytes a second between two looks; a counter that was set back, as of a disk that has gone, counts as unknown."""
    read, written, received, sent = (
        None if one is None or other is None or other < one else round((other - one) / seconds)
        for one, other in zip(before, now, strict=True)
    )
    return read, written, received, sent


def _pause() -> float:
    """Seconds until the next sample. Metrics are flushed then, too, so that both leave the rank together."""
    rest = PERIOD - time.time() % PERIOD
    # A much shorter time would not measure the use of the processor.
    return rest if rest > PERIOD / 2 else rest + PERIOD


class GpuReader:
    """Reads one GPU through NVML."""

    def __init__(self, nvml: ModuleType, handle: Any, index: int) -> None:
        self._nvml = nvml
        self._handle = handle
        self._index = index

    @classmethod
    def of_rank(cls, local_rank: int, environ: Mapping[str, str] = os.environ, each: int = 0) -> GpuReader | None:
        """The GPU that a rank uses by convention, the ``local_rank``-th visible one; None where there is none.

        Ranks beyond the GPUs share them in turn, as :func:`~jupyter_dtrain.steward.state.rank_of` says. ``each``: how
        many GPUs the rank has of its own, of which this is the first; 0 where it sees those of all ranks.
        """
        names = visible_gpus(environ)
        try:
            import pynvml as nvml

            nvml.nvmlInit()
            index = local_rank % (nvml.nvmlDeviceGetCount() if names is None else len(names))
            if names is None:
                return cls(nvml, nvml.nvmlDeviceGetHandleByIndex(index), index)
            if each:  # the variable names the rank's own alone, and people know it by its place among all of them
                index = local_rank * each
            name = names[0 if each else index]
            if name.isdecimal():
                return cls(nvml, nvml.nvmlDeviceGetHandleByIndex(int(name)), index)
            return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(name), index)
        except Exception:  # noqa: BLE001 — no package, no driver, no such GPU: not available
            return None

    def name(self) -> list[str]:
        """The GPU's name and memory, such as ``NVIDIA H200 (139 GiB)``; nothing where it does not say them."""
        name, memory = self._ask(self._nvml.nvmlDeviceGetName), self._ask(self._nvml.nvmlDeviceGetMemoryInfo)
        if name is None:
            return []
        words = name.decode() if isinstance(name, bytes) else str(name)
        return [words if memory is None else f"{words} ({memory.total / (1 << 30):.0f} GiB)"]

    def read(self, reserved: int | None) -> Gpu | None:
        """Read what the GPU does now; None when it does not even report its memory."""
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

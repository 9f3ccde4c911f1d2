"""Samples of what a process takes of its host."""

from __future__ import annotations

import queue
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from jupyter_dtrain.core.events import Body, Gpu, Sample, StepParts
from jupyter_dtrain.rank import resources
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.rank.resources import GpuReader, Sampler
from jupyter_dtrain.rank.step_time import SHORTEST, StepTimer


@pytest.fixture
def samples(monkeypatch):
    """A sampler of this process, twenty times as often as in a rank, and what it says."""
    monkeypatch.setattr(resources, "PERIOD", 0.05)
    said: queue.Queue[Body] = queue.Queue()
    sampler = Sampler(said.put, lambda: 7, lambda: None, None)
    yield sampler, said
    sampler.end()


def timer(*, on):
    """Where the main thread spends a cell's time, observed or not."""
    made = StepTimer(Plugins([], print), lambda _: None)
    made.begin(on=on)
    return made


def test_a_sample_has_processor_memory_and_step(samples):
    """The units are per cent of a core and bytes; without a GPU it says so."""
    sampler, said = samples
    sampler.begin(lambda: 4.04, timer(on=False))
    sample = said.get(timeout=10)

    assert sample.rss == pytest.approx(psutil.Process().memory_info().rss, rel=0.5)
    assert sample.cpu >= 0
    assert (sample.step, sample.gpu, sample.still) == (7, None, 4.0)


def test_a_sample_has_what_went_through_disks_and_networks_of_the_host(samples, monkeypatch):
    """Bytes a second, without what stays within the host; what the system does not tell is left out."""
    counters = {"now": 0}

    def disks():
        counters["now"] += 1 << 40
        return SimpleNamespace(read_bytes=counters["now"], write_bytes=5)

    def cards(*, pernic):
        card = SimpleNamespace(bytes_recv=counters["now"], bytes_sent=10**9 - counters["now"])
        return {"lo": SimpleNamespace(bytes_recv=-counters["now"], bytes_sent=counters["now"]), "eth0": card}

    monkeypatch.setattr(psutil, "disk_io_counters", disks)
    monkeypatch.setattr(psutil, "net_io_counters", cards)
    sampler, said = samples
    sampler.begin(lambda: 0.0, timer(on=False))
    sample = said.get(timeout=10)
    assert sample.disk_read > 0
    assert (sample.disk_written, sample.net_sent) == (0, None)
    assert sample.net_received == sample.disk_read

    monkeypatch.setattr(psutil, "disk_io_counters", lambda: None)
    while sample.disk_read is not None:  # one that was taken before may still come
        sample = said.get(timeout=10)
    assert sample.disk_written is None


def test_a_busy_process_shows(samples):
    """A loop takes most of a core, a sleep nothing: the two samples are apart, however slow the machine."""
    sampler, said = samples
    sampler.begin(lambda: 4.04, timer(on=False))
    quiet = min(said.get(timeout=10).cpu for _ in range(5))
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=work)
    thread.start()
    busy = max(said.get(timeout=10).cpu for _ in range(20))
    stop.set()
    thread.join()

    assert busy > quiet + 5


def test_samples_are_taken_only_during_a_run(samples):
    """End, and begin again."""
    sampler, said = samples
    sampler.begin(lambda: 4.04, timer(on=False))
    said.get(timeout=10)
    sampler.end()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            said.get(timeout=0.5)
        except queue.Empty:
            break
    ended = said.empty()
    sampler.begin(lambda: 4.04, timer(on=False))

    assert ended
    assert said.get(timeout=10).step == 7


def test_what_the_main_thread_did_comes_after_the_sample_with_its_step(samples):
    """Only where it is observed, and as soon as there is enough of it."""
    sampler, said = samples
    observed = timer(on=True)
    sampler.begin(lambda: 0.0, observed)
    deadline = time.monotonic() + 10
    found = [said.get(timeout=10)]
    while not isinstance(found[-1], StepParts):
        assert time.monotonic() < deadline
        found.append(said.get(timeout=10))
    sampler.end()
    observed.end()

    assert isinstance(found[-2], Sample)
    assert found[-1].step == found[-2].step == 7
    assert found[-1].seconds >= SHORTEST


def refuse(*_):
    """NVML fails so where a card lacks a feature."""
    raise RuntimeError("Not Supported")


DRIVER = SimpleNamespace(
    NVML_TEMPERATURE_GPU=0,
    nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=3, total=10),
    nvmlDeviceGetTemperature=lambda *_: 41,
    nvmlDeviceGetUtilizationRates=refuse,
    nvmlDeviceGetPowerUsage=refuse,
)
"""The part of NVML that a reader asks, for a card that knows its memory and its temperature, and nothing else."""


def test_a_gpu_reports_the_facts_that_it_knows():
    """Facts that the driver does not know are not available."""
    assert GpuReader(DRIVER, None, 2).read(5) == Gpu(2, None, 3, 10, 5, 41.0, None)


def test_memory_that_the_driver_keeps_for_itself_is_not_in_use():
    """The newer form of the question leaves it out, as nvidia-smi does."""
    both = {None: 600, "v2": 3}
    ask = lambda _, version=None: SimpleNamespace(used=both[version], total=1000)  # noqa: E731 — NVML's shape
    driver = SimpleNamespace(**vars(DRIVER) | {"nvmlMemory_v2": "v2", "nvmlDeviceGetMemoryInfo": ask})

    assert GpuReader(driver, None, 0).read(None).used == 3


@pytest.mark.parametrize(
    ("visible", "local_rank", "handle", "index"),
    [(None, 1, 1, 1), (None, 3, 1, 1), ("5,GPU-b", 0, 5, 0), ("5,GPU-b", 3, "GPU-b", 1)],
)
def test_ranks_beyond_the_gpus_share_them_in_turn(monkeypatch, visible, local_rank, handle, index):
    """So each reads the GPU that the table of ranks names."""
    ways = {f"nvmlDeviceGetHandleBy{way}": lambda which: which for way in ("Index", "UUID")}
    monkeypatch.setitem(
        sys.modules, "pynvml", SimpleNamespace(nvmlInit=list, nvmlDeviceGetCount=lambda: 2, **vars(DRIVER) | ways)
    )
    reader = GpuReader.of_rank(local_rank, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})

    assert reader._handle == handle
    assert reader.read(None).index == index


def test_a_rank_with_gpus_of_its_own_shows_the_first_by_its_place_among_all(monkeypatch):
    """The variable names its own alone."""
    ways = {f"nvmlDeviceGetHandleBy{way}": lambda which: which for way in ("Index", "UUID")}
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=list, nvmlDeviceGetCount=lambda: 4, **ways))
    reader = GpuReader.of_rank(1, {"CUDA_VISIBLE_DEVICES": "6,7"}, each=2)

    assert (reader._handle, reader._index) == (6, 2)


@pytest.mark.parametrize("visible", ["", "-1", "GPU-none", "99"])
def test_without_such_a_gpu_there_is_none(visible):
    """No driver, nothing visible, no such card: not available, and no error."""
    assert GpuReader.of_rank(0, {"CUDA_VISIBLE_DEVICES": visible}) is None

"""A rank's DataLoaders while it trains: the size of their batches, and digests of the first ones.

A loader counts as one to train from once an optimizer steps on what it gave last, with gradients on. So a loader of
validation data does not, whichever way it is read. Batches between two steps of an optimizer are accumulation.

The cost to the training loop is a look into a dictionary for each batch, and about 0.1 ms for each of the first
:data:`DIGESTS` batches of a loader, of which at most :data:`VALUES` values a tensor are looked at. Batches on another
device are not: to read them the loop would have to wait.

Under failure: a batch that cannot be looked at has no digest, and a loader without digests is never warned about.
"""

from __future__ import annotations

import contextlib
import sys
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.events import Reading

if TYPE_CHECKING:
    from jupyter_dtrain.rank.metrics import MetricBuffer

    from .steps import Stepper

DIGESTS: Final = 4
"""Batches of a loader that are compared with those of other ranks."""
VALUES: Final = 4096
STEPS: Final = 64
"""Steps after which the accumulation is known."""
LOADERS: Final = 16
"""Loaders of one run that are followed."""
MOST_TURNS: Final = 256
"""Changes from one loader to another that are remembered."""
_OWN: Final = "jupyter_dtrain.frameworks.torch.samplers"
_DEPTH: Final = 4
_ITEMS: Final = 16
_TEXT: Final = 1000


class _Loader:
    """A loader that gave batches in this run."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler  # kept, so that no other object gets its id
        self.batch = 0
        self.iterations: int | None = None
        self.digests: list[int] = []
        self.looked = 0
        self.order: tuple[int, int] | None = None
        """What the order of the last epoch was drawn from, where only that decides."""
        self.repeats = False
        self.number: int | None = None
        """Counts the loaders that are trained from, in their order; None for others."""
        self.per_step: Counter[int] = Counter()
        """How often a step used so many samples."""
        self.replicas: list[int] | None = None
        self.reported: Reading | None = None


class LoaderReadings:
    """Follows the loaders of a run. The training loop calls :meth:`gives`, the thread that flushes metrics the rest."""

    def __init__(self, metrics: MetricBuffer) -> None:
        self._metrics = metrics
        self.begin()

    def begin(self) -> None:
        """Start a run."""
        self._loaders: dict[int, _Loader] = {}
        self._turns: list[tuple[int, _Loader]] = []
        """From which number of samples on which loader gave the samples."""
        self._last: _Loader | None = None
        self._before: dict[int, int] = {}
        """The samples at the last step of each optimizer."""
        self._numbers = 0

    def end(self) -> None:
        """End the run: let go of the user's objects, and keep the notes until :meth:`report` has sent them."""
        for loader in self._loaders.values():
            loader.sampler = None

    def gives(self, iterator: Any, batch: Any, size: int, samples: int) -> None:
        """Note a batch of ``size`` samples that a loader's ``iterator`` gives after ``samples`` others."""
        # The one thing that all iterators of a loader share.
        sampler = getattr(iterator, "_index_sampler", None)
        loader = self._loaders.get(id(sampler))
        if loader is None:
            if len(self._loaders) == LOADERS:
                return
            loader = self._loaders[id(sampler)] = _Loader(sampler)
            loader.iterations = _length(sampler)
        if getattr(iterator, "_num_yielded", 0) == 1:  # an epoch begins
            order = _order(sampler)
            loader.repeats = loader.repeats or (order is not None and order == loader.order)
            loader.order = order
        if loader is not self._last:
            self._last = loader
            self._turns.append((samples, loader))
        if loader.looked < DIGESTS:
            loader.looked += 1
            loader.batch = max(loader.batch, size)
            found = digest(batch)
            if found is not None:
                loader.digests.append(found)

    def stepped(self, stepper: Stepper, samples: int) -> None:
        """Note that an optimizer has stepped when ``samples`` had been given."""
        before = self._before.get(id(stepper), 0)
        if samples <= before:
            return
        self._before[id(stepper)] = samples
        turns = self._turns
        place = bisect_left(turns, samples, key=lambda turn: turn[0]) - 1
        if place < 0:
            return
        loader = turns[place][1]
        # Other loaders may have given batches for the same step.
        used, until = 0, samples
        for began, one in reversed(turns[: place + 1]):
            if one is loader:
                used += until - max(began, before)
            until = began
            if began <= before:
                break
        if loader.number is None:
            loader.number = self._numbers
            self._numbers += 1
            loader.replicas = stepper.replicas
        if loader.per_step.total() < STEPS:
            loader.per_step[used] += 1
        if place > MOST_TURNS:
            del turns[: place - MOST_TURNS // 2]

    def batches(self) -> dict[str, int]:
        """The batch of the first loader that is trained from, as hyper-parameters; empty without one.

        ``batch_size`` is that of a rank, ``global_batch`` that of a step of all replicas that are known.
        """
        first = next((one for one in list(self._loaders.values()) if one.number == 0 and one.batch), None)
        if first is None or not first.per_step:
            return {}
        ((used, _),) = first.per_step.most_common(1)
        accumulation, replicas = max(1, round(used / first.batch)), len(first.replicas or ())
        found = {"batch_size": first.batch}
        if accumulation > 1:
            found["accumulation"] = accumulation
        if replicas:
            found |= {"replicas": replicas, "global_batch": first.batch * accumulation * replicas}
        return found

    def report(self) -> None:
        """Report what is new."""
        for loader in list(self._loaders.values()):
            if loader.number is None or not loader.batch:
                continue
            ((used, _),) = loader.per_step.most_common(1)
            reading = Reading(
                loader=loader.number,
                batch=loader.batch,
                iterations=loader.iterations,
                accumulation=max(1, round(used / loader.batch)),
                replicas=loader.replicas,
                digests=loader.digests[:],
                repeats=loader.repeats,
            )
            if reading != loader.reported:
                loader.reported = reading
                self._metrics.send(reading)


def _order(batches: Any) -> tuple[int, int] | None:
    """The seed and the epoch from which a :class:`DistributedSampler` has shuffled; None for any other sampler."""
    sampler = getattr(batches, "sampler", None)
    module = sys.modules.get("torch.utils.data.distributed")
    if module is None or not isinstance(sampler, module.DistributedSampler) or not sampler.shuffle:
        return None
    drawn_by = getattr(type(sampler).__iter__, "__module__", "")
    return (sampler.seed, sampler.epoch) if drawn_by in (module.__name__, _OWN) else None


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except Exception:  # noqa: BLE001 — of a stream, or the user's own
        return None


def digest(batch: Any) -> int | None:
    """A number that batches with the same values have; None where nothing in ``batch`` can be looked at."""
    with contextlib.suppress(Exception):  # a tensor without values, or a class of the user's
        return _digest(batch, 0, 0) or None
    return None


def _bytes_of(numbers: Any) -> bytes:
    try:
        found: bytes = numbers.numpy().tobytes()
    except RuntimeError:  # there is no numpy
        return bytes(numbers.tolist())
    return found


def _digest(value: Any, found: int, depth: int) -> int:
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        if not value.is_cpu or value.layout is not torch.strided or not value.numel():
            return found
        flat = value.detach().reshape(-1)[:: max(1, value.numel() // VALUES)][:VALUES].contiguous()
        return zlib.crc32(_bytes_of(flat.view(torch.uint8)), found)
    if isinstance(value, (str, int, float)):
        return zlib.crc32(repr(value)[:_TEXT].encode("utf-8", "replace"), found)
    if depth == _DEPTH:
        return found
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    for _, item in zip(range(_ITEMS), items, strict=False):
        found = _digest(item, found, depth + 1)
    return found

"""The readings of all ranks from their data loaders, folded: how large a step's batch is, and whether it is one.

A rank reports a :class:`~jupyter_dtrain.core.events.Reading` for each loader that it trains from. Only their comparison
tells how the ranks divide the work:

* the samples of one step of all replicas together, and the factors of that number;
* that all replicas read the same samples, which makes more ranks useless. The digests of their first batches show it,
  whatever the loader and its sampler are called. One loader whose batches are all alike shows nothing;
* that a sampler, which shuffles by the number of the epoch, was not told that a new one began.

Ranks that hold parts of one model (tensor and pipeline parallel) must read the same. So only ranks whose gradients are
averaged are compared, and only if all of them agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from .events import Reading
from .world import count_ranks, quantity

MOST: Final = 4
"""Loaders of a run that are described."""

ENOUGH: Final = 2
"""First batches that must be alike on all ranks, and differ from each other."""


_REPEATS: Final = (
    "Every epoch reads its samples in the same order, though they are shuffled. Call loader.sampler.set_epoch(epoch) "
    "before each epoch."
)


class ReadingLine(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One sentence about how a run reads its data."""

    words: str
    fault: int
    """1 if it is a warning, else 0."""
    anchor: str = ""
    """Of the notice that explains a warning, see :mod:`.notices`."""


class Readings:
    """The newest report of each rank about each of its loaders."""

    def __init__(self) -> None:
        self._found: dict[int, dict[int, Reading]] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def take(self, rank: int, reading: Reading) -> None:
        """Take a report; a newer one of the same loader replaces it."""
        self._found.setdefault(reading.loader, {})[rank] = reading

    @property
    def batches(self) -> dict[int, int]:
        """Samples that each rank reads for one step from the first loader, by rank."""
        first = self._found.get(min(self._found, default=0), {})
        return {rank: one.batch * one.accumulation for rank, one in first.items()}

    @property
    def batch(self) -> int | None:
        """Samples that a rank reads for one step from the first loader; None where no loader is seen."""
        return next(iter(self.batches.values()), None)

    @property
    def accumulation(self) -> int:
        """Batches of the first loader that ranks read for one step; 1 where no loader is seen."""
        first = self._found.get(min(self._found, default=0), {})
        return max((one.accumulation for one in first.values()), default=1)

    def lines(self, microbatches: int = 0) -> list[ReadingLine]:
        """Sentences on how the run reads its data. ``microbatches``: of a pipeline's step; 0 without a pipeline."""
        lines = []
        for number in sorted(self._found)[:MOST]:
            by_rank = dict(sorted(self._found[number].items()))
            begin = f"Loader {number + 1}: " if len(self._found) > 1 else ""
            lines.append(ReadingLine(begin + _arithmetic(by_rank, microbatches), 0))
            if same := _alike(by_rank):
                lines.append(ReadingLine(begin + _warning(same), 1, "same-data"))
            if any(reading.repeats for reading in by_rank.values()):
                lines.append(ReadingLine(begin + _REPEATS, 1, "same-order-in-every-epoch"))
        return lines


def _arithmetic(by_rank: Mapping[int, Reading], microbatches: int) -> str:
    """``Global batch 128 = 4 replicas x 16 samples x 2 accumulated; 24 iterations (12 steps) an epoch``."""
    first = next(iter(by_rank.values()))
    replicas = [rank for rank in first.replicas if rank in by_rank] if first.replicas else []
    times = f" x {first.accumulation} accumulated" if first.accumulation > 1 else ""
    sizes = [by_rank[rank].batch for rank in replicas]
    if len(replicas) > 1 and len(replicas) == len(first.replicas or ()):
        whole = sum(sizes) * first.accumulation
        each = f"{len(replicas)} replicas x {sizes[0]} samples"
        if len(set(sizes)) > 1:
            each = f"{sum(sizes)} samples of {len(replicas)} replicas ({min(sizes)} to {max(sizes)} each)"
        words = f"Global batch {whole:,} = {each}{times}"
    elif times:
        words = f"Batch {first.batch * first.accumulation:,} a rank = {first.batch} samples{times}"
    else:
        words = f"Batch {first.batch:,} a rank"
    if microbatches > 1:
        words += f", in {microbatches} micro-batches"
    counts = {reading.iterations for reading in by_rank.values()}
    known = sorted(count for count in counts if count is not None)
    if not known:
        return words
    if len(known) > 1:
        return f"{words}; {known[0]:,} to {known[-1]:,} iterations an epoch, by rank"
    words += f"; {quantity(known[0], 'iteration')}"
    if first.accumulation > 1:
        steps = -(-known[0] // first.accumulation)
        words += f" ({quantity(steps, 'step')})"
    return f"{words} an epoch"


def _alike(by_rank: Mapping[int, Reading]) -> list[int]:
    """Replicas that all read the same; empty where there are none, or where it cannot be told."""
    for reading in by_rank.values():
        group = reading.replicas or []
        if len(group) < 2 or not all(rank in by_rank for rank in group):  # noqa: PLR2004 — one alone is no replica
            continue
        digests = [by_rank[rank].digests for rank in group]
        common = min(map(len, digests))
        if len(set(digests[0][:common])) >= ENOUGH and len({tuple(one[:common]) for one in digests}) == 1:
            return list(group)
    return []


def _warning(ranks: list[int]) -> str:
    return (
        f"{count_ranks(ranks).capitalize()} read the same data and repeat each other's work. Give each rank its own: "
        "loader = jupyter_dtrain.shard(loader), or a DataLoader with a DistributedSampler."
    )

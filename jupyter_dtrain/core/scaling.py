"""How a cell scales with the number of ranks: times at several sizes of a world, and their comparison. Pure data.

:class:`Scaling` compares each size with the smallest one that was measured. If a size did more work than that (a fixed
batch of each rank, and as many steps), samples per second are compared, and else times. The share of time that a size
loses has a cause, as far as looks at the ranks show it (:class:`~jupyter_dtrain.core.events.Spent`):

* communication: the time in which even the rank that waits least waits for others. All ranks pay it;
* a slow rank: how much longer than that one the others wait, on average. It makes them wait;
* data: the time in which a rank fetches batches;
* processors: the time in which ranks could go on, but others of their host had the processor.

The remainder is work that more ranks do not shorten: set-up, small batches, code that every rank runs alike.

Nothing here guesses: a size without measurements has none of these, and times that were measured once have no range.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from .events import Spent
from .world import count_ranks, quantity

TOLD: Final = 0.1
"""The share of time from which on a cause is named."""
NEAR: Final = 0.9
"""The efficiency from which on a size counts as linear."""
SAME: Final = 0.05
"""Work that differs by less than this share counts as the same."""

Cause = Literal["communication", "slow rank", "data", "processors"]


@dataclass(frozen=True)
class Repeat:
    """One measured run of the cell."""

    seconds: float
    """Seconds that the cell took on the slowest rank."""
    spent: dict[int, Spent] = field(default_factory=dict)
    """How each rank spent its time."""


@dataclass
class Size:
    """The runs of a cell on so many ranks."""

    ranks: int
    repeats: list[Repeat] = field(default_factory=list)
    batch: int | None = None
    """Samples of a rank's batch, where that is known."""
    steps: int | None = None
    """Steps of the optimizer that makes most of them, where that is known."""
    failure: str = ""
    """Why it could not be measured, or not to the end, in words; else empty."""
    notes: list[str] = field(default_factory=list)
    """Sentences about this size that a reader must know."""

    @property
    def seconds(self) -> float | None:
        """The median time; None where nothing was measured."""
        return statistics.median(repeat.seconds for repeat in self.repeats) if self.repeats else None

    @property
    def span(self) -> tuple[float, float] | None:
        """The shortest and the longest time in seconds; None for less than two runs."""
        times = [repeat.seconds for repeat in self.repeats]
        return (min(times), max(times)) if len(times) > 1 else None

    @property
    def samples(self) -> int | None:
        """Samples that all ranks trained on; None where that is not known."""
        return None if not self.batch or not self.steps else self.batch * self.steps * self.ranks

    def waits(self) -> dict[int, float]:
        """The share of time in which each rank waited for others, over all runs; empty where it was not measured."""
        found: dict[int, list[float]] = {}
        for repeat in self.repeats:
            for rank, spent in repeat.spent.items():
                found.setdefault(rank, []).append(spent.communication / max(spent.seconds, 1e-9))
        return {rank: statistics.fmean(shares) for rank, shares in sorted(found.items())}

    def share(self, cause: Cause) -> float | None:
        """The share of time, 0 to 1, that ``cause`` takes; None where it was not measured."""
        all_spent = [spent for repeat in self.repeats for spent in repeat.spent.values()]
        if not all_spent:
            return None
        waits = list(self.waits().values())
        match cause:
            case "communication":
                return min(waits)
            case "slow rank":
                return statistics.fmean(waits) - min(waits)
            case "data":
                return statistics.fmean(one.data / max(one.seconds, 1e-9) for one in all_spent)
        return statistics.fmean(one.processor / max(one.seconds, 1e-9) for one in all_spent)


@dataclass
class Scaling:
    """The measurements of a cell on several numbers of ranks, so far or in all."""

    wanted: list[int]
    """The sizes that were asked for, in order."""
    repeats: int
    """How often each is measured."""
    global_batch: int | None = None
    per_rank_batch: int | None = None
    sizes: list[Size] = field(default_factory=list)
    interrupted: bool = False
    now: str = ""
    """What is measured now, in words; empty when nothing is."""

    @property
    def measured(self) -> list[Size]:
        """The sizes with measurements, the smallest first."""
        return sorted((size for size in self.sizes if size.repeats), key=lambda size: size.ranks)

    @property
    def base(self) -> Size | None:
        """The size that others are compared with."""
        return next(iter(self.measured), None)

    @property
    def grows(self) -> bool:
        """Whether some size did other work than the smallest, so that samples per second are compared."""
        samples = [size.samples for size in self.measured]
        if not samples or not all(samples):
            return False
        known = [float(one or 0) for one in samples]
        return any(abs(one / known[0] - 1) > SAME for one in known)

    def speedup(self, size: Size) -> float | None:
        """How many times as fast as the smallest size this one is."""
        base = self.base
        if base is None or base.seconds is None or size.seconds is None:
            return None
        return self._work(size) * base.seconds / size.seconds

    def speedup_span(self, size: Size) -> tuple[float, float] | None:
        """The lowest and highest speed-up that the measured times allow; None where either size was measured once."""
        base = self.base
        if base is None or base.span is None or size.span is None or size is base:
            return None
        return self._work(size) * base.span[0] / size.span[1], self._work(size) * base.span[1] / size.span[0]

    def linear(self, size: Size) -> float:
        """The speed-up that ``size`` would have if ranks cost nothing."""
        return size.ranks / self.base.ranks if self.base is not None else 1.0

    def efficiency(self, size: Size) -> float | None:
        """The speed-up as a share of the linear one."""
        found = self.speedup(size)
        return None if found is None else found / self.linear(size)

    def _work(self, size: Size) -> float:
        base = self.base
        if not self.grows or base is None:
            return 1.0
        return float(size.samples or 0) / float(base.samples or 1)

    def causes(self, size: Size) -> list[tuple[Cause, float]]:
        """The causes that take :data:`TOLD` or more of the time of ``size``, the largest first."""
        kinds: Sequence[Cause] = ("communication", "slow rank", "data", "processors")
        found = [(cause, share) for cause in kinds if (share := size.share(cause)) is not None and share >= TOLD]
        return sorted(found, key=lambda pair: -pair[1])

    def conclusions(self) -> list[str]:
        """How each size does and what holds it back, in sentences."""
        found = [f"{quantity(size.ranks, 'rank')}: {size.failure}" for size in self.sizes if size.failure]
        for size in self.measured:
            found += [f"{quantity(size.ranks, 'rank')}: {note}" for note in size.notes]
            if size is not self.base:
                found.append(self._conclusion(size))
        if self.base is not None and self.grows:
            found.append("Sizes did different amounts of work, so the speed-up compares samples per second.")
        if any(size.span is None for size in self.measured):
            found.append("A time that was measured once has no range: --repeats 3 shows how much times vary.")
        return found

    def _conclusion(self, size: Size) -> str:
        speedup, efficiency = self.speedup(size) or 0.0, self.efficiency(size) or 0.0
        base = self.base
        assert base is not None
        words = f"{quantity(size.ranks, 'rank')}: {speedup:.2f} times as fast as {quantity(base.ranks, 'rank')}"
        words += f", {efficiency:.0%} of linear"
        if efficiency >= NEAR:
            return f"{words}."
        causes = [self._describe(size, cause, share) for cause, share in self.causes(size)]
        if not size.waits():
            return f"{words}."
        if not causes:
            return f"{words}. Most of the rest is work that more ranks do not shorten, such as set-up or small batches."
        return f"{words}. It is held back by {', then by '.join(causes)}."

    def _describe(self, size: Size, cause: Cause, share: float) -> str:
        match cause:
            case "communication":
                return f"communication ({share:.0%} of the time)"
            case "slow rank":
                waits = size.waits()
                slow = min(waits, key=lambda rank: waits[rank])
                others = count_ranks([rank for rank in waits if rank != slow])
                return f"rank {slow}, which is slow: {others} wait {share:.0%} of the time for it"
            case "data":
                return f"data loading ({share:.0%} of the time)"
        return f"processors, which ranks share with each other and other programs ({share:.0%} of the time)"

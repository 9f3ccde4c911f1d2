"""Where the time of a training step goes, by rank: shares of its parts, and one sentence on why the steps are slow.

Ranks report about once a second what their main threads did (:class:`~jupyter_dtrain.core.events.StepParts`).
:class:`StepTimes` adds these reports up; reports of set-up, before the first step and after the last, do not count.
:meth:`StepTimes.findings` judges the last seconds, or a whole run, by rules that docs/reference/slow-steps.md lists:

* Where ranks meet in a collective, the rank that makes the others wait is the one that itself waits least. What it does
  longer than the others is the cause; the others are not slow.
* A cause that all ranks share is named only where all ranks show it.
* One stall does not count, such as a checkpoint each half an hour, or the validation between two epochs.
* Nothing is said where the evidence is thin: too few steps or seconds, steps so short that only latency counts, a rank
  without reports, or ranks whose steps take unlike times, so that their loops do not meet.

Pure data: nothing here asks a rank or a clock. The remainder of a step is ``other``, and never communication.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from .events import CodeLine, Sample, StepParts
from .world import count_ranks, percent, quantity

if TYPE_CHECKING:
    from .pipelines import Timeline

PARTS: Final[dict[str, str]] = {
    "data": "loading data",
    "copy": "copying to the device",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "compiled": "the compiled step",
    "optimizer": "the optimizer",
    "communication": "communication",
    "device": "waiting for the device",
    "checkpoint": "saving checkpoints",
    "logging": "logging",
    "other": "other code",
}
"""The parts of a step, in the order in which a bar shows them, with the words for them."""

COMPUTING: Final = ("forward", "backward", "compiled", "optimizer", "other")
"""The parts in which the main thread computes, or lets a device compute."""

RECENT: Final = 10
"""Reports, of about a second each, that the live sentence judges."""
MANY: Final = 64
"""Ranks of a run; of each of more ranks, fewer reports are kept."""
KEPT: Final = 120
"""Reports of a rank that are kept for the course of a run; of older ones, two become one."""
EARLY: Final = 10
"""Reports at the beginning of a loop with which later ones are compared."""
WARM: Final = 2
"""Of those, the first ones, in which caches fill and compilers work, do not count."""
STALL: Final = 2.0
"""How many times as long as most of the recent reports the longest one may be; without steps, reports become one."""

STEPS: Final = 10
"""Steps that each rank must have made."""
SECONDS: Final = 1.4
"""Seconds of steps that each rank must have reported."""
SHORT: Final = 0.005
"""Seconds of a step below which nothing is said: latency alone decides, and a larger model has other shares."""
APART: Final = 0.25
"""The share by which the ranks' times of a step may differ, where they train together."""

GAP: Final = 0.12
"""The share of a step that others must wait longer than the slow rank."""
CERTAIN: Final = 4.0
"""How many times its standard error that difference must be: a few looks at a rank say little."""
OWN: Final = 0.4
"""The share of that gap that one part must explain to be called the cause."""
DATA_BOUND: Final = 0.25
BOUND: Final = 0.35
"""The share of a step that all ranks must spend in communication."""
SAVING: Final = 0.1
LOGGING: Final = 0.15
READING: Final = 0.2
"""The share of a step in which one line waits for a device."""
DELAYED: Final = 0.35
"""The share of a step in which all ranks of a run wait for a processor."""
BUBBLE: Final = 0.25
"""The share of a pipeline's step in which its ranks compute nothing."""
SLOWER: Final = 1.3
"""How many times as long as at the beginning of the loop a step must take, ..."""
LONG: Final = 60.0
"""... after so many seconds."""
IDLE: Final = 40.0
"""Per cent of the time for which GPUs are busy, below which they count as idle."""

HOT: Final = 83.0
"""Degrees Celsius from which on a GPU may lower its clock."""
OTHERS: Final = 1e9
"""Bytes of a GPU that other processes have taken since."""

GROWS: Final = 0.3e6
"""Bytes by which a rank's memory must grow with each step, ..."""
GROWN: Final = 10e6
"""... and in all, ..."""
SPAN: Final = 15
"""... over so many steps, ..."""
POINTS: Final = 6
"""... read so often, ..."""
EVENLY: Final = 0.97
"""... and correlate so well with time."""


class SlowStep(msgspec.Struct, frozen=True, array_like=True):
    """One reason why the steps of a run are slow, or why its memory grows."""

    kind: str
    """What it is, such as ``data`` or ``memory``; the rules in docs/reference/slow-steps.md have the same names."""
    ranks: list[int]
    """The ranks that cause it."""
    words: str
    """The evidence, as a sentence."""
    advice: str
    """What to try, as a sentence."""
    share: float
    """The share of a step, 0 to 1, that it costs; 0 for memory."""

    def __str__(self) -> str:
        return f"{self.words} {self.advice}"


class RankTime:
    """What one rank has reported."""

    def __init__(self, kept: int = KEPT) -> None:
        """``kept``: reports that are kept at least, an even number."""
        self._kept = kept
        self.windows: deque[StepParts] = deque()
        """Its reports, oldest first, without those of set-up; older ones are joined in pairs."""
        self.early: list[StepParts] = []
        self.whole: StepParts = StepParts(0.0, {}, step=0)
        """The sum of all of them; ``step`` counts the steps."""
        self._used: deque[Sample] = deque(maxlen=RECENT)
        """What it used of its host in the newest reports."""
        self.first: Sample | None = None
        """What it used of its host and GPU at its first steps."""
        self._sample: Sample | None = None
        self.step: int | None = None
        """The newest step of its metrics."""
        self._waiting: list[StepParts] = []

    def take(self, window: StepParts) -> None:
        """Take a report. ``step`` of the kept ones counts the steps since the one before."""
        before, self.step = self.step, window.step
        if before is None or window.step is None:
            self._waiting.clear()  # set-up
            return
        self._waiting.append(window)
        if window.step == before:
            if len(self._waiting) > KEPT:  # a cell goes on for hours after its steps
                self._waiting[:] = [join(self._waiting, 0)]
            return
        joined = join(self._waiting, max(0, window.step - before))
        self._waiting.clear()
        if self._sample is not None:
            self._used.append(self._sample)
            self.first = self.first or self._sample
        self.windows.append(joined)
        if len(self.windows) > RECENT:
            self.windows[-RECENT - 1] = _bare(self.windows[-RECENT - 1])
        self.whole = join([self.whole, joined], (self.whole.step or 0) + (joined.step or 0))
        if len(self.early) < EARLY:
            self.early.append(_bare(joined))
        if len(self.windows) > 2 * self._kept:
            self._thin()

    def _thin(self) -> None:
        """Join the older half of the reports in pairs."""
        old = [self.windows.popleft() for _ in range(self._kept)]
        pairs = zip(old[::2], old[1::2], strict=True)
        self.windows.extendleft(reversed([join(pair, sum(one.step or 0 for one in pair)) for pair in pairs]))

    def sample(self, sample: Sample) -> None:
        """Take what the rank uses of its host."""
        self._sample = sample

    @property
    def last(self) -> Sample | None:
        """What it used of its host and GPU at its newest steps."""
        return self._used[-1] if self._used else None

    @property
    def workers(self) -> int:
        """The processes that its code had for its steps. Between two epochs a loader may have none."""
        return max((one.workers for one in self._used), default=0)

    @property
    def busy(self) -> float | None:
        """Per cent of the time for which its GPU was busy; None where it uses none, or where that is not known."""
        used = [one.gpu for one in self._used if one.gpu is not None and one.gpu.reserved]
        known = [gpu.utilisation for gpu in used if gpu.utilisation is not None]
        return statistics.fmean(known) if known else None

    @property
    def newest(self) -> list[StepParts]:
        """The last :data:`RECENT` reports."""
        return list(self.windows)[-RECENT:]

    @property
    def recent(self) -> StepParts:
        """Their sum, without a stall."""
        last = self.newest
        longest = max(last, key=lambda one: one.seconds, default=None)
        if longest is not None and longest.seconds > STALL * statistics.median(one.seconds for one in last):
            last.remove(longest)
        return join(last, sum(one.step or 0 for one in last))


class StepTimes:
    """The reports of all ranks of a run."""

    def __init__(self, ranks: int = 1) -> None:
        """``ranks``: how many report; of many, less is kept of each."""
        self._kept = max(RECENT + 2, KEPT * MANY // max(MANY, ranks) // 2 * 2)
        self.ranks: dict[int, RankTime] = {}
        """By rank; ranks that have reported nothing are left out."""

    def __bool__(self) -> bool:
        return any(one.windows for one in self.ranks.values())

    def take(self, rank: int, report: StepParts | Sample) -> None:
        """Take a report of ``rank``."""
        one = self.ranks.setdefault(rank, RankTime(self._kept))
        if isinstance(report, Sample):
            one.sample(report)
        else:
            one.take(report)

    def shares(self, *, whole: bool = False) -> dict[int, dict[str, float]]:
        """The share of a step, 0 to 1, that each part takes, by rank; of the last seconds, or of the ``whole`` run."""
        return {rank: shares_of(one) for rank, one in self._reports(whole=whole).items()}

    def calls(self, *, whole: bool = False) -> dict[int, dict[str, float]]:
        """As :meth:`shares`, the share of a step that ranks wait for each other, by call, the longest first."""
        return {rank: calls_of(one) for rank, one in self._reports(whole=whole).items()}

    def _reports(self, *, whole: bool) -> dict[int, StepParts]:
        return {rank: one.whole if whole else one.recent for rank, one in sorted(self.ranks.items()) if one.windows}

    def findings(
        self,
        ranks: Sequence[int],
        *,
        whole: bool = False,
        batches: Mapping[int, int] | None = None,
        pipelines: Iterable[Timeline] = (),
    ) -> list[SlowStep]:
        """Why the steps of a run on ``ranks`` are slow, the costliest reason first; empty where nothing can be said.

        ``whole``: judge the whole run, not the last seconds. ``batches``: samples of a step, by rank, where known.
        ``pipelines``: a recent step of each pipeline.
        """
        reporting = {rank: self.ranks[rank] for rank in ranks if rank in self.ranks}
        memory = self._memory(reporting)
        seen = {rank: one.whole if whole else one.recent for rank, one in reporting.items() if one.windows}
        if not seen or set(seen) != set(ranks) or not all(map(_is_enough, seen.values())):
            return memory
        times = [one.seconds / (one.step or 1) for one in seen.values()]
        found = list(_bubbles(pipelines))
        if not found and max(times) <= (1 + APART) * min(times):
            found = list(self._together(dict(sorted(seen.items())), batches or {}))
        found = found or list(self._slower_than_itself(reporting))
        return [*sorted(found, key=lambda one: -one.share), *memory]

    # Rules. Each yields what it finds.

    def _together(self, seen: dict[int, StepParts], batches: Mapping[int, int]) -> Iterable[SlowStep]:
        """The rules for ranks whose steps take the same time."""
        shares = {rank: shares_of(one) for rank, one in seen.items()}
        found = self._slow_rank(seen, shares, batches)
        if found is not None:
            return [found]
        return [
            one
            for one in (
                self._data(shares),
                self._saving(seen, shares),
                self._reading(seen),
                _logging(seen, shares),
                _communication(seen, shares),
                _processors(seen),
                self._idle(shares),
            )
            if one is not None
        ]

    def _slow_rank(
        self, seen: dict[int, StepParts], shares: dict[int, dict[str, float]], batches: Mapping[int, int]
    ) -> SlowStep | None:
        waits = {rank: share.get("communication", 0.0) for rank, share in shares.items()}
        low, high = min(waits.values()), max(waits.values())
        slow = [rank for rank, wait in waits.items() if wait <= low + OWN * (high - low)]
        others = [rank for rank in waits if rank not in slow]
        if not others or len(slow) > len(others):
            return None
        gap = _mean(shares, others, "communication") - _mean(shares, slow, "communication")
        # Several ranks at once are seldom slow for one reason, and often by chance.
        if gap < max(GAP if len(slow) == 1 else 2 * GAP, CERTAIN * _error(seen, shares, slow, others)):
            return None
        more = {part: _mean(shares, slow, part) - _mean(shares, others, part) for part in PARTS}
        more.pop("communication")
        computing = sum(more[part] for part in COMPUTING)
        delayed = _delayed(seen, slow) - _delayed(seen, others)
        call = _call(seen, others)
        victims = f"meanwhile the other {'rank waits' if len(others) == 1 else 'ranks wait'} for "
        victims = f"{victims}{'it' if len(slow) == 1 else 'them'} in {call}, {percent(gap)} of a step"
        name, verb = count_ranks(slow).capitalize(), "s" if len(slow) == 1 else ""
        part = max(more, key=lambda one: more[one])
        at = _line(seen, slow, part)
        if delayed >= max(OWN * gap, computing / 2) and (part in COMPUTING or delayed > more[part]):
            waited = percent(_delayed(seen, slow))
            words = f"{name} wait{verb} {waited} of a step for a processor that others use; {victims}."
            advice = (
                "Look for other programs on its host (top), and for more threads than processors (OMP_NUM_THREADS)."
            )
            return SlowStep("busy processor", slow, words, advice, gap)
        usual = statistics.median_low(batches.values()) if set(batches) == set(shares) else 0
        larger = [rank for rank in slow if usual and batches[rank] > (1 + APART) * usual]
        if larger and computing >= OWN * gap and more["data"] < OWN * gap:
            name, verb = count_ranks(larger).capitalize(), "s" if len(larger) == 1 else ""
            most = max(batches[rank] for rank in larger)
            words = f"{name} train{verb} on {most} samples a step, others on {usual}; {victims}."
            advice = "Give all ranks batches of the same size: jupyter_dtrain.shard(loader), or a DistributedSampler."
            return SlowStep("unequal batches", larger, words, advice, gap)
        if more[part] < OWN * gap:
            words = f"{name} {'is' if verb else 'are'} slower than the others in all parts of a step; {victims}."
            advice = "Compare their hosts and devices with %distributed doctor."
            return SlowStep("slow rank", slow, words, advice, gap)
        spent = f"{name} spend{verb} {percent(_mean(shares, slow, part))} of a step in {PARTS[part]}"
        if part == "data":
            return self._slow_loader(shares, slow, gap, spent, f"{at}; {victims}.")
        kind, advice = {
            "checkpoint": ("saving", _SAVE_LESS),
            "logging": ("logging", _LOG_LESS),
            "device": (
                "reading",
                "Read values of the device less often: .item() waits for all that it computes.",
            ),
            "copy": ("copies", "Copy with non_blocking=True from pinned memory: DataLoader(..., pin_memory=True)."),
        }.get(part, ("slow rank", "%distributed flame shows where this rank's time goes, beside that of the others."))
        return SlowStep(kind, slow, f"{spent}{at}; {victims}.", advice, gap)

    def _slow_loader(
        self, shares: dict[int, dict[str, float]], slow: list[int], gap: float, spent: str, rest: str
    ) -> SlowStep:
        """Ranks that load longer than others: by themselves, or because all have too few workers.

        ``spent`` and ``rest``: the beginning and the end of the sentence.
        """
        workers = self.ranks[slow[0]].workers
        alike = all(self.ranks[rank].workers == workers for rank in shares)
        if alike and not workers and gap < 2 * GAP and (bound := self._data(shares)) is not None:
            return bound
        advice = _more_workers(workers, alike=alike)
        if alike and workers == 1:
            words = f"{spent} from one worker process, as many as each rank has{rest}"
            return SlowStep("data", list(shares), words, advice, gap)
        has = f" with {quantity(workers, 'worker')}" if workers else " without worker processes"
        return SlowStep("slow loader", slow, f"{spent}{has}{rest}", advice, gap)

    def _data(self, shares: dict[int, dict[str, float]]) -> SlowStep | None:
        spent = [share.get("data", 0.0) for share in shares.values()]
        has_workers = [self.ranks[rank].workers for rank in shares]
        workers, mean = min(has_workers), statistics.fmean(spent)
        # With one worker everywhere, ranks whose loaders are a little quicker read ahead, and wait for the others.
        if (mean if workers == max(has_workers) == 1 else min(spent)) < DATA_BOUND:
            return None
        has = "without worker processes" if not workers else f"from {quantity(workers, 'worker')} each"
        if workers == 1:
            has = "from one worker process each" if len(shares) > 1 else "from one worker process"
        who = "All ranks spend" if len(shares) > 1 else f"Rank {next(iter(shares))} spends"
        who = "On average, ranks spend" if min(spent) < DATA_BOUND else who
        words = f"{who} {percent(mean)} of a step in loading data, {has}."
        return SlowStep("data", list(shares), words, _more_workers(workers), mean)

    def _saving(self, seen: dict[int, StepParts], shares: dict[int, dict[str, float]]) -> SlowStep | None:
        spent = {rank: share.get("checkpoint", 0.0) for rank, share in shares.items()}
        savers = [rank for rank, share in spent.items() if share >= SAVING]
        if not savers:
            return None
        most = max(spent.values())
        at = _line(seen, savers, "checkpoint")
        words = (
            f"{count_ranks(savers).capitalize()} spend{'s' if len(savers) == 1 else ''} {percent(most)} of the time in "
        )
        return SlowStep("saving", savers, f"{words}saving checkpoints{at}.", _SAVE_LESS, most)

    def _reading(self, seen: dict[int, StepParts]) -> SlowStep | None:
        spent = {rank: shares_of(one).get("device", 0.0) for rank, one in seen.items()}
        if not spent or min(spent.values()) < READING or not all(self.ranks[rank].busy is not None for rank in seen):
            return None
        at = _line(seen, list(seen), "device")
        idle = 100 - statistics.fmean(self.ranks[rank].busy or 0.0 for rank in seen)
        if not at or idle < 100 - 2 * IDLE:
            return None
        share = statistics.fmean(spent.values())
        words = f"A step waits {percent(share)} of its time for the device{at}; the GPUs are idle {idle:.0f} % of it."
        return SlowStep("reading", list(seen), words, "Keep the tensor, and read it once in many steps.", share)

    def _idle(self, shares: dict[int, dict[str, float]]) -> SlowStep | None:
        busy = [self.ranks[rank].busy for rank in shares]
        known = [one for one in busy if one is not None]
        computing = [sum(share.get(part, 0.0) for part in COMPUTING) for share in shares.values()]
        if len(known) < len(busy) or not known or max(known) >= IDLE or min(computing) < 1 - 2 * GAP:
            return None
        words = f"The GPUs are busy {statistics.fmean(known):.0f} % of the time: Python launches work more slowly than "
        advice = "Give each launch more to do: a larger batch, a compiled model, or CUDA graphs."
        return SlowStep("idle device", list(shares), f"{words}they do it.", advice, 1 - max(known) / 100)

    def _slower_than_itself(self, ranks: Mapping[int, RankTime]) -> Iterable[SlowStep]:
        """Steps take longer than at the beginning of the loop: on the ranks that do not just wait for others."""
        found: dict[int, tuple[float, float, str]] = {}
        for rank, one in sorted(ranks.items()):
            early = one.early[WARM:]
            if one.whole.seconds < LONG or len(early) < EARLY - WARM:
                continue
            before, now = _usual(early), _usual(one.newest)
            if not before or now < SLOWER * before:
                continue
            began, ends = (join(some, sum(each.step or 0 for each in some)) for some in (early, one.newest))
            grown = {part: _of_step(ends, part) - _of_step(began, part) for part in PARTS}
            found[rank] = before, now, max(grown, key=lambda name: grown[name])
        if not found:
            return
        own = {rank: each for rank, each in found.items() if each[2] != "communication"} or found
        before, now, part = max(own.values(), key=lambda each: each[1] / each[0])
        words = (
            f"A step of {count_ranks(list(own))} takes {now * 1000:.0f} ms; in the first seconds of this run it took "
            f"{before * 1000:.0f} ms. Most of the difference is {PARTS[part]}."
        )
        words += self._changed(max(own, key=lambda rank: own[rank][1] / own[rank][0]))
        advice = "The sidebar shows the load and memory of its host, and the temperature of its GPU."
        yield SlowStep("slower than before", list(own), words, advice, 1 - before / now)

    def _changed(self, rank: int) -> str:
        """What else has changed about a rank that became slower, as sentences with a space before each."""
        one, found = self.ranks[rank], []
        began, now = (join(some, 0) for some in (one.early, one.newest))
        if (delayed := now.delayed / now.seconds) > began.delayed / began.seconds + GAP:
            found.append(
                f"Rank {rank} waits {percent(delayed)} of the time for a processor, which it did not at first."
            )
        first = None if one.first is None else one.first.gpu
        last = None if one.last is None else one.last.gpu
        if first is not None and last is not None and last.reserved:
            if (last.temperature or 0.0) >= max(HOT, (first.temperature or 0.0) + 1):
                found.append(f"Its GPU has {last.temperature:.0f} °C, and lowers its clock when it is too hot.")
            others = [gpu.used - (gpu.reserved or 0) for gpu in (first, last)]
            if others[1] > others[0] + OTHERS:
                found.append(f"Other processes hold {others[1] / 1e9:.1f} GB of its GPU.")
        return "".join(f" {each}" for each in found)

    def _memory(self, ranks: Mapping[int, RankTime]) -> list[SlowStep]:
        """Ranks whose memory grows evenly from step to step."""
        found: dict[int, float] = {}
        for rank, one in sorted(ranks.items()):
            report = join(one.newest, sum(each.step or 0 for each in one.newest))
            held, steps = report.memory, report.step or 0
            if steps < SPAN or len(held) < POINTS:
                continue
            grown = statistics.linear_regression(range(len(held)), held).slope * len(held)
            each = grown / steps
            if each < GROWS or grown < GROWN or statistics.correlation(range(len(held)), held) < EVENLY:
                continue
            found[rank] = each
        if not found:
            return []
        growing, most = list(found), max(found, key=lambda rank: found[rank])
        held = join(self.ranks[most].newest, 0).memory
        words = (
            f"The memory of {count_ranks(growing)} grows by {found[most] / 1e6:.1f} MB a step, and is "
            f"{held[-1] / 1e9:.2f} GB now."
        )
        advice = (
            "Something keeps what each step makes, such as a list of losses with their graphs: append loss.item(). "
            "%distributed memory names what is large."
        )
        return [SlowStep("memory", growing, words, advice, 0.0)]


_SAVE_LESS: Final = "Save less often, or let %distributed save NAME VARIABLE --every 10m write beside the training."
_LOG_LESS: Final = "Print and log less often, such as in each hundredth step."


def _more_workers(workers: int, *, alike: bool = True) -> str:
    """``alike``: all ranks have so many. Those that are a little quicker read ahead, and show no wait of their own.

    So where all ranks have one, a wait of some is told as one of all: it may be, and the cure is the same.
    """
    if not workers:
        return "Load beside the training: DataLoader(..., num_workers=2), or a dataset that prefetches."
    where = " on all ranks" if alike else ""
    return f"Try DataLoader(..., num_workers={2 * workers}){where}, or less work for each sample."


def join(windows: Sequence[StepParts], steps: int) -> StepParts:
    """The sum of several reports, which cover ``steps`` steps."""
    parts: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, float] = defaultdict(float)
    lines: defaultdict[tuple[str, int, str], float] = defaultdict(float)
    for window in windows:
        for part, seconds in window.parts.items():
            parts[part] += seconds
        for call, seconds in window.calls.items():
            calls[call] += seconds
        for line in window.lines:
            lines[line.file, line.line, line.part] += line.seconds
    most = sorted(lines.items(), key=lambda pair: -pair[1])[:8]
    return StepParts(
        sum(window.seconds for window in windows),
        dict(parts),
        dict(calls),
        [CodeLine(*place, seconds) for place, seconds in most],
        sum(window.delayed for window in windows),
        steps,
        sum(window.looks for window in windows),
        [held for window in windows for held in window.memory][-KEPT:],
    )


def _bare(report: StepParts) -> StepParts:
    """A report without what only sentences on the last seconds need."""
    return msgspec.structs.replace(report, calls={}, lines=[], memory=[])


def shares_of(report: StepParts) -> dict[str, float]:
    """The share of each part, 0 to 1, in the order of :data:`PARTS`."""
    return {part: report.parts[part] / report.seconds for part in PARTS if report.parts.get(part)}


def calls_of(report: StepParts) -> dict[str, float]:
    """The share, 0 to 1, of each call in which a rank waits for others, the longest first."""
    calls = sorted(report.calls.items(), key=lambda pair: -pair[1])
    return {call: seconds / report.seconds for call, seconds in calls if seconds}


def _of_step(report: StepParts, part: str) -> float:
    """Seconds of a step in ``part``."""
    return report.parts.get(part, 0.0) / (report.step or 1)


def _usual(reports: Sequence[StepParts]) -> float:
    """Seconds that a step takes in most of the reports; 0 where none has steps."""
    times = [one.seconds / one.step for one in reports if one.step]
    return statistics.median(times) if times else 0.0


def _is_enough(report: StepParts) -> bool:
    steps = report.step or 0
    return steps >= STEPS and report.seconds >= max(SECONDS, SHORT * steps)


def _bubbles(pipelines: Iterable[Timeline]) -> Iterable[SlowStep]:
    for line in pipelines:
        if line.usual < BUBBLE:
            continue
        theory = "" if line.theory is None else f" (the schedule alone leaves {percent(line.theory)})"
        words = f"The ranks of the {line.schedule} pipeline compute nothing in {percent(line.usual)} of a step{theory}."
        avoidable = line.theory is not None and line.usual > line.theory + GAP
        advice = (
            "Cut the model into stages that take the same time."
            if avoidable
            else ("Cut the batch into more micro-batches, or choose a schedule that interleaves stages.")
        )
        yield SlowStep("pipeline", sorted(line.lanes), words, advice, line.usual)


def _logging(seen: dict[int, StepParts], shares: dict[int, dict[str, float]]) -> SlowStep | None:
    spent = [share.get("logging", 0.0) for share in shares.values()]
    if min(spent) < LOGGING:
        return None
    at = _line(seen, list(seen), "logging")
    words = f"All ranks spend {percent(statistics.fmean(spent))} of a step in logging{at}."
    return SlowStep("logging", list(shares), words, _LOG_LESS, statistics.fmean(spent))


def _communication(seen: dict[int, StepParts], shares: dict[int, dict[str, float]]) -> SlowStep | None:
    spent = [share.get("communication", 0.0) for share in shares.values()]
    delayed = _delayed(seen, list(seen))
    # Ranks that wait for a processor in turn make each other wait, whatever they send.
    if len(spent) < 2 or min(spent) < BOUND + delayed:  # noqa: PLR2004 — one rank waits for nobody
        return None
    step = statistics.fmean(one.seconds / (one.step or 1) for one in seen.values())
    if step * min(spent) < 2 * SHORT:
        return None
    call, share = _call(seen, list(seen)), statistics.fmean(spent)
    words = f"All ranks spend {percent(share)} of a step ({step * share * 1000:.0f} ms) in {call}, which no work hides."
    advice = (
        "Send less or less often: accumulate gradients over several batches, or compress them (bf16_compress_hook)."
    )
    return SlowStep("communication", list(shares), words, advice, share)


def _processors(seen: dict[int, StepParts]) -> SlowStep | None:
    delayed = [one.delayed / one.seconds for one in seen.values()]
    if min(delayed) < DELAYED:
        return None
    words = f"All ranks wait {percent(statistics.fmean(delayed))} of a step for a processor."
    advice = "There are fewer processors than threads: start fewer ranks on a host, or set OMP_NUM_THREADS=1."
    return SlowStep("processors", list(seen), words, advice, statistics.fmean(delayed))


def _mean(shares: Mapping[int, Mapping[str, float]], ranks: Sequence[int], part: str) -> float:
    return statistics.fmean(shares[rank].get(part, 0.0) for rank in ranks)


def _error(
    seen: Mapping[int, StepParts],
    shares: Mapping[int, Mapping[str, float]],
    slow: Sequence[int],
    others: Sequence[int],
) -> float:
    """The standard error of the difference between the waits of one rank of each kind, from so many looks.

    Not of the means of all of them: who is slow was chosen by these looks, and of many ranks some seem so by chance.
    """
    variance = 0.0
    for ranks in (slow, others):
        wait, looks = _mean(shares, ranks, "communication"), statistics.fmean(seen[rank].looks for rank in ranks)
        # One look more of either kind, so that a few looks which saw the same are not certain of it.
        wait = (wait * looks + 1) / (looks + 2)
        variance += wait * (1 - wait) / (looks + 2)
    return float(variance**0.5)


def _delayed(seen: Mapping[int, StepParts], ranks: Sequence[int]) -> float:
    return statistics.fmean(seen[rank].delayed / seen[rank].seconds for rank in ranks)


def _call(seen: Mapping[int, StepParts], ranks: Sequence[int]) -> str:
    """The call in which ``ranks`` wait longest for others."""
    calls = join([seen[rank] for rank in ranks], 0).calls
    return max(calls, key=lambda call: calls[call]) if calls else "communication"


def _line(seen: Mapping[int, StepParts], ranks: Sequence[int], part: str) -> str:
    """`` (cell [3], line 12)``: the line of the user's that takes most of this part; empty where none is known."""
    lines = [line for line in join([seen[rank] for rank in ranks], 0).lines if line.part == part]
    return f" ({lines[0].file}, line {lines[0].line})" if lines else ""

"""Runs from the store, as a person sees them: one run, a list, and several side by side.

:func:`bundle` is how a stored run appears, as the last value of a cell and in ``%distributed show``. Everything here
is bounded, whatever the runs printed or logged. Only :func:`overlay` needs matplotlib.
"""

from __future__ import annotations

import io
import math
import re
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Final, Literal, Protocol

from jupyter_dtrain.core.causes import as_seen, distinct, is_echo
from jupyter_dtrain.core.metrics import (
    SAMPLES_PER_SECOND,
    STEPS_PER_SECOND,
    RankSteps,
    is_finite,
    lowest,
    newest_value,
    speed,
)
from jupyter_dtrain.core.world import count_ranks

from . import saved, step_time
from .document import Picture
from .drawing import no_glyph_warnings
from .labels import duration, ending_of, label, number, took
from .made import short
from .report_chart import LIGHT
from .tables import table

if TYPE_CHECKING:
    from jupyter_dtrain.core.events import Error, MimeBundle, Outcome
    from jupyter_dtrain.core.metrics import Columns
    from jupyter_dtrain.core.steering import RecordedAct
    from jupyter_dtrain.core.step_summary import StepSummary

_SOURCE: Final = 12  # lines of the cell
_LINES: Final = 10  # last lines of a rank
_TAILS: Final = 4  # ranks, or groups of ranks with equal output, whose last lines are shown
_RANKS: Final = 8  # ranks that get a column each
_METRICS: Final = 60
_ACTS: Final = 40
_FEW_ACTS: Final = 8  # in a comparison
_NAME: Final = 40
_WIDTH: Final = 200  # characters of a printed line
_CHARTS: Final = 6
_BUCKETS: Final = 400  # points of a line
_SIDE_BY_SIDE: Final = 2  # runs that get columns, rather than rows, in a comparison
_DASHES: Final = ("-", (0, (6, 3)), (0, (2, 2)), (0, (7, 2, 2, 2)), (0, (4, 2)))
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

Series = Mapping[int, "Columns"]


class ShownPart(Protocol):
    """The part of a rank's record that is shown."""

    @property
    def host(self) -> str:
        """The name of the rank's host."""

    @property
    def words(self) -> str:
        """What happened to the rank, in words, if it was lost; else empty."""


class LossFigures(Protocol):
    """A loss of a run, without its points."""

    @property
    def name(self) -> str:
        """The name of the metric."""

    @property
    def last(self) -> float | None:
        """The newest value; None where it is not finite."""

    @property
    def best(self) -> float | None:
        """The lowest finite value."""


class ShownColumn(Protocol):
    """A column of a list of runs."""

    @property
    def title(self) -> str:
        """Its head."""


class Kept(Protocol):
    """The part of a stored run that is shown; see :class:`jupyter_dtrain.store.StoredRun`."""

    id: int
    number: int
    source: str
    size: int
    ranks: list[int]
    started: float
    """In ``time.time()`` seconds."""
    first_step: int
    """The step from which it counts."""

    @property
    def label(self) -> str:
        """``world/3``, as people call it."""

    @property
    def name(self) -> str:
        """The name that a person gave the run, or else the most telling line of its cell."""

    @property
    def note(self) -> str:
        """A person's."""

    @property
    def tags(self) -> list[str]:
        """A person's."""

    @property
    def losses(self) -> Sequence[LossFigures]:
        """Last and best of each loss."""

    @property
    def last_values(self) -> Sequence[float]:
        """The last value of each loss; NaN for one that is not finite."""

    @property
    def outcome(self) -> Outcome | Literal["running"]:
        """How it ended."""

    @property
    def remark(self) -> str:
        """More about the end of a run that ended well; mostly empty."""

    @property
    def elapsed(self) -> float:
        """Seconds."""

    @property
    def outcomes(self) -> Mapping[int, Outcome]:
        """How each rank ended."""

    @property
    def metrics(self) -> Mapping[str, Mapping[int, Columns]]:
        """The columns of each metric, by rank."""

    @property
    def step_summary(self) -> StepSummary | None:
        """Where the time of its steps went; None where no steps were seen."""

    @property
    def acts(self) -> Sequence[RecordedAct]:
        """What persons have asked of its loop."""

    @property
    def parts(self) -> Mapping[int, ShownPart]:
        """The ranks that began it."""

    @property
    def errors(self) -> Mapping[int, Error]:
        """The exceptions that ended the cell, by rank."""

    def tail(self, rank: int, lines: int) -> list[str]:
        """The last lines that ``rank`` printed."""


def bundle(run: Kept) -> MimeBundle:
    """The run as text and as HTML: the cell, how it ended, the last values of its metrics, the end of its output."""
    head = (
        f"Run {run.label}{_named(run)}: {ending_of(run)}, {took(run.elapsed)} on {count_ranks(run.ranks)}, "
        f"started {moment(run.started)}"
    )
    said = [line for line in ("Tags: " + ", ".join(run.tags) if run.tags else "", run.note) if line]
    source = run.source.rstrip().splitlines()
    cell = source[:_SOURCE]
    if len(source) > _SOURCE:
        cell.append(f"… {len(source) - _SOURCE} more lines: .source has them")
    failures = troubles(run)
    metrics = dict(run.metrics)
    shown = _metrics_table(metrics, run.ranks, run.first_step) if metrics else None
    spent = run.step_summary
    slow = [] if spent is None else [*step_time.sentences(spent), *step_time.lines(spent)]
    tail = tails(run)
    text = [head, *said, *(f"    {line}" for line in cell), *failures]
    html = [f"<p>{escape(line)}</p>" for line in (head, *said)]
    html.append(f"<pre>{escape(chr(10).join(cell))}</pre>")
    html += [f"<p>{escape(line)}</p>" for line in failures]
    if shown is not None:
        text += ["", shown["text/plain"]]
        html.append(shown["text/html"])
    if slow:
        text += ["", *slow]
        html.append(f"<pre>{escape(chr(10).join(slow))}</pre>")
    if (acts := run.acts) and (told := act_table(acts)):
        text += ["", told["text/plain"]]
        html.append(told["text/html"])
    if tail:
        text += ["", "The end of its output", *tail]
        html.append(f"<p>The end of its output</p><pre>{escape(chr(10).join(tail))}</pre>")
    return {"text/plain": "\n".join(text), "text/html": "".join(html)}


def act_table(acts: Sequence[RecordedAct]) -> dict[str, str]:
    """A table of what persons have asked of a loop, the newest of many."""
    shown = acts[-_ACTS:]
    caption = "What was asked of its loop"
    if len(acts) > len(shown):
        caption += f", the newest {len(shown)} of {len(acts)}"
    rows = [[act.step, act.words[:_WIDTH], act.by, act.said[:_WIDTH]] for act in shown]
    return table(caption, ["after step", "asked for", "by", "what became of it"], rows)


def chart(run: Kept) -> MimeBundle | None:
    """The ranks and curves at the end of the run, as in its cell. None when it has logged nothing."""
    return saved.bundle(picture(run)) if run.metrics else None


def picture(run: Kept) -> Picture:
    """The content of the run's picture."""
    parts = run.parts
    return Picture(
        run.number,
        run.size,
        run.ranks,
        run.outcome,
        run.elapsed,
        run.metrics,
        states={rank: as_seen(outcome, run.errors.get(rank)) for rank, outcome in run.outcomes.items()},
        hosts={rank: part.host for rank, part in parts.items()},
        words={rank: part.words for rank, part in parts.items() if part.words},
        remark=run.remark,
        step_time=run.step_summary,
        acts=run.acts,
        first_step=run.first_step,
    )


def listing(
    runs: Sequence[Kept],
    columns: Sequence[ShownColumn] = (),
    values: Sequence[Sequence[str | float | bool | None]] = (),
    groups: Sequence[str] = (),
) -> MimeBundle:
    """A table of runs; with the values of each in ``columns`` after its losses, and the group of each before all."""
    tagged = any(run.tags for run in runs)
    headers = ["run", "name", "outcome", "last loss", "best", *(_short(one.title) for one in columns)]
    headers += ["took", "ranks", "started", *(["tags"] if tagged else [])]
    rows = []
    for place, run in enumerate(runs):
        shown = [short(value) for value in values[place]] if columns else []
        row = [run.label, _short(run.name), ending_of(run), *_loss(run), *shown]
        rows.append([*row, took(run.elapsed), len(run.ranks), moment(run.started)])
        if tagged:
            rows[-1].append(", ".join(run.tags))
        if groups:
            rows[-1].insert(0, _short(groups[place]))
    return {**table("Stored runs", ["group", *headers] if groups else headers, rows)}


def comparison(runs: Sequence[Kept]) -> MimeBundle:
    """A table of the runs' metrics: the last value (the mean over ranks), and the lowest and highest of all."""
    every = [measures(run.metrics, run.first_step) for run in runs]
    names = list(dict.fromkeys(name for measured in every for name in measured))
    shown = names[:_METRICS]
    marks = [run.label for run in runs]
    if len(runs) == _SIDE_BY_SIDE:
        headers = ["metric", *(f"{what} {mark}" for what in ("last", "lowest", "highest") for mark in marks)]
        rows = []
        for name in shown:
            pairs = zip(*(measured.get(name, (None,) * 3) for measured in every), strict=True)
            rows.append([_short(name), *(number(value) for pair in pairs for value in pair)])
    else:
        headers = ["metric", "run", "last", "lowest", "highest"]
        rows = [
            [_short(name), mark, *map(number, measured[name])]
            for name in shown
            for mark, measured in zip(marks, every, strict=True)
            if name in measured
        ]
    caption = "; ".join(
        f"{run.label}{_named(run)}: {ending_of(run)}, {took(run.elapsed)} on {count_ranks(run.ranks)}" for run in runs
    )
    if not rows:
        return {"text/plain": f"{caption}\nNone of these runs has logged a metric."}
    if len(names) > _METRICS:
        caption += f"; {len(names) - _METRICS} more metrics"
    found: MimeBundle = {**table(caption, headers, rows)}
    if steered := [line for run in runs for line in _acts(run)]:
        found["text/plain"] += "".join(f"\n{line}" for line in steered)
        found["text/html"] += f"<pre>{escape(chr(10).join(steered))}</pre>"
    if spent := _step_times(runs):
        found["text/plain"] += "".join(f"\n{line}" for line in spent)
        found["text/html"] += f"<pre>{escape(chr(10).join(spent))}</pre>"
    return found


def _acts(run: Kept) -> list[str]:
    """What was asked of the loop of a run, in a line."""
    acts = run.acts
    words = [f"{act.words[:_NAME]} after step {act.step}" for act in acts[:_FEW_ACTS]]
    if len(acts) > len(words):
        words.append(f"{len(acts) - len(words)} more")
    return [f"Steered in {run.label}: {'; '.join(words)}"] if words else []


def _step_times(runs: Sequence[Kept]) -> list[str]:
    """Where the time of a step went, the mean over ranks, in a line for each run; none for runs without steps."""
    found = [(run.label, one, one.mean) for run in runs if (one := run.step_summary) is not None]
    if not found:
        return []
    width, times = max(len(label) for label, *_ in found), [duration(mean.seconds) for *_, mean in found]
    room = max(map(len, times))
    rows = [
        f"  {label.ljust(width)}  {took.rjust(room)}  {step_time.shares_in_words(spent, mean)}"
        for (label, spent, mean), took in zip(found, times, strict=True)
    ]
    return ["Time of a step, mean over ranks:", *rows]


def overlay(runs: Sequence[Kept]) -> str | None:
    """The curves of metrics that several of the runs have, as SVG: means over ranks. None when they share no metric.

    Raises :class:`ImportError` where matplotlib is not installed.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    every = [dict(run.metrics) for run in runs]
    names = [name for name in dict.fromkeys(name for metrics in every for name in metrics) if _shared(name, every)]
    names = names[:_CHARTS]
    if not names:
        return None
    with no_glyph_warnings(), mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dtrain"}):
        columns = min(2, len(names))
        rows = math.ceil(len(names) / columns)
        figure = Figure(figsize=(4.6 * columns + 0.8, 2.5 * rows + 0.2), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for name, ax in zip(names, axes, strict=False):
            for run, metrics in zip(runs, every, strict=True):
                if name not in metrics:
                    continue
                colour, dash = style_of(run.id)
                steps, means = mean_curve(metrics[name])
                ax.plot(
                    steps,
                    means,
                    linestyle=_DASHES[dash],
                    color=LIGHT[colour],
                    linewidth=1.4,
                    label=run.label,
                    marker="." if len(steps) == 1 else None,
                )
            ax.set_title(_short(name).replace("$", r"\$"), fontsize=10, loc="left")
            ax.set_xlabel("step", fontsize=8)
            ax.tick_params(labelsize=8)
            ax.grid(visible=True, linewidth=0.4, alpha=0.5)
            ax.legend(fontsize=8, frameon=False)
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
        for ax in axes[len(names) :]:
            ax.remove()
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


def style_of(run: int) -> tuple[int, int]:
    """The colour and the dashes of the run with this id, as the Runs tab has them, whatever runs are beside it.

    Neighbours differ in both, since one line may lie on another. ``labextension/src/lab/runs/colours.ts``.
    """
    return run % len(LIGHT), run % len(_DASHES)


def _shared(name: str, every: Sequence[Mapping[str, Series]]) -> bool:
    return sum(name in metrics for metrics in every) > 1


def moment(seconds: float) -> str:
    """Date and time of day, by this machine's clock and zone."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OSError, OverflowError, ValueError):
        return "at an unknown time"


def troubles(run: Kept) -> list[str]:
    """The errors of the run, once for all ranks that share one."""
    found: dict[str, list[int]] = {}
    for error, ranks in sorted(distinct(run.errors, {}), key=lambda one: is_echo(one[0])):
        found.setdefault(_short(f"{error.ename}: {error.evalue}", _WIDTH), []).extend(ranks)
    for rank, part in run.parts.items():
        if part.words:
            found.setdefault(part.words, []).append(rank)
    return [f"{count_ranks(sorted(ranks)).capitalize()}: {words}" for words, ranks in found.items()][:_RANKS]


def _metrics_table(metrics: Mapping[str, Series], ranks: Sequence[int], first: int) -> dict[str, str]:
    rows = []
    several = len(ranks) > _RANKS
    measured = measures(metrics, first) if several else {}
    times = {rank: time for rank, steps in RankSteps.of(metrics, first).items() if (time := steps.time) is not None}
    for name, series in list(metrics.items())[:_METRICS]:
        points = sum(len(columns.values) for columns in series.values())
        title, newest = saved.values_of(name, series, times)
        values: Sequence[float | None] = measured.get(title, ())
        if not several:
            values = [newest[rank][1] if rank in newest else None for rank in ranks]
        rows.append([_short(title), points, *map(number, values)])
    caption = "Metrics: " + (
        "last value (mean over ranks), lowest, highest" if several else "the last value of each rank"
    )
    if len(metrics) > _METRICS:
        caption += f"; {len(metrics) - _METRICS} more: .metrics has them"
    titles = ["last", "lowest", "highest"] if several else [f"rank {rank}" for rank in ranks]
    return table(caption, ["metric", "points", *titles], rows)


def measures(
    metrics: Mapping[str, Series], first: int = 0
) -> dict[str, tuple[float | None, float | None, float | None]]:
    """Last (the mean over ranks), lowest and highest finite value of each metric; of a speed, the run's alone."""
    ranks = RankSteps.of(metrics, first)
    times = {rank: time for rank, steps in ranks.items() if (time := steps.time) is not None}
    found: dict[str, tuple[float | None, float | None, float | None]] = {}
    for name, series in metrics.items():
        title, newest = saved.values_of(name, series, times)
        if title == name:
            finite = [value for columns in series.values() for value in columns.values if is_finite(value)]
            found[name] = newest_value(newest), lowest(finite), max(finite, default=None)
    for name, value in zip((STEPS_PER_SECOND, SAMPLES_PER_SECOND), speed(ranks), strict=True):
        if value is not None:
            found[saved.mean_of(name)] = value, None, None
    return found


def mean_curve(series: Series, most: int = _BUCKETS) -> tuple[list[float], list[float]]:
    """Steps and the mean over all ranks, in at most ``most`` stretches; NaN where nothing is finite."""
    every = [
        (step, value) for columns in series.values() for step, value in zip(columns.steps, columns.values, strict=True)
    ]
    first, last = min(step for step, _ in every), max(step for step, _ in every)
    width = max(1, math.ceil((last - first + 1) / most))
    sums: dict[int, list[float]] = {}
    for step, value in every:
        stretch = sums.setdefault((step - first) // width, [0.0, 0.0])
        if value - value == 0:
            stretch[0] += value
            stretch[1] += 1
    found = sorted(sums.items())
    steps = [first + index * width + (width - 1) / 2 for index, _ in found]
    return steps, [total / count if count else math.nan for _, (total, count) in found]


def tails(run: Kept) -> list[str]:
    """The last lines of each rank; equal lines appear once for all their ranks."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank in run.parts:
        lines = [_ANSI.sub("", line)[:_WIDTH] for line in run.tail(rank, _LINES)]
        if lines:
            groups.setdefault(tuple(lines), []).append(rank)
    shown = [label(ranks, run.size) + line for lines, ranks in list(groups.items())[:_TAILS] for line in lines]
    if len(groups) > _TAILS:
        hidden = sum(len(ranks) for ranks in list(groups.values())[_TAILS:])
        shown.append(f"… and {hidden} more ranks: .text(rank) has their text")
    return shown


def _named(run: Kept) -> str:
    """The label of the run, with its name if it has one."""
    return f" ({_short(run.name)})" if run.name else ""


def _loss(run: Kept) -> tuple[str, str]:
    """Last and best value of its first loss; the name of that, where it is another than ``loss``."""
    if not run.losses:
        return "-", "-"
    loss = run.losses[0]
    last = number(math.nan if loss.last is None else loss.last)
    return last if loss.name == "loss" else f"{last} ({_short(loss.name)})", number(loss.best)


def _short(name: str, most: int = _NAME) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"

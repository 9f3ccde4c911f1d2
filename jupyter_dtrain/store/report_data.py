"""What a report on stored runs says, whatever its form: the runs, read once, with their colours and their charts."""

from __future__ import annotations

import re
import time
from collections.abc import Container, Iterable, Mapping
from functools import cached_property
from typing import Any, Final

import msgspec

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.metrics import SAMPLES_PER_SECOND, STEPS_PER_SECOND, Columns, is_finite, is_loss, is_main
from jupyter_dtrain.core.run_names import cut_name
from jupyter_dtrain.core.secrets import environment_secrets, redact, redact_value
from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.view.labels import ending_of, took
from jupyter_dtrain.view.saved import mean_of
from jupyter_dtrain.view.stored import mean_curve, measures, moment, style_of, troubles

from .provenance import RunCommit
from .run_page import commit_of, happenings_of
from .stored_run import StoredRun

MOST_RUNS: Final = 50
"""Runs of one report."""
NOTES: Final = 100_000
"""Characters of the words that a person gives a report."""
GENERATOR: Final = "jupyter-dtrain report"
"""Stands at the beginning of a page and of a text, so that the next report may replace it."""

_SPARKS: Final = "▁▂▃▄▅▆▇█"
_SPARK: Final = 16  # characters of a small curve
_VALUE: Final = 200  # characters of a configuration's value
_SPACE: Final = re.compile(r"\s+")
_PARTS: Final = tuple(
    re.compile(rf"(?:{words})[_/.-](?=.)", re.IGNORECASE)
    for words in ("train|training", "val|valid|validation", "eval|evaluation|dev", "test")
)
"""What stands before a metric's name for the data that it is of: ``labextension/src/lab/runs/figures.ts``."""


class RunsReport:
    """A report on some runs, before it has a form."""

    def __init__(self, runs: Iterable[StoredRun], notes: str = "") -> None:
        """Raises :class:`BadRequest` without a run, and for more than :data:`MOST_RUNS`."""
        chosen = {run.id: run for run in runs}
        self.runs = [ReportedRun(run, chosen) for run in chosen.values()]
        if not self.runs:
            raise BadRequest("A report needs a run: name one or more.")
        if len(self.runs) > MOST_RUNS:
            raise BadRequest(f"A report may have {MOST_RUNS} runs, not {len(self.runs)}: choose fewer.")
        if not isinstance(notes, str) or len(notes) > NOTES:
            raise BadRequest(f"The notes of a report must be text of at most {NOTES} characters.")
        names = [run.name for run in self.runs]
        for run in self.runs:
            run.colour, run.dash = style_of(run.run.id)
            if names.count(run.name) > 1:
                run.title = f"{run.name} · {run.run.label}"
        first, _, rest = notes.strip().partition("\n")
        titled = first.startswith("#")
        self.title = cut_name(first.lstrip("# ").strip(), 200) if titled else ""
        self.title = self.title or (self.runs[0].title if len(self.runs) == 1 else f"{len(self.runs)} runs")
        self.notes = (rest if titled else notes).strip()
        self.made = time.time()

    @property
    def settings(self) -> list[str]:
        """The names of all values of the runs' configurations: those that differ between the runs come first."""
        names = list(dict.fromkeys(name for run in self.runs for name in run.config))
        return sorted(names, key=lambda name: not self.differs(name))

    def differs(self, name: str) -> bool:
        """Whether a value of the configuration is another, or missing, in one of several runs."""
        return len({run.value(name) for run in self.runs}) > 1

    @property
    def metrics(self) -> list[str]:
        """The names of all metrics: losses first, then other main ones, then speeds and the like."""
        names = dict.fromkeys(name for run in self.runs for name in run.metrics)
        return sorted(names, key=lambda name: (not is_main(name), not is_loss(name)))

    def has_figures(self, name: str) -> bool:
        """Whether a metric has figures in some run."""
        return any(name in run.figures for run in self.runs)

    def families(self) -> list[tuple[str, list[str]]]:
        """The charts: a title and the metrics of each, that of training first. An epoch is an axis, and no chart."""
        names = [name for name in self.metrics if name != "epoch"]
        found: dict[str, dict[int, str]] = {}
        alone: list[str] = []
        for name in names:
            base, part = part_of(name)
            if part == 0 and base in names:
                alone.append(name)
            else:
                found.setdefault(base, {})[max(0, part)] = name
        charts = [[name] for name in alone]
        charts += [[name for _, name in sorted(members.items())] for members in found.values()]
        charts.sort(key=lambda members: names.index(members[0]))
        return [(part_of(members[0])[0] if len(members) > 1 else members[0], members) for members in charts]


class ReportedRun:
    """One run of a report, read once, with its colour and its dashes."""

    def __init__(self, run: StoredRun, chosen: Container[int] = ()) -> None:
        """``chosen``: the ids of the report's runs."""
        self.run = run
        self.colour = self.dash = 0
        self.name = run.name or run.label
        self.title = self.name
        """Its name, with its label where another run of the report has the same name."""
        known = environment_secrets()
        self.config = {name: redact_value(name, value, known) for name, value in run.config.items()}
        own = run.metrics
        joined = run.resumes is not None and not any(one.id in chosen for one in run.lineage[:-1])
        self.metrics: Mapping[str, Mapping[int, Columns]] = run.whole_metrics if joined else own
        """All points, with those of the runs whose training it goes on with, unless these have curves of their own."""
        self.figures = measures(own, run.first_step)
        """Last, lowest and highest value of each metric, as the list of runs has them: of this run alone."""
        for name in (STEPS_PER_SECOND, SAMPLES_PER_SECOND):
            if (figures := self.figures.pop(mean_of(name), None)) is not None:
                self.figures[name] = figures
        self.failures = [without_secrets(line) for line in troubles(run)]
        """Why it did not end well, a sentence for each cause."""

    @cached_property
    def commit(self) -> RunCommit | None:
        """The commit of its code; None where that is not known."""
        return commit_of(self.run.file, self.run.id)

    @property
    def happenings(self) -> list[tuple[float, str]]:
        """When what happened to it, in seconds since the epoch and in words."""
        return happenings_of(self.run.file, self.run.id)

    @property
    def before(self) -> str:
        """The run whose training it goes on with; empty for none."""
        return self.run.lineage[-2].label if self.run.resumes is not None and self.run.lineage[1:] else ""

    @property
    def line(self) -> str:
        """The run in a line."""
        run = self.run
        words = f"Run {run.label}: {ending_of(run)}, {took(run.elapsed)} on {count_ranks(run.ranks)}"
        return f"{words}, started {moment(run.started)}"

    @property
    def source(self) -> str:
        """Its cell, without secrets."""
        return without_secrets(self.run.source.rstrip())

    def value(self, name: str) -> str:
        """A value of its configuration as text; empty where it has none."""
        return shown_value(self.config[name]) if name in self.config else ""

    def spark(self, name: str) -> str:
        """The course of a metric in a few characters."""
        _, values = mean_curve(self.metrics[name], _SPARK)
        finite = [value for value in values if is_finite(value)]
        if not finite:
            return ""
        low, high = min(finite), max(finite)
        span = high - low
        if not span or not is_finite(span):
            return _SPARKS[0] * len(finite)
        return "".join(
            _SPARKS[round((one - low) / span * (len(_SPARKS) - 1))] if is_finite(one) else " " for one in values
        )


def part_of(name: str) -> tuple[str, int]:
    """A metric without the data that it is of, and the place of that data; -1 for a name that says nothing of it."""
    for place, pattern in enumerate(_PARTS):
        if (found := pattern.match(name)) is not None:
            return name[found.end() :], place
    return name, -1


def shown_value(value: Any) -> str:
    """A value of a configuration, in a line."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return cut_name(_SPACE.sub(" ", text), _VALUE)


def without_secrets(text: str) -> str:
    """``text`` for others than the person whose runs these are."""
    return redact(text, environment_secrets())

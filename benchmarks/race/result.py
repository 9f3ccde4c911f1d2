"""What the race found: rows, in each the values of every tool, or the reason why it has none.

The file is written after each section, so that a race that was interrupted goes on. It keeps every value that was
measured; medians, spread, ratios and who is first are made from them here, for the page and the documentation alike.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .tools import LIMITS, STATELESS, TOOLS, US

FILE = Path("build/bench/race.json")


@dataclass
class Entry:
    """A tool in a row: its values, or why it has none."""

    values: list[float] = field(default_factory=list)
    missing: str = ""
    """Why it did not run, in words for the reader."""
    never: str = ""
    """Why it ran and did not arrive: it is behind all that did."""

    @property
    def median(self) -> float | None:
        """None where it did not run, infinity where it never arrived."""
        if self.never:
            return math.inf
        return statistics.median(self.values) if self.values else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The 5th and the 95th percentile; the smallest and the largest where there are fewer than 20 values."""
        if not self.values:
            return None
        ordered = sorted(self.values)
        cut = int(0.05 * len(ordered))
        return ordered[cut], ordered[-1 - cut]


@dataclass
class Row:
    """One measure of all tools."""

    name: str
    """Such as ``start-4-cold``; the reason why we are not first is found by its beginning."""
    title: str
    unit: str
    entries: dict[str, Entry] = field(default_factory=dict)
    note: str = ""
    """How it was taken, where the title does not say it."""
    more_is_better: bool = False
    baseline: str = ""
    """The tool to which ratios are, where it is not us: torchrun, in training."""

    def fill(self, section: str) -> Row:
        """Every tool that does not stand in this row gets its reason."""
        for name, tool in TOOLS.items():
            self.entries.setdefault(name, Entry(missing=tool.reason(section)))
        return self

    @property
    def ranking(self) -> list[str]:
        """The tools that have values, best first; a limit is no tool."""
        medians = {name: entry.median for name, entry in self.entries.items() if name not in LIMITS}
        known = {name: median for name, median in medians.items() if median is not None}
        return sorted(known, key=lambda name: -known[name] if self.more_is_better else known[name])

    @property
    def first(self) -> str:
        """The best tool: ours where it is as good as the best, to a hundredth. Empty where nothing was measured."""
        ranking = self.ranking
        if not ranking or self.entries[ranking[0]].never:
            return ""
        best, ours = self.entries[ranking[0]].median, self.entries.get(US, Entry()).median
        same = ours is not None and best is not None and math.isclose(ours, best, rel_tol=0.01, abs_tol=self.least)
        return US if same else ranking[0]

    @property
    def least(self) -> float:
        """The smallest difference that means something, where it is not a hundredth of the value."""
        return 0.01 if self.name.startswith("objects") and "memory" in self.title else 0.0

    def ratio(self, name: str) -> float | None:
        """The tool's median over the baseline's."""
        mine, base = self.entries[name].median, self.entries.get(self.baseline or US, Entry()).median
        if mine is None or not base or math.isinf(base):
            return None
        return mine / base

    def why(self) -> str:
        """Why we are not first; empty where we are."""
        if self.first in {"", US}:
            return ""
        if self.first in TOOLS and TOOLS[self.first].function:
            return f"{self.first} is no world: {STATELESS}."
        fitting = [name for name in REASONS if self.name.startswith(name)]
        if self.entries.get(US, Entry(missing="it was not measured")).missing:
            return f"{US} was not measured: {self.entries[US].missing}"
        return REASONS[max(fitting, key=len)] if fitting else "no reason is written down yet"

    def record(self) -> dict[str, Any]:
        """As JSON, with what follows from the values."""
        entries = {}
        for name, entry in self.entries.items():
            median, ratio = entry.median, self.ratio(name)
            figures = {
                "median": None if median is None or math.isinf(median) else median,
                "spread": entry.spread,
                "ratio": None if ratio is None or math.isinf(ratio) else ratio,
            }
            entries[name] = {**asdict(entry), **figures}
        return {**asdict(self), "entries": entries, "first": self.first, "why": self.why()}

    @classmethod
    def read(cls, record: dict[str, Any]) -> Row:
        """From JSON; what follows from the values is made anew."""
        entries = {
            name: Entry(entry["values"], entry["missing"], entry["never"]) for name, entry in record["entries"].items()
        }
        names = ("name", "title", "unit", "note", "more_is_better", "baseline")
        return cls(entries=entries, **{name: record[name] for name in names})


REASONS = {
    "start": (
        "jupyter-distributed starts plain kernels: no MPI world, no process that looks after the ranks and outlives "
        "the notebook, so no rank can be replaced."
    ),
    "cell": (
        "Each of our cells is written down, watched while it runs, and stored: that is what a cell costs beyond a "
        "message to each rank and back."
    ),
    "cell-100kB": (
        "A Jupyter server drops what a notebook prints beyond 1 MB a second. Our text is held back to 0.7 MB a second, "
        "and a cell ends when its text is shown. Text that comes faster is lost where such a server stands between. "
        "Here none does."
    ),
    "objects": (
        "In a pull all wait for the machine to hand out fresh memory, which a virtual machine does slowly. Where it is "
        "warm, ours takes a third of ipyparallel's time (`python -m benchmarks objects`)."
    ),
    "training": (
        "A cell that records every step pays for it, and one without metrics does not. Differences of a few hundredths "
        "are within the spread."
    ),
    "growth": "An exponent says how a figure grows with the ranks, not how large it is.",
    "idle": (
        "A world has a process that owns it and outlives the notebook, a parent process that looks after the ranks, "
        "and ipyparallel's controller."
    ),
}
"""Why we are not first in the rows whose names begin so; the longest beginning counts."""


@dataclass
class Race:
    """All sections that have been run."""

    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    sections: dict[str, list[Row]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each section took."""

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order of their sections."""
        return [row for rows in self.sections.values() for row in rows]

    def write(self, path: Path = FILE) -> None:
        """Replace the file in one move: a reader never meets half a race."""
        path.parent.mkdir(parents=True, exist_ok=True)
        tools = {name: {"version": self.versions.get(name, ""), "docs": tool.docs} for name, tool in TOOLS.items()}
        record = {
            "machine": self.machine,
            "tools": tools,
            "seconds": self.seconds,
            "sections": {name: [row.record() for row in rows] for name, rows in self.sections.items()},
        }
        fresh = path.with_suffix(".part")
        fresh.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
        fresh.replace(path)

    @classmethod
    def read(cls, path: Path = FILE) -> Race:
        """Raises :class:`OSError` where there is none."""
        record = json.loads(path.read_text())
        return cls(
            record["machine"],
            {name: tool["version"] for name, tool in record["tools"].items()},
            {name: [Row.read(row) for row in rows] for name, rows in record["sections"].items()},
            record["seconds"],
        )


def machine() -> dict[str, Any]:
    """What this race runs on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": os.cpu_count(),
        "memory, GiB": round(memory),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def exponent(sizes: Sequence[int], medians: Sequence[float]) -> float:
    """How a figure grows with the number of ranks: the slope of a line through both, in logarithms."""
    across = [math.log(size) for size in sizes]
    return statistics.linear_regression(across, [math.log(median) for median in medians]).slope

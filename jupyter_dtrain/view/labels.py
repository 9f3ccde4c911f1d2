"""Labels that name the ranks of an output, and sizes, durations and numbers in words.

Plain functions of plain data; nothing here fails.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from jupyter_dtrain.core.metrics import SAMPLES_PER_SECOND, STEPS_PER_SECOND
from jupyter_dtrain.core.world import LONGEST_SET, first_ranks, format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jupyter_dtrain.core.metrics import Speed

WIDGET = "application/vnd.jupyter.widget-view+json"
"""A notebook cannot reach a rank's widgets: this type would show as an error."""

_NEXT_UNIT = 999.95  # a value that rounds to 1000.0 of a unit shows as 1 of the next


def label(ranks: Iterable[int], size: int) -> str:
    """``[0-3] ``, with its space; empty in a world of one rank.

    A label that would be longer than its line counts its ranks and names the first: ``[512 ranks: 0,2,4,…] ``.
    """
    if size <= 1:
        return ""
    named = set(ranks)
    whole = format_ranks(named)
    return f"[{whole}] " if len(whole) <= LONGEST_SET else f"[{len(named)} ranks: {first_ranks(whole)}] "


def is_line(data: Mapping[str, Any]) -> bool:
    """Whether ``data`` is one line of plain text and nothing else."""
    text = data.get("text/plain")
    return len(data) == 1 and isinstance(text, str) and "\n" not in text.rstrip("\n")


def without_widget(data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` without its widget; its other representations stay."""
    return {kind: value for kind, value in data.items() if kind != WIDGET}


def metadata_of(ranks: tuple[int, ...], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """``metadata`` with the ranks, where programs that read the notebook find them."""
    return {**metadata, "dtrain": {"rank": ranks[0]} if len(ranks) == 1 else {"ranks": list(ranks)}}


def human(size: int) -> str:
    """``size`` bytes in words, in powers of 1000: ``12.3 MB``."""
    units = ["TB", "GB", "MB", "kB", "bytes"]
    value = float(size)
    while value >= _NEXT_UNIT and len(units) > 1:
        value /= 1000
        units.pop()
    return f"{value:.1f}".removesuffix(".0") + f" {units[-1]}"


def took(seconds: float) -> str:
    """A duration: ``12.3 s``, ``3:20 min``, ``1:02:03 h``. It is rounded down, as on every clock."""
    if seconds < 60:  # noqa: PLR2004 — a minute
        return f"{math.floor(seconds * 10 + 1e-6) / 10:.1f} s"
    minutes, rest = divmod(math.floor(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} h" if hours else f"{minutes}:{rest:02d} min"


def duration(seconds: float) -> str:
    """The length of a step: ``84.2 ms``, or as :func:`took` has it."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else took(seconds)


def number(value: float | None) -> str:
    """A metric's value, with four digits; ``-`` where there is none."""
    if value is None:
        return "-"
    if math.isnan(value):
        return "NaN"
    return f"{value:.4g}".replace("inf", "∞")


def speeds(speed: Speed) -> list[str]:
    """``26.2 steps/s`` and ``838 samples/s``, as far as they are known."""
    found = ((speed.steps, STEPS_PER_SECOND), (speed.samples, SAMPLES_PER_SECOND))
    return [f"{number(value)} {unit}" for value, unit in found if value is not None]


def longer(more: float) -> str:
    """How much longer than the others' a slow rank's step takes: by ``more``, as a share of theirs."""
    return f"{100 * more:.0f} % longer than the others'" if more < 1 else f"{1 + more:.1f} times as long as the others'"


class EndedRun(Protocol):
    """A run that has ended or goes on: one of a session, or one of the store."""

    @property
    def outcome(self) -> str:
        """The outcome of the run in one word."""

    @property
    def last_values(self) -> Iterable[float]:
        """The last values of the run's metrics, as far as they are known."""

    @property
    def remark(self) -> str:
        """More about the end of a run that ended well; mostly empty."""


def ending_of(run: EndedRun) -> str:
    """How ``run`` ended, as all that name its end in text say it."""
    return ending(run.outcome, run.last_values, run.remark)


def ending(outcome: str, last: Iterable[float], remark: str = "") -> str:
    """How a run ended. ``last``: the last values of its metrics. One that is not finite makes it ``ok, but NaN``.

    ``remark``: more about a run that ended well, such as ``rank 1 was replaced``. The front end says the same:
    ``labextension/src/outcome.ts``.
    """
    if outcome != "ok":
        return "died" if outcome == "lost" else outcome
    strange = next((value for value in last if not math.isfinite(value)), None)
    but = "" if strange is None else f", but {number(strange)}"
    return f"ok{but}{', ' if remark else ''}{remark}"

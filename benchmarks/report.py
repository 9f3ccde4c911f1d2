"""The results of a measurement."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Promise:
    """A figure that has a bound."""

    name: str
    found: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def held(self) -> bool:
        """Whether the figure keeps to it."""
        return (self.at_most is None or self.found <= self.at_most) and (
            self.at_least is None or self.found >= self.at_least
        )

    def record(self) -> dict[str, Any]:
        """As JSON."""
        bounds = {
            name: bound for name, bound in (("at_most", self.at_most), ("at_least", self.at_least)) if bound is not None
        }
        return {"name": self.name, "found": round(self.found, 4), **bounds, "held": self.held}

    def text(self) -> str:
        """For a person."""
        bound = f"at most {self.at_most:g}" if self.at_most is not None else f"at least {self.at_least:g}"
        return f"  {'holds' if self.held else 'BROKEN'}: {self.name} is {self.found:.3g}, {bound}"


@dataclass
class Measurement:
    """Figures by name, and promises on some of them."""

    figures: dict[str, Any] = field(default_factory=dict)
    promises: list[Promise] = field(default_factory=list)

    def promise(self, name: str, found: float, at_most: float) -> None:
        """``found`` must not be above ``at_most``."""
        self.promises.append(Promise(name, found, at_most=at_most))

    def promise_at_least(self, name: str, found: float, at_least: float) -> None:
        """``found`` must not be below ``at_least``."""
        self.promises.append(Promise(name, found, at_least=at_least))

    @property
    def good(self) -> bool:
        """Whether all promises held."""
        return all(promise.held for promise in self.promises)

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {"figures": self.figures, "promises": [promise.record() for promise in self.promises]}

    def text(self) -> str:
        """For a person."""
        lines = [f"  {name}: {value}" for name, value in self.figures.items()]
        return "\n".join([*lines, *(promise.text() for promise in self.promises)])


def summary(values: Sequence[float], scale: float = 1.0, digits: int = 2) -> dict[str, float]:
    """Smallest, median, 95th percentile and largest of ``values``, times ``scale``."""
    ordered = sorted(values)
    picks = {
        "min": ordered[0],
        "median": statistics.median(ordered),
        "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "max": ordered[-1],
    }
    return {name: round(value * scale, digits) for name, value in picks.items()}

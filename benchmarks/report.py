"""What a measurement found."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Measurement:
    """Figures by name, and promises on some of them."""

    figures: dict[str, Any] = field(default_factory=dict)
    promises: list[tuple[str, float, float]] = field(default_factory=list)
    """Name, what was found, what it may be at most."""

    def promise(self, name: str, found: float, at_most: float) -> None:
        """``found`` must not be above ``at_most``."""
        self.promises.append((name, found, at_most))

    @property
    def good(self) -> bool:
        """Whether all promises held."""
        return all(found <= at_most for _, found, at_most in self.promises)

    def record(self) -> dict[str, Any]:
        """As JSON."""
        promises = [
            {"name": name, "found": round(found, 4), "at_most": at_most, "held": found <= at_most}
            for name, found, at_most in self.promises
        ]
        return {"figures": self.figures, "promises": promises}

    def text(self) -> str:
        """For a person."""
        lines = [f"  {name}: {value}" for name, value in self.figures.items()]
        lines += [
            f"  {'holds' if found <= at_most else 'BROKEN'}: {name} is {found:.3g}, at most {at_most:g}"
            for name, found, at_most in self.promises
        ]
        return "\n".join(lines)


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

"""What a rank tells of its surroundings: the variables that it was given, and what each framework sees.

Told while a cell runs, too; nothing is imported for it. Under failure: a framework that cannot say is named with why.
"""

from __future__ import annotations

from collections.abc import Iterable

from jupyter_dtrain.core.facts import Facts
from jupyter_dtrain.core.variables import given
from jupyter_dtrain.wire.answers import Surroundings

from .framework import Framework


def look_around(frameworks: Iterable[Framework]) -> Surroundings:
    """The surroundings of this rank. Any thread."""
    found = {framework.name: facts for framework in frameworks if (facts := _facts(framework)) is not None}
    return Surroundings(given.seen(), found)


def _facts(framework: Framework) -> Facts | None:
    try:
        return framework.describe()
    except Exception as error:  # noqa: BLE001 — a library of another version; the others have something to tell
        words = f"{type(error).__name__}: {error}"
        return Facts(framework.name, "", "", imported=True, details={"cannot be told": words})

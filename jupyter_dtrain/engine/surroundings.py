"""A rank's surroundings: the variables that it was given, and what each framework sees.

A rank answers while a cell runs, too, and imports nothing for it. Under failure: the answer names a framework that
cannot say what it sees, with the reason.
"""

from __future__ import annotations

from jupyter_dtrain.core.variables import given
from jupyter_dtrain.wire.answers import Surroundings

from .callers import keeps_others_out
from .plugins import Plugins


def look_around(plugins: Plugins, local_rank: int) -> Surroundings:
    """The surroundings of this rank. Any thread."""
    return Surroundings(given.seen(), plugins.describe(), open=local_rank == 0 and not keeps_others_out())

"""A rank's surroundings: its variables, the processors that it may use, and what each framework sees.

A rank answers while a cell runs, too, and imports nothing for it. Under failure: the answer names a framework that
cannot say what it sees, with the reason.
"""

from __future__ import annotations

import os

from jupyter_dtrain.core.processors import Processors, read_processors
from jupyter_dtrain.core.variables import given
from jupyter_dtrain.wire.agent_messages import Surroundings

from .plugins import Plugins
from .tcp_guard import keeps_others_out


def look_around(plugins: Plugins, local_rank: int) -> Surroundings:
    """The surroundings of this rank. Any thread."""
    shows = local_rank == 0 and not keeps_others_out()
    return Surroundings(given.seen(), plugins.describe(), open=shows, processors=_processors())


def _processors() -> Processors | None:
    """The processors of the main thread, which runs the cells: a cell may have bound it to some."""
    try:
        return read_processors(os.getpid())
    except OSError:
        return None

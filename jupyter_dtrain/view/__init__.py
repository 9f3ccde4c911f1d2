"""A run as a person sees it: below a notebook cell, in a terminal, and as the error that a cell ends with.

A thread of its own feeds each run's :class:`RunView`. :func:`view_of_cell` makes the view of a cell, a panel with the
cell's output below it; :func:`painter_for_cell` chooses where both go. Views read events and never ask a rank for
anything. A view that can show no more goes quiet; it never stops the run that it shows.
"""

from __future__ import annotations

from .cell import CellView
from .cell_view import view_of_cell
from .comms import CommRelay
from .pace import Pace
from .painter import Painter, painter_for_cell
from .protocol import RunView

__all__ = ["CellView", "CommRelay", "Pace", "Painter", "RunView", "painter_for_cell", "view_of_cell"]

"""A run as a person sees it: below a notebook cell, in a terminal, and as the error that a cell ends with.

The thread that folds a run feeds one :class:`RunView`; :func:`view_of_cell` makes the one for cells, a panel with the
cell's output below it, where :func:`painter_for_cell` says that goes. Views read events and never ask a rank for
anything. A view that can show no more goes quiet; it never stops the run that it shows.
"""

from __future__ import annotations

from .cell import CellView
from .comms import CommRelay
from .pace import Pace
from .painter import Painter, painter_for_cell
from .panel_and_cell import view_of_cell
from .protocol import RunView

__all__ = ["CellView", "CommRelay", "Pace", "Painter", "RunView", "painter_for_cell", "view_of_cell"]

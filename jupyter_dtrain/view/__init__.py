"""A run as a person sees it: below a notebook cell, in a terminal, and as the error that a cell ends with.

The thread that folds a run feeds one :class:`RunView`; :class:`CellView` is the one for cells, and
:func:`painter_for_cell` finds out where the cell's output goes. Views read events and never ask a rank for anything.
A view that can show no more goes quiet; it never stops the run that it shows.
"""

from __future__ import annotations

from .cell import CellView
from .pace import Pace
from .painter import Painter, painter_for_cell
from .protocol import RunView

__all__ = ["CellView", "Pace", "Painter", "RunView", "painter_for_cell"]

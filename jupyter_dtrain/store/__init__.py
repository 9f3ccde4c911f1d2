"""The store keeps the output of every run beyond its world: one SQLite file among Jupyter's data.

:mod:`.schema` defines the file (versions, how to open it) and :mod:`.source` finds the events of a world's runs.
:mod:`.writer` folds them into tables (with :mod:`.columns`, :mod:`.losses` and :mod:`.text_storage`); :mod:`.intake`
keeps that going whatever happens to the file. :mod:`.runs` reads it by way of :mod:`.file`, and :mod:`.tensorboard`
writes the same metrics for TensorBoard. Only the steward writes what ranks report, once for each world and without any
client. The client that a person asks writes names, notes and tags (:mod:`.stored_run`).

The store keeps the cell, its ranks, outcomes, times, all points of its metrics and resources, pictures and other media
within bounds (:mod:`.media`), errors and results up to 64 kB each, and for each rank the first 256 kB and the last
64 kB of its text. The spool has the whole text and rich outputs, for as long as it is kept. Rows stay for
``Settings.store_days``, or for ever where a person keeps a run; then the file uses their space again.

Under failure: a file that cannot be written, is damaged or comes from a newer version stays as it is, and one message
says so. Cells go on without it, and the content of their spools is stored as soon as the file can be written again.
If a steward is killed, the next one stores the rest.
"""

from __future__ import annotations

from .comparison import Comparison, compare
from .media import Medium
from .run_list import RunList, Selection
from .runs import Store, runs
from .schema import store_file
from .stored_run import StoredRun

__all__ = ["Comparison", "Medium", "RunList", "Selection", "Store", "StoredRun", "compare", "runs", "store_file"]

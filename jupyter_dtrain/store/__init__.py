"""What every run said, kept beyond its world: one SQLite file among Jupyter's data.

:mod:`.schema` is the file (versions, how it is opened), :mod:`.source` finds the events of a world's runs,
:mod:`.writer` folds them into tables (with :mod:`.columns` and :mod:`.pieces`), :mod:`.intake` lets that go on whatever
happens to the file, :mod:`.runs` reads it, and :mod:`.tensorboard` writes the same metrics for TensorBoard. The steward
writes, once for each world and without any client; everybody else reads.

What is kept of a run: the cell, its ranks, outcomes, times, all points of its metrics and resources, errors and
results up to 64 kB each, and of each rank's text the first 256 kB and the last 64 kB. Whole text and rich outputs
are in the spool, for as long as that is kept. Rows stay for ``Settings.store_days``; their space is then used again.

Under failure: a file that cannot be written, is damaged or comes from a newer version is left as it is and said so,
once; cells go on without it, and what their spools hold is stored as soon as the file can be written again. What a
steward that was killed did not store, the next one does.
"""

from __future__ import annotations

from .runs import Store, StoredRun, runs
from .schema import store_file

__all__ = ["Store", "StoredRun", "runs", "store_file"]

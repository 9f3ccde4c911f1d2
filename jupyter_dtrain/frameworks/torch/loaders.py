"""Data loaders after an interrupt.

A loader with ``persistent_workers=True`` keeps its workers from one epoch to the next. When the cell that started them
is interrupted, the rank ends them. In plain torch the loader would raise at its next use; here it starts new ones.

Under failure: a loader that cannot be changed stays as it is, and raises as in plain torch.
"""

from __future__ import annotations

import gc
import sys


def drop_workers(ended: set[int]) -> None:
    """Have the loaders that keep workers among the processes ``ended`` start new ones at their next use."""
    module = sys.modules.get("torch.utils.data.dataloader")
    if module is None:
        return
    # torch keeps no list of loaders. Only types are read: objects of other libraries may run code when they are read.
    for one in gc.get_objects():
        if issubclass(type(one), module.DataLoader):
            iterator = vars(one).get("_iterator")
            if any(worker.pid in ended for worker in getattr(iterator, "_workers", ())):
                one._iterator = None  # noqa: SLF001 — as its constructor sets it

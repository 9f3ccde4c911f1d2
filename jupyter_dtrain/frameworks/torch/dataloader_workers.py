"""Data loaders with workers, before and after an interrupt.

* A batch comes in two halves: its bytes through a pipe, and its memory as descriptors, from the worker's own server. In
  plain torch an interrupt between the two loses the batch, for which the loader then waits for ever, and may leave the
  worker's server in a conversation that nobody goes on with: its workers give no other batch. Here the interrupt waits
  until the batch is whole, and comes at once while there is none.
* ``persistent_workers=True`` keeps workers from one epoch to the next. When an interrupt ends the beginning of an
  epoch, the loader starts new workers at its next use, since the old ones may still answer to that beginning. The same
  is true where the rank has ended the workers, because the interrupted cell had started them; plain torch would raise.
  And it is where old workers are still busy with an interrupted epoch: plain torch would wait for them.

Under failure: a loader that cannot be changed stays as it is. A batch that does not come whole, such as that of a
worker which was killed, holds an interrupt up for :data:`~jupyter_dtrain.rank.interrupts.BRIEF` seconds. Batches that
a thread pins (``pin_memory=True``, with a GPU) come whole to that thread in any case.
"""

from __future__ import annotations

import gc
import select
import sys
import time
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.plugins.patches import Patch, raises_on_purpose

if TYPE_CHECKING:
    from jupyter_dtrain.rank.interrupts import Shield

POLL = 5.0
"""Seconds for which torch waits for a batch before it looks whether its workers live."""

PATIENCE = 1.0
"""Seconds in which old workers must be done with an interrupted epoch."""

_EPOCH = "_dtrain_stops"
"""The attribute of an iterator with the number of stops before its epoch began."""
_stops: list[None] = []
"""One item for each interrupted cell of this rank."""


LOADERS = Patch(
    "torch.utils.data.dataloader",
    replaces=(
        "DataLoader.__iter__",
        "_MultiProcessingDataLoaderIter._next_data",
        "_MultiProcessingDataLoaderIter._try_get_data",
        "_MultiProcessingDataLoaderIter._reset",
    ),
    calls=(
        "_MultiProcessingDataLoaderIter._try_get_data(timeout)",
        "_MultiProcessingDataLoaderIter._shutdown_workers()",
        "_utils.signal_handling._remove_worker_pids",
    ),
    reads=("_data_queue", "_reader", "_iterator", "_task_info", "_worker_pids_set", "_workers"),
    why="An interrupt between the two halves of a batch makes a DataLoader with workers wait for ever for that batch.",
    lost="a DataLoader with workers may hang after an interrupted cell",
)


def hook_loaders(shield: Shield, module: Any) -> None:
    """Patch ``torch.utils.data.dataloader``, which user code has just imported. ``shield`` delays interrupts."""
    kind = module._MultiProcessingDataLoaderIter  # noqa: SLF001 — every loader with workers returns one

    def _next_data(original: Any, iterator: Any) -> Any:
        """Take the next batch, and ask a worker for another: all or nothing, but for the wait."""
        with shield.briefly():
            return original(iterator)

    def _try_get_data(original: Any, iterator: Any, timeout: float = POLL) -> Any:
        """Wait for a batch, within interrupts' reach; then take it."""
        reader = getattr(iterator._data_queue, "_reader", None)  # noqa: SLF001 — torch has no public way
        with shield.lifted():
            if reader is None:
                return original(iterator, timeout)
            poll = select.poll()
            poll.register(reader.fileno(), select.POLLIN)
            ready = raises_on_purpose(poll.poll)(1000 * timeout)  # a signal handler of the user's may raise
        return original(iterator, timeout if ready else 0)

    for ours in (_next_data, _try_get_data, _reset):
        LOADERS.replace(kind, ours.__name__, ours)
    LOADERS.replace(module.DataLoader, "__iter__", _iter)


def _reset(original: Any, iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
    """Begin an epoch with the workers of the one before; where that fails, the next epoch has new workers."""
    try:
        original(iterator, loader, *args, **kwargs)
    except BaseException:
        loader._iterator = None  # noqa: SLF001 — as its constructor sets it
        raise


def _iter(original: Any, loader: Any) -> Any:
    """Begin an epoch, with new workers if the old ones do not come free from one that Stop has ended."""
    old = vars(loader).get("_iterator")
    if old is not None and vars(old).get(_EPOCH, len(_stops)) < len(_stops) and _is_busy(old):
        try:
            _end_workers(old)
        finally:
            loader._iterator = None  # noqa: SLF001 — as its constructor sets it
    iterator = original(loader)
    setattr(iterator, _EPOCH, len(_stops))
    return iterator


def _is_busy(iterator: Any) -> bool:
    """Whether workers still owe batches of the last epoch, and go on doing so."""
    owed = sum(len(task) == 1 for task in iterator._task_info.values())  # noqa: SLF001 — torch has no public way
    deadline = time.monotonic() + PATIENCE
    while owed and (left := deadline - time.monotonic()) > 0:
        came, _ = iterator._try_get_data(left)  # noqa: SLF001
        owed -= came
    return owed > 0


def _end_workers(iterator: Any) -> None:
    if iterator._worker_pids_set:  # noqa: SLF001 — else torch would raise because workers were killed
        sys.modules["torch.utils.data._utils.signal_handling"]._remove_worker_pids(id(iterator))  # noqa: SLF001
        iterator._worker_pids_set = False  # noqa: SLF001
    for worker in iterator._workers:  # noqa: SLF001
        worker.kill()
    iterator._shutdown_workers()  # noqa: SLF001


def note_stop() -> None:
    """Note that a cell was interrupted: its loaders wait only shortly for their workers from now on."""
    _stops.append(None)


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

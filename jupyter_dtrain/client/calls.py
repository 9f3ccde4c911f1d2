"""Calls of a function on the ranks: it travels by cloudpickle, runs as a cell of its own, and its values come back.

Under failure: what cannot be pickled raises before anything is sent. An exception of the function, a dead rank and an
interrupt are those of a cell. A value that cannot come back raises :class:`~jupyter_dtrain.core.errors.TransferFailed`
with the reason; the ranks let go of it.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle

from jupyter_dtrain.core.errors import RanksBusy, TransferFailed
from jupyter_dtrain.core.run_names import cut_name
from jupyter_dtrain.wire.values import ARGUMENTS

from .variables import CALL

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.core.world import Ranks

    from .rank_requests import RankRequests

MANY = 64
"""Failed calls whose values the next call removes."""
POLL = 0.05
"""Seconds between two looks whether ranks that have begun another cell are free."""
_registry = threading.Lock()
"""Held while functions are pickled."""


class Calls:
    """The calls of one session. Thread-safe."""

    def __init__(self, requests: RankRequests, run: Callable[..., Run], busy: Callable[[], Mapping[int, int]]) -> None:
        """``run`` runs a cell, as :meth:`.Session.run`; ``busy``: rank → run."""
        self._requests = requests
        self._run = run
        self._busy = busy
        self._numbers = itertools.count(1)
        self._left: deque[str] = deque(maxlen=MANY)
        """The names of calls that failed: the ranks that ended them have values, and the next call removes these."""

    def call(
        self, function: Callable[..., Any], arguments: Sequence[Any], ranks: Ranks, timeout: float | None
    ) -> dict[int, Any]:
        """As :meth:`.Session.call`."""
        return self._order("run_call", function, tuple(arguments), ranks, timeout)

    def map(
        self, function: Callable[[Any], Any], items: Sequence[Any], ranks: list[int], timeout: float | None
    ) -> list[Any]:
        """As :meth:`.Session.map`."""
        found = self._order("run_map", function, items, ranks, timeout)
        parts = [iter(found[rank]) for rank in ranks]
        return [next(parts[place % len(ranks)]) for place in range(len(items))]

    def _order(
        self, verb: str, function: Callable[..., Any], given: Sequence[Any], ranks: Ranks, timeout: float | None
    ) -> dict[int, Any]:
        label = getattr(function, "__name__", type(function).__name__)
        try:
            with _whole(function):
                data = cloudpickle.dumps((function, given, _lines(function)), protocol=5)
        except Exception as error:  # noqa: BLE001 — pickling may raise anything
            raise TransferFailed(
                f"{label} cannot be called on the ranks: it, what it uses, or an argument cannot be pickled "
                f"({type(error).__name__}: {error}). Make that on the ranks, inside the function or in a cell."
            ) from None
        name = f"_dtrain_value_{next(self._numbers)}"
        some = {"ranks": ranks} if isinstance(ranks, list) else {}
        code = CALL.format("calls", verb, (name,), some | {"left": [*self._left]})
        try:
            run = self._run(code, ranks, inputs={ARGUMENTS: data}, timeout=timeout, name=cut_name(f"call {label}"))
        except BaseException:
            self._left.append(name)
            raise
        while True:
            try:
                return self._requests.pull([name], run.ranks, forget=True)[name]
            except RanksBusy:
                # Another thread's cell was queued behind this one: the value stays meanwhile.
                while self._busy().keys() & set(run.ranks):
                    time.sleep(POLL)
            except TransferFailed as error:
                words = str(error).replace(repr(name), f"the value of {label}")
                raise TransferFailed(f"{words[:1].upper()}{words[1:]}") from None


@contextlib.contextmanager
def _whole(function: Callable[..., Any]) -> Iterator[None]:
    """Have the functions and classes of a module travel whole where an import on the ranks would not find it."""
    name = getattr(function, "__module__", None) or "__main__"
    module = sys.modules.get(name)
    with _registry:  # cloudpickle's is one for all threads
        if (
            name == "__main__"
            or not getattr(module, "__file__", None)
            or name in cloudpickle.list_registry_pickle_by_value()
            or _is_found(name.partition(".")[0])
        ):
            yield
            return
        cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            cloudpickle.unregister_pickle_by_value(module)


def _is_found(name: str) -> bool:
    """Whether an import finds a module of that name, imported or not; pytest's finder knows its own alone."""
    finders = [one for one in sys.meta_path if not type(one).__module__.startswith("_pytest")]
    return any(one.find_spec(name, None) is not None for one in finders)


def _lines(function: Callable[..., Any]) -> tuple[str, list[str]]:
    """The file of a function's code and its lines, where it is a notebook's cell: the ranks have no such file."""
    code = getattr(function, "__code__", None)
    if code is None or getattr(function, "__module__", "") != "__main__":
        return "", []
    return code.co_filename, linecache.getlines(code.co_filename)

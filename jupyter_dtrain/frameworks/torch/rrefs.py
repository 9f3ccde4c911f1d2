"""RRefs of torch in a process that sets up rpc a second time.

torch keeps one table of references for as long as the process lives, with the first rpc agent in it, and marks it as
destroyed when that is shut down (``RRefContext`` in torch 2.13). So after a second ``init_rpc`` plain calls work, but
every ``rpc.remote`` says that "RPC is no longer running on this node". There is no way to make a new table; so the old
one is given the agent that is new, and is no longer marked. Nor does it count any more what the agent of before was
asked and had no time to answer, for which ``shutdown`` would wait.

That is done in torch's memory, where its own header says that the three members are, and only if what stands there is
what must stand there: the first agent, a mark that changed when it was shut down, and the count that torch tells.
Anything else is left alone, and :meth:`References.renew` says so.
"""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path
from types import ModuleType
from typing import Any

_SPACE = "_ZN5torch11distributed3rpc"
_TABLE = f"{_SPACE}11RRefContext11getInstanceEv"
_AGENT = f"{_SPACE}8RpcAgent18getCurrentRpcAgentEv"
_MUTEX = {"x86_64": 40, "aarch64": 48}
"""Bytes of a ``std::mutex`` of the C library of Linux."""
_POINTER, _MAP, _CONDITION = 16, 56, 48
"""Bytes of a shared pointer, a hash map and a condition variable of the C++ library."""


class _Shared(ctypes.Structure):
    """A shared pointer, as a function returns it; longer than one, so that it is returned in memory everywhere."""

    _fields_ = (("object", ctypes.c_void_p), ("count", ctypes.c_void_p), ("unused", ctypes.c_void_p))


class References:
    """torch's table of references in this process."""

    def __init__(self, torch: ModuleType) -> None:
        self._table: Any = None
        self._current: Any = None
        self._rpc: Any = None
        self._agent: int | None = None
        mutex = _MUTEX.get(platform.machine())
        try:
            library = ctypes.CDLL(str(Path(str(torch.__file__)).parent / "lib" / "libtorch_cpu.so"))
            table, agent = library[_TABLE], library[_AGENT]
            self._rpc = torch._C._distributed_rpc  # noqa: SLF001
        except (OSError, AttributeError):
            return
        if mutex is None:
            return
        table.restype, table.argtypes = ctypes.c_void_p, ()
        agent.restype, agent.argtypes = _Shared, ()
        self._table, self._current = table, agent
        # The agent, a mutex, three maps, a condition variable, three maps, a counter, a mutex, the mark.
        self._unanswered = _POINTER + mutex + 3 * _MAP + _CONDITION + 3 * _MAP
        self._mark = self._unanswered + 8 + mutex

    def renew(self) -> bool:
        """An agent has begun to run, which is in nobody's use yet: whether references work with it."""
        first = self._agent is None
        if self._table is None:
            self._agent = 0
            return first
        table = self._table()
        # This counts as a use of the agent, which the table keeps until the process ends.
        new = self._current()
        held = ctypes.c_void_p.from_address(table)
        mark = ctypes.c_ubyte.from_address(table + self._mark)
        unanswered = ctypes.c_int64.from_address(table + self._unanswered)
        expected = (new.object, 0) if first else (self._agent, 1)
        known = (held.value, mark.value) == expected and unanswered.value == self._told("num_pending_futures")
        if not known:
            self._table = None
            self._agent = 0
            return first
        if not first:
            ctypes.memmove(table, ctypes.byref(new), _POINTER)
            mark.value = unanswered.value = 0
        self._agent = new.object
        return True

    def unconfirmed(self) -> int:
        """How many references there are whose owner has not answered; between two agents, those that never will be."""
        # The table is made with the agent that there is: asked before, there would be none in it.
        return 0 if self._agent is None or self._rpc is None else self._told("num_pending_users")

    def _told(self, what: str) -> int:
        return int(self._rpc._rref_context_get_debug_info()[what])  # noqa: SLF001 — torch's only way

"""What the events in a trace of JAX's profiler are: XLA's operators at work, and collectives.

An event of XLA's names its operator (``hlo_op``), the jitted function around it (``hlo_module``) and the run of that
function, which has the same number on all ranks: by that the ranks' collectives are matched. The trace names neither
groups nor sizes.

On the host, an operator's event ends when its thread turns to something else. Where threads of a pool carry it on, as a
large product of matrices, a later event ``end: NAME`` tells that it is over: on the thread that then goes on with what
depends on it, after that.

It imports no JAX: the notebook reads traces. Plain functions of plain data; an event that is not as expected gets no
role.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, Final

from jupyter_dtrain.core.traces import GroupOf, Role

_KINDS: Final = {
    **dict.fromkeys(("all-reduce", "psum", "pmax", "pmin"), "all_reduce"),
    **dict.fromkeys(("all-gather", "all_gather"), "all_gather"),
    **dict.fromkeys(("reduce-scatter", "reduce_scatter"), "reduce_scatter"),
    **dict.fromkeys(("all-to-all", "all_to_all", "ragged-all-to-all", "ragged_all_to_all"), "all_to_all"),
    **dict.fromkeys(("collective-broadcast", "pbroadcast"), "broadcast"),
    **dict.fromkeys(("collective-permute", "ppermute"), ""),
}
"""The kinds of collectives, by how XLA and JAX call them; empty for what ranks send each other one by one."""
_COLLECTIVE: Final = re.compile(rf"({'|'.join(_KINDS)})(?:-start|_invariant)?(?:\.\w+)*")
_HOLDS: Final = re.compile(r"(?:while|conditional|call)(?:\.\w+)*|.*-done(?:\.\w+)*")
"""Operators that hold others, or wait for what was begun before."""
_END: Final = "end: "
_GOES_ON: Final = "ThunkExecutor::Execute"
"""What a thread does that goes on with the operators that depend on one which is over."""
_AT_ONCE: Final = 50.0
"""Microseconds between that and the event which tells the end."""
_STREAM: Final = re.compile(r"Stream #(\d+)")
_COPIES: Final = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}
_SUMMARY: Final = "summary"
"""The category of rows in which the profiler sums up what streams have done, operator by operator."""
_HOST: Final = 701
"""The process of all that is no stream of a GPU: the profiler's own number for the host."""
_PLAIN: Final = re.compile(r"^tf_|/-?\d+$")
"""The parts of a thread's name that say nothing to people."""


def roles(events: Sequence[dict[str, Any]], _groups: Sequence[GroupOf], _ranks: int) -> list[Role | None]:
    """The role of each of one rank's ``events``; None where it has none.

    It gives them the rows of :mod:`jupyter_dtrain.core.traces`: streams are rows of their GPU, and their events are
    kernels or copies; a host's thread has a small number in place of a hash.
    """
    _number_rows(events)
    lengths = _lengths(events)
    return [_role(event, lengths.get(place)) for place, event in enumerate(events)]


def _role(event: dict[str, Any], length: float | None) -> Role | None:
    args = _args(event)
    name, operator = str(event.get("name", "")), str(args.get("hlo_op", ""))
    if event.get("ph") != "X" or event.get("cat") == _SUMMARY:
        return None
    if (found := _COLLECTIVE.fullmatch(operator)) is not None:
        key = f"{args.get('hlo_module', '')} {operator} {args.get('run_id', '')}"
        return Role(communicates=True, kind=_KINDS[found[1]], key=key, length=length)
    if name.startswith("nccl") and "cat" in event:
        return Role(communicates=True)
    if not operator or _HOLDS.fullmatch(operator):
        return None
    module = args.get("hlo_module")
    return Role(computes=True, name=f"{module}: {operator}" if module else operator, length=length)


def _number_rows(events: Sequence[dict[str, Any]]) -> None:
    """Number rows as this package does, and tell what ran on a GPU."""
    named = [event for event in events if event.get("ph") == "M" and event.get("name") == "thread_name"]
    names = {(event["pid"], event["tid"]): str(_args(event).get("name", "")) for event in named}
    streams = {row: int(found[1]) for row, name in names.items() if (found := _STREAM.match(name))}
    gpus = {pid: place for place, pid in enumerate(sorted({pid for pid, _ in streams}))}
    rows: dict[tuple[int, int], int] = {}
    for event in events:
        row = (event["pid"], event["tid"])
        if (stream := streams.get(row)) is not None:
            event["pid"], event["tid"] = gpus[row[0]], stream
            if event["ph"] == "X":
                event["cat"] = _COPIES.get(str(event.get("name", ""))[:6], "kernel")
        else:
            if row[0] in gpus:
                event["cat"] = _SUMMARY
            event["pid"], event["tid"] = _HOST, rows.setdefault(row, len(rows) + 1)
            if row in names and event["ph"] == "M":
                event["args"] = {"name": _PLAIN.sub("", names[row])}


def _lengths(events: Sequence[dict[str, Any]]) -> dict[int, float]:
    """By the place of an operator's event, the microseconds until it was over, where that is after its end."""
    ordered = sorted((place for place, event in enumerate(events) if event.get("ph") == "X"), key=_by_time(events))
    goes_on: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event.get("name") == _GOES_ON and event.get("ph") == "X":
            goes_on[event["tid"]].append((event["ts"] + event["dur"], event["ts"]))
    for several in goes_on.values():
        several.sort()
    begun: dict[str, deque[int]] = defaultdict(deque)
    found = {}
    for place in ordered:
        event = events[place]
        name = str(event.get("name", ""))
        if "hlo_op" in _args(event) and "cat" not in event:
            begun[name].append(place)
        elif name.startswith(_END) and (waiting := begun.get(name.removeprefix(_END))):
            first = waiting.popleft()
            ended = float(event["ts"])
            several = goes_on[event["tid"]]
            before = bisect.bisect_right(several, (ended, ended)) - 1
            if before >= 0 and several[before][0] > ended - _AT_ONCE:
                ended = max(several[before][1], float(events[first]["ts"]))
            if (length := ended - float(events[first]["ts"])) > float(events[first]["dur"]):
                found[first] = length
    return found


def _by_time(events: Sequence[dict[str, Any]]) -> Any:
    return lambda place: float(events[place]["ts"])


def _args(event: dict[str, Any]) -> dict[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}

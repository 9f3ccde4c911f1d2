"""What the events in a trace of PyTorch's profiler are: operators at work, and collectives with their sizes.

gloo's collectives are events of its own threads, and NCCL's are kernels with the facts that torch gives them. gloo's
name no group: the rank's flight recorder does, as far as it has room (:mod:`.flight_recorder`). It imports no torch:
the notebook reads traces.

Plain functions of plain data; an event that is not as expected gets no role.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jupyter_dtrain.core.traces import GroupOf, Role

_GLOO: Final = re.compile(r"gloo:\w+")
_IDLE: Final = ("c10d::", "_c10d_functional::", "c10d_functional::", "autograd::", "record_param_comms")
"""Operators that only begin communication, wait for it, or hold other operators."""
_POINT_TO_POINT: Final = ("send", "recv", "sendrecv")
_SIZES: Final = {
    **dict.fromkeys(("double", "long int", "long", "c10::complex<float>", "unsigned long"), 8),
    **dict.fromkeys(("float", "int", "unsigned int"), 4),
    **dict.fromkeys(("half", "short int", "short", "c10::half", "bfloat16", "c10::bfloat16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "unsigned char", "signed char"), 1),
    **dict.fromkeys(("c10::float8_e4m3fn", "c10::float8_e5m2", "float8_e4m3fn", "float8_e5m2"), 1),
}
"""Bytes of an element, by its type in lower case, as the events of gloo and NCCL name it."""
FACTORS: Final[dict[str, Callable[[int], float]]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
}
"""The bytes on the bus for each byte of a collective, by the number of ranks: NCCL-tests' factors.

From https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md. So the bus bandwidth of a collective does not
depend on the number of ranks, and can be compared with what the link can do.
"""


def roles(events: Sequence[Mapping[str, Any]], groups: Sequence[GroupOf], ranks: int) -> list[Role | None]:
    """The role of each of one rank's ``events``; None where it has none.

    ``groups``: those of gloo's collectives, in their order; they count where there are as many as the events of that
    name. ``ranks``: how many there are in a group that is not known.
    """
    begun: dict[str, list[GroupOf]] = defaultdict(list)
    for one in groups:
        begun[one.name].append(one)
    seen: dict[str, list[int]] = defaultdict(list)
    for place, event in enumerate(events):
        if event.get("ph") == "X" and _GLOO.fullmatch(str(event.get("name", ""))):
            seen[event["name"]].append(place)
    group_of: dict[int, GroupOf] = {}
    for name, places in seen.items():
        if len(places) == len(begun[name]):
            places.sort(key=lambda place: float(events[place]["ts"]))
            group_of.update(zip(places, begun[name], strict=True))
    return [_role(event, group_of.get(place), ranks) for place, event in enumerate(events)]


def _role(event: Mapping[str, Any], group: GroupOf | None, ranks: int) -> Role | None:
    if event.get("ph") != "X":
        return None
    name, category = str(event.get("name", "")), event.get("cat")
    args = event.get("args") or {}
    if _GLOO.fullmatch(name):
        kind = _kind(name)
        known = "" if group is None else group.group, 0 if group is None else len(group.ranks)
        size = _given(args)
    elif category == "kernel" and name.startswith("nccl"):
        kind = _kind(str(args.get("Collective name") or name))
        known = str(args.get("Process Group Name", "")), int(args.get("Group size") or 0)
        size = _told(args)
    else:
        computes = category == "cpu_op" and "::" in name and not name.startswith(_IDLE)
        return Role(computes=True) if computes else None
    if kind in _POINT_TO_POINT:
        return Role(communicates=True)
    members = known[1] or ranks
    if size is not None and kind in ("all_gather", "gather") and "In msg nelems" not in args:
        size *= members
    factor = FACTORS.get(kind)
    bus = None if size is None or factor is None else size * factor(members)
    return Role(communicates=True, kind=kind, group=known[0], ranks=known[1], size=size, bus=bus)


def _kind(name: str) -> str:
    """The kind of a collective, in the words of torch.distributed."""
    name = name.rpartition(":")[2].strip("_").lower()
    if name.startswith("nccl"):
        name = re.sub(r"^nccl(dev)?kernel_", "", name).partition("_")[0]
    plain = name.replace("_", "")
    return next((known for known in FACTORS if plain.startswith(known.replace("_", ""))), name)


def _told(args: Mapping[str, Any]) -> int | None:
    """The bytes of all parts of a collective of NCCL's, as torch tells them."""
    element = _SIZES.get(str(args.get("dtype", "")).lower())
    count = max(int(args.get("In msg nelems") or 0), int(args.get("Out msg nelems") or 0))
    return element * count if element and count else None


def _given(args: Mapping[str, Any]) -> int | None:
    """The bytes that a rank has given to a collective of gloo's."""
    shapes, kinds = args.get("Input Dims"), args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(kinds, list) or len(shapes) != len(kinds) or not shapes:
        return None
    size = 0
    for shape, kind in zip(shapes, kinds, strict=True):
        element = _SIZES.get(str(kind).lower())
        if element is None or not isinstance(shape, list) or not all(isinstance(one, int) for one in shape):
            return None
        size += math.prod(shape) * element
    return size

"""The content of torch's flight recorder in this rank: the collectives it began, their order and their shapes.

Each kind of torch's process groups has a recorder of its own (gloo and NCCL in torch 2.13); ``TORCH_FR_BUFFER_SIZE``
turns both on.
Its numbers agree on all ranks of a group, so they show which rank has not come to a collective, and which rank went to
another one.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from typing import Any

from jupyter_dtrain.core.stacks import Collective
from jupyter_dtrain.core.traces import GroupOf
from jupyter_dtrain.plugins.patches import Patch

from .values import beside_captures

RECORDED = "256"
"""Number of collectives to keep, over all groups."""
LAST = 8
"""Number of collectives to report for each group."""
DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""torch's functions that give the recorders' content; a build without NCCL has the first one alone."""
RECORDER = Patch(
    "torch.distributed.distributed_c10d",
    calls=("_world",),
    reads=DUMPS,
    why="torch gives the content of its flight recorder, and the list of its groups, by private names alone.",
    lost="the collectives that each rank has begun are not shown",
)
SAME_SIZE = frozenset(
    {
        "all_gather",
        "_all_gather_base",
        "all_reduce",
        "broadcast",
        "gather",
        "reduce",
        "reduce_scatter",
        "_reduce_scatter_base",
    }
)
"""Collectives that take equally many elements of one type on each rank, in any shape; any other may differ."""
MOMENT = 0.3
"""Seconds that a collective which all ranks have begun may take to finish."""


def recorded_collectives(since: int) -> list[Collective]:
    """The last collectives of each existing group; empty where torch records none. Any thread may call it.

    ``since``: only those begun later than this, in ``time.time_ns()``.
    """
    members = _members()
    entries = _entries()
    groups: dict[str, list[Collective]] = {}
    for entry in entries:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            group = str(entry["process_group"][0])
            if not entry["is_p2p"] and group in members and entry["time_created_ns"] > since:
                over = bool(entry.get("retired")) or entry.get("state") == "completed"
                number = int(entry["collective_seq_id"])
                begun = Collective(group, members[group], number, _call(entry), _alike(entry), over)
                groups.setdefault(group, []).append(begun)
    return [collective for found in groups.values() for collective in found[-LAST:]]


def recorded_groups(since: int, until: int) -> list[GroupOf]:
    """The groups of gloo's collectives that this rank began between two times (``time.time_ns()``), in their order.

    Empty where the recorder had no room for all of them.
    """
    members, entries = _members(), _entries()
    if not entries or entries[0].get("time_created_ns", 0) > since:
        # It keeps the newest ones: those before may be lost, unless these are the first ever.
        with contextlib.suppress(KeyError, TypeError, ValueError):
            if len(entries) >= int(RECORDED):
                return []
    found = []
    for entry in entries:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            name, group = str(entry["profiling_name"]), str(entry["process_group"][0])
            if since < entry["time_created_ns"] < until and group in members:
                found.append(GroupOf(name, group, members[group]))
    return found


def is_unfinished(since: int) -> bool:
    """Whether a gloo collective that this rank began later than ``since`` does not finish.

    It gives a collective :data:`MOMENT` seconds. A GPU's collectives do not count: many are always queued there.
    """
    deadline = time.monotonic() + MOMENT
    while is_pending(since):
        if time.monotonic() > deadline:
            return True
        time.sleep(MOMENT / 10)
    return False


def is_pending(since: int) -> bool:
    """Whether a gloo collective that this rank began later than ``since`` is not finished."""
    return any(_is_pending(entry, since) for entry in _entries())


def _is_pending(entry: dict[str, Any], since: int) -> bool:
    with contextlib.suppress(KeyError, TypeError, ValueError):
        of_gloo = str(entry["profiling_name"]).startswith("gloo:")
        return of_gloo and not entry["retired"] and entry["time_created_ns"] > since
    return False


def is_pending_on_device(since: int) -> bool:
    """Whether a GPU has a collective of NCCL's to do that this rank began later than ``since``. Any thread may ask."""
    for entry in _entries(onlyActive=True):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            of_nccl = str(entry["profiling_name"]).startswith("nccl:")
            if of_nccl and entry["state"] != "completed" and entry["time_created_ns"] > since:
                return True
    return False


def _entries(**options: bool) -> list[dict[str, Any]]:
    """Return the entries of all recorders, in the order of their times."""
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    found: dict[str, dict[str, Any]] = {}
    for name in DUMPS:
        dump = getattr(c10d, name, None)
        if dump is None:
            continue
        # The format is torch's own and may change. NCCL's recorder asks the GPU how far it is.
        with contextlib.suppress(Exception), beside_captures():
            for entry in json.loads(dump(includeCollectives=True, **options)).get("entries", ()):
                # A version may have one recorder for both.
                found[f"{entry.get('process_group')} {entry.get('record_id')} {entry.get('time_created_ns')}"] = entry
    return sorted(found.values(), key=lambda entry: entry.get("time_created_ns", 0))


def _members() -> dict[str, list[int]]:
    """Return the ranks of each existing group, by its name."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return {}
    world = c10d._world  # noqa: SLF001 — torch has no public list of groups
    return {world.pg_names[group]: sorted(ranks) for group, ranks in list(world.pg_group_ranks.items())}


def _call(entry: dict[str, Any]) -> str:
    given = ", ".join(f"{dtype}{sizes}" for dtype, sizes in _given(entry))
    return f"{_name(entry)} of {given}" if given else _name(entry)


def _alike(entry: dict[str, Any]) -> str:
    """Return what must be equal on all ranks for a collective to finish."""
    name = _name(entry)
    if name not in SAME_SIZE:
        return name
    return f"{name} of {', '.join(f'{math.prod(sizes)} {dtype}' for dtype, sizes in _given(entry))}"


def _name(entry: dict[str, Any]) -> str:
    return str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"])


def _given(entry: dict[str, Any]) -> list[tuple[str, list[int]]]:
    """Return the type and the sizes of each tensor that the rank has given to a collective."""
    dtypes = (str(dtype).lower() for dtype in entry["input_dtypes"])
    return list(zip(dtypes, entry["input_sizes"], strict=True))

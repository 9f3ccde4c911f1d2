"""The content of torch's flight recorder in this rank: the collectives it began, their order and their shapes.

The recorder is part of torch's process groups (gloo and NCCL in torch 2.13); ``TORCH_FR_BUFFER_SIZE`` turns it on.
Its numbers agree on all ranks of a group, so they show which rank has not come to a collective, and which rank went to
another one.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any

from jupyter_dtrain.core.stacks import Collective

RECORDED = "256"
"""Number of collectives to keep, over all groups."""
LAST = 8
"""Number of collectives to report for each group."""
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
                begun = Collective(group, members[group], int(entry["collective_seq_id"]), _call(entry))
                groups.setdefault(group, []).append(begun)
    return [collective for found in groups.values() for collective in found[-LAST:]]


def is_unfinished(since: int) -> bool:
    """Whether a gloo collective that this rank began later than ``since`` does not finish.

    It gives a collective :data:`MOMENT` seconds. A GPU's collectives do not count: many are always queued there.
    """
    deadline = time.monotonic() + MOMENT
    while any(_is_pending(entry, since) for entry in _entries()):
        if time.monotonic() > deadline:
            return True
        time.sleep(MOMENT / 10)
    return False


def _is_pending(entry: dict[str, Any], since: int) -> bool:
    with contextlib.suppress(KeyError, TypeError, ValueError):
        of_gloo = str(entry["profiling_name"]).startswith("gloo:")
        return of_gloo and not entry["retired"] and entry["time_created_ns"] > since
    return False


def _entries() -> list[dict[str, Any]]:
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(c10d, "_dump_fr_trace_json", None)
    if dump is not None:
        # The format is torch's own and may change.
        with contextlib.suppress(Exception):
            found: list[dict[str, Any]] = json.loads(dump(includeCollectives=True))["entries"]
            return found
    return []


def _members() -> dict[str, list[int]]:
    """The existing groups, by name, with their ranks."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return {}
    world = c10d._world  # noqa: SLF001 — torch has no public list of groups
    return {world.pg_names[group]: sorted(ranks) for group, ranks in list(world.pg_group_ranks.items())}


def _call(entry: dict[str, Any]) -> str:
    name = str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"])
    shapes = zip(entry["input_dtypes"], entry["input_sizes"], strict=True)
    given = ", ".join(f"{str(dtype).lower()}{sizes}" for dtype, sizes in shapes)
    return f"{name} of {given}" if given else name

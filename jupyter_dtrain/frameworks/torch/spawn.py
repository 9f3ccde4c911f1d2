"""Processes that a rank starts with ``torch.multiprocessing.spawn``: they form a world of their own.

A script written for plain ``python`` spawns its ranks and sets where they meet. Without this module its processes
would inherit the rank's variables, torchrun's among them, and each would expect another process to keep the store.

Values that the script itself sets stay: where it names another meeting point, only torchrun's variables are removed.
DataLoader workers, and processes started in other ways, keep the rank's environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any

from jupyter_dtrain.plugins.patches import Patch, raises_on_purpose

SPAWN = Patch(
    "torch.multiprocessing.spawn",
    replaces=("start_processes", "torch.multiprocessing.start_processes"),
    why="Processes that a rank spawns inherit its place in the world, and each expects another one to keep the store.",
    lost="processes that a rank spawns cannot form a process group of their own",
)


def hook_spawn(variables: Mapping[str, str], module: ModuleType) -> None:
    """Patch ``torch.multiprocessing.spawn``, just imported. ``variables``: the environment that the rank was given."""
    start = vars(module)["start_processes"]
    ours = SPAWN.replace(module, "start_processes", partial(_start, variables))
    holder = sys.modules.get("torch.multiprocessing")
    if holder is not None and vars(holder).get("start_processes") is start:
        SPAWN.put(holder, "start_processes", ours)


def _start(
    variables: Mapping[str, str],
    original: Any,
    fn: Any,
    args: Any = (),
    nprocs: int = 1,
    join: bool = True,  # noqa: FBT001, FBT002 — torch's signature
    *others: Any,
    **options: Any,
) -> Any:
    elsewhere = os.environ.get("MASTER_PORT") != variables["MASTER_PORT"]
    kept: dict[str, str] = {}
    try:
        for name in variables:
            if name in os.environ and (name.startswith("TORCHELASTIC") or not elsewhere):
                kept[name] = os.environ.pop(name)
        context = original(fn, args, nprocs, False, *others, **options)
    finally:
        os.environ.update(kept)
    if not join:
        return context
    _join(context)
    return None


@raises_on_purpose
def _join(context: Any) -> None:
    """Wait for the processes; their errors are the user's."""
    while not context.join():
        pass

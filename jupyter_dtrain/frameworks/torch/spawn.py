"""Processes that a rank starts with ``torch.multiprocessing.spawn``: they form a world of their own.

A script written for plain ``python`` spawns its ranks and sets where they meet. Without this module its processes
would inherit the rank's variables, torchrun's among them, and each would expect another process to keep the store.

Values that the script itself sets stay: where it names another meeting point, only torchrun's variables are removed.
DataLoader workers, and processes started in other ways, keep the rank's environment.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def hook_spawn(variables: Mapping[str, str], module: ModuleType) -> None:
    """Patch ``torch.multiprocessing.spawn``, just imported. ``variables``: the environment that the rank was given."""
    start: Callable[..., Any] = module.start_processes
    replacement = _without(variables, start)
    for holder in (module, sys.modules.get("torch.multiprocessing")):
        if holder is not None and vars(holder).get("start_processes") is start:
            vars(holder)["start_processes"] = replacement


def _without(variables: Mapping[str, str], start: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(start)

    @functools.wraps(start)
    def start_processes(*args: Any, **options: Any) -> Any:
        call = signature.bind(*args, **options)
        join = call.arguments.pop("join", True)
        elsewhere = os.environ.get("MASTER_PORT") != variables["MASTER_PORT"]
        kept: dict[str, str] = {}
        try:
            for name in variables:
                if name in os.environ and (name.startswith("TORCHELASTIC") or not elsewhere):
                    kept[name] = os.environ.pop(name)
            context = start(*call.args, **{**call.kwargs, "join": False})
        finally:
            os.environ.update(kept)
        while join and not context.join():
            pass
        return None if join else context

    return start_processes

"""The set-up of the stand-in for ``horovod.torch``, and each process' place in the world.

Under failure: a question before ``init()`` raises :class:`ValueError`, as Horovod's does; :class:`NotInStandIn` names
a part of Horovod that the stand-in lacks.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist


class NotInStandIn(NotImplementedError, AttributeError):
    """The stand-in lacks a part of Horovod."""

    def __init__(self, what: str) -> None:
        super().__init__(f"jupyter-dtrain's stand-in for Horovod has no {what}: that needs Horovod itself.")


class HorovodInternalError(RuntimeError):
    """Horovod's error of a collective. The stand-in never raises it: torch's own errors come as they are."""


_state = SimpleNamespace(ready=False)


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Set up torch's default process group, unless there is one; may be called again and again."""
    if comm or process_sets:
        raise NotInStandIn("init() with ranks or a communicator" if comm else "process sets")
    if not dist.is_initialized():
        dist.init_process_group()
        atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
    _state.ready = True


def shutdown() -> None:
    """Undo ``init()``, but for torch's process group: torch 2.13 often cannot leave one and set up another."""
    _state.ready = False


def is_initialized() -> bool:
    """Whether the user called ``init()``, and no ``shutdown()`` since."""
    return bool(_state.ready and dist.is_initialized())


def check(process_set: Any = None) -> None:
    """Raise the error that Horovod raises before ``init()``, and an error for process sets."""
    if not is_initialized():
        raise ValueError("Horovod's stand-in is not set up: call hvd.init() first.")
    if process_set is not None and process_set is not global_process_set:
        raise NotInStandIn("process sets")


def _place(variable: str, otherwise: Callable[[], int]) -> Callable[[], int]:
    """A function for this process' place: torchrun's ``variable`` answers, else ``otherwise``."""

    def answer() -> int:
        check()
        return int(os.environ[variable]) if variable in os.environ else int(otherwise())

    return answer


rank = _place("", dist.get_rank)
size = _place("", dist.get_world_size)
local_size = _place("LOCAL_WORLD_SIZE", size)
global_process_set = SimpleNamespace(process_set_id=0, size=size, rank=rank, included=lambda: True)
"""All ranks: the only process set of the stand-in."""

CALLS: dict[str, Callable[..., Any]] = {
    "init": init,
    "shutdown": shutdown,
    "is_initialized": is_initialized,
    "local_rank": _place("LOCAL_RANK", rank),
    "local_size": local_size,
    "cross_rank": _place("GROUP_RANK", lambda: rank() // local_size()),
    "cross_size": _place("GROUP_WORLD_SIZE", lambda: size() // local_size()),
    "gloo_enabled": lambda: is_initialized() and "gloo" in str(dist.get_backend()),
    "gloo_built": dist.is_gloo_available,
    "nccl_built": dist.is_nccl_available,
    "cuda_built": lambda: torch.version.cuda is not None,
    "rocm_built": lambda: torch.version.hip is not None,
    **dict.fromkeys(("mpi_enabled", "mpi_built", "mpi_threads_supported", "ddl_built", "ccl_built"), lambda: False),
}
"""Horovod's functions for set-up, for a process's place, and for the features that are built in."""

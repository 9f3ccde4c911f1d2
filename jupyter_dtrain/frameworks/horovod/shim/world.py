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


class _State:
    ready = False
    made: Any = None
    """The process group that ``init()`` made last; None where user code had one."""


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Set up torch's default process group, unless there is one; may be called again and again."""
    if comm or process_sets:
        raise NotInStandIn("init() with ranks or a communicator" if comm else "process sets")
    if not dist.is_initialized():
        dist.init_process_group()
        if _State.made is None:
            atexit.register(_leave)
        _State.made = dist.group.WORLD
    _State.ready = True


def shutdown() -> None:
    """Undo ``init()``. torch's process group stays for the next ``init()``, and ends with the process.

    Under torchrun torch 2.13 often cannot leave a group and set up another.
    """
    _State.ready = False


def _leave() -> None:
    if dist.is_initialized() and dist.group.WORLD is _State.made:
        dist.destroy_process_group()


def is_initialized() -> bool:
    """Whether the user called ``init()``, and no ``shutdown()`` since."""
    return _State.ready and dist.is_initialized()


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
local_rank = _place("LOCAL_RANK", rank)
local_size = _place("LOCAL_WORLD_SIZE", size)
cross_rank = _place("GROUP_RANK", lambda: rank() // local_size())
cross_size = _place("GROUP_WORLD_SIZE", lambda: size() // local_size())

PLACES = {"local_rank": local_rank, "local_size": local_size, "cross_rank": cross_rank, "cross_size": cross_size}
"""Horovod's functions for a process' place."""
global_process_set = SimpleNamespace(process_set_id=0, size=size, rank=rank, included=lambda: True)
"""All ranks: the only process set of the stand-in."""
BUILDS: dict[str, Callable[[], bool]] = {
    "is_homogeneous": lambda: local_size() * cross_size() == size(),
    "gloo_enabled": lambda: is_initialized() and "gloo" in str(dist.get_backend()),
    "gloo_built": dist.is_gloo_available,
    "nccl_built": dist.is_nccl_available,
    "cuda_built": lambda: torch.version.cuda is not None,
    "rocm_built": lambda: getattr(torch.version, "hip", None) is not None,
    **dict.fromkeys(("mpi_enabled", "mpi_built", "mpi_threads_supported", "ddl_built", "ccl_built"), lambda: False),
}
"""Horovod's functions that describe its build."""

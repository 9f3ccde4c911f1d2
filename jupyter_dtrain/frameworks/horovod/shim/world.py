"""Of the stand-in for ``horovod.torch``: being set up, and who is where in the world.

Under failure: a question before ``init()`` raises :class:`ValueError`, as Horovod's does; what the stand-in lacks
raises :class:`NotInStandIn`, which names it.
"""

from __future__ import annotations

import atexit
import os
from typing import Any

import torch
import torch.distributed as dist


class NotInStandIn(NotImplementedError, AttributeError):
    """Something of Horovod's that the stand-in does not have."""

    def __init__(self, what: str) -> None:
        super().__init__(f"jupyter-dtrain's stand-in for Horovod has no {what}: that needs Horovod itself.")


class HorovodInternalError(RuntimeError):
    """Horovod's error of a collective. The stand-in never raises it: torch's own errors come as they are."""


class GlobalProcessSet:
    """All ranks: the only process set of the stand-in."""

    process_set_id = 0

    def size(self) -> int:
        """How many ranks it has."""
        return size()

    def rank(self) -> int:
        """Of this process in it."""
        return rank()

    def included(self) -> bool:
        """Whether this process is in it."""
        return True


global_process_set = GlobalProcessSet()


class _State:
    """Of this process."""

    ready = False
    made: Any = None
    """The process group that ``init()`` has made last; None where user code had one."""


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Set up torch's default process group, unless there is one. As often as one likes."""
    if comm:
        raise NotInStandIn("init() with ranks or a communicator")
    if process_sets:
        raise NotInStandIn("process sets")
    if not dist.is_initialized():
        dist.init_process_group()
        if _State.made is None:
            atexit.register(_leave)
        _State.made = dist.group.WORLD
    _State.ready = True


def shutdown() -> None:
    """Be set up no more. torch's process group stays for the next ``init()``, and goes with the process.

    Under torchrun torch 2.13 often cannot leave a group and set up another.
    """
    _State.ready = False


def _leave() -> None:
    if dist.is_initialized() and dist.group.WORLD is _State.made:
        dist.destroy_process_group()


def is_initialized() -> bool:
    """Whether ``init()`` was called, and no ``shutdown()`` since."""
    return _State.ready and dist.is_initialized()


def check(process_set: Any = None) -> None:
    """Raise what a call of Horovod raises before ``init()``, and refuse process sets."""
    if not is_initialized():
        raise ValueError("Horovod's stand-in is not set up: call hvd.init() first.")
    if process_set is not None and process_set is not global_process_set:
        raise NotInStandIn("process sets")


def rank() -> int:
    """Of this process in the world."""
    check()
    return int(dist.get_rank())


def size() -> int:
    """How many processes the world has."""
    check()
    return int(dist.get_world_size())


def local_rank() -> int:
    """Of this process on its node."""
    return _of_place("LOCAL_RANK", rank())


def local_size() -> int:
    """How many processes this node has."""
    return _of_place("LOCAL_WORLD_SIZE", size())


def cross_rank() -> int:
    """Of this node."""
    return _of_place("GROUP_RANK", rank() // local_size())


def cross_size() -> int:
    """How many nodes there are."""
    return _of_place("GROUP_WORLD_SIZE", size() // local_size())


def _of_place(name: str, otherwise: int) -> int:
    """What torchrun, or a rank's launcher, has set."""
    check()
    return int(os.environ.get(name, otherwise))


def is_homogeneous() -> bool:
    """Whether all nodes have as many processes as this one."""
    return local_size() * cross_size() == size()


def gloo_enabled() -> bool:
    """Whether gloo does the work."""
    return is_initialized() and "gloo" in str(dist.get_backend())


def gloo_built() -> bool:
    """Whether torch has gloo."""
    return bool(dist.is_gloo_available())


def nccl_built() -> bool:
    """Whether torch has NCCL."""
    return bool(dist.is_nccl_available())


def cuda_built() -> bool:
    """Whether torch can use CUDA."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Whether torch can use ROCm."""
    return getattr(torch.version, "hip", None) is not None


def without() -> bool:
    """Whether MPI, DDL or oneCCL does the work: never."""
    return False

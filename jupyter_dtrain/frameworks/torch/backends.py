"""The backends of torch's process groups: which this build has, which can work here, and why others cannot.

torch reports a missing backend only after all ranks have come, and without an alternative. NCCL reports too few GPUs
only in the first collective. This module reports both before the set-up, and names a backend that works.

Code that only inspects counts GPUs without asking CUDA: CUDA ignores later changes to ``CUDA_VISIBLE_DEVICES``.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.world import quantity
from jupyter_dtrain.plugins.patches import meant

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import Placement


BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
"""torch's backends, as in ``torch.distributed.is_NAME_available``."""
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_COMES_WITH = {
    "nccl": "NCCL comes with PyTorch's builds for CUDA and ROCm",
    "mpi": "Only a PyTorch built from source on a machine with MPI has it",
    "ucc": "Only a PyTorch built from source with UCC has it",
    "xccl": "XCCL comes with PyTorch's builds for Intel GPUs",
}


def built_in(dist: Any) -> list[str]:
    """Return the backends that this build of torch has."""
    return [name for name in BACKENDS if getattr(dist, f"is_{name}_available", lambda: False)()]


def count_gpus(*, at_set_up: bool = False) -> int:
    """How many GPUs torch (imported already) finds for this process; ``at_set_up``: only those that CUDA can use."""
    torch: Any = sys.modules["torch"]
    return 0 if at_set_up and not torch.cuda.is_available() else int(torch.cuda.device_count())


class Backends:
    """The backends that one rank can set up."""

    def __init__(self, place: Placement, wanted: str, *, own_gpus: bool = False) -> None:
        """``wanted``: the default when the cell names none; ``auto`` is whatever fits.

        ``own_gpus``: whether the GPUs that this rank sees are its own, and no other rank's.
        """
        self._place = place
        self._own_gpus = own_gpus
        self._wanted = wanted
        self._visible = _visible()

    def choose(self, *, at_set_up: bool = False) -> tuple[str, str]:
        """Return the backend that ``init_process_group()`` takes, and the reason."""
        if self._wanted != "auto":
            return self._wanted, f"set by --torch-backend {self._wanted}"
        gpus, ranks = count_gpus(at_set_up=at_set_up), self._sharing
        if gpus and "nccl" not in built_in(sys.modules["torch.distributed"]):
            return "gloo", "this PyTorch is built without NCCL"
        sharing = "this rank" if self._own_gpus else f"{quantity(ranks, 'rank')} of this host"
        has = f"{gpus or 'no'} GPU{'' if gpus == 1 else 's'} for {sharing}"
        return ("cpu:gloo,cuda:nccl" if gpus >= ranks else "gloo"), has

    @property
    def _sharing(self) -> int:
        """How many ranks share the GPUs that this rank sees."""
        return 1 if self._own_gpus else self._place.local_size

    def check(self, dist: ModuleType, backend: Any, *, by_option: bool, whole: bool) -> None:
        """Raise what stands in the way of ``backend``, given as torch takes it.

        :class:`RuntimeError` where this torch lacks it, :class:`ValueError` where it has too few GPUs, as torch itself
        does. ``by_option``: the cell did not name it; ``whole``: the group is for all ranks of the world.
        """
        names = [part.rpartition(":")[2].strip() for part in str(backend).lower().split(",")]
        here = built_in(dist)
        asked = f"--torch-backend {backend}" if by_option else f'init_process_group("{backend}")'
        fix = _fix(here, by_option=by_option)
        for name in names:
            if name in _COMES_WITH and name not in here:
                version = getattr(sys.modules["torch"], "__version__", "")
                raise meant(
                    RuntimeError(
                        f"{asked}: this PyTorch ({version}) is built without {name.upper()}; it has "
                        f"{', '.join(here)}. {fix} {_COMES_WITH[name]}."
                    )
                )
        if "nccl" in names:
            self._check_gpus(asked, fix, each=whole and names == ["nccl"])

    def _check_gpus(self, asked: str, fix: str, *, each: bool) -> None:
        """``each``: whether every rank of this host will use NCCL."""
        gpus, ranks = count_gpus(at_set_up=True), self._sharing
        if not gpus:
            raise meant(
                ValueError(f"{asked}: NCCL needs a GPU, and PyTorch finds none in rank {self._place.rank}. {fix}")
            )
        # A cell that has chosen GPUs for each rank may have given every rank one of its own.
        if each and gpus < ranks and self._visible == _visible():
            has = quantity(gpus, "GPU")
            raise meant(
                ValueError(
                    f"{asked}: NCCL needs one GPU for each rank, but the {ranks} ranks of this host share {has}. "
                    f"{fix} Or %distributed start -n {gpus} starts one rank for each GPU."
                )
            )


def _visible() -> list[str | None]:
    return [os.environ.get(name) for name in VISIBLE]


def _fix(here: list[str], *, by_option: bool) -> str:
    if "gloo" not in here:
        return ""
    fits = "a world started without that option" if by_option else "init_process_group() without a backend"
    return f'init_process_group("gloo") works here; {fits} chooses a backend that works.'

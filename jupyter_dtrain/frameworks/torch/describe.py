"""A report on PyTorch in this rank, for ``%distributed env``: its build, backends, process group and GPUs.

It only reads. It never asks CUDA anything that would fix the rank's choice of GPUs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .backends import BACKENDS, built_in, count_gpus

if TYPE_CHECKING:
    from .groups import TorchGroups


def torch_details(groups: TorchGroups, torch: Any) -> dict[str, str]:
    """Describe torch, which is imported already, in this rank."""
    found = {"built for": _built_for(torch)}
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available():
        found["backends"] = "none: built without torch.distributed"
    else:
        has = built_in(dist)
        lacks = [name for name in BACKENDS if name not in has]
        found["backends"] = f"{', '.join(has)}: not built in: {', '.join(lacks)}" if lacks else ", ".join(has)
        if "nccl" in has:
            found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["init_process_group()"] = "{}: {}".format(*groups.backends.choose())
        found["process group"] = _default_group(dist)
    found["GPUs"] = str(count_gpus())
    found["threads"] = str(torch.get_num_threads())
    return found


def _built_for(torch: Any) -> str:
    names = {"cuda": "CUDA", "hip": "ROCm", "xpu": "XPU"}
    built = [f"{name} {version}" for key, name in names.items() if (version := getattr(torch.version, key, None))]
    return ", ".join(built) or "CPUs only"


def _default_group(dist: Any) -> str:
    if not dist.is_initialized():
        return "none"
    backend = dist.get_backend_config() if hasattr(dist, "get_backend_config") else dist.get_backend()
    return f"{backend}, {dist.get_world_size()} ranks"

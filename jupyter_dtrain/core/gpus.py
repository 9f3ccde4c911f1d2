"""GPUs, without importing a framework: how many this process may use, and faults after which it can use one no more.

After such a fault every call on the GPU fails in that process, whatever it is: the process has lost its context on the
device, and with it all that it kept there. Only a new process has a new one. Other processes keep theirs, on the same
device too. A fault is recognised by the driver's words in the text of an error, whichever framework raised it; a text
with other words is no fault.

Under failure: only :func:`ask_driver` raises; where ``nvidia-smi`` is missing or fails, there are no GPUs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

from .world import count_ranks, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PATIENCE = 5.0
"""Seconds that ``nvidia-smi`` may take."""

_FAULTS: Final = (
    "an illegal memory access was encountered",
    "device-side assert triggered",
    "unspecified launch failure",
    "misaligned address",
    "an illegal instruction was encountered",
    "invalid program counter",
    "operation not supported on global/shared address space",
    "hardware stack error",
    "the launch timed out and was terminated",
    "uncorrectable ECC error encountered",
    "uncorrectable NVLink error detected during the execution",
)
"""The driver's words, as ``cudaGetErrorString`` and ``hipGetErrorString`` give them."""
_SPEAKER: Final = re.compile(r"CUDA|HIP\b|cudaError|hipError")


def ask_driver(*options: str, patience: float = PATIENCE) -> str | None:
    """The output of ``nvidia-smi`` with these ``options``; None where there is no such program.

    Raises :class:`OSError` and :class:`subprocess.SubprocessError`.
    """
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None
    return subprocess.run([smi, *options], capture_output=True, text=True, timeout=patience, check=True).stdout


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str] | None:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` names, by number or by UUID; None where it is not set, for all of them."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    return [] if visible.strip() == "-1" else [name.strip() for name in visible.split(",") if name.strip()]


def gpus_of_rank(local_rank: int, each: int, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs of the rank with this number on its host, where each rank there has ``each`` of the visible ones."""
    first = local_rank * each
    visible = visible_gpus(environ)
    return [str(one) for one in range(first, first + each)] if visible is None else visible[first : first + each]


def count_gpus(environ: Mapping[str, str] = os.environ) -> int:
    """How many GPUs a process may use: what ``nvidia-smi -L`` lists, cut by ``CUDA_VISIBLE_DEVICES``."""
    visible = visible_gpus(environ)
    if visible == []:
        return 0
    try:
        listing = ask_driver("-L")
    except (OSError, subprocess.SubprocessError):
        return 0
    found = sum(line.startswith("GPU ") for line in (listing or "").splitlines())
    return found if visible is None else min(found, len(visible))


def fault_in(text: str) -> str:
    """The driver's words for the fault that ``text`` reports; empty where it reports none."""
    if _SPEAKER.search(text) is None:
        return ""
    return next((words for words in _FAULTS if words in text), "")


def fault_lines(found: Mapping[int, str], ranks: Sequence[int]) -> list[str]:
    """Lines on the faults ``found`` by rank, in a run on ``ranks``: what is lost, and what brings it back."""
    if not found:
        return []
    hit = sorted(found)
    one = len(hit) == 1
    who, said = count_ranks(hit), "; ".join(sorted(set(found.values())))
    lost = (
        f"{who[:1].upper()}{who[1:]} {'has' if one else 'have'} lost the GPU ({said}): tensors there are gone, and "
        f"every later call on the GPU fails in {'that process' if one else 'these processes'}."
    )
    fix = "%distributed restart replaces all ranks."
    if len(hit) < len(ranks):
        fix = (
            f"The other ranks keep theirs. %distributed restart -r {format_ranks(hit)} replaces "
            f"{'it' if one else 'them'}; {fix}"
        )
    place = (
        "A GPU reports such a fault late, so the line above may be a later one: a world that is started with "
        "--env CUDA_LAUNCH_BLOCKING=1 stops at the right one."
    )
    return [lost, fix, place]

"""Faults after which a process can use its GPU no more, recognised by the driver's words in the text of an error.

After such a fault every call on the GPU fails in that process, whatever it is: the process has lost its context on the
device, and with it all that it kept there. Only a new process has a new one. Other processes keep theirs, on the same
device too. Pure functions of text, whichever framework raised the error; a text with other words is no fault.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from .world import count_ranks, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    cure = "%distributed restart replaces all ranks."
    if len(hit) < len(ranks):
        cure = (
            f"The other ranks keep theirs. %distributed kill {format_ranks(hit)} and then %distributed heal "
            f"{'replaces it' if one else 'replace them'}; {cure}"
        )
    place = (
        "A GPU reports such a fault late, so the line above may be a later one: a world that is started with "
        "--env CUDA_LAUNCH_BLOCKING=1 stops at the right one."
    )
    return [lost, cure, place]

"""NVIDIA's GPUs, without importing a framework: what ``nvidia-smi`` tells, and how many GPUs this process may use."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

PATIENCE = 5.0
"""Seconds that ``nvidia-smi`` may take."""


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


def count_gpus() -> int:
    """How many GPUs this process may use: what ``nvidia-smi -L`` lists, cut by ``CUDA_VISIBLE_DEVICES``."""
    visible = visible_gpus()
    if visible == []:
        return 0
    try:
        listing = ask_driver("-L")
    except (OSError, subprocess.SubprocessError):
        return 0
    found = sum(line.startswith("GPU ") for line in (listing or "").splitlines())
    return found if visible is None else min(found, len(visible))

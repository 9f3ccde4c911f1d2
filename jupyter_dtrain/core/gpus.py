"""NVIDIA's GPUs, without importing a framework: what ``nvidia-smi`` tells, and how many GPUs this process may use."""

from __future__ import annotations

import os
import shutil
import subprocess

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


def count_gpus() -> int:
    """How many GPUs this process may use: what ``nvidia-smi -L`` lists, cut by ``CUDA_VISIBLE_DEVICES``."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return 0
    try:
        listing = ask_driver("-L")
    except (OSError, subprocess.SubprocessError):
        return 0
    found = sum(line.startswith("GPU ") for line in (listing or "").splitlines())
    if visible is None:
        return found
    return min(found, len([device for device in visible.split(",") if device.strip()]))

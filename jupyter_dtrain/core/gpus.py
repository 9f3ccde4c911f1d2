"""The GPUs that this process may use, without importing a framework."""

from __future__ import annotations

import os
import shutil
import subprocess

PATIENCE = 5.0
"""Seconds that ``nvidia-smi`` may take."""


def count_gpus() -> int:
    """How many GPUs this process may use: what ``nvidia-smi -L`` lists, cut by ``CUDA_VISIBLE_DEVICES``."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return 0
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return 0
    try:
        listing = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    found = sum(line.startswith("GPU ") for line in listing.splitlines())
    if visible is None:
        return found
    return min(found, len([device for device in visible.split(",") if device.strip()]))

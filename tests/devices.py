"""The CUDA devices of this machine, for tests and measurements that need some: how many, or what is missing.

The answer needs no import of torch here: its build is read from its files, and a process of its own counts devices.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from jupyter_dtrain.core.gpus import count_gpus

PATIENCE = 120.0
"""Seconds for the process that counts."""
COUNT = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(json.dumps([torch.cuda.get_device_name(one) for one in range(count)]))
"""


class Devices(NamedTuple):
    """The facts that decide what can run."""

    torch: str
    """PyTorch's version; empty without it."""
    cuda: str
    """The version of CUDA that it is built for; empty for another build."""
    names: tuple[str, ...]
    """The devices that it can use."""
    driver: int
    """How many the driver's own program lists."""


def missing(found: Devices, wanted: int) -> str:
    """One line on why there are not ``wanted`` devices; empty where there are."""
    lacks = []
    if not found.torch:
        lacks.append("torch is not installed")
    elif not found.cuda:
        lacks.append(f"torch {found.torch} is built without CUDA")
    if not found.driver:
        lacks.append("nvidia-smi lists no device")
    elif not lacks and not found.names:
        lacks.append(f"torch {found.torch} can use none of the {found.driver} that nvidia-smi lists")
    elif not lacks and len(found.names) < wanted:
        lacks.append(f"{len(found.names)} found ({', '.join(found.names)})")
    need = "a CUDA device" if wanted == 1 else f"{wanted} CUDA devices"
    return f"needs {need}: {' and '.join(lacks)}" if lacks else ""


def why_not(wanted: int) -> str:
    """One line on why this machine has not so many devices; empty where it has."""
    return missing(look(), wanted)


@lru_cache(1)
def look() -> Devices:
    """The devices of this machine."""
    (torch, cuda), driver = _build(), count_gpus()
    names: tuple[str, ...] = ()
    if cuda and driver:
        counted = subprocess.run(
            [sys.executable, "-c", COUNT], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        if counted.returncode == 0:
            names = tuple(json.loads(counted.stdout.splitlines()[-1]))
    return Devices(torch, cuda, names, driver)


def _build() -> tuple[str, str]:
    """PyTorch's version and that of its CUDA; empty where there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "", ""
    version = Path(spec.origin).parent / "version.py"
    said = re.search(r"^cuda\b[^=\n]*=\s*'([^']+)'", version.read_text() if version.exists() else "", re.MULTILINE)
    try:
        return importlib.metadata.version("torch"), said[1] if said else ""
    except importlib.metadata.PackageNotFoundError:
        return "without a version", said[1] if said else ""

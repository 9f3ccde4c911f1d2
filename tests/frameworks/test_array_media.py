"""Arrays of JAX and TensorFlow are media. Neither is imported here: a process that has done so can fork no workers."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("programs") / "array_media.py"


@pytest.mark.parametrize("library", ["jax", "tensorflow"])
def test_arrays_are_logged_as_what_they_show(library):
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", library, str(PROGRAM)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    assert ended.returncode == 0, ended.stdout[-3000:]
    assert "2 passed" in ended.stdout

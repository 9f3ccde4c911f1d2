"""Tests that need devices are skipped with what is missing, by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.devices import Devices, missing, why_not

ROOT = Path(__file__).resolve().parents[1]

H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("found", "wanted", "words"),
    [
        (Devices("", "", (), 0), 1, "needs a CUDA device: torch is not installed and nvidia-smi lists no device"),
        (Devices("2.13.0+cpu", "", (), 1), 1, "needs a CUDA device: torch 2.13.0+cpu is built without CUDA"),
        (Devices("2.13.0", "12.8", (), 0), 2, "needs 2 CUDA devices: nvidia-smi lists no device"),
        (
            Devices("2.13.0", "12.8", (), 2),
            1,
            "needs a CUDA device: torch 2.13.0 can use none of the 2 that nvidia-smi lists",
        ),
        (Devices("2.13.0", "12.8", (H100,), 1), 2, f"needs 2 CUDA devices: 1 found ({H100})"),
        (Devices("2.13.0", "12.8", (H100,), 1), 1, ""),
        (Devices("2.13.0", "12.8", (H100, H100), 2), 2, ""),
    ],
)
def test_a_line_says_what_is_missing(found, wanted, words):
    assert missing(found, wanted) == words


@pytest.fixture
def play(tmp_path):
    """Runs one test file under this suite's conftest, in a process of its own; the text of pytest."""

    def play(source: str) -> str:
        file = tmp_path / "test_marked.py"
        file.write_text(f"import pytest\n\n{source}")
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p", "tests.conftest"]
        command += ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}", str(file)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False).stdout

    return play


def test_the_marks_skip_with_that_line(play):
    """The larger one of two marks counts."""
    said = play("@pytest.mark.gpu\n@pytest.mark.gpus(99)\ndef test_it():\n    assert False\n")

    assert "needs 99 CUDA devices: " in said
    assert "1 skipped" in said


@pytest.mark.skipif(not why_not(1), reason="needs a machine without a CUDA device, and here is one")
@pytest.mark.parametrize("module", [["tests.gpu"], ["benchmarks", "gpu"]])
def test_without_a_device_one_line_says_so_and_nothing_has_failed(module):
    done = subprocess.run(
        [sys.executable, "-m", *module], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.strip().splitlines()) == 1
    assert why_not(1) in done.stdout

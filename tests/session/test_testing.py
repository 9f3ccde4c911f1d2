"""The pytest fixtures that users have from ``jupyter_dtrain.testing``, used by pytest as they use it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from jupyter_dtrain import Store

TESTS = """
from jupyter_dtrain.testing import world, world_fixture

none = world_fixture(2, mpiexec="/bin/false")

def number():
    return int(__import__("os").environ["RANK"])

def test_a_function_of_this_module(world):
    assert world.call(number) == {0: 0, 1: 1}

def test_the_same_world(world):
    assert world.map(abs, [-1, -2, -3]) == [1, 2, 3]

def test_without_a_world(none):
    raise AssertionError("it is skipped")
"""


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_a_module_of_tests_has_a_world_and_leaves_no_runs(tmp_path, monkeypatch, mode):
    """Also where pytest imports the module under a name that no import on a rank finds."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_training.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "-p",
        "no:cacheprovider",
        f"--import-mode={mode}",
        str(folder),
    ]
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path, env=os.environ
    )

    assert re.search(r"2 passed, 1 skipped", answer.stdout), answer.stdout
    assert "no world of 2 ranks: " in answer.stdout
    assert (tmp_path / "data" / "dtrain").exists()
    assert list(Store.open().runs()) == []

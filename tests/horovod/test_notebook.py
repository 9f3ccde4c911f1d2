"""The example for Horovod, by Horovod itself, in cells and under its own launcher: ``make horovod``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.test_notebooks import results_in, script_of
from tests.horovod.test_torch import pytestmark  # noqa: F401 — skipped where those are
from tests.notebooks import EXAMPLES, PATIENCE, execute, said_in

NOTEBOOK = EXAMPLES / "15_horovod.ipynb"


def test_the_example_does_in_cells_what_it_does_under_horovodrun(home, tmp_path):
    """There it is one script, which comes to the same numbers."""
    script = tmp_path / "train.py"
    script.write_text("\n\n".join(script_of(NOTEBOOK)))
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    environ |= {f"{mpi}_ALLOW_RUN_AS_ROOT{sure}": "1" for mpi in ("OMPI", "PRTE") for sure in ("", "_CONFIRM")}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"

    cells = execute(NOTEBOOK, tmp_path)
    ended = subprocess.run(
        ["horovodrun", "--gloo", "-np", "2", sys.executable, script],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=tmp_path,
        env=environ,
    )
    said = said_in(cells)
    ours, theirs = results_in(said), results_in(ended.stdout)
    print(ours, theirs)

    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert "stand-in" not in said
    assert "parameters identical on all 2 ranks: True" in said
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert len(ours) == 6

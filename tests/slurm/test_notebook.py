"""The example for Slurm, executed on a login node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.notebooks import EXAMPLES, execute, one
from tests.slurm.site import Site

NOTEBOOK = EXAMPLES / "18_slurm.ipynb"


@pytest.mark.slow
@one(NOTEBOOK)
def test_the_example_trains_on_two_nodes(site: Site, tmp_path: Path, path: Path) -> None:
    """All ranks have the same model at the end, and nothing is left of the job."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    code = execute(path, tmp_path)
    text = ["".join(str(output.get("text", output.get("data", ""))) for output in cell.outputs) for cell in code]

    assert "This machine and 2 hosts: no errors" in text[1]
    assert "srun reaches gpu1, gpu2." in text[1]
    assert "All-reduce over all hosts" in text[1]
    assert "gpu2" in text[3]
    assert re.search(r"4 ranks, \d+ min left", text[3])
    assert "rank 3 is number 1 on node 1, gpu2" in text[4]
    assert "on all 4 ranks" in text[5]
    assert all(float(value) > 0.85 for value in re.findall(r"accuracy ([0-9.]+)", text[5]))
    site.check_empty()

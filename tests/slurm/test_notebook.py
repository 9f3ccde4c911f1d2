"""The example for Slurm, executed on a login node."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from tests.kernels import ThisPython
from tests.slurm.site import Site

NOTEBOOK = Path(__file__).parents[2] / "examples" / "18_slurm.ipynb"
PATIENCE = 240


@pytest.mark.slow
def test_the_example_trains_on_two_nodes(site: Site, tmp_path: Path) -> None:
    """All ranks have the same model at the end, and nothing is left of the job."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}})
    client.km = AsyncKernelManager(kernel_spec_manager=ThisPython())
    client.execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
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

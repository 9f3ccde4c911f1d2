"""Front ends without our extension: nbclient, papermill, and the types of output that VS Code's own renderer draws."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from tests.kernels import ThisPython

# "mimeTypes" in extensions/notebook-renderers/package.json of microsoft/vscode.
VS_CODE = {
    *("image/gif", "image/png", "image/jpeg", "image/svg+xml", "text/html", "application/javascript", "text/plain"),
}
# VS Code has types of its own for these.
STREAMS = {"stream", "error"}
LOGS = """%%distributed -i scale --run curve
from jupyter_dtrain import log
for step in range(30): log(loss=scale / (step + 1), step=step)
print('scaled by', scale)
step"""
SHOW = """import time, jupyter_dtrain
late = time.monotonic() + 20  # the steward stores a run a moment after its end
while not jupyter_dtrain.runs(search="curve") and time.monotonic() < late: time.sleep(0.02)
jupyter_dtrain.runs()"""
CELLS = (
    "%load_ext jupyter_dtrain\n%distributed start -n 2\nimport matplotlib.pyplot",
    "scale = 1",
    LOGS,
    "%%distributed\nfrom IPython.display import HTML, display\ndisplay(HTML('<b>bold</b>'))",
    "%distributed",
    SHOW,
)
START, SCALE, CURVE, RICH, STATUS, RUNS = range(len(CELLS))


def written() -> nbformat.NotebookNode:
    """A notebook of the cells, of which one has the parameters."""
    cells = [nbformat.v4.new_code_cell(code) for code in CELLS]
    cells[SCALE].metadata["tags"] = ["parameters"]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def text_of(cell: nbformat.NotebookNode) -> str:
    """All that a reader of plain text sees below a cell."""
    parts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "\n".join(part for part in parts if part)


@pytest.fixture(scope="module")
def executed(home: Path, long_hold: None, tmp_path_factory: pytest.TempPathFactory) -> nbformat.NotebookNode:
    """The notebook, as nbclient leaves it."""
    notebook = written()

    class Client(NotebookClient):
        def create_kernel_manager(self):
            self.km = AsyncKernelManager(kernel_spec_manager=ThisPython())
            return self.km

    folder = tmp_path_factory.mktemp("nbclient")
    Client(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def test_nbclient_leaves_a_notebook_that_reads_well(executed):
    """Lines with their ranks, the run in words with its last values, the tables as text."""
    cells = executed.cells
    curve = text_of(cells[CURVE])
    print(*(text_of(cell) for cell in cells), sep="\n---\n")

    assert "World 'world' is up: 2 ranks" in text_of(cells[START])
    # Numbers of runs go on in the store, where other worlds of this name have been.
    assert re.search(r"Run \d+ on ranks 0-1: ok", curve)
    assert "loss" in curve
    assert "[0-1] scaled by 1" in curve
    assert "[0-1] 29" in curve
    assert "rank  node" in text_of(cells[STATUS])
    assert "curve" in text_of(cells[RUNS])
    nbformat.validate(executed)


def test_every_output_has_a_type_that_vs_codes_renderer_draws(executed):
    """With text beside each picture and table; a curve is a picture there."""
    outputs = [output for cell in executed.cells for output in cell.outputs if output.output_type not in STREAMS]
    curve = next(output.data for output in executed.cells[CURVE].outputs if output.output_type == "display_data")

    assert len(outputs) >= 4
    for output in outputs:
        assert VS_CODE & set(output.data), output
        assert "text/plain" in output.data
    assert "image/svg+xml" in curve
    assert not [kind for output in outputs for kind in output.data if "widget" in kind]


def test_papermill_sets_parameters_of_ranks(home, long_hold, tmp_path):
    """The injected cell stays in the notebook; -i sends its value on."""
    papermill = pytest.importorskip("papermill", reason="needs papermill: pip install papermill")
    nbformat.write(written(), tmp_path / "in.ipynb")
    done = papermill.execute_notebook(
        tmp_path / "in.ipynb", tmp_path / "out.ipynb", {"scale": 4}, progress_bar=False, cwd=tmp_path
    )
    curve = text_of(next(cell for cell in done.cells if cell.source == CELLS[CURVE]))

    assert "[0-1] scaled by 4" in curve
    assert "on ranks 0-1: ok" in curve
    assert [cell for cell in done.cells if "injected-parameters" in cell.metadata.get("tags", [])]
    assert all(cell.metadata.papermill["exception"] is not True for cell in done.cells)

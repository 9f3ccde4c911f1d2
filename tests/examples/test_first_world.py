"""The examples, as a newcomer meets them, and their code without us."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")
    for name in ("torch", "sklearn")
]

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "01_first_world.ipynb"
PATIENCE = 300


def accuracy_in(text):
    """The last accuracy that was printed."""
    return float(re.findall(r"test accuracy ([0-9.]+)", text, re.IGNORECASE)[-1])


def test_every_example_is_executed_by_a_test():
    """Whoever adds one adds its test."""
    assert {path.name for path in (ROOT / "examples").glob("*.ipynb")} == {NOTEBOOK.name}


def test_examples_are_kept_without_outputs():
    """What a newcomer sees is made on their own machine; a diff shows what was changed."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)

    assert all(cell.outputs == [] for cell in notebook.cells if cell.cell_type == "code")
    assert all(cell.execution_count is None for cell in notebook.cells if cell.cell_type == "code")


def test_the_demo_trains_and_leaves_the_executed_notebook_behind(home):
    """``make demo``: the losses of both ranks, the accuracy, the notebook and its page."""
    made = [ROOT / "build" / NOTEBOOK.name, ROOT / "build" / NOTEBOOK.with_suffix(".html").name]
    for file in made:
        file.unlink(missing_ok=True)
    demo = subprocess.run(
        [sys.executable, ROOT / "scripts" / "demo.py"],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    table = demo.stdout.split("Loss per rank per epoch")[-1].splitlines()
    rows = [[float(word) for word in line.split()] for line in table if re.fullmatch(r"( +[0-9.]+){3}", line)]

    assert demo.returncode == 0, demo.stdout[-3000:] + demo.stderr[-3000:]
    assert accuracy_in(demo.stdout) > 0.95
    assert [row[0] for row in rows] == list(range(10))
    assert all(first != second for _, first, second in rows)  # each rank has its own pictures
    assert all(last < first / 2 for first, last in zip(rows[0][1:], rows[-1][1:], strict=True))
    assert "make lab" in demo.stdout.splitlines()[-1]

    executed = nbformat.read(made[0], as_version=4)
    page = made[1].read_text(encoding="utf-8")
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    text = "".join(output.get("text", "") for cell in code for output in cell.outputs)

    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    assert "[0-1] parameters identical on all 2 ranks: True" in text
    assert "[0-1] test accuracy" in page
    assert "Traceback" not in page


def test_the_cells_run_unchanged_under_torchrun(tmp_path):
    """The promise of promises: the code is the user's own, and plain PyTorch."""
    cells = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    bodies = [source.partition("\n")[2] for source in cells if source.startswith("%%distributed")]
    script = tmp_path / "train.py"
    script.write_text("\n\n".join(bodies), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=tmp_path,
    )

    assert len(bodies) >= 6
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert accuracy_in(ended.stdout) > 0.95
    assert ended.stdout.count("parameters identical on all 2 ranks: True") == 2
    assert len(re.findall(r"rank [01] epoch \d+ loss", ended.stdout)) == 20

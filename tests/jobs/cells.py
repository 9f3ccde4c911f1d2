"""Notebooks for the tests of exports: as plain data, and as files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat import v4

from jupyter_dtrain.jobs import JobWorld, Notebook, NotebookCell
from jupyter_dtrain.magics.notebooks import read_file

PATIENCE = 120


def ranks(number: int, source: str, **more) -> NotebookCell:
    """A cell that ran on ranks."""
    return NotebookCell(number, source, on_ranks=True, **more)


def local(number: int, source: str, **more) -> NotebookCell:
    """A cell without ``%%distributed``."""
    return NotebookCell(number, source, on_ranks=False, **more)


def notebook(*cells: NotebookCell, **world) -> Notebook:
    """A notebook of these cells, whose world has two ranks by default."""
    return Notebook("lesson.ipynb", cells, JobWorld(**{"ranks": 2, **world}))


def file_of(folder: Path, *sources: str, tags: dict[int, list[str]] | None = None, name: str = "lesson") -> Path:
    """A notebook's file. Sources that begin with ``#`` and a blank are Markdown."""
    made = v4.new_notebook()
    for number, source in enumerate(sources):
        cell = v4.new_markdown_cell(source) if source.startswith("# ") else v4.new_code_cell(source)
        cell.metadata["tags"] = (tags or {}).get(number, [])
        made.cells.append(cell)
    path = folder / f"{name}.ipynb"
    nbformat.write(made, path)
    return path


def read(folder: Path, *sources: str, **more) -> Notebook:
    """The same notebook as an export sees it."""
    return read_file(file_of(folder, *sources, **more))


def run(*command: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a job to its end. Open MPI may run as root, and more ranks than processors."""
    root = {f"{mpi}_ALLOW_RUN_AS_ROOT{sure}": "1" for mpi in ("OMPI", "PRTE") for sure in ("", "_CONFIRM")}
    more = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMP_NUM_THREADS": "1"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [str(word) for word in command],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=cwd,
        env=os.environ | root | more | {"PATH": path} | env,
    )

"""A run knows its notebook, the heading above its cell, its group, and the run with whose training it goes on."""

from __future__ import annotations

import json

FIRST = "%%distributed --group sweep -o base\n"
FIRST += "import jupyter_dtrain\nfor turn in range(3):\n    jupyter_dtrain.log(loss=turn)"
SECOND = "%%distributed --resume base\nfor turn in range(2):\n    jupyter_dtrain.log(loss=turn)"


def test_a_run_has_the_notebook_and_the_heading_of_its_cell_its_group_and_what_it_resumes(open_notebook, tmp_path):
    """And the cell that goes on with another run says so in a line."""
    file = tmp_path / "shapes.ipynb"
    cells = [("markdown", "# Shapes\n\n## The CNN"), ("code", FIRST), ("markdown", "## Later"), ("code", SECOND)]
    file.write_text(json.dumps({"cells": [{"cell_type": kind, "source": text} for kind, text in cells]}))
    notebook = open_notebook(JPY_SESSION_NAME=str(file))
    notebook.ok("%load_ext jupyter_dtrain")
    refused = notebook.run("%%distributed -n 2 --resume nowhere/1\n1")
    started = notebook.ok("%distributed start -n 2 --name places")
    notebook.ok(FIRST)
    second = notebook.ok(SECOND)
    loads = notebook.value(
        "[(run.notebook, run.heading, run.name, run.group, run.first_step) "
        "for run in __import__('jupyter_dtrain').runs(world='places')]"
    )

    assert "goes on with run places/1, from step 3 on" in second.said
    assert "There is no run nowhere/1" in refused.said
    assert "World 'places' is up" in started.said  # the refused cell has started none
    assert loads == [
        (str(file), "Later", "Later [5]", "", 3),
        (str(file), "The CNN", "The CNN [4]", "sweep", 0),
    ]
    notebook.ok("%distributed stop")

"""A hint below a magic of nbdistributed names what does the same here."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%dist_init -n 4 -a gpu1", "%distributed start -n N"),
        ("%sync", "jupyter_dtrain.comm.Barrier()"),
        ("%dist_mode -e", "%distributed auto on"),
        ("%dist_shutdown", "%distributed stop"),
    ],
)
def test_a_magic_of_nbdistributed_fails_with_its_counterpart(notebook, line, words):
    cell = notebook.run(line)

    assert cell.reply["status"] == "error"
    assert words in cell.said


def test_a_magic_of_that_name_is_left_alone(open_notebook):
    notebook = open_notebook()
    notebook.ok("get_ipython().register_magic_function(lambda line: print('the other one'), 'line', 'sync')")
    notebook.ok("%load_ext jupyter_dtrain")

    assert "the other one" in notebook.ok("%sync").out

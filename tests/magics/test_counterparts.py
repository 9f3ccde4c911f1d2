"""The magics of nbdistributed name what does the same here."""

from __future__ import annotations

import pytest

from jupyter_dtrain.magics.counterparts import COUNTERPARTS


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


def test_the_names_come_and_go_with_the_extension_and_leave_those_of_others(open_notebook):
    notebook = open_notebook()
    notebook.ok("get_ipython().register_magic_function(lambda line: print('the other one'), 'line', 'sync')")
    there = f"[name for name in {list(COUNTERPARTS)} if name in get_ipython().magics_manager.magics['line']]"
    notebook.ok("%load_ext jupyter_dtrain")
    added = notebook.value(there)
    other = notebook.ok("%sync").out
    notebook.ok("%unload_ext jupyter_dtrain")

    assert added == list(COUNTERPARTS)
    assert "the other one" in other
    assert notebook.value(there) == ["sync"]

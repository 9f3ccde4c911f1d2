"""Loading and unloading the extension, alone and beside others that want the same names."""

from __future__ import annotations

from pathlib import Path

import pytest

OURS = ["distributed (cell)", "distributed (line)", "rank (cell)"]

OWNED = """[f"{name} ({kind})" for name in ("distributed", "rank") for kind in ("cell", "line")
    if name in get_ipython().magics_manager.magics[kind]]"""

OTHER = """
def load_ipython_extension(shell):
    shell.register_magic_function(answer, "cell", "{name}")

def unload_ipython_extension(shell):
    shell.magics_manager.magics["cell"].pop("{name}")

def answer(line, cell):
    print("the other one answers")
"""


@pytest.fixture(scope="module")
def bare(open_notebook):
    """A notebook in which nothing is loaded."""
    return open_notebook()


@pytest.fixture
def loaded(bare):
    """The same with the extension, for one test."""
    bare.ok("%load_ext jupyter_dtrain")
    yield bare
    bare.ok("%unload_ext jupyter_dtrain")


@pytest.fixture
def beside(open_notebook):
    """Opens a notebook with another extension, which registers one of our names as a cell magic."""

    def make(name):
        notebook = open_notebook()
        folder = Path(notebook.value("__import__('os').getcwd()"))
        (folder / "other_magics.py").write_text(OTHER.format(name=name), encoding="utf-8")
        return notebook

    return make


def test_the_magics_appear_and_go_without_a_word(bare):
    """Loading adds our names and nothing else; unloading leaves no trace."""
    before = bare.value("len(get_ipython().input_transformers_cleanup)")
    loading = bare.ok("%load_ext jupyter_dtrain")
    owned = bare.value(OWNED)
    unloading = bare.ok("%unload_ext jupyter_dtrain")

    assert owned == OURS
    assert loading.said.strip() == unloading.said.strip() == ""
    assert bare.value(OWNED) == []
    assert bare.value("len(get_ipython().input_transformers_cleanup)") == before
    assert "not found" in bare.run("%%distributed\n1").said


def test_the_extension_can_be_loaded_again_and_again(loaded):
    """A second load or a reload does not double the hooks of each cell."""
    loaded.ok("%load_ext jupyter_dtrain")
    loaded.ok("%reload_ext jupyter_dtrain")
    ours = "[type(one).__name__ for one in get_ipython().input_transformers_cleanup]"

    assert loaded.value(OWNED) == OURS
    assert loaded.value(ours).count("CellTransform") == 1


def test_no_framework_and_no_mpi_is_imported_into_the_notebook(loaded):
    """The kernel stays light, also with a world."""
    loaded.ok("%distributed start -n 1")
    heavy = loaded.value(
        "sorted({'torch', 'tensorflow', 'jax', 'mpi4py', 'numpy', 'pandas'} & set(__import__('sys').modules))"
    )
    loaded.ok("%distributed stop")

    assert heavy == []


def test_a_world_goes_on_when_the_extension_is_unloaded(loaded):
    """Unloading takes the magics away, not the ranks."""
    loaded.ok("%distributed start -n 1")
    loaded.ok("%%distributed\nx = 5")
    loaded.ok("%unload_ext jupyter_dtrain")
    pulled = loaded.value("__import__('jupyter_dtrain').current().pull('x')")
    loaded.ok("%load_ext jupyter_dtrain")
    loaded.ok("%distributed stop")

    assert pulled == {0: 5}


@pytest.mark.parametrize("name", ["distributed", "rank"])
def test_a_name_that_another_extension_owns_is_left_to_it(beside, name):
    """Loading says whose it is and how to choose; replacing takes all names over."""
    notebook = beside(name)
    notebook.ok("%load_ext other_magics")
    told = notebook.ok("%load_ext jupyter_dtrain").out
    theirs = notebook.ok(f"%%{name} 0\n1").out
    choice = [line.strip() for line in told.splitlines() if line.startswith("    ")]

    assert f"%%{name} already belongs to other_magics" in told
    assert theirs == "the other one answers\n"
    assert notebook.value(OWNED) == [f"{name} (cell)"]

    notebook.ok(choice[0])

    assert notebook.value(OWNED) == OURS
    assert "usage: %%" + name in notebook.ok(f"%%{name} -h").out


@pytest.mark.slow
def test_after_the_other_extension_is_unloaded_a_reload_has_the_names(beside):
    """The first of the two ways that the message names."""
    notebook = beside("distributed")
    notebook.ok("%load_ext other_magics")
    notebook.ok("%load_ext jupyter_dtrain")
    notebook.ok("%unload_ext other_magics")
    told = notebook.ok("%reload_ext jupyter_dtrain").said.strip()

    assert told == ""
    assert notebook.value(OWNED) == OURS

    notebook.ok("%load_ext other_magics")
    notebook.ok("%unload_ext jupyter_dtrain")

    assert notebook.value(OWNED) == ["distributed (cell)"]  # what another one took over later stays its own

"""The cells of a job: those that are chosen, and the local cells that they need."""

from __future__ import annotations

import pytest

from jupyter_dtrain import BadRequest
from jupyter_dtrain.jobs.dependencies import needed_cells
from jupyter_dtrain.jobs.notebook import choose
from tests.jobs.cells import local, notebook, ranks, read


def needs(*cells, with_local=False, chosen=None):
    book = notebook(*cells)
    return needed_cells(book, choose(book, chosen, None), with_local=with_local)


def refusal(*cells, **more):
    with pytest.raises(BadRequest) as caught:
        needs(*cells, **more)
    return str(caught.value)


def test_cells_on_ranks_need_no_local_cell_by_themselves():
    found = needs(local(1, "import os"), ranks(2, "x = 1"), local(3, "y = 2"), ranks(4, "print(x)"))

    assert [cell.number for cell in found.cells] == [2, 4]
    assert found.notes == []


def test_names_of_local_cells_are_listed_with_the_choice_to_include_them():
    cells = [local(1, "lr = 0.1"), local(2, "cfg = {'a': lr}"), ranks(3, "print(cfg)"), ranks(4, "print(lr)")]

    assert refusal(*cells) == (
        "Cells without %%distributed define names that the job needs: cell 3 uses cfg (from cell 2); cell 4 uses lr "
        "(from cell 1); cell 2 uses lr (from cell 1). Add --with-local to export cells 1 and 2 as well, for every "
        "rank; or define the names in a %%distributed cell."
    )
    found = needs(*cells, with_local=True)
    assert [cell.number for cell in found.cells] == [1, 2, 3, 4]
    assert found.notes == ["Local cells 1 and 2 go along, and run on every rank."]


def test_a_pushed_variable_comes_from_the_notebook_even_if_ranks_have_one_of_its_name():
    cells = [local(1, "lr = 0.1"), ranks(2, "lr = 1"), ranks(3, "print(lr)", inputs=("lr",))]
    found = needs(*cells, with_local=True)

    assert "cell 3 uses lr (from cell 1)" in refusal(*cells)
    assert [cell.number for cell in found.cells] == [1, 2, 3]
    assert "both define lr" in found.notes[1]


def test_cells_that_change_what_a_needed_name_holds_go_along():
    cells = [local(1, "cfg = {}"), local(2, "cfg['lr'] = 1"), local(3, "other = 1"), ranks(4, "print(cfg)")]

    assert [cell.number for cell in needs(*cells, with_local=True).cells] == [1, 2, 4]


def test_names_that_a_function_reads_may_be_defined_later():
    found = needs(ranks(1, "def train():\n    return model"), ranks(2, "model = 1\ntrain()"))

    assert [cell.number for cell in found.cells] == [1, 2]


def test_a_name_of_a_timed_line_counts():
    assert len(needs(ranks(1, "%time x = 1"), ranks(2, "print(x)")).cells) == 2


def test_a_line_for_the_shell_needs_the_names_in_it():
    assert "cell 2 uses folder (from cell 1)" in refusal(local(1, "folder = '/data'"), ranks(2, "!ls {folder}"))


def test_the_names_that_a_translation_brings_are_no_needs():
    assert len(needs(ranks(1, "x = 1\n!ls\n%cd /\n%time x\nx")).cells) == 1


def test_a_name_that_no_cell_defines_is_refused_before_the_job_fails():
    assert refusal(ranks(1, "print(lr)")) == (
        "No cell of lesson.ipynb before it defines a name: cell 1 uses lr. Define it in a %%distributed cell; values "
        "that Session.push() sent are in no cell."
    )


def test_a_star_import_may_define_any_name():
    assert len(needs(ranks(1, "from math import *\nprint(sin(1))")).cells) == 1


def test_a_choice_without_the_cell_that_defines_a_name_is_refused():
    assert refusal(ranks(1, "x = 1"), ranks(2, "print(x)"), chosen="2") == (
        "The chosen cells use names that other %%distributed cells define: cell 2 uses x (cell 1). Choose those cells "
        "as well."
    )


def test_values_that_come_back_from_ranks_are_refused():
    cells = [ranks(1, "loss = 1", brought=("loss",)), local(2, "best = min(loss.values())"), ranks(3, "print(best)")]

    assert refusal(*cells, with_local=True).startswith("cell 2 uses loss, which cell 1 brings back. In a job")


@pytest.mark.parametrize(
    ("text", "numbers"), [("2", [2]), ("2-3", [2, 3]), ("3-", [3, 5]), ("-", None), ("2,5", [2, 5])]
)
def test_cells_are_chosen_by_number(text, numbers):
    book = notebook(local(1, "1"), ranks(2, "2"), ranks(3, "3"), local(4, "4"), ranks(5, "5"))
    if numbers is None:
        with pytest.raises(BadRequest, match=r"Write their numbers as 3, 3-7, 3- or 2,5-8\."):
            choose(book, text, None)
    else:
        assert [cell.number for cell in choose(book, text, None)] == numbers


@pytest.mark.parametrize(
    ("cells", "tag", "words"),
    [
        ("4", None, "No cell that runs on ranks is in --cells 4. Those of lesson.ipynb are 2 and 3."),
        ("3-2", None, "The range '3-2' is empty: write 2-3."),
        (None, "frob", "No cell that runs on ranks has the tag 'frob'. Their tags are train."),
    ],
)
def test_a_choice_of_nothing_is_refused(cells, tag, words):
    book = notebook(local(1, "1"), ranks(2, "2", tags=("train",)), ranks(3, "3"), local(4, "4"))
    with pytest.raises(BadRequest) as caught:
        choose(book, cells, tag)

    assert str(caught.value).startswith(words)


def test_a_notebook_without_distributed_cells_is_refused():
    with pytest.raises(
        BadRequest, match=r"lesson\.ipynb has no cell that runs on ranks, so there is nothing to export"
    ):
        choose(notebook(local(1, "x = 1")), None, None)


def test_a_file_s_cells_are_read_with_their_first_lines_titles_and_tags(tmp_path):
    book = read(
        tmp_path,
        "%load_ext jupyter_dtrain",
        "%distributed start -n 4 --env CHOICE=secret",
        "# Data\n\n## The digits",
        "%%distributed -r 0,2 -i lr,cfg --pull x -o run",
        "%%distributed -r 0,2 -i lr,cfg --pull x -o run\nx = 1",
        "%%rank -1\nx = 2",
        "%%distributed -h\n",
        "%distributed auto on",
        "y = 3",
        "%%local\nz = 4",
        tags={5: ["train"]},
    )
    found = {cell.number: cell for cell in book.cells}

    assert (book.world.ranks, book.world.nodes, book.world.env) == (4, 1, ("CHOICE",))
    assert {number: cell.on_ranks for number, cell in found.items()} == {
        1: False, 2: False, 4: True, 5: True, 7: False, 8: True, 9: False,
    }  # fmt: skip
    assert (found[4].ranks, found[4].inputs, found[4].brought) == ("0,2", ("lr", "cfg"), ("x", "run"))
    assert (found[5].ranks.strip(), found[5].tags) == ("-1", ("train",))
    assert found[8].source == "y = 3"
    assert "secret" not in repr(book.world)


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("start --hosts gpu1:4,gpu2:4", (8, 2)),
        ("start --slurm --nodes 2 --ntasks-per-node 4", (8, 2)),
        ("start -n 4 --chief --ps 1", (4, 1)),
        ("start \\\n  -n 6", (6, 1)),
    ],
)
def test_the_world_of_a_file_is_that_of_its_start_line(tmp_path, line, size):
    world = read(tmp_path, f"%distributed {line}", "%%distributed\n1").world

    assert (world.ranks, world.nodes) == size
    assert world.roles == (("chief", "worker", "worker", "ps") if "--ps" in line else ())


def test_the_world_of_a_file_without_a_start_line_is_that_of_its_first_cell_with_options(tmp_path):
    world = read(tmp_path, "%%distributed -r 0\n1", "%%distributed -N 2 --slurm --ntasks-per-node 4\n1").world

    assert (world.ranks, world.nodes) == (8, 2)


def test_a_start_line_that_cannot_be_read_is_said_without_its_values(tmp_path):
    book = read(tmp_path, "%distributed start {hosts} --env CHOICE=secret", "%%distributed\n1")

    assert "-n and --nodes say otherwise" in book.left_out[0]
    assert "secret" not in str(book.left_out)


def test_a_file_that_is_no_notebook_is_refused(tmp_path):
    (tmp_path / "a.ipynb").write_text("no")
    from jupyter_dtrain.magics.notebooks import read_file

    with pytest.raises(BadRequest, match="is not a notebook"):
        read_file(tmp_path / "a.ipynb")
    with pytest.raises(BadRequest, match=r"cannot be read: No such file"):
        read_file(tmp_path / "b.ipynb")

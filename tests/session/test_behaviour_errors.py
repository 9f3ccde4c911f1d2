"""A run that has ended has results, errors, outcomes and texts."""

from __future__ import annotations

import pytest

from jupyter_dtrain import DistributedError
from tests.session.cells import fail, run, same, texts, values


def test_an_error_has_the_cells_own_frames_first(world):
    """Line, function and source of each step, from the cell on."""
    cell = fail(world, "def inner():\n    return 1 / 0\ndef outer():\n    return inner()\nouter()")
    frames = [(frame.line, frame.function, frame.source, frame.cell) for frame in cell.errors[1].frames]

    assert [
        (5, "", "outer()", True),
        (4, "outer", "return inner()", True),
        (2, "inner", "return 1 / 0", True),
    ] == frames
    assert [0, 1, 2] == sorted(cell.errors)
    assert ("ZeroDivisionError", "division by zero") == (cell.errors[0].ename, cell.errors[0].evalue)


def test_a_library_frame_is_told_apart_from_the_cells(world):
    """A reader can fold it."""
    frames = fail(world, "import json\njson.loads('{')").errors[0].frames

    assert frames[0].cell
    assert not any(frame.cell for frame in frames[1:])
    assert frames[1].file.endswith("/json/__init__.py")


def test_our_own_frames_are_not_the_users_code(world):
    """The notebook's folder may hold this package, as in a checkout."""
    frames = fail(world, "input()").errors[0].frames

    assert ["input()"] == [frame.source for frame in frames if frame.cell]


def test_a_function_of_an_earlier_cell_is_the_users_code(world):
    """Its frame names its own cell and line."""
    run(world, "def boom():\n    # a comment\n    raise RuntimeError('boom')")
    first, second = fail(world, "x = 1\nboom()").errors[2].frames

    assert (2, True) == (first.line, first.cell)
    assert (3, "boom", True) == (second.line, second.function, second.cell)
    assert first.file != second.file


def test_cause_and_notes_come_with_an_error(world):
    """raise ... from ..., and add_note where Python has it."""
    error = fail(
        world,
        "try:\n    {}['key']\nexcept KeyError as cause:\n"
        "    error = ValueError('told')\n"
        "    error.__notes__ = ['look here', 'and there']\n"
        "    raise error from cause",
    ).errors[0]

    assert error.cause == "KeyError: 'key'"
    assert ["look here", "and there"] == error.notes


def test_a_suppressed_context_is_no_cause(world):
    """raise ... from None."""
    error = fail(world, "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('x') from None").errors[0]

    assert error.cause is None


def test_a_syntax_error_inside_exec_shows_its_own_line(world):
    """The cell parses; what it executes does not."""
    error = fail(world, "text = 'a = 1\\nb = = 2'\nexec(text)").errors[0]

    assert error.ename == "SyntaxError"
    assert "b = = 2" in error.syntax
    assert "^" in error.syntax
    assert [2] == [frame.line for frame in error.frames]


def test_a_message_that_cannot_be_made_does_not_hide_the_error(world):
    """A __str__ that raises."""
    code = "class Mute(Exception):\n    def __str__(self): raise TypeError('never')\nraise Mute"
    error = fail(world, code).errors[0]

    assert ("Mute", "<its text could not be made: TypeError>") == (error.ename, error.evalue)


def test_endless_recursion_is_shown_in_bounded_size(world):
    """Its first and last frames."""
    error = fail(world, "def again(): again()\nagain()").errors[0]

    assert error.ename == "RecursionError"
    assert len(error.frames) <= 200
    assert error.frames[0].source == "again()"


def test_output_from_before_an_error_is_kept(world):
    """So are the variables."""
    cell = fail(world, "reached = 1\nprint('before')\n1 / 0\nprint('after')")

    assert same("before\n") == {rank: cell.text(rank) for rank in cell.ranks}
    assert same(1) == world["reached"]


def test_an_error_on_one_rank_leaves_the_others_results(world):
    """The run fails as a whole; each rank has its own outcome."""
    with pytest.raises(DistributedError, match=r"ValueError: not me \(rank 1\)") as caught:
        run(world, "import os\nif os.environ['RANK'] == '1': raise ValueError('not me')\n'fine'")
    cell = caught.value.run

    assert [1] == caught.value.ranks
    assert cell.outcome == "error"
    assert {0: "ok", 1: "error", 2: "ok"} == cell.outcomes
    assert {0: "fine", 2: "fine"} == values(cell)
    assert [1] == list(cell.errors)


def test_a_run_that_ended_well_says_so(world):
    """Outcome, outcomes and a representation of one line."""
    cell = run(world, "print('x')", ranks="0,2")

    assert cell.done
    assert ("ok", {0: "ok", 2: "ok"}) == (cell.outcome, cell.outcomes)
    assert repr(cell).startswith(f"<Run {cell.number} on 0,2: ok, ")
    assert cell is world.last_run


def test_the_time_of_a_run_stands_still_once_it_has_ended(world):
    """It is at least the time that the cell took."""
    cell = run(world, "import time; time.sleep(0.2)")

    assert cell.elapsed >= 0.2
    assert cell.elapsed == cell.elapsed


def test_text_can_be_had_by_rank_and_stream(world):
    """Both streams in the order in which they were written, or one of them."""
    cell = run(world, "import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')", ranks=1)

    assert ("a\nb\nc\n", "a\nc\n", "b\n") == (cell.text(1), cell.text(1, "stdout"), cell.text(1, "stderr"))
    with pytest.raises(KeyError):
        cell.text(0)


def test_a_failed_cell_does_not_stop_the_next(world):
    """Each cell stands for itself."""
    fail(world, "1 / 0")

    assert same(2) == values(run(world, "1 + 1"))


def test_the_error_of_a_verb_that_runs_as_a_cell_has_no_line_of_ours(world):
    """The user has not written it. A cell of the user's that makes the same call among others has its line."""
    with pytest.raises(DistributedError) as verb:
        world.broadcast(["nothing"])
    own = fail(world, "import jupyter_dtrain\nkept = 1\njupyter_dtrain.broadcast('nothing')")

    assert {()} == {tuple(error.frames) for error in verb.value.run.errors.values()}
    assert {3} == {frame.line for error in own.errors.values() for frame in error.frames}


def test_what_argparse_prints_names_the_cell(world):
    """A rank's own command line says nothing to the user."""
    cell = fail(world, "import argparse\nargparse.ArgumentParser().parse_args(['--no-such'])")

    assert all(text.startswith("usage: cell [-h]\ncell: error: ") for text in texts(cell).values())


@pytest.mark.parametrize("magic", ["%%time", "%%timeit", "%%timeit -n1 -r1 y = 2", "%%prun -q"])
def test_an_error_inside_a_magic_has_the_line_of_the_cell(world, magic):
    """IPython gives the magic's code file names of its own, and counts its lines from the magic on."""
    cell = fail(world, f"{magic}\n\nx = 1\n1 / 0")

    for error in cell.errors.values():
        own = [frame for frame in error.frames if frame.cell]
        assert [1, 4] == [frame.line for frame in own]
        assert 1 == len({frame.file for frame in own})
        assert own[0].source == magic


def test_a_warning_and_a_function_of_a_magic_have_the_line_of_the_cell(world):
    """The function may be called by a later cell."""
    code = "%%time\nimport warnings\ndef late():\n    1 / 0\nwarnings.warn('said')"
    said = texts(run(world, code))
    assert all(">:5: UserWarning: said\n  warnings.warn('said')" in text for text in said.values()), said
    first, last = fail(world, "x = 1\nlate()").errors[0].frames

    assert (2, "late()", 4, "1 / 0") == (first.line, first.source, last.line, last.source)


def test_a_syntax_error_inside_a_magic_has_the_line_of_the_cell(world):
    """Only the rank sees it: for the notebook the body is text."""
    error = fail(world, "%%time\nx = 1\nif x\n    2").errors[0]

    assert error.evalue.endswith("line 3)")
    assert "<" not in error.evalue + error.syntax
    assert "if x\n" in error.syntax


def test_a_line_magic_is_shown_as_it_was_written(world):
    """Not as the Python code that IPython makes of it."""
    frames = fail(world, "x = 3\n%time 1 / 0").errors[0].frames

    assert [(2, "%time 1 / 0")] == [(frame.line, frame.source) for frame in frames if frame.cell]

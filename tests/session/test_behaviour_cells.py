"""A cell in a rank behaves as it does in a notebook."""

from __future__ import annotations

import sys

import pytest

from tests.session.cells import begin, fail, run, same, shown, texts, until, values


def test_the_last_expression_is_the_result_on_every_rank(world):
    """It works as in a notebook, and each rank has its own."""
    cell = run(world, "import os\nmine = int(os.environ['RANK'])\nmine * 10")

    assert {0: 0, 1: 10, 2: 20} == values(cell)


def test_a_semicolon_keeps_the_result_to_itself(world):
    """IPython's rule for a last expression without output."""
    assert {} == run(world, "1 + 1;").results


def test_every_rank_has_its_own_history(world):
    """In holds the cells that this rank ran, Out their results; a rank that was left out has neither."""
    run(world, "'first'")
    run(world, "'only rank 1'", ranks=1)
    cell = run(world, "(In[-2], Out[max(Out)], _)")

    assert {
        0: ("'first'", "first", "first"),
        1: ("'only rank 1'", "only rank 1", "only rank 1"),
        2: ("'first'", "first", "first"),
    } == values(cell)


def test_display_gives_rich_outputs_in_order(world):
    """display() and HTML, with an update of the first."""
    cell = run(
        world,
        "from IPython.display import HTML\n"
        "handle = display('one', display_id='mine')\n"
        "display(HTML('<b>two</b>'))\n"
        "handle.update('three')",
    )
    seen = [(d.data.get("text/html") or d.data["text/plain"], d.display_id, d.update) for d in cell.outputs[1]]

    assert [("'one'", "mine", False), ("<b>two</b>", None, False), ("'three'", "mine", True)] == seen


def test_clear_output_clears_what_the_rank_displayed(world):
    """It clears only displays from before it."""
    cell = run(world, "from IPython.display import clear_output\ndisplay(1)\nclear_output()\ndisplay(2)")

    assert ["2"] == [output.data["text/plain"] for output in cell.outputs[0]]


@pytest.mark.parametrize("first", ["", "%matplotlib inline\n"], ids=["by itself", "after %matplotlib inline"])
def test_a_figure_shows_as_an_image(world, first):
    """It needs no plt.show(), as in a notebook kernel."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    cell = run(world, first + "import matplotlib.pyplot as plt\nplt.plot([1, 2]);", ranks=0)

    assert [["image/png", "text/plain"]] == [sorted(output.data) for output in cell.outputs[0]]


def test_shell_output_comes_in_order_with_prints(world):
    """!command writes to the descriptors, print to the stream."""
    cell = run(world, "print('a')\n!echo b\nprint('c')\n!echo d >&2\nprint('e')")

    assert same("a\nb\nc\nd\ne\n") == texts(cell)
    assert cell.text(0, "stderr") == "d\n"


def test_line_magics_work(world):
    """One that prints, one that binds a name."""
    cell = run(world, "%timeit -n1 -r1 pass\nwhere = %pwd\nimport os; where == os.getcwd()")

    assert "per loop" in cell.text(2)
    assert same("True") == shown(cell)


def test_a_cell_magic_may_be_the_body(world):
    """%%bash on every rank."""
    cell = run(world, "%%bash\necho out $RANK\necho err >&2")

    assert {rank: f"out {rank}\n" for rank in range(3)} == {rank: cell.text(rank, "stdout") for rank in range(3)}
    assert cell.text(0, "stderr") == "err\n"


def test_a_cell_magic_that_fails_fails_the_cell(world):
    """The exit code of a script is an error."""
    assert same("CalledProcessError") == {r: e.ename for r, e in fail(world, "%%bash\nexit 3").errors.items()}


def test_a_question_mark_prints_the_help(world):
    """Text for a pager is plain output."""
    assert "number of items" in run(world, "len?").text(1)


def test_await_works_at_top_level(world):
    """The engine's own loop runs the cell."""
    cell = run(world, "import asyncio\nawait asyncio.sleep(0.01)\nprint('waited')\n6 * 7")

    assert same(42) == values(cell)
    assert same("waited\n") == texts(cell)


def test_an_error_after_an_await_fails_the_cell(world):
    """The error has the line of the cell."""
    cell = fail(world, "import asyncio\nawait asyncio.sleep(0)\n1 / 0")

    assert {"ZeroDivisionError"} == {error.ename for error in cell.errors.values()}
    assert cell.errors[0].frames[0].line == 3


def test_every_road_to_the_output_is_captured_in_order(world):
    """print, stderr, the binary buffer, printf, the descriptor itself and a child process."""
    cell = run(
        world,
        "import ctypes, os, subprocess, sys\n"
        "print('print')\n"
        "print('stderr', file=sys.stderr)\n"
        "sys.stdout.buffer.write(b'buffer\\n'); sys.stdout.buffer.flush()\n"
        "subprocess.run(['echo', 'child'])\n"
        "!echo shell\n"
        "ctypes.CDLL(None).printf(b'printf\\n')\n"
        "os.write(1, b'descriptor\\n');",
    )
    lines = cell.text(0).splitlines()

    assert sorted(["print", "stderr", "buffer", "child", "shell", "printf", "descriptor"]) == sorted(lines)
    assert cell.text(0, "stderr") == "stderr\n"


def test_output_of_a_forked_child_is_there(world):
    """A child has no recorder thread: it writes to the descriptors."""
    cell = run(
        world,
        "import os\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    print('from the child', flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)[1]",
    )

    assert same("from the child\n") == {rank: cell.text(rank, "stdout") for rank in range(3)}
    assert same(0) == values(cell)


def test_text_of_any_alphabet_survives(world):
    """A lone surrogate, which no encoding knows, becomes a question mark."""
    cell = run(world, r"print('Grüße, 漢字, 😀'); print('lone \ud800 surrogate')")

    assert same("Grüße, 漢字, 😀\nlone ? surrogate\n") == texts(cell)


def test_a_character_in_two_pieces_is_one_character(world):
    """Bytes that are written one by one are decoded together."""
    cell = run(world, "import os, sys\nfor byte in '漢'.encode(): sys.stdout.buffer.write(bytes([byte]))")

    assert same("漢") == texts(cell)


def test_bytes_that_are_no_text_are_replaced(world):
    """The rest of the line is kept."""
    cell = run(world, r"import os; os.write(1, b'a\xffb\n');")

    assert same("a\ufffdb\n") == texts(cell)


def test_a_warning_goes_to_stderr_and_harms_nothing(world):
    """warnings.warn in a cell."""
    cell = run(world, "import warnings; warnings.warn('careful')")

    assert "UserWarning: careful" in cell.text(0, "stderr")
    assert cell.text(0, "stdout") == ""


def test_a_warning_has_the_same_words_on_every_rank(world):
    """One rank may have run more cells than the others: equal warnings are shown once."""
    run(world, "'only here'", ranks=1)
    said = run(world, "import warnings\n\nwarnings.warn('careful')")

    assert len({said.text(rank, "stderr") for rank in said.ranks}) == 1
    assert ":3: UserWarning: careful\n  warnings.warn('careful')\n" in said.text(0, "stderr")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no exception groups")
def test_a_group_of_exceptions_comes_with_its_members(world):
    """The members have their own frames, from Python 3.11 on."""
    cell = fail(
        world,
        "def bad(n):\n    return [][n]\nerrors = []\n"
        "for n in range(2):\n    try: bad(n)\n    except IndexError as e: errors.append(e)\n"
        "raise ExceptionGroup('two', errors)",
    )
    error = cell.errors[0]

    assert ["IndexError", "IndexError"] == [member.ename for member in error.members]
    assert [("", 5), ("bad", 2)] == [(frame.function, frame.line) for frame in error.members[0].frames]


def test_a_representation_that_fails_fails_the_cell(world):
    """The value was not shown."""
    cell = fail(world, "class Shy:\n    def __repr__(self): raise ValueError('no words')\nShy()")

    assert same(("ValueError", "no words")) == {rank: (e.ename, e.evalue) for rank, e in cell.errors.items()}
    assert same(3) == values(run(world, "1 + 2"))


def test_output_of_a_thread_between_cells_comes_with_the_next(world, meeting):
    """Nothing that was printed is lost; the next run shows it first."""
    mark = meeting / "printed"
    run(
        world,
        "import pathlib, threading, time\n"
        "def later():\n"
        "    while get_ipython().kernel is None or not go.exists(): time.sleep(0.01)\n"
        "    print('between')\n"
        "    done.touch()\n"
        f"go, done = pathlib.Path({str(meeting / 'go')!r}), pathlib.Path({str(mark)!r})\n"
        "threading.Thread(target=later).start()",
        ranks=2,
    )
    (meeting / "go").touch()
    until(mark.exists)

    assert {0: "after\n", 1: "after\n", 2: "between\nafter\n"} == texts(run(world, "print('after')"))


def test_output_arrives_while_the_cell_runs(world, meeting):
    """The second line waits for a file that is made once the first was seen."""
    go = meeting / "go"
    cell = begin(
        world,
        f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\nprint('second')",
    )
    first = texts(cell)
    go.touch()

    assert cell.wait(20)
    assert same("begun\n") == first
    assert same("begun\nsecond\n") == texts(cell)


def test_a_library_that_closes_stdout_does_not_silence_the_rank(world):
    """Close is ignored."""
    assert same("heard\n") == texts(run(world, "import sys; sys.stdout.close(); print('heard')"))


def test_variables_and_imports_stay_between_cells(world):
    """A live world is the point."""
    run(world, "import math\nkept = [1]")
    run(world, "kept.append(math.floor(2.5))")

    assert same([1, 2]) == values(run(world, "kept"))


def test_fifty_cells_in_a_row_end_well(world):
    """Each with output and result, each with the next number."""
    before = run(world, "pass").number
    cells = [run(world, f"print({k}); {k}") for k in range(50)]

    assert list(range(before + 1, before + 51)) == [cell.number for cell in cells]
    assert [same(k) for k in range(50)] == [values(cell) for cell in cells]
    assert [same(f"{k}\n") for k in range(50)] == [texts(cell) for cell in cells]

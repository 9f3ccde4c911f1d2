"""The options of ``%%distributed`` and ``%%rank``."""

from __future__ import annotations

import pytest

WHO = "import os\nint(os.environ['RANK'])"


def ranks_of(cell):
    """The ranks that printed their number in ``cell``."""
    return [int(text.split("] ")[1]) for text in cell.display_texts]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%%distributed", [0, 1, 2]),
        ("%%distributed -r 0", [0]),
        ("%%distributed -r 0,2", [0, 2]),
        ("%%distributed --ranks 0,2", [0, 2]),
        ("%%distributed -r 1-2", [1, 2]),
        ("%%distributed -r -1", [2]),
        ("%%distributed -r=-1", [2]),
        ("%%distributed -r0", [0]),
        ("%%distributed -r -3,-1", [0, 2]),
        ("%%distributed -r '0, 2'", [0, 2]),
        ("%%distributed -r all", [0, 1, 2]),
        ("%%distributed -r 2,2,0", [0, 2]),
        ("%%rank 0", [0]),
        ("%%rank 1,2", [1, 2]),
        ("%%rank -1", [2]),
        ("%%rank all", [0, 1, 2]),
        ("%%rank -o run -1", [2]),
        ("%%rank -1 -o run", [2]),
        ("%%rank -3,-1 --timeout 60", [0, 2]),
        ("%%rank [0,1]", [0, 1]),
        ("%%rank[0, 2] -o run", [0, 2]),
        ("%%rank[1-2]", [1, 2]),
        ("%%distributed -r [0,1]", [0, 1]),
    ],
)
def test_the_ranks_that_are_named_run_the_cell(ranks, line, expected):
    """No other rank runs it."""
    assert ranks_of(ranks.ok(f"{line}\n{WHO}")) == expected


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%%distributed -r 3", "There is no rank 3: this world has ranks 0 to 2"),
        ("%%distributed -r -4", "There is no rank -4"),
        ("%%distributed -r 1-3", "There is no rank 3"),
        ("%%distributed -r 2-1", "write 1-2"),
        ("%%distributed -r two", "'two' names no rank"),
        ("%%distributed -r ''", "No rank was named"),
        ("%%distributed -r ,", "No rank was named"),
        ("%%distributed -r", "expected one argument"),
        ("%%rank 7", "There is no rank 7"),
        ("%%rank", "RANKS"),
        ("%%distributed --bogus", "--bogus"),
        ("%%distributed -i 1x", "'1x' is not the name of a variable"),
        ("%%distributed -i ,", "no name was given"),
        ("%%distributed -o 1x", "'1x' is not the name of a variable"),
        ("%%distributed --pull a-b", "'a-b' is not the name of a variable"),
        ("%%distributed --timeout soon", "'soon' is not a number of seconds"),
        ("%%distributed --timeout -1", "not above 0"),
        ("%%distributed --timeout nan", "not above 0"),
    ],
)
def test_a_line_that_cannot_be_is_refused_and_nothing_is_sent(ranks, line, words):
    """One clear message, and no rank has heard of the cell."""
    cell = ranks.run(f"{line}\nsent = True")
    assert cell.reply is not None

    assert cell.reply["status"] == "error"
    assert words in cell.said
    assert ranks.ok("%%distributed\n'sent' in globals()").display_texts == ["[0-2] False"]


def test_inputs_are_sent_before_the_cell_runs(ranks):
    """They go only to the ranks that run it, and again for each cell."""
    ranks.ok("lr, cfg = 0.5, {'layers': [1, 2]}")
    first = ranks.ok("%%distributed -i lr,cfg\nlr, cfg")
    ranks.ok("lr = 0.25")
    second = ranks.ok("%%rank 1 -i lr\nlr")

    assert first.display_texts == ["[0-2] (0.5, {'layers': [1, 2]})"]
    assert second.display_texts == ["[1] 0.25"]
    assert ranks.ok("%%distributed\nlr").display_texts == ["[0,2] 0.5", "[1] 0.25"]


def test_an_input_that_does_not_exist_or_cannot_be_pickled_stops_the_cell(ranks):
    """The session then sends nothing at all."""
    ranks.ok("import threading\nfine, lock = 1, threading.Lock()")
    missing = ranks.run("%%distributed -i fine,nowhere\nsent = True")
    locked = ranks.run("%%distributed -i fine,lock\nsent = True")

    assert missing.ename == "BadRequest"
    assert "-i cannot send nowhere" in missing.traceback
    assert locked.ename == "TransferFailed"
    assert "'lock' cannot be sent" in locked.traceback
    assert ranks.ok("%%distributed\n'sent' in globals() or 'fine' in globals()").display_texts == ["[0-2] False"]


def test_the_run_is_bound_also_when_the_cell_fails(ranks):
    """The name holds the ranks' output, whatever the outcome."""
    ranks.ok("%%distributed -o good\nprint('hello')\n7")
    ranks.run("%%distributed -o bad\nprint('before')\n1 / 0")
    ranks.run("%%distributed -o refused -r 9\n1")

    assert ranks.value("good.outcome, good.text(1), good.results[2].data['text/plain']") == ("ok", "hello\n", "7")
    assert ranks.value("bad.outcome, bad.text(0), bad.errors[1].ename") == ("error", "before\n", "ZeroDivisionError")
    assert ranks.value("'refused' in globals()") is False


def test_pulled_names_come_back_by_rank(ranks):
    """The values are those of the ranks that ran the cell."""
    ranks.ok("%%distributed --pull loss,name\nimport os\nloss = int(os.environ['RANK']) / 2\nname = 'n'")
    everywhere = ranks.value("loss, name")
    ranks.ok("%%distributed -r 1-2 --pull loss\nloss += 1")

    assert everywhere == ({0: 0.0, 1: 0.5, 2: 1.0}, {0: "n", 1: "n", 2: "n"})
    assert ranks.value("loss") == {1: 1.5, 2: 2.0}


def test_a_pull_that_fails_names_the_ranks_and_binds_nothing(ranks):
    """The cell itself has run."""
    ranks.ok("%%distributed\nhere = 1\nunpicklable = (i for i in ())")
    ranks.ok("%%rank 1\npartly = 1")
    missing = ranks.run("%%distributed --pull here,partly\nran = True")
    locked = ranks.run("%%distributed --pull unpicklable\n0")

    assert missing.ename == "TransferFailed"
    assert "'partly' is not defined on ranks 0,2" in missing.traceback
    assert ranks.value("'here' in globals()") is False
    assert ranks.ok("%%distributed\nran").display_texts == ["[0-2] True"]
    assert "'unpicklable' cannot be pickled on ranks 0-2" in locked.traceback


def test_nothing_is_pulled_from_a_cell_that_failed(ranks):
    """The value there would be that of an earlier cell."""
    ranks.ok("%%distributed\nvalue = 'old'")
    cell = ranks.run("%%distributed --pull value\n1 / 0\nvalue = 'new'")

    assert cell.ename == "DistributedError"
    assert ranks.value("'value' in globals()") is False


def test_pull_needs_a_cell_that_is_waited_for(ranks):
    """There is no value to bring back before it has ended."""
    cell = ranks.run("%%distributed --pull x --no-wait\nx = 1")

    assert cell.ename == "BadRequest"
    assert "leave out --no-wait" in cell.traceback


def test_cells_that_are_not_waited_for_queue_in_order_and_speak_in_their_own_places(ranks):
    """Output, results and errors of each appear below it, also when the notebook has gone on."""
    first = ranks.ok(
        "%%distributed --no-wait -o one\nimport pathlib, time\nprint('first', flush=True)\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.01)\nprint('first ends')\nstage = 1\n'one'"
    )
    second = ranks.ok("%%distributed --no-wait -o two\nprint('second')\nstage += 1\nstage")
    third = ranks.ok("%%rank 1 --no-wait -o three\nprint('third')\nraise ValueError(f'at stage {stage}')")
    first.wait_for(lambda cell: "[0-2] first\n" in cell.out)
    busy = ranks.value("one.outcome, two.outcome, three.outcome")
    here = ranks.ok("print('the notebook goes on')\nopen('go', 'w').close()")
    third.wait_for(lambda cell: "ValueError" in cell.err)
    ranks.ok("import os; os.unlink('go')")

    assert busy == ("running", "running", "running")
    assert first.lines == ["[0-2] first", "[0-2] first ends"]
    assert first.display_texts == ["[0-2] 'one'"]
    assert second.lines == ["[0-2] second"]
    assert second.display_texts == ["[0-2] 2"]
    assert third.lines == ["[1] third"]
    assert "ValueError: at stage 2" in third.err
    assert third.error is None  # its own execution had ended well
    assert here.said.strip() == "the notebook goes on"


def test_a_cell_that_is_waited_for_queues_behind_one_that_is_not(ranks):
    """The cells keep their order, whatever their options."""
    ranks.ok("%%distributed --no-wait\nimport time; time.sleep(0.3)\norder = ['first']")
    second = ranks.ok("%%distributed\norder.append('second')\norder")

    assert second.display_texts == ["[0-2] ['first', 'second']"]


def test_a_cell_behind_one_that_failed_is_not_sent_and_says_why(ranks):
    """It would meet ranks in an unknown state."""
    ranks.ok("%%distributed --no-wait\nimport time; time.sleep(0.3)\nraise ValueError('early')")
    second = ranks.run("%%distributed\nqueued_ran = True")

    assert second.ename == "DistributedInterrupt"
    assert "which it was queued behind, ended with: error" in second.traceback
    assert ranks.ok("%%distributed\n'queued_ran' in globals()").display_texts == ["[0-2] False"]


def test_disjoint_ranks_do_not_wait_for_each_other(ranks):
    """A cell on rank 2 runs while one on ranks 0 and 1 does."""
    first = ranks.ok(
        "%%rank 0,1 --no-wait -o one\nimport pathlib, time\nwhile not pathlib.Path('go2').exists(): time.sleep(0.01)"
    )
    second = ranks.ok("%%rank 2\n'free'")
    outcome = ranks.value("one.outcome")
    ranks.ok("%%rank 2\nopen('go2', 'w').close()")
    ranks.ok("%%distributed\n1")

    assert second.display_texts == ["[2] 'free'"]
    assert outcome == "running"
    assert first.err == ""


def test_a_timeout_interrupts_the_cell_and_says_so(ranks):
    """Variables stay; the words are where the reader looks, in the traceback."""
    cell = ranks.run("%%distributed --timeout 0.3\nstage = 'kept'\nimport time; time.sleep(600)")

    assert cell.ename == "RunTimeout"
    assert "Interrupted by its timeout" in cell.traceback
    assert "Interrupted by its timeout" in cell.error["evalue"]
    assert "line 3" in cell.traceback
    assert ranks.ok("%%distributed --timeout 60\nstage").display_texts == ["[0-2] 'kept'"]


@pytest.mark.parametrize("body", ["", "\n\n", "   \n"])
@pytest.mark.parametrize("line", ["%%distributed", "%%rank 0"])
def test_an_empty_cell_says_so(ranks, line, body):
    """Most often the code stands in the next cell."""
    cell = ranks.run(f"{line}\n{body}")

    assert cell.ename == "BadRequest"
    assert "The cell is empty" in cell.traceback


def test_a_cell_of_comments_runs(ranks):
    """It is not empty, it does nothing."""
    assert ranks.ok("%%distributed\n# only a comment\n# and another").said.strip() == ""

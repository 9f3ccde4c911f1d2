"""A request that cannot be carried out gets a clear error and changes nothing."""

from __future__ import annotations

import math

import pytest

from jupyter_dtrain import BadRequest, BadSyntax, NoWorld
from tests.session.cells import begin, run, same, values


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (3, "There is no rank 3: this world has ranks 0 to 2"),
        (-4, "There is no rank -4"),
        ("3", "There is no rank 3"),
        ("1-7", "There is no rank 7"),
        ([0, 5], "There is no rank 5"),
        ("2-1", "The range '2-1' is empty: write 1-2"),
        ("", "No rank was named"),
        ([], "No rank was named"),
        ("first", "'first' names no rank"),
        ("1.5", "'1.5' names no rank"),
        (True, "True is not a rank"),
        (1.0, r"1\.0 is not a rank"),
        ([None], "None is not a rank"),
    ],
)
def test_ranks_that_are_not_there_are_refused(world, ranks, words):
    """The refusal comes before any message or run number."""
    before = world.last_run
    with pytest.raises(BadRequest, match=words):
        run(world, "touched = 1", ranks=ranks)

    assert before is world.last_run


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (None, [0, 1, 2]),
        ("all", [0, 1, 2]),
        (0, [0]),
        (-1, [2]),
        ("-1", [2]),
        ("0,2", [0, 2]),
        ("1-2", [1, 2]),
        ([2, 0, 2], [0, 2]),
        (range(2), [0, 1]),
    ],
)
def test_a_cell_runs_on_the_ranks_that_are_named(world, ranks, expected):
    """Every form works, and each rank runs it once."""
    cell = run(world, "import os; int(os.environ['RANK'])", ranks=ranks)

    assert {rank: rank for rank in expected} == values(cell)
    assert cell.ranks == expected


@pytest.mark.parametrize("code", ["x = = 1", "def f(:\n  pass", "for", "'open", "a\0b"])
def test_a_cell_that_does_not_parse_goes_to_no_rank(world, code):
    """No number is used, and the ranks' histories do not know it."""
    run(world, "'before'")
    before = world.last_run

    with pytest.raises(BadRequest):
        run(world, code)

    assert before is world.last_run
    cell = run(world, "In[-2]")
    assert cell.number == before.number + 1
    assert same("'before'") == values(cell)


def test_a_syntax_error_names_line_and_place(world):
    """The error is Python's, and says that nothing was sent."""
    with pytest.raises(BadSyntax, match=r"line 2: .*not sent to any rank") as caught:
        run(world, "x = 1\ny = = 2")

    assert (2, 5) == (caught.value.lineno, caught.value.offset)
    assert "\n    y = = 2\n        ^" in str(caught.value)


def test_an_error_that_only_the_compiler_finds_has_its_line_and_caret(world):
    """The parser has no objection."""
    with pytest.raises(BadSyntax) as caught:
        run(world, "x = 1\nif x: return 5")

    assert "\n    if x: return 5\n          ^" in str(caught.value)


def test_an_import_from_the_future_may_stand_below_other_lines(world):
    """As in a plain cell, whose statements IPython compiles one by one."""
    assert same(1) == values(run(world, "%matplotlib inline\nfrom __future__ import annotations\nx: No = 1\nx"))
    with pytest.raises(BadSyntax, match="future feature nothing is not defined"):
        run(world, "x = 1\nfrom __future__ import nothing")


@pytest.mark.parametrize("timeout", [0, -1, math.nan])
def test_a_timeout_that_cannot_be_is_refused(world, timeout):
    """Zero, less, or no number."""
    before = world.last_run

    with pytest.raises(BadRequest, match="timeout must be above 0"):
        run(world, "1", timeout=timeout)

    assert before is world.last_run


@pytest.mark.parametrize(
    ("n", "words"), [(0, "at most 1024, not 0"), (-1, "at most 1024, not -1"), (True, "at most 1024, not True")]
)
def test_a_world_needs_a_rank(launch, n, words):
    """True is no number of ranks."""
    with pytest.raises(BadRequest, match=words):
        launch(n=n)


def test_a_world_of_thousands_is_taken_for_a_slip(launch):
    """9999 is refused before anything starts."""
    with pytest.raises(BadRequest, match="n must be a whole number, at least 1 and at most 1024, not 9999"):
        launch(n=9999)


@pytest.mark.parametrize("name", ["", " ", "a b", "../up", "a/b", "-n", ".hidden", "wörld", "x" * 41, "a\n", "a;rm"])
def test_a_name_that_no_folder_should_have_is_refused(launch, name):
    """The world's name becomes part of a folder's name."""
    with pytest.raises(BadRequest, match="cannot name a world"):
        launch(n=1, name=name)


def test_a_name_that_is_taken_is_refused(launch, world):
    """The error names the way on."""
    with pytest.raises(BadRequest, match="already running: stop it, or choose another"):
        launch(n=1, name=world.name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env": {"A=B": "1"}}, "cannot name an environment variable"),
        ({"env": {"": "1"}}, "cannot name an environment variable"),
        ({"env": {"A": "nul\0"}}, "'A' cannot have a value with a NUL character"),
        ({"env": {"A": 1}}, "env must be a dict that maps text to text"),
        ({"env": {"MASTER_PORT": "no"}}, "MASTER_PORT must be a port"),
        ({"env": {"MASTER_PORT": "70000"}}, "MASTER_PORT must be a port"),
        ({"chief": True}, "A chief and at least 1 worker need 2 ranks or more, not 1: ask for more ranks"),
        ({"chief": True, "ps": 2}, "A chief, at least 1 worker and 2 parameter servers need 4 ranks or more, not 1"),
        ({"ps": 1}, "Parameter servers need a chief.*set the option chief"),
        ({"ps": -1}, "ps must be a whole number, at least 0, not -1"),
        ({"chief": 1}, "chief must be True or False, not 1"),
        ({"torch_backend": "mpi"}, "torch_backend must be auto, nccl or gloo, not 'mpi'"),
    ],
)
def test_options_that_cannot_be_are_refused(launch, options, words):
    """The refusal comes before the first folder and the first process."""
    with pytest.raises(BadRequest, match=words):
        launch(n=1, **options)


def test_a_session_that_was_stopped_says_so(launch):
    """Every call, a second stop included; what it ran stays readable."""
    session = launch(n=1)
    cell = run(session, "print('kept')")
    unfinished = begin(session, "import time; time.sleep(60)")
    session.stop()

    for call in (
        session.stop,
        session.interrupt,
        session.restart,
        session.stacks,
        lambda: run(session, "1"),
        lambda: session.push({"a": 1}),
        lambda: session["a"],
        lambda: session.world,
    ):
        with pytest.raises(NoWorld, match="was stopped"):
            call()
    assert session.closed
    assert "stopped" in repr(session)
    assert cell.text(0) == "kept\n"
    assert unfinished.outcome == "lost"
    assert "its world was stopped" in unfinished.lost[0]


def test_a_with_block_stops_its_world(launch):
    """It stops even when the block fails."""

    def block() -> None:
        with session:
            run(session, "1")
            raise ZeroDivisionError

    session = launch(n=1)
    with pytest.raises(ZeroDivisionError):
        block()

    assert session.closed


def test_a_busy_world_shows_which_ranks_work(world, meeting):
    """World.ranks has the states that people read."""
    go = meeting / "go"
    cell = begin(
        world, f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)", ranks=1
    )
    states = [rank.state for rank in world.world.ranks]
    go.touch()

    assert cell.wait(20)
    assert ["idle", "running", "idle"] == states
    assert ["idle", "idle", "idle"] == [rank.state for rank in world.world.ranks]

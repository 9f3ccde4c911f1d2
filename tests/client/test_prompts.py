"""What a person types at a debugger's prompt, and the tables that answer it."""

from __future__ import annotations

import pytest

from jupyter_dtrain.client.prompts import _addressed, answer_table, failure_table
from jupyter_dtrain.wire.prompt_messages import LastError


@pytest.mark.parametrize(
    ("line", "named", "command"),
    [
        ("p loss", None, "p loss"),
        ("  n ", None, "n"),
        ("", None, ""),
        (None, None, "q"),
        ("@all p loss", "all", "p loss"),
        ("@all  p  x", "all", "p  x"),
        ("  @ 1 p x", "1", "p x"),
        ("@0,2-3 w", "0,2-3", "w"),
        ("@0, 2 w", "0, 2", "w"),
        ("@4:8 p x", "4:8", "p x"),
        ("@1", "1", ""),
        ("@all", "all", ""),
        ("@1 p a\nb", "1", "p a\nb"),
        ("x @ y", None, "x @ y"),
        ("p x @ 1", None, "p x @ 1"),
        ("@decorator", None, "@decorator"),
        ("@allow p x", None, "@allow p x"),
    ],
)
def test_a_line_may_name_ranks_first(line, named, command):
    """Anything else is the debugger's. The end of the input quits."""
    assert _addressed(line) == (named, command)


def test_equal_answers_of_ranks_come_once():
    """Ranks that wait say in which call."""
    rows = {
        3: ("all_reduce", "4"),
        0: ("", "2"),
        1: ("all_reduce", "4"),
        2: ("", "2\n3"),
        4: ("barrier", "4"),
    }
    assert answer_table(rows).splitlines() == [
        "rank 0                         | 2",
        "ranks 1,3 (wait in all_reduce) | 4",
        "rank 2                         | 2",
        "                               | 3",
        "rank 4 (waits in barrier)      | 4",
    ]


def test_an_answer_may_be_empty():
    """As that of a command which prints nothing."""
    assert answer_table({0: ("", ""), 1: ("", "")}) == "ranks 0-1 |\n"
    assert answer_table({}) == ""


def test_the_errors_of_ranks_stand_side_by_side():
    """Those that another rank has brought down are told as such, whatever they say."""
    found = {
        0: LastError("RuntimeError: [10.0.0.1]:29 closed", "cell [1], line 5: all_reduce(x)", echo=True),
        1: LastError("ValueError: bad", "cell [1], line 4: check(x)"),
        2: LastError("RuntimeError: [10.0.0.1]:31 closed", "cell [1], line 5: all_reduce(x)", echo=True),
        3: LastError(""),
        4: None,
    }
    assert failure_table(found).splitlines() == [
        "ranks 0,2 | waited for a rank that failed | cell [1], line 5: all_reduce(x)",
        "rank 1    | ValueError: bad               | cell [1], line 4: check(x)",
        "rank 3    | no error",
        "rank 4    | does not answer now",
    ]

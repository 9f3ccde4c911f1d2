"""The reason for a start that failed, its fix, and the lines of the log that show it."""

from __future__ import annotations

import pytest

from jupyter_dtrain.core.start_failures import AGAIN, MEND, MOST_LINES, process_ended, rank_ended, relevant

HUB = "2026-01-01 heartbeat::ignored\nTo connect another client, say --existing\n------\n"
TRACE = 'Traceback (most recent call last):\n  File "<frozen runpy>", line 1\n  File "a.py", line 2\n    go()\n'


def test_the_last_traceback_is_shown_without_what_says_nothing():
    """Hints of ipykernel, the hub's heartbeat and frames of Python's own import are left out."""
    log = f"{TRACE}KeyError: 'first'\nagain\n{HUB}{TRACE}ValueError: second\n"

    assert relevant(log).splitlines() == [
        "Traceback (most recent call last):",
        '  File "a.py", line 2',
        "    go()",
        "ValueError: second",
    ]
    assert relevant(HUB) == ""
    assert relevant("only\nwords\n") == "only\nwords"


@pytest.mark.parametrize(
    ("begins", "first", "last"),
    [
        ("Traceback (most recent call last):\n", "Traceback (most recent call last):", "line 99"),
        ("Current thread 0x00007f (most recent call first):\n", "Current thread 0x00007f", "  …"),
        ("", "line 88", "line 99"),
    ],
    ids=["traceback", "crash", "log"],
)
def test_a_long_log_keeps_the_end_that_tells(begins, first, last):
    """A traceback's innermost frames come last, those of a crash first."""
    lines = relevant(begins + "\n".join(f"line {number}" for number in range(100))).splitlines()

    assert len(lines) <= MOST_LINES
    assert lines[0].startswith(first)
    assert lines[-1] == last


def test_a_rank_that_ends_names_the_error_and_the_fix():
    missing = rank_ended("rank 1 ended with exit code 1", f"{TRACE}ModuleNotFoundError: No module named 'x'.\n")
    other = rank_ended("rank 1 ended with exit code 1", f"{TRACE}ValueError: bad\n")
    silent = rank_ended("rank 1 was killed (SIGKILL)", HUB)

    assert missing.reason == (
        "Rank 1 ended with exit code 1 while the world was starting: ModuleNotFoundError: No module named 'x'."
    )
    assert missing.fix.startswith("Repair that module in the environment of the ranks (")
    assert (other.fix, other.log.splitlines()[-1]) == (MEND, "ValueError: bad")
    assert (silent.reason, silent.fix, silent.log) == (
        "Rank 1 was killed (SIGKILL) while the world was starting.",
        AGAIN,
        "",
    )


def test_a_process_that_ends_shows_its_log():
    told = process_ended("mpiexec", 213, "no such host\n")
    silent = process_ended("The controller", 1, "")

    assert (told.reason, told.fix, told.log) == (
        "mpiexec ended with exit code 213 while the world was starting.",
        MEND,
        "no such host",
    )
    assert (silent.fix, silent.log) == (AGAIN, "")

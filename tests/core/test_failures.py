"""Ends of processes, in words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_dtrain import BadSyntax, DtrainError
from jupyter_dtrain.core.exits import describe_exit, describe_mpiexec_end
from jupyter_dtrain.core.failures import INTERRUPT, situations
from jupyter_dtrain.core.settings import Settings

PAGE = Path(__file__).resolve().parents[2] / "scripts" / "failures_page.py"


def ended(how: str) -> int:
    """The wait status of a process that did ``how``."""
    code = f"import os, signal\n{how}\nos._exit(99)"
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
    return os.waitpid(pid, 0)[1]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("os._exit(3)", "rank 1 ended with exit code 3"),
        ("os._exit(0)", "rank 1 ended with exit code 0 (os._exit or a native exit)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 was killed (SIGKILL), often out of memory: "),
        ("os.kill(os.getpid(), signal.SIGTERM)", "rank 1 was killed (SIGTERM), another process asked it to end"),
        ("os.kill(os.getpid(), signal.SIGBUS)", "rank 1 crashed (SIGBUS), often a full /dev/shm"),
        ("os.kill(os.getpid(), signal.SIGUSR1)", "rank 1 crashed (SIGUSR1)"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 1)", f"rank 1 was killed by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_the_end_of_a_rank_has_words(how, words):
    """Each process really ended so."""
    assert describe_exit(1, ended(how)).startswith(words)


ENDLESS = """
import faulthandler, sys
faulthandler.enable()
sys.setrecursionlimit(10**6)
class Odd:
    def __getattr__(self, name):
        return getattr(self, name + "x"[:0])
Odd().name
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="calls through C have a limit of their own from Python 3.12 on")
def test_endless_recursion_past_pythons_limit_is_known_from_pythons_last_words():
    """The stack of a process really overflowed."""
    done = subprocess.run([sys.executable, "-c", ENDLESS], check=False, capture_output=True, text=True)
    words = describe_exit(1, -done.returncode, said=done.stderr)

    assert words.startswith(
        "rank 1 crashed (SIGSEGV), a stack overflow: __getattr__ (line 7) was called again and again"
    )
    shallow = done.stderr.replace("  ...\n", "")
    assert describe_exit(1, -done.returncode, said=shallow) == "rank 1 crashed (SIGSEGV), a fault in native code"


def test_our_errors_show_as_their_message_alone():
    """A notebook shows no frames of ours."""
    assert ["\x1b[31mDtrainError\x1b[0m: what to do"] == DtrainError("what to do")._render_traceback_()


def test_a_syntax_error_without_a_place_is_shown_all_the_same():
    """Some have neither line nor text."""
    error = BadSyntax(SyntaxError("odd"))

    assert "odd, so the cell was not sent to any rank." == str(error)
    assert error.lineno is None


def test_the_page_says_what_the_table_says() -> None:
    done = subprocess.run([sys.executable, str(PAGE), "--check"], check=False)

    assert done.returncode == 0, "run python scripts/failures_page.py"


def test_every_time_of_the_table_is_a_setting_or_a_number() -> None:
    steps = [*INTERRUPT, *(step for row in situations() for step in (row.noticed, *row.steps))]
    spans = [*(step.at for step in steps), *(row.ends for row in situations() if row.ends)]

    assert all(span.of(Settings()) >= 0 for span in spans)
    assert len({row.name for row in situations()}) == len(situations())


def test_last_words_of_a_library_say_what_a_crash_was() -> None:
    said = "[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4."

    assert "gloo aborts when ranks pass different sizes" in describe_exit(1, ended("os.abort()"), said=said)
    assert describe_exit(1, ended("os.abort()"), "by us", said) == "rank 1 crashed (SIGABRT), by us"
    assert describe_exit(1, ended("os._exit(1)"), "by us") == "rank 1 ended with exit code 1, by us"


def test_the_end_of_mpiexec_names_the_ranks_that_go_on():
    """``MPI_Abort`` ends it together with the rank that calls."""
    assert "mpiexec has ended (exit code 0). Ranks 1-2 go on. %distributed restart" in describe_mpiexec_end(
        0, [1, 2], 3
    )
    assert "mpiexec has ended (exit code 3). Rank 1 goes on. %distributed restart" in describe_mpiexec_end(3, [1], 3)
    assert "mpiexec has ended (SIGKILL). The ranks go on. %distributed restart" in describe_mpiexec_end(-9, [0, 1], 2)
    assert "and so have all ranks. %distributed restart" in describe_mpiexec_end(3, [], 2)
    assert "all ranks: another process may have sent it" in describe_mpiexec_end(0, [], 2, ends_ranks=True)

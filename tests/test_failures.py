"""Ends of processes, in words."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from jupyter_dtrain import BadSyntax, DtrainError
from jupyter_dtrain.failures import describe_exit


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
        ("os.kill(os.getpid(), signal.SIGTERM)", "rank 1 was killed (SIGTERM), somebody asked it to end"),
        ("os.kill(os.getpid(), signal.SIGBUS)", "rank 1 crashed (SIGBUS), often a full /dev/shm"),
        ("os.kill(os.getpid(), signal.SIGUSR1)", "rank 1 crashed (SIGUSR1)"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 1)", f"rank 1 was killed by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_the_end_of_a_rank_has_words(how, words):
    """Of a process that really ended so."""
    assert describe_exit(1, ended(how)).startswith(words)


def test_our_errors_show_as_their_message_alone():
    """A notebook shows no frames of ours."""
    assert ["\x1b[31mDtrainError\x1b[0m: what to do"] == DtrainError("what to do")._render_traceback_()


def test_a_syntax_error_without_a_place_is_told_all_the_same():
    """Some have neither line nor text."""
    error = BadSyntax(SyntaxError("odd"))

    assert "odd, so the cell was not sent to any rank." == str(error)
    assert error.lineno is None

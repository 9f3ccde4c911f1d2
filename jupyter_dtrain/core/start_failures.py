"""Why a world did not start: one sentence with the reason, one with the fix, and the lines of a log that show it.

Pure functions of what its processes wrote before they ended. A log that says nothing known gives its last lines.
"""

from __future__ import annotations

import re
import sys
from typing import Final

import msgspec

from .errors import package_gone
from .exits import describe_signal
from .world import quantity

MOST_LINES: Final = 12
"""The most lines of a log that a failure shows."""
AGAIN: Final = "Start the world again. If this happens again, the machine may lack the memory for so many ranks."
MEND: Final = "The log shows where: mend that, and start the world again."

_TRACEBACK: Final = "Traceback (most recent call last):"
_CRASH: Final = "Current thread 0x"
"""Begins the stack that Python writes when a signal ends it."""
_ERROR = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Failed)\b(?:: .*)?$")
"""The last line of a traceback."""
_MODULES = re.compile(r"(?:ModuleNotFound|Import)Error\b")
_NOISE = re.compile(
    r"heartbeat::|--existing|To connect another client|^NOTE: When using the `ipython kernel`"
    r"|^Ctrl-C will not work|github\.com/ipython/ipython/issues|^To exit, you will have to|^the \"quit\""
    r"|File \"<frozen |^[-=*\s]*$"
)
"""Lines that say nothing about a failure: hints of ipykernel, the hub's heartbeat, frames of Python's own import."""


class StartFailure(msgspec.Struct, frozen=True):
    """Why a world did not start."""

    reason: str
    """Why the world did not start, as a sentence."""
    fix: str
    """What helps, as a sentence; empty if nothing is known to."""
    log: str = ""
    """The lines of a log that show the reason; empty if no log says more."""


def relevant(log: str, most: int = MOST_LINES) -> str:
    """The lines of ``log`` that tell about a failure: its last traceback, else a crash's stack, else its last lines."""
    traceback, crash = log.rfind(_TRACEBACK), log.rfind(_CRASH)
    lines = [line.rstrip() for line in log[max(traceback, crash, 0) :].splitlines() if not _NOISE.search(line)]
    if len(lines) > most and crash > traceback:
        lines = [*lines[: most - 1], "  …"]  # the innermost frame comes first
    elif len(lines) > most and traceback >= 0:
        lines = [lines[0], "  …", *lines[2 - most :]]
    return "\n".join(lines[-most:])


def rank_ended(words: str, said: str) -> StartFailure:
    """The failure of a start in which a rank ended: ``words`` say how, ``said`` is the end of its output."""
    log = relevant(said)
    error = _last_error(said)
    reason = f"{words[:1].upper()}{words[1:]} while the world was starting"
    if not error:
        return StartFailure(f"{reason}.", MEND if log else AGAIN, log)
    return StartFailure(f"{reason}: {error.rstrip('.')}.", _mend(error), log)


def too_few_gpus(host: str, gpus: int, ranks: int, each: int) -> StartFailure:
    """The failure of a start on a ``host`` with so many ``gpus``, where so many ``ranks`` want ``each``."""
    has = quantity(gpus, "GPU") if gpus else "no GPU"
    return StartFailure(
        f"{host} has {has}, too few for {quantity(ranks, 'rank')} with {quantity(each, 'GPU')} each.",
        "Give that host fewer ranks, or give --gpus-per-rank less.",
    )


def process_ended(what: str, code: int, log: str) -> StartFailure:
    """The failure of a start in which ``what``, such as mpiexec, ended with ``code``; ``log`` is its own log."""
    lines = relevant(log)
    error = _last_error(log)
    why = f": {error.rstrip('.')}" if error else ""
    end = f"ended with exit code {code}" if code >= 0 else f"was killed ({describe_signal(-code)})"
    fix = _mend(error) if lines else AGAIN
    return StartFailure(f"{what} {end} while the world was starting{why}.", fix, lines)


def _mend(error: str) -> str:
    """The fix of an error that a process has raised."""
    if not _MODULES.match(error):
        return MEND
    return package_gone() or f"Repair that module in the environment of the ranks ({sys.prefix}), or mend PYTHONPATH."


def _last_error(log: str) -> str:
    """The error of the last traceback in ``log``; empty if there is none."""
    _, traceback, rest = log.rpartition(_TRACEBACK)
    if not traceback:
        return ""
    return next((line.strip() for line in rest.splitlines() if _ERROR.match(line)), "")

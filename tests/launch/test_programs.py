"""Programs side by side, and their end before they have answered."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from jupyter_dtrain.launch.programs import ProgramAnswer, Stopped, run_on
from tests.steward.until import until


class Straight:
    """A carrier to this machine itself."""

    def command(self, host: str, program: Sequence[str]) -> tuple[list[str], str]:
        """The program, with the host as its last word."""
        return [*program, host], ""

    def explain(self, answer: ProgramAnswer, host: str, program: str) -> ProgramAnswer:  # noqa: ARG002 — nothing can be in the way
        """The answer."""
        return answer


def test_programs_end_when_nobody_waits_for_them(tmp_path: Path) -> None:
    """Those that have begun, too, long before their deadline."""
    code = "import os, sys, time; open(sys.argv[1] + sys.argv[2], 'w').write(str(os.getpid())); time.sleep(60)"
    stopped = threading.Event()
    files = [tmp_path / host for host in ("a", "b")]

    def stop() -> None:
        until(lambda: all(file.exists() and file.read_text() for file in files))
        stopped.set()

    stopper = threading.Thread(target=stop)
    stopper.start()
    began = time.monotonic()
    with pytest.raises(Stopped):
        run_on(
            ["a", "b"], [sys.executable, "-c", code, f"{tmp_path}/"], carrier=Straight(), timeout=50, stopped=stopped
        )
    stopper.join()

    assert time.monotonic() - began < 30
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


def test_answers_come_in_the_order_of_the_hosts() -> None:
    """With an event that is not set, as without one."""
    code = "import sys, time; time.sleep(0.2 if sys.argv[1] == 'a' else 0); print(sys.argv[1])"
    found = run_on(["a", "b"], [sys.executable, "-c", code], carrier=Straight(), timeout=50, stopped=threading.Event())

    assert [(host, one.output) for host, one in found.items() if isinstance(one, ProgramAnswer)] == [
        ("a", "a\n"),
        ("b", "b\n"),
    ]

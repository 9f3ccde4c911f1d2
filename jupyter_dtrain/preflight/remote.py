"""Sends a program of this package to a machine's Python, which may lack the package, and reads its answer.

The program travels over standard input, with its arguments, so that no command line shows them.

Under failure: a machine whose Python is missing, too old or broken is an
:class:`~jupyter_dtrain.launch.programs.Unreached` with the last words of that Python.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.launch.programs import ProgramAnswer, Unreached, run_here, run_on

from .reach import Asking

MARGIN: Final = 2.0
"""Seconds that an answer has to arrive after the program has ended itself."""
_READER: Final = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; read = sys.stdin.buffer; "
    "exec(compile(read.read(int(read.readline())), 'jupyter_dtrain', 'exec'))"
)
"""Reads the length of a program, then the program, and runs it. The rest of the input is the program's own.

Without the home on ``sys.path``: a ``random.py`` there must not break the program.
"""


class Program:
    """A module of this folder, or of ``room``, to be run elsewhere with arguments of its ``main``."""

    def __init__(self, module: str, seconds: float, *, room: Path = Path(__file__).parent, **arguments: Any) -> None:
        self.nonce = secrets.token_hex(8)
        """Begins the line of the answer, among the words of a shell's start files."""
        asked = json.dumps({"nonce": self.nonce, "seconds": seconds, **arguments})
        source = f"{(room / f'{module}.py').read_text()}\nmain({asked!r})\n"
        self.text = f"{len(source.encode())}\n{source}"
        """For the standard input of :func:`command`."""

    def answer(self, line: str) -> Any:
        """The value in a line of output; None if the line is something else."""
        begin, _, value = line.partition(" ")
        if begin != self.nonce:
            return None
        try:
            return json.loads(value)
        except ValueError:
            return None

    def read(self, done: ProgramAnswer | Unreached, python: str, kind: Any, cure: str = "") -> Any:
        """The answer in all of the output as a value of ``kind``, or the reason why there is none.

        ``cure``: the way to another interpreter than ``python``, as a sentence.
        """
        if isinstance(done, Unreached):
            return done
        for line in done.output.splitlines():
            value = self.answer(line)
            if isinstance(value, dict):
                try:
                    return msgspec.convert({**value, "sent": done.sent, "received": done.received}, readable(kind))
                except (msgspec.ValidationError, UnicodeError) as error:
                    return _broken(python, str(error), line, cure)
        words = done.errors.strip() or done.output.strip()
        return _broken(python, (words.splitlines() or [f"exit code {done.code}, without a word"])[-1], words, cure)


def command(python: str) -> list[str]:
    """The command that runs the program on its standard input."""
    return [python, "-c", _READER]


def ask_all(
    hosts: Sequence[str], programs: Mapping[str, Program], reach: Asking, *, kind: Any, timeout: float
) -> dict[str, Any]:
    """Run ``programs``, each by the host's name, and read their answers as ``kind``, within ``timeout`` seconds.

    Raises :class:`~jupyter_dtrain.launch.programs.Stopped` as soon as ``reach.stopped`` is set.
    """
    if not hosts:
        return {}
    stdin = {host: programs[host].text for host in hosts}
    python, cure = reach.python, reach.cures.python
    done = run_on(hosts, command(python), carrier=reach.carrier, timeout=timeout, stdin=stdin, stopped=reach.stopped)
    return {host: programs[host].read(one, python, kind, cure) for host, one in done.items()}


def ask_here(program: Program, *, python: str, kind: Any, timeout: float) -> Any:
    """The same on this machine."""
    return program.read(run_here(command(python), timeout=timeout, stdin=program.text), python, kind)


def _broken(python: str, words: str, said: str, cure: str) -> Unreached:
    cure = f"Python must be 3.10 or newer there. {cure}".strip()
    return Unreached("failed", f"{python} could not run the check: {words}", cure, said)

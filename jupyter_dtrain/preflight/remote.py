"""Runs a program of this package on other machines, each from its own copy of the package, and reads its answer.

The arguments travel over standard input, so that no command line shows them.

Under failure: a machine whose Python or package is missing, too old or broken is an
:class:`~jupyter_dtrain.launch.programs.Unreached` with the last words of that Python.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from jupyter_dtrain.core.framework_report import installed_version
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.launch.programs import ProgramAnswer, Unreached, run_here, run_on

from .findings import Cures
from .reach import Asking

OWN: Final = "jupyter_dtrain"
OWN_DISTRIBUTION: Final = "jupyter-dtrain"
MARGIN: Final = 2.0
"""Seconds that an answer has to arrive after the program has ended itself."""
_RUN: Final = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; from {module} import main; main(sys.stdin.readline())"
)
"""Runs a program with the first line of the input; the rest is the program's own.

Without the home on ``sys.path``: a ``random.py`` there must not break the program.
"""
_MISSING: Final = re.compile(rf"No module named '{OWN}(?:\.\w+)?'")
"""The last words of a Python without the package. An empty folder of that name counts as a package for Python, whose
parts are missing then; of an older version a smaller part may be missing."""


class Program:
    """A module of this package, to be run on some machine with arguments of its ``main``."""

    def __init__(self, module: str, seconds: float, **arguments: Any) -> None:
        self.nonce = secrets.token_hex(8)
        """Begins the line of the answer, among the words of a shell's start files."""
        self.text = json.dumps({"nonce": self.nonce, "seconds": seconds, **arguments}) + "\n"
        """For the standard input of :meth:`command`."""
        self._module = module

    def command(self, python: str) -> list[str]:
        """The command that runs it."""
        return [python, "-c", _RUN.format(module=self._module)]

    def answer(self, line: str) -> Any:
        """The value in a line of output; None if the line is something else."""
        begin, _, value = line.partition(" ")
        if begin != self.nonce:
            return None
        try:
            return json.loads(value)
        except ValueError:
            return None

    def read(self, done: ProgramAnswer | Unreached, python: str, kind: Any, cures: Cures | None = None) -> Any:
        """The answer in all of the output as a value of ``kind``, or the reason why there is none.

        ``cures``: the sentences for the way to that machine; None for this one.
        """
        if isinstance(done, Unreached):
            return done
        for line in done.output.splitlines():
            value = self.answer(line)
            if isinstance(value, dict):
                try:
                    return msgspec.convert({**value, "sent": done.sent, "received": done.received}, readable(kind))
                except (msgspec.ValidationError, UnicodeError) as error:
                    return _broken(python, str(error), line, cures)
        words = done.errors.strip() or done.output.strip()
        return _broken(python, (words.splitlines() or [f"exit code {done.code}, without a word"])[-1], words, cures)


def ask_all(
    hosts: Sequence[str], programs: Mapping[str, Program], reach: Asking, *, kind: Any, timeout: float
) -> dict[str, Any]:
    """Run ``programs`` of one module, each by the host's name, and read their answers as ``kind``.

    All of it takes at most ``timeout`` seconds. Raises :class:`~jupyter_dtrain.launch.programs.Stopped` as soon as
    ``reach.stopped`` is set.
    """
    if not hosts:
        return {}
    stdin = {host: programs[host].text for host in hosts}
    command = programs[hosts[0]].command(reach.python)
    done = run_on(hosts, command, carrier=reach.carrier, timeout=timeout, stdin=stdin, stopped=reach.stopped)
    return {host: programs[host].read(one, reach.python, kind, reach.cures) for host, one in done.items()}


def ask_here(program: Program, *, kind: Any, timeout: float, python: str = sys.executable) -> Any:
    """Run ``program`` on this machine, and read its answer as :func:`ask_all` does."""
    return program.read(run_here(program.command(python), timeout=timeout, stdin=program.text), python, kind)


def requirement() -> str:
    """What pip installs where the package is missing: the version that this machine has."""
    version = installed_version(OWN_DISTRIBUTION)
    return f"{OWN_DISTRIBUTION}=={version}" if version else OWN_DISTRIBUTION


def _broken(python: str, words: str, said: str, cures: Cures | None) -> Unreached:
    install = f"Install it there: `{python} -m pip install {requirement()}`{cures.or_other_python if cures else ''}."
    if _MISSING.search(words):
        return Unreached("no package", f"The package {OWN} is missing; {python} does not find it.", install, said)
    if words.startswith("ModuleNotFoundError"):
        cure = install.replace("it there", "the package there again", 1)
    else:
        cure = f"Python must be 3.10 or newer there. {cures.python if cures else ''}".strip()
    return Unreached("failed", f"{python} could not run the check: {words}", cure, said)

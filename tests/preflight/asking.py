"""Asks this machine for its facts, as a host is asked."""

from __future__ import annotations

import sys

from jupyter_dtrain.launch.programs import run_here
from jupyter_dtrain.preflight import probe, software
from jupyter_dtrain.preflight.doctor import FOR_OLDER
from jupyter_dtrain.preflight.probe import Facts
from jupyter_dtrain.preflight.reach import Program


def ask(seconds=10, python=sys.executable, **more):
    """The facts of this machine, as a host would tell them."""
    asked = {"packages": software.asked(), "living": [], "shared": None, **FOR_OLDER}
    program = Program(probe.__name__, seconds, **{**asked, **more})
    done = run_here(program.command(python), timeout=seconds + 10, stdin=program.text)
    return program.read(done, python, Facts)

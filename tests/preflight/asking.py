"""Asks this machine for its facts, as a host is asked."""

from __future__ import annotations

import sys

from jupyter_dtrain.preflight import probe, software
from jupyter_dtrain.preflight.doctor import FOR_OLDER
from jupyter_dtrain.preflight.probe import Facts
from jupyter_dtrain.preflight.reach import Program, ask_here


def ask(seconds=10, python=sys.executable, **more):
    """The facts of this machine, as a host would tell them."""
    asked = {"packages": software.asked(), "living": [], "shared": None, **FOR_OLDER}
    return ask_here(
        Program(probe.__name__, seconds, **{**asked, **more}), kind=Facts, timeout=seconds + 10, python=python
    )

"""ipyparallel's engine, imported so that ipykernel finds no debugger.

A rank has no debugger, and importing one took a third of a rank's own start. ipykernel looks for it once, when its own
modules are imported: ipykernel 6 as soon as ipyparallel's engine is. A cell that imports debugpy gets it.

Under failure: an import that fails raises, and the debugger can be imported all the same.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib import import_module


@contextlib.contextmanager
def _no_debugger() -> Iterator[None]:
    server = "debugpy.server"
    if "ipykernel.debugger" in sys.modules or server in sys.modules:
        yield
        return
    sys.modules[server] = None  # type: ignore[assignment]  # for the import system: there is none
    try:
        import_module("ipykernel.debugger")
        yield
    finally:
        del sys.modules[server]


with _no_debugger():
    from ipyparallel.engine.app import IPEngine

__all__ = ["IPEngine"]

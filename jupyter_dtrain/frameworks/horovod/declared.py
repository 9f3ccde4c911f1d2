"""Horovod's declarations for the parts that have no ranks: its echo of another rank's end. Imports no framework."""

from __future__ import annotations

from jupyter_dtrain.core.declarations import Declaration, ScriptSupport

DECLARATION = Declaration(
    name="horovod",
    forwards=("HOROVOD_",),
    title="Horovod",
    # One rank's shutdown ends the waits of all, also of those that have not heard of the release yet.
    echoes=("Horovod has been shut down",),
    scripts=ScriptSupport(modules=("horovod",), family="mpi"),
)

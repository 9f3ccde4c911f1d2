"""Interactive distributed training in Jupyter: cells that run on every rank of a live MPI world.

In a notebook::

    %load_ext jupyter_dtrain
    %distributed start -n 4

The same from Python::

    with Session.start(n=4) as session:
        session.run("print('hello')")

In a cell ``jupyter_dtrain.comm`` is MPI's communicator of all ranks, as it is now.

Importing this package imports neither a framework nor MPI, and nothing heavy until a session starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jupyter_dtrain.view.errors import DistributedError, DistributedInterrupt

    from .errors import (
        BadRequest,
        BadSyntax,
        DtrainError,
        NotDriver,
        NoWorld,
        RanksBusy,
        RanksDead,
        StartFailed,
        StoreFailed,
        TransferFailed,
        WorldLost,
    )
    from .metrics import Columns, RunMetrics
    from .rank_api import log, log_to_csv, progress, resync
    from .run import Run
    from .scripts import run_script
    from .session import Session, current
    from .settings import Settings
    from .store import Store, StoredRun, runs
    from .world import Node, Rank, World

__version__ = "0.1.0.dev0"

_HOMES = {
    "BadRequest": "errors",
    "BadSyntax": "errors",
    "DistributedError": "view.errors",
    "DistributedInterrupt": "view.errors",
    "DtrainError": "errors",
    "NoWorld": "errors",
    "NotDriver": "errors",
    "RanksBusy": "errors",
    "RanksDead": "errors",
    "StartFailed": "errors",
    "StoreFailed": "errors",
    "TransferFailed": "errors",
    "WorldLost": "errors",
    "Run": "run",
    "Session": "session",
    "current": "session",
    "Settings": "settings",
    "Store": "store",
    "StoredRun": "store",
    "runs": "store",
    "Node": "world",
    "Rank": "world",
    "World": "world",
    "Columns": "metrics",
    "RunMetrics": "metrics",
    "log": "rank_api",
    "log_to_csv": "rank_api",
    "progress": "rank_api",
    "resync": "rank_api",
    "run_script": "scripts",
}

__all__ = [
    "BadRequest",
    "BadSyntax",
    "Columns",
    "DistributedError",
    "DistributedInterrupt",
    "DtrainError",
    "NoWorld",
    "Node",
    "NotDriver",
    "Rank",
    "RanksBusy",
    "RanksDead",
    "Run",
    "RunMetrics",
    "Session",
    "Settings",
    "StartFailed",
    "Store",
    "StoreFailed",
    "StoredRun",
    "TransferFailed",
    "World",
    "WorldLost",
    "__version__",
    "current",
    "load_ipython_extension",
    "log",
    "log_to_csv",
    "progress",
    "resync",
    "run_script",
    "runs",
    "unload_ipython_extension",
]


def __getattr__(name: str) -> Any:
    if name == "comm":
        # Made again when ranks were released, so it is asked for each time; importing MPI initialises it.
        from mpi4py import MPI

        return MPI.COMM_WORLD
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext jupyter_dtrain``: add ``%distributed``, ``%%distributed``, ``%%rank`` and ``%%local``."""
    from .magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext jupyter_dtrain``: take the magics away; worlds go on."""
    from .magics import unload

    unload(shell)

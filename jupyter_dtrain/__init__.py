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
    from jupyter_dtrain.core.causes import DistributedError, DistributedInterrupt, RunTimeout
    from jupyter_dtrain.core.errors import (
        BadRequest,
        BadSyntax,
        DtrainError,
        HealFailed,
        NotDriver,
        NoWorld,
        OtherVersion,
        RanksBusy,
        RanksDead,
        Refused,
        StartFailed,
        StoreFailed,
        SyncFailed,
        TransferFailed,
        WorldLost,
    )
    from jupyter_dtrain.core.metrics import Columns, RunMetrics
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.core.settings import Settings
    from jupyter_dtrain.core.world import Node, Rank, World
    from jupyter_dtrain.rank.scripts import run_script

    from .jobs.record import record_job
    from .magics.export import export
    from .preflight.doctor import doctor
    from .rank_api import broadcast, log, log_to_csv, progress, shard
    from .scaling import Speedup, speedup
    from .session import Session, current
    from .store import Comparison, RunList, Store, StoredRun, compare, runs

__version__ = "0.1.0"

_HOMES = {
    "BadRequest": "core.errors",
    "BadSyntax": "core.errors",
    "DistributedError": "core.causes",
    "DistributedInterrupt": "core.causes",
    "DtrainError": "core.errors",
    "HealFailed": "core.errors",
    "NoWorld": "core.errors",
    "NotDriver": "core.errors",
    "OtherVersion": "core.errors",
    "RanksBusy": "core.errors",
    "RanksDead": "core.errors",
    "Refused": "core.errors",
    "StartFailed": "core.errors",
    "StoreFailed": "core.errors",
    "SyncFailed": "core.errors",
    "TransferFailed": "core.errors",
    "WorldLost": "core.errors",
    "Run": "core.run",
    "RunTimeout": "core.causes",
    "Session": "session",
    "current": "session",
    "Settings": "core.settings",
    "Comparison": "store",
    "RunList": "store",
    "Store": "store",
    "StoredRun": "store",
    "compare": "store",
    "doctor": "preflight.doctor",
    "export": "magics.export",
    "runs": "store",
    "Node": "core.world",
    "Rank": "core.world",
    "World": "core.world",
    "Columns": "core.metrics",
    "RunMetrics": "core.metrics",
    "log": "rank_api",
    "log_to_csv": "rank_api",
    "progress": "rank_api",
    "record_job": "jobs.record",
    "broadcast": "rank_api",
    "shard": "rank_api",
    "Speedup": "scaling",
    "speedup": "scaling",
    "run_script": "rank.scripts",
}

__all__ = [
    "BadRequest",
    "BadSyntax",
    "Columns",
    "Comparison",
    "DistributedError",
    "DistributedInterrupt",
    "DtrainError",
    "HealFailed",
    "NoWorld",
    "Node",
    "NotDriver",
    "OtherVersion",
    "Rank",
    "RanksBusy",
    "RanksDead",
    "Refused",
    "Run",
    "RunList",
    "RunMetrics",
    "RunTimeout",
    "Session",
    "Settings",
    "Speedup",
    "StartFailed",
    "Store",
    "StoreFailed",
    "StoredRun",
    "SyncFailed",
    "TransferFailed",
    "World",
    "WorldLost",
    "__version__",
    "broadcast",
    "compare",
    "current",
    "doctor",
    "export",
    "load_ipython_extension",
    "log",
    "log_to_csv",
    "progress",
    "record_job",
    "run_script",
    "runs",
    "shard",
    "speedup",
    "unload_ipython_extension",
]


def __getattr__(name: str) -> Any:
    if name == "comm":
        # Made again when ranks were released, so it is asked for each time; importing MPI initialises it.
        from mpi4py import MPI

        return MPI.COMM_WORLD
    if name == "resync":
        import warnings

        words = "jupyter_dtrain.resync is called broadcast now. The former name works until the next release."
        warnings.warn(words, DeprecationWarning, stacklevel=2)
        name = "broadcast"
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext jupyter_dtrain``: add ``%distributed``, ``%%distributed``, ``%%rank`` and more."""
    from .magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext jupyter_dtrain``: take the magics away; worlds go on."""
    from .magics import unload

    unload(shell)

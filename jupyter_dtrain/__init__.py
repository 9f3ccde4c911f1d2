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
    from mpi4py import MPI

    from jupyter_dtrain.client.flames import Flame
    from jupyter_dtrain.client.healing import Replaced, Resized
    from jupyter_dtrain.client.memory import Freed, MemoryRecord, MemoryReport
    from jupyter_dtrain.client.profiling import LoopProfile
    from jupyter_dtrain.client.snapshots import snapshots
    from jupyter_dtrain.client.steering import ActOutcome, RunningLoop
    from jupyter_dtrain.client.variables import Inventory, VariableComparison
    from jupyter_dtrain.core.causes import DistributedError, DistributedInterrupt, RunTimeout
    from jupyter_dtrain.core.errors import (
        BadRequest,
        BadSyntax,
        DtrainError,
        NotSteered,
        NoWorld,
        OtherVersion,
        ProfileFailed,
        RanksBusy,
        RanksDead,
        RanksError,
        ReadOnly,
        Refused,
        ReplaceFailed,
        RequestError,
        StartFailed,
        StoreFailed,
        TrackFailed,
        TransferFailed,
        UploadFailed,
        WorldError,
        WorldLost,
    )
    from jupyter_dtrain.core.media import Audio, Histogram, Image, Table, Text
    from jupyter_dtrain.core.metrics import Columns, RunMetrics
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.core.settings import Settings
    from jupyter_dtrain.core.snapshots import Snapshot, SnapshotAnswer, SnapshotRefused
    from jupyter_dtrain.core.stacks import Stack, Stacks
    from jupyter_dtrain.core.world import Node, Rank, World
    from jupyter_dtrain.files.sync import Uploaded, upload
    from jupyter_dtrain.jobs.exporting import Exported
    from jupyter_dtrain.jobs.record import record_job
    from jupyter_dtrain.launch.leftovers import Removal, remove_leftovers
    from jupyter_dtrain.launch.worlds import RunningWorld, worlds
    from jupyter_dtrain.magics.export import export
    from jupyter_dtrain.preflight.doctor import Examination, doctor
    from jupyter_dtrain.rank.scripts import run_script
    from jupyter_dtrain.rank_api import broadcast, config, log, log_to_csv, log_weights, progress, shard, step
    from jupyter_dtrain.scaling import Speedup, speedup
    from jupyter_dtrain.session import Session, current, save_profile
    from jupyter_dtrain.store import Comparison, Medium, RunList, Store, StoredRun, compare, runs
    from jupyter_dtrain.store.importing import import_runs
    from jupyter_dtrain.store.report import report
    from jupyter_dtrain.trackers.tracking import track
    from jupyter_dtrain.wire.agent_messages import Surroundings

    comm: MPI.Intracomm

__version__ = "0.1.0"

_HOMES = {
    "ActOutcome": "client.steering",
    "Audio": "core.media",
    "BadRequest": "core.errors",
    "BadSyntax": "core.errors",
    "Columns": "core.metrics",
    "Comparison": "store",
    "DistributedError": "core.causes",
    "DistributedInterrupt": "core.causes",
    "DtrainError": "core.errors",
    "Examination": "preflight.doctor",
    "Exported": "jobs.exporting",
    "Flame": "client.flames",
    "Freed": "client.memory",
    "Histogram": "core.media",
    "Image": "core.media",
    "Inventory": "client.variables",
    "LoopProfile": "client.profiling",
    "Medium": "store",
    "MemoryRecord": "client.memory",
    "MemoryReport": "client.memory",
    "NoWorld": "core.errors",
    "Node": "core.world",
    "NotSteered": "core.errors",
    "OtherVersion": "core.errors",
    "ProfileFailed": "core.errors",
    "Rank": "core.world",
    "RanksBusy": "core.errors",
    "RanksDead": "core.errors",
    "RanksError": "core.errors",
    "ReadOnly": "core.errors",
    "Refused": "core.errors",
    "Removal": "launch.leftovers",
    "ReplaceFailed": "core.errors",
    "Replaced": "client.healing",
    "RequestError": "core.errors",
    "Resized": "client.healing",
    "Run": "core.run",
    "RunList": "store",
    "RunMetrics": "core.metrics",
    "RunTimeout": "core.causes",
    "RunningLoop": "client.steering",
    "RunningWorld": "launch.worlds",
    "Session": "session",
    "Settings": "core.settings",
    "Snapshot": "core.snapshots",
    "SnapshotAnswer": "core.snapshots",
    "SnapshotRefused": "core.snapshots",
    "Speedup": "scaling",
    "Stack": "core.stacks",
    "Stacks": "core.stacks",
    "StartFailed": "core.errors",
    "Store": "store",
    "StoreFailed": "core.errors",
    "StoredRun": "store",
    "Surroundings": "wire.agent_messages",
    "Table": "core.media",
    "Text": "core.media",
    "TrackFailed": "core.errors",
    "TransferFailed": "core.errors",
    "UploadFailed": "core.errors",
    "Uploaded": "files.sync",
    "VariableComparison": "client.variables",
    "World": "core.world",
    "WorldError": "core.errors",
    "WorldLost": "core.errors",
    "broadcast": "rank_api",
    "compare": "store",
    "config": "rank_api",
    "current": "session",
    "doctor": "preflight.doctor",
    "export": "magics.export",
    "import_runs": "store.importing",
    "log": "rank_api",
    "log_to_csv": "rank_api",
    "log_weights": "rank_api",
    "progress": "rank_api",
    "record_job": "jobs.record",
    "remove_leftovers": "launch.leftovers",
    "report": "store.report",
    "run_script": "rank.scripts",
    "runs": "store",
    "save_profile": "session",
    "shard": "rank_api",
    "snapshots": "client.snapshots",
    "speedup": "scaling",
    "step": "rank_api",
    "track": "trackers.tracking",
    "upload": "files.sync",
    "worlds": "launch.worlds",
}

__all__ = [
    "ActOutcome",
    "Audio",
    "BadRequest",
    "BadSyntax",
    "Columns",
    "Comparison",
    "DistributedError",
    "DistributedInterrupt",
    "DtrainError",
    "Examination",
    "Exported",
    "Flame",
    "Freed",
    "Histogram",
    "Image",
    "Inventory",
    "LoopProfile",
    "Medium",
    "MemoryRecord",
    "MemoryReport",
    "NoWorld",
    "Node",
    "NotSteered",
    "OtherVersion",
    "ProfileFailed",
    "Rank",
    "RanksBusy",
    "RanksDead",
    "RanksError",
    "ReadOnly",
    "Refused",
    "Removal",
    "ReplaceFailed",
    "Replaced",
    "RequestError",
    "Resized",
    "Run",
    "RunList",
    "RunMetrics",
    "RunTimeout",
    "RunningLoop",
    "RunningWorld",
    "Session",
    "Settings",
    "Snapshot",
    "SnapshotAnswer",
    "SnapshotRefused",
    "Speedup",
    "Stack",
    "Stacks",
    "StartFailed",
    "Store",
    "StoreFailed",
    "StoredRun",
    "Surroundings",
    "Table",
    "Text",
    "TrackFailed",
    "TransferFailed",
    "UploadFailed",
    "Uploaded",
    "VariableComparison",
    "World",
    "WorldError",
    "WorldLost",
    "__version__",
    "broadcast",
    "compare",
    "config",
    "current",
    "doctor",
    "export",
    "import_runs",
    "load_ipython_extension",
    "log",
    "log_to_csv",
    "log_weights",
    "progress",
    "record_job",
    "remove_leftovers",
    "report",
    "run_script",
    "runs",
    "save_profile",
    "shard",
    "snapshots",
    "speedup",
    "step",
    "track",
    "unload_ipython_extension",
    "upload",
    "worlds",
]

_FORMER = {
    "HealFailed": "ReplaceFailed",
    "NotDriver": "ReadOnly",
    "SyncFailed": "UploadFailed",
    "resync": "broadcast",
}
"""The names of the release before, and those of now."""


def __getattr__(name: str) -> Any:
    if name == "comm":
        # Made again when ranks were released, so it is asked for each time; importing MPI initialises it.
        from mpi4py import MPI

        return MPI.COMM_WORLD
    if name in _FORMER:
        import warnings

        former, name = name, _FORMER[name]
        words = f"jupyter_dtrain.{former} is called {name} now. The former name works until the next release."
        warnings.warn(words, DeprecationWarning, stacklevel=2)
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "comm"]


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext jupyter_dtrain``: add ``%distributed``, ``%%distributed``, ``%%rank`` and more."""
    from .magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext jupyter_dtrain``: take the magics away; worlds go on."""
    from .magics import unload

    unload(shell)

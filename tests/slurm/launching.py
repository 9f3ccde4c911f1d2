"""Worlds in the Slurm of a :class:`~tests.slurm.site.Site`."""

from __future__ import annotations

from typing import Any, Final

from jupyter_dtrain import Session, Settings

PATIENCE: Final = 40.0
SETTINGS: Final = Settings(start_timeout=60)


def start(nodes: int = 2, ntasks_per_node: int | None = 2, **options: Any) -> Session:
    """A world in a job of its own."""
    settings = options.pop("settings", SETTINGS)
    return Session.start(slurm=True, nodes=nodes, ntasks_per_node=ntasks_per_node, settings=settings, **options)


def values(run: Any) -> dict[int, Any]:
    """The value of the last expression, by rank."""
    return {rank: eval(result.data["text/plain"]) for rank, result in run.results.items()}

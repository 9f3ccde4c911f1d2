"""How an elastic run has ended: on its own ranks, and on those that joined it in the place of ranks that were lost.

A cell that goes on without a rank that dies has not failed because of it. So its outcome is that of the other ranks and
of the new ones. Clients, the store and the server come to the same from the same facts, by the one function here.

Plain data; nothing here fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .events import OUTCOMES, RUNNING, Outcome, worst
from .world import count_ranks


class ElasticEnd(NamedTuple):
    """The end of an elastic run."""

    outcome: Outcome
    remark: str
    """The fate of the ranks that were lost, where the outcome is ok: ``rank 1 was replaced``; else empty."""


def elastic_end(own: Mapping[int, str | None], joined: Iterable[Mapping[int, str | None]]) -> ElasticEnd:
    """The end of an elastic run whose ranks ended as ``own`` says.

    ``joined``: the same for each run that joined it, oldest first. A rank of those that has no outcome yet, whatever it
    has instead, works in the place of the lost one. One that was interrupted there has found nothing to join, or was
    stopped with all others.
    """
    last = {rank: outcome for rank, outcome in own.items() if outcome is not None}
    replaced: set[int] = set()
    for join in joined:
        for rank, outcome in join.items():
            if own.get(rank) == "lost" and outcome != "interrupted":
                last[rank] = outcome if outcome in OUTCOMES and outcome != RUNNING else "ok"
                replaced.add(rank)
    lost = sorted(rank for rank, outcome in last.items() if outcome == "lost")
    others = [outcome for outcome in last.values() if outcome != "lost"]
    outcome = worst(others if "ok" in others else list(last.values()))
    if outcome != "ok":
        return ElasticEnd(outcome, "")
    said = [_ranks(sorted(replaced - {*lost}), "replaced"), _ranks(lost, "lost")]
    return ElasticEnd("ok", ", ".join(part for part in said if part))


def _ranks(ranks: list[int], became: str) -> str:
    return f"{count_ranks(ranks)} {'were' if len(ranks) > 1 else 'was'} {became}" if ranks else ""

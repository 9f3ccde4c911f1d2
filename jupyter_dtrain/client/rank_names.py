"""The names that live on a world's ranks: where they are defined, how they go on, and what they stand for.

Completion and inspection ask for them while the user types: the agents answer, also while a cell runs, and a rank that
does not answer in time is left out.
Nothing of a value comes here but words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from jupyter_dtrain.core.errors import DtrainError
from jupyter_dtrain.core.world import Ranks, World, count_ranks, parse_ranks
from jupyter_dtrain.wire.agent_messages import Complete, Describe, NameDescription
from jupyter_dtrain.wire.messages import AgentRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_dtrain.wire.questions import Answers

    from .rank_requests import RankRequests

A = TypeVar("A", bound=msgspec.Struct)

TYPING: Final = 0.7
"""Seconds that ranks have while the user types: JupyterLab drops completions that come after a second."""
READING: Final = 2.0
"""Seconds that ranks have to answer what a name is."""
_SILENT: Final = ("dead", "stopped", "unreachable")
"""States in which a rank is not asked: it would not answer."""


class RankNames:
    """The names of one world."""

    def __init__(self, requests: RankRequests, world: Callable[[], World]) -> None:
        """``world`` gives the world as it is now."""
        self._requests = requests
        self._world = world

    def complete(self, text: str, ranks: Ranks = None, timeout: float = TYPING) -> dict[str, str]:
        """How ``text``, a name or a dotted path, may go on: name → kind for its last part, of all ``ranks`` together.

        Empty where there is no world, or no rank answers; as everything here it says nothing of what goes wrong.
        """
        found: dict[str, str] = {}
        for answer in self._answers(ranks, timeout, Complete(text)).values():
            found |= {name: kind for name, kind in (answer.names if answer else ()) if name not in found}
        return dict(sorted(found.items()))

    def describe(
        self, name: str, ranks: Ranks = None, timeout: float = READING, *, source: bool = False
    ) -> dict[int, NameDescription]:
        """The meaning of ``name``, or of a dotted path, on those of ``ranks`` that have it and answer in time."""
        answers = self._answers(ranks, timeout, Describe(name, source))
        return {rank: answer.found for rank, answer in answers.items() if answer is not None and answer.found}

    def defined_on(self, name: str, ranks: Ranks = None, timeout: float = READING) -> list[int]:
        """Those of ``ranks`` (default: all) that have ``name``, among those that answer within ``timeout`` seconds."""
        return sorted(self.describe(name, ranks, timeout))

    def _answers(self, ranks: Ranks, timeout: float, question: AgentRequest[A]) -> Answers[A]:
        try:
            states = {rank.rank: rank.state for rank in self._world().ranks}
            awake = [rank for rank in parse_ranks(ranks, len(states)) if states[rank] not in _SILENT]
            return self._requests.ask_agents(awake, timeout, question)
        except DtrainError:
            return {}


def describe_names(name: str, found: dict[int, NameDescription], size: int) -> str:
    """The meanings of ``name`` as text; equal ones stand once. ``size``: ranks of the world."""
    first = found[min(found)]
    kinds: dict[tuple[str, str], list[int]] = {}
    for rank, one in sorted(found.items()):
        kinds.setdefault((one.type, one.value), []).append(rank)
    everywhere = "all ranks" if len(found) == size else count_ranks(list(found))
    lines = [f"{name} lives on {everywhere}, not in the notebook."]
    if len(kinds) == 1:
        lines += [f"Type:      {first.type}"] + ([f"Value:     {first.value}"] if first.value else [])
    else:
        named = {count_ranks(ranks): f"{kind} {value}".rstrip() for (kind, value), ranks in kinds.items()}
        width = max(map(len, named))
        lines += [f"{ranks.capitalize() + ':':<{width + 1}} {words}" for ranks, words in named.items()]
    if first.signature:
        lines.append(f"Signature: {first.signature}")
    if first.source:
        lines.append(f"Source:\n{first.source.rstrip()}")
    elif first.doc:
        lines.append(f"Docstring:\n{first.doc.rstrip()}")
    return "\n".join(lines)

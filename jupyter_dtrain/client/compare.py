"""Variables across ranks: what each rank's variables hold, and where those of all ranks differ.

Ranks answer :meth:`Comparing.vars` beside a running cell. A comparison is a run of its own on all ranks, so that a rank
that fails in it frees the others, and Stop ends it. No tensor comes to the notebook.

Under failure: a rank that does not answer in time is named. A comparison raises as a cell does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jupyter_dtrain.core.contents import COMPARISON, PASSING, Compared, Difference, NamedValue
from jupyter_dtrain.core.errors import BadRequest, TransferFailed
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.core.world import Ranks, parse_ranks
from jupyter_dtrain.view.contents import comparison_table, inventory_table
from jupyter_dtrain.wire.agent_messages import ReadVariables

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.core.world import World

    from .rank_requests import RankRequests

CALL: Final = "__import__('importlib').import_module('jupyter_dtrain.rank.{}').{}(*{!r}, **{!r})"
"""A cell that leaves no name behind, nor a value."""
MARGIN: Final = 1.0
"""Seconds between the time for reading and the end of the wait for an answer."""


class Inventory:
    """The contents of variables, by rank. Shows itself as a table that marks differences."""

    def __init__(self, world: World, found: Mapping[int, Mapping[str, NamedValue] | None], left_out: int) -> None:
        self._world = world
        self.ranks: dict[int, Mapping[str, NamedValue] | None] = dict(found)
        """Each rank's variables, by name; None for a rank that has not answered."""
        self.left_out = left_out
        """Variables that ranks have left out of a long list."""

    def __getitem__(self, name: str) -> dict[int, NamedValue]:
        """The value of ``name``, described, on the ranks that have it."""
        return {rank: held[name] for rank, held in self.ranks.items() if held is not None and name in held}

    @property
    def names(self) -> list[str]:
        """All names, in order."""
        return sorted({name for held in self.ranks.values() for name in held or ()})

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return inventory_table(self._world, self.ranks, self.left_out)

    def __repr__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]


class VariableComparison:
    """The findings of a comparison over all ranks. Shows itself as a table."""

    def __init__(self, found: Compared) -> None:
        self.found = found
        """All facts."""

    @property
    def identical(self) -> bool:
        """Whether all ranks have the same, but for what the training makes alike by itself.

        That is gradients, and buffers that DDP takes from rank 0.
        """
        return all(one.kind in PASSING for one in self.found.differences)

    @property
    def differences(self) -> list[Difference]:
        """The parts that differ: weights first, then buffers, what optimizers keep, states, and gradients."""
        return self.found.differences

    @property
    def first(self) -> Difference | None:
        """The first of them."""
        return next(iter(self.found.differences), None)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return comparison_table(self.found)

    def __repr__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]


def check_path(path: str) -> None:
    """Raise :class:`BadRequest` unless ``path`` is a name, or names joined by dots."""
    if not isinstance(path, str) or not all(part.isidentifier() for part in path.split(".")):
        raise BadRequest(f"{path!r} is not the name of a variable, nor a dotted path such as model.fc.weight.")


def check_model(path: str) -> str:
    """The model of a standing check, or nothing. Raises :class:`BadRequest` for what is no path."""
    if path:
        check_path(path)
    return path


def take_inventory(
    requests: RankRequests, world: World, names: Sequence[str], ranks: Ranks, timeout: float
) -> Inventory:
    """As :meth:`.Session.vars`."""
    for name in names:
        check_path(name)
    chosen = parse_ranks(ranks, world.size)
    question = ReadVariables(list(names), max(0.1, timeout - MARGIN))
    answers = requests.ask_agents(chosen, timeout, question)
    found = {rank: None if answer is None else answer.found for rank, answer in answers.items()}
    inventory = Inventory(world, found, max((one.left_out for one in answers.values() if one), default=0))
    missing = [name for name in names if not inventory[name]]
    if missing and any(held is not None for held in found.values()):
        raise TransferFailed(f"No rank has {', '.join(map(repr, missing))}.")
    return inventory


def comparison_cell(path: str, *, states: bool) -> str:
    """The cell that compares ``path`` on all ranks."""
    check_path(path)
    return CALL.format("comparison", "run_comparison", (path,), {"states": states})


def read_comparison(run: Run) -> VariableComparison:
    """The answer of a run of that cell."""
    for displays in run.outputs.values():
        for display in displays:
            if COMPARISON in display.data:
                return VariableComparison(msgspec.json.decode(str(display.data[COMPARISON]), type=readable(Compared)))
    raise TransferFailed("The ranks have sent no comparison.")

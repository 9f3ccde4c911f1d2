"""The variables of a session's ranks: push and pull, scatter and gather, vars, diff and check.

:meth:`SessionVariables.scatter` cuts a sequence into one part for each rank, and gather joins the ranks' parts. Ranks
answer :meth:`SessionVariables.take_inventory` beside a running cell. A comparison is a run of its own on all ranks, so
that a rank that fails in it frees the others, and Stop ends it. No tensor comes to the notebook.

Under failure: each call raises as the method of :class:`~jupyter_dtrain.session.Session` says that has its name, and a
value is bound on all ranks or on none. A rank that does not answer in time is named.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jupyter_dtrain.core.contents import COMPARISON, PASSING, Compared, Difference, NamedValue
from jupyter_dtrain.core.errors import BadRequest, TransferFailed
from jupyter_dtrain.core.run_names import cut_name
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.core.world import Ranks, World, parse_ranks
from jupyter_dtrain.view.contents import comparison_table, inventory_table
from jupyter_dtrain.wire.agent_messages import ReadVariables
from jupyter_dtrain.wire.values import check_variable

from .rank_names import RankNames

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run

    from .link import Link
    from .rank_requests import RankRequests

CALL: Final = "__import__('importlib').import_module('jupyter_dtrain.rank.{}').{}(*{!r}, **{!r})"
"""A cell that leaves no name behind, nor a value."""
BROADCAST: Final = "import jupyter_dtrain\njupyter_dtrain.broadcast({}source={})"
_VERBS: Final = (
    *(CALL.partition("{}")[0] + module for module in ("comparison", "snapshot_cells")),
    BROADCAST.partition("{}")[0],
)
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


class SessionVariables:
    """The way of one session to the variables of its ranks. Thread-safe; it has no state of its own."""

    def __init__(self, link: Link, requests: RankRequests, world: Callable[[], World], run: Callable[..., Run]) -> None:
        """``world``: the world as it is now; ``run`` runs a cell, as :meth:`.Session.run`."""
        self._link = link
        self._requests = requests
        self._world = world
        self._run = run
        self.names = RankNames(requests, lambda: link.world)
        """As :attr:`.Session.names`."""

    def push(self, values: Mapping[str, Any], ranks: Ranks) -> None:
        """As :meth:`.Session.push`."""
        self._requests.push(values, self._link.choose_living(ranks))

    def pull(self, names: list[str], ranks: Ranks) -> dict[str, dict[int, Any]]:
        """As :meth:`.Session.pull_many`."""
        return self._requests.pull(names, self._link.choose_living(ranks))

    def scatter(self, name: str, data: Any, ranks: Ranks) -> None:
        """As :meth:`.Session.scatter`."""
        check_variable(name)
        chosen = self._link.choose_living(ranks)
        self._requests.scatter(name, dict(zip(chosen, _cut(name, data, len(chosen)), strict=True)))

    def gather(self, name: str, ranks: Ranks) -> Any:
        """As :meth:`.Session.gather`."""
        return _join(list(self.pull([name], ranks)[name].values()))

    def broadcast(self, names: Iterable[str], source: int) -> Run:
        """As :meth:`.Session.broadcast`."""
        names = list(names)
        for name in names:
            check_variable(name)
        named = "".join(f"{name!r}, " for name in names)
        parse_ranks(source, self._link.world.size)
        return self._run(BROADCAST.format(named, source), view=None)

    def take_inventory(self, names: Sequence[str], ranks: Ranks, timeout: float) -> Inventory:
        """As :meth:`.Session.vars`."""
        self._link.check()
        world = self._world()
        for name in names:
            check_path(name)
        chosen = parse_ranks(ranks, world.size)
        question = ReadVariables(list(names), max(0.1, timeout - MARGIN))
        answers = self._requests.ask_agents(chosen, timeout, question)
        found = {rank: None if answer is None else answer.found for rank, answer in answers.items()}
        inventory = Inventory(world, found, max((one.left_out for one in answers.values() if one), default=0))
        missing = [name for name in names if not inventory[name]]
        if missing and any(held is not None for held in found.values()):
            raise TransferFailed(f"No rank has {', '.join(map(repr, missing))}.")
        return inventory

    def diff(self, path: str, *, states: bool) -> VariableComparison:
        """As :meth:`.Session.diff`."""
        check_path(path)
        label = f"diff {path}"
        code = CALL.format("comparison", "run_comparison", (path,), {"states": states})
        run = self._run(code, view=None, name=cut_name(label))
        for displays in run.outputs.values():
            for display in displays:
                if COMPARISON in display.data:
                    text = str(display.data[COMPARISON])
                    return VariableComparison(msgspec.json.decode(text, type=readable(Compared)))
        raise TransferFailed("The ranks have sent no comparison.")


def _cut(name: str, data: Any, count: int) -> list[Any]:
    """``data`` in ``count`` consecutive parts, whose lengths differ by at most one. Raises :class:`BadRequest`."""
    try:
        length = len(data)
        edges = [length * place // count for place in range(count + 1)]
        return [data[start:stop] for start, stop in itertools.pairwise(edges)]
    except Exception as error:  # noqa: BLE001 — a user's class may raise anything
        raise BadRequest(
            f"{name!r} cannot be scattered: {type(data).__name__} objects have no length and no slices ({error}). "
            f"Give a list, an array or a tensor; push sends the same value to all ranks."
        ) from None


def _join(parts: Sequence[Any]) -> Any:
    """The parts as one: lists, tuples, texts and arrays are put together; anything else becomes a list of the parts."""
    kinds = {type(part) for part in parts}
    if len(kinds) == 1:
        (kind,) = kinds
        if kind in (list, tuple, str, bytes):
            whole = kind()
            for part in parts:
                whole = whole + part
            return whole
        # Libraries of arrays call it so, numpy among them.
        library = sys.modules.get(kind.__module__.partition(".")[0])
        concatenate = getattr(library, "concatenate", None)
        if concatenate is not None and all(getattr(part, "ndim", 0) for part in parts):
            return concatenate(list(parts))
    return list(parts)


def is_verb(code: str) -> bool:
    """Whether a cell only does what one of our own verbs asks ranks for, such as to save variables."""
    return code.startswith(_VERBS)

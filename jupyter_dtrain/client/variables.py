"""The variables of a session's ranks: push and pull, scatter and gather, vars, diff and check.

Under failure: each call raises as the method of :class:`~jupyter_dtrain.session.Session` says that has its name, and a
value is bound on all ranks or on none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.run_names import cut_name
from jupyter_dtrain.core.world import Ranks, World, parse_ranks
from jupyter_dtrain.wire.values import check_variable

from .compare import Inventory, VariableComparison, comparison_cell, read_comparison, take_inventory
from .rank_names import RankNames
from .scatter import cut, join

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run

    from .link import Link
    from .rank_requests import RankRequests


class SessionVariables:
    """The way of one session to the variables of its ranks. Thread-safe; it has no state of its own."""

    def __init__(self, link: Link, requests: RankRequests, world: Callable[[], World], run: Callable[..., Run]) -> None:
        """``world``: the world as it is now; ``run`` runs a cell, as :meth:`.Session.run`."""
        self._link = link
        self._requests = requests
        self._world = world
        self._run = run

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
        self._requests.scatter(name, dict(zip(chosen, cut(name, data, len(chosen)), strict=True)))

    def gather(self, name: str, ranks: Ranks) -> Any:
        """As :meth:`.Session.gather`."""
        return join(list(self.pull([name], ranks)[name].values()))

    @property
    def names(self) -> RankNames:
        """As :attr:`.Session.names`."""
        return RankNames(self._requests, lambda: self._link.world)

    def resync(self, names: Iterable[str], source: int) -> Run:
        """As :meth:`.Session.resync`."""
        names = list(names)
        for name in names:
            check_variable(name)
        named = "".join(f"{name!r}, " for name in names)
        parse_ranks(source, self._link.world.size)
        return self._run(f"import jupyter_dtrain\njupyter_dtrain.resync({named}source={source})", view=None)

    def take_inventory(self, names: Sequence[str], ranks: Ranks, timeout: float) -> Inventory:
        """As :meth:`.Session.vars`."""
        self._link.check()
        return take_inventory(self._requests, self._world(), names, ranks, timeout)

    def diff(self, path: str) -> VariableComparison:
        """As :meth:`.Session.diff`."""
        return self._compare(path, f"diff {path}", states=False)

    def check(self, model: str, *, states: bool) -> VariableComparison:
        """As :meth:`.Session.check`."""
        return self._compare(model, f"check {model}", states=states)

    def _compare(self, path: str, label: str, *, states: bool) -> VariableComparison:
        return read_comparison(self._run(comparison_cell(path, states=states), view=None, name=cut_name(label)))

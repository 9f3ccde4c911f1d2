"""The part of a session that moves and compares variables: push and pull, scatter and gather, vars, diff and check.

Under failure: each call raises as its docstring says, and a value is bound on all ranks or on none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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


class Variables(ABC):
    """A session's way to the variables of its ranks."""

    _requests: RankRequests
    _link: Link
    run: Callable[..., Run]

    @property
    @abstractmethod
    def world(self) -> World:
        """The world as it is now."""

    @abstractmethod
    def _choose(self, ranks: Ranks) -> list[int]: ...

    @abstractmethod
    def _choose_living(self, ranks: Ranks) -> list[int]: ...

    def push(self, values: Mapping[str, Any], ranks: Ranks = None) -> None:
        """Bind ``values`` by name on ``ranks`` (default: all); on none if one of the values cannot be pickled.

        Raises :class:`TransferFailed`, :class:`RanksBusy`, :class:`RanksDead` and :class:`NotDriver`.
        """
        self._requests.push(values, self._choose_living(ranks))

    def pull(self, name: str, ranks: Ranks = None) -> dict[int, Any]:
        """The value of ``name`` on ``ranks`` (default: all), by rank.

        Raises :class:`TransferFailed`, which names the ranks where it is missing or cannot be pickled,
        :class:`RanksBusy`, :class:`RanksDead` and :class:`NotDriver`.
        """
        return self.pull_many([name], ranks)[name]

    def pull_many(self, names: list[str], ranks: Ranks = None) -> dict[str, dict[int, Any]]:
        """Several names at once: ``{name: {rank: value}}``; all or none. Raises as :meth:`pull`."""
        return self._requests.pull(names, self._choose_living(ranks))

    def scatter(self, name: str, data: Any, ranks: Ranks = None) -> None:
        """Cut ``data`` into consecutive parts and bind one on each of ``ranks`` (default: all) as ``name``.

        The lengths of the parts differ by at most one. Raises as :meth:`push`, and :class:`BadRequest` for data
        without a length.
        """
        check_variable(name)
        chosen = self._choose_living(ranks)
        self._requests.scatter(name, dict(zip(chosen, cut(name, data, len(chosen)), strict=True)))

    def gather(self, name: str, ranks: Ranks = None) -> Any:
        """The parts that ``name`` has on ``ranks`` (default: all), put together in the order of the ranks.

        Lists, tuples, texts and arrays become one; anything else becomes a list of the values. Raises as :meth:`pull`.
        """
        return join(list(self.pull(name, ranks).values()))

    def __getitem__(self, name: str) -> dict[int, Any]:
        """``session["x"]``: the value of ``x`` on every rank."""
        return self.pull(name)

    @property
    def names(self) -> RankNames:
        """The names that live on the ranks: where they are defined, how they go on, and what they stand for."""
        return RankNames(self._requests, lambda: self._link.world)

    def resync(self, names: Iterable[str], source: int = 0) -> Run:
        """Give all ranks the values that ``names`` have on the rank ``source``, in a run of its own.

        See :func:`jupyter_dtrain.resync`. Raises as :meth:`run`.
        """
        names = list(names)
        for name in names:
            check_variable(name)
        named = "".join(f"{name!r}, " for name in names)
        parse_ranks(source, self.world.size)
        return self.run(f"import jupyter_dtrain\njupyter_dtrain.resync({named}source={source})", view=None)

    def vars(self, names: Sequence[str] = (), ranks: Ranks = None, timeout: float = 30.0) -> Inventory:
        """The contents of ``names`` (default: all variables) on ``ranks`` (default: all).

        For each rank: type, shape, dtype, device, norm and a digest of the values. Ranks answer also while a cell runs.
        Values that a rank cannot read within ``timeout`` seconds have neither norm nor digest. Raises
        :class:`TransferFailed` for a name that no rank has.
        """
        self._link.check()
        return take_inventory(self._requests, self.world, names, ranks, timeout)

    def diff(self, path: str) -> VariableComparison:
        """Compare a variable, or a dotted path such as ``model.fc.weight``, over all ranks, in a run of its own.

        Tensors stay where they are: ranks compare digests, and measure only the parts that differ. Raises as
        :meth:`run`; the ranks raise :class:`TransferFailed` where the name is missing on one of them.
        """
        return read_comparison(self.run(comparison_cell(path, states=False), view=None, name=cut_name(f"diff {path}")))

    def check(self, model: str, *, states: bool = False) -> VariableComparison:
        """Whether the replicas of a model are the same on all ranks; if not, which part differs first, and by how much.

        Parts are its parameters, buffers and gradients, and the states of its optimizers. ``states``: random states,
        and the step counters of optimizers, samplers and loaders, too. Raises as :meth:`diff`.
        """
        return read_comparison(
            self.run(comparison_cell(model, states=states), view=None, name=cut_name(f"check {model}"))
        )

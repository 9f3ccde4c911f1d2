"""How data is divided among ranks: which items belong to which rank, whatever holds them.

A :class:`Share` deals items out like cards, as samplers of data do: rank r of N gets the items r, r + N, r + 2N and so
on. So the batches that all ranks read at one step are together the batch that one process with N times the batch size
would read, and data that is sorted does not give ranks different parts of it.

Nothing here knows what the items are, and nothing asks another rank: ranks agree because they compute the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final, Literal, TypeVar, get_args

from .errors import BadRequest

Mode = Literal["even", "pad", "uneven"]
"""How items are divided that do not divide evenly.

``even``: every rank gets as many, and the last few are left out. ``pad``: every rank gets as many, and the first few
items come twice. ``uneven``: every item comes once, and the first few ranks get one more.
"""

MODES: Final[tuple[Mode, ...]] = get_args(Mode)

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """One rank's share of something."""

    rank: int
    size: int
    """The number of ranks."""
    mode: Mode = "even"
    shuffle: bool = False
    seed: int = 0
    """The order of a shuffle. All ranks must have the same."""

    def __post_init__(self) -> None:
        """Raise :class:`BadRequest` for a share that cannot be."""
        if self.mode not in MODES:
            raise BadRequest(f"shard() has the modes {', '.join(map(repr, MODES))}, not {self.mode!r}.")
        for name, value in (("rank", self.rank), ("size", self.size), ("seed", self.seed)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise BadRequest(f"shard() needs a whole number as {name}, not {value!r}.")
        if not 0 <= self.rank < self.size:
            raise BadRequest(f"There is no rank {self.rank} among {self.size}: ranks count from 0.")

    def length(self, count: int) -> int:
        """How many of ``count`` items are this rank's. Raises :class:`BadRequest` where even shares are empty."""
        match self.mode:
            case "pad":
                return -(-count // self.size)
            case "uneven":
                return len(range(self.rank, count, self.size))
        if 0 < count < self.size:
            raise BadRequest(
                f"{count} items are too few for equal shares on {self.size} ranks: mode='pad' repeats some, and "
                "mode='uneven' leaves some ranks without any."
            )
        return count // self.size

    def of(self, count: int) -> range | list[int]:
        """The numbers of this rank's items among ``count``, in the order in which it reads them; a range if that fits.

        All ranks shuffle alike, on any machine and with any version of Python. Raises as :meth:`length`.
        """
        length = self.length(count)
        if not self.shuffle and (self.mode != "pad" or count % self.size == 0):
            return range(self.rank, self.rank + length * self.size, self.size)
        order = list(range(count))
        if self.shuffle:
            random.Random(self.seed).shuffle(order)  # noqa: S311 — an order is no secret
        if self.mode == "pad" and count:
            order.extend(islice(cycle(order[:]), length * self.size - count))
        return order[self.rank : self.rank + length * self.size : self.size]

    def through(self, items: Iterable[T]) -> Iterator[T]:
        """The rank's items of a stream, whose length nobody knows; never shuffled. Reads all items.

        Raises :class:`BadRequest` at the end of a stream that was too short for equal shares.
        """
        if self.mode == "uneven":
            yield from islice(items, self.rank, None, self.size)
            return
        group: list[T] = []
        first: list[T] = []
        for item in items:
            group.append(item)
            if len(group) == self.size:
                yield group[self.rank]
                first, group = first or group, []
        if group and self.mode == "pad":
            yield [*group, *islice(cycle(first or group), self.size - len(group))][self.rank]
        elif group and not first:
            self.length(len(group))  # which says that they are too few

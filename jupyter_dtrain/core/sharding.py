"""How data is divided among ranks: which items belong to which rank, whatever holds them.

A :class:`Share` deals items out like cards, as samplers of data do: rank r of N gets the items r, r + N, r + 2N and so
on. So the batches that all ranks read at one step are together the batch that one process with N times the batch size
would read, and data that is sorted does not give ranks different parts of it.

:func:`share_of` divides the kinds of data that no framework has made: arrays, frames, lists, columns by name, streams.
A kind is told by what it can do, and never by its name. An array is divided along its first axis; where the share is
evenly spaced, that is a view, which copies nothing.

Nothing here asks another rank: ranks agree because they compute the same.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Final, Literal, TypeVar, get_args

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


def share_of(data: Any, share: Share) -> Any:
    """``data`` divided. Raises :class:`BadRequest` for data that cannot be."""
    match data:
        case str() | bytes() | bytearray():
            raise BadRequest(f"shard() divides collections, not {type(data).__name__}: {data[:30]!r}.")
        case set() | frozenset():
            raise BadRequest("A set may have another order on each rank: use shard(sorted(data)).")
        case Mapping():
            return _columns(data, share)
    if hasattr(type(data), "iloc"):  # a frame or a column of pandas', which label their rows
        return data.iloc[_index(share.of(len(data)))]
    if hasattr(data, "shape") and hasattr(type(data), "__getitem__"):
        if not len(data.shape):
            raise BadRequest("shard() divides along the first axis, and this array has none.")
        return data[_index(share.of(int(data.shape[0])))]
    if hasattr(type(data), "__len__") and hasattr(type(data), "__getitem__"):
        return _sequence(data, share)
    if isinstance(data, Iterable):
        if share.shuffle:
            raise BadRequest("A stream has no length to shuffle: use shard(list(data), shuffle=True).")
        return share.through(data) if isinstance(data, Iterator) else StreamPart(data, share)
    raise BadRequest(
        f"shard() cannot divide {type(data).__name__}: it divides arrays, lists, data frames, datasets, data loaders "
        "and whatever else has a length and items, or can be iterated over."
    )


def _columns(data: Mapping[Any, Any], share: Share) -> dict[Any, Any]:
    """Columns of one length, by name: rows stay together."""
    lengths = {name: _length(column) for name, column in data.items()}
    if len(set(lengths.values())) > 1:
        named = ", ".join(f"{name!r} {length}" for name, length in list(lengths.items())[:6])
        raise BadRequest(f"shard() divides a dictionary as columns of one length, but these differ: {named}.")
    return {name: share_of(column, share) for name, column in data.items()}


def _length(column: Any) -> int:
    shape = getattr(column, "shape", None)
    try:
        return int(shape[0]) if shape is not None else len(column)
    except (IndexError, TypeError):
        raise BadRequest(f"shard() divides a dictionary as columns, not {type(column).__name__}.") from None


def _index(places: range | list[int]) -> Any:
    """``places`` as an index of an array."""
    if isinstance(places, range):
        return slice(places.start, max(places.start, places.stop), places.step)
    numpy = sys.modules.get("numpy")  # some arrays take no list, and those that do not come with it
    return places if numpy is None else numpy.asarray(places, dtype="int64")


def _sequence(data: Any, share: Share) -> Any:
    places = share.of(len(data))
    match data:
        case range() if isinstance(places, range):
            return data[places.start : max(places.start, places.stop) : places.step]
        case tuple():
            return tuple(data[place] for place in places)
        case list() | range():
            return [data[place] for place in places]
    return SequencePart(data, places)


class SequencePart(Sequence[Any]):
    """Some items of something that has a length and items; they are taken when they are asked for."""

    def __init__(self, whole: Any, places: Sequence[int]) -> None:
        self.whole = whole
        self.places = places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return SequencePart(self.whole, self.places[place])
        return self.whole[self.places[place]]


class StreamPart(Iterable[Any]):
    """A rank's items of something that can be iterated over, again and again."""

    def __init__(self, whole: Iterable[Any], share: Share) -> None:
        self.whole = whole
        self.share = share

    def __iter__(self) -> Iterator[Any]:
        return self.share.through(self.whole)

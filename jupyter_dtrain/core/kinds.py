"""Shares of the kinds of data that no framework has made: arrays, frames, lists, columns by name, streams.

A kind is told by what it can do, and never by its name. An array is divided along its first axis; where the share is
evenly spaced, that is a view, which copies nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .errors import BadRequest
from .sharding import Share


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

"""Copies of what a training loop logs beside numbers, as small as they may be: the loop goes on and changes the values.

A tensor is copied by its framework (:meth:`.Part.copy`), on its own device and without a wait. Of a picture that is too
large only every second or third pixel is copied, of a million numbers a sample. Only figures are drawn at once: their
library is not made for several threads.

Under failure: :class:`ValueError` says why a value cannot be kept, and :class:`NoRoom` that it would take more memory
than is left.
"""

from __future__ import annotations

import functools
import io
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from jupyter_dtrain.core.contents import PartSummary
from jupyter_dtrain.core.events import MediaKind
from jupyter_dtrain.core.media import (
    LARGEST,
    LONGEST,
    MOST_PIXELS,
    TOGETHER,
    Audio,
    Histogram,
    Image,
    Table,
    Text,
    columns_of,
)
from jupyter_dtrain.plugins.framework import Part

from .contents import ArrayPart
from .media_encoding import Encoded, cell, drawn, histogram, picture, pillow, sound, table

SAMPLE: Final = 1_000_000
"""Numbers from which a histogram is made."""
BINS: Final = 512
CHARACTERS: Final = 100_000
"""Characters of a text."""
ROWS: Final = 5_000
COLUMNS: Final = 100
FIGURE: Final = 1024
"""Pixels of the longer side of a drawn figure."""
RATE: Final = 768_000
"""Samples a second, at most."""
_CHANNELS: Final = (1, 3, 4)
_STEREO: Final = 8
"""Channels of sound, at most."""
_WIDTH: Final = 8
"""Bytes of a value, at most."""
HINT: Final = "log jupyter_dtrain.Histogram(...) for the distribution of its values"

PartsOf = Callable[[Any], "list[Part] | None"]
"""The parts of a value by the framework that knows it; None where none does."""


class NoRoom(Exception):
    """A copy would take more memory than is left for copies."""


class Copied(NamedTuple):
    """One thing, copied."""

    kind: MediaKind
    size: int
    """Bytes of memory of the copy."""
    encode: Callable[[], Encoded]
    caption: str = ""


class Copies(NamedTuple):
    """What one value has come to."""

    things: list[Copied]
    more: int = 0
    """Further things in it, which were not copied."""


def copies(value: Any, parts_of: PartsOf, room: int) -> Copies | None:
    """Copy ``value`` within ``room`` bytes; None where it is of no kind that is kept beside numbers."""
    match value:
        case str():
            return Copies([_text(value, "")])
        case Text():
            return Copies([_text(str(value.text), value.caption)])
        case Histogram():
            return Copies([_histogram(value, parts_of, room)])
        case Table():
            return Copies([_table(value.rows, value.columns)])
        case Audio():
            return Copies([_sound(value, parts_of, room)])
        case Image():
            found = _pictures(value.value, parts_of, room, _pixels(value.longest), str(value.caption))
            if found is None:
                raise ValueError(f"{_described(value.value)} is no picture: {_SHAPES}")
            return found
        case list() | tuple():
            return _several(value, parts_of, room)
    if columns_of(value) is not None:
        return Copies([_table(value, None)])
    return _figure(value) or _pictures(value, parts_of, room, LONGEST, "")


_SHAPES: Final = (
    "a picture has the shape (height, width), (height, width, channels) or (channels, height, width), with 1, 3 or 4 "
    "channels; several have one axis more in front"
)


def _several(values: Sequence[Any], parts_of: PartsOf, room: int) -> Copies | None:
    if values and all(isinstance(one, Mapping) for one in values):
        return Copies([_table(values, None)])
    found: list[Copied] = []
    for place, one in enumerate(values[:TOGETHER]):
        made = None if isinstance(one, (list, tuple)) else copies(one, parts_of, room)
        if made is None:
            if not found:
                return None
            raise ValueError(f"item {place} of it, {_described(one)}, is nothing that can be logged with the others")
        found += made.things
        room -= sum(thing.size for thing in made.things)
    more = max(0, len(values) - TOGETHER) + max(0, len(found) - TOGETHER)
    return Copies(found[:TOGETHER], more) if found else None


def _text(text: str, caption: str) -> Copied:
    kept = text[:CHARACTERS]
    note = "" if len(kept) == len(text) else f"the first {CHARACTERS:,} of {len(text):,} characters"
    data = kept.encode("utf-8", "replace")
    return Copied("text", len(data), lambda: Encoded("text/plain", data, note), caption)


# Arrays.


class _Array(NamedTuple):
    """An array or a tensor, before it is copied."""

    shape: tuple[int, ...]
    part: Part

    def copy(self, room: int, *places: slice) -> tuple[int, Callable[[], Any]]:
        """Copy the values at ``places``: bytes that this may take, and what gives them as an array of numpy's."""
        shape = self.shape if len(places) == len(self.shape) else (math.prod(self.shape),)
        size = _WIDTH * math.prod(len(range(n)[place]) for n, place in zip(shape, places, strict=True))
        if size > room:
            raise NoRoom
        return size, functools.cache(self.part.copy(places))


def _array(value: Any, parts_of: PartsOf) -> _Array | None:
    """``value`` as an array; None where it is none. Raises :class:`ValueError` for one of objects, or an empty one."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return None
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray):
        parts = parts_of(value)
        if parts is not None and len(parts) == 1:
            shape = parts[0].facts().shape
            return _checked(_Array(tuple(shape or ()), parts[0]))
        if numpy is None or not hasattr(type(value), "__array__") or parts is not None:
            return None
        try:
            value = numpy.asarray(value)
        except Exception as error:
            raise ValueError(f"{type(value).__name__} is no array ({error})") from error
    if value.dtype.hasobject:
        raise ValueError("an array of Python's objects holds no numbers")
    found = value
    facts = PartSummary("value", "value", "ndarray", list(value.shape), str(value.dtype), size=int(value.nbytes))
    return _checked(_Array(tuple(value.shape), ArrayPart(facts, lambda: found)))


def _checked(found: _Array) -> _Array:
    if not math.prod(found.shape):
        raise ValueError(f"an array of the shape {found.shape} has no values")
    return found


def _numbers(value: Any, parts_of: PartsOf) -> _Array:
    """An array, or Python's own sequence of numbers as one. Raises :class:`ValueError` for anything else."""
    found = _array(value, parts_of)
    if found is not None:
        return found
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable) or not hasattr(value, "__len__"):
        raise ValueError(f"{_described(value)} holds no numbers")
    try:
        import numpy as np
    except ImportError:
        raise ValueError("a list of numbers needs numpy: pip install numpy") from None
    try:
        array = np.asarray(value, dtype="float64")
    except Exception as error:
        raise ValueError(f"{_described(value)} does not hold numbers alone ({error})") from error
    made = _array(array, parts_of)
    assert made is not None
    return made


def _histogram(asked: Histogram, parts_of: PartsOf, room: int) -> Copied:
    if type(asked.bins) is not int or not 1 <= asked.bins <= BINS:
        raise ValueError(f"a histogram has from 1 to {BINS} bins, not {asked.bins!r:.50}")
    found = _numbers(asked.values, parts_of)
    return sampled(found.part, found.shape, SAMPLE, asked.bins, room)


def sampled(part: Part, shape: Sequence[int], most: int, bins: int, room: int) -> Copied:
    """The histogram of a part, from ``most`` of its values at even distances."""
    total = math.prod(shape)
    size, fetch = _Array(tuple(shape), part).copy(room, slice(None, None, -(-total // most)))
    return Copied("histogram", size, lambda: histogram(fetch(), bins, total))


def _sound(asked: Audio, parts_of: PartsOf, room: int) -> Copied:
    if type(asked.rate) is not int or not 1 <= asked.rate <= RATE:
        raise ValueError(f"the rate of sound is a whole number of samples a second, not {asked.rate!r:.50}")
    found = _numbers(asked.samples, parts_of)
    shape = found.shape
    if len(shape) > 2 or (len(shape) == 2 and min(shape) > _STEREO):  # noqa: PLR2004 — time and channels
        raise ValueError(f"an array of the shape {shape} is no sound: (n,), (n, channels) or (channels, n) is")
    axis = max(range(len(shape)), key=lambda one: shape[one])
    channels = math.prod(shape) // shape[axis]
    kept = min(shape[axis], LARGEST // (2 * channels))
    places = [slice(kept) if one == axis else slice(None) for one in range(len(shape))]
    size, fetch = found.copy(room, *places)
    rate, turned = asked.rate, axis == 1
    note = "" if kept == shape[axis] else f"the first {kept / rate:.1f} of {shape[axis] / rate:.1f} s"
    return Copied("audio", size, lambda: sound(fetch().T if turned else fetch(), rate, note), str(asked.caption))


# Pictures.


def _pixels(longest: Any) -> int:
    if type(longest) is not int or longest < 1:
        raise ValueError(f"longest is a number of pixels, at most {MOST_PIXELS}, not {longest!r:.50}")
    return min(longest, MOST_PIXELS)


def _pictures(value: Any, parts_of: PartsOf, room: int, longest: int, caption: str) -> Copies | None:
    if type(value).__module__.partition(".")[0] == "PIL" and hasattr(value, "thumbnail"):
        return Copies([_of_pillow(value, longest, room, caption)])
    found = _array(value, parts_of)
    if found is None:
        return None
    shape = found.shape
    axes = _axes(shape)
    if axes is None:
        if len(shape) == 1 or math.prod(shape) == 1:
            words = f"an array of the shape {shape} is not one number: {HINT}"
        else:
            words = f"an array of the shape {shape} is no picture: {_SHAPES}; {HINT}"
        raise ValueError(words)
    high, wide, deep = axes
    every = -(-max(shape[high], shape[wide]) // (2 * longest))
    places = [slice(None)] * len(shape)
    places[high] = places[wide] = slice(None, None, every)
    whole = (shape[high], shape[wide])
    batch = shape[0] if len(shape) - (deep is not None) > 2 else 0  # noqa: PLR2004 — height and width
    if batch:
        each = _WIDTH * math.prod(shape[1:]) // every**2
        places[0] = slice(max(1, min(batch, TOGETHER, room // max(1, each))))
    size, fetch = found.copy(room, *places)

    def one(place: int) -> Encoded:
        array = fetch()[place] if batch else fetch()
        if deep is not None and deep < high:
            array = array.transpose(1, 2, 0)
        return picture(array, longest, whole)

    kept = places[0].stop if batch else 1
    things = [Copied("image", size // kept, functools.partial(one, place), caption) for place in range(kept)]
    return Copies(things, max(0, batch - kept))


def _axes(shape: tuple[int, ...]) -> tuple[int, int, int | None] | None:
    """The axes of height, width and channels of a picture, or of several; None where the shape is none of a picture."""
    last = len(shape) - 1
    match len(shape):
        case 2:
            return (0, 1, None) if min(shape) > 1 else None
        case 3 | 4:
            if shape[last] in _CHANNELS:
                return last - 2, last - 1, last
            if shape[last - 2] in _CHANNELS:
                return last - 1, last, last - 2
            return (1, 2, None) if last == 2 else None  # noqa: PLR2004 — several grey ones
    return None


def _of_pillow(image: Any, longest: int, room: int, caption: str) -> Copied:
    whole = image.size
    size = 4 * min(whole[0], longest) * min(whole[1], longest)
    if size > room:
        raise NoRoom
    if max(whole) > longest:
        scale = longest / max(whole)
        mine = image.resize((max(1, int(whole[0] * scale)), max(1, int(whole[1] * scale))))
    else:
        mine = image.copy()
    return Copied("image", size, lambda: pillow(mine, whole), caption)


# Figures.


def _figure(value: Any) -> Copies | None:
    """Draw a figure of matplotlib's, that of axes or of pyplot, or one of plotly's; None for anything else."""
    try:
        if not hasattr(value, "savefig") or not hasattr(value, "get_size_inches"):
            if callable(current := getattr(value, "gcf", None)):
                value = current()
            elif callable(own := getattr(value, "get_figure", None)):
                value = own()
        if callable(draw := getattr(value, "savefig", None)) and hasattr(value, "get_size_inches"):
            file = io.BytesIO()
            draw(file, format="png", dpi=min(value.dpi, FIGURE / max(value.get_size_inches())))
            data = file.getvalue()
        elif hasattr(value, "to_plotly_json") and callable(draw := getattr(value, "to_image", None)):
            data = draw(format="png", width=FIGURE)
        else:
            return None
    except Exception as error:
        raise ValueError(f"it cannot be drawn: {type(error).__name__}: {error!s:.300}") from error
    return Copies([Copied("figure", len(data), lambda: drawn(data))])


# Tables.


def _table(rows: Any, names: Sequence[Any] | None) -> Copied:
    frame = columns_of(rows)
    if frame is not None:
        columns, total = frame
        found = _rows_of_frame(rows.head(ROWS))
    elif isinstance(rows, Mapping):
        columns = [str(name) for name in rows]
        held = [list(column[:ROWS]) for column in rows.values()]
        total = max((len(column) for column in rows.values()), default=0)
        found = [[one[place] if place < len(one) else None for one in held] for place in range(min(total, ROWS))]
    elif isinstance(rows, Sequence) and not isinstance(rows, (str, bytes)):
        total, first = len(rows), rows[:ROWS]
        if first and all(isinstance(row, Mapping) for row in first):
            keys = list(dict.fromkeys(key for row in first for key in row))
            columns = [str(key) for key in keys]
            found = [[row.get(key) for key in keys[:COLUMNS]] for row in first]
        elif all(isinstance(row, (list, tuple)) for row in first):
            width = max((len(row) for row in first), default=0)
            columns = [str(name) for name in names or range(width)]
            found = [[*row, *[None] * (len(columns) - len(row))] for row in first]
        else:
            raise ValueError("the rows of a table are dicts, or lists with the names of the columns beside them")
    else:
        raise ValueError(f"{_described(rows)} is no table: a data frame, a list of dicts or a dict of columns is")
    note = f"the first {COLUMNS} of {len(columns)} columns" if len(columns) > COLUMNS else ""
    names = [cell(name) for name in columns[:COLUMNS]]
    lines = [[cell(one) for one in row[: len(names)]] for row in found]
    return Copied("table", 64 * len(lines) * len(names), lambda: table(names, lines, total, note))


def _rows_of_frame(frame: Any) -> list[Sequence[Any]]:
    if hasattr(frame, "itertuples"):
        return [list(row) for row in frame.itertuples(index=False, name=None)]
    return [list(row) for row in frame.rows()]


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__} of the shape {tuple(shape)}" if shape is not None else type(value).__name__

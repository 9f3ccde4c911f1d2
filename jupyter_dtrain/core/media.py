"""What a person wraps a value in, to say how ``log()`` keeps it: as a picture, a distribution, text, a table or sound.

The wrappers hold what they are given and look at nothing: ``log()`` does, in its own time. So nothing here raises, and
a value that cannot be kept gets one line from ``log()``. The bounds that apply to all of them stand here as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

KEPT: Final = 100
"""Steps of one name that the store keeps of each rank: of more every 2nd, then every 4th, and so on."""
TOGETHER: Final = 64
"""Things of one name that are kept of one call of ``log()``."""
LARGEST: Final = 1 << 20
"""Bytes of one thing, as it is kept."""
LONGEST: Final = 512
"""Pixels of the longer side of a picture, where nobody asks for more."""
MOST_PIXELS: Final = 2048
"""Pixels of the longer side for those who ask."""


@dataclass(frozen=True, eq=False)
class Image:
    """A picture: ``log(sample=Image(x, caption="a cat"))``. A picture without a caption needs no wrapper.

    ``value``: an array or tensor of the shape (height, width), (height, width, channels) or (channels, height, width)
    with 1, 3 or 4 channels, or several such in one array; or an image of PIL's. Bytes are taken as they are, and
    numbers from 0 to 1 as shares of full brightness; any others are scaled, with a note. ``longest``: pixels of the
    longer side to which a larger picture is reduced, at most 2048.
    """

    value: Any
    caption: str = ""
    longest: int = LONGEST


@dataclass(frozen=True, eq=False)
class Histogram:
    """The distribution of many numbers: ``log(weights=Histogram(layer.weight))``.

    ``values``: an array, a tensor or a list of any shape. Of more than a million numbers a sample is taken, at even
    distances, with a note. ``bins``: from 1 to 512.
    """

    values: Any
    bins: int = 64


@dataclass(frozen=True, eq=False)
class Table:
    """Rows and columns: ``log(errors=Table([["cat", 0.9]], ["label", "score"]))``.

    ``rows``: a data frame, a list of dicts, a dict of columns, or a list of rows, whose names are ``columns``. Numbers,
    text, booleans and None are kept, anything else as text. At most 5,000 rows of 100 columns are kept, with a note.
    """

    rows: Any
    columns: Sequence[Any] | None = None


@dataclass(frozen=True, eq=False)
class Audio:
    """Sound: ``log(voice=Audio(samples, 22050))``.

    ``samples``: numbers from -1 to 1, or whole numbers of 16 bits, of the shape (n,), (n, channels) or (channels, n).
    ``rate``: samples a second. About 1 MB is kept, such as 20 s at 22,050 samples a second, with a note.
    """

    samples: Any
    rate: int
    caption: str = ""


@dataclass(frozen=True, eq=False)
class Text:
    """Text with a caption. Text without one needs no wrapper: ``log(answer="It is a cat.")``."""

    text: str
    caption: str = ""


def columns_of(rows: Any) -> tuple[list[str], int] | None:
    """The names of the columns of a data frame, and the number of its rows; None for a value of any other kind."""
    if isinstance(rows, Mapping) or not (hasattr(rows, "columns") and hasattr(rows, "head")):
        return None
    return [str(name) for name in rows.columns], len(rows)

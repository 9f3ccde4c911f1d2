"""Pictures, histograms, tables and sound as the bytes in which the store keeps them: PNG, JSON, WAV.

All of it runs on a thread of its own, on copies: the training loop does not wait. numpy is there, since an array is;
Pillow makes smaller pictures where it is installed, and is not needed.

Under failure: :class:`ValueError` says why a value cannot be kept. Whatever is more than the bounds allow is cut or
reduced, and :attr:`Encoded.note` says so.
"""

from __future__ import annotations

import base64
import io
import math
import struct
import wave
import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from jupyter_dtrain.core.media import LARGEST

CELL: Final = 500
"""Characters of a cell of a table."""
_GREY, _COLOUR, _ALPHA = 1, 3, 4
_WIDE = 2**15
"""What a sample of 16 bits may be, up to its sign."""


class Encoded(NamedTuple):
    """One thing as it is kept."""

    mime: str
    data: bytes
    note: str = ""
    """How it is less than what was logged."""


def numbers(array: Any) -> Any:
    """``array`` as one of numbers that numpy knows by itself. Raises :class:`ValueError` for anything else."""
    kind = array.dtype.kind
    if kind == "V" and "float" in str(array.dtype):  # one that others have added, such as bfloat16
        return array.astype("float32")
    if kind not in "fiub":
        raise ValueError(f"an array of the type {array.dtype} holds no real numbers")
    return array


# Pictures.


def picture(array: Any, longest: int, whole: tuple[int, int]) -> Encoded:
    """A picture of the shape (height, width), or with 1, 3 or 4 channels as a last axis, as PNG.

    ``whole``: height and width of what was logged.
    """
    pixels, note = _bytes_of(numbers(array))
    notes = [note] if note else []
    while max(pixels.shape[:2]) > longest:
        pixels = _reduced(pixels, longest)
    data = png(pixels)
    while len(data) > LARGEST:
        pixels = _reduced(pixels, max(pixels.shape[:2]) // 2)
        data = png(pixels)
    if pixels.shape[:2] != whole:
        notes.insert(0, f"reduced from {whole[1]} x {whole[0]} pixels")
    return Encoded("image/png", data, "; ".join(notes))


def _bytes_of(array: Any) -> tuple[Any, str]:
    """The brightness of each pixel from 0 to 255, and a note where the numbers had to be scaled."""
    import numpy as np

    if array.ndim > 2 and array.shape[2] == _GREY:  # noqa: PLR2004 — height and width
        array = array[:, :, 0]
    if array.dtype == np.uint8:
        return array, ""
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255), ""
    values = array.astype(np.float64)
    known = np.isfinite(values)
    missing = int(values.size - known.sum())
    black = f"{missing:,} values that are not finite are black" if missing else ""
    values = np.where(known, values, 0.0)
    low, high = (float(values[known].min()), float(values[known].max())) if known.any() else (0.0, 0.0)
    full = 255.0 if array.dtype.kind in "iu" else 1.0
    scaled = "" if low >= 0 and high <= full else f"brightness scaled from {low:.3g} … {high:.3g}"
    if scaled:
        span = high - low
        values = np.where(known, (values - low) / span if 0 < span < math.inf else 0.0, 0.0)
        full = 1.0
    return (values * (255.0 / full) + 0.5).astype(np.uint8), "; ".join(one for one in (scaled, black) if one)


def _reduced(pixels: Any, longest: int) -> Any:
    """``pixels`` with a longer side of at most ``longest``."""
    import numpy as np

    height, width = pixels.shape[:2]
    try:
        from PIL import Image
    except ImportError:
        every = -(-max(height, width) // longest)
        high, wide = max(1, height // every), max(1, width // every)
        tall, broad = min(every, height), min(every, width)
        parts = pixels[: high * tall, : wide * broad].reshape(high, tall, wide, broad, -1)
        return parts.mean(axis=(1, 3)).astype(np.uint8).reshape(high, wide, *pixels.shape[2:])
    scale = longest / max(height, width)
    image = Image.fromarray(pixels)
    return np.asarray(image.resize((max(1, int(width * scale)), max(1, int(height * scale)))))


def png(pixels: Any) -> bytes:
    """Bytes of the shape (height, width), or with 3 or 4 channels, as a PNG file."""
    import numpy as np

    pixels = np.ascontiguousarray(pixels)
    try:
        from PIL import Image
    except ImportError:
        return _plain_png(pixels)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def _plain_png(pixels: Any) -> bytes:
    height, width = pixels.shape[:2]
    channels = pixels.shape[2] if pixels.ndim > 2 else _GREY  # noqa: PLR2004 — height and width
    colours = {_GREY: 0, _COLOUR: 2, _ALPHA: 6}
    head = struct.pack(">IIBBBBB", width, height, 8, colours[channels], 0, 0, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines, 6)) + chunk(b"IEND", b"")


def pillow(image: Any, whole: tuple[int, int]) -> Encoded:
    """An image of PIL's as PNG. ``whole``: width and height of what was logged."""
    if image.mode in {"I", "F", "I;16"}:
        import numpy as np

        return picture(np.asarray(image), max(image.size), whole[::-1])
    if image.mode not in {"1", "L", "RGB", "RGBA"}:
        image = image.convert("RGBA" if "A" in image.mode or "transparency" in image.info else "RGB")
    while True:
        file = io.BytesIO()
        image.save(file, "png")
        if file.tell() <= LARGEST:
            break
        image = image.resize((max(1, image.size[0] // 2), max(1, image.size[1] // 2)))
    note = f"reduced from {whole[0]} x {whole[1]} pixels" if image.size != whole else ""
    return Encoded("image/png", file.getvalue(), note)


def drawn(data: bytes | str, mime: str = "image/png") -> Encoded:
    """A picture that is encoded already; text is base64. Raises :class:`ValueError` where it cannot be reduced."""
    found = base64.b64decode(data) if isinstance(data, str) else data
    if len(found) <= LARGEST:
        return Encoded(mime, found)
    try:
        from PIL import Image
    except ImportError:
        raise ValueError(f"it has {len(found):,} bytes; with Pillow installed it would be reduced") from None
    with Image.open(io.BytesIO(found)) as image:
        image.load()
        return pillow(image, image.size)


# The others.


def histogram(array: Any, bins: int, total: int) -> Encoded:
    """The distribution of the numbers in ``array`` as JSON. ``total``: how many were logged, if this is a sample."""
    import numpy as np

    values = numbers(array).reshape(-1).astype(np.float64)
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise ValueError("none of its values is finite")
    counts, edges = np.histogram(finite, bins)
    told = {
        "edges": edges.tolist(),
        "counts": counts.tolist(),
        "total": int(values.size),
        "not_finite": int(values.size - finite.size),
        "lowest": float(finite.min()),
        "highest": float(finite.max()),
        "mean": float(finite.mean()),
        "deviation": float(finite.std()),
    }
    notes = [f"a sample of {values.size:,} of {total:,} values"] if values.size < total else []
    if told["not_finite"]:
        notes.append(f"{told['not_finite']:,} values are not finite")
    return Encoded("application/json", msgspec.json.encode(told), "; ".join(notes))


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], total: int, note: str = "") -> Encoded:
    """Rows as JSON: ``{"columns": […], "rows": [[…], …], "total": N}``. ``total``: how many were logged."""
    room, kept = LARGEST - len(msgspec.json.encode(columns)) - 100, []
    for row in rows:
        line = msgspec.json.encode(row)
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(msgspec.Raw(line))
    notes = [note] if note else []
    if len(kept) < total:
        notes.insert(0, f"the first {len(kept):,} of {total:,} rows")
    told = {"columns": columns, "rows": kept, "total": total}
    return Encoded("application/json", msgspec.json.encode(told), "; ".join(notes))


def cell(value: Any) -> Any:
    """A value of a table as JSON has it."""
    kind = type(value)
    if kind is str:
        return value.encode("utf-8", "replace").decode()[:CELL] if len(value) <= CELL else f"{cell(value[:CELL])}…"
    if kind in (bool, type(None)):
        return value
    if kind is int and value.bit_length() < 64:  # noqa: PLR2004 — readers have so many bits
        return value
    if kind is float:
        return value if math.isfinite(value) else str(value)
    plain = getattr(value, "item", None)
    if callable(plain) and getattr(value, "shape", None) == ():
        return cell(plain())
    return cell(str(value)[: CELL + 1])


def sound(array: Any, rate: int, note: str) -> Encoded:
    """Samples of the shape (n,) or (n, channels) as a WAV file of 16 bits."""
    import numpy as np

    values = numbers(array)
    notes = [note] if note else []
    if values.dtype != np.int16:
        given = values.astype(np.float64)
        values = np.nan_to_num(given, nan=0.0, posinf=0.0, neginf=0.0)
        peak = float(np.abs(values).max(initial=0.0))
        if peak > 1:
            values = values / peak
            notes.append(f"scaled down by {peak:.3g}")
        values = (values * (_WIDE - 1)).astype(np.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(values.shape[1] if values.ndim > 1 else 1)
        written.setsampwidth(2)
        written.setframerate(rate)
        written.writeframes(np.ascontiguousarray(values, dtype="<i2").tobytes())
    return Encoded("audio/wav", file.getvalue(), "; ".join(notes))

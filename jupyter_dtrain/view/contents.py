"""Variables across ranks as tables: what each rank's variables hold, and where a comparison has found a difference.

Ranks with equal values share a row. A variable that is not the same on all ranks has a row for each group, marked with
≠; a rank that has not answered is named below. Values that one of the ranks has not read are not compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from html import escape
from typing import Final

import msgspec

from jupyter_dtrain.core.contents import PASSING, Amount, Compared, Difference, NamedValue
from jupyter_dtrain.core.world import World, count_ranks, format_ranks, quantity

from .labels import human, number
from .tables import table

DIFFERS: Final = "≠"
SHOWN: Final = 16
"""Parts that differ, in a table."""
_CONTAINERS: Final = ("dict", "list", "tuple")
"""Types that hold a rank's own batch as often as a state that all ranks share."""
_NAMED: Final = 3
"""Models and optimizers that differ, by name."""
_DIGITS: Final = 10
"""Characters of a digest, in a table."""


class HeldRow(msgspec.Struct, frozen=True):
    """A variable as a group of ranks has it."""

    name: str
    differs: bool
    """Whether other ranks have something else."""
    type: str
    shape: str
    """For a short value, the value itself."""
    dtype: str
    device: str
    norm: str
    digest: str
    ranks: str


def inventory_rows(size: int, found: Mapping[int, Mapping[str, NamedValue] | None]) -> list[HeldRow]:
    """The variables, by name; one row for each group of ranks that have the same. ``size``: the world's ranks."""
    told = {rank: held for rank, held in found.items() if held is not None}
    rows = []
    for name in sorted({name for held in told.values() for name in held}):
        values = {rank: held.get(name) for rank, held in told.items()}
        groups: dict[object, list[int]] = {}
        pieces: dict[str, str] = {}
        read = not any(_is_unread(value) for value in values.values())
        for rank, value in values.items():
            groups.setdefault(_identity(value, pieces, read=read), []).append(rank)
        for ranks in groups.values():
            on = "all" if len(ranks) == size else format_ranks(ranks)
            shown = _cells({rank: values[rank] for rank in ranks})
            kind, shape, dtype, device, norm, digest = shown
            rows.append(HeldRow(name, len(groups) > 1, kind, shape, dtype, device, norm, digest, on))
    return rows


def inventory_words(found: Mapping[int, Mapping[str, NamedValue] | None]) -> str:
    """Whether ranks have the same variables. Models and optimizers should be; a loss or a rank's number is its own."""
    told = [held for held in found.values() if held is not None]
    names = sorted({name for held in told for name in held})
    if not names:
        return "none yet"
    differ = list(dict.fromkeys(row.name for row in inventory_rows(len(told), found) if row.differs))
    trained = {name for held in told for name, value in held.items() if value.parts and value.type not in _CONTAINERS}
    unread = {name for held in told for name, value in held.items() if _is_unread(value)}
    models = [name for name in differ if name in trained]
    others = len(differ) - len(models)
    first, more = ", ".join(models[:_NAMED]), len(models[_NAMED:])
    parts = [f"{first}{f' and {more} more' if more else ''} {'differs' if len(models) == 1 else 'differ'}"]
    if not models and unread:
        parts = ["the others are the same"] if not others and len(names) > len(unread) else []
    elif not models:
        parts = ["models and optimizers are the same"] if trained and others else ["all the same"] if not others else []
    if others:
        parts.append(f"{others}{' more' if models else ''} with a rank's own values")
    if unread:
        parts.insert(0, f"{len(unread)} not read (in use by the running cell, or time ran out)")
    return "; ".join(parts)


def inventory_table(
    world: World, found: Mapping[int, Mapping[str, NamedValue] | None], left_out: int
) -> dict[str, str]:
    """A MIME bundle. ``found``: by rank, and by name; None for a rank that has not answered."""
    told = [rank for rank, held in found.items() if held is not None]
    rows = inventory_rows(world.size, found)
    notes = [f"{left_out} more variables are left out: name those that you want to see."] if left_out else []
    quiet = [rank for rank, held in found.items() if held is None]
    if quiet:
        notes.append(f"{count_ranks(quiet).capitalize()}: no answer.")
    if any(_is_unread(value) for held in found.values() for value in (held or {}).values()):
        notes.append(
            "Not read: a running cell may free these values, or the time was over. Ask again when the cell has ended; "
            "--timeout gives more time."
        )
    who = quantity(len(told), "rank")
    caption = f"Variables of world {world.name!r} on {who}: {inventory_words(found)}"
    headers = ["", "name", "type", "shape", "dtype", "device", "norm", "hash", "ranks"]
    before = ""
    cells = []
    for row in rows:
        name, *rest = (row.name, row.type, row.shape, row.dtype, row.device, row.norm, row.digest, row.ranks)
        cells.append([DIFFERS if row.differs else "", "" if name == before else name, *rest])
        before = name
    return _with_notes(table(caption, headers, cells), notes)


def _is_unread(value: NamedValue | None) -> bool:
    return value is not None and not value.digest and value.size > 0


def _identity(value: NamedValue | None, pieces: dict[str, str], *, read: bool) -> object:
    """The facts that ranks of one row share. Devices differ by number, and pieces of one tensor by place.

    ``pieces``: the digest that the first rank with a piece has of it. ``read``: whether all ranks have read it.
    """
    if value is None:
        return None
    if not read and value.parts:
        return (value.type, value.parts)  # in the middle of a step, one rank's weights are sharded, another's whole
    if not read:
        return (value.type, tuple(value.shape or ()), value.dtype, value.words)
    digest = value.digest
    if value.piece and digest == pieces.setdefault(value.piece, digest):
        digest = ""
    form = (value.type, tuple(value.shape or ()), value.dtype, value.placement, value.parts)
    return (*form, digest, value.whole, value.words)


def _cells(values: Mapping[int, NamedValue | None]) -> list[str]:
    """The cells of a group of ranks."""
    one = next(iter(values.values()))
    if one is None:
        return ["not defined", "", "", "", "", ""]
    devices = {value.device.partition(":")[0] for value in values.values() if value is not None and value.device}
    shape = str(tuple(one.shape)) if one.shape is not None else ""
    if one.parts:
        shape = f"{one.parts} parts, {human(one.size)}"
    device = one.device if len(values) == 1 else ", ".join(sorted(devices))
    digest = "sharded" if one.piece else one.digest[:_DIGITS] or "not read"
    norm = "" if one.norm is None or one.piece else number(one.norm)
    return [one.type, one.words or shape, f"{one.dtype} {one.placement}".strip(), device, norm, digest]


def comparison_table(found: Compared) -> dict[str, str]:
    """A MIME bundle."""
    caption, notes = describe_comparison(found)
    if not found.differences:
        text = "\n".join([caption, *notes])
        return {"text/plain": text, "text/html": "".join(f"<div>{escape(line)}</div>" for line in [caption, *notes])}
    headers = ["part", "kind", "differs on", "from", "largest difference", "norm of difference", "relative", "elements"]
    rows = [row for one in found.differences[:SHOWN] for row in _rows(one)]
    kept = [place for place in range(len(headers)) if any(row[place] for row in rows)]
    bundle = table(caption, [headers[place] for place in kept], [[row[place] for place in kept] for row in rows])
    return _with_notes(bundle, notes)


def describe_comparison(found: Compared) -> tuple[str, list[str]]:
    """The result in one sentence, and remarks."""
    kinds = ", ".join(f"{count} {_plural(kind, count)}" for kind, count in found.kinds.items())
    parts = kinds if len(found.kinds) > 1 or found.parts > 1 else ""
    about = "; ".join(word for word in (parts, human(found.size) if found.size else "") if word)
    took = f"{found.seconds:.2f} s"
    who = count_ranks(found.ranks)
    notes = []
    if found.unread:
        more = ", …" if len(found.unread) > 4 else ""  # noqa: PLR2004 — as many as fit in a line
        notes.append(f"Not compared, because ranks cannot read them: {', '.join(found.unread[:4])}{more}.")
    lasting = [one for one in found.differences if one.kind not in PASSING]
    if not lasting:
        passing = Counter(one.kind for one in found.differences)
        but = " and ".join(f"{count} {_plural(kind, count)}, which {PASSING[kind]}" for kind, count in passing.items())
        same = f"is the same on {who}{f', but for {but}' if but else ''}"
        return f"{found.name} {same} ({f'{about}; ' if about else ''}{took}).", notes
    first = lasting[0]
    count = len(lasting) + (found.left_out if len(lasting) == len(found.differences) else 0)
    if len(found.differences) + found.left_out > SHOWN:
        notes.append(f"{len(found.differences) + found.left_out - SHOWN} more parts differ.")
    if not any(one.what in {"missing", "shape", "placement"} for one in lasting):
        notes.append("%distributed broadcast --from RANK NAME gives all ranks the values of one.")
    many = f" in {count} parts, first" if count > 1 else ""
    return f"{found.name} differs{many} in {first.name}: {_how(first)} ({f'{about}; ' if about else ''}{took})", notes


def _how(one: Difference) -> str:
    who = count_ranks(one.ranks)
    if one.what == "missing":
        return f"{who} {'has' if len(one.ranks) == 1 else 'have'} none"
    if one.what != "values":
        return f"another {one.what} on {who}"
    if one.amounts:
        worst = max(one.amounts, key=lambda amount: amount.largest)
        return f"{who} by up to {number(worst.largest)}"
    return f"other values on {who}"


def _rows(one: Difference) -> list[list[str]]:
    base = [one.name, one.kind]
    if one.what != "values" or not one.amounts:
        groups: dict[str, list[int]] = {}
        for rank in one.ranks:
            groups.setdefault(one.words.get(rank, ""), []).append(rank)
        said = one.words.get(one.reference, "")
        reference = f"rank {one.reference}{f': {said}' if said else ''}"
        what = "" if one.what in {"values", "missing"} else f"{one.what} "
        return [
            [*base, f"{format_ranks(ranks)}{f': {what}{words}' if words else ''}", reference, "", "", "", ""]
            for words, ranks in groups.items()
        ]
    return [[*base, str(amount.rank), f"rank {one.reference}", *_amounts(one, amount)] for amount in one.amounts]


def _amounts(one: Difference, amount: Amount) -> list[str]:
    relative = amount.norm / one.norm if one.norm else math.nan
    return [
        number(amount.largest),
        number(amount.norm),
        number(relative) if math.isfinite(relative) else "",
        f"{amount.count:,}",
    ]


def _plural(kind: str, count: int) -> str:
    return kind if count == 1 else f"{kind}s"


def _with_notes(bundle: dict[str, str], notes: list[str]) -> dict[str, str]:
    plain = "\n".join([bundle["text/plain"], *notes])
    html = bundle["text/html"] + "".join(f"<div>{escape(note)}</div>" for note in notes)
    return {"text/plain": plain, "text/html": html}

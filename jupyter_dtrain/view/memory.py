"""The memory of ranks as tables: how much each rank has, and the biggest pieces with their names.

Pieces that are alike on several ranks share a row. Sentences below tell what the names hold in all, what only old
outputs keep, and which rank has not answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Final

from jupyter_dtrain.core.contents import Kind
from jupyter_dtrain.core.memory import HOST, SHARED, FreedMemory, HeldMemory, RankMemory
from jupyter_dtrain.core.world import World, count_ranks, format_ranks, quantity

from .labels import human
from .tables import table

KINDS: Final[dict[Kind, str]] = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer state": "optimizer state",
    "buffer": "buffers",
    "value": "other values",
}
"""The kinds of memory in words, in their order."""
RANKS: Final = 64
"""Ranks in the first table."""
_LITTLE: Final = 100_000
"""Bytes; a rank that has given back less has given back next to nothing."""
_GRAPH: Final = (
    "A result with its graph keeps the activations of its forward pass, too, which have no name: keep loss.item() or "
    "loss.detach() in its place."
)
_UNREAD: Final = "Gradients are left out while a cell runs, or a thread of one: it may replace them at any moment."


def memory_tables(world: World, found: Mapping[int, RankMemory | None], most: int) -> dict[str, str]:
    """A MIME bundle. ``found``: by rank; None for a rank that has not answered. ``most``: rows of the second table."""
    told = {rank: one for rank, one in found.items() if one is not None}
    bundles = []
    if told:
        bundles.append(_amounts(world, told))
        rows = _pieces(world, told, most)
        pieces = max(one.pieces for one in told.values())
        many = f", {most} of {pieces} (-n shows more)" if pieces > most else ""
        caption = f"The biggest tensors, arrays and texts{many}"
        if rows:
            heads = ["size", "names", "kind", "shape", "dtype", "device", "ranks", ""]
            kept = [place for place in range(len(heads)) if any(row[place] for row in rows)]
            bundles.append(table(caption, [heads[at] for at in kept], [[row[at] for at in kept] for row in rows]))
    notes = _notes(world, told, [rank for rank, one in found.items() if one is None])
    plain = "\n\n".join(bundle["text/plain"] for bundle in bundles)
    html = "".join(bundle["text/html"] for bundle in bundles)
    return {
        "text/plain": "\n".join([*([plain, ""] if bundles else []), *notes]).rstrip(),
        "text/html": html + "".join(f"<div>{escape(note)}</div>" for note in notes),
    }


def _amounts(world: World, told: Mapping[int, RankMemory]) -> dict[str, str]:
    """How much memory each rank has."""
    heads = ["rank", "RSS", "PSS", "peak RSS", SHARED, "named", "not named"]
    gpus = any(one.devices for one in told.values())
    heads += ["GPU", "allocated", "reserved", "peak", "named", "not named"] if gpus else []
    rows = []
    for rank, one in list(told.items())[:RANKS]:
        own = one.footprint
        sizes = (own.rss, own.pss, own.peak, own.shm, one.named.get(HOST, 0), one.unnamed(HOST))
        row = [str(rank), *map(human, sizes)]
        if gpus:
            names = list(dict.fromkeys(device.device for device in one.devices))
            named = sum(size for device, size in one.named.items() if device != HOST)
            unnamed = sum(map(one.unnamed, names))
            totals = [sum(getattr(each, part) for each in one.devices) for part in ("allocated", "reserved", "peak")]
            row += [", ".join(names), *map(human, (*totals, named, unnamed))] if names else [""] * 6
        rows.append(row)
    return table(f"Memory of world {world.name!r} on {quantity(len(told), 'rank')}", heads, rows)


def _pieces(world: World, told: Mapping[int, RankMemory], most: int) -> list[list[str]]:
    """The biggest pieces; those that are alike on several ranks in one row."""
    groups: dict[object, dict[int, HeldMemory]] = {}
    for rank, one in told.items():
        for place, piece in enumerate(one.largest):
            same = (tuple(piece.names), piece.kind, piece.graph, tuple(piece.shape or ()), piece.dtype)
            key = (*same, piece.size, piece.device.partition(":")[0], piece.old, place if not piece.names else 0)
            groups.setdefault(key, {})[rank] = piece
    ordered = sorted(groups.values(), key=lambda held: -next(iter(held.values())).size)
    rows = []
    for held in ordered[:most]:
        first = next(iter(held.values()))
        devices = {piece.device for piece in held.values()}
        rows.append(
            [
                human(first.size),
                ", ".join(first.names) + (f" and {first.more} more" if first.more else ""),
                f"{first.kind} with its graph" if first.graph else first.kind,
                "" if first.shape is None else str(tuple(first.shape)),
                first.dtype or first.type,
                first.device if len(devices) == 1 else first.device.partition(":")[0],
                "all" if len(held) == world.size else format_ranks(held),
                "only old outputs keep it" if first.old else "",
            ]
        )
    return rows


def _notes(world: World, told: Mapping[int, RankMemory], quiet: list[int]) -> list[str]:
    notes = []
    if len(told) > RANKS:
        notes.append(f"The first table has the lowest {RANKS} of {len(told)} ranks; -r chooses others.")
    for words, ranks in _grouped(told, _kinds):
        notes.append(f"Named on {count_ranks(ranks)}: {words}.")
    for words, ranks in _grouped(told, lambda one: human(sum(one.old.values())) if one.old else ""):
        notes.append(
            f"Only old outputs or the last error keep {words} on {count_ranks(ranks)}: %distributed free lets go of it."
        )
    if any(piece.graph for one in told.values() for piece in one.largest):
        notes.append(_GRAPH)
    if any(one.unread for one in told.values()):
        notes.append(_UNREAD)
    if cut := [rank for rank, one in told.items() if one.cut]:
        have = "has" if len(cut) == 1 else "have"
        notes.append(
            f"{count_ranks(cut).capitalize()} {have} more objects than there was time to look at: more memory may have "
            "names. --timeout gives more time."
        )
    dead = [rank for rank in quiet if world.ranks[rank].has_ended]
    if dead:
        notes.append(f"{count_ranks(dead).capitalize()}: dead.")
    if silent := [rank for rank in quiet if rank not in dead]:
        notes.append(f"{count_ranks(silent).capitalize()}: no answer.")
    return notes


def _kinds(one: RankMemory) -> str:
    found = {words: one.kinds[kind] for kind, words in KINDS.items() if one.kinds.get(kind)}
    return ", ".join(f"{human(size)} of {words}" for words, size in found.items()) or "nothing"


def _grouped(told: Mapping[int, RankMemory], words: Callable[[RankMemory], str]) -> list[tuple[str, list[int]]]:
    """The ranks of which ``words`` says the same; none for an empty text."""
    groups: dict[str, list[int]] = {}
    for rank, one in told.items():
        groups.setdefault(words(one), []).append(rank)
    return [(said, ranks) for said, ranks in groups.items() if said]


def freed_words(found: Mapping[int, FreedMemory]) -> str:
    """What the ranks have let go of, and how much came free; a line for each group of ranks."""
    groups: dict[str, list[int]] = {}
    for rank, one in found.items():
        groups.setdefault(_freed(one), []).append(rank)
    return "\n".join(f"{count_ranks(ranks).capitalize()}: {words}." for words, ranks in groups.items())


def _freed(one: FreedMemory) -> str:
    gone = [quantity(one.outputs, "old output")] if one.outputs else []
    gone += ["the last error"] if one.error else []
    sizes = {"the GPU": one.device, "the host": one.host}
    came = [f"{human(size)} of {where}'s memory" for where, size in sizes.items() if size >= _LITTLE]
    freed = f"{' and '.join(came)} came free" if came else "next to no memory came free"
    return f"let go of {' and '.join(gone)}; {freed}" if gone else f"nothing old to let go of; {freed}"

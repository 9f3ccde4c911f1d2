"""Compares a variable over all ranks: which of its parts differ, on which rank, and by how much.

Each rank digests its own parts. Ranks first exchange one digest of all digests. Only where those differ do they
exchange facts of single parts, and only parts that differ travel, in chunks, from one rank to the others, to measure
how far they are apart. Placements of sharded tensors are compared as placements, and their values among ranks with the
same piece.

All ranks must call it together. Under failure: a name that is missing on some rank raises on all ranks before anything
is read. A rank that dies frees the others as in any cell, and nothing has changed.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jupyter_dtrain.core.contents import COMPARISON, ORDER, Amount, Compared, Difference, PartSummary
from jupyter_dtrain.core.dotted_paths import resolve

from .contents import fingerprint, parts_of, random_parts
from .rank_context import answer, verb_cell
from .resync import agree

if TYPE_CHECKING:
    from jupyter_dtrain.plugins.framework import Part

    from .plugins import Plugins

CHUNK: Final = 16 << 20
"""Bytes of a part that travel at once. Every type of elements divides them."""
MEASURED: Final = 12
"""Parts whose differences are measured."""
MOVED: Final = 256 << 20
"""Bytes that may travel to measure them; the first part travels in any case."""
MOST: Final = 200
"""Differences in one answer."""
UNREAD: Final = 20


def compare(path: str, namespace: Mapping[str, Any], plugins: Plugins, *, states: bool = False) -> Compared:
    """Compare what the name or dotted path ``path`` stands for on all ranks. ``states``: random states and steps, too.

    Raises :class:`TransferFailed` where it is not defined on some rank.
    """
    from mpi4py import MPI

    comm, began = MPI.COMM_WORLD, time.monotonic()
    parts = _parts(comm, path, namespace, plugins)
    if states:
        parts += [*plugins.states(namespace), *random_parts()]
    mine: dict[tuple[str, str], PartSummary] = {}
    of: dict[tuple[str, str], Part] = {}
    for part in parts:
        facts = fingerprint(part)
        mine[facts.name, facts.piece], of[facts.name, facts.piece] = facts, part
    sample = [
        (one.name, one.kind, one.type, one.shape, one.dtype, one.placement, one.piece, one.digest)
        for one in mine.values()
    ]
    whole = hashlib.blake2b(repr(sample).encode(), digest_size=16).digest()
    found: list[Difference] = []
    names = len(mine)
    if len(set(comm.allgather(whole))) > 1:
        table: list[dict[tuple[str, str], PartSummary]] = comm.allgather(mine)
        found, names = find_differences(table)
    found.sort(key=lambda one: ORDER.index(one.kind))
    shown, moved = found[:MOST], 0
    for place, one in enumerate(shown[:MEASURED]):
        measurable = one.what == "values" and one.kind != "random state"
        if measurable and (place == 0 or moved + one.size <= MOVED):
            shown[place], sent = _measured(comm, one, mine, of)
            moved += sent
    return Compared(
        path,
        list(range(comm.Get_size())),
        names,
        sum(one.size for one in mine.values()),
        time.monotonic() - began,
        dict(Counter(one.kind for one in mine.values())),
        shown,
        len(found) - len(shown),
        [one.name for one in mine.values() if not one.digest][:UNREAD],
        moved,
    )


def run_comparison(path: str, *, states: bool = False) -> None:
    """In a cell, on all ranks: compare, and send the answer to the client as a display of the first rank."""
    home, namespace = verb_cell()
    found = compare(path, namespace, home.plugins, states=states)
    answer(COMPARISON, found, f"comparison of {found.name}")


def _parts(comm: Any, path: str, namespace: Mapping[str, Any], plugins: Plugins) -> list[Part]:
    problem, parts = "", []
    try:
        parts = parts_of(path, resolve(namespace, path), namespace, plugins)
    except LookupError:
        problem = f"{path!r} is not defined"
    except Exception as error:  # noqa: BLE001 — a user's class may raise anything, and all ranks must go on together
        problem = f"{path!r} cannot be read: {type(error).__name__}: {error}"
    agree(comm, problem, "Nothing was compared.")
    return parts


def find_differences(table: list[dict[tuple[str, str], PartSummary]]) -> tuple[list[Difference], int]:
    """Return where ranks differ, in the order of the parts, and how many parts there are. ``table``: by rank."""
    names: dict[str, dict[int, PartSummary]] = {}
    pieces: dict[tuple[str, str], dict[int, PartSummary]] = {}
    for rank, parts in enumerate(table):
        for key, facts in parts.items():
            names.setdefault(facts.name, {})[rank] = facts
            pieces.setdefault(key, {})[rank] = facts
    found: dict[str, list[Difference]] = {name: [] for name in names}
    for name, ranks in names.items():
        if difference := _in_form(name, ranks, len(table)):
            found[name].append(difference)
    whole = {name for name, differences in found.items() if differences}
    for (name, _), ranks in pieces.items():
        if name not in whole and (difference := _in_values(name, ranks)):
            found[name].append(difference)
    return [one for differences in found.values() for one in differences], len(names)


def _in_form(name: str, ranks: Mapping[int, PartSummary], size: int) -> Difference | None:
    """A part that is missing, or has another form, on some ranks."""
    first = next(iter(ranks.values()))
    if len(ranks) < size:
        lack = [rank for rank in range(size) if rank not in ranks]
        return Difference(name, first.kind, "missing", min(ranks), lack, dict.fromkeys(lack, "has none"))
    forms: dict[str, dict[int, str]] = {
        "type": {rank: one.type for rank, one in ranks.items()},
        "shape": {rank: str(tuple(one.shape or ())) for rank, one in ranks.items()},
        "dtype": {rank: one.dtype for rank, one in ranks.items()},
        "placement": {rank: one.placement or "not sharded" for rank, one in ranks.items()},
    }
    if len(set(forms["placement"].values())) > 1:
        del forms["type"]  # a DTensor beside a tensor: the placement says more
    for what, words in forms.items():
        if len(set(words.values())) > 1:
            reference, others = _sides(words)
            return Difference(name, first.kind, what, reference, others, words)  # type: ignore[arg-type]
    return None


def _in_values(name: str, ranks: Mapping[int, PartSummary]) -> Difference | None:
    digests = {rank: one.digest for rank, one in ranks.items() if one.digest}
    if len(set(digests.values())) < 2:  # noqa: PLR2004 — all alike
        return None
    reference, others = _sides(digests)
    one = ranks[reference]
    label = f"{name} {one.piece}" if one.piece else name
    return Difference(label, one.kind, "values", reference, others, size=one.size)


def _sides(values: Mapping[int, str]) -> tuple[int, list[int]]:
    """The lowest rank of the largest group that agrees, and the ranks that differ from it."""
    groups: dict[str, list[int]] = {}
    for rank, value in sorted(values.items()):
        groups.setdefault(value, []).append(rank)
    most = max(groups.values(), key=lambda group: (len(group), -group[0]))
    return most[0], [rank for rank in sorted(values) if rank not in most]


def _measured(
    comm: Any, difference: Difference, mine: Mapping[tuple[str, str], PartSummary], of: Mapping[tuple[str, str], Part]
) -> tuple[Difference, int]:
    """The difference with its amounts, the same on all ranks, and the bytes that travelled."""
    rank = comm.Get_rank()
    key = next((key for key in mine if _label(key) == difference.name), None)
    part = of[key] if key is not None else None
    lead = rank == difference.reference
    words, norm = comm.bcast((part.words(), _norm(part)) if lead and part is not None else None, difference.reference)
    largest, squares, count = 0.0, 0.0, 0
    differs = rank in difference.ranks
    for start in range(0, difference.size, CHUNK):
        stop = min(start + CHUNK, difference.size)
        room = bytearray(part.read(start, stop) if lead and part is not None else stop - start)
        comm.Bcast(room, root=difference.reference)
        if differs and part is not None:
            one, more, some = _distance(part, start, bytes(room))
            largest, squares, count = max(largest, one), squares + more, count + some
    amount = Amount(rank, largest, math.sqrt(squares), count) if differs and difference.size else None
    gathered = comm.allgather((amount, part.words() if differs and part is not None else ""))
    amounts = [one for one, _ in gathered if one is not None]
    said = {other: text for other, (_, text) in enumerate(gathered) if text}
    if words:
        said[difference.reference] = words
    changed = msgspec.structs.replace(difference, amounts=amounts, words=said, norm=norm)
    return changed, difference.size


def _label(key: tuple[str, str]) -> str:
    return f"{key[0]} {key[1]}" if key[1] else key[0]


def _norm(part: Part) -> float | None:
    try:
        return part.norm()
    except Exception:  # noqa: BLE001 — the ranks must go on together; a norm is not needed
        return None


def _distance(part: Part, start: int, data: bytes) -> tuple[float, float, int]:
    try:
        return part.distance(start, data)
    except Exception:  # noqa: BLE001 — as above
        return math.nan, math.nan, 0

"""Makes variables equal on all ranks again: all ranks get the values of one.

After a rank has failed in the middle of a step, others may have made one optimizer step more. An object with a state
(``state_dict`` and ``load_state_dict``, as models, optimizers, schedulers and scalers have) keeps its identity and gets
the state; a copy replaces any other value. A rank that lacks a name, as one that has replaced a dead rank does, gets a
copy of the whole object. Objects that belong together (a model, its DDP, its optimizer) still do so there, as they
travel in one piece. All ranks must call it together.

Under failure: all ranks find an obstacle before anything changes, and raise
:class:`~jupyter_dtrain.core.errors.TransferFailed` together.
"""

from __future__ import annotations

import hashlib
import pickle
from typing import TYPE_CHECKING, Any, Final

import cloudpickle

from jupyter_dtrain.core.errors import TransferFailed
from jupyter_dtrain.core.world import count_ranks

from .contents import has_state, own_parts, parts_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from .plugins import Plugins

PIECE = 256 << 20
"""Bytes of one MPI message: many MPIs count them in 32 bits."""

_SPREAD: Final = "what a dead rank held of it is gone, and `%distributed load` brings it back from a snapshot"


def resync(
    names: list[str], source: int, namespace: dict[str, Any], plugins: Plugins, *, new: Collection[int] | None = None
) -> list[str]:
    """Give all ranks the values that ``names`` have on the rank ``source``.

    ``new``: only these ranks get whole objects, whatever they have; the others get states alone. Returns what the user
    must know of: which ranks have lost other values by it.
    """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    # Each rank takes part in every collective below, whatever it lacks: one that raised alone would leave the others
    # waiting. Problems are gathered, and all ranks raise together.
    here, is_new = comm.Get_rank() == source, comm.Get_rank() in (new or ())
    missing = set(names) if is_new else {name for name in names if name not in namespace}
    lacking = sorted(set[str]().union(*comm.allgather(missing)))
    packed, shapes, problem = _pack(names, lacking, namespace, plugins) if here else (b"", {}, "")
    shapes = comm.bcast(shapes, root=source)
    problem = problem or ("" if here or is_new else _unlike(shapes, source, namespace))
    agree(comm, problem, "Nothing was changed.")
    # With new ranks, the others keep values that are no states.
    replaced = [name for name in names if name not in missing and (new is None or has_state(namespace[name]))]
    notes = _lost(comm, replaced, source, namespace, plugins)
    data = _broadcast(comm, packed, source)
    if here:
        return notes
    states, wholes = pickle.loads(data)  # noqa: S301 — from a rank of this world
    for name, (kind, value) in pickle.loads(states).items():  # noqa: S301
        if name in missing:
            continue
        if kind == "state":
            namespace[name].load_state_dict(value)
        elif new is None:
            namespace[name] = value
    if missing:
        namespace |= {name: value for name, value in pickle.loads(wholes).items() if name in missing}  # noqa: S301
    return notes


def _lost(comm: Any, names: list[str], source: int, namespace: dict[str, Any], plugins: Plugins) -> list[str]:
    """Say which variables are not what they are on the rank ``source``: each rank may train a model of its own."""
    digests: list[dict[str, str]] = comm.allgather({name: _digest(name, namespace, plugins) for name in names})
    found = []
    for name, wanted in digests[source].items():
        ranks = [rank for rank, mine in enumerate(digests) if wanted and mine.get(name) not in ("", None, wanted)]
        if ranks:
            found.append(f"{name} was not the same on {count_ranks(ranks)}, and has the values of rank {source} now")
    return found


def _digest(name: str, namespace: dict[str, Any], plugins: Plugins) -> str:
    """The digest of a variable's values; empty where some cannot be read."""
    try:
        parts = own_parts(parts_of(name, namespace[name], namespace, plugins))
        found = [(part.name, part.digest()) for part in parts]
    except Exception:  # noqa: BLE001 — a user's class may raise anything, and all ranks go on together
        return ""
    return hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest() if all(one for _, one in found) else ""


def _pack(
    names: list[str], lacking: Collection[str], namespace: dict[str, Any], plugins: Plugins
) -> tuple[bytes, dict[str, dict[str, list[int]]], str]:
    """The bytes to send, and the shapes in each state; or why nothing can be sent."""
    found: dict[str, tuple[str, Any]] = {}
    shapes: dict[str, dict[str, list[int]]] = {}
    for name in names:
        if name not in namespace:
            return b"", {}, f"{name!r} is not defined"
        value = namespace[name]
        try:
            kind, content = ("state", value.state_dict()) if has_state(value) else ("value", value)
            found[name] = (kind, plugins.on_host(content))
        except Exception as error:  # noqa: BLE001 — a user's class may raise anything
            return b"", {}, f"{name!r}: {error}" + (f"; {_SPREAD}" if name in lacking else "")
        if kind == "state":
            shapes[name] = _shapes(content)
    wholes = {name: namespace[name] for name in lacking}
    try:
        # Two pickles in one: a rank that lacks nothing never unpickles whole objects, and with them a second model.
        parts = cloudpickle.dumps(found, protocol=5), cloudpickle.dumps(wholes, protocol=5)
        return cloudpickle.dumps(parts, protocol=5), shapes, ""
    except Exception as error:  # noqa: BLE001 — as may a user's __reduce__
        return b"", {}, f"{', '.join(names)} cannot be pickled: {error}"


def _shapes(state: Any) -> dict[str, list[int]]:
    """The shapes of the tensors in a state, by name."""
    items = state.items() if isinstance(state, dict) else ()
    return {str(key): list(map(int, value.shape)) for key, value in items if hasattr(value, "shape")}


def _unlike(shapes: dict[str, dict[str, list[int]]], source: int, namespace: dict[str, Any]) -> str:
    """Why this rank's objects cannot take the states of these ``shapes``; empty where they can, or it has none."""
    for name, theirs in shapes.items():
        value = namespace.get(name)
        if value is None:
            continue
        if not has_state(value):
            return f"{name!r} has no state_dict, as it has on rank {source}"
        mine = _shapes(value.state_dict())
        for key in [*theirs, *mine]:
            if theirs.get(key) != mine.get(key):
                here, there = (shape if shape is None else tuple(shape) for shape in (mine.get(key), theirs.get(key)))
                words = "is missing" if here is None else f"is {here}"
                other = "has none" if there is None else f"has {there}"
                return f"{key} of {name!r} {words}, and rank {source} {other}: they are no replicas of each other"
    return ""


def _broadcast(comm: Any, data: bytes, source: int) -> bytes:
    size = comm.bcast(len(data), root=source)
    whole = bytearray(data or size)  # on the source the bytes themselves, elsewhere room for as many
    view = memoryview(whole)
    for start in range(0, size, PIECE):
        comm.Bcast(view[start : start + PIECE], root=source)
    return bytes(whole)


def agree(comm: Any, problem: str, words: str) -> None:
    """Raise :class:`TransferFailed` on all ranks where there is a ``problem`` on one. ``words``: what came of it."""
    groups: dict[str, list[int]] = {}
    for rank, one in enumerate(comm.allgather(problem)):
        if one:
            groups.setdefault(one, []).append(rank)
    if groups:
        problems = "; ".join(f"{count_ranks(ranks)}: {one}" for one, ranks in groups.items())
        raise TransferFailed(f"{words} {problems[:1].upper()}{problems[1:]}.")

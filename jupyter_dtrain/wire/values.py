"""Values on their way between the notebook and the ranks, as pickles.

Each value is pickled by itself, so an error names the one that cannot be pickled; nothing is sent unless all can be.

Jupyter signs a message but not its buffers, in which the pickles travel. So the signed part has their digests, and a
pickle that does not match its digest is never unpickled.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.errors import BadRequest, TransferFailed
from jupyter_dtrain.core.world import count_ranks

if TYPE_CHECKING:
    from .agent_messages import Fetched


ARGUMENTS: Final = "_dtrain_arguments"
"""The variable in which a rank gets, for a moment, a function and its arguments."""


def check_variable(name: str) -> None:
    """Raise :class:`BadRequest` unless ``name`` can name a variable."""
    if not isinstance(name, str) or not name.isidentifier():
        raise BadRequest(f"{name!r} is not the name of a variable.")


def pickle_values(values: Mapping[str, Any]) -> dict[str, bytes]:
    """Pickle each value. Raises :class:`TransferFailed`, which names the first value that cannot be pickled."""
    if not values:
        return {}
    import cloudpickle

    pickled = {}
    for name, value in values.items():
        check_variable(name)
        try:
            pickled[name] = cloudpickle.dumps(value, protocol=5)
        except Exception as error:  # noqa: BLE001 — pickling may raise anything
            raise TransferFailed(
                f"{name!r} cannot be sent to the ranks: {type(value).__name__} objects cannot be pickled ({error}). "
                f"Make it there, in a %%distributed cell."
            ) from None
    return pickled


def digests(pickles: Iterable[bytes]) -> list[str]:
    """The digest of each pickle, for the signed part of the message."""
    return [hashlib.sha256(data).hexdigest() for data in pickles]


def unpack(names: list[str], signed: list[str], buffers: Iterable[Any]) -> dict[str, bytes]:
    """The pickles in the buffers of a message, by name; ``signed``: their digests.

    Raises :class:`TransferFailed` for a buffer whose digest is another one.
    """
    pickled = {}
    for name, digest, buffer in zip(names, signed, buffers, strict=True):
        data = bytes(buffer)
        if hashlib.sha256(data).hexdigest() != digest:
            raise TransferFailed(
                f"{name!r} was changed on its way between notebook and ranks, so it was not read. Send it again."
            )
        pickled[name] = data
    return pickled


def collect_pulled(
    names: list[str], answers: Mapping[int, Fetched], buffers: Mapping[int, Iterable[Any]]
) -> dict[str, dict[int, Any]]:
    """``{name: {rank: value}}`` from the ``answers`` of the ranks and the ``buffers`` of their replies.

    Raises :class:`TransferFailed` naming every rank where a name is missing or cannot be pickled.
    """
    problems = []
    for name in names:
        missing = [rank for rank, answer in answers.items() if name in answer.missing]
        if missing:
            problems.append(f"{name!r} is not defined on {count_ranks(missing)}.")
        failed = {rank: answer.failed[name] for rank, answer in answers.items() if name in answer.failed}
        if failed:
            reason = next(iter(failed.values()))
            problems.append(f"{name!r} cannot be pickled on {count_ranks(list(failed))}: {reason}.")
    if problems:
        raise TransferFailed(" ".join(problems))
    pickled = {rank: unpack(answer.names, answer.digests, buffers[rank]) for rank, answer in answers.items()}
    return {name: {rank: _unpickle(name, rank, pickled[rank][name]) for rank in pickled} for name in names}


def _unpickle(name: str, rank: int, data: bytes) -> Any:
    try:
        return pickle.loads(data)  # noqa: S301 — came signed, from a rank of this session's own world
    except Exception as error:  # noqa: BLE001 — pickling may raise anything
        raise TransferFailed(
            f"{name!r} of rank {rank} cannot be rebuilt here: {type(error).__name__}: {error}."
        ) from None

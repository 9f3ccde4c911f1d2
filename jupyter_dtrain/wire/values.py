"""Values on their way between the notebook and the ranks, as pickles.

Each value is pickled by itself, so that the one that cannot be is named, and nothing is sent unless all can be.

Jupyter's messages are signed but for their buffers, in which the pickles travel; so their digests stand in the signed
part, and nothing is unpickled that does not match.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

from jupyter_dtrain.core.errors import BadRequest, TransferFailed
from jupyter_dtrain.core.world import count_ranks


def check_variable(name: str) -> None:
    """Raise :class:`BadRequest` unless ``name`` can name a variable."""
    if not isinstance(name, str) or not name.isidentifier():
        raise BadRequest(f"{name!r} is not the name of a variable.")


def pickle_values(values: Mapping[str, Any]) -> dict[str, bytes]:
    """Each value as a pickle. Raises :class:`TransferFailed` naming the first that cannot be one."""
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


def pack(pickled: Mapping[str, bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Named pickles as the content and the buffers of a message."""
    buffers = list(pickled.values())
    return {"names": list(pickled), "digests": [hashlib.sha256(data).hexdigest() for data in buffers]}, buffers


def unpack(content: Mapping[str, Any], buffers: Iterable[Any]) -> dict[str, bytes]:
    """The named pickles of a message. Raises :class:`TransferFailed` for a buffer that the signature does not cover."""
    pickled = {}
    for name, digest, buffer in zip(content["names"], content["digests"], buffers, strict=True):
        data = bytes(buffer)
        if hashlib.sha256(data).hexdigest() != digest:
            raise TransferFailed(f"{name!r} is not what was signed, and was not read.")
        pickled[name] = data
    return pickled


def collect_pulled(names: list[str], replies: Mapping[int, dict[str, Any]]) -> dict[str, dict[int, Any]]:
    """``{name: {rank: value}}`` from the replies of the ranks to ``fetch``.

    Raises :class:`TransferFailed` naming every rank where a name is missing or cannot be pickled.
    """
    answers = {rank: reply["content"] for rank, reply in replies.items()}
    problems = []
    for name in names:
        missing = [rank for rank, answer in answers.items() if name in answer["missing"]]
        if missing:
            problems.append(f"{name!r} is not defined on {count_ranks(missing)}.")
        failed = {rank: answer["failed"][name] for rank, answer in answers.items() if name in answer["failed"]}
        if failed:
            reason = next(iter(failed.values()))
            problems.append(f"{name!r} cannot be pickled on {count_ranks(list(failed))}: {reason}.")
    if problems:
        raise TransferFailed(" ".join(problems))
    pickled = {rank: unpack(reply["content"], reply["buffers"]) for rank, reply in replies.items()}
    return {name: {rank: _unpickle(name, rank, pickled[rank][name]) for rank in pickled} for name in names}


def _unpickle(name: str, rank: int, data: bytes) -> Any:
    try:
        return pickle.loads(data)  # noqa: S301 — came signed, from a rank of this session's own world
    except Exception as error:  # noqa: BLE001 — pickling may raise anything
        raise TransferFailed(
            f"{name!r} of rank {rank} cannot be rebuilt here: {type(error).__name__}: {error}."
        ) from None

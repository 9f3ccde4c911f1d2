"""Makes variables equal on all ranks again: all ranks get the values of one.

After a rank has failed in the middle of a step, others may have made one optimizer step more. An object with a state
(``state_dict`` and ``load_state_dict``, as models, optimizers, schedulers and scalers have) keeps its identity and gets
the state; a copy replaces any other value. All ranks must call it together.

Under failure: all ranks find an obstacle before anything changes, and raise
:class:`~jupyter_dtrain.core.errors.TransferFailed` together.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import cloudpickle

from jupyter_dtrain.core.errors import TransferFailed

if TYPE_CHECKING:
    from .plugins import Plugins

PIECE = 256 << 20
"""Bytes of one MPI message: many MPIs count them in 32 bits."""


def resync(names: list[str], source: int, namespace: dict[str, Any], plugins: Plugins) -> None:
    """Give all ranks the values that ``names`` have on the rank ``source``."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    here = comm.Get_rank() == source
    packed, problem = _pack(names, namespace, plugins) if here else (b"", "")
    if not here:
        problem = _obstacle(names, namespace)
    problems = [f"rank {rank}: {words}" for rank, words in enumerate(comm.allgather(problem)) if words]
    if problems:
        raise TransferFailed(f"Nothing was changed. {'; '.join(problems)}.")
    data = _broadcast(comm, packed, source)
    if not here:
        for name, (kind, value) in pickle.loads(data).items():  # noqa: S301 — from a rank of this world
            if kind == "state":
                namespace[name].load_state_dict(value)
            else:
                namespace[name] = value


def _pack(names: list[str], namespace: dict[str, Any], plugins: Plugins) -> tuple[bytes, str]:
    """The bytes to send; or why nothing can be sent."""
    found: dict[str, tuple[str, Any]] = {}
    for name in names:
        if name not in namespace:
            return b"", f"{name!r} is not defined"
        value = namespace[name]
        try:
            kind, content = ("state", value.state_dict()) if _has_state(value) else ("value", value)
            found[name] = (kind, plugins.on_host(content))
        except Exception as error:  # noqa: BLE001 — a user's class may raise anything
            return b"", f"{name!r}: {error}"
    try:
        return cloudpickle.dumps(found, protocol=5), ""
    except Exception as error:  # noqa: BLE001 — as may a user's __reduce__
        return b"", f"{', '.join(names)} cannot be pickled: {error}"


def _obstacle(names: list[str], namespace: dict[str, Any]) -> str:
    # The source decides whether a value has a state; here the name only has to exist.
    missing = [name for name in names if name not in namespace]
    return f"{', '.join(missing)} not defined" if missing else ""


def _has_state(value: Any) -> bool:
    return (
        not isinstance(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


def _broadcast(comm: Any, data: bytes, source: int) -> bytes:
    size = comm.bcast(len(data), root=source)
    whole = bytearray(data or size)
    view = memoryview(whole)
    for start in range(0, size, PIECE):
        comm.Bcast(view[start : start + PIECE], root=source)
    return bytes(whole)

"""Moves values into and out of a rank's namespace. These functions run in the rank, between cells."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle

from jupyter_dtrain.wire.agent_messages import Fetched
from jupyter_dtrain.wire.values import digests


def store_values(pickled: dict[str, bytes]) -> None:
    """Bind every name, or none. Raises :class:`ValueError` with the name and the reason."""
    values = {}
    for name, data in pickled.items():
        try:
            values[name] = pickle.loads(data)  # noqa: S301 — came signed, from the session that owns this world
        except Exception as error:  # noqa: BLE001 — unpickling may raise anything
            raise ValueError(f"{name!r} cannot be rebuilt here: {type(error).__name__}: {error}") from None
    _namespace().update(values)


def fetch_values(names: list[str]) -> tuple[Fetched, list[bytes]]:
    """The values of ``names`` as an answer and its pickles."""
    namespace = _namespace()
    values: dict[str, bytes] = {}
    failed: dict[str, str] = {}
    for name in names:
        if name in namespace:
            try:
                values[name] = cloudpickle.dumps(namespace[name], protocol=5)
            except Exception as error:  # noqa: BLE001 — a user's __reduce__ may raise anything
                failed[name] = f"{type(error).__name__}: {error}"
    missing = [name for name in names if name not in namespace]
    pickles = list(values.values())
    return Fetched(list(values), digests(pickles), missing, failed), pickles


def _namespace() -> dict[str, Any]:
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    assert shell is not None
    namespace: dict[str, Any] = shell.user_ns
    return namespace

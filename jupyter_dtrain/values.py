"""Values on their way between the notebook and the ranks, as pickles.

Each value is pickled by itself, so that the one that cannot be is named, and nothing is sent unless all can be.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from .failures import BadRequest, TransferFailed


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


def unpickle_value(name: str, rank: int, data: bytes) -> Any:
    """The value of ``name`` that ``rank`` sent. Raises :class:`TransferFailed` when it cannot be rebuilt here."""
    try:
        return pickle.loads(data)  # noqa: S301 — came signed, from a rank of this session's own world
    except Exception as error:  # noqa: BLE001 — pickling may raise anything
        raise TransferFailed(
            f"{name!r} of rank {rank} cannot be rebuilt here: {type(error).__name__}: {error}."
        ) from None

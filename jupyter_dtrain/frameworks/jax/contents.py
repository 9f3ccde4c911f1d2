"""JAX's arrays, part by part, for comparisons over ranks.

An array that is spread over processes counts with its sharding: each rank has the shards of its own devices, and only
ranks that hold the same shard must hold the same values.

Under failure: an array that was deleted, or donated to a computation, has no digest.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.contents import PartSummary
from jupyter_dtrain.core.framework_report import imported
from jupyter_dtrain.core.memory import HOST
from jupyter_dtrain.plugins.framework import Holds, Part, TensorMemory
from jupyter_dtrain.rank.contents import ArrayPart, asarray

if TYPE_CHECKING:
    from jupyter_dtrain.plugins.framework import Look


def parts(name: str, value: Any) -> list[Part] | None:
    """Return the parts of an array, or of an object that JAX knows as a tree; None for anything else."""
    jax = sys.modules["jax"]
    if isinstance(value, jax.core.Tracer):
        return None
    if isinstance(value, jax.Array):
        return _of_array(jax, name, value)
    if type(value) in (list, tuple, dict, type(None)) or type(value).__module__ == "builtins":
        return None
    try:
        leaves = jax.tree_util.tree_flatten_with_path(value)[0]
    except Exception:  # noqa: BLE001 — a class of the user's may raise anything
        return None
    if not leaves or any(leaf is value or not isinstance(leaf, jax.Array) for _, leaf in leaves):
        return None
    return [part for path, leaf in leaves for part in _of_array(jax, f"{name}{jax.tree_util.keystr(path)}", leaf)]


def holder(kind: type) -> Look | None:
    """What looks into arrays; None for other types, and for values inside a trace."""
    jax: Any = imported("jax")
    if jax is None or not issubclass(kind, jax.Array) or issubclass(kind, jax.core.Tracer):
        return None
    return partial(_look_into, jax)


def _look_into(jax: Any, array: Any, _still: bool, /) -> Holds:  # noqa: FBT001 — as the contract has it
    """The memory of an array on the devices of this rank. Arrays never change, so each has its own."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key) or array.is_deleted():
        return Holds()
    devices = sorted(array.sharding.addressable_devices, key=lambda one: one.id)
    if not devices:
        return Holds()
    device = HOST if devices[0].platform == "cpu" else str(devices[0])
    size = len(devices) * math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
    return Holds(
        TensorMemory(("jax", id(array)), size, type(array).__name__, tuple(array.shape), str(array.dtype), device)
    )


def _of_array(jax: Any, name: str, array: Any) -> list[Part]:
    kind, dtype, shape = type(array).__name__, str(array.dtype), list(array.shape)
    if array.is_deleted():
        return [ArrayPart(PartSummary(name, "value", kind, shape, dtype), lambda: _missing(name))]
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        return _of_array(jax, name, jax.random.key_data(array))
    device = next((str(one) for one in array.devices()), "")
    if array.is_fully_addressable or array.is_fully_replicated:
        data = array if array.is_fully_addressable else array.addressable_data(0)
        return [
            ArrayPart(
                PartSummary(name, "value", kind, shape, dtype, device, size=data.nbytes), lambda: asarray(data), data
            )
        ]
    placement = str(getattr(array.sharding, "spec", array.sharding))
    found: list[Part] = []
    for piece in {str(shard.index): shard for shard in array.addressable_shards}.values():
        facts = PartSummary(
            name, "value", kind, shape, dtype, device, placement, _place(piece.index), size=piece.data.nbytes
        )
        # Each has its own default.
        found.append(ArrayPart(facts, lambda data=piece.data: asarray(data), piece.data))  # type: ignore[misc]
    return found


def _place(index: Any) -> str:
    return ", ".join(f"{one.start or 0}:{'' if one.stop is None else one.stop}" for one in index)


def _missing(name: str) -> Any:
    raise ValueError(f"{name} was deleted")

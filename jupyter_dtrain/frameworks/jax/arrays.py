"""JAX arrays on their way from a backend that ends to the next one, by way of the host. It imports JAX.

Setting up JAX's processes again needs new backends, and an array belongs to the backend that made it; so do devices,
meshes and shardings. :meth:`Carried.pack` copies the arrays in the user's variables to the host, each rank its shards.
:meth:`Carried.arrive` puts them on the devices that take the old ones' places, and back into the variables. A variable
counts if it is what JAX calls a pytree: an array, or a dictionary, list, tuple or registered class with arrays. Arrays
elsewhere, such as in attributes and closures, are not carried; a note names the variable where one look shows them.

Under failure: an array that was still being computed at the release, or that was donated, is lost. Where all processes
have all of it, :mod:`.replicas` takes it from a rank that still has it; else a note names it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding

_OF_A_BACKEND = (jax.Array, jax.Device, Sharding, Mesh)
_LEVELS = 4
"""Functions around one another to look into: of ``jax.jit(jax.shard_map(…))`` the third holds the mesh."""
_KERAS = "Keras' own models, seed and distribution"


class _Place(NamedTuple):
    """The description of a device, by which the next backend's device is found."""

    platform: str
    process: int
    local: int
    """The number of the device within its process, from 0."""


class _Held(NamedTuple):
    """The values of one array, copied to the host."""

    array: Any
    """The old array; while it is kept, its id stays its own."""
    shards: list[tuple[Any, Any]]
    """This process's shards: device and values."""
    whole: Any = None
    """All values, where the whole array is needed; else None."""
    failed: bool = False


class Replica(NamedTuple):
    """An array of which every process has all values; all ranks give it the same id."""

    name: str
    """The user's name whose tree has it."""
    place: int
    """The number of the array among the replicas of the tree."""
    shape: tuple[int, ...]
    dtype: str


class Carried:
    """Arrays of JAX that are kept on the host while one backend ends and the next begins."""

    def __init__(self) -> None:
        self._trees: list[tuple[str, Any]] = []
        """The user's names whose trees hold arrays or devices of a backend, with their values."""
        self._left: list[str] = []
        """The user's other names that hold arrays or devices of a backend."""
        self._held: dict[int, _Held] = {}
        """The kept values, by the id of the old array."""
        self._devices: dict[_Place, Any] = {}
        self._new: dict[int, tuple[Any, Any]] = {}
        """What is replaced, kept so that its id stays its own, and what takes its place; by that id."""
        self._gone: set[str] = set()
        self._replicas: dict[Replica, int] = {}
        """The ids of the arrays that all processes have."""
        self._alone = True

    def pack(self, names: Iterable[tuple[str, Any]]) -> None:
        """Copy the arrays in the trees ``names`` to the host; waits for those that are being computed."""
        from jax.extend.backend import backends

        self._alone = jax.process_count() == 1
        self._devices = _devices(backends())
        for name, value in names:
            leaves = _leaves(value)
            if not leaves:
                self._left += [name] if _leaves(_inside(value)) else []
                continue
            self._trees.append((name, value))
            arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
            self._held |= {id(array): _copy(array) for array in arrays if id(array) not in self._held}
            for number, array in enumerate(filter(_is_replica, arrays), 1):
                self._replicas[Replica(name, number, array.shape, array.dtype.name)] = id(array)
        if _keras_computes_with_jax():
            self._left.append(_KERAS)

    def lost_replicas(self) -> dict[Replica, int]:
        """The replicas whose values are lost, with their ids."""
        return {replica: one for replica, one in self._replicas.items() if self._held[one].failed}

    def kept_replicas(self) -> dict[Replica, Any]:
        """The replicas whose values are here, with the values."""
        held = {replica: self._held[one] for replica, one in self._replicas.items()}
        return {replica: one.shards[0][1] for replica, one in held.items() if not one.failed and one.shards}

    def fill(self, which: int, data: Any) -> None:
        """Take ``data``, uint8, as the values of the replica with this id."""
        array = self._held[which].array
        values = data.view(array.dtype).reshape(array.shape)
        self._held[which] = _Held(array, [(device, values) for device in array.sharding.addressable_devices])

    def arrive(self) -> list[str]:
        """Put everything back in its place, on the new backends; return notes on what was lost."""
        if not self._trees:
            return self._notes()
        from IPython.core.interactiveshell import InteractiveShell

        space = InteractiveShell.instance().user_ns if InteractiveShell.initialized() else {}
        devices = _devices({place.platform for place in self._devices})
        for place, old in self._devices.items():
            own = place._replace(process=jax.process_index()) if self._alone else place
            if own in devices:
                self._keep(old, devices[own])
        for name, value in self._trees:
            try:
                changed = _mapped(value, functools.partial(self._put, name))
            except Exception:  # noqa: BLE001 — a class of the user's that raises must not keep the others from it
                self._gone.add(name)
                continue
            if changed is not value and space.get(name) is value:
                space[name] = changed
        return self._notes()

    def lost(self) -> list[str]:
        """Notes on the arrays when no backend takes them: all of them are gone."""
        self._gone |= {name for name, _ in self._trees}
        return self._notes()

    def _notes(self) -> list[str]:
        notes = []
        if gone := ", ".join(sorted(self._gone)):
            why = "lost with the failed computation, or out of reach"
            notes.append(f"{gone}: JAX arrays from before the release are gone ({why}): make them again.")
        if left := ", ".join(sorted(self._left)):
            notes.append(f"{left}: each holds arrays or devices of the JAX that has ended; make it again.")
        return notes

    def _keep(self, old: Any, new: Any) -> None:
        self._new[id(old)] = old, new
        self._new[id(new)] = new, new  # it may be met again, in a list that two names have

    def _put(self, name: str, value: Any) -> Any:
        if id(value) in self._held and self._held[id(value)].failed:
            self._gone.add(name)
        elif id(value) not in self._new and isinstance(value, _OF_A_BACKEND):
            try:
                self._keep(value, self._made(name, value))
            except Exception:  # noqa: BLE001 — one failing array must not keep the others from being carried
                self._gone.add(name)
        return self._new.get(id(value), (value, value))[1]

    def _made(self, name: str, value: Any) -> Any:
        if isinstance(value, Mesh):
            places = np.vectorize(lambda one: self._new[id(one)][1], otypes=[object])(value.devices)
            return Mesh(places, value.axis_names, axis_types=value.axis_types)
        if isinstance(value, NamedSharding):
            return NamedSharding(self._put(name, value.mesh), value.spec, memory_kind=value.memory_kind)
        if isinstance(value, SingleDeviceSharding):
            return SingleDeviceSharding(self._new[id(next(iter(value.device_set)))][1])
        if id(value) not in self._held:
            return value
        held = self._held[id(value)]
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jax.device_put(held.whole), impl=jax.random.key_impl(value))
        if held.whole is not None:
            return jax.device_put(held.whole)
        parts = [jax.device_put(part, self._new[id(device)][1]) for device, part in held.shards]
        if isinstance(value.sharding, SingleDeviceSharding):
            return parts[0]
        return jax.make_array_from_single_device_arrays(value.shape, self._put(name, value.sharding), parts)


def _devices(platforms: Iterable[str]) -> dict[_Place, Any]:
    found: dict[_Place, Any] = {}
    for platform in platforms:
        counts: dict[int, int] = {}
        for device in sorted(jax.devices(platform), key=lambda one: one.id):
            local = counts.get(device.process_index, 0)
            counts[device.process_index] = local + 1
            found[_Place(platform, device.process_index, local)] = device
    return found


def _copy(array: Any) -> _Held:
    try:
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            return _Held(array, [], np.asarray(jax.random.key_data(array)))
        known = isinstance(array.sharding, (NamedSharding, SingleDeviceSharding))
        if array.is_fully_addressable and not (known and array.committed):
            return _Held(array, [], np.asarray(array))
        shards = [(shard.device, np.asarray(shard.data)) for shard in array.addressable_shards]
        return _Held(array, shards, failed=not known)
    except Exception:  # noqa: BLE001 — its computation failed, or it was donated
        return _Held(array, [], failed=True)


def _is_replica(array: Any) -> bool:
    """Whether every process has all values of ``array``, and it can be made again from them."""
    try:
        spread = isinstance(array.sharding, NamedSharding) and not array.is_fully_addressable
        return spread and array.is_fully_replicated and not jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
    except Exception:  # noqa: BLE001 — jax.jit has left it, so it has no values and no place
        return False


def _leaves(value: Any) -> list[Any]:
    """The leaves of a tree that belong to a backend; none where JAX cannot flatten the value."""
    try:
        return [leaf for leaf in jax.tree_util.tree_leaves(value) if isinstance(leaf, _OF_A_BACKEND)]
    except Exception:  # noqa: BLE001 — it holds itself, or keys that have no order, or its class raises
        return []


def _inside(value: Any) -> list[Any]:
    """Return what a variable that is no tree has: its attributes, or what its function has closed over."""
    try:
        if isinstance(value, dict):
            return list(value.values())  # it is no tree because its keys have no order
        if closed := _closed_over(value, _LEVELS):
            return closed
        return [] if isinstance(value, (ModuleType, type)) else list(vars(value).values())
    except Exception:  # noqa: BLE001 — it has no attributes, or its class raises
        return []


def _closed_over(function: Any, levels: int) -> list[Any]:
    if not levels or not (isinstance(function, FunctionType) or type(function).__module__.startswith("jaxlib")):
        return []
    found = [getattr(function, "__wrapped__", None)]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # it is still empty
            found.append(cell.cell_contents)
    return [*found, *(item for one in found for item in _closed_over(one, levels - 1))]


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The tree ``value`` with its leaves changed. Its lists and dictionaries stay themselves, with their order."""
    if type(value) is dict:
        value |= {key: _mapped(item, change) for key, item in value.items()}
        return value
    if type(value) is list:
        value[:] = [_mapped(item, change) for item in value]
        return value
    if jax.tree_util.all_leaves([value]):
        return change(value)
    return jax.tree.map(lambda one: _mapped(one, change), value, is_leaf=lambda one: one is not value)


def _keras_computes_with_jax() -> bool:
    keras: Any = sys.modules.get("keras")
    try:
        return keras is not None and keras.backend.backend() == "jax"
    except AttributeError:  # another version, or one that is still being imported
        return False

"""JAX arrays on their way from a backend that ends to the next one, by way of the host.

Setting up JAX's processes again needs new backends, and an array belongs to the backend that made it; so do devices,
meshes and shardings. :func:`carry` copies the arrays that the user's names reach to the host, each rank its shards.
:meth:`Carried.arrive` puts them on the devices that take the old ones' places, and back where the user's names find
them. The search follows lists, dictionaries, tuples, attributes (of models, optimizers and their states) and closures.
Local variables of running functions stay as they are.

Under failure: an array that was still being computed at the release, or that was donated, is lost. Where all processes
have all of it, :mod:`.replicas` takes it from a rank that still has it; else a note names it.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from jupyter_dtrain.plugins.patches import Patch

MAX_OBJECTS = 500_000
"""Number of objects to look at; on a rank with more, the rest stay as they are."""
_CLOSED = {"IPython", "ipykernel", "ipyparallel", "jax", "jaxlib", "jupyter_dtrain", "matplotlib", "mpi4py", "numpy"}
_CLOSED |= {"pandas", "tensorflow", "torch", "traitlets", "zmq"}
"""Packages whose objects hold no arrays of the user, or keep them private."""


_JITTED = {"jax", "jaxlib"}
"""Packages whose objects, where they wrap a user's function, come from ``jax.jit``."""

KERAS_STATE = Patch(
    "keras.src.backend.common.global_state",
    calls=("GLOBAL_STATE_TRACKER",),
    why="Keras holds random states and its distribution as arrays and devices of a JAX backend that ends.",
    lost="Keras may have to be told its distribution and its seed again after jax.distributed.initialize()",
)


class _Place(NamedTuple):
    """A device, described so that it can be found again."""

    platform: str
    process: int
    local: int
    """Its number within its process, from 0."""


class _Held(NamedTuple):
    """The content of an array."""

    shards: list[tuple[Any, Any]]
    """This process's shards: device and values."""
    whole: Any
    """All values, where the whole array is needed; else None."""
    failed: bool = False


class Replica(NamedTuple):
    """An array of which every process has all values; all ranks give it the same id."""

    name: str
    """The user's name that reaches it first."""
    place: int
    """Its number among the arrays that the name reaches."""
    shape: tuple[int, ...]
    dtype: str


class Carried:
    """Arrays on the host; :func:`carry` makes it."""

    def __init__(self, names: Iterable[tuple[str, Any]] = ()) -> None:
        self._names = list(names)
        self._held: dict[int, tuple[Any, _Held]] = {}
        """By the array's id; the array is kept so that the id stays its own."""
        self._places: dict[int, tuple[Any, _Place]] = {}
        """By the device's id."""
        self._new: dict[int, Any] = {}
        self._gone: set[str] = set()
        self._replicas: dict[Replica, int] = {}
        """The ids of the arrays that all processes have."""
        self._counts: Counter[str] = Counter()
        self._alone = True

    def pack(self) -> None:
        """Copy the arrays to the host; waits for those that are being computed."""
        jax = _jax()
        self._alone = jax.process_count() == 1
        from jax.extend.backend import backends

        self._places = {id(device): (device, place) for place, device in _devices(jax, backends()).items()}
        for name, value in self._names:
            self._walk(name, value, self._hold)

    def _hold(self, name: str, value: Any) -> Any:
        jax = _jax()
        if isinstance(value, jax.Array) and id(value) not in self._held:
            self._held[id(value)] = value, _copy(jax, value)
        if isinstance(value, jax.Array) and _is_replica(jax, value):
            self._counts[name] += 1
            self._replicas[Replica(name, self._counts[name], value.shape, value.dtype.name)] = id(value)
        return value

    def lost_replicas(self) -> dict[Replica, int]:
        """The replicas whose values are lost, with their ids."""
        return {replica: one for replica, one in self._replicas.items() if self._held[one][1].failed}

    def kept_replicas(self) -> dict[Replica, Any]:
        """The replicas whose values are here, with the values."""
        held = {replica: self._held[one][1] for replica, one in self._replicas.items()}
        return {replica: one.shards[0][1] for replica, one in held.items() if not one.failed and one.shards}

    def fill(self, which: int, data: Any) -> None:
        """Take ``data``, uint8, as the values of the replica with this id."""
        array, _ = self._held[which]
        values = data.view(array.dtype).reshape(array.shape)
        self._held[which] = array, _Held([(device, values) for device in array.sharding.addressable_devices], None)

    def arrive(self) -> list[str]:
        """Put everything back in its place, on the new backends; return notes on what was lost."""
        if not self._names:
            return []
        from IPython.core.interactiveshell import InteractiveShell

        space = InteractiveShell.instance().user_ns if InteractiveShell.initialized() else {}
        jax = _jax()
        devices = _devices(jax, {place.platform for _, place in self._places.values()})
        for old, place in self._places.values():
            own = place._replace(process=jax.process_index()) if self._alone else place
            if own in devices:
                self._new[id(old)] = devices[own]
        for name, value in self._names:
            changed = self._walk(name, value, self._put)
            if changed is not value and space.get(name) is value:
                space[name] = changed
        return self._words()

    def lost(self) -> list[str]:
        """Notes on the arrays when no backend takes them: all of them are gone."""
        for name, value in self._names:
            self._walk(name, value, self._lose)
        return self._words()

    def _walk(self, name: str, value: Any, leaf: Callable[[str, Any], Any]) -> Any:
        """Walk through what ``name`` holds. An object that fails must not keep the others from being carried."""
        try:
            return _Walk(functools.partial(leaf, name)).into(value)
        except Exception:  # noqa: BLE001 — nested too deeply, or a class of the user's that raises
            self._gone.add(name)
            return value

    def _lose(self, name: str, value: Any) -> Any:
        if id(value) in self._held:
            self._gone.add(name)
        return value

    def _words(self) -> list[str]:
        if not self._gone:
            return []
        names = ", ".join(sorted(self._gone))
        why = "lost with the failed computation, or out of reach"
        return [f"{names}: JAX arrays from before the release are gone ({why}): make them again."]

    def _put(self, name: str, value: Any) -> Any:
        jax = _jax()
        if id(value) in self._held and self._held[id(value)][1].failed:
            self._gone.add(name)
        if id(value) in self._new:
            return self._new[id(value)]
        sharding = jax.sharding
        if not isinstance(value, (jax.Array, jax.Device, sharding.Sharding, sharding.Mesh)):
            return value
        try:
            made = self._made(jax, name, value)
        except Exception:  # noqa: BLE001 — one failing array must not keep the others from being carried
            self._gone.add(name)
            made = value
        self._new[id(value)] = made
        self._held.setdefault(id(value), (value, _Held([], None)))  # it must live as long as its id is in use
        return made

    def _made(self, jax: Any, name: str, value: Any) -> Any:
        sharding = jax.sharding
        if isinstance(value, sharding.Mesh):
            places = np.vectorize(lambda one: self._new[id(one)], otypes=[object])(value.devices)
            return sharding.Mesh(places, value.axis_names, axis_types=value.axis_types)
        if isinstance(value, sharding.NamedSharding):
            return sharding.NamedSharding(self._put(name, value.mesh), value.spec, memory_kind=value.memory_kind)
        if isinstance(value, sharding.SingleDeviceSharding):
            return sharding.SingleDeviceSharding(self._new[id(next(iter(value.device_set)))])
        if not isinstance(value, jax.Array) or id(value) not in self._held:
            return value
        held = self._held[id(value)][1]
        if held.failed:
            return value
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jax.device_put(held.whole), impl=jax.random.key_impl(value))
        if held.whole is not None:
            return jax.device_put(held.whole)
        parts = [jax.device_put(part, self._new[id(device)]) for device, part in held.shards]
        if isinstance(value.sharding, sharding.SingleDeviceSharding):
            return parts[0]
        return jax.make_array_from_single_device_arrays(value.shape, self._put(name, value.sharding), parts)


def carry(names: Iterable[tuple[str, Any]]) -> Carried:
    """Copy the arrays that ``names`` reach to the host."""
    carried = Carried([*names, *_library_state()])
    carried.pack()
    return carried


def _library_state() -> list[tuple[str, Any]]:
    """Keras's own random states and distribution, where it is imported."""
    module: Any = sys.modules.get("keras.src.backend.common.global_state")
    tracker = getattr(module, "GLOBAL_STATE_TRACKER", None)
    return [] if tracker is None else [("Keras' own state", vars(tracker))]


def _devices(jax: Any, platforms: Iterable[str]) -> dict[_Place, Any]:
    found: dict[_Place, Any] = {}
    for platform in platforms:
        counts: dict[int, int] = {}
        for device in sorted(jax.devices(platform), key=lambda one: one.id):
            local = counts.get(device.process_index, 0)
            counts[device.process_index] = local + 1
            found[_Place(platform, device.process_index, local)] = device
    return found


def _jax() -> Any:
    return sys.modules["jax"]


def _copy(jax: Any, array: Any) -> _Held:
    try:
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            return _Held([], np.asarray(jax.random.key_data(array)))
        known = isinstance(array.sharding, (jax.sharding.NamedSharding, jax.sharding.SingleDeviceSharding))
        if array.is_fully_addressable and not (known and array.committed):
            return _Held([], np.asarray(array))
        return _Held([(shard.device, np.asarray(shard.data)) for shard in array.addressable_shards], None, not known)
    except Exception:  # noqa: BLE001 — its computation failed, or it was donated
        return _Held([], None, failed=True)


def _is_replica(jax: Any, array: Any) -> bool:
    """Whether every process has all values of ``array``, and it can be made again from them."""
    if not isinstance(array.sharding, jax.sharding.NamedSharding) or array.is_fully_addressable:
        return False
    key = jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
    return array.sharding.is_fully_replicated and not key


class _Walk:
    """One walk through the content of a value; the result of ``leaf`` replaces each leaf."""

    def __init__(self, leaf: Callable[[Any], Any]) -> None:
        self._leaf = leaf
        self._seen: dict[int, tuple[Any, Any]] = {}
        """By id: the object, kept so that the id stays its own, and its replacement."""

    def into(self, value: Any) -> Any:
        """The replacement of ``value``: itself, except for leaves and for tuples that hold some."""
        if value is None or isinstance(value, (str, bytes, int, float, complex, np.ndarray, ModuleType, type)):
            return value
        if id(value) in self._seen:
            return self._seen[id(value)][1]
        if len(self._seen) > MAX_OBJECTS:
            return value
        self._seen[id(value)] = value, value
        changed = self._leaf(value)
        if changed is value:
            changed = self._inside(value)
        self._seen[id(value)] = value, changed
        return changed

    def _inside(self, value: Any) -> Any:
        if isinstance(value, tuple):
            items = [self.into(item) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return value._make(items) if hasattr(value, "_make") else type(value)(items)
        if isinstance(value, (list, dict)):
            self._items(value)
        elif isinstance(value, MethodType):
            self.into(value.__self__)
        elif isinstance(value, FunctionType):
            self._closure(value)
        elif type(value).__module__.partition(".")[0] in _JITTED:
            self.into(getattr(value, "__wrapped__", None))
        else:
            self._attributes(value)
        return value

    def _items(self, value: Any) -> None:
        base: Any = list if isinstance(value, list) else dict  # a library's subclass may do more than keep an item
        for key, item in list(enumerate(value) if base is list else value.items()):
            if (changed := self.into(item)) is not item:
                base.__setitem__(value, key, changed)

    def _closure(self, function: FunctionType) -> None:
        for cell in function.__closure__ or ():
            try:
                item = cell.cell_contents
            except ValueError:
                continue  # it is still empty
            if (changed := self.into(item)) is not item:
                cell.cell_contents = changed

    def _attributes(self, value: Any) -> None:
        kind = type(value)
        package = kind.__module__.partition(".")[0]
        if package in _CLOSED or (package in sys.stdlib_module_names and package != "__main__"):
            return
        slots = [name for one in kind.__mro__ for name in _slots(one)]
        for name in [*getattr(value, "__dict__", {}), *slots]:
            try:
                item = object.__getattribute__(value, name)
            except AttributeError:
                continue
            if (changed := self.into(item)) is not item:
                object.__setattr__(value, name, changed)


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)

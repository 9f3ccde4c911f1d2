"""The contents of a rank's variables, part by part: what each part is, a digest of its values, and their norm.

Frameworks know their own tensors, models and optimizers (``Values.parts``). This module knows what Python itself has:
numbers and texts, lists and dictionaries of parts, objects with a ``state_dict``, and arrays that offer their memory.

Under failure: a value that cannot be read has no digest, and nobody takes it for equal. No ``__repr__``, property or
``__reduce__`` of the user's runs here.
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jupyter_dtrain.core.contents import PASSING, Kind, PartSummary
from jupyter_dtrain.core.dotted_paths import is_plainly
from jupyter_dtrain.plugins.framework import Part

if TYPE_CHECKING:
    from .plugins import Plugins

DEPTH: Final = 8
"""How deep lists and dictionaries are looked through."""
MOST: Final = 20_000
"""Parts of one variable."""
WIDTH: Final = 60
"""Characters of a value that facts repeat."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class PlainPart(Part):
    """A part that is a number, a text or another plain value of Python's own."""

    def __init__(self, name: str, kind: Kind, value: Any) -> None:
        self.name, self.kind, self._value = name, kind, value

    def facts(self) -> PartSummary:
        """Describe the value by its type."""
        return PartSummary(self.name, self.kind, type(self._value).__name__)

    def digest(self) -> str:
        """Digest the text of the value."""
        value = self._value
        return hashlib.blake2b(value if type(value) is bytes else repr(value).encode(), digest_size=8).hexdigest()

    def norm(self) -> float | None:
        """The absolute value of a number; None for anything else."""
        value = self._value
        if type(value) in (int, float, complex):
            try:
                return float(abs(value))
            except OverflowError:
                return math.inf
        return None

    def words(self) -> str:
        """The value, shortened."""
        value = self._value
        text = repr(value[: 2 * WIDTH] if type(value) in (str, bytes) else value)
        return "" if self.kind == "random state" else text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


class ArrayPart(Part):
    """An array of numpy's, or one that a framework gives as such when it is asked for."""

    def __init__(self, facts: PartSummary, fetch: Callable[[], Any], lasting: Any = None) -> None:
        """``fetch`` returns the values as an array of numpy's; it may take long, and may raise.

        ``lasting``: an array of a library whose arrays never change and take slices without a wait.
        """
        self.name, self.kind, self._facts, self._fetch = facts.name, facts.kind, facts, fetch
        self._lasting = lasting

    def facts(self) -> PartSummary:
        """The shape of the array, and the type of its elements."""
        return self._facts

    def digest(self) -> str:
        """Digest the array's bytes in C order."""
        try:
            return hashlib.blake2b(self._bytes(), digest_size=8).hexdigest()
        except Exception:  # noqa: BLE001 — a framework may have let go of the values
            return ""

    def norm(self) -> float | None:
        """The 2-norm of the array, computed in double precision."""
        import numpy as np

        array = self._fetch()
        return float(np.linalg.norm(array.astype("float64").ravel())) if _is_number(array.dtype) else None

    def words(self) -> str:
        """The value of an array with a single element; else empty."""
        array = self._fetch() if math.prod(self._facts.shape or [0]) == 1 else None
        return (
            f"{float(array.astype('float64').ravel()[0]):.6g}" if array is not None and _is_number(array.dtype) else ""
        )

    def read(self, start: int, stop: int) -> bytes:
        """The array's bytes from ``start`` to ``stop``, in C order."""
        return bytes(self._bytes()[start:stop])

    def copy(self, places: Sequence[slice]) -> Callable[[], Any]:
        """Copy the values at ``places``; those of a lasting array are fetched later."""
        array = self._fetch() if self._lasting is None else self._lasting
        if len(places) != array.ndim:
            shared = self._lasting is not None or array.flags.forc
            array = (array.ravel() if self._lasting is not None else array.ravel(order="K")) if shared else array.flat
        chosen = array[places[0]] if len(places) == 1 else array[tuple(places)]
        if self._lasting is not None:
            return lambda: asarray(chosen)
        copied = chosen.copy()
        return lambda: copied

    def distance(self, start: int, data: bytes) -> tuple[float, float, int]:
        """Compare as :meth:`.Part.distance` says, in double precision."""
        import numpy as np

        dtype = self._fetch().dtype
        if not _is_number(dtype):
            return math.nan, math.nan, 0
        mine = np.frombuffer(self.read(start, start + len(data)), dtype=dtype).astype("float64")
        theirs = np.frombuffer(data, dtype=dtype).astype("float64")
        away = np.abs(mine - theirs)
        away[np.isnan(away)] = math.inf
        away[(mine == theirs) | (np.isnan(mine) & np.isnan(theirs))] = 0.0
        return float(away.max(initial=0.0)), float((away**2).sum()), int((away != 0).sum())

    def _bytes(self) -> memoryview:
        import numpy as np

        array = np.ascontiguousarray(self._fetch())
        # A type of elements that numpy does not know by itself, such as bfloat16, has no memoryview.
        return memoryview(array.reshape(-1).view("uint8")).cast("B")


def _is_number(dtype: Any) -> bool:
    # Types that others have added, such as bfloat16, are of kind V.
    return dtype.kind in "fiub" or (dtype.kind == "V" and "float" in str(dtype))


class OpaquePart(Part):
    """An object that nobody here can read."""

    def __init__(self, name: str, kind: Kind, value: Any) -> None:
        self.name, self.kind, self._type = name, kind, full_type_name(value)

    def facts(self) -> PartSummary:
        """Describe the object by its type."""
        return PartSummary(self.name, self.kind, self._type)

    def digest(self) -> str:
        """Return an empty text: nobody here can read the object."""
        return ""

    def norm(self) -> float | None:
        """Return None: nobody here can read the object."""
        return None


def parts_of(name: str, value: Any, namespace: Mapping[str, Any], plugins: Plugins) -> list[Part]:
    """The parts of a variable: one for a tensor or a plain value, one for each that it holds otherwise.

    ``namespace``: the user's names, in which a framework finds the optimizers of a model.
    """
    found: list[Part] = []
    for part in _look(name, value, namespace, plugins, 0, set()):
        found.append(part)
        if len(found) == MOST:
            break
    return found


def own_parts(parts: list[Part]) -> list[Part]:
    """The parts that make up a variable: without optimizers' states, which have other names, and what passes."""
    return [part for part in parts if part.kind not in {*PASSING, "optimizer state", "setting"}] or parts


def _look(
    name: str, value: Any, namespace: Mapping[str, Any], plugins: Plugins, depth: int, above: set[int]
) -> Iterator[Part]:
    parts = plugins.parts(name, value, namespace)
    if parts is not None:
        yield from parts
        return
    kind = type(value)
    if kind in _PLAIN:
        yield PlainPart(name, "value", value)
        return
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and not value.dtype.hasobject:
        shape, dtype, size = list(value.shape), str(value.dtype), int(value.nbytes)
        yield ArrayPart(
            PartSummary(name, "value", full_type_name(value), shape, dtype, "cpu", size=size), lambda: asarray(value)
        )
        return
    inner = _inside(value) if depth < DEPTH and id(value) not in above else None
    if inner is None:
        yield OpaquePart(name, "value", value)
        return
    if not inner:
        yield PlainPart(name, "value", f"empty {kind.__name__}")
    for key, one in inner.items():
        if type(key) in (int, str):
            path = f"{name}[{key!r}]" if type(key) is int or not key.isidentifier() else f"{name}.{key}"
            yield from _look(path, one, namespace, plugins, depth + 1, above | {id(value)})


def _inside(value: Any) -> Mapping[Any, Any] | None:
    """The values inside ``value``, by place or name; None where these are not known."""
    if is_plainly(value, dict):
        return dict(value)
    if is_plainly(value, list, tuple):
        return dict(enumerate(value))
    # To give its state, a loader may begin to iterate, which starts processes and draws random numbers.
    return _state(value) if has_state(value) and not hasattr(type(value), "__iter__") else None


def has_state(value: Any) -> bool:
    """Whether ``value`` gives and takes its state, as models, optimizers, schedulers and scalers do."""
    return (
        not is_plainly(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


def _state(value: Any) -> Mapping[Any, Any] | None:
    try:
        state = value.state_dict()
    except Exception:  # noqa: BLE001 — a user's class may raise anything
        return None
    return state if isinstance(state, Mapping) else None


def asarray(value: Any) -> Any:
    """Call numpy's function of that name; numpy is imported when it is first needed."""
    import numpy as np

    return np.asarray(value)


def random_parts() -> list[Part]:
    """The random states of Python itself, and of numpy where it was imported."""
    found: list[Part] = [PlainPart("Python's random state", "random state", _short(random.getstate()))]
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        state = numpy.random.get_state()
        words = (state[0], state[1].tobytes(), *state[2:])
        found.append(PlainPart("numpy's random state", "random state", _short(words)))
    return found


def _short(state: Any) -> str:
    return hashlib.blake2b(repr(state).encode(), digest_size=8).hexdigest()


def fingerprint(part: Part, *, norm: bool = False) -> PartSummary:
    """The facts of a part with its digest, and its norm where that is wanted."""
    facts = part.facts()
    return msgspec.structs.replace(facts, digest=part.digest(), norm=part.norm() if norm else None)


def full_type_name(value: Any) -> str:
    """The type of ``value`` with its module, where that is not Python's or the cells' own."""
    kind = type(value)
    module = kind.__module__
    return kind.__qualname__ if module in {"builtins", "__main__"} else f"{module}.{kind.__qualname__}"

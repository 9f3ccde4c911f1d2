"""What holds the memory of a rank: its tensors, arrays and long texts, with the names by which user code reaches them.

A walk begins at the user's variables and at the variables of the functions that run now. It goes through containers,
attributes and closures, level by level, so the shortest name of an object comes first. Memory that several objects
share, such as views, counts once, with all its names. Then the walk goes on from what only IPython and Python keep: old
outputs and the last error. What is found there for the first time is old: nobody but them is known to hold it.

A rank answers while a cell runs, too, on a thread of its own (:mod:`.questions`). No code of the user's runs here: no
property, no ``__getattr__``, no ``__iter__``. Beside a cell the walk rests after each :data:`STRIDE` objects, so that
the cell gets the interpreter. It keeps an object for the moment in which it looks at it, and nothing afterwards.

Under failure: an object that cannot be looked into holds nothing. After the time that the question allows, or
:data:`MOST` objects, the rank answers with what it has found, says so, and calls nothing old.
"""

from __future__ import annotations

import array
import builtins
import contextlib
import functools
import gc
import itertools
import mmap
import sys
import threading
import time
import types
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyter_dtrain.core.contents import Kind
from jupyter_dtrain.core.frames import frame_of
from jupyter_dtrain.core.memory import HOST, HeldMemory, RankMemory
from jupyter_dtrain.plugins.framework import Attributes, Holds, Inner, Owned, TensorMemory, locals_of, of_ipython
from jupyter_dtrain.plugins.libraries import is_library

from .contents import full_type_name
from .footprint import read_footprint
from .memory import last_outputs
from .tracebacks import causes, trace_of

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
    from types import FrameType

    from jupyter_dtrain.plugins.framework import Look

    from .inventory import RankInventory
    from .plugins import Plugins

MOST: Final = 200_000
"""Objects of one walk."""
INSIDE: Final = 20_000
"""Items of one container."""
STRIDE: Final = 200
"""Objects between two rests, which take less than a millisecond."""
REST: Final = 0.001
"""Seconds of a rest."""
LONG: Final = 1 << 16
"""Bytes from which on a text counts."""
SHORT: Final = LONG // 4
"""Characters up to which a text certainly does not."""
FEW: Final = 16
"""Items of a small container."""
NAMES: Final = 4
"""Names of one piece of memory in an answer."""
FRAMES: Final = 200
"""Calls of one stack, or of one traceback."""
LONGEST: Final = 60
"""Characters of a name that is shown beside a shorter one."""
WIDTH: Final = 40
"""Characters of a key in a name."""

_ATOMS: Final = frozenset(
    {int, float, complex, bool, type(None), type(...), type(NotImplemented), range, slice, types.CodeType}
    | {types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType, types.GetSetDescriptorType}
    | {types.MemberDescriptorType, types.FrameType, mmap.mmap, property}
)
"""Types whose objects hold none of the user's memory, or whose memory is a file's."""
_TEXTS: Final[dict[type, Callable[[Any], int]]] = {
    str: str.__sizeof__,
    bytes: bytes.__len__,
    bytearray: bytearray.__len__,
}
"""Types of texts and bytes, each with what tells their size."""
_OTHERS: Final = frozenset(
    {"jupyter_dtrain", "IPython", "ipykernel", "ipyparallel", "traitlets", "zmq", "asyncio", "logging", "psutil"}
)
"""Packages whose objects lead from the user's variables into the engine of the rank."""


class _Place(NamedTuple):
    """Where the walk has found an object: the words of its name, after those of the place before."""

    before: _Place | None
    words: str
    owner: Hashable = None
    """The memory whose name comes then; None for nothing."""
    after: str = ""
    otherwise: str = ""
    """Stands for a name of the owner's."""


_Waiting = deque[tuple[Any, "_Place | None", "str | Owned", "Kind"]]
"""Objects to look into, each with the place before, how its name goes on from there, and the role of tensors there."""


class _Over(Exception):
    """The time for a walk is over, or it has met enough objects."""


class _Piece:
    """One piece of memory, and the places that hold it."""

    __slots__ = ("_telling", "held", "kind", "more", "old", "places")

    def __init__(self, held: TensorMemory, kind: Kind, *, old: bool) -> None:
        self.held, self.kind, self.old = held, kind, old
        self.places: list[_Place] = []
        self.more = self._telling = 0

    def add(self, place: _Place, *, telling: bool) -> None:
        """One more place. Those that tell what the memory is come first."""
        if telling:
            self.places.insert(self._telling, place)
            self._telling += 1
        else:
            self.places.append(place)
        if len(self.places) > NAMES:
            self.places.pop()
            self._telling = min(self._telling, NAMES)
            self.more += 1


class Holdings:
    """Finds what holds the memory of one rank."""

    def __init__(
        self,
        namespace: Mapping[str, Any],
        hidden: Collection[str],
        plugins: Plugins,
        inventory: RankInventory,
        alone: Callable[[], bool],
    ) -> None:
        """``hidden``: names of the namespace that are not the user's; ``alone``: whether no thread of a cell runs."""
        self._namespace = namespace
        self._hidden = hidden
        self._plugins = plugins
        self._inventory = inventory
        self._alone = alone

    def read(self, most: int, seconds: float) -> RankMemory:
        """The memory of this rank, with its ``most`` biggest pieces. Any thread."""
        with self._walk(seconds, alone=self._alone()) as walk:
            pieces = sorted(walk.pieces.values(), key=lambda piece: -piece.held.size)
            named, kinds, old = Counter[str](), Counter[str](), Counter[str]()
            for piece in pieces:
                named[piece.held.device] += piece.held.size
                kinds[piece.kind] += piece.held.size
                old[piece.held.device] += piece.held.size if piece.old else 0
            return RankMemory(
                read_footprint(),
                self._plugins.devices(),
                [walk.described(piece) for piece in pieces[:most]],
                len(pieces),
                dict(named),
                dict(kinds),
                {device: size for device, size in old.items() if size},
                walk.unread,
                walk.cut,
            )

    def kinds(self, seconds: float) -> tuple[dict[Kind, int], dict[Kind, int], bool]:
        """How much of each kind has names, on the host and on devices; and whether time was short. Any thread.

        It looks as beside a cell: at no gradients, and nobody waits for it.
        """
        host, devices = Counter[Kind](), Counter[Kind]()
        with self._walk(seconds, alone=False) as walk:
            for piece in walk.pieces.values():
                (host if piece.held.device == HOST else devices)[piece.kind] += piece.held.size
            return dict(host), dict(devices), walk.cut

    @contextlib.contextmanager
    def _walk(self, seconds: float, *, alone: bool) -> Iterator[_Walk]:
        """A walk through all that the rank holds, which lets go of it at the end of the block."""
        walk = _Walk(self._namespace, self._plugins, self._inventory, time.monotonic() + seconds, alone=alone)
        try:
            walk.follow(self._variables(), old=False)
            walk.follow(self._running(), old=False)
            whole = not walk.cut
            walk.follow(self._outputs(), old=whole)
            yield walk
        finally:
            walk.pieces.clear()

    def _variables(self) -> Iterator[tuple[str, Any]]:
        """The user's names; ``_`` only where user code has bound it."""
        outputs = last_outputs(_shell())
        for name, value in list(self._namespace.items()):
            if name in outputs:
                own = value is not outputs[name] and not (type(value) is str and not value)
            else:
                own = name not in self._hidden and not of_ipython(name)
            if own:
                yield name, value

    def _running(self) -> Iterator[tuple[str, Any]]:
        """The variables of the functions that the cell is in."""
        frame = frame_of(threading.main_thread().ident)
        frames: list[FrameType] = []
        while frame is not None and len(frames) < FRAMES:
            frames.append(frame)
            if frame.f_globals is self._namespace and frame.f_code.co_name == "<module>":
                break
            frame = frame.f_back
        else:
            return  # no cell's code runs
        for one in frames[:-1]:
            yield from _variables_of(one, "", self._namespace)

    def _outputs(self) -> Iterator[tuple[str, Any]]:
        """What IPython and Python keep of earlier cells: their outputs, and the last error."""
        out = self._namespace.get("_oh")
        for number, value in list(dict.items(out)) if type(out) is dict else ():
            yield f"Out[{number}]", value
        last = last_outputs(_shell())
        yield from last.items()
        result = getattr(getattr(_shell(), "last_execution_result", None), "result", None)
        if all(result is not one for one in last.values()):
            yield "the last output", result
        for error in (getattr(sys, "last_value", None), getattr(sys, "last_exc", None)):
            for one in causes(error) if isinstance(error, BaseException) else ():
                yield from _variables_of_frames(trace_of(one), "the last error: ", self._namespace)


def _shell() -> Any:
    from IPython.core.getipython import get_ipython

    return get_ipython()


class _Walk:
    """One walk through the objects of a rank."""

    def __init__(
        self, namespace: Mapping[str, Any], plugins: Plugins, inventory: RankInventory, deadline: float, *, alone: bool
    ) -> None:
        self.pieces: dict[Hashable, _Piece] = {}
        self.unread = self.cut = self._old = False
        self._namespace = namespace
        self._plugins = plugins
        self._inventory = inventory
        self._deadline = deadline
        self._left = MOST
        self._alone = alone
        with self._still() as still:
            self._busy = not still
        self._looks: dict[type, Look | None] = {}
        shell = _shell()
        engine = (namespace, namespace.get("_oh"), namespace.get("_ih"), shell, getattr(shell, "user_ns_hidden", None))
        self._seen = {id(one) for one in engine}

    def _still(self) -> contextlib.AbstractContextManager[bool]:
        """Within it, whether nothing changes what is looked at."""
        return self._inventory.still() if self._alone else contextlib.nullcontext(False)

    def follow(self, roots: Iterable[tuple[str, Any]], *, old: bool) -> None:
        """Find what ``roots``, by name, hold. ``old``: whether that is old where nothing was found before."""
        self._old = old
        waiting: _Waiting = deque()
        try:
            for name, value in roots:
                self._meet(value, None, name, "value", waiting)
            while waiting:
                value, before, words, kind = waiting.popleft()
                look = self._look_for(type(value))
                if look is not None:
                    self._enter(self._look(look, value), self._place(before, words), kind, waiting)
                del value
        except _Over:
            self.cut = True

    def _pace(self) -> None:
        """Count an object; rest now and then, beside a cell. Raises :class:`_Over` when the walk must end."""
        self._left -= 1
        if self._left % STRIDE == 0:
            if time.monotonic() > self._deadline or self._left < 0:
                raise _Over
            if self._busy:
                time.sleep(REST)

    def _enter(self, found: Holds, place: _Place, kind: Kind, waiting: _Waiting) -> None:
        for inner in found.inside:
            self._meet(inner.value, place, inner.words, inner.kind or kind, waiting)

    def _meet(self, value: Any, before: _Place | None, words: str | Owned, kind: Kind, waiting: _Waiting) -> None:
        """An object in a place. A tensor is done with at once, so that it is not kept; others wait for their turn."""
        if _is_leaf(value) or (look := self._look_for(type(value))) is None:
            return
        self._pace()
        found = None if isinstance(look, _Objects) else self._look(look, value)
        if found is not None and found.own is not None:
            place = self._place(before, words)
            self._count(found.own, place, kind)
            if found.inside and id(value) not in self._seen:
                self._seen.add(id(value))
                self._enter(found, place, kind, waiting)
        elif id(value) not in self._seen and not _has_leaves_alone(value):
            self._seen.add(id(value))
            waiting.append((value, before, words, kind))

    def _count(self, own: TensorMemory, place: _Place, kind: Kind) -> None:
        if own.size == 0:
            return
        piece = self.pieces.get(own.key)
        if piece is None:
            piece = self.pieces[own.key] = _Piece(own, kind if kind != "value" else own.kind or kind, old=self._old)
        elif kind != "value":
            piece.kind = kind
        piece.add(place, telling=kind != "value")

    def _look(self, look: Look, value: Any) -> Holds:
        if isinstance(look, _Objects):
            with contextlib.suppress(Exception):
                return look(value, False)
            return Holds()
        with contextlib.suppress(Exception), self._still() as still:
            self._busy = not still
            self.unread = self.unread or self._busy
            return look(value, not self._busy)
        return Holds()

    def _look_for(self, kind: type) -> Look | None:
        try:
            return self._looks[kind]
        except KeyError:
            look = None
            with contextlib.suppress(Exception):
                look = self._choose(kind)
            self._looks[kind] = look
            return look

    def _choose(self, kind: type) -> Look | None:
        """What looks into objects of the type ``kind``; None where they hold nothing."""
        if kind in _ATOMS:
            return None
        for base, size_of in _TEXTS.items():
            if issubclass(kind, base):
                return functools.partial(_look_into_text, size_of)
        module = type.__getattribute__(kind, "__module__")
        if isinstance(module, str) and module.partition(".")[0] in _OTHERS:
            return None
        if (found := self._plugins.holder(kind)) is not None:
            return found
        numpy = sys.modules.get("numpy")
        if numpy is not None and issubclass(kind, numpy.ndarray):
            return functools.partial(_look_into_array, numpy, self._look_for)
        if issubclass(kind, array.array):
            return _look_into_plain_array
        return _Objects(kind, self._namespace)

    def _place(self, before: _Place | None, words: str | Owned) -> _Place:
        if not isinstance(words, Owned):
            return _Place(before, words)
        return _Place(before, words.before, self._key_of(words.tensor), words.after, words.otherwise)

    def _key_of(self, tensor: Any) -> Hashable:
        """The memory of a tensor, or of the one that it stands for; None where it has none."""
        if (look := self._look_for(type(tensor))) is None or isinstance(look, _Objects):
            return None
        found = self._look(look, tensor)
        if found.own is not None:
            return found.own.key
        return next((self._key_of(inner.value) for inner in found.inside if inner.words == ""), None)

    def described(self, piece: _Piece) -> HeldMemory:
        """The facts of a piece, with its names."""
        held, every = piece.held, list(dict.fromkeys(self._name(place) for place in piece.places))
        # Such as a way through the functions of a library.
        names = [name for name in every if len(name) <= LONGEST] or every[:1]
        more = piece.more + len(every) - len(names)
        shape = None if held.shape is None else list(held.shape)
        return HeldMemory(
            names, more, piece.kind, held.graph, held.type, shape, held.dtype, held.device, held.size, piece.old
        )

    def _name(self, place: _Place, depth: int = 0) -> str:
        """The name of a place. A tensor in it that stands for a key has a name, too, but none with such a key."""
        words: list[str] = []
        step: _Place | None = place
        while step is not None:
            owner = self.pieces.get(step.owner) if step.owner is not None else None
            named = self._name(owner.places[0], depth + 1) if owner is not None and not depth else step.otherwise
            words.append(f"{step.words}{named}{step.after}")
            step = step.before
        return "".join(reversed(words))


def _is_leaf(value: Any) -> bool:
    """Whether it is clear at once that an object holds nothing that counts."""
    kind = type(value)
    return kind in _ATOMS or (kind is str and len(value) < SHORT)


def _has_leaves_alone(value: Any) -> bool:
    """Whether an object is a small container of such objects, of which programs have many."""
    kind = type(value)
    if kind is dict:
        return len(value) <= FEW and all(map(_is_leaf, list(value.values())))
    return kind in (list, tuple, set) and len(value) <= FEW and all(map(_is_leaf, list(value)))


# What looks into objects, by their types.


def _look_into_text(
    size_of: Callable[[Any], int],
    value: Any,
    _still: bool,  # noqa: FBT001 — as the contract has it
    /,
) -> Holds:
    size = size_of(value)
    return Holds(TensorMemory(id(value), size, type(value).__name__, None, "", HOST)) if size >= LONG else Holds()


def _look_into_plain_array(value: Any, _still: bool, /) -> Holds:  # noqa: FBT001 — as above
    address, count = array.array.buffer_info(value)
    size = count * value.itemsize
    return (
        Holds(TensorMemory((HOST, address), size, "array", (count,), value.typecode, HOST)) if size >= LONG else Holds()
    )


def _look_into_array(
    numpy: Any,
    look_for: Callable[[type], Look | None],
    value: Any,
    still: bool,  # noqa: FBT001 — as above
    /,
) -> Holds:
    """An array of numpy's: the memory of the array, or of another object, of which it is a view."""
    of_array = numpy.ndarray
    whole = value
    while issubclass(type(base := of_array.base.__get__(whole)), of_array):
        whole = base
    if issubclass(type(base), memoryview):
        base = base.obj
    if issubclass(type(base), mmap.mmap):
        return Holds()  # the pages of a file
    shape, dtype = of_array.shape.__get__(value), of_array.dtype.__get__(value)
    own = None
    look = None if base is None else look_for(type(base))
    if look is not None and not isinstance(look, _Objects):
        own = look(base, still).own
    if own is None:
        address = of_array.__array_interface__.__get__(whole)["data"][0]
        own = TensorMemory((HOST, address), of_array.nbytes.__get__(whole), "", None, "", HOST)
    inside: list[Inner] = []
    if dtype.hasobject and type(value) is of_array and value.ndim == 1:
        inside = [Inner(f"[{place}]", one) for place, one in enumerate(value[:INSIDE].tolist())]
    return Holds(own._replace(type=full_type_name(value), shape=shape, dtype=str(dtype)), inside)


class _Objects:
    """Looks into the objects of one type of Python's, or of the user's: items, attributes, closures, variables."""

    def __init__(self, kind: type, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._items = self._find_items(kind)
        self._attributes = None if issubclass(kind, type) else Attributes(kind)

    def _find_items(self, kind: type) -> Callable[[Any], Iterable[tuple[str, Any]]] | None:
        if issubclass(kind, type):
            return _of_class
        for base, items in _ITEMS.items():
            if issubclass(kind, base):
                return items
        if issubclass(kind, BaseException):
            return lambda error: _of_error(error, self._namespace)
        if issubclass(kind, types.TracebackType):
            return lambda trace: _variables_of_frames(trace, ": ", self._namespace)
        return None

    def __call__(self, value: Any, _still: bool, /) -> Holds:  # noqa: FBT001 — as the contract has it
        return Holds(None, [Inner(words, one) for words, one in self._inside(value)])

    def _inside(self, value: Any) -> Iterator[tuple[str, Any]]:
        found = self._attributes.of(value)[:INSIDE] if self._attributes is not None else []
        if self._items is not None:
            yield from itertools.islice(self._items(value), INSIDE)
        elif not found:  # an object of native code, whose parts have no names
            for one in itertools.islice(gc.get_referents(value), INSIDE):
                if not issubclass(type(one), (type, types.ModuleType, types.FunctionType, types.FrameType)):
                    yield "…", one
        for name, one in found:
            if not _is_leaf(one):
                yield f".{name}", one


def _of_mapping(value: Any) -> Iterator[tuple[str, Any]]:
    for key, one in list(itertools.islice(dict.items(value), INSIDE)):
        if not _is_leaf(one):
            yield _key(key), one


def _key(key: Any) -> str:
    """How an item with ``key`` is written."""
    if type(key) is str:
        return f'["{key}"]' if len(key) <= WIDTH else f'["{key[: WIDTH - 1]}…"]'
    plain = type(key) in _ATOMS or (type(key) is tuple and all(type(one) in (int, str) for one in key))
    return f"[{repr(key)[:WIDTH]}]" if plain else "[…]"


def _of_list(value: Any) -> Iterator[tuple[str, Any]]:
    for place, one in enumerate(list.__getitem__(value, slice(INSIDE))):
        if not _is_leaf(one):
            yield f"[{place}]", one


def _of_tuple(value: Any) -> Iterator[tuple[str, Any]]:
    for place, one in enumerate(tuple.__getitem__(value, slice(INSIDE))):
        if not _is_leaf(one):
            yield f"[{place}]", one


def _of_deque(value: Any) -> Iterator[tuple[str, Any]]:
    for place, one in enumerate(list(itertools.islice(deque.__iter__(value), INSIDE))):
        yield f"[{place}]", one


def _of_view(value: Any) -> Iterator[tuple[str, Any]]:
    yield ".obj", value.obj


def _of_set(value: Any) -> Iterator[tuple[str, Any]]:
    kind: type[set[Any] | frozenset[Any]] = set if issubclass(type(value), set) else frozenset
    for one in list(itertools.islice(kind.__iter__(value), INSIDE)):
        yield "{…}", one


def _of_function(value: Any) -> Iterator[tuple[str, Any]]:
    """The variables that a function keeps, and its default values."""
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # an empty cell
            yield f"'s {name}", cell.cell_contents
    for one in (value.__defaults__ or ()) + tuple((value.__kwdefaults__ or {}).values()):
        yield "'s default", one


def _of_method(value: Any) -> Iterator[tuple[str, Any]]:
    yield ".__self__", value.__self__
    yield ".__func__", value.__func__


def _of_partial(value: Any) -> Iterator[tuple[str, Any]]:
    yield ".func", value.func
    yield ".args", value.args
    yield ".keywords", value.keywords


def _of_generator(value: Any) -> Iterator[tuple[str, Any]]:
    if not value.gi_running and value.gi_frame is not None:
        yield from ((f"'s {name}", one) for name, one in _locals(value.gi_frame))


def _of_class(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of a class that a cell has made."""
    if type.__getattribute__(value, "__module__") == "__main__":
        for name, one in list(type.__getattribute__(value, "__dict__").items()):
            yield f".{name}", one


def _of_module(value: Any) -> Iterator[tuple[str, Any]]:
    """The names of a module of the user's own."""
    names = types.ModuleType.__getattribute__(value, "__dict__")
    file = names.get("__file__")
    if type(file) is str and not is_library(file):
        for name, one in list(names.items()):
            if not name.startswith("__"):
                yield f".{name}", one


_ITEMS: Final[dict[type, Callable[[Any], Iterable[tuple[str, Any]]]]] = {
    dict: _of_mapping,
    types.MappingProxyType: lambda _: (),
    list: _of_list,
    tuple: _of_tuple,
    deque: _of_deque,
    set: _of_set,
    frozenset: _of_set,
    memoryview: _of_view,
    types.FunctionType: _of_function,
    types.MethodType: _of_method,
    functools.partial: _of_partial,
    types.GeneratorType: _of_generator,
    types.ModuleType: _of_module,
}


# The variables of calls.


def _locals(frame: FrameType) -> list[tuple[str, Any]]:
    """The variables of a frame; none while a debugger traces it, whose work on them this would disturb."""
    return [] if frame.f_trace is not None else list(locals_of(frame).items())


def _variables_of(frame: FrameType, before: str, namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if frame.f_code.co_name == "<module>" or frame.f_globals is builtins.__dict__:
        return
    function = getattr(frame.f_code, "co_qualname", frame.f_code.co_name).rpartition("<locals>.")[2]
    for name, value in _locals(frame):
        if value is not namespace:
            yield f"{before}{function}().{name}", value


def _variables_of_frames(
    trace: types.TracebackType | None, before: str, namespace: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    for _ in range(FRAMES):
        if trace is None:
            return
        yield from _variables_of(trace.tb_frame, before, namespace)
        trace = trace.tb_next


def _of_error(error: BaseException, namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from _variables_of_frames(trace_of(error), ".__traceback__: ", namespace)
    for name in ("args", "__cause__", "__context__"):
        yield f".{name}", vars(BaseException)[name].__get__(error)

"""Values on their way between the notebook and the ranks, as pickles.

Each value is pickled by itself, so an error names the one that cannot be pickled; nothing is sent unless all can be.

Between processes of one machine, what is large goes through memory that the notebook lends
(:mod:`~jupyter_dtrain.wire.lent_memory`): the large buffers of a value, such as those of arrays, without any copy
before, and pickles that are large themselves. All else travels in the buffers of the message.

Jupyter signs a message but not its buffers. So the signed part has the digest of each pickle, wherever that is, and a
pickle that does not match is never unpickled. Buffers beside a pickle have no digest: they are data, and in memory that
only this user's processes can open.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyter_dtrain.core.declarations import load, reducers
from jupyter_dtrain.core.errors import BadRequest, TransferFailed
from jupyter_dtrain.core.world import count_ranks

from .agent_messages import PackedValue
from .lent_memory import LentMemory

if TYPE_CHECKING:
    from .agent_messages import Fetched
    from .lent_memory import MemoryPlace


ARGUMENTS: Final = "_dtrain_arguments"
"""The variable in which a rank gets, for a moment, a function and its arguments."""
LARGE: Final = 1 << 20
"""Bytes from which on a buffer or a pickle is worth its own way; below, a message costs less."""


class Pickled(NamedTuple):
    """One value as a pickle, and the buffers that the pickle does not contain."""

    name: str
    data: Any
    """The pickle: bytes, or a buffer of them."""
    buffers: list[Any]

    def load(self) -> Any:
        """The value. It raises whatever its classes raise."""
        return pickle.loads(self.data, buffers=self.buffers)  # noqa: S301 — came signed, within this user's own world


class Parcel(NamedTuple):
    """Values that are ready to be sent."""

    values: list[PackedValue]
    """For the signed part of the message."""
    frames: list[bytes]
    """The buffers of the message."""
    memory: LentMemory | None = None
    """Holds what is large; to be closed once it was read, or will not be."""

    @property
    def place(self) -> MemoryPlace | None:
        """Where the memory is, for the signed part of the message."""
        return None if self.memory is None else self.memory.place

    def close(self) -> None:
        """Give the memory back; those who have opened it can still read it."""
        if self.memory is not None:
            self.memory.close()


def check_variable(name: str) -> None:
    """Raise :class:`BadRequest` unless ``name`` can name a variable."""
    if not isinstance(name, str) or not name.isidentifier():
        raise BadRequest(f"{name!r} is not the name of a variable.")


def pickle_values(values: Mapping[str, Any], *, whole: bool = False) -> list[Pickled]:
    """Pickle each value; ``whole``: with its large buffers.

    Raises :class:`TransferFailed`, which names the first value that cannot be pickled.
    """
    pickled = []
    for name, value in values.items():
        check_variable(name)
        try:
            pickled.append(pickle_value(name, value, whole=whole))
        except Exception as error:  # noqa: BLE001 — pickling may raise anything
            raise TransferFailed(
                f"{name!r} cannot be sent to the ranks: {type(value).__name__} objects cannot be pickled ({error}). "
                f"Make it there, in a %%distributed cell."
            ) from None
    return pickled


def pickle_value(name: str, value: Any, *, whole: bool = False) -> Pickled:
    """Pickle one value; ``whole``: with its large buffers, which are otherwise those of the value itself."""
    buffers: list[memoryview] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        """Whether the pickle contains ``buffer``."""
        if whole:
            return True
        try:
            view = buffer.raw()
        except BufferError:  # in several pieces
            return True
        if view.nbytes < LARGE:
            return True
        buffers.append(view)
        return False

    file = io.BytesIO()
    _pickler(tuple(filter(_find, reducers())))(file, protocol=5, buffer_callback=stays).dump(value)
    return Pickled(name, file.getvalue(), buffers)


@cache
def _pickler(kinds: tuple[str, ...]) -> type[Any]:
    """cloudpickle's, which reduces these types as frameworks have declared it."""
    import cloudpickle

    table = {_find(kind): load(reducers()[kind]) for kind in kinds}
    whole = ChainMap(table, cloudpickle.Pickler.dispatch_table)
    # Read when a pickler is made, from its class.
    return type("Pickler", (cloudpickle.Pickler,), {"dispatch_table": whole})


def _find(kind: str) -> Any:
    """The type of that name; None where nobody has imported its module, so that no value is of it."""
    module, _, name = kind.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


def needs_memory(pickled: Iterable[Pickled]) -> bool:
    """Whether something is large."""
    return any(one.buffers or len(one.data) >= LARGE for one in pickled)


def pack(pickled: Iterable[Pickled], memory: LentMemory | None = None) -> Parcel:
    """Make the values ready to be sent; without ``memory``, they must be pickled whole.

    Raises :class:`OSError` where the memory takes no more.
    """
    values, frames = [], []
    for name, data, buffers in pickled:
        lent = memory is not None and len(data) >= LARGE
        values.append(
            PackedValue(name, hashlib.sha256(data).hexdigest(), len(data) if lent else 0, [len(one) for one in buffers])
        )
        if not lent:
            frames.append(data)
        elif memory is not None:
            memory.write(memoryview(data))
        for buffer in buffers:
            assert memory is not None, "pickled whole"
            memory.write(buffer)
    return Parcel(values, frames, memory)


class Received:
    """Values that have come in a message. Read once, by iterating over them.

    The lent memory is opened at once, so the sender may give it back; a failure of that is raised when it is read.
    """

    def __init__(self, values: list[PackedValue], frames: Iterable[Any], place: MemoryPlace | None = None) -> None:
        """``values`` and ``place`` are of the signed part of the message, ``frames`` are its buffers."""
        self._values = values
        self._frames = iter(frames)
        self._memory: LentMemory | None = None
        self._error: OSError | None = None
        if place is not None and any(value.size or value.buffers for value in values):
            try:
                self._memory = LentMemory.borrow(place)
            except OSError as error:
                self._error = error

    @classmethod
    def answered(cls, fetched: Fetched, frames: Iterable[Any], memory: LentMemory | None) -> Received:
        """What a rank has answered; ``memory`` is that which it was asked to use."""
        received = cls(fetched.values, frames)
        received._memory = memory
        return received

    def __iter__(self) -> Iterator[Pickled]:
        """Read the values. Raises :class:`TransferFailed` for one that was changed, or whose memory cannot be read."""
        try:
            for value in self._values:
                yield self._read(value)
        finally:
            if self._memory is not None:
                self._memory.close()

    def _read(self, value: PackedValue) -> Pickled:
        try:
            data = self._take(value.size) if value.size else next(self._frames)
            if hashlib.sha256(data).hexdigest() != value.digest:
                raise TransferFailed(
                    f"{value.name!r} was changed on its way between notebook and ranks, so it was not read. "
                    f"Send it again."
                )
            return Pickled(value.name, data, [self._take(size) for size in value.buffers])
        except OSError as error:
            raise TransferFailed(
                f"{value.name!r} cannot be read from the memory in which it came: {error}. Send it again."
            ) from None

    def _take(self, size: int) -> Any:
        if self._memory is None:
            raise self._error or OSError("nothing was lent")
        return self._memory.read(size)


class Pulled:
    """Values that come from several ranks, one rank after the other."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._missing: dict[str, list[int]] = {name: [] for name in names}
        self._failed: dict[str, dict[int, str]] = {name: {} for name in names}
        self._found: dict[int, dict[str, Any]] = {}

    def add(self, rank: int, answer: Fetched, frames: Iterable[Any], memory: LentMemory | None) -> None:
        """Rebuild what ``rank`` has answered. Raises :class:`TransferFailed` for a value that cannot be rebuilt."""
        for name in answer.missing:
            self._missing[name].append(rank)
        for name, reason in answer.failed.items():
            self._failed[name][rank] = reason
        found = self._found[rank] = {}
        for one in Received.answered(answer, frames, memory):
            try:
                found[one.name] = one.load()
            except Exception as error:  # noqa: BLE001 — unpickling may raise anything
                raise TransferFailed(
                    f"{one.name!r} of rank {rank} cannot be rebuilt here: {type(error).__name__}: {error}."
                ) from None

    def collect(self, ranks: Iterable[int]) -> dict[str, dict[int, Any]]:
        """``{name: {rank: value}}``, in the order of ``ranks``.

        Raises :class:`TransferFailed` naming every rank where a name is missing or cannot be pickled.
        """
        problems = []
        for name in self._names:
            if missing := sorted(self._missing[name]):
                problems.append(f"{name!r} is not defined on {count_ranks(missing)}.")
            if failed := self._failed[name]:
                reason = failed[min(failed)]
                problems.append(f"{name!r} cannot be pickled on {count_ranks(sorted(failed))}: {reason}.")
        if problems:
            raise TransferFailed(" ".join(problems))
        return {name: {rank: self._found[rank][name] for rank in ranks} for name in self._names}

"""Values in a message, and in memory that one process lends to another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from jupyter_dtrain import TransferFailed
from jupyter_dtrain.wire.lent_memory import LentMemory
from jupyter_dtrain.wire.values import LARGE, Parcel, Received, needs_memory, pack, pickle_values

SIDE = 600
"""A square of so many numbers is large."""
LARGE_ARRAYS = {
    "plain": np.arange(SIDE * SIDE, dtype=float).reshape(SIDE, SIDE),
    "of Fortran": np.asfortranarray(np.arange(SIDE * SIDE, dtype=float).reshape(SIDE, SIDE)),
    "of records": np.zeros(LARGE, dtype=[("a", "i4"), ("b", "f8")]),
}
OTHER_ARRAYS = {
    "in pieces": np.arange(4 * SIDE * SIDE, dtype=float)[::2].reshape(SIDE, -1)[:, ::2],
    "without dimensions": np.array(3.5),
    "empty": np.empty((0, SIDE)),
    "of objects": np.array([[1], "two", None] * 3, dtype=object),
    "small": np.arange(9),
}
ARRAYS = LARGE_ARRAYS | OTHER_ARRAYS


def lent(**values: object) -> Parcel:
    """Values whose large parts are in memory."""
    return pack(pickle_values(values), LentMemory.lend())


def read(parcel: Parcel) -> dict[str, object]:
    """What a rank makes of them."""
    return {one.name: one.load() for one in Received(parcel.values, parcel.frames, parcel.place)}


def open_memory() -> list[str]:
    """The lent memory that this process has open."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(path.readlink()))
        except OSError:  # the folder's own
            continue
    return [name for name in found if name.startswith("/memfd:dtrain-")]


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("whole", [False, True], ids=["memory", "message"])
def test_arrays_arrive_as_they_are_and_can_be_written(array, whole):
    parcel = pack(pickle_values({"got": array}, whole=True)) if whole else lent(got=array)
    got = read(parcel)["got"]
    parcel.close()

    assert got.dtype == array.dtype
    assert got.flags.writeable
    assert got.flags.f_contiguous == array.flags.f_contiguous or not array.flags.forc
    np.testing.assert_array_equal(got, array)
    got[...] = array.flat[:1].reshape(()) if array.size else 0
    assert open_memory() == []


@pytest.mark.parametrize("array", LARGE_ARRAYS.values(), ids=LARGE_ARRAYS)
def test_large_arrays_are_not_in_the_message(array):
    parcel = lent(got=array)

    assert needs_memory(pickle_values({"got": array}))
    assert sum(map(len, parcel.frames)) < 1000
    assert [value.buffers for value in parcel.values] == [[array.nbytes]]
    parcel.close()


def test_a_read_only_array_stays_one():
    array = np.zeros(LARGE)
    array.flags.writeable = False

    assert not read(lent(got=array))["got"].flags.writeable


def test_several_values_with_several_buffers_keep_their_order():
    values = {
        "pair": [np.full(LARGE, 1.0), np.full(LARGE, 2.0)],
        "text": "x" * 2 * LARGE,
        "small": 3,
        "bytes": b"y" * LARGE,
        "last": {"a": np.full(LARGE, 4)},
    }
    parcel = lent(**values)
    got = read(parcel)

    assert sum(map(len, parcel.frames)) < 1000
    assert list(got) == list(values)
    assert [part[-1] for part in got["pair"]] == [1.0, 2.0]
    assert (got["text"], got["small"], got["bytes"]) == (values["text"], 3, values["bytes"])
    assert (got["last"]["a"] == 4).all()


def test_what_is_small_needs_no_memory():
    assert not needs_memory(pickle_values({"a": np.zeros(LARGE - 1000, dtype="u1"), "b": [1] * 100}))


def test_memory_that_was_given_back_can_be_read_by_whoever_has_opened_it():
    parcel = lent(got=np.ones(LARGE))
    early = Received(parcel.values, parcel.frames, parcel.place)
    parcel.close()
    late = Received(parcel.values, parcel.frames, parcel.place)

    assert next(iter(early)).load().sum() == LARGE
    with pytest.raises(TransferFailed, match=r"'got' cannot be read from the memory in which it came: .*Send it again"):
        list(late)


def test_memory_that_is_never_read_is_given_back():
    parcel = lent(got=np.ones(LARGE))
    received = Received(parcel.values, parcel.frames, parcel.place)
    assert len(open_memory()) == 2
    del parcel, received

    assert open_memory() == []


def test_a_file_that_has_taken_the_place_is_left_alone(tmp_path):
    """Neither read nor written, as when an answer comes too late."""
    memory = LentMemory.lend()
    with (tmp_path / "other").open("w+b") as other:
        os.dup2(other.fileno(), memory.place.descriptor)

        with pytest.raises(FileNotFoundError, match="Another file has taken its place"):
            LentMemory.borrow(memory.place)
    memory.close()


def test_memory_of_a_process_that_is_gone_cannot_be_opened():
    code = (
        "import msgspec, sys; from jupyter_dtrain.wire.lent_memory import LentMemory; memory = LentMemory.lend(); "
        "print(msgspec.json.encode(memory.place).decode(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        place = msgspec.json.decode(process.stdout.readline(), type=type(LentMemory.lend().place))
        LentMemory.borrow(place).close()
        process.stdin.close()
        process.wait()

    with pytest.raises(OSError, match="No such file"):
        LentMemory.borrow(place)


@pytest.mark.parametrize("value", [b"x" * LARGE, "small"], ids=["memory", "message"])
def test_a_pickle_that_was_changed_is_not_unpickled(value):
    parcel = lent(got=value)
    values = [msgspec.structs.replace(one, digest="0" * 64) for one in parcel.values]

    with pytest.raises(TransferFailed, match="'got' was changed on its way"):
        list(Received(values, parcel.frames, parcel.place))
    parcel.close()
    assert open_memory() == []


def test_memory_that_ends_too_early_is_an_error():
    parcel = lent(got=np.ones(LARGE))
    os.truncate(parcel.place.descriptor, LARGE)

    with pytest.raises(TransferFailed, match=r"'got' cannot be read from the memory in which it came: .*too early"):
        read(parcel)


def test_memory_is_made_without_python_s_own_function(monkeypatch):
    """Some builds of Python lack it."""
    monkeypatch.delattr(os, "memfd_create")

    assert read(lent(got=np.ones(LARGE)))["got"].sum() == LARGE

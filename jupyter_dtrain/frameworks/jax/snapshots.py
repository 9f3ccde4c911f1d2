"""JAX's arrays that are spread over ranks in snapshots, by Orbax.

A variable counts that is such an array, or a tree with one: a dictionary or a list of parameters, Optax's state, a
class that JAX knows as a tree. Its other arrays and numbers go with it. All variables of a snapshot are one checkpoint
of Orbax's, in which a name such as ``params.layer.w`` stands for each leaf. It loads into any world, with the shardings
of the arrays that are there. Arrays are immutable, so a load binds the name to a new tree.

Orbax's own ``Checkpointer`` waits for all processes, without a limit that fits a cell. Here each rank calls the handler
beneath it, which waits for none: each writes the shards of its own devices into a temporary folder of its own and takes
them from there into memory. The engine puts the files of all ranks into one folder.

Under failure: an obstacle on one rank raises there, and no other rank waits in here. :func:`misfit` compares names,
shapes and types before anything is loaded. A rank that is killed while it saves leaves its temporary folder, which its
next save removes.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.util
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import numpy as np

from jupyter_dtrain.core.structs import readable

NAMED: Final = 6
"""Differences that a message names."""
TREES: Final = "_trees/{}.json"
"""The file that describes a variable; in a folder of its own, since any name may be that of a leaf."""
INSTALL: Final = "pip install orbax-checkpoint"
_PYTHON: Final = ("bool", "int", "float", "complex")
"""Types without a width: a step counter may be a number before the first step, and an array after it."""
_SHARED: Final = ("_METADATA", "_sharding")
"""Files that Orbax writes on every rank, with the same content."""


class Leaf(msgspec.Struct, frozen=True):
    """One leaf of a saved tree; the same on all ranks."""

    shape: list[int]
    dtype: str
    rest: str = ""
    """The cut into shards, or a digest of what each rank has whole."""

    @property
    def kind(self) -> str:
        """Shape and type, in words."""
        return f"{self.dtype} {tuple(self.shape)}"

    def takes(self, other: Leaf) -> bool:
        """Whether the values of ``other`` can be its own."""
        if self.shape != other.shape:
            return False
        if self.dtype in _PYTHON or other.dtype in _PYTHON:
            return _plain(self.dtype) == _plain(other.dtype)
        return self.dtype == other.dtype


def _plain(dtype: str) -> str:
    """The kind of a type, whatever its width."""
    try:
        return np.dtype(dtype).kind
    except TypeError:
        return dtype


def is_installed() -> bool:
    """Whether Orbax can be imported here."""
    try:
        return importlib.util.find_spec("orbax.checkpoint") is not None
    except ImportError:
        return False


def is_spread(leaf: Any) -> bool:
    """Whether no rank has all of an array."""
    array = isinstance(leaf, sys.modules["jax"].Array)
    return array and not (leaf.is_fully_addressable or leaf.is_fully_replicated)


def save_values(values: Mapping[str, Any], size: int, folder: str) -> tuple[list[str], dict[str, Any]]:
    """Copy the shards of this rank's devices to memory; wait for no other rank.

    ``folder``: the beginning of a temporary folder's name, which this rank alone uses.
    """
    jax: Any = sys.modules["jax"]
    chosen = {name: value for name, value in values.items() if any(map(is_spread, _leaves(jax, value)))}
    if not chosen:
        return [], {}
    names = ", ".join(chosen)
    if not is_installed():
        raise ModuleNotFoundError(f"{names}: JAX arrays that are spread over ranks need Orbax: {INSTALL}")
    if jax.process_count() != size:
        raise ValueError(f"{names}: spread over {jax.process_count()} processes of JAX, but the world has {size} ranks")
    content: dict[str, Any] = {}
    files: dict[str, Any] = {}
    for name, value in chosen.items():
        leaves = _named(jax, name, value)
        content |= {_escaped(key): _saved(jax, leaf) for key, leaf in leaves.items()}
        described = {key: _described(jax, key, leaf) for key, leaf in leaves.items()}
        files[TREES.format(name)] = msgspec.json.encode(described)
    for left in Path(tempfile.gettempdir()).glob(f"{glob.escape(folder)}*"):
        shutil.rmtree(left, ignore_errors=True)
    place = Path(tempfile.mkdtemp(prefix=folder))
    try:
        with _handler(jax) as (handler, orbax, path):
            handler.save(path(place), args=orbax.args.PyTreeSave(content))
        for file in place.rglob("*"):
            if file.is_file() and (file.name not in _SHARED or not jax.process_index()):
                files[str(file.relative_to(place))] = file.read_bytes()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return list(chosen), files


def misfit(values: Mapping[str, Any], folder: Path) -> str:
    """Name the leaves that differ between the saved trees and those of ``values``."""
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return f"import JAX and make {', '.join(values)} first"
    if not is_installed():
        return f"{', '.join(values)} was saved with Orbax, which is not installed here: {INSTALL}"
    found: list[str] = []
    for name, value in values.items():
        saved = msgspec.json.decode((folder / TREES.format(name)).read_bytes(), type=readable(dict[str, Leaf]))
        leaves = _named(jax, name, value)
        homeless = [key for key, leaf in leaves.items() if not _has_place(jax, leaf)]
        if homeless:
            return f"{', '.join(homeless[:NAMED])} must be an array, or a jax.ShapeDtypeStruct with a sharding"
        here = {key: _shaped(key, leaf) for key, leaf in leaves.items()}
        found += [f"only in the snapshot: {key}" for key in saved if key not in here]
        found += [f"only here: {key}" for key in here if key not in saved]
        found += [
            f"{key} is {leaf.kind} here and {saved[key].kind} in the snapshot"
            for key, leaf in here.items()
            if key in saved and not leaf.takes(saved[key])
        ]
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return f"the arrays do not fit: {'; '.join(found[:NAMED])}{more}" if found else ""


def load_values(values: Mapping[str, Any], namespace: MutableMapping[str, Any], folder: Path) -> None:
    """Load the leaves with the shardings of those in ``values``, and bind the names; wait for no other rank."""
    jax: Any = sys.modules["jax"]
    wanted = {key: leaf for name, value in values.items() for key, leaf in _named(jax, name, value).items()}
    with _handler(jax) as (handler, orbax, path):
        how = {_escaped(key): _restored_as(jax, orbax, leaf) for key, leaf in wanted.items()}
        order = orbax.args.PyTreeRestore(dict.fromkeys(how, 0), restore_args=how, partial_restore=True)
        found = handler.restore(path(folder), args=order)
    made = {key: _placed(jax, leaf, found[_escaped(key)]) for key, leaf in wanted.items()}
    trees = {
        name: jax.tree.unflatten(jax.tree.structure(value), [made[key] for key in _named(jax, name, value)])
        for name, value in values.items()
    }
    namespace.update(trees)


def _escaped(key: str) -> str:
    """The name of a leaf as that of one folder."""
    return quote(key, safe="")


def _leaves(jax: Any, value: Any) -> list[Any]:
    try:
        leaves: list[Any] = jax.tree.leaves(value)
    except Exception:  # noqa: BLE001 — a class of the user's may raise anything
        return []
    return leaves


def _named(jax: Any, name: str, value: Any) -> dict[str, Any]:
    """The leaves of a tree, in its order, each by a name such as ``params.layer.w``."""
    found: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
        key = ".".join(filter(None, (name, jax.tree_util.keystr(path, simple=True, separator="."))))
        if key in found:
            raise ValueError(f"two leaves of {name} would both be named {key}")
        found[key] = leaf
    return found


def _is_key(jax: Any, leaf: Any) -> bool:
    return bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _saved(jax: Any, leaf: Any) -> Any:
    """The leaf as Orbax takes it: an array of all processes as it is, anything else as numpy's."""
    if not isinstance(leaf, jax.Array):
        return np.asarray(leaf)
    data = jax.random.key_data(leaf) if _is_key(jax, leaf) else leaf
    return np.asarray(data) if data.is_fully_addressable else data


def _shaped(key: str, leaf: Any) -> Leaf:
    """The shape and type of a leaf of the user's. Raises :class:`ValueError` for one that is no array or number."""
    if type(leaf).__name__ in _PYTHON:
        return Leaf([], type(leaf).__name__)
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype") or str(leaf.dtype) == "object":
        kind = type(leaf).__name__
        raise ValueError(
            f"{key} is a {kind}: beside arrays that are spread over ranks, only arrays and numbers are kept"
        )
    return Leaf(list(leaf.shape), str(leaf.dtype))


def _described(jax: Any, key: str, leaf: Any) -> Leaf:
    """The leaf as all ranks must describe it."""
    found = _shaped(key, leaf)
    data = _saved(jax, leaf)
    if isinstance(data, np.ndarray):
        rest = hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()
    else:
        rest = f"{data.sharding.shard_shape(data.shape)} {getattr(data.sharding, 'spec', '')}"
    return msgspec.structs.replace(found, rest=rest)


def _is_global(jax: Any, leaf: Any) -> bool:
    """Whether a leaf to load into belongs to devices of other ranks too."""
    sharding = getattr(leaf, "sharding", None)
    return isinstance(sharding, jax.sharding.Sharding) and not sharding.is_fully_addressable


def _has_place(jax: Any, leaf: Any) -> bool:
    """Whether a leaf to load into says where it belongs, as far as it must."""
    return not isinstance(leaf, jax.ShapeDtypeStruct) or (leaf.sharding is not None and not _is_key(jax, leaf))


def _restored_as(jax: Any, orbax: Any, leaf: Any) -> Any:
    if not _is_global(jax, leaf):
        return orbax.RestoreArgs(restore_type=np.ndarray)
    if _is_key(jax, leaf):
        leaf = jax.random.key_data(leaf)
    return orbax.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype)


def _placed(jax: Any, leaf: Any, found: Any) -> Any:
    """``found`` where and as ``leaf`` is."""
    if type(leaf).__name__ in _PYTHON:
        return type(leaf)(found.item())
    if isinstance(leaf, np.ndarray | np.generic):
        found = found.astype(leaf.dtype)
        return found if isinstance(leaf, np.ndarray) else found[()]
    if _is_key(jax, leaf):
        found = jax.random.wrap_key_data(jax.numpy.asarray(found), impl=jax.random.key_impl(leaf))
    if _is_global(jax, leaf):
        return found
    if isinstance(leaf, jax.Array) and not leaf.committed:
        return jax.numpy.asarray(found, leaf.dtype)  # it goes with any device, as before
    return jax.device_put(jax.numpy.asarray(found, leaf.dtype), leaf.sharding)


@contextlib.contextmanager
def _handler(jax: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Orbax's handler of trees for this process alone, Orbax, and what makes a path for it."""
    import orbax.checkpoint as orbax
    from etils import epath

    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)  # it warns about what is meant here
    handler = orbax.PyTreeCheckpointHandler(
        use_ocdbt=False,  # its files are the processes' own, to be merged by one of them while the others wait
        use_compression=False,  # a save is to hold up the training for a short time
        multiprocessing_options=orbax.options.MultiprocessingOptions(
            primary_host=None, active_processes={jax.process_index()}
        ),
    )
    try:
        yield handler, orbax, epath.Path
    finally:
        handler.close()
        log.setLevel(before)

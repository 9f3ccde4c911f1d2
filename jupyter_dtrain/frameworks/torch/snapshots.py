"""Models and optimizers of PyTorch in snapshots, by ``torch.distributed.checkpoint``.

It saves each tensor once, or each shard of a DTensor on the rank that has it, and loads them into any world: of another
size, or sharded otherwise. An optimizer is saved by the names of its parameters, which a model among the user's names
gives. Ranks without a process group of the whole world have states of their own: then the engine pickles those.

torch takes equal names for replicas and saves one rank's. So ranks compare digests first. A value that is not the same
on all ranks that have its name, or not the same piece, is saved by each rank under a name of its own, such as
``rank-1/model.0.weight``. Such values load into a world of the same size. In a world of another size, buffers come from
the lowest rank, as DDP takes them, and anything else is refused. :class:`Layout` lists these names.

Saving reads an optimizer and no more: torch would make a step with one that has made none.

torch's writer writes into memory here (:class:`MemoryFiles`). So ranks talk to each other, and copy their tensors,
before training goes on, and threads write the disk afterwards.

Under failure: what keeps one rank from saving raises there before any rank waits in torch, and :func:`misfit` compares
keys and shapes before anything is loaded.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import msgspec

from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.plugins.patches import Patch

from .contents import TensorPart, broadcast_buffers, local_part, plain
from .digests import digest
from .values import undisturbed

NAMED: Final = 6
"""Keys that a message names."""
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))
LAYOUT: Final = "layout.json"
OWN: Final = "rank-{}/{}"
"""The name under which a rank saves a value of its own."""

KEYS = Patch(
    "torch.distributed.checkpoint._nested_dict",
    calls=(
        "flatten_state_dict(state_dict)",
        "unflatten_state_dict(state_dict, mapping)",
        "set_element(root_dict, path, value)",
    ),
    why="Ranks compare and rename the values of a state by the keys under which torch saves them.",
    lost="models and optimizers are neither saved in snapshots nor loaded from them",
)
FILES = Patch(
    "torch.distributed.checkpoint.filesystem",
    reads=("fs",),
    why="torch's writer keeps all ranks waiting for the disk, and takes no other file system.",
    lost="models and optimizers are not saved in snapshots",
)


class Layout(msgspec.Struct, frozen=True):
    """Which values of a snapshot are not the same on all ranks that saved it."""

    size: int
    """Ranks that saved."""
    own: dict[str, list[int]] = {}
    """Values that each of these ranks saved as its own."""
    partial: dict[str, list[int]] = {}
    """Values that only these ranks have: the stages of a pipeline."""


class _Plan(NamedTuple):
    """The way of a snapshot's values into the variables of this rank."""

    states: dict[str, Any]
    """The states of the variables, by name; a load fills them."""
    leaves: dict[str, Any]
    """The values in them, by key."""
    paths: dict[str, tuple[Any, ...]]
    """Where each value is in ``states``."""
    sources: dict[str, str]
    """The name in the snapshot of each value to load."""
    problems: list[str]
    unmade: list[str]
    """Optimizers without some states to load into, which only torch can make."""
    notes: list[str]


class _Row(NamedTuple):
    """One value of a state as one rank has it."""

    form: str
    """Its type and whole shape, which are the same on all ranks that share the value."""
    pieces: dict[str, str]
    """The digests of the shards, by their place in the whole."""


class _Kept(io.BytesIO):
    """A file that stays readable: torch closes what it has written."""

    def close(self) -> None:
        """Do nothing, so that the content can still be read."""


class MemoryFiles:
    """The part of a file system that torch's writer uses, in memory."""

    def __init__(self) -> None:
        self.content: dict[str, io.BytesIO] = {}

    @contextmanager
    def create_stream(self, path: Any, _mode: str) -> Iterator[io.BytesIO]:
        """Write a file."""
        stream = self.content[Path(path).name] = _Kept()
        yield stream

    def concat_path(self, path: Any, suffix: str) -> Path:
        """Return the path below another one."""
        return Path(path) / suffix

    def rename(self, path: Any, new_path: Any) -> None:
        """Give a file another name."""
        self.content[Path(new_path).name] = self.content.pop(Path(path).name)

    def init_path(self, path: Any) -> Path:
        """Return a path in the form that this class takes."""
        return Path(path)

    def mkdir(self, path: Any) -> None:
        """Do nothing: there are no folders."""

    def exists(self, path: Any) -> bool:
        """Whether there is a file at ``path``."""
        return Path(path).name in self.content

    def rm_file(self, path: Any) -> None:
        """Remove a file."""
        self.content.pop(Path(path).name, None)


def saves(value: Any) -> bool:
    """Whether torch's checkpoints hold the value's state."""
    torch = sys.modules["torch"]
    return isinstance(value, torch.nn.Module | torch.optim.Optimizer)


@undisturbed()
def save_values(
    values: Mapping[str, Any], namespace: Mapping[str, Any], size: int
) -> tuple[list[str], dict[str, Any], list[str]]:
    """Copy the states of models and optimizers to memory; on all ranks together, also those without torch."""
    from mpi4py import MPI

    comm, torch = MPI.COMM_WORLD, sys.modules.get("torch")
    together = torch is not None and (size == 1 or _spans(torch, size))
    chosen = {name: value for name, value in values.items() if saves(value)} if together else {}
    states: dict[str, Any] = {}
    rows: dict[str, _Row] = {}
    problem: Exception | None = None
    try:
        states = _states(chosen, namespace) if chosen else {}
        rows = {key: _row(leaf) for key, leaf in _flat(states)[0].items()} if chosen else {}
    except Exception as error:  # noqa: BLE001 — raised below, once no rank waits for this one
        problem = error
    whole = hashlib.sha256(repr(sorted(rows.items())).encode()).digest()
    told = comm.allgather((list(chosen), problem is None, whole))
    if problem is not None:
        raise problem
    if not chosen or not all(well for _, well, _ in told) or len({tuple(names) for names, _, _ in told}) > 1:
        return list(chosen), {}, []  # the engine says what is wrong, on all ranks
    layout = Layout(size)
    if len({one for _, _, one in told}) > 1:
        layout = find_layout(comm.allgather(rows))
    return list(chosen), _files(states, layout, comm.Get_rank()), _own_notes(chosen, layout)


def find_layout(table: list[dict[str, _Row]]) -> Layout:
    """The values that are not the same on all ranks. ``table``: by rank."""
    by_key: dict[str, dict[int, _Row]] = {}
    for rank, rows in enumerate(table):
        for key, row in rows.items():
            by_key.setdefault(key, {})[rank] = row
    layout = Layout(len(table), {}, {})
    for key, ranks in by_key.items():
        pieces: dict[str, set[str]] = {}
        for row in ranks.values():
            for place, found in row.pieces.items():
                pieces.setdefault(place, set()).add(found)
        if len({row.form for row in ranks.values()}) > 1 or any(len(digests) > 1 for digests in pieces.values()):
            layout.own[key] = sorted(ranks)
        elif len(ranks) < len(table):
            layout.partial[key] = sorted(ranks)
    return layout


@undisturbed()
def misfit(values: Mapping[str, Any], namespace: Mapping[str, Any], folder: Path) -> str:
    """Name the keys that differ between the saved states and those of ``values``."""
    wrong = [name for name, value in values.items() if not saves(value)]
    if wrong:
        return f"{', '.join(wrong)} was a model or an optimizer, and is something else here"
    problems = _plan(values, namespace, folder).problems
    return f"the states do not fit: {'; '.join(problems)}" if problems else ""


@undisturbed()
def load_values(values: Mapping[str, Any], namespace: Mapping[str, Any], folder: Path) -> list[str]:
    """Load the states; on all ranks together where they have a group. Returns notes."""
    torch = sys.modules["torch"]
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint._nested_dict import set_element
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict

    plan = _plan(values, namespace, folder, fill=True)
    if plan.unmade:
        for name in plan.unmade:
            _make_states(values[name], _model_of(name, values[name], values, namespace))
        plan = _plan(values, namespace, folder, fill=True)
        if plan.unmade:
            raise ValueError(f"{', '.join(plan.unmade)} has no states to load into yet: make one step first")
        if plan.problems:
            raise ValueError("; ".join(plan.problems))
    # A value of a rank's own is the rank's piece of a sharded tensor.
    found = {
        source: plan.leaves[key] if source == key else local_part(plan.leaves[key])
        for key, source in plan.sources.items()
    }
    alone = not torch.distributed.is_initialized()
    with _quiet():
        dcp.load(found, storage_reader=dcp.FileSystemReader(folder), no_dist=alone)
    for key, source in plan.sources.items():
        if not isinstance(plan.leaves[key], torch.Tensor):
            set_element(plan.states, plan.paths[key], found[source])
    for name, value in values.items():
        state = plan.states[name]
        if isinstance(value, torch.nn.Module):
            if state:
                set_model_state_dict(value, state)
        else:
            model = _model_of(name, value, values, namespace)
            taken = value if _is_flat(model) else [_still(value)]
            options = StateDictOptions(strict=False)  # it may have no state for a parameter that has had no gradient
            set_optimizer_state_dict(model, taken, state, options=options)
    return plan.notes


def _states(values: Mapping[str, Any], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states of models and optimizers, by name, with their own tensors."""
    torch = sys.modules["torch"]
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict

    found = {}
    with _quiet():
        for name, value in values.items():
            if isinstance(value, torch.nn.Module):
                found[name] = get_model_state_dict(value, options=StateDictOptions(strict=False))
            else:
                found[name] = get_optimizer_state_dict(_model_of(name, value, values, namespace), [_still(value)])
    return found


def _still(optimizer: Any) -> Any:
    """An object with what torch reads of an optimizer, and no step: torch makes one where there is no state yet."""
    return SimpleNamespace(
        state=optimizer.state or {"": {}},
        param_groups=optimizer.param_groups,
        state_dict=optimizer.state_dict,
        load_state_dict=optimizer.load_state_dict,
    )


def _make_states(optimizer: Any, model: Any) -> None:
    """Have torch make the states of an optimizer: a step of no length. Its own way into them is FSDP's older form."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    with _quiet():
        get_optimizer_state_dict(model, optimizer)


def _is_flat(model: Any) -> bool:
    """Whether FSDP's older form has put parameters of the model together, so that none has its own shape."""
    return any(type(one).__name__ == "FullyShardedDataParallel" for one in model.modules())


def _stepped(model: Any, optimizer: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that an optimizer steps by the names in its ``state``; None for each that FSDP has made flat."""
    if _is_flat(model):
        return {name: None for group in state["param_groups"] for name in group["params"]}
    return {
        name: parameter
        for named, group in zip(state["param_groups"], optimizer.param_groups, strict=True)
        for name, parameter in zip(named["params"], group["params"], strict=True)
    }


def _row(leaf: Any) -> _Row:
    """Return what distinguishes a value of a state from the value on another rank."""
    torch = sys.modules["torch"]
    if hasattr(leaf, "local_shards"):
        shards = {str(one.metadata.shard_offsets): one.tensor for one in leaf.local_shards()}
        return _Row(f"{tuple(leaf.size())}", {place: _digested(one) for place, one in shards.items()})
    if not isinstance(leaf, torch.Tensor):
        return _Row(type(leaf).__name__, {"": _hashed(leaf)})
    facts = TensorPart("", "value", leaf).facts()
    return _Row(f"{facts.shape} {facts.dtype} {facts.placement}", {facts.piece: _digested(local_part(leaf))})


def _digested(tensor: Any) -> str:
    return digest(sys.modules["torch"], tensor) or _hashed(tensor)


def _hashed(value: Any) -> str:
    # A pickle also tells which equal parts are one object, and that may differ between ranks.
    return hashlib.sha256(repr(value).encode() if _is_plain(value) else pickle.dumps(value)).hexdigest()


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if type(value) in (list, tuple) else type(value) in _PLAIN


def _own_notes(values: Mapping[str, Any], layout: Layout) -> list[str]:
    """What the user must know of values that each rank has saved as its own."""
    torch = sys.modules["torch"]
    keys = set(layout.own)
    for name, value in values.items():
        if isinstance(value, torch.nn.Module):
            keys -= _buffers(name, value, keys)
    if not keys:
        return []
    are, they = ("is", "it loads") if len(keys) == 1 else ("are", "they load")
    own = f"{_few(keys)} {are} not the same on all ranks, so the snapshot has each rank's own"
    return [f"{own}: {they} with {layout.size} ranks only."]


def _buffers(name: str, model: Any, keys: Iterable[str]) -> set[str]:
    """Return those of ``keys`` that stand for buffers of the model ``name``."""
    named = {plain(buffer) for buffer, _ in model.named_buffers()}
    prefix = f"{name}."
    return {key for key in keys if key.startswith(prefix) and plain(key.removeprefix(prefix)) in named}


def _files(states: Mapping[str, Any], layout: Layout, rank: int) -> dict[str, Any]:
    """Write a checkpoint to memory, on all ranks together; return this rank's files."""
    torch = sys.modules["torch"]
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

    leaves, paths = _flat(states)
    for key in [key for key in leaves if key in layout.own]:
        own = OWN.format(rank, key)
        leaves[own], paths[own] = local_part(leaves.pop(key)), (own,)
    writer = dcp.FileSystemWriter("memory", sync_files=False)
    files = writer.fs = MemoryFiles()
    alone = not torch.distributed.is_initialized()
    with _quiet():
        dcp.save(unflatten_state_dict(leaves, paths), storage_writer=writer, no_dist=alone)
    found: dict[str, Any] = {name: stream.getbuffer() for name, stream in files.content.items()}
    return found if rank else {**found, LAYOUT: msgspec.json.encode(layout)}


def _plan(values: Mapping[str, Any], namespace: Mapping[str, Any], folder: Path, *, fill: bool = False) -> _Plan:
    """Find for each value of the variables where the snapshot has it; wait for no rank, and change nothing.

    ``fill``: make tensors for the states that an optimizer does not have yet.
    """
    torch = sys.modules["torch"]
    import torch.distributed.checkpoint as dcp
    from mpi4py import MPI

    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    saved = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    file = folder / LAYOUT
    layout = msgspec.json.decode(file.read_bytes(), type=readable(Layout)) if file.exists() else Layout(size)
    moved = layout.size != size
    there = _sources(layout, saved, None if moved else rank)
    states = _states(values, namespace)
    plan = _Plan(states, *_flat(states), {}, [], [], [])
    for name, value in values.items():
        theirs = {key: source for key, source in there.items() if key.startswith(f"{name}.")}
        apart = {key for key in theirs if key in layout.own} if moved else set[str]()
        if isinstance(value, torch.nn.Module):
            if buffers := _buffers(name, value, apart):
                apart -= buffers
                if not broadcast_buffers(value):
                    plan.notes.append(
                        f"{_few(buffers)} differed between the {layout.size} ranks that saved: all ranks have those of "
                        f"one now."
                    )
        elif not apart:
            parameters = _stepped(_model_of(name, value, values, namespace), value, states[name])
            _fit_states(plan, name, parameters, theirs, saved, fill=fill)
        if apart:
            plan.problems.append(
                f"{_few(apart)} differed between the {layout.size} ranks that saved, so each has its own: load the "
                f"snapshot with {layout.size} ranks, or make the ranks alike (%distributed broadcast) and save again"
            )
            continue
        mine = {key for key in plan.leaves if key.startswith(f"{name}.")}
        lost = theirs.keys() - mine - (layout.partial.keys() if moved else set())
        plan.problems.extend(_said(f"only in the snapshot: {_few(lost)}" if lost else ""))
        plan.problems.extend(_said(f"only here: {_few(mine - theirs.keys())}" if mine - theirs.keys() else ""))
        plan.sources.update({key: source for key, source in theirs.items() if key in mine})
        shapes = {key: _shapes(plan, key, saved) for key in sorted(mine & theirs.keys())}
        other = [
            f"{key} is {here} here and {saved_as} in the snapshot"
            for key, (here, saved_as) in shapes.items()
            if here != saved_as
        ]
        plan.problems.extend(other[:NAMED] + _said(f"{len(other) - NAMED} more shapes" if len(other) > NAMED else ""))
    return plan


def _sources(layout: Layout, saved: Mapping[str, Any], rank: int | None) -> dict[str, str]:
    """The name in the snapshot of each value for ``rank``; None stands for a world of another size."""
    found = {key: key for key in saved if "/" not in key.partition(".")[0]}
    if rank is None:
        return found | {key: OWN.format(ranks[0], key) for key, ranks in layout.own.items()}
    found = {key: source for key, source in found.items() if rank in layout.partial.get(key, (rank,))}
    return found | {key: OWN.format(rank, key) for key, ranks in layout.own.items() if rank in ranks}


def _fit_states(
    plan: _Plan,
    name: str,
    parameters: Mapping[str, Any],
    theirs: dict[str, str],
    saved: Mapping[str, Any],
    *,
    fill: bool,
) -> None:
    """Make the states of an optimizer, here, those that the snapshot has.

    It makes the state of a parameter at a step, so either side may have none. Keys for which there can be no place here
    leave ``theirs``.
    """
    from torch.distributed.checkpoint._nested_dict import set_element

    prefix = f"{name}.state."
    mine_by, theirs_by = (_by_parameter(prefix, parameters, keys) for keys in (plan.leaves, theirs))
    for one in mine_by.keys() - theirs_by.keys():
        plan.states[name]["state"].pop(one)
        for key in mine_by[one]:
            del plan.leaves[key]
    for one in theirs_by.keys() - mine_by.keys():
        for key in theirs_by[one]:
            made, leaf = _room(parameters[one], saved[theirs[key]], whole=theirs[key] == key, fill=fill)
            path = (name, "state", one, key.removeprefix(f"{prefix}{one}."))
            if made and "." not in path[-1]:
                plan.leaves[key], plan.paths[key] = leaf, path
                set_element(plan.states, path, leaf)
            elif name not in plan.unmade:
                plan.unmade.append(name)
            if key not in plan.leaves:
                del theirs[key]


def _by_parameter(prefix: str, parameters: Mapping[str, Any], keys: Iterable[str]) -> dict[str, list[str]]:
    """The keys of states, by the parameter that they belong to."""
    found: dict[str, list[str]] = {}
    for key in keys:
        if key.startswith(prefix):
            steps = key.removeprefix(prefix).split(".")
            names = (".".join(steps[:place]) for place in range(len(steps) - 1, 0, -1))
            if owner := next((one for one in names if one in parameters), None):
                found.setdefault(owner, []).append(key)
    return found


def _room(parameter: Any, saved: Any, *, whole: bool, fill: bool) -> tuple[bool, Any]:
    """Whether a state that was saved has its place beside a parameter without one, and the tensor for it."""
    torch = sys.modules["torch"]
    if not hasattr(saved, "size"):
        return True, None
    if parameter is None:
        return False, None
    dtype = saved.properties.dtype
    if not saved.size:
        return True, torch.empty((), dtype=dtype, device="cpu") if fill else None
    if tuple((parameter if whole else local_part(parameter)).shape) == tuple(saved.size):
        return True, torch.empty_like(parameter, dtype=dtype, requires_grad=False) if fill else None
    return False, None


def _shapes(plan: _Plan, key: str, saved: Mapping[str, Any]) -> tuple[Any, Any]:
    """The shapes of a value here and in the snapshot; twice the same where one of them has none."""
    leaf, source = plan.leaves[key], saved[plan.sources[key]]
    if not hasattr(leaf, "shape") or not hasattr(source, "size"):
        return None, None
    here = leaf if plan.sources[key] == key else local_part(leaf)
    return tuple(here.shape), tuple(source.size)


def _model_of(name: str, optimizer: Any, values: Mapping[str, Any], namespace: Mapping[str, Any]) -> Any:
    """The model whose parameters the optimizer steps: the largest among the user's names, saved ones first."""
    torch = sys.modules["torch"]
    for place in (values, namespace):
        fitting = []
        for label, model in list(place.items()):
            if isinstance(model, torch.nn.Module) and not label.startswith("_"):
                names = {id(parameter): plain(one) for one, parameter in model.named_parameters()}
                wanted = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
                if wanted and all(one in names for one in wanted):
                    fitting.append((len(names), model))
        if fitting:
            return max(fitting, key=lambda pair: pair[0])[1]
    raise ValueError(
        f"{name!r} steps parameters of no model among your top-level variables, so they have no names: keep the model "
        f"in a variable"
    )


def _flat(state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parts of a nested state by the keys that torch gives them, and the places of these keys in it."""
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    flat, paths = flatten_state_dict(state)
    return flat, paths


def _spans(torch: Any, size: int) -> bool:
    dist = torch.distributed
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() == size)


def _few(keys: set[str]) -> str:
    ordered = sorted(keys)
    return ", ".join(ordered[:NAMED]) + (f" and {len(ordered) - NAMED} more" if len(ordered) > NAMED else "")


def _said(words: str) -> list[str]:
    return [words] if words else []


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out torch's remarks about how a checkpoint is made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield

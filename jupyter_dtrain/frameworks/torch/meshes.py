"""Puts new process groups into device meshes and into what trains on them, once the default group was made again.

That is FSDP2, tensor and context parallel, and the stages of pipelines. They hold groups, or the names of groups, in
many places, also in compiled graphs. So each group is made again under its old name, with its ranks, backend and
timeout, and takes the old one's place in the same objects. What an interrupted step has left there is undone: a rank's
shards are its weights, and gradients are dropped, since ranks may have got different parts of them.

Before ranks make any group, each tells the others which ones it holds (:attr:`Holders.plan`). They make those that all
members hold alike, in one order. Where a group is not made, its objects stay as they are, and a note names them:

* Ranks differ: one has no such mesh, or another one.
* Ranks were replaced, or their number has changed: shards are gone, or the mesh has other ranks than the world.
* This PyTorch lacks what is needed.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from jupyter_dtrain.plugins.framework import user_names
from jupyter_dtrain.plugins.patches import Patch, require

MESHES = Patch(
    "torch.distributed.distributed_c10d",
    calls=(
        "_world",
        "_new_process_group_helper(group_size, group_rank, global_ranks_in_group, backend, store, group_name)",
    ),
    reads=("_device_types", "_get_backend", "_pg_registry", "_timeout", "group_count"),
    why="A DeviceMesh keeps its process groups for good, and they end with the default group.",
    lost="models with tensor or context parallel and pipelines must be made again after ranks were released",
)
SHARDED = Patch(
    "torch.distributed.fsdp._fully_shard._fully_shard",
    calls=("FSDPModule.reset_iter_state()", "FSDPModule._get_fsdp_state()"),
    reads=(
        "_all_gather_comm",
        "_all_gather_result",
        "_fsdp_param_groups",
        "_is_root",
        "_reduce_scatter_comm",
        "_state_ctx",
        "_unsharded_param",
        "unsharded_accumulated_grad",
    ),
    why="A model of FSDP2 keeps its process groups, and stays in the middle of a step that an error has ended.",
    lost="FSDP2's models must be made again after an error in the middle of a step",
    upstream="https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)
STAGES = Patch(
    "torch.distributed.pipelining.schedules",
    calls=("_PipelineStageBase.clear_runtime_states()", "_PipelineSchedule"),
    reads=(
        "_internal_losses",
        "_stage",
        "_stage_backward_initialized",
        "_stage_forward_initialized",
        "_stages",
        "_stages_backward_initialized",
        "_stages_forward_initialized",
    ),
    why="A pipeline keeps its process group, and the micro-batches of a step that an error has ended.",
    lost="pipelines must be made again after an error in the middle of a step",
)
REPLACED = "ranks were replaced or their number has changed, so parts of it are gone"
NO_GROUP = json.dumps([REPLACED, 0, [], []])
"""The plan of a rank that has no default group yet: it is new."""
_GONE = (
    "{}: made with a DeviceMesh or group of the old process group, and cannot go on ({}). Run the cells that make it "
    "again, on all ranks; then `%distributed load NAME` gives it the state of a snapshot."
)
_DROPPED = "{}: gradients are dropped, since ranks may have different ones. Repeat the failed step."
_INITIALIZED = (
    "_stage_forward_initialized",
    "_stage_backward_initialized",
    "_stages_forward_initialized",
    "_stages_backward_initialized",
)
"""Whether a schedule's stages have told each other the shapes of what they send."""
_HALF_DONE = (
    "_internal_losses",
    "backward_counter",
    "backward_state",
    "bwd_cache",
    "bwd_recv_ops",
    "dw_runner",
    "fwd_recv_ops",
    "unshard_ops",
    "unsharded_stages",
)
"""The containers that a schedule or stage empties by the end of a step."""


class _Group(NamedTuple):
    """How to make a group again; it travels as JSON."""

    name: str
    ranks: list[int]
    backend: str
    seconds: float
    description: str


class Holders:
    """The meshes, sharded models and pipelines of this rank, found before the default group is made again."""

    def __init__(self, dist: Any, groups: Iterable[Any], *, whole: bool) -> None:
        """``groups``: those that DDP modules hold, which take the new ones from the caller.

        ``whole``: whether the same ranks are there as before, with all that they have.
        """
        self._dist = dist
        self._world = dist.group.WORLD
        self._c10d = dist.distributed_c10d
        self._sharded = instances("torch.distributed.fsdp", "FSDPModule")
        self._stages = instances("torch.distributed.pipelining.stage", "_PipelineStageBase")
        self._meshes = [(one, _groups_of(one)) for one in instances("torch.distributed.device_mesh", "DeviceMesh")]
        self._old: dict[Any, _Group] = {}
        self._new: dict[Any, Any] = {}
        """The groups that were made again, by the old ones."""
        self._why = "" if whole else REPLACED
        if whole:
            try:
                self._check()
                self._old = self._groups(groups)
            except Exception as error:  # noqa: BLE001 — whatever another version of torch has otherwise
                self._why = f"this PyTorch differs: {error}".rstrip(".")
        count = self._c10d._world.group_count  # noqa: SLF001 — torch has no public way
        names = {group: one.name for group, one in self._old.items()}
        together = [[names[group] for group in groups if group in names] for _, groups in self._meshes]
        self.plan = json.dumps([self._why, count, list(self._old.values()), together])
        """What the other ranks must know before they :meth:`revive` their groups."""

    def in_mesh(self, group: Any) -> bool:
        """Whether a mesh has given ``group``, and so gives the one that replaces it."""
        return group in self._new and any(group in groups for _, groups in self._meshes)

    def _check(self) -> None:
        """Raise where this PyTorch lacks what is needed."""
        for patch in (MESHES, *([SHARDED] if self._sharded else ()), *([STAGES] if self._stages else ())):
            require(sys.modules[patch.places[0]], *patch.calls)

    def _groups(self, others: Iterable[Any]) -> dict[Any, _Group]:
        """The living groups that anything here holds, and those of ``others``, but for the default group."""
        living = self._c10d._world.pg_map  # noqa: SLF001 — torch has no public list of its groups
        held = {value for place in self._places() for value in place.values() if self._is_group(value)}
        held.update(others, *(groups for _, groups in self._meshes))
        return {one: self._group(one) for one in held if one in living and one is not self._world}

    def _group(self, group: Any) -> _Group:
        devices = group._device_types  # noqa: SLF001 — torch has no public way to a group's timeout
        timeout = group._get_backend(devices[0]).options._timeout  # noqa: SLF001
        backend = self._c10d._world.pg_map[group][0]  # noqa: SLF001 — the word with which the group was made
        ranks = self._dist.get_process_group_ranks(group)
        return _Group(group.group_name, ranks, str(backend), timeout.total_seconds(), group.group_desc)

    def _is_group(self, value: Any) -> bool:
        return issubclass(type(value), self._dist.ProcessGroup)

    def _places(self) -> Iterator[dict[str, Any]]:
        """Where groups are held: the attributes of objects, and the registries of meshes for compiled code."""
        yield from (getattr(mesh, "_pg_registry", {}) for mesh, _ in self._meshes)
        for module in self._sharded:
            for group in _param_groups(module):
                for one in (group, *group.fsdp_params):
                    yield from (vars(info) for info in (one.mesh_info, one.post_forward_mesh_info) if info is not None)
                yield vars(group._all_gather_comm)  # noqa: SLF001 — torch has no public way
                yield vars(group._reduce_scatter_comm)  # noqa: SLF001
        yield from map(vars, self._stages)

    def revive(self, plans: Sequence[str]) -> dict[Any, Any]:
        """Make the groups again in the new default group, and put them in place; return them by the old ones.

        ``plans``: those of all ranks, by rank. It waits for the other members of each group, as ``new_group`` does.
        """
        whys, counts, held, together = zip(*map(json.loads, plans), strict=True)
        self._why = next(filter(None, whys), "")
        if self._why:
            return {}
        alike = _alike(
            [[_Group(*one) for one in groups] for groups in held], [one for each in together for one in each]
        )
        made = {group.name: self._make(group) for group in alike}
        # The next group gets a name that none has, and the same one on all ranks.
        world = self._c10d._world  # noqa: SLF001 — torch has no public way
        world.group_count = max(world.group_count, *counts)
        self._new = {old: made[group.name] for old, group in self._old.items() if group.name in made}
        self._new[self._world] = self._dist.group.WORLD
        for place in self._places():
            for name, value in list(place.items()):
                if self._is_group(value) and value in self._new:
                    place[name] = self._new[value]
        return self._new

    def _make(self, group: _Group) -> Any:
        """Make a group; on the ranks that are no members, too: NCCL may split the default group, which all must do."""
        default, world = self._dist.group.WORLD, self._c10d._world  # noqa: SLF001 — torch has no public way
        place = group.ranks.index(default.rank()) if default.rank() in group.ranks else None
        made, _ = self._c10d._new_process_group_helper(  # noqa: SLF001 — new_group() lets nobody name a group
            len(group.ranks),
            place,
            group.ranks,
            group.backend,
            world.pg_map[default][1],
            group.name,
            timeout=timedelta(seconds=group.seconds),
            device_id=default.bound_device_id,
            group_desc=group.description,
        )
        if place is not None:
            world.pg_group_ranks[made] = {rank: at for at, rank in enumerate(group.ranks)}
        return made

    def begin_anew(self) -> list[str]:
        """Undo what a step has left that has not ended; return notes: on what cannot go on, and on gradients."""
        notes = []
        dead = {id(mesh) for mesh, groups in self._meshes if not self._new.keys() >= groups}
        living = set(self._new.values())
        dead |= {id(one) for one in self._stages if one.group is not None and one.group not in living}
        if dead:
            names = [name for name, value in user_names() if _needs(value, dead)]
            why = self._why or "not all ranks have it"
            notes.append(_GONE.format(", ".join(names) or "a DeviceMesh", why))
        if self._new:
            for module in self._sharded:
                for group in _param_groups(module):
                    group._all_gather_result = None  # noqa: SLF001 — to wait for it raises: its group has gone
            settle(anew=True)
            dropped = _drop_gradients(one.submod for one in self._stages)
            if dropped:
                names = [name for name, value in user_names() if any(id(one) in dropped for one in _parameters(value))]
                notes.append(_DROPPED.format(", ".join(names) or "a model"))
        return notes


def settle(*, anew: bool = False) -> None:
    """Undo what a step has left in this rank that an error has ended in FSDP2's models and in pipelines.

    ``anew``: whether all ranks do so, in a new generation. Otherwise what is between forward and backward stays, and so
    does what stages know of each other: this rank's alone would not fit the others'.
    """
    modules = instances("torch.distributed.fsdp", "FSDPModule")
    if modules:
        require(sys.modules[SHARDED.places[0]], *SHARDED.calls)
    half_done = [one for one in modules if anew or _is_half_done(one)]
    for module in half_done:
        _shard(module)
    for module in half_done:
        is_root = module._get_fsdp_state()._is_root  # noqa: SLF001 — torch has no public way
        if is_root:
            module.reset_iter_state()
        elif is_root is None:  # it has never trained
            module.reshard()
    for stage in instances("torch.distributed.pipelining.stage", "_PipelineStageBase"):
        stage.clear_runtime_states()
        _empty(stage)
    for schedule in instances("torch.distributed.pipelining.schedules", "_PipelineSchedule"):
        _empty(schedule)
        vars(schedule).update(dict.fromkeys(vars(schedule).keys() & set(_INITIALIZED if anew else ()), False))


def _shard(module: Any) -> None:
    """Give the module its shards back as parameters, without the gradients of a step that has not ended."""
    in_backward = module._get_fsdp_state()._state_ctx.post_backward_final_callback_queued  # noqa: SLF001 — as above
    for group in _param_groups(module):
        for one in group.fsdp_params:
            # Also where an interrupt came between two parameters, and the group counts as sharded.
            if one.sharded_state.name != "SHARDED":
                one.to_sharded()
            one.unsharded_accumulated_grad = None
            if hasattr(one, "_unsharded_param"):
                one._unsharded_param.grad = None  # noqa: SLF001 — torch adds the next gradient to it
            if in_backward:
                one.sharded_param.grad = None  # other parameters may not have theirs


def _empty(holder: Any) -> None:
    for name in _HALF_DONE:
        if (container := vars(holder).get(name)) is not None:
            container.clear()


def _is_half_done(module: Any) -> bool:
    """Whether FSDP2 is in the middle of a forward or backward pass."""
    context = module._get_fsdp_state()._state_ctx  # noqa: SLF001 — torch has no public way
    return context.iter_forward_root is not None or context.post_backward_final_callback_queued


def _param_groups(module: Any) -> list[Any]:
    """The groups of parameters of one module that FSDP2 gathers together."""
    return module._get_fsdp_state()._fsdp_param_groups  # type: ignore[no-any-return]  # noqa: SLF001 — as above


def _drop_gradients(stages: Iterable[Any]) -> set[int]:
    """Drop the gradients of models with a sharded parameter and of ``stages``; return the ids of their parameters."""
    models = [one for one in map(_parameters, instances("torch.nn", "Module")) if any(map(_is_sharded, one))]
    dropped = [one for model in (*models, *map(_parameters, stages)) for one in model if one.grad is not None]
    for one in dropped:
        one.grad = None
    return {id(one) for one in dropped}


def _parameters(value: Any) -> list[Any]:
    """The parameters of a module; none for another value, and for what an interrupted constructor has left."""
    if issubclass(type(value), sys.modules["torch.nn"].Module):
        with contextlib.suppress(Exception):
            return list(value.parameters())
    return []


def _is_sharded(tensor: Any) -> bool:
    return hasattr(type(tensor), "to_local")


def _needs(value: Any, dead: set[int]) -> bool:
    """Whether ``value`` is one of ``dead``, by their ids, or was made with one."""
    parts = [value, *_parameters(value), getattr(value, "_stage", None)]
    parts += getattr(value, "_stages", None) or ()
    return any(id(one) in dead or (_is_sharded(one) and id(one.device_mesh) in dead) for one in parts)


def _groups_of(mesh: Any) -> set[Any]:
    """The groups of a mesh that this rank is in; None among them where one is gone."""
    if mesh.get_coordinate() is None:
        return set()
    try:
        return set(mesh.get_all_groups())
    except Exception:  # noqa: BLE001 — torch's, whatever it is
        return {None}


def _alike(held: Sequence[Sequence[_Group]], together: Sequence[Sequence[str]]) -> list[_Group]:
    """The groups that all their members hold alike, in the order of their names.

    ``held``: those of each rank. ``together``: the names of the groups of each mesh, which are made all or not at all.
    """
    found = {str(group): group for groups in held for group in groups}.values()
    names = Counter(group.name for group in found)
    unlike = {one.name for one in found if names[one.name] > 1 or not all(one in held[rank] for rank in one.ranks)}
    while more := {name for mesh in together if unlike.intersection(mesh) for name in mesh} - unlike:
        unlike |= more
    return sorted((one for one in found if one.name not in unlike), key=lambda one: (len(one.name), one.name))


def instances(module: str, name: str) -> list[Any]:
    """All living objects of a class whose module is imported. Slow: it looks at every object in the process."""
    kind = getattr(sys.modules.get(module), name, None)
    if kind is None:
        return []
    # By ``type``: asking a proxy for ``__class__`` may run foreign code.
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]

"""The collectives of the stand-in for ``horovod.torch``: one table, from which each call's variants are made.

torch's default process group at the time of the call does the work, so after a failure these calls use the group that
the world has made again. Ranks must make their calls in the same order; the names by which Horovod matches them have
no effect here. Names, arguments, results and gradients are those of Horovod 0.28.

Under failure: torch.distributed's own errors. No check reports beforehand that ranks bring tensors of different shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .buckets import Average, Bucket, Compression, chosen, in_buckets, wait_for
from .world import check, rank, size


class Handle(NamedTuple):
    """A collective that was begun."""

    call: str
    works: list[Any]
    finish: Callable[[], Any]
    """Returns its result, once the works are done. Called once."""


def poll(handle: Handle) -> bool:
    """Whether :func:`synchronize` would return at once."""
    return all(work.is_completed() for work in handle.works)


def synchronize(handle: Handle) -> Any:
    """Wait for a collective that has begun, and return its result."""
    for work in handle.works:
        wait_for(handle.call, work)
    return handle.finish()


def barrier(process_set: Any = None) -> None:
    """Wait until all ranks have come here."""
    check(process_set)
    wait_for("barrier", dist.barrier(async_op=True))


def _rows(count: int) -> list[int]:
    """Rows of each rank, out of ``count``: where they do not divide evenly, the first ranks have one more."""
    return [count // size() + (one < count % size()) for one in range(size())]


def _mine(counts: Sequence[int]) -> slice:
    return slice(sum(counts[: rank()]), sum(counts[: rank() + 1]))


def _exchange_counts(call: str, counts: torch.Tensor) -> torch.Tensor:
    """The number that each rank has for this one."""
    theirs = torch.empty_like(counts)
    wait_for(call, dist.all_to_all_single(theirs, counts, async_op=True))
    return theirs


# How each call begins, on a contiguous tensor of its own without gradients; and its gradient.


def _reduce(
    tensors: list[torch.Tensor], op: int, average: Any, prescale_factor: float, postscale_factor: float, call: str
) -> Handle:
    way = chosen(op, average)
    parts = [[tensors[place] for place in places] for places in in_buckets(tensors)]
    buckets = [Bucket(part) for part in parts]
    for bucket, part in zip(buckets, parts, strict=True):
        bucket.begin(part, way, Compression.none, prescale_factor)

    def finish() -> list[torch.Tensor]:
        for bucket, part in zip(buckets, parts, strict=True):
            bucket.end(part, way, Compression.none, postscale_factor, call)
        return tensors

    return Handle(call, [bucket.work for bucket in buckets], finish)


def _allreduce(tensor: Any, **how: Any) -> Handle:
    alone = isinstance(tensor, torch.Tensor)
    handle = _reduce([tensor] if alone else list(tensor), **how, call="allreduce" if alone else "grouped_allreduce")
    return handle._replace(finish=lambda: handle.finish()[0]) if alone else handle


def _reduced(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return variants["allreduce"](grad, **ctx.options)


def _reducescatter(tensor: torch.Tensor, **how: Any) -> Handle:
    handle = _reduce([tensor], **how, average=None, call="reducescatter")

    def finish() -> torch.Tensor:
        whole: torch.Tensor = handle.finish()[0]
        return whole[_mine(_rows(len(tensor)))].clone()

    return handle._replace(finish=finish)


def _scattered(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    whole = grad.new_zeros(ctx.shape)
    whole[_mine(_rows(ctx.shape[0]))] = grad
    return variants["allreduce"](whole, **ctx.options)


def _allgather(tensor: torch.Tensor) -> Handle:
    mine = tensor.reshape(1) if tensor.dim() == 0 else tensor
    counts = _exchange_counts("allgather", torch.full((size(),), len(mine), device=mine.device)).tolist()
    padded = torch.cat([mine, mine.new_zeros((max(counts) - len(mine), *mine.shape[1:]))])
    parts = [torch.empty_like(padded) for _ in counts]
    work = dist.all_gather(parts, padded, async_op=True)
    return Handle(
        "allgather",
        [work],
        lambda: torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)]),
    )


def _gathered(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    total = variants["allreduce"](grad, op=Average)  # Horovod's gradient is the mean over the ranks
    rows = torch.full((size(),), ctx.shape[0] if ctx.shape else 1, device=grad.device)
    return total[_mine(_exchange_counts("allgather", rows).tolist())].reshape(ctx.shape)


def _broadcast(tensor: torch.Tensor, root_rank: int) -> Handle:
    return Handle("broadcast", [dist.broadcast(tensor, root_rank, async_op=True)], lambda: tensor)


def _broadcasted(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    total = variants["allreduce"](grad, op=Average)
    return total if rank() == ctx.options["root_rank"] else torch.zeros_like(total)


def _alltoall(tensor: torch.Tensor, splits: Any) -> Handle:
    counts = [len(tensor) // size()] * size() if splits is None else [int(count) for count in splits]
    if sum(counts) != len(tensor) or len(counts) != size():
        raise ValueError(f"alltoall: {len(tensor)} rows cannot be split into {counts} for {size()} ranks")
    theirs = _exchange_counts("alltoall", torch.tensor(counts, device=tensor.device))
    output = tensor.new_empty((int(theirs.sum()), *tensor.shape[1:]))
    work = dist.all_to_all_single(output, tensor, theirs.tolist(), counts, async_op=True)
    received = theirs.to("cpu", torch.int32)
    return Handle("alltoall", [work], lambda: output if splits is None else (output, received))


def _swapped(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    found = variants["alltoall"](grad, splits=ctx.received)
    return found[0] if isinstance(found, tuple) else found


class _Call(NamedTuple):
    """One row of the table."""

    begin: Callable[..., Handle]
    gradient: Callable[[Any, torch.Tensor], torch.Tensor]
    arguments: dict[str, Any]
    """Beside the tensor, with defaults (... is none), as Horovod orders them; ``compression`` for waiting variants."""
    kinds: str
    """Variants beside NAME and NAME_async: ``_`` in place, ``g`` grouped."""


_SCALES = {"prescale_factor": 1.0, "postscale_factor": 1.0}
_ENDS = {"name": None, "process_set": None}
_TABLE = {
    "allreduce": _Call(
        _allreduce,
        _reduced,
        {"average": None, "name": None, "compression": None, "op": None, **_SCALES, "process_set": None},
        "_g",
    ),
    "reducescatter": _Call(
        _reducescatter,
        _scattered,
        {"name": None, "compression": None, "op": Average, "process_set": None, **_SCALES},
        "",
    ),
    "allgather": _Call(_allgather, _gathered, _ENDS, "g"),
    "broadcast": _Call(_broadcast, _broadcasted, {"root_rank": ..., **_ENDS}, "_"),
    "alltoall": _Call(_alltoall, _swapped, {"splits": None, **_ENDS}, ""),
}


def _copied(tensor: Any) -> Any:
    if isinstance(tensor, torch.Tensor):
        return tensor.detach().clone(memory_format=torch.contiguous_format)
    return [_copied(one) for one in tensor]


def _into(tensor: Any, result: Any) -> Any:
    pairs = [(tensor, result)] if isinstance(tensor, torch.Tensor) else zip(tensor, result, strict=True)
    for one, found in pairs:
        one.detach().copy_(found)
    return tensor


class _Differentiable(torch.autograd.Function):
    """A call whose result has a gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, call: _Call, options: dict[str, Any]) -> Any:
        ctx.call, ctx.options, ctx.shape, ctx.received = call, options, tensor.shape, None
        result = synchronize(call.begin(_copied(tensor), **options))
        if isinstance(result, tuple):
            ctx.received = result[1]
            ctx.mark_non_differentiable(result[1])
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.call.gradient(ctx, grads[0].contiguous()), None, None


def _variant(name: str, call: _Call, *, waits: bool, in_place: bool, grouped: bool) -> Callable[..., Any]:
    arguments = (
        call.arguments if waits and not in_place else {k: v for k, v in call.arguments.items() if k != "compression"}
    )
    parameters = [
        Parameter(key, Parameter.POSITIONAL_OR_KEYWORD, default=Parameter.empty if value is ... else value)
        for key, value in {"tensors" if grouped else "tensor": ..., **arguments}.items()
    ]
    signature = Signature(parameters)

    def variant(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        tensor, *_ = bound.args
        options = dict(list(bound.arguments.items())[1:])
        check(options.pop("process_set"))
        options.pop("name")
        compression = options.pop("compression", None) or Compression.none
        if waits and not in_place:
            found = [_whole(one, call, options, compression) for one in (tensor if grouped else [tensor])]
            return found if grouped else found[0]
        if grouped and call.begin is not _allreduce:
            handles = [call.begin(_copied(one), **options) for one in tensor]
            handle = Handle(
                name, [work for one in handles for work in one.works], lambda: [one.finish() for one in handles]
            )
        else:
            handle = call.begin(_copied(tensor), **options)
        if in_place:
            began = handle
            handle = began._replace(finish=lambda: _into(tensor, began.finish()))
        return synchronize(handle) if waits else handle

    variant.__name__ = variant.__qualname__ = name
    variant.__doc__ = f"As ``horovod.torch.{name}``."
    variant.__signature__ = signature  # type: ignore[attr-defined]
    return variant


def _whole(tensor: torch.Tensor, call: _Call, options: dict[str, Any], compression: Any) -> Any:
    sent, ctx = compression.compress(tensor)
    result = _Differentiable.apply(sent, call, options)
    return result if compression is Compression.none else compression.decompress(result, ctx)


variants: dict[str, Callable[..., Any]] = {}
"""All calls of the table, by name: each waits or not, is in place or not, is for one tensor or several."""
for _name, _call in _TABLE.items():
    for _grouped in (False, True) if "g" in _call.kinds else (False,):
        for _in_place in (False, True) if "_" in _call.kinds else (False,):
            for _waits in (False, True):
                _full = f"{'grouped_' * _grouped}{_name}{'_async' * (not _waits)}{'_' * _in_place}"
                variants[_full] = _variant(_full, _call, waits=_waits, in_place=_in_place, grouped=_grouped)

"""The stand-in's collectives: each begins as a :class:`Handle`, and ends in :func:`synchronize`.

torch's default process group at the time of the call does the work, so after a failure these calls use the group that
the world has made again. Ranks must make their calls in the same order; the names by which Horovod matches them have
no effect here. Results and gradients are those of Horovod 0.28 (``horovod/torch/mpi_ops.py``); the comments name the
functions there that say what one would not expect. But tensors need not be contiguous here.

Under failure: torch.distributed's own errors, and the tensors keep their values. No check reports beforehand that
ranks bring tensors of different shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import get_rank, get_world_size

from jupyter_dtrain.frameworks.rendezvous import awaits_ranks

from .install import NotInStandIn

Average, Sum, Adasum, Min, Max, Product = range(6)
"""Ways to reduce, by Horovod's numbers."""
_OPS = {Average: "SUM", Sum: "SUM", Min: "MIN", Max: "MAX", Product: "PRODUCT"}
Halves = Iterator[Any]
"""A collective in two halves. The first yields torch's work. Once that is done, the second yields the result, and the
function by which all ranks compute the gradient of the tensor from that of the result."""


class Compression:
    """The forms in which tensors travel. Users may bring a class of their own with these two functions."""

    none = SimpleNamespace(compress=lambda tensor: (tensor, None), decompress=lambda tensor, _: tensor)
    fp16 = SimpleNamespace(
        compress=lambda tensor: (tensor.half() if tensor.is_floating_point() else tensor, tensor.dtype),
        decompress=lambda tensor, kind: tensor.to(kind),
    )


class Handle:
    """A collective that has begun. A grouped call makes a list of these."""

    @torch.no_grad()
    def __init__(self, call: str, halves: Halves) -> None:
        self.call, self.work, self.rest, self.gradient = call, next(halves), halves, None


@awaits_ranks
def _wait(call: str, work: Any) -> None:
    work.wait()


@torch.no_grad()
def synchronize(handle: Handle | list[Handle]) -> Any:
    """Wait for a collective that has begun, and return its result: a tuple for a list, None at a second call."""
    if isinstance(handle, list):
        return tuple(synchronize(one) for one in handle)
    _wait(handle.call, handle.work)
    result, handle.gradient = next(handle.rest, (None, None))
    return result


def poll(handle: Handle | list[Handle]) -> bool:
    """Whether :func:`synchronize` would return at once."""
    return all(map(poll, handle)) if isinstance(handle, list) else bool(handle.work.is_completed())


def copy(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy that no gradient goes through."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def check_op(op: int) -> None:
    """Raise an error for an ``op`` that is no way to reduce here."""
    if op == Adasum:
        raise NotInStandIn("Adasum")
    if op not in _OPS:
        raise ValueError(f"op must be hvd.Average, Sum, Min, Max or Product, not {op!r}")


def _scale(tensor: torch.Tensor, factor: float) -> None:
    """Scale in place. Horovod truncates the results for integers."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.mul_(factor)
    elif factor != 1.0:
        tensor.copy_(tensor.double() * factor)


def reduce(
    tensors: list[Any],
    op: int = Average,
    compression: Any = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Halves:
    """Reduce ``tensors`` of one type, which travel as one; their results replace them. The result is the first."""
    check_op(op)
    packed, forms = zip(*map(compression.compress, tensors), strict=True)
    sent = torch.cat([one.reshape(-1) for one in packed])
    _scale(sent, prescale_factor)
    yield dist.all_reduce(sent, getattr(dist.ReduceOp, _OPS[op]), async_op=True)
    _scale(sent, postscale_factor / get_world_size() if op == Average else postscale_factor)
    parts = zip(sent.split([one.numel() for one in packed]), packed, forms, strict=True)
    torch._foreach_copy_(tensors, [compression.decompress(part.view_as(one), form) for part, one, form in parts])
    # HorovodAllreduce.backward reduces in the same way, whatever op is.
    again = (op, compression, prescale_factor, postscale_factor)
    yield tensors[0], lambda grad: synchronize(Handle("allreduce", reduce([grad], *again)))


def allreduce(tensor: Any, average: bool | None = None, op: int | None = None, **how: Any) -> Halves:
    """Reduce ``tensor``; the result replaces it."""
    if average is not None and op is not None:
        raise ValueError("average is the old name of op: pass only one of them.")
    otherwise = Average if average in {None, True} else Sum
    return reduce([tensor], otherwise if op is None else op, **how)


def reducescatter(tensor: Any, op: int = Average, **how: Any) -> Halves:
    """Reduce ``tensor``, of which each rank gets its rows; the first ranks get one more for the remainder."""
    if op not in {Average, Sum}:
        raise ValueError("reducescatter takes hvd.Average and hvd.Sum only, as in Horovod")
    size = get_world_size()
    mine = torch.arange(len(tensor), device=tensor.device).tensor_split(size)[get_rank()]
    whole = reduce([tensor], op, **how)
    yield next(whole)
    result, gradient = next(whole)
    # HorovodReducescatter.backward gathers the rows of all ranks; those of a sum it multiplies by the ranks.
    yield result[mine], lambda grad: gradient(torch.zeros_like(result).index_copy(0, mine, grad * size))


def allgather(tensor: torch.Tensor) -> Halves:
    """Gather the rows of all ranks, which may differ in number: each rank sends its own to each."""
    size = get_world_size()
    swap = alltoall(torch.cat([tensor] * size), [len(tensor)] * size)
    yield next(swap)
    (result, _), gradient = next(swap)
    # HorovodAllgather.backward takes the mean over the ranks.
    yield result, lambda grad: gradient(grad).view(size, *tensor.shape).mean(0)


def broadcast(tensor: torch.Tensor, root_rank: int) -> Halves:
    """Replace ``tensor`` by that of ``root_rank``."""
    sent = copy(tensor)
    yield dist.broadcast(sent, root_rank, async_op=True)
    # HorovodBroadcast.backward takes the mean over the ranks, times zero on all but root_rank.
    yield tensor.copy_(sent), lambda grad: synchronize(Handle("allreduce", reduce([grad]))) * (get_rank() == root_rank)


def alltoall(tensor: torch.Tensor, splits: Any = None) -> Halves:
    """Send each rank its rows, as many as ``splits`` says; the result is those for this rank, and how many of each.

    Without ``splits`` all ranks get as many. As in Horovod, rows beyond the sum of ``splits`` go nowhere.
    """
    size = get_world_size()
    counts = [len(tensor) // size] * size if splits is None else [int(count) for count in splits]
    rows = sum(counts)
    if len(counts) != size or rows > len(tensor) or (splits is None and rows < len(tensor)):
        raise ValueError(f"alltoall: {len(tensor)} rows cannot be split into {counts} for {size} ranks")
    theirs = torch.empty(size, dtype=torch.int64, device=tensor.device)
    dist.all_to_all_single(theirs, torch.tensor(counts, device=tensor.device))
    output = tensor.new_empty((int(theirs.sum()), *tensor.shape[1:]))
    yield dist.all_to_all_single(output, tensor[:rows], theirs.tolist(), counts, async_op=True)
    found = output, theirs.to(getattr(splits, "device", "cpu"), torch.int32)
    yield found, lambda grad: synchronize(Handle("alltoall", alltoall(grad, theirs)))[0]

"""The stand-in's collectives: each begins here, and ends in :func:`synchronize`.

torch's default process group at the time of the call does the work, so after a failure these calls use the group that
the world has made again. Ranks must make their calls in the same order; the names by which Horovod matches them have
no effect here. Results and gradients are those of Horovod 0.28.

Under failure: torch.distributed's own errors, and the tensors keep their values. No check reports beforehand that
ranks bring tensors of different shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from jupyter_dtrain.frameworks.rendezvous import awaits_ranks

from .world import NotInStandIn, rank, size

Average, Sum, Adasum, Min, Max, Product = range(6)
"""Ways to reduce, by Horovod's numbers."""
_OPS = {Average: "SUM", Sum: "SUM", Min: "MIN", Max: "MAX", Product: "PRODUCT"}


class Compression:
    """The forms in which tensors travel. Users may bring a class of their own with these two functions."""

    none = SimpleNamespace(compress=lambda tensor: (tensor, None), decompress=lambda tensor, _: tensor)
    fp16 = SimpleNamespace(
        compress=lambda tensor: (tensor.half() if tensor.is_floating_point() else tensor, tensor.dtype),
        decompress=lambda tensor, kind: tensor.to(kind),
    )


class Handle(NamedTuple):
    """A collective that was begun. A call on several tensors at once makes a list of these."""

    call: str
    work: Any
    """torch.distributed's."""
    finish: Callable[[], Any]
    """Returns the result, once the work is done. Called once."""
    gradient: Callable[[torch.Tensor], Any]
    """Computes the gradient of the given tensor from that of the result. All ranks call it."""


@awaits_ranks
def _wait(call: str, work: Any) -> None:
    work.wait()


@torch.no_grad()
def synchronize(handle: Handle | list[Handle]) -> Any:
    """Wait for a collective that has begun, and return its result."""
    if isinstance(handle, list):
        return [synchronize(one) for one in handle]
    _wait(handle.call, handle.work)
    return handle.finish()


def poll(handle: Handle | list[Handle]) -> bool:
    """Whether :func:`synchronize` would return at once."""
    return all(map(poll, handle)) if isinstance(handle, list) else bool(handle.work.is_completed())


def _scale(tensor: torch.Tensor, factor: float) -> None:
    """Scale in place. Horovod truncates the results for integers."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.mul_(factor)
    elif factor != 1.0:
        tensor.copy_(tensor.double() * factor)


@torch.no_grad()
def reduce(
    call: str,
    tensors: list[Any],
    op: int | None = None,
    compression: Any = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    buffer: torch.Tensor | None = None,
) -> Handle:
    """Begin to reduce ``tensors`` of one type, which travel as one; their results replace them. Returns the first."""
    op = Average if op is None else op
    if op == Adasum:
        raise NotInStandIn("Adasum")
    if op not in _OPS:
        raise ValueError(f"op must be hvd.Average, Sum, Min, Max or Product, not {op!r}")
    sent, form = compression.compress(torch.cat([one.reshape(-1) for one in tensors], out=buffer))
    _scale(sent, prescale_factor)

    def finish() -> Any:
        _scale(sent, postscale_factor / size() if op == Average else postscale_factor)
        parts = compression.decompress(sent, form).split([one.numel() for one in tensors])
        torch._foreach_copy_(tensors, [part.view_as(one) for part, one in zip(parts, tensors, strict=True)])
        return tensors[0]

    def gradient(grad: torch.Tensor) -> Any:
        return synchronize(reduce(call, [grad], op, compression, prescale_factor, postscale_factor))

    return Handle(call, dist.all_reduce(sent, getattr(dist.ReduceOp, _OPS[op]), async_op=True), finish, gradient)


def allreduce(tensor: Any, average: bool | None = None, op: int | None = None, **how: Any) -> Handle:
    """Begin to reduce ``tensor``; the result replaces it."""
    if average is not None:
        if op is not None:
            raise ValueError("average is the old name of op: pass only one of them.")
        op = Average if average else Sum
    return reduce("allreduce", [tensor], op, **how)


def reducescatter(tensor: Any, **how: Any) -> Handle:
    """Begin to reduce ``tensor``, of which each rank gets its rows; the first ranks get one more for the remainder."""
    whole = reduce("reducescatter", [tensor], **how)

    def rows_in(one: torch.Tensor) -> torch.Tensor:
        return one.tensor_split(size())[rank()]

    def gradient(grad: torch.Tensor) -> Any:
        spread = torch.zeros_like(tensor)
        rows_in(spread).copy_(grad * size())  # Horovod's gradient is not divided by the ranks
        return whole.gradient(spread)

    return whole._replace(finish=lambda: rows_in(whole.finish()).clone(), gradient=gradient)


def allgather(tensor: torch.Tensor) -> Handle:
    """Begin to gather the rows of all ranks, which may differ in number: each rank sends its own to each."""
    rows = tensor.reshape(1) if tensor.dim() == 0 else tensor
    swap = alltoall(torch.cat([rows] * size()), [len(rows)] * size())
    return swap._replace(
        finish=lambda: swap.finish()[0],
        # Horovod's gradient is the mean over the ranks.
        gradient=lambda grad: swap.gradient(grad).view(size(), *tensor.shape).mean(0),
    )


def broadcast(tensor: torch.Tensor, root_rank: int) -> Handle:
    """Begin to replace ``tensor`` by that of ``root_rank``."""
    sent = tensor.detach().clone(memory_format=torch.contiguous_format)

    def gradient(grad: torch.Tensor) -> Any:
        total = synchronize(allreduce(grad))  # Horovod's gradient is the mean over the ranks
        return total if rank() == root_rank else torch.zeros_like(total)

    return Handle("broadcast", dist.broadcast(sent, root_rank, async_op=True), lambda: tensor.copy_(sent), gradient)


def alltoall(tensor: torch.Tensor, splits: Any = None) -> Handle:
    """Begin to send each rank its rows; the result is those for this rank, with ``splits`` also how many of each."""
    counts = [len(tensor) // size()] * size() if splits is None else [int(count) for count in splits]
    if sum(counts) != len(tensor) or len(counts) != size():
        raise ValueError(f"alltoall: {len(tensor)} rows cannot be split into {counts} for {size()} ranks")
    theirs = torch.empty(size(), dtype=torch.int64, device=tensor.device)
    dist.all_to_all_single(theirs, torch.tensor(counts, device=tensor.device))
    output = tensor.new_empty((int(theirs.sum()), *tensor.shape[1:]))
    return Handle(
        "alltoall",
        dist.all_to_all_single(output, tensor, theirs.tolist(), counts, async_op=True),
        lambda: output if splits is None else (output, theirs.to("cpu", torch.int32)),
        lambda grad: synchronize(alltoall(grad, theirs))[0],
    )

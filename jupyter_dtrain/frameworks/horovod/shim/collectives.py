"""Of the stand-in for ``horovod.torch``: its collectives on tensors, each one or two of torch.distributed's.

All work is done by torch's default process group, whichever it is at the time of the call: a world makes that again
after a failure, and all of this goes on. Ranks make their calls in the same order; Horovod itself matches them by
name, which says nothing here.

Those that Horovod can be derived through (allreduce, allgather, broadcast, alltoall, reducescatter) can be here.

Under failure: what torch.distributed raises. A tensor of a shape that other ranks do not have is not noticed before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist

from jupyter_dtrain.frameworks.rendezvous import awaits_ranks

from .world import NotInStandIn, check, rank, size

Tensor: TypeAlias = torch.Tensor

Average, Sum, Adasum, Min, Max, Product = range(6)
"""What reductions are told apart by; numbers, as in Horovod."""
_OPS = {
    Average: dist.ReduceOp.SUM,
    Sum: dist.ReduceOp.SUM,
    Min: dist.ReduceOp.MIN,
    Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}


class NoCompression:
    """Tensors are sent as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """``tensor``, and nothing to remember."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:  # noqa: ARG004 — Horovod's signature
        """``tensor``."""
        return tensor


class HalfCompression:
    """Tensors of floating point are sent with 16 bits."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """What is sent, and the type that ``tensor`` has."""
        return (tensor.half() if tensor.dtype.is_floating_point else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """``tensor`` with the type that it had."""
        return tensor.to(ctx)


class Compression:
    """What gradients and other tensors are sent as."""

    none = NoCompression
    fp16 = HalfCompression


# ---- handles ------------------------------------------------------------------------------------------------------


class Handle(NamedTuple):
    """A collective that was begun."""

    call: str
    works: list[Any]
    finish: Callable[[], Any]
    """Gives its result, once the works are done. Called once."""


def poll(handle: Handle) -> bool:
    """Whether :func:`synchronize` would not have to wait."""
    return all(work.is_completed() for work in handle.works)


def synchronize(handle: Handle) -> Any:
    """Wait for a collective that was begun, and give its result."""
    for work in handle.works:
        wait_for(handle.call, work)
    return handle.finish()


@awaits_ranks
def wait_for(call: str, work: Any) -> None:
    """Wait for ``work`` of torch.distributed, which belongs to ``call``."""
    work.wait()


# ---- reductions ---------------------------------------------------------------------------------------------------


def chosen(op: int | None, average: bool | None) -> int:
    """The way to reduce, out of the arguments of a call. Average where none is given."""
    if op is not None and average is not None:
        raise ValueError("average is the old name of op: give one of them.")
    op = op if op is not None else Sum if average is False else Average
    if op == Adasum:
        raise NotInStandIn("Adasum")
    if op not in _OPS:
        raise ValueError(f"op must be hvd.Average, Sum, Min, Max or Product, not {op!r}")
    return op


def scale(tensor: Tensor, factor: float) -> None:
    """In place. Of whole numbers the fraction is cut off, as Horovod does it."""
    if factor == 1.0:
        return
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.mul_(factor)
    else:
        tensor.copy_(tensor.double().mul_(factor).trunc_())


def begin_reduction(call: str, tensors: Sequence[Tensor], op: int, before: float, after: float) -> Handle:
    """Begin to reduce each of ``tensors`` in place, times ``before`` before it, and ``after`` afterwards."""
    check()
    factor = after / size() if op == Average else after
    works = []
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ValueError(f"{call}: the tensor must be contiguous")
        with torch.no_grad():
            scale(tensor, before)
        works.append(dist.all_reduce(tensor.detach(), op=_OPS[op], async_op=True))

    def finish() -> list[Tensor]:
        with torch.no_grad():
            for tensor in tensors:
                scale(tensor, factor)
        return list(tensors)

    return Handle(call, works, finish)


def _only(handle: Handle) -> Handle:
    return handle._replace(finish=lambda: handle.finish()[0])


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Handle:
    """Begin to reduce ``tensor`` over all ranks, in place."""
    check(process_set)
    way = chosen(op, average)
    return _only(begin_reduction("allreduce", [tensor], way, prescale_factor, postscale_factor))


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Handle:
    """Begin to reduce ``tensor`` over all ranks; the result is another."""
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return allreduce_async_(copy, average, name, op, prescale_factor, postscale_factor, process_set)


def allreduce_(*args: Any, **kwargs: Any) -> Tensor:
    """:func:`allreduce_async_`, and wait for it."""
    return synchronize(allreduce_async_(*args, **kwargs))


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Tensor:
    """``tensor``, reduced over all ranks."""
    check(process_set)
    sent, ctx = compression.compress(tensor)
    reduced = _Allreduce.apply(sent, chosen(op, average), prescale_factor, postscale_factor)
    return compression.decompress(reduced, ctx)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, op: int, before: float, after: float) -> Tensor:
        ctx.how = (op, before, after)
        return synchronize(allreduce_async(tensor, None, None, op, before, after))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _Allreduce.apply(grads[0], *ctx.how), None, None, None


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Handle:
    """Begin to reduce each of ``tensors`` over all ranks, in place."""
    check(process_set)
    way = chosen(op, average)
    return begin_reduction("grouped_allreduce", list(tensors), way, prescale_factor, postscale_factor)


def grouped_allreduce_async(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Handle:
    """Begin to reduce each of ``tensors`` over all ranks; the results are others."""
    copies = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]
    return grouped_allreduce_async_(copies, *args, **kwargs)


def grouped_allreduce_(*args: Any, **kwargs: Any) -> list[Tensor]:
    """:func:`grouped_allreduce_async_`, and wait for it."""
    return list(synchronize(grouped_allreduce_async_(*args, **kwargs)))


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> list[Tensor]:
    """Each of ``tensors``, reduced over all ranks."""
    how = (average, name, compression, op, prescale_factor, postscale_factor, process_set)
    return [allreduce(tensor, *how) for tensor in tensors]


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begin to reduce ``tensor``, of which each rank gets some rows; the first ranks get one more where it must be."""
    check(process_set)
    handle = allreduce_async(tensor, None, None, op, prescale_factor, postscale_factor)
    rows = _rows(tensor.shape[0])
    begin = sum(rows[: rank()])

    def finish() -> Tensor:
        return handle.finish()[begin : begin + rows[rank()]].clone()

    return Handle("reducescatter", handle.works, finish)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """The rows of this rank of ``tensor``, reduced over all ranks."""
    reduced = allreduce(tensor, None, None, compression, op, prescale_factor, postscale_factor, process_set)
    rows = _rows(tensor.shape[0])
    return reduced.split(rows)[rank()]


def _rows(count: int) -> list[int]:
    return [count // size() + (one < count % size()) for one in range(size())]


# ---- gathering, spreading -----------------------------------------------------------------------------------------


def allgather_async(tensor: Tensor, name: str | None = None, process_set: Any = None) -> Handle:
    """Begin to join the tensors of all ranks by their rows, of which each rank may have another number."""
    check(process_set)
    mine = (tensor.reshape(1) if tensor.dim() == 0 else tensor).detach().contiguous()
    counts = _counts(mine)
    most = max(counts)
    if mine.shape[0] < most:
        mine = torch.cat([mine, mine.new_zeros((most - mine.shape[0], *mine.shape[1:]))])
    parts = [torch.empty_like(mine) for _ in counts]
    work = dist.all_gather(parts, mine, async_op=True)

    def finish() -> Tensor:
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    return Handle("allgather", [work], finish)


def _counts(tensor: Tensor) -> list[int]:
    """How many rows each rank has."""
    mine = torch.tensor([tensor.shape[0]], device=tensor.device)
    counts = [torch.empty_like(mine) for _ in range(size())]
    wait_for("allgather", dist.all_gather(counts, mine, async_op=True))
    return [int(count) for count in counts]


def allgather(tensor: Tensor, name: str | None = None, process_set: Any = None) -> Tensor:
    """The tensors of all ranks, joined by their rows, of which each rank may have another number."""
    check(process_set)
    return _Allgather.apply(tensor)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.shape = tensor.shape
        return synchronize(allgather_async(tensor))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        total = allreduce(grads[0].contiguous(), op=Average)  # Horovod's gradient is the mean over the ranks
        rows = ctx.shape[0] if ctx.shape else 1
        counts = _counts(total[:rows])
        return total.split(counts)[rank()].reshape(ctx.shape)


def grouped_allgather(tensors: Sequence[Tensor], name: str | None = None, process_set: Any = None) -> list[Tensor]:
    """:func:`allgather` of each."""
    return [allgather(tensor, name, process_set) for tensor in tensors]


def broadcast_async_(tensor: Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> Handle:
    """Begin to give all ranks what ``root_rank`` has in ``tensor``, in place."""
    check(process_set)
    sent = tensor.detach()
    sent = sent if sent.is_contiguous() else sent.contiguous()
    work = dist.broadcast(sent, root_rank, async_op=True)

    def finish() -> Tensor:
        if sent.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(sent)
        return tensor

    return Handle("broadcast", [work], finish)


def broadcast_async(tensor: Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> Handle:
    """Begin to give all ranks what ``root_rank`` has in ``tensor``; the result is another."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


def broadcast_(tensor: Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> Tensor:
    """:func:`broadcast_async_`, and wait for it."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def broadcast(tensor: Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> Tensor:
    """What ``root_rank`` has in ``tensor``."""
    check(process_set)
    return _Broadcast.apply(tensor, root_rank)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int) -> Tensor:
        ctx.root_rank = root_rank
        return synchronize(broadcast_async(tensor, root_rank))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        total = allreduce(grads[0].contiguous(), op=Average)
        return total if rank() == ctx.root_rank else torch.zeros_like(total), None


def alltoall_async(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: Any = None,
) -> Handle:
    """Begin to give each rank some rows of ``tensor``: as many as ``splits`` says, else as many to each."""
    check(process_set)
    counts = [int(count) for count in splits] if splits is not None else [tensor.shape[0] // size()] * size()
    if sum(counts) != tensor.shape[0] or len(counts) != size():
        raise ValueError(f"alltoall: {tensor.shape[0]} rows cannot be split into {counts} for {size()} ranks")
    sent = torch.tensor(counts, device=tensor.device)
    received = torch.empty_like(sent)
    wait_for("alltoall", dist.all_to_all_single(received, sent, async_op=True))
    theirs = received.tolist()
    output = tensor.new_empty((sum(theirs), *tensor.shape[1:]))
    work = dist.all_to_all_single(output, tensor.detach().contiguous(), theirs, counts, async_op=True)
    counted = received.to("cpu", torch.int32)
    return Handle("alltoall", [work], lambda: output if splits is None else (output, counted))


def alltoall(tensor: Tensor, splits: Any = None, name: str | None = None, process_set: Any = None) -> Any:
    """The rows that each rank had for this one; with ``splits``, also how many each had."""
    check(process_set)
    output, received = _Alltoall.apply(tensor, splits)
    return output if splits is None else (output, received)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any) -> Any:
        counts = splits if splits is not None else [tensor.shape[0] // size()] * size()
        output, received = synchronize(alltoall_async(tensor, counts))
        ctx.received = received
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _Alltoall.apply(grads[0].contiguous(), ctx.received)[0], None


def barrier(process_set: Any = None) -> None:
    """Wait until all ranks have come here."""
    check(process_set)
    wait_for("barrier", dist.barrier(async_op=True))


def join(device: int = -1) -> int:
    """Horovod's way to let ranks have different numbers of batches: not here."""
    raise NotInStandIn("join()")


def sparse_allreduce_async(*_args: Any, **_kwargs: Any) -> Any:
    """Not here: dense gradients only."""
    raise NotInStandIn("sparse_allreduce_async()")

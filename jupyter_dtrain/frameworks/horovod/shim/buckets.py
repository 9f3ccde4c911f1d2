"""The one way to reduce tensors here: they are copied into a bucket, which travels as one tensor.

Under failure: torch.distributed's own errors; :meth:`Bucket.forget` drops a reduction whose process group is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from jupyter_dtrain.frameworks.rendezvous import awaits_ranks

from .world import NotInStandIn, size

Average, Sum, Adasum, Min, Max, Product = range(6)
"""Ways to reduce, by Horovod's numbers."""
_OPS = {Min: dist.ReduceOp.MIN, Max: dist.ReduceOp.MAX, Product: dist.ReduceOp.PRODUCT}
BUCKET = 25 << 20
"""Bytes of a full bucket."""
FIRST_BUCKET = 1 << 20
"""Bytes of the first one: its gradients are ready first and travel soon."""


class Codec(NamedTuple):
    """A form in which tensors travel; users of Horovod may bring a class of their own with these two functions."""

    compress: Callable[[torch.Tensor], tuple[torch.Tensor, Any]]
    """Returns the tensor to send, and what :attr:`decompress` needs."""
    decompress: Callable[[torch.Tensor, Any], torch.Tensor]


def _half(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
    return (tensor.half() if tensor.dtype.is_floating_point else tensor), tensor.dtype


class Compression:
    """The forms in which tensors travel."""

    none = Codec(lambda tensor: (tensor, None), lambda tensor, _: tensor)
    fp16 = Codec(_half, lambda tensor, kind: tensor.to(kind))


@awaits_ranks
def wait_for(call: str, work: Any) -> None:
    """Wait for ``work`` of torch.distributed, which belongs to ``call``."""
    work.wait()


def chosen(op: int | None, average: bool | None = None) -> int:
    """The reduction that a call's arguments choose; the default is Average."""
    if op is not None and average is not None:
        raise ValueError("average is the old name of op: pass only one of them.")
    op = op if op is not None else Sum if average is False else Average
    if op == Adasum:
        raise NotInStandIn("Adasum")
    if op not in (Average, Sum, *_OPS):
        raise ValueError(f"op must be hvd.Average, Sum, Min, Max or Product, not {op!r}")
    return op


def _scale(tensor: torch.Tensor, factor: float) -> None:
    """Scale in place. Horovod truncates the results for integers."""
    if factor == 1.0:
        return
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.mul_(factor)
    else:
        tensor.copy_(tensor.double().mul_(factor).trunc_())


class Bucket:
    """Tensors of one type and device that travel together; each round ends with the results in place."""

    work: Any
    """torch.distributed's, while a round is under way; else None."""

    def __init__(self, like: Sequence[torch.Tensor]) -> None:
        first, sizes = like[0], [one.numel() for one in like]
        self._flat = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        parts = self._flat.split(sizes)
        self._parts = [part.view(one.shape) for part, one in zip(parts, like, strict=True)]
        self.forget()

    def begin(self, tensors: Sequence[torch.Tensor], op: int, compression: Any, before: float) -> None:
        """Send ``tensors`` times ``before``."""
        torch._foreach_copy_(self._parts, list(tensors))
        self._sent, self._ctx = compression.compress(self._flat)
        _scale(self._sent, before)
        self.work = dist.all_reduce(self._sent, op=_OPS.get(op, dist.ReduceOp.SUM), async_op=True)

    def end(self, tensors: Sequence[torch.Tensor], op: int, compression: Any, after: float, call: str) -> None:
        """Wait for the round, and write its results times ``after`` into ``tensors``."""
        wait_for(call, self.work)
        _scale(self._sent, after / size() if op == Average else after)
        if (received := compression.decompress(self._sent, self._ctx)) is not self._flat:
            self._flat.copy_(received)
        torch._foreach_copy_(list(tensors), self._parts)
        self.forget()

    def forget(self) -> None:
        """Forget a round that has begun."""
        self.work = None
        self._sent, self._ctx = self._flat, None


def in_buckets(tensors: Iterable[torch.Tensor]) -> list[list[int]]:
    """Indices of ``tensors``, in order, in lists of one type and device that each fill a bucket."""
    buckets: list[list[int]] = []
    fill: dict[Any, tuple[list[int], int]] = {}
    for place, one in enumerate(tensors):
        kind = (one.dtype, one.device)
        if kind not in fill:
            buckets.append([])
        bucket, length = fill.pop(kind, (buckets[-1], 0))
        bucket.append(place)
        length += one.numel() * one.element_size()
        if length < (FIRST_BUCKET if bucket is buckets[0] else BUCKET):
            fill[kind] = bucket, length
    return buckets

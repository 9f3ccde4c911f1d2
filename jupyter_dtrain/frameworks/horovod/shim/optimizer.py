"""Of the stand-in for ``horovod.torch``: the optimizer whose step is that of all ranks' gradients.

Gradients travel in buckets, which are begun while the backward still computes: as soon as all of a bucket are there,
and in an order that is the same on all ranks, from the last parameter to the first. ``step()`` waits for them, begins
those that this rank has no gradient for (with zeros, as Horovod does), and puts the results where the gradients were.

An optimizer that is made again for the same parameters takes them over: that of before reduces nothing any more, so
that a cell can be run again.

Under failure: what was begun stays begun, until :meth:`Distributed.begin_anew`, which a world calls once its process
group was made again; the next step is then one of whole gradients.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

from .collectives import Average, Compression, Sum, chosen, scale, wait_for
from .world import NotInStandIn, check, size

BUCKET = 25 << 20
"""Bytes of gradients after which no more travel with them."""
FIRST_BUCKET = 1 << 20
"""The same of those that are there first, so that they are on their way soon."""

_hooks: Any = WeakIdKeyDictionary()
"""By parameter: the hook of the optimizer that it belongs to."""


class _Bucket:
    """Gradients that travel together."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.parameters = parameters
        self.missing = len(parameters)
        """Gradients that are not there yet."""
        self.work: Any = None
        self._ctx: Any = None
        first = parameters[0]
        self._flat = torch.empty(sum(one.numel() for one in parameters), dtype=first.dtype, device=first.device)
        self._sent = self._flat
        parts = self._flat.split([one.numel() for one in parameters])
        self._parts = [part.view(one.shape) for part, one in zip(parts, parameters, strict=True)]

    def begin(self, op: int, compression: Any, before: float) -> None:
        """Send what is there. The gradients of parameters without any are zeros from now on."""
        for one in self.parameters:
            if one.grad is None:
                one.grad = torch.zeros_like(one)
            elif one.grad.is_sparse:
                one.grad = one.grad.to_dense()
        torch._foreach_copy_(self._parts, [one.grad for one in self.parameters])
        self._sent, self._ctx = compression.compress(self._flat)
        scale(self._sent, before)
        assert op in {Average, Sum}
        self.work = dist.all_reduce(self._sent, async_op=True)

    def end(self, compression: Any, after: float) -> None:
        """Wait for what was sent; it becomes the gradients."""
        wait_for("step", self.work)
        scale(self._sent, after)
        result = compression.decompress(self._sent, self._ctx)
        if result.data_ptr() != self._flat.data_ptr():
            self._flat.copy_(result)
        torch._foreach_copy_([one.grad for one in self.parameters], self._parts)
        self.forget()

    def forget(self) -> None:
        """Nothing was begun."""
        self.work, self._ctx, self._sent = None, None, self._flat
        self.missing = len(self.parameters)


class Distributed(torch.optim.Optimizer):
    """What an optimizer of the stand-in is, beside one of its own class."""

    def distribute(self, op: int, compression: Any, passes: int, predivide: float, *, sparse_as_dense: bool) -> None:
        """From now on, reduce the gradients."""
        self._op, self._compression, self._predivide = op, compression, predivide
        self._sparse_as_dense = sparse_as_dense
        self.backward_passes_per_step = passes
        self._synchronized, self._synchronizes = False, True
        parameters = [one for group in self.param_groups for one in group["params"] if one.requires_grad]
        self._buckets = [_Bucket(some) for some in _in_buckets(reversed(parameters))]
        self._bucket_of = {one: bucket for bucket in self._buckets for one in bucket.parameters}
        self._passes_left = dict.fromkeys(parameters, passes)
        self._begun = 0
        """How many buckets are on their way."""
        for one in parameters:
            if one in _hooks:
                _hooks[one].remove()
            _hooks[one] = one.register_post_accumulate_grad_hook(_hook(weakref.ref(self)))

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes make a step, from the next one on."""
        self.backward_passes_per_step = passes
        self._passes_left = dict.fromkeys(self._passes_left, passes)

    def has(self, parameter: torch.Tensor) -> None:
        """The gradient of ``parameter`` was computed, or added to."""
        grad = parameter.grad
        if grad is not None and grad.is_sparse and not self._sparse_as_dense:
            raise NotInStandIn("sparse gradients (DistributedOptimizer(sparse_as_dense=True) makes them dense)")
        if self._passes_left[parameter] == 0:
            raise AssertionError(
                "There were more backward passes than backward_passes_per_step before step(): the gradients of the "
                "first ones are on their way already. Give DistributedOptimizer as many as there are."
            )
        self._passes_left[parameter] -= 1
        if self._passes_left[parameter] == 0:
            self._bucket_of[parameter].missing -= 1
            while self._begun < len(self._buckets) and self._buckets[self._begun].missing == 0:
                self._begin_next()

    def _begin_next(self) -> None:
        before = 1 / self._predivide if self._op == Average else 1.0
        self._buckets[self._begun].begin(self._op, self._compression, before)
        self._begun += 1

    def synchronize(self) -> None:
        """Wait until the gradients are those of all ranks."""
        check()
        with torch.no_grad():
            while self._begun < len(self._buckets):
                self._begin_next()
            after = self._predivide / size() if self._op == Average else 1.0
            for bucket in self._buckets:
                bucket.end(self._compression, after)
        self._begun = 0
        self._passes_left = dict.fromkeys(self._passes_left, self.backward_passes_per_step)
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In this context ``step()`` takes the gradients as they are: after :meth:`synchronize`."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def step(self, closure: Any = None) -> Any:
        """One step with the gradients of all ranks."""
        if self._synchronizes:
            if self._synchronized:
                warnings.warn(
                    "step() after synchronize() reduces the gradients once more: call it in skip_synchronize().",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
        return super().step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Raises :class:`AssertionError` while gradients are on their way: between the backward and ``step()``."""
        if self._begun:
            raise AssertionError(
                "zero_grad() between backward() and step(): the gradients are on their way to the other ranks. "
                "Call it after step() or synchronize()."
            )
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: Any) -> None:
        """What was begun is forgotten, too."""
        self.begin_anew()
        super().load_state_dict(state_dict)

    def begin_anew(self) -> None:
        """Forget what was begun: the process group that it went through is gone."""
        for bucket in self._buckets:
            bucket.forget()
        self._begun = 0
        self._passes_left = dict.fromkeys(self._passes_left, self.backward_passes_per_step)
        self._synchronized, self._synchronizes = False, True


def DistributedOptimizer(  # noqa: N802 — Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = None,
) -> torch.optim.Optimizer:
    """``optimizer``, whose steps are those of the gradients of all ranks: an object of its class, with its state."""
    check(process_set)
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be greater than 0")
    if chosen(op, None) not in {Average, Sum}:
        raise ValueError("op must be hvd.Average or hvd.Sum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor goes with op=hvd.Average only")
    _check_names(optimizer, named_parameters)
    kind = type(optimizer)
    made: Any = type(kind.__name__, (Distributed, kind), {})
    distributed = made.__new__(made)
    # Optimizers' own constructors differ; what they leave is taken over.
    torch.optim.Optimizer.__init__(distributed, optimizer.param_groups, optimizer.defaults)
    vars(distributed).update(vars(optimizer))
    distributed.distribute(
        op, compression, backward_passes_per_step, gradient_predivide_factor, sparse_as_dense=sparse_as_dense
    )
    return distributed


def _check_names(optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, torch.Tensor]] | None) -> None:
    """What Horovod checks: names are unique, and no parameter is without one."""
    if named is None:
        return
    pairs = list(named)
    if not all(isinstance(pair, tuple) for pair in pairs):
        raise ValueError("named_parameters must be pairs of a name and a parameter: model.named_parameters()")
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError("named_parameters has a name twice")
    there = {id(parameter) for _, parameter in pairs}
    if any(id(one) not in there for group in optimizer.param_groups for one in group["params"]):
        raise ValueError("named_parameters has not all parameters of the optimizer")


def _hook(optimizer: weakref.ref[Distributed]) -> Any:
    def has(parameter: torch.Tensor) -> None:
        living = optimizer()
        if living is not None:
            living.has(parameter)

    return has


def _in_buckets(parameters: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """In their order, by type and device."""
    buckets: list[list[torch.Tensor]] = []
    open_ones: dict[Any, list[torch.Tensor]] = {}
    for one in parameters:
        kind = (one.dtype, one.device)
        if kind not in open_ones:
            open_ones[kind] = []
            buckets.append(open_ones[kind])
        bucket = open_ones[kind]
        bucket.append(one)
        length = sum(other.numel() * other.element_size() for other in bucket)
        if length >= (FIRST_BUCKET if bucket is buckets[0] else BUCKET):
            del open_ones[kind]
    return buckets

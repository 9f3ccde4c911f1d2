"""The stand-in's optimizer: each step takes the gradients of all ranks.

A full bucket of gradients travels while the backward pass still computes, in an order that is the same on all ranks:
from the last parameter to the first. ``step()`` waits for the buckets and sends zeros for a parameter without a
gradient, as Horovod does. A new optimizer for the same parameters takes them over, so a cell can run again.

Under failure: :meth:`Distributed.begin_anew` forgets unfinished work. A world calls it when its process group has been
made again; the next step then uses whole gradients.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from .buckets import Average, Bucket, Compression, Sum, chosen, in_buckets
from .world import NotInStandIn, check

_hooks: Any = WeakIdKeyDictionary()
"""By parameter: the hook of its optimizer."""
_TOO_MANY = (
    "More backward passes than backward_passes_per_step came before step(), and the first gradients are already on "
    "their way. Set DistributedOptimizer's backward_passes_per_step to the number of passes."
)
_TOO_SOON = (
    "zero_grad() between backward() and step(): the gradients are on their way to the other ranks. "
    "Call it after step() or synchronize()."
)


class Distributed(torch.optim.Optimizer):
    """The stand-in's half of an optimizer; the other half is the class of the user's optimizer."""

    def distribute(self, op: int, compression: Any, passes: int, predivide: float, *, sparse_as_dense: bool) -> None:
        """Start to reduce the gradients."""
        self._op, self._compression, self._predivide = op, compression, predivide
        self._sparse_as_dense = sparse_as_dense
        parameters = [one for group in self.param_groups for one in group["params"] if one.requires_grad][::-1]
        self._parts = [[parameters[place] for place in places] for places in in_buckets(parameters)]
        self._buckets = [Bucket(part) for part in self._parts]
        self._bucket_of = {one: number for number, part in enumerate(self._parts) for one in part}
        self.set_backward_passes_per_step(passes)
        self.begin_anew()
        for one in parameters:
            if one in _hooks:
                _hooks[one].remove()
            _hooks[one] = one.register_post_accumulate_grad_hook(_hook(weakref.ref(self)))

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Take ``passes`` backward passes for a step, from the next one on."""
        self.backward_passes_per_step = passes
        self._passes_left = dict.fromkeys(self._bucket_of, passes)

    def begin_anew(self) -> None:
        """Forget unfinished work, whose process group is gone."""
        for bucket in self._buckets:
            bucket.forget()
        self._missing, self._begun = [len(part) for part in self._parts], 0
        self._passes_left = dict.fromkeys(self._bucket_of, self.backward_passes_per_step)
        self._synchronized, self._synchronizes = False, True

    def has(self, parameter: torch.Tensor) -> None:
        """Note that a backward pass has computed the gradient of ``parameter``, or added to it."""
        if parameter.grad is not None and parameter.grad.is_sparse and not self._sparse_as_dense:
            raise NotInStandIn("sparse gradients (DistributedOptimizer(sparse_as_dense=True) makes them dense)")
        if self._passes_left[parameter] == 0:
            raise AssertionError(_TOO_MANY)
        self._passes_left[parameter] -= 1
        if self._passes_left[parameter] == 0:
            self._missing[self._bucket_of[parameter]] -= 1
            while self._begun < len(self._parts) and self._missing[self._begun] == 0:
                self._begin_next()

    def _begin_next(self) -> None:
        part, bucket = self._parts[self._begun], self._buckets[self._begun]
        for one in part:
            if one.grad is None or one.grad.is_sparse:
                one.grad = torch.zeros_like(one) if one.grad is None else one.grad.to_dense()
        before = 1 / self._predivide if self._op == Average else 1.0
        bucket.begin([one.grad for one in part], self._op, self._compression, before)
        self._begun += 1

    def synchronize(self) -> None:
        """Wait until the gradients are those of all ranks."""
        check()
        with torch.no_grad():
            while self._begun < len(self._parts):
                self._begin_next()
            after = self._predivide if self._op == Average else 1.0
            for bucket, part in zip(self._buckets, self._parts, strict=True):
                bucket.end([one.grad for one in part], self._op, self._compression, after, "step")
        self.begin_anew()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In this context ``step()`` takes the gradients as they are: for use after :meth:`synchronize`."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def step(self, closure: Any = None) -> Any:
        """Make one step with the gradients of all ranks."""
        if self._synchronizes:
            if self._synchronized:
                words = "step() after synchronize() reduces the gradients a second time: call it in skip_synchronize()."
                warnings.warn(words, stacklevel=2)
            self.synchronize()
        self._synchronized = False
        return super().step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Raise :class:`AssertionError` while gradients are on their way: between the backward pass and ``step()``."""
        if self._begun:
            raise AssertionError(_TOO_SOON)
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: Any) -> None:
        """Load a state, and forget unfinished work."""
        self.begin_anew()
        super().load_state_dict(state_dict)


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
    """An object of the class of ``optimizer``, with its state, that steps with the gradients of all ranks."""
    check(process_set)
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be greater than 0")
    if chosen(op) not in {Average, Sum}:
        raise ValueError("op must be hvd.Average or hvd.Sum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor goes with op=hvd.Average only")
    _check_names(optimizer, named_parameters)
    kind = type(optimizer)
    made: Any = type(kind.__name__, (Distributed, kind), {})
    found = made.__new__(made)
    # Optimizers' constructors differ; this copies what they leave behind.
    torch.optim.Optimizer.__init__(found, optimizer.param_groups, optimizer.defaults)
    vars(found).update(vars(optimizer))
    passes, predivide = backward_passes_per_step, gradient_predivide_factor
    found.distribute(op, compression, passes, predivide, sparse_as_dense=sparse_as_dense)
    return found


def _check_names(optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, torch.Tensor]] | None) -> None:
    """Check what Horovod checks: names are unique, and every parameter has one."""
    pairs = None if named is None else list(named)
    if pairs is None:
        return
    if not all(isinstance(pair, tuple) for pair in pairs):
        raise ValueError("named_parameters must be pairs of a name and a parameter: model.named_parameters()")
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("named_parameters has a name twice")
    there = {id(parameter) for _, parameter in pairs}
    if any(id(one) not in there for group in optimizer.param_groups for one in group["params"]):
        raise ValueError("named_parameters lacks some parameters of the optimizer")


def _hook(optimizer: weakref.ref[Distributed]) -> Any:
    def has(parameter: torch.Tensor) -> None:
        if (living := optimizer()) is not None:
            living.has(parameter)

    return has

"""The stand-in's module ``horovod.torch``: its calls, and the optimizer whose steps take the gradients of all ranks.

Names, arguments and results are those of Horovod 0.28. Only ``step()`` and ``synchronize()`` of the optimizer
communicate, so nothing is under way between steps: the optimizer needs no repair after a failure, and a cell may make
it anew.
Under failure: torch.distributed's own errors; a name that the stand-in lacks raises :class:`NotInStandIn`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from . import collectives, install, world
from .collectives import Adasum, Average, Compression, Max, Min, Product, Sum, poll, synchronize
from .world import HorovodInternalError, NotInStandIn, check, global_process_set, rank, size

BUCKET = 25 << 20
"""Bytes of gradients that travel as one tensor."""


class _Differentiable(torch.autograd.Function):
    """A call whose result has a gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, begin: Callable[..., Any], options: dict[str, Any]) -> Any:
        handle = begin(_copy(tensor), **options)
        ctx.gradient = handle.gradient
        result = synchronize(handle)
        if isinstance(result, tuple):
            ctx.mark_non_differentiable(result[1])
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> Any:
        return ctx.gradient(_copy(grad)), None, None


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _variant(name: str, arguments: list[str], *, grouped: bool, waits: bool, in_place: bool) -> Callable[..., Any]:
    """The call ``name`` on one tensor or several, which waits or returns a handle, and makes new tensors or not."""
    begin = getattr(collectives, name)
    first = "tensors" if grouped else "tensor"
    names = [first, *(one for one in arguments if one != "compression" or (waits and not in_place))]

    def variant(*args: Any, **kwargs: Any) -> Any:
        options = dict(zip(names, args, strict=False), **kwargs)
        options.pop("name", None)
        check(options.pop("process_set", None))
        tensors = options.pop(first) if grouped else [options.pop(first)]
        if waits and not in_place:
            found = [_Differentiable.apply(one, begin, options) for one in tensors]
        else:
            found = [begin(one if in_place else _copy(one), **options) for one in tensors]
            found = synchronize(found) if waits else found
        return found if grouped else found[0]

    return variant


_VARIANTS = {
    "allreduce": ("_g", "average name compression op prescale_factor postscale_factor process_set"),
    "reducescatter": ("g", "name compression op process_set prescale_factor postscale_factor"),
    "allgather": ("g", "name process_set"),
    "broadcast": ("_", "root_rank name process_set"),
    "alltoall": ("", "splits name process_set"),
}
"""By collective: variants beside NAME and NAME_async (``_`` in place, ``g`` grouped); arguments in Horovod's order."""
for _name, (_kinds, _names) in _VARIANTS.items():
    for _g, _w, _i in product({False, "g" in _kinds}, (False, True), {False, "_" in _kinds}):
        _full = f"{'grouped_' * _g}{_name}{'_async' * (not _w)}{'_' * _i}"
        globals()[_full] = _variant(_name, _names.split(), grouped=_g, waits=_w, in_place=_i)
globals().update(world.CALLS, __version__=install.SHIM_VERSION)


def barrier(process_set: Any = None) -> None:
    """Wait until all ranks have come here."""
    check(process_set)
    dist.barrier()


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = None) -> Any:
    """The ``obj`` of ``root_rank``; it must be picklable."""
    check(process_set)
    found = [obj]
    dist.broadcast_object_list(found, root_rank)
    return found[0]


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """The ``obj`` of each rank; they must be picklable."""
    check()
    found = [None] * size()
    dist.all_gather_object(found, obj)
    return found


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Give all ranks the tensors of ``root_rank``: a dictionary of them, or a list of them or of named ones."""
    check()
    if not isinstance(params, dict | list):
        raise ValueError(f"broadcast_parameters takes model.state_dict() or a list, not {type(params).__name__}.")
    pairs = sorted(params.items()) if isinstance(params, dict) else params
    tensors = [one[1] if isinstance(one, tuple) else one for one in pairs]
    synchronize([collectives.broadcast(one, root_rank) for one in tensors if isinstance(one, torch.Tensor)])


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """Give all ranks the state and the options that ``optimizer`` has on ``root_rank``; it travels pickled."""
    check()
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of torch.optim.LBFGS cannot be broadcast")
    # A rank that has made no step has no state, so each tensor must travel with its shape.
    optimizer.load_state_dict(broadcast_object(optimizer.state_dict() if rank() == root_rank else None, root_rank))


class _Distributed(torch.optim.Optimizer):
    """The stand-in's half of an optimizer; the other half is the class of the user's optimizer."""

    _how: dict[str, Any]
    _sparse_as_dense: bool
    _synchronized, _synchronizes = False, True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Note ``passes``. A step takes the sum of all backward passes before it, however many there are."""
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Combine the gradients of all ranks; a parameter without one counts as zeros, as in Horovod."""
        check()
        grads = []
        for one in (one for group in self.param_groups for one in group["params"] if one.requires_grad):
            if one.grad is not None and one.grad.is_sparse and not self._sparse_as_dense:
                raise NotInStandIn("sparse gradients (DistributedOptimizer(sparse_as_dense=True) makes them dense)")
            one.grad = torch.zeros_like(one) if one.grad is None else one.grad.to_dense()
            grads.append(one.grad)
        parts = dist._compute_bucket_assignment_by_size(grads, [BUCKET])[0] if grads else []  # noqa: SLF001 — what DDP does
        begun = []
        for number, places in enumerate(parts):
            bucket = [grads[place] for place in places]
            buffer = self._buffers.setdefault(number, bucket[0].new_empty(0))
            begun.append(collectives.reduce("step", bucket, **self._how, buffer=buffer))
        synchronize(begun)
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

    step.hooked = True  # type: ignore[attr-defined]  # torch would wrap it too, and run the user's hooks twice a step


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
    if op not in {Average, Sum}:
        raise NotInStandIn("Adasum") if op == Adasum else ValueError("op must be hvd.Average or hvd.Sum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor goes with op=hvd.Average only")
    if named_parameters is not None:
        _check_names(optimizer, list(named_parameters))
    before, after = 1 / gradient_predivide_factor, gradient_predivide_factor
    how = {"op": op, "compression": compression, "prescale_factor": before, "postscale_factor": after}
    kind = type(optimizer)
    made: Any = type(
        kind.__name__, (_Distributed, kind), {"_how": how, "_sparse_as_dense": sparse_as_dense, "_buffers": {}}
    )
    found = made.__new__(made)
    # Optimizers' constructors differ, so this copies their attributes, but not a scheduler's counting step().
    vars(found).update({name: value for name, value in vars(optimizer).items() if name != "step"})
    found.set_backward_passes_per_step(backward_passes_per_step)
    return found


def _check_names(optimizer: torch.optim.Optimizer, named: list[tuple[str, torch.Tensor]]) -> None:
    """Check what Horovod checks, so that what runs here runs there."""
    if not all(isinstance(pair, tuple) for pair in named):
        raise ValueError("named_parameters must be pairs of a name and a parameter: model.named_parameters()")
    if len(dict(named)) < len(named):
        raise ValueError("named_parameters has a name twice")
    if {id(one) for group in optimizer.param_groups for one in group["params"]} - {id(one) for _, one in named}:
        raise ValueError("named_parameters lacks some parameters of the optimizer")


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotInStandIn(f"horovod.torch.{name}")

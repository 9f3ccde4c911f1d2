"""The stand-in's module ``horovod.torch``: set-up, calls, and an optimizer whose steps take the gradients of all ranks.

Names, arguments and results are those of Horovod 0.28. Only ``step()`` and ``synchronize()`` of the optimizer
communicate, so nothing is under way between steps: the optimizer needs no repair after a failure, and a cell may make
it anew.
Under failure: torch.distributed's own errors, never :class:`HorovodInternalError`; a call before ``init()`` raises
:class:`ValueError`, as Horovod's does; a name that the stand-in lacks raises :class:`NotInStandIn`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from inspect import Parameter, Signature
from itertools import product
from types import SimpleNamespace
from typing import Any, NoReturn

import cloudpickle
import torch
import torch.distributed as dist

from . import collectives, install
from .collectives import Adasum, Average, Compression, Handle, Max, Min, Product, Sum, copy, poll, synchronize
from .install import NotInStandIn

BUCKET = 25 << 20
"""Bytes of gradients that travel as one tensor."""
_state = SimpleNamespace(ready=False)


class HorovodInternalError(RuntimeError):
    """Horovod's error of a collective."""


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Set up torch's default process group, unless there is one; may be called again and again."""
    if comm or process_sets:
        raise NotInStandIn("init() with ranks or a communicator" if comm else "process sets")
    if not dist.is_initialized():
        dist.init_process_group()
        atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
    _state.ready = True


def shutdown() -> None:
    """Undo ``init()``, but for torch's process group."""
    # torch 2.13 often cannot leave a group and set up another: https://github.com/pytorch/pytorch/issues/74666
    _state.ready = False


def is_initialized() -> bool:
    """Whether the user called ``init()``, and no ``shutdown()`` since."""
    return bool(_state.ready and dist.is_initialized())


def _check(process_set: Any = None) -> None:
    """Raise the error that Horovod raises before ``init()``, and an error for process sets."""
    if not is_initialized():
        raise ValueError("Horovod's stand-in is not set up: call hvd.init() first.")
    if process_set is not None and process_set is not global_process_set:
        raise NotInStandIn("process sets")


def _place(variable: str, otherwise: Callable[[], int]) -> int:
    """Return this process's place as torchrun's ``variable`` has it, or ``otherwise`` where that is not set."""
    _check()
    return int(os.environ[variable]) if variable in os.environ else int(otherwise())


rank = partial(_place, "", dist.get_rank)
size = partial(_place, "", dist.get_world_size)
local_rank = partial(_place, "LOCAL_RANK", rank)
local_size = partial(_place, "LOCAL_WORLD_SIZE", size)
cross_rank = partial(_place, "GROUP_RANK", lambda: rank() // local_size())
cross_size = partial(_place, "GROUP_WORLD_SIZE", lambda: size() // local_size())
global_process_set = SimpleNamespace(process_set_id=0, size=size, rank=rank, included=lambda: True)
"""The only process set that the stand-in has: all ranks."""
globals().update(
    dict.fromkeys(("mpi_enabled", "mpi_built", "mpi_threads_supported", "ddl_built", "ccl_built"), lambda: False),
    __version__=install.SHIM_VERSION,
    gloo_enabled=lambda: is_initialized() and "gloo" in str(dist.get_backend()),
    gloo_built=dist.is_gloo_available,
    nccl_built=dist.is_nccl_available,
    cuda_built=lambda: torch.version.cuda is not None,
    rocm_built=lambda: torch.version.hip is not None,
)


class _Differentiable(torch.autograd.Function):
    """A call whose results have gradients; those of a grouped call are computed together, as in Horovod."""

    @staticmethod
    def forward(ctx: Any, name: str, options: dict[str, Any], *tensors: torch.Tensor) -> Any:
        handles = [Handle(name, getattr(collectives, name)(copy(one), **options)) for one in tensors]
        found = synchronize(handles)
        ctx.gradients = [one.gradient for one in handles]
        return found[0] if name == "alltoall" else found

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, None, *(gradient(copy(grad)) for gradient, grad in zip(ctx.gradients, grads, strict=False))


def _variant(name: str, arguments: list[str], *, grouped: bool, waits: bool, in_place: bool) -> Callable[..., Any]:
    """The call ``name`` on one tensor or several, which waits or returns a handle, and makes new tensors or not."""
    first = "tensors" if grouped else "tensor"
    names = [first, *(one for one in arguments if one != "compression" or (waits and not in_place))]
    signature = Signature([Parameter(one, Parameter.POSITIONAL_OR_KEYWORD) for one in names])

    def variant(*args: Any, **kwargs: Any) -> Any:
        options = signature.bind_partial(*args, **kwargs).arguments
        options.pop("name", None)
        _check(options.pop("process_set", None))
        tensors = options.pop(first) if grouped else [options.pop(first)]
        if waits and not in_place:
            found = _Differentiable.apply(name, options, *tensors)
            return list(found) if grouped else found if options.get("splits") is not None else found[0]
        begin = getattr(collectives, name)
        handles = [Handle(name, begin(one if in_place else copy(one), **options)) for one in tensors]
        found = synchronize(handles) if waits else handles
        return found if grouped else found[0]

    return variant


_VARIANTS = {
    "allreduce": ("_g", "average name compression op prescale_factor postscale_factor process_set"),
    "reducescatter": ("g", "name compression op process_set prescale_factor postscale_factor"),
    "allgather": ("g", "name process_set"),
    "broadcast": ("_", "root_rank name process_set"),
    "alltoall": ("", "splits name process_set"),
}
"""Each collective's variants beside NAME and NAME_async (``_`` in place, ``g`` grouped), and its arguments in order."""
for _name, (_kinds, _names) in _VARIANTS.items():
    for _g, _w, _i in product({False, "g" in _kinds}, (False, True), {False, "_" in _kinds}):
        _full = f"{'grouped_' * _g}{_name}{'_async' * (not _w)}{'_' * _i}"
        globals()[_full] = _variant(_name, _names.split(), grouped=_g, waits=_w, in_place=_i)


def barrier(process_set: Any = None) -> None:
    """Wait until all ranks have come here."""
    _check(process_set)
    dist.barrier()


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = None) -> Any:
    """Return the ``obj`` of ``root_rank``. As in Horovod, cloudpickle carries it, so functions of a cell travel too."""
    _check(process_set)
    found = [cloudpickle.dumps(obj) if rank() == root_rank else None]
    dist.broadcast_object_list(found, root_rank)
    return obj if rank() == root_rank else cloudpickle.loads(found[0])


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return the ``obj`` of each rank; cloudpickle carries them, as in Horovod."""
    found: list[Any] = [None] * size()
    dist.all_gather_object(found, cloudpickle.dumps(obj))
    return [cloudpickle.loads(one) for one in found]


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Give all ranks the tensors of ``root_rank``: a dictionary of them, or a list of them or of named ones."""
    _check()
    if not isinstance(params, dict | list):
        raise ValueError(f"broadcast_parameters takes model.state_dict() or a list, not {type(params).__name__}.")
    pairs = sorted(params.items()) if isinstance(params, dict) else params
    found = [one[1] if isinstance(one, tuple) else one for one in pairs]
    synchronize([Handle("broadcast", collectives.broadcast(one, root_rank)) for one in found if torch.is_tensor(one)])


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """Give all ranks the state and the options that ``optimizer`` has on ``root_rank``; it travels pickled."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of torch.optim.LBFGS cannot be broadcast")
    # A rank that has made no step has no state, so each tensor must travel with its shape.
    optimizer.load_state_dict(broadcast_object(optimizer.state_dict(), root_rank))


class _Distributed(torch.optim.Optimizer):
    """The stand-in's half of an optimizer; the other half is the class of the user's optimizer."""

    _how: tuple[Any, ...]
    _sparse_as_dense: bool
    _synchronized, _synchronizes = False, True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Note ``passes``. A step takes the sum of all backward passes before it, however many there are."""
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Combine the gradients of all ranks. As in Horovod, a missing one is zeros; one rank alone keeps its own."""
        groups = self.param_groups if size() > 1 else []
        parameters = [one for group in groups for one in group["params"] if one.requires_grad]
        sparse = [one for one in parameters if one.grad is not None and one.grad.is_sparse]
        if sparse and not self._sparse_as_dense:
            raise NotInStandIn("sparse gradients (DistributedOptimizer(sparse_as_dense=True) makes them dense)")
        for one in parameters:
            one.grad = torch.zeros_like(one) if one.grad is None else one.grad.to_dense()
        grads = [one.grad for one in parameters]
        buckets = dist._compute_bucket_assignment_by_size(grads, [BUCKET])[0] if grads else []  # noqa: SLF001 — what DDP does
        begun = [Handle("step", collectives.reduce([grads[one] for one in places], *self._how)) for places in buckets]
        synchronize(begun)
        for one in sparse:
            one.grad = one.grad.to_sparse()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Have ``step()`` take the gradients as they are in this context: for use after :meth:`synchronize`."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def step(self, closure: Any = None) -> Any:
        """Make one step with the gradients of all ranks."""
        if self._synchronizes:
            if self._synchronized:
                warnings.warn("step() after synchronize() reduces twice: call it in skip_synchronize()", stacklevel=2)
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
    _check(process_set)
    collectives.check_op(op)
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be greater than 0")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor goes with op=hvd.Average only")
    if named_parameters is not None:
        _check_names(optimizer, list(named_parameters))
    how = (op, compression, 1 / gradient_predivide_factor, gradient_predivide_factor)
    kind = type(optimizer)
    made: Any = type(kind.__name__, (_Distributed, kind), {"_how": how, "_sparse_as_dense": sparse_as_dense})
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
    raise NotInStandIn(f"horovod.torch.{name}")

"""PyTorch's tensors, models, optimizers and random states, part by part, for comparisons over ranks.

A model's parts are its parameters, buffers and gradients, and what each optimizer among the user's names keeps for its
parameters. Names leave out a wrapper's prefix (DDP's ``module.``, that of ``torch.compile``). A DTensor counts with its
placements: only ranks that hold the same piece of it must hold the same values.

Under failure: a tensor without data here, or in a layout that is not strided, has no digest.
"""

from __future__ import annotations

import math
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from jupyter_dtrain.core.contents import Kind, PartSummary
from jupyter_dtrain.plugins.framework import Part
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.rank.contents import PlainPart

from .digests import digest, is_readable
from .values import copied, undisturbed

WRAPPED: Final = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")
"""The attributes in which wrappers have what they wrap, and which give its attributes as theirs."""
_WRAPPERS: Final = ("module.", *(f"{name}." for name in WRAPPED))
PIECES = Patch(
    "torch.distributed.tensor._utils",
    calls=("compute_local_shape_and_global_offset(global_shape, mesh, placements)",),
    reads=("_local_tensor",),
    why="Ranks must hold the same values only in the same piece of a sharded tensor, and to_local() waits for others.",
    lost="sharded tensors are not compared over ranks",
)
NAMES = Patch(
    "torch",
    reads=("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"),
    why="A wrapper puts the name of its own attribute before the names of a model's parameters.",
    lost="names of parameters have the parts that wrappers add",
)
_SAMPLER: Final = ("epoch", "seed", "num_replicas", "total_size", "drop_last", "shuffle")
"""The attributes that decide which samples a rank takes, but for the rank itself."""
_SCALE: Final = 1 << 24
"""Elements of a device's tensor that are looked at together."""


class TensorPart(Part):
    """One tensor as a part to compare over ranks."""

    steady = False  # FSDP frees the memory of parameters and allocates it anew, at any moment of a step

    def __init__(self, name: str, kind: Kind, tensor: Any) -> None:
        self.name, self.kind, self._tensor = name, kind, tensor

    @undisturbed()
    def facts(self) -> PartSummary:
        """Return shape, type, device and, for a DTensor, its placements and this rank's shard."""
        tensor = self._tensor
        placement = piece = ""
        local = local_part(tensor)
        if hasattr(tensor, "placements"):
            placement = f"{', '.join(map(str, tensor.placements))} on {_mesh(tensor.device_mesh)}"
            piece = _piece(tensor)
        return PartSummary(
            self.name,
            self.kind,
            type(tensor).__name__,
            list(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
            str(local.device),
            placement,
            piece,
            local.numel() * local.element_size(),
        )

    def digest(self) -> str:
        """Return the digest of this rank's shard."""
        return digest(sys.modules["torch"], local_part(self._tensor))

    @undisturbed()
    def norm(self) -> float | None:
        """Return the norm of this rank's shard."""
        torch = sys.modules["torch"]
        local = local_part(self._tensor)
        if not is_readable(torch, local):
            return None
        with torch.no_grad():
            if local.is_floating_point() and local.element_size() >= 4:  # noqa: PLR2004 — float32
                return float(torch.linalg.vector_norm(local))
            # In half precision the squares would overflow; a copy of all of it may be too large.
            flat = local.detach().reshape(-1)
            parts = [_wide(torch, flat[at : at + _SCALE]) for at in range(0, flat.numel(), _SCALE)]
            return math.sqrt(sum(float((one.abs() ** 2).sum()) for one in parts))

    @undisturbed()
    def words(self) -> str:
        """Return the value of a tensor with a single element on the host, in words."""
        local = local_part(self._tensor)
        one = local.numel() == 1 and local.is_cpu and is_readable(sys.modules["torch"], local)
        return f"{local.item():.6g}" if one and not local.is_complex() else ""

    @undisturbed()
    def read(self, start: int, stop: int) -> bytes:
        """Bytes of this rank's piece; a device sends only these."""
        torch = sys.modules["torch"]
        found = self._bytes(torch)[start:stop].cpu()
        return found.numpy().tobytes()  # type: ignore[no-any-return]  # torch has no types here

    @undisturbed()
    def copy(self, places: Sequence[slice]) -> Callable[[], Any]:
        """Copy values of this rank's piece, on their device; a device is not waited for here."""
        return copied(local_part(self._tensor), places)

    @undisturbed()
    def distance(self, start: int, data: bytes) -> tuple[float, float, int]:
        """Return how far this tensor is from another one, computed on the tensor's device."""
        torch = sys.modules["torch"]
        with torch.no_grad():
            mine = self._bytes(torch)[start : start + len(data)]
            theirs = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(mine.device)
            dtype = self._tensor.dtype
            one, other = (_wide(torch, part.view(dtype)) for part in (mine.clone(), theirs))
            away = (one - other).abs()
            away[away.isnan()] = math.inf
            away[one.isnan() & other.isnan()] = 0.0
            away[one == other] = 0.0
            return float(away.max()) if away.numel() else 0.0, float((away**2).sum()), int((away != 0).sum())

    def _bytes(self, torch: Any) -> Any:
        return local_part(self._tensor).detach().contiguous().reshape(-1).view(torch.uint8)


@undisturbed()
def parts(name: str, value: Any, namespace: Mapping[str, Any]) -> list[Part] | None:
    """The parts of a tensor, a model, an optimizer or a random generator; None for anything else."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return [TensorPart(name, "value", value)]
    if isinstance(value, torch.Generator):
        return [TensorPart(name, "random state", value.get_state())]
    if isinstance(value, torch.nn.Module):
        return list(_of_model(value, namespace))
    if isinstance(value, torch.optim.Optimizer):
        names = {id(parameter): "" for group in value.param_groups for parameter in group["params"]}
        return list(_of_optimizer(torch, name, value, _named_by(torch, names, namespace)))
    return None


@undisturbed()
def states(namespace: Mapping[str, Any]) -> list[Part]:
    """Return random states, and the step counters of optimizers, samplers and loaders among the user's names."""
    torch = sys.modules["torch"]
    found: list[Part] = [TensorPart("torch's random state", "random state", torch.get_rng_state())]
    if torch.cuda.is_initialized():
        found.append(TensorPart("torch's random state on CUDA", "random state", torch.cuda.get_rng_state()))
    for name, value in list(namespace.items()):
        if not name.startswith("_"):
            found += _states_of(torch, name, value)
    return found


def _states_of(torch: Any, name: str, value: Any) -> Iterator[Part]:
    if isinstance(value, torch.optim.Optimizer):
        yield PlainPart(f"steps of {name}", "step counter", _steps(value))
    elif isinstance(value, torch.optim.lr_scheduler.LRScheduler):
        yield PlainPart(f"{name}.last_epoch", "step counter", value.last_epoch)
    elif isinstance(value, torch.utils.data.Sampler):
        yield from _of_sampler(torch, name, value)
    elif isinstance(value, torch.utils.data.DataLoader):
        yield from _of_sampler(torch, f"{name}.sampler", value.sampler)
        if value.generator is not None:
            yield TensorPart(f"{name}.generator", "random state", value.generator.get_state())
    elif isinstance(value, torch.Generator):
        yield TensorPart(name, "random state", value.get_state())
    elif isinstance(value, random.Random):
        yield PlainPart(name, "random state", hash(value.getstate()))


def _of_sampler(torch: Any, name: str, sampler: Any) -> Iterator[Part]:
    for attribute in _SAMPLER:
        value = getattr(sampler, attribute, None)
        if type(value) in (int, bool, float):
            yield PlainPart(f"{name}.{attribute}", "step counter", value)
    generator = getattr(sampler, "generator", None)
    if isinstance(generator, torch.Generator):
        yield TensorPart(f"{name}.generator", "random state", generator.get_state())


def _steps(optimizer: Any) -> int:
    """The most steps that an optimizer has made for a parameter; 0 where it does not count."""
    counts = [state.get("step", 0) for state in list(optimizer.state.values()) if isinstance(state, Mapping)]
    return max((int(count) for count in counts), default=0)


def _of_model(model: Any, namespace: Mapping[str, Any]) -> Iterator[Part]:
    torch = sys.modules["torch"]
    names = {id(parameter): plain(name) for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        yield TensorPart(plain(name), "parameter", parameter)
    broadcast = broadcast_buffers(model)
    for name, buffer in model.named_buffers():
        yield TensorPart(plain(name), "broadcast buffer" if id(buffer) in broadcast else "buffer", buffer)
    # A backward pass replaces gradients without Python's lock: a thread that reads one meanwhile may crash the rank.
    main = threading.current_thread() is threading.main_thread()
    for name, parameter in model.named_parameters() if main else ():
        if parameter.grad is not None:
            yield TensorPart(f"{plain(name)}.grad", "gradient", parameter.grad)
    for label, optimizer in optimizers_of(torch, names, namespace).items():
        yield from _of_optimizer(torch, label, optimizer, names)


def broadcast_buffers(model: Any) -> set[int]:
    """The ids of the buffers that DDP's next forward pass takes from rank 0."""
    kind = sys.modules["torch"].nn.parallel.DistributedDataParallel
    wrappers = [one for one in model.modules() if isinstance(one, kind) and one.broadcast_buffers]
    return {id(buffer) for one in wrappers for buffer in getattr(one, "modules_buffers", ())}


def optimizers_of(torch: Any, names: Mapping[int, str], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The optimizers among the user's names that step one of the parameters whose ids are ``names``."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for label, value in list(namespace.items()):
        if label.startswith("_") or not isinstance(value, torch.optim.Optimizer) or id(value) in seen:
            continue
        seen.add(id(value))
        if any(id(parameter) in names for group in value.param_groups for parameter in group["params"]):
            found[label] = value
    return found


def _of_optimizer(torch: Any, label: str, optimizer: Any, names: Mapping[int, str]) -> Iterator[Part]:
    for place, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            owner = names.get(id(parameter)) or f"{place}.{index}"
            state = optimizer.state.get(parameter, {})
            for key, value in state.items() if isinstance(state, Mapping) else ():
                part = f"{label}: {key} of {owner}"
                if isinstance(value, torch.Tensor):
                    yield TensorPart(part, "optimizer state", value)
                elif type(value) in (int, float, bool, str):
                    yield PlainPart(part, "optimizer state", value)
        for key, value in group.items():
            part = f"{label}: {key}" + (f" of group {place}" if len(optimizer.param_groups) > 1 else "")
            if type(value) in (int, float, bool):
                yield PlainPart(part, "setting", value)
            elif isinstance(value, torch.Tensor):
                yield TensorPart(part, "setting", value)


def _named_by(torch: Any, wanted: Mapping[int, str], namespace: Mapping[str, Any]) -> dict[int, str]:
    """The names of parameters, by the models among the user's names."""
    found: dict[int, str] = {}
    for label, value in list(namespace.items()):
        if not label.startswith("_") and isinstance(value, torch.nn.Module):
            for name, parameter in value.named_parameters():
                if id(parameter) in wanted:
                    found.setdefault(id(parameter), plain(name))
    return found


def plain(name: str) -> str:
    """The name of a parameter without what wrappers put before it."""
    for wrapper in _WRAPPERS:
        while wrapper in name:
            at = name.index(wrapper)
            if at and name[at - 1] != ".":
                break
            name = name[:at] + name[at + len(wrapper) :]
    return name


def local_part(tensor: Any) -> Any:
    """The rank's piece of a DTensor; any other tensor itself."""
    return tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor  # noqa: SLF001 — to_local waits


def _mesh(mesh: Any) -> str:
    names = mesh.mesh_dim_names or [str(place) for place in range(mesh.ndim)]
    return f"mesh {', '.join(f'{name}={size}' for name, size in zip(names, mesh.shape, strict=True))}"


def _piece(tensor: Any) -> str:
    """The place of this rank's piece in the whole, by its first element and its shape."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    # A value that is still to be summed is each rank's own.
    partial = [str(place) for place in tensor.placements if place.is_partial()]
    own = f" of {tensor.device_mesh.get_coordinate()}" if partial else ""
    return f"{tuple(shape)} at {tuple(offset)}{own}"


def _wide(torch: Any, tensor: Any) -> Any:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)

"""Numbers out of tensors, without ever making the training loop wait for a device.

A tensor on the processor is read at once. Of one on another device a copy is queued there, and :func:`read` fetches
many copies in one go, on the thread that flushes the metrics. No graph and no big tensor is kept alive.

Of a :class:`DTensor` the part that lives on this rank counts, since to gather it is a collective that the user's code
has not asked for: right for a replicated value, a rank's share of one that is yet to be summed; and a gradient norm is
the norm of the gradients' local shards.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

MAX_DEPTH = 4
"""How deep in a batch its first tensor may lie."""
MAX_LOOK = 16
"""How many items of each list in a batch are looked at."""


class Later(NamedTuple):
    """A number that is still on its device."""

    tensor: Any
    """Ours: one element, without a graph."""
    stream: Any = None
    """The CUDA stream that computes it."""


class Total(NamedTuple):
    """The sum of some numbers, times a factor."""

    parts: Sequence[float | Later | Total]
    factor: float


Value = float | Later | Total
"""What stands for a number until it is read."""


def take(tensor: Any) -> float | Later | None:
    """The number in ``tensor`` as it is now, whatever happens to the tensor later. Never waits for a device.

    None for what has no value to show: more or less than one element, a fake or meta tensor, a CUDA graph that is
    being captured. Raises :class:`ValueError` for a complex number.
    """
    torch = sys.modules["torch"]
    if type(tensor) is not torch.Tensor:
        tensor = _local(tensor)
    if tensor is None or tensor.numel() != 1 or tensor.is_meta:
        return None
    if tensor.is_complex():
        raise ValueError("it is complex, and a curve of it would not be")
    if tensor.layout is not torch.strided:
        tensor = tensor.detach().to_dense()
    if tensor.is_cpu:
        return float(tensor.item())
    stream = None
    if tensor.is_cuda:
        if torch.cuda.is_current_stream_capturing():
            return None
        stream = torch.cuda.current_stream(tensor.device)
    return Later(tensor.detach().reshape(()).clone(), stream)


def number(tensor: Any) -> float | Later:
    """As :func:`take`, for a tensor that the user has called a number: :class:`ValueError` where it is none."""
    found = take(tensor)
    if found is None:
        count = tensor.numel()
        raise ValueError(f"a tensor with {count} elements is no number" if count != 1 else "the tensor has no value")
    return found


def unscaled(tensor: Any, scale: Any) -> float | Later | None:
    """The number in ``tensor`` divided by that in ``scale``, both as they are now."""
    torch = sys.modules["torch"]
    with torch.no_grad():
        return take(tensor.detach() / scale.detach().to(tensor.device, non_blocking=True))


def merge(values: Sequence[Value], factor: float) -> Value:
    """The sum of ``values`` times ``factor``."""
    if all(type(value) is float for value in values):
        return sum(values) * factor  # type: ignore[arg-type] # looked at each
    return Total(values, factor)


def read(values: Sequence[Value]) -> list[float]:
    """All of ``values`` as numbers. Waits for their devices, once for each stream of work."""
    groups: defaultdict[tuple[Any, ...], list[Later]] = defaultdict(list)
    for part in _parts(values):
        if isinstance(part, Later):
            groups[part.tensor.device, part.tensor.dtype, part.stream].append(part)
    numbers: dict[int, float] = {}
    for (_, _, stream), parts in groups.items():
        numbers.update(zip(map(id, parts), _fetch([part.tensor for part in parts], stream), strict=True))

    def one(value: Value) -> float:
        if isinstance(value, Total):
            return sum(map(one, value.parts)) * value.factor
        return numbers[id(value)] if isinstance(value, Later) else value

    return [one(value) for value in values]


def _parts(values: Sequence[Value]) -> Iterable[float | Later]:
    for value in values:
        if isinstance(value, Total):
            yield from _parts(value.parts)
        else:
            yield value


def _fetch(tensors: list[Any], stream: Any) -> list[float]:
    torch = sys.modules["torch"]
    with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
        # The copy to the processor waits for this stream alone.
        numbers: list[float] = torch.stack(tensors).cpu().double().tolist()
    return numbers


def _local(tensor: Any) -> Any:
    """The part of a DTensor that is on this rank; other tensors as they are; None for one that holds no data."""
    torch = sys.modules["torch"]
    if not isinstance(tensor, torch.Tensor) or type(tensor).__name__ in {"FakeTensor", "FunctionalTensor"}:
        return None
    if hasattr(tensor, "to_local"):
        with torch.no_grad():
            return tensor.to_local()
    return tensor


def divisor(node: Any) -> float | None:
    """By what plain number the result of this node of the graph was divided, in the last operation before it.

    None where the last operation was another. Looks at the graph alone, never at a device.
    """
    try:
        kind = node.name()
        if kind not in {"DivBackward0", "MulBackward0"} or node.next_functions[1][0] is not None:
            return None
        other = node._saved_other  # noqa: SLF001 — torch documents it as the way to saved tensors
        if other is None or not other.is_cpu or other.numel() != 1:
            return None
        factor = float(other.item())
        return factor if kind == "DivBackward0" else 1 / factor
    except (AttributeError, IndexError, RuntimeError, TypeError, ZeroDivisionError):
        # A node of another kind, or one whose graph is gone.
        return None


def gradient_norm(groups: Iterable[Mapping[str, Any]], scale: Any = None) -> float | Later | None:
    """The 2-norm of all gradients in an optimizer's parameter ``groups`` together, divided by ``scale``.

    None where there are none. Computed on their device; of DTensors the local shards count.
    """
    torch = sys.modules["torch"]
    with torch.no_grad():
        kinds: defaultdict[tuple[Any, Any], list[Any]] = defaultdict(list)
        for group in groups:
            for parameter in group["params"]:
                gradient = _dense(parameter.grad)
                if gradient is not None:
                    kinds[gradient.device, gradient.dtype].append(gradient)
        norms = [norm for gradients in kinds.values() for norm in _norms(gradients)]
        if not norms:
            return None
        device = next((norm.device for norm in norms if norm.device.type != "cpu"), norms[0].device)
        norms = [norm.to(device, torch.float32, non_blocking=True) for norm in norms]
        total = torch.linalg.vector_norm(torch.stack(norms))
        if scale is not None:
            total = total / scale.to(device, non_blocking=True)
        return take(total)


def _dense(gradient: Any) -> Any:
    if gradient is not None and hasattr(gradient, "to_local"):
        gradient = gradient.to_local()
    if gradient is not None and gradient.is_sparse:
        gradient = gradient.coalesce().values()
    return gradient


def _norms(gradients: list[Any]) -> list[Any]:
    torch = sys.modules["torch"]
    if gradients[0].dtype in {torch.float32, torch.float64}:
        return list(torch._foreach_norm(gradients, 2))  # noqa: SLF001 — what torch's own clipping calls
    # The squares of half precision would overflow.
    return [torch.linalg.vector_norm(one.float() if one.is_floating_point() else one) for one in gradients]


def first_size(batch: Any, depth: int = 0) -> int | None:
    """Samples in a batch: the first dimension of the first tensor in it. None where none is found."""
    torch = sys.modules["torch"]
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.ndim else None
    if depth == MAX_DEPTH:
        return None
    if isinstance(batch, Mapping):
        items: Iterable[Any] = batch.values()
    elif isinstance(batch, (list, tuple)):
        items = batch[:MAX_LOOK]
    else:
        return None
    for _, item in zip(range(MAX_LOOK), items, strict=False):
        size = first_size(item, depth + 1)
        if size is not None:
            return size
    return None


def on_host(value: Any) -> Any:
    """``value`` with the tensors in it on the host. Raises :class:`ValueError` for a tensor that is sharded."""
    import torch
    from torch.utils._pytree import tree_map

    def moved(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        if hasattr(one, "to_local"):
            raise ValueError("it is sharded: each rank holds its own part of it")
        return one.detach().cpu()

    return tree_map(moved, value)

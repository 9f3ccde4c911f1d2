"""Numbers from tensors, without ever making the training loop wait for a device.

A CPU tensor is read at once. For a tensor on another device, a copy is queued on that device; :func:`read` later
fetches many copies together, on the thread that flushes the metrics. No graph and no big tensor is kept alive.

For a :class:`DTensor` only this rank's part counts, because gathering it is a collective that user code has not asked
for. That is exact for a replicated value; for a value still to be summed it is the rank's share; and a gradient norm
is the norm of the gradients' local shards.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from jupyter_dtrain.plugins.framework import user_names
from jupyter_dtrain.plugins.patches import Patch

MAX_DEPTH = 4
"""How deep in a batch its first tensor may lie."""
NO_DATA = frozenset({"FakeTensor", "FunctionalTensor"})
"""Types of tensors that have none."""
MAX_LOOK = 16
"""How many items of each list in a batch to look at."""
_RELAXED = 2
"""``CU_STREAM_CAPTURE_MODE_RELAXED``."""

MODES = Patch(
    "torch",
    calls=(
        "_C._len_torch_function_stack",
        "_C._len_torch_dispatch_stack",
        "overrides._pop_mode()",
        "overrides._push_mode(mode)",
        "utils._python_dispatch._disable_current_modes()",
    ),
    why="A mode that user code has entered, such as a default device, would see what is computed to read its tensors.",
    lost="no values of tensors are read: neither losses nor those that ranks compare",
)
NORMS = Patch(
    "torch",
    calls=("_foreach_norm",),
    why="The norm of all gradients costs little where one call computes that of each, as torch's own clipping does.",
    lost="--grad-norm shows no norms",
)
TREES = Patch(
    "torch.utils._pytree",
    calls=("tree_map(func, tree)",),
    why="A result of a cell may hold tensors in lists, tuples and dictionaries of any class that torch knows.",
    lost="results that hold tensors are not copied to the host",
)
DIVISORS = Patch(
    "torch",
    reads=("_saved_other",),
    why="Only the graph of a loss knows the number by which user code has divided it, for an accumulation.",
    lost="the losses of an accumulation are shown as the cell divides them",
)


class Later(NamedTuple):
    """A number that is still on its device."""

    tensor: Any
    """A copy of our own: one element, without a graph."""
    stream: Any = None
    """The CUDA stream that computes it."""


class Total(NamedTuple):
    """The sum of some numbers, times a factor."""

    parts: Sequence[float | Later | Total]
    factor: float


Value = float | Later | Total
"""A stand-in for a number until it is read."""


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let what happens here heed no mode that user code has entered, and no such mode see it.

    A default device is a mode, too: a tensor that is made without a device would be made there.
    """
    core = getattr(sys.modules.get("torch"), "_C", None)
    functions = core._len_torch_function_stack() if core else 0  # noqa: SLF001 — torch has no public way
    if not functions and not (core and core._len_torch_dispatch_stack()):  # noqa: SLF001 — as above
        yield
        return
    import torch.overrides as of_functions
    import torch.utils._python_dispatch as of_dispatches

    kept = [of_functions._pop_mode() for _ in range(functions)]  # noqa: SLF001 — as above
    try:
        with of_dispatches._disable_current_modes():  # noqa: SLF001 — as above
            yield
    finally:
        for mode in reversed(kept):
            of_functions._push_mode(mode)  # noqa: SLF001 — as above


def is_captured() -> bool:
    """Whether what this thread computes now only goes into a CUDA graph: it has no value yet, and a step is none."""
    cuda = sys.modules["torch"].cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def may_capture() -> bool:
    """Whether :func:`is_captured` may ever be true: not where torch is built without CUDA."""
    return bool(sys.modules["torch"].backends.cuda.is_built())


@undisturbed()
def take(tensor: Any) -> float | Later | None:
    """The number in ``tensor`` as it is now, whatever happens to the tensor later. Never waits for a device.

    None where there is no value to show: more or less than one element, a fake or meta tensor, a CUDA graph that is
    being captured. Raises :class:`ValueError` for a complex number.
    """
    torch = sys.modules["torch"]
    if type(tensor) is not torch.Tensor:
        tensor = _local(tensor)
    if tensor is None or tensor.numel() != 1 or tensor.is_meta:
        return None
    if tensor.is_complex():
        raise ValueError("it is complex, and a curve shows real numbers")
    if tensor.layout is not torch.strided:
        tensor = tensor.detach().to_dense()
    if tensor.is_cpu:
        return float(tensor.item())
    stream = None
    if tensor.is_cuda:
        if is_captured():
            return None
        stream = torch.cuda.current_stream(tensor.device)
    return Later(tensor.detach().reshape(()).clone(), stream)


def number(tensor: Any) -> float | Later:
    """Like :func:`take`, for a tensor that the user logs as a number: raises :class:`ValueError` where it is none."""
    found = take(tensor)
    if found is None:
        count = tensor.numel()
        raise ValueError(
            f"a tensor with {count} elements is not one number" if count != 1 else "the tensor has no value"
        )
    return found


@undisturbed()
def unscaled(tensor: Any, scale: Any) -> float | Later | None:
    """The number in ``tensor`` divided by the one in ``scale``, both as they are now."""
    torch = sys.modules["torch"]
    with torch.no_grad():
        return take(tensor.detach() / scale.detach().to(tensor.device, non_blocking=True))


def merge(values: Sequence[Value], factor: float) -> Value:
    """Return the sum of ``values`` times ``factor``."""
    if all(type(value) is float for value in values):
        return sum(values) * factor  # type: ignore[arg-type] # all floats, checked above
    return Total(values, factor)


def read(values: Sequence[Value]) -> list[float]:
    """Read all of ``values`` as numbers. It waits for their devices, once for each stream."""
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


@undisturbed()
def _fetch(tensors: list[Any], stream: Any) -> list[float]:
    if stream is not None:
        return _copied(tensors, stream)
    numbers: list[float] = sys.modules["torch"].stack(tensors).cpu().double().tolist()
    return numbers


def _copied(tensors: list[Any], stream: Any) -> list[float]:
    """The numbers in ``tensors``, all of one type and computed on the CUDA ``stream``."""
    numbers: list[float] = _beside(lambda: _copied_now(sys.modules["torch"].stack(tensors)), stream).double().tolist()
    return numbers


def _beside(copy: Callable[[], Any], stream: Any) -> Any:
    """What ``copy`` returns, which copies from the CUDA ``stream`` to the host.

    The training loop, on another thread, must not notice this. So a copy keeps to four rules:

    * It waits for the stream that computes the numbers, and for no other. It waits in an event, asleep: a wait for the
      stream would keep a processor busy, and would fail where user code forbids waits
      (``torch.cuda.set_sync_debug_mode("error")`` holds for all threads).
    * It leaves no CUDA context on another device: ``torch.cuda.stream`` alone, on a thread that has used no device yet,
      would make one on device 0 when it ends, with hundreds of megabytes in each rank.
    * It may come while another thread captures a CUDA graph. CUDA would forbid it to allocate and to wait then, and
      would break the capture, unless this thread says that it takes no part (:func:`beside_captures`).
    * It adds nothing to a graph that its own stream captures: then it takes a stream of its own. Earlier work has ended
      by then, because ``torch.cuda.graph`` waits for the device before it begins.

    Raises whatever CUDA reports, such as the fault of a kernel that came before.
    """
    cuda = sys.modules["torch"].cuda
    with beside_captures(), cuda.device(stream.device), cuda.stream(stream):
        if not cuda.is_current_stream_capturing():
            return copy()
        with cuda.stream(cuda.Stream()):
            return copy()


def _copied_now(tensor: Any) -> Any:
    """Copy ``tensor`` to the host on the current stream."""
    torch = sys.modules["torch"]
    # Only a copy to pinned memory leaves the wait to us.
    on_host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    on_host.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event(blocking=True)
    done.record()
    done.synchronize()
    return on_host


def copied(tensor: Any, places: Sequence[slice]) -> Callable[[], Any]:
    """Copy the values of ``tensor`` at ``places``, as :meth:`.Part.copy` says. Never waits for a device.

    Raises :class:`ValueError` for a tensor that has no values here, or none that are real numbers.
    """
    torch = sys.modules["torch"]
    if type(tensor).__name__ in NO_DATA or tensor.is_meta or (tensor.is_cuda and is_captured()):
        raise ValueError("the tensor has no values yet")
    if tensor.is_complex():
        raise ValueError("it is complex, and only real numbers are kept")
    with torch.no_grad():
        tensor = tensor.detach()
        if tensor.is_sparse:
            if len(places) > 1:
                raise ValueError("it is sparse, and only histograms of sparse tensors are kept")
            tensor = tensor.coalesce().values()
        if tensor.is_quantized or tensor.layout is not torch.strided:
            tensor = tensor.dequantize() if tensor.is_quantized else tensor.to_dense()
        if len(places) != tensor.ndim:
            # In the order of the memory: so a tensor that is only turned is not copied as a whole.
            axes = sorted(range(tensor.ndim), key=lambda axis: -tensor.stride(axis))
            tensor = tensor.permute(axes).reshape(-1)
        chosen = tensor[tuple(places)]
        if chosen.is_floating_point() and chosen.dtype not in (torch.float16, torch.float32, torch.float64):
            chosen = chosen.float()
        mine = chosen.clone(memory_format=torch.contiguous_format)
    stream = torch.cuda.current_stream(mine.device) if mine.is_cuda else None

    @undisturbed()
    def fetch() -> Any:
        return (mine.cpu() if stream is None else _beside(lambda: _copied_now(mine), stream)).numpy()

    return fetch


@contextlib.contextmanager
def beside_captures() -> Iterator[None]:
    """Let calls of this thread have no effect on the CUDA graphs that others capture. No-op without NVIDIA's driver."""
    exchange = _exchange()
    mode = ctypes.c_int(_RELAXED)
    if exchange is None or exchange(ctypes.byref(mode)):
        yield
        return
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@lru_cache(1)
def _exchange() -> Any:
    """The driver's function that swaps this thread's mode with a given one; None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):
        return None


def _local(tensor: Any) -> Any:
    """The part of a DTensor that is on this rank; any other tensor itself; None for one that holds no data."""
    torch = sys.modules["torch"]
    if not isinstance(tensor, torch.Tensor) or type(tensor).__name__ in NO_DATA:
        return None
    if hasattr(tensor, "to_local"):
        with torch.no_grad():
            return tensor.to_local()
    return tensor


def divisor(node: Any) -> float | None:
    """The plain number by which the last operation before this node of the graph divided its result.

    None where that operation did something else. It looks at the graph alone, never at a device.
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
        # A node of another kind, or one whose graph has been freed.
        return None


@undisturbed()
def gradient_norm(groups: Iterable[Mapping[str, Any]], scale: Any = None) -> float | Later | None:
    """The 2-norm of all gradients in an optimizer's parameter ``groups`` together, divided by ``scale``.

    None where there are no gradients. Computed on their device; for DTensors the local shards count.
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
        return list(torch._foreach_norm(gradients, 2))  # noqa: SLF001 — torch's own clipping calls it
    # In half precision the squares would overflow.
    return [torch.linalg.vector_norm(one.float() if one.is_floating_point() else one) for one in gradients]


def first_size(batch: Any, depth: int = 0) -> int | None:
    """Samples in a batch: the first dimension of the first tensor in it. None where it has no tensor."""
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


def spread_names() -> str:
    """The user's models and tensors of which each rank holds a part, as a clause; empty where there are none.

    Also those of FSDP's older form, whose parameters look like others: by the name of its class.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return ""
    names = [name for name, value in user_names() if _is_spread(torch, value)]
    return f"each rank holds only a part of {', '.join(names)}" if names else ""


def _is_spread(torch: Any, value: Any) -> bool:
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        return hasattr(kind, "to_local") and not all(one.is_replicate() for one in value.placements)
    if not issubclass(kind, torch.nn.Module):
        return False
    sharded = any(type(one).__name__ == "FullyShardedDataParallel" for one in value.modules())
    return sharded or any(_is_spread(torch, one) for one in value.parameters())


@undisturbed()
def on_host(value: Any) -> Any:
    """``value`` with its tensors copied to the host. Raises :class:`ValueError` for a sharded tensor."""
    import torch
    from torch.utils._pytree import tree_map

    def moved(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        if hasattr(one, "to_local"):
            raise ValueError("it is sharded: each rank holds only a part of it")
        return one.detach().cpu()

    return tree_map(moved, value)

"""Losses, steps and learning rates from PyTorch's own calls, without a line of logging code.

When user code imports torch, this module hooks ``torch.autograd.backward`` (every ``Tensor.backward`` goes through
it), optimizer steps, ``torch.amp.GradScaler`` and the DataLoader's iterators. A cell then shows:

* Each value given to ``backward()`` is in a series named after the variable at the call (see :mod:`.call_sites`), or
  ``loss`` where it has no name. The value waits, as a number, for the next optimizer step on its thread; the point
  takes that step's number. :mod:`.losses` describes how several values become one point.
* A step that a GradScaler skips counts as a step. A step inside another one (an optimizer that calls another) does not.
* A step on a thread that never calls ``backward`` takes the values of all threads that never make a step.
* ``steps/s``, ``samples/s`` and ``lr`` are added when metrics are flushed, see :mod:`.steps`. With ``--grad-norm``
  each step adds ``grad_norm`` or ``grad_norm/NAME``: the norm of its gradients as the optimizer meets them (clipped,
  if they were; unscaled).

Training across ``torch.distributed.rpc`` leaves ``backward`` and ``step`` to native code and to threads of the ranks
that hold the parameters. So on the rank that asks, each value given to ``torch.distributed.autograd.backward`` is the
caller's loss, and ``DistributedOptimizer.step`` is one step, whatever the optimizers on other ranks do for it. Learning
rates belong to those ranks: if such an optimizer is torch's own, its rank shows them.

These hooks never wait for a device, never raise into user code and keep no graph. In a cell without metrics, and
between cells, each hook costs one comparison. ``torch.compile`` skips this package and makes the same graphs without.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from jupyter_dtrain.core.metrics import Columns
from jupyter_dtrain.plugins.patches import Patch, caller
from jupyter_dtrain.rank.metrics import SOON

from . import values
from .call_sites import Call, CallSites
from .dataloader_stats import LoaderReadings
from .losses import UNNAMED, Losses, Training
from .replicas import replicas_of
from .steps import Step, Stepper, Steppers, rates_of, settings_of

if TYPE_CHECKING:
    from jupyter_dtrain.rank.metrics import MetricBuffer
    from jupyter_dtrain.wire.messages import Watching

BACKWARD = Patch(
    "torch",
    replaces=("autograd.backward",),
    why="The variable on which user code calls backward() names a loss, and torch tells nobody of that call.",
    lost="losses given to backward() are not shown",
)
OPTIMIZERS = Patch(
    "torch.optim.optimizer",
    replaces=("Optimizer.__init__",),
    calls=("register_optimizer_step_pre_hook", "register_optimizer_step_post_hook"),
    why="Losses that wait for a step are not meant for an optimizer that is made after them, and torch tells of steps "
    "alone.",
    lost="steps and learning rates of optimizers are not shown",
)
SCALER = Patch(
    "torch",
    replaces=("amp.GradScaler.scale", "amp.GradScaler.step"),
    reads=("_scale",),
    why="A GradScaler multiplies the loss before backward() gets it, and it leaves out steps without telling.",
    lost="losses that a GradScaler has scaled are shown scaled",
)
SHARDED_SCALER = Patch(
    "torch.distributed.fsdp.sharded_grad_scaler",
    replaces=("ShardedGradScaler.scale",),
    reads=("_scale",),
    why="A ShardedGradScaler multiplies the loss before backward() gets it, by a method of its own.",
    lost="losses that a ShardedGradScaler has scaled are shown scaled",
)
BATCHES = Patch(
    "torch",
    replaces=("utils.data.dataloader._BaseDataLoaderIter.__next__",),
    reads=("_index_sampler", "_num_yielded"),
    why="A DataLoader tells nobody how many samples it has returned, and from which of its loaders a model trains.",
    lost="samples/s and the batch of all ranks are not shown",
)
REMOTE_LOSSES = Patch(
    "torch.distributed.autograd",
    replaces=("backward",),
    why="Distributed autograd computes gradients without torch's own backward(), where losses are heard.",
    lost="losses of distributed autograd are not shown",
)
REMOTE_STEPS = Patch(
    "torch.distributed.optim.optimizer",
    replaces=("DistributedOptimizer.__init__", "DistributedOptimizer.step"),
    why="A DistributedOptimizer makes its steps on other ranks, and calls none of torch's hooks on its own.",
    lost="steps of a DistributedOptimizer are not counted",
)
HIDING = Patch(
    "torch._dynamo.trace_rules",
    calls=("add(import_name)",),
    reads=("_torchdynamo_disable",),
    why="torch.compile would trace these hooks, and break the graphs of the user's code at them.",
    lost="torch.compile may trace into the hooks for losses",
)

_Hook = TypeVar("_Hook", bound=Callable[..., Any])
_Made = tuple[Stepper, int, float, int, Any, str | None, Any]
"""A point of a step: optimizer, number of steps, time, samples so far, learning rates, name and value.

The rates are a list, or the only one. A step without points has one such tuple, whose name is None.
"""


class TorchMetrics:
    """The part of :class:`~jupyter_dtrain.frameworks.torch.plugin.Torch` that follows a training loop."""

    def __init__(self, metrics: MetricBuffer) -> None:
        self._metrics = metrics
        self._on = False
        self._grad_norm = False
        self._sites = CallSites()
        self._steppers = Steppers(metrics)
        self._reading = LoaderReadings(metrics)
        self._losses = Losses(
            metrics, self._sites, optimizers_exist=self._steppers.exist, report_steps=self._report_steps
        )
        self.whole_step = self._losses.whole_step
        # Their points are made when the metrics are flushed, outside the training loop.
        self._made: deque[_Made] = deque()
        self._reporting = threading.Lock()
        self._samples = 0
        self._captures = True
        """Whether a step may go into a CUDA graph: not where torch is built without CUDA."""

    def install(self) -> None:
        """Hook torch once user code imports it."""
        global _of_rank  # noqa: PLW0603 — a process is one rank
        _of_rank = self
        BACKWARD.when_imported(self._hook_backward)
        OPTIMIZERS.when_imported(self._hook_optimizers)
        SCALER.when_imported(self._hook_scaler)
        BATCHES.when_imported(self._hook_loaders)
        REMOTE_LOSSES.when_imported(_hook_autograd)
        REMOTE_STEPS.when_imported(self._hook_remote_optimizers)
        HIDING.when_imported(_hide)
        SHARDED_SCALER.when_imported(self._hook_sharded_scaler)
        self._metrics.before_flush(self._report)
        self._metrics.count_by(self._steppers.most)
        os.register_at_fork(after_in_child=self._forked)

    def begin(self, watch: Watching) -> None:
        """Start a cell: its runs count steps from 0."""
        self._steppers.begin()
        self._reading.begin()
        self._losses.begin()
        self._made.clear()
        self._samples = 0
        self._grad_norm = watch.grad_norm
        self._on = watch.metrics

    @contextlib.contextmanager
    def hearing(
        self, loss: Any, frame: FrameType | None, *, divides: bool, call: Call = Call.THROUGH
    ) -> Iterator[None]:
        """See :func:`hearing`. ``frame``: the caller that gave ``loss`` to the library, by a ``call`` of that kind."""
        training = self._losses.training() if self._on else None
        if training is None or training.depth:
            yield
            return
        try:
            self._losses.hear(training, loss, None, frame, call, whole=divides)
        except Exception as error:  # noqa: BLE001 — the user's training goes on
            self._failed(error)
        training.depth += 1
        try:
            yield
        finally:
            training.depth -= 1

    @contextlib.contextmanager
    def unheard(self) -> Iterator[None]:
        """Ignore the losses of backward passes in this context: the caller gives the loss to :meth:`add_loss`."""
        training = self._losses.training()
        training.depth += 1
        try:
            yield
        finally:
            training.depth -= 1

    def add_loss(self, parts: Sequence[Any], factor: float) -> None:
        """Add the sum of ``parts``, tensors as they are now, times ``factor`` as a loss of the calling thread."""
        found = [value for value in map(values.take, parts) if value is not None]
        if self._on and found:
            self._losses.take(self._losses.training(), UNNAMED, values.merge(found, factor))

    @contextlib.contextmanager
    def adding(self) -> Iterator[None]:
        """See :func:`adding`."""
        training = self._losses.training() if self._on else None
        if training is None or training.parts:
            yield
            return
        training.parts = True
        training.quick = False
        try:
            yield
        finally:
            training.parts = False

    @contextlib.contextmanager
    def one_step(self, optimizer: Any) -> Iterator[None]:
        """See :func:`one_step`."""
        training = self._losses.training() if self._on else None
        if training is None or training.one_step:
            yield
            return
        training.one_step = True
        try:
            yield
        finally:
            training.one_step = False
        self._skipped(training, optimizer)

    def steps(self) -> dict[str, int]:
        """How many steps each optimizer has made in this run; empty with a pipeline, whose ranks hold unlike parts."""
        return {} if self._losses.piped else self._steppers.counts()

    def configuration(self) -> dict[str, dict[str, Any]]:
        """The hyper-parameters of this run's optimizers, and its batches."""
        self._report_steps()
        found = self._steppers.settings()
        if batches := self._reading.batches():
            found["data"] = batches
        return found

    def end(self) -> None:
        """End the cell: turn everything that still waits into points."""
        self._on = False
        self._losses.end()
        self._reading.end()

    def _forked(self) -> None:
        """Ignore training in a forked process: it is no part of the cell, and locks copied there may stay locked."""
        self._on = False
        self._losses.forget()

    def _report(self) -> None:
        """Make points of all steps so far, because the metrics are about to be flushed."""
        self._report_steps()
        self._reading.report()
        self._steppers.report()

    def _report_steps(self) -> None:
        made, found, newest = self._made, dict[str, Columns](), dict[Stepper, Step]()
        with self._reporting, contextlib.ExitStack() as last:
            last.callback(self._add_found, newest, found)  # also where a point raises: the others have left the queue
            for _ in range(len(made)):
                stepper, count, at, samples, rates, name, value = made.popleft()
                step = newest[stepper] = (count, at, samples, rates)
                if stepper.base is None:
                    stepper.stepped(step)
                if samples:
                    self._reading.stepped(stepper, samples)
                if name is None:
                    continue
                columns = found.get(name)
                if type(value) is not float:
                    if columns is not None:
                        self._metrics.add_all(name, found.pop(name))
                    self._losses.add(name, value, count - 1, at=at)
                    continue
                if columns is None:
                    columns = found[name] = Columns.empty()
                columns.steps.append(count - 1)
                columns.times.append(at)
                columns.values.append(value)

    def _add_found(self, newest: dict[Stepper, Step], found: dict[str, Columns]) -> None:
        for stepper, step in newest.items():
            stepper.stepped(step)
        for name, columns in found.items():
            self._metrics.add_all(name, columns)

    def _failed(self, error: Exception) -> None:
        self._metrics.complain(f"Metrics: some points are missing: {type(error).__name__}: {error}")

    # ---- hooks --------------------------------------------------------------------------------------------------

    def _hook_backward(self, torch: Any) -> None:
        original = torch.autograd.backward
        guarded = BACKWARD.replace(torch.autograd, "backward", self._backward(torch))
        BACKWARD.put(torch.autograd, "backward", hidden(self._quick_backward(torch, original, guarded)))

    def _hook_optimizers(self, module: Any) -> None:
        self._follow(module.Optimizer, OPTIMIZERS)
        module.register_optimizer_step_pre_hook(self._before_step())
        module.register_optimizer_step_post_hook(self._after_step())

    def _hook_scaler(self, torch: Any) -> None:
        hidden(SCALER.replace(torch.amp.GradScaler, "scale", self._scale))
        hidden(SCALER.replace(torch.amp.GradScaler, "step", self._scaler_step))

    def _hook_sharded_scaler(self, module: Any) -> None:
        # It has its own scale() and inherits step().
        hidden(SHARDED_SCALER.replace(module.ShardedGradScaler, "scale", self._scale))

    def _hook_remote_optimizers(self, module: Any) -> None:
        self._follow(module.DistributedOptimizer, REMOTE_STEPS)
        hidden(REMOTE_STEPS.replace(module.DistributedOptimizer, "step", _remote_step))

    def _hook_loaders(self, torch: Any) -> None:
        iterator = torch.utils.data.dataloader._BaseDataLoaderIter  # noqa: SLF001 — every loader returns one
        hidden(BATCHES.replace(iterator, "__next__", self._next_batch))

    # In a loop of short steps these hooks run between two long calls of native code, which push everything else out of
    # the processor's caches: then each line and each call of Python costs many times what it costs by itself. So what
    # is the same in nearly all steps has a form of its own, in one function, without a call of another one.

    def _quick_backward(
        self, torch: Any, original: Callable[..., Any], guarded: Callable[..., Any]
    ) -> Callable[..., Any]:
        """What stands for ``original``: the next number of a known series, or else ``guarded``."""
        losses, known, ident = self._losses, self._sites.known, threading.get_ident
        getframe = sys._getframe  # noqa: SLF001 — documented in spite of its name
        plain = torch.Tensor

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            training: Any = losses.main
            name: Any = None
            value = None
            # Within a step, it matters whether a name has had its value.
            if (
                training is not None
                and training.quick
                and not training.depth
                and not training.stepping
                and training.ident == ident()
            ):
                try:
                    tensor = args[0]
                    if type(tensor) is plain and tensor.is_cpu and args[1] is None:
                        # The caller of Tensor.backward, which called this function. Code that calls torch's function
                        # directly misses this look-up.
                        frame = getframe(2)
                        name = known.get((id(frame.f_code), frame.f_lasti))
                        if name is not None and name not in training.waiting:
                            value = tensor.item()
                except Exception:  # noqa: BLE001 — no single number, say: torch itself tells what is wrong
                    value = None
            if type(value) is not float:
                return guarded(*args, **kwargs)
            training.waiting[name] = value
            training.depth = 1
            try:
                return original(*args, **kwargs)
            finally:
                training.depth = 0

        return backward

    def _backward(self, torch: Any) -> Callable[..., Any]:
        losses, method = self._losses, torch.Tensor.backward.__code__
        getframe = sys._getframe  # noqa: SLF001 — documented in spite of its name

        def backward(original: Any, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not self._on:
                return original(tensors, grad_tensors, *args, **kwargs)
            training = losses.training()
            if not training.depth:
                try:
                    frame = getframe(3)  # beyond the guard and the quick form
                    if frame.f_code is method:
                        losses.hear(training, tensors, grad_tensors, frame.f_back, Call.METHOD)
                    else:
                        losses.hear(training, tensors, grad_tensors, frame, Call.FUNCTION)
                except Exception as error:  # noqa: BLE001 — the user's training goes on
                    self._failed(error)
            training.depth += 1
            try:
                return original(tensors, grad_tensors, *args, **kwargs)
            finally:
                training.depth -= 1

        return backward

    def _follow(self, kind: Any, patch: Patch) -> None:
        """Note when optimizers of this ``kind`` are made; ``patch`` declares that."""
        hidden(patch.replace(kind, "__init__", self._optimizer_init))

    def _optimizer_init(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if self._on:
            # The waiting values cannot be meant for a new optimizer.
            self._losses.give_up(self._losses.training())
        self._steppers.born(optimizer)
        original(optimizer, *args, **kwargs)

    def _before_step(self) -> Callable[..., None]:
        losses, ident = self._losses, threading.get_ident

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 — torch's signature
            training = losses.main
            if (
                training is not None
                and training.quick
                and not training.stepping
                and not self._grad_norm
                and not (self._captures and values.is_captured())
                and training.ident == ident()
            ):
                training.stepping = not training.one_step
                training.in_step.clear()
            elif self._on:
                self._step_begins(losses.training(), optimizer, sys._getframe(1))  # noqa: SLF001 — as above

        return hidden(before_step)

    def _step_begins(self, training: Training, optimizer: Any, frame: FrameType) -> None:
        """Note that an optimizer is about to step. ``frame``: torch's wrapper around the step."""
        if training.one_step or values.is_captured():
            return
        try:
            if training.stepping:
                if _is_within_step(frame):
                    training.nested += 1
                    return
                # The step before this one raised.
                training.nested = 0
                self._losses.give_up(training)
            training.stepping = True
            training.in_step.clear()
            if self._grad_norm:
                self._log_norm(training, optimizer)
        except Exception as error:  # noqa: BLE001 — the user's training goes on
            self._failed(error)

    def _after_step(self) -> Callable[..., None]:
        losses, ident, monotonic = self._losses, threading.get_ident, time.monotonic
        made, metrics, steppers = self._made, self._metrics, self._steppers

        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 — torch's signature
            training = losses.main
            try:
                if (
                    training is not None
                    and training.quick
                    and training.stepping
                    and not training.nested
                    and not training.listed
                    and not training.one_step
                    and not (self._captures and values.is_captured())
                    and training.ident == ident()
                    and (stepper := steppers.found.get(id(optimizer))) is not None
                    and optimizer is stepper.optimizer()
                ):
                    # A short form of _stepped.
                    training.stepping = False
                    training.steps += 1
                    stepper.count = count = stepper.count + 1
                    groups = optimizer.param_groups
                    rates = groups[0].get("lr") if len(groups) == 1 else None
                    if type(rates) is not float:
                        rates = rates_of(optimizer)
                    points, at = training.waiting, monotonic() + metrics.epoch
                    if len(points) == 1:
                        name, value = points.popitem()
                        made.append((stepper, count, at, self._samples, rates, name, value))
                        waiting = len(made)
                        if waiting == 1 or waiting >= SOON:
                            metrics.expect(waiting)
                    else:
                        training.waiting = {}
                        self._made_step((stepper, count, at, self._samples, rates), points)
                elif self._on:
                    self._step_ended(losses.training(), optimizer)
            except Exception as error:  # noqa: BLE001 — the user's training goes on
                self._failed(error)

        return hidden(after_step)

    def _step_ended(self, training: Training, optimizer: Any) -> None:
        """Note that an optimizer has stepped."""
        if training.one_step or values.is_captured():
            return
        if training.nested:
            training.nested -= 1
        else:
            self._stepped(training, optimizer)

    def _stepped(self, training: Training, optimizer: Any) -> None:
        """Count a step that an optimizer ended or a scaler skipped."""
        training.stepping = False
        training.steps += 1
        stepper = self._find(training, optimizer)
        stepper.count += 1
        points = self._losses.step(training)
        self._made_step((stepper, stepper.count, self._metrics.now(), self._samples, rates_of(optimizer)), points)

    def _made_step(self, step: tuple[Stepper, int, float, int, Any], points: dict[str, values.Value]) -> None:
        for name, value in points.items() or ((None, None),):
            self._made.append((*step, name, value))
            waiting = len(self._made)
            if waiting == 1 or waiting >= SOON:
                self._metrics.expect(waiting)

    def _find(self, training: Training, optimizer: Any) -> Stepper:
        stepper = self._steppers.found.get(id(optimizer))
        if stepper is None or stepper.optimizer() is not optimizer:
            name = training.scaler_steps
            if name is None:
                frame = sys._getframe(1)  # noqa: SLF001 — documented in spite of its name
                names = self._sites.names(frame, Call.STEP)
                name = names[0] if names else None
            stepper = self._steppers.meet(optimizer, training, name or type(optimizer).__name__)
            stepper.named = name is not None
            with contextlib.suppress(Exception):  # an optimizer of somebody's own, with groups of its own
                stepper.settings = settings_of(optimizer)
            stepper.replicas = replicas_of(optimizer)  # now: the cell may drop both before the metrics are flushed
            self._captures = values.may_capture()
        return stepper

    def _log_norm(self, training: Training, optimizer: Any) -> None:
        stepper = self._find(training, optimizer)
        if stepper.label is not None:
            # Set for an optimizer that unscales while it steps.
            scale = getattr(optimizer, "grad_scale", None)
            norm = values.gradient_norm(optimizer.param_groups, scale)
            if norm is not None:
                self._losses.add(f"grad_norm{stepper.label}", norm, stepper.count)

    def _scale(self, original: Any, scaler: Any, outputs: Any) -> Any:
        result = original(scaler, outputs)
        if self._on and result is not outputs:
            # get_scale() would wait for the device.
            self._losses.scaled(outputs, result, scaler._scale)  # noqa: SLF001
        return result

    def _scaler_step(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._on:
            return original(scaler, optimizer, *args, **kwargs)
        training = self._losses.training()
        steps = training.steps
        try:
            names = self._sites.names(caller(), Call.STEP_OF)
            training.scaler_steps = names[0] if names else None
            result = original(scaler, optimizer, *args, **kwargs)
            if training.steps == steps and self._on and not training.one_step and not values.is_captured():
                self._skipped(training, optimizer)
        finally:
            training.scaler_steps = None
        return result

    def _skipped(self, training: Training, optimizer: Any) -> None:
        try:
            self._stepped(training, optimizer)
        except Exception as error:  # noqa: BLE001 — the user's training goes on
            self._failed(error)

    def _next_batch(self, original: Any, iterator: Any) -> Any:
        batch = original(iterator)
        # Batches without gradients are no training samples.
        if self._on and sys.modules["torch"].is_grad_enabled():
            size = values.first_size(batch) or 0
            self._reading.gives(iterator, batch, size, self._samples)
            self._samples += size
        return batch


_of_rank: TorchMetrics | None = None


def hearing(
    loss: Any, frame: FrameType | None, *, divides: bool, call: Call = Call.THROUGH
) -> contextlib.AbstractContextManager[None]:
    """Take ``loss`` as the user's loss, and ignore what a library makes of it within this context.

    For a library whose backward divides or scales its argument. ``frame``: that of the library's caller.
    ``divides``: whether the library divides by the steps of an accumulation, so that the user's value is undivided.
    ``call``: how the caller passes it.
    """
    return contextlib.nullcontext() if _of_rank is None else _of_rank.hearing(loss, frame, divides=divides, call=call)


def adding() -> contextlib.AbstractContextManager[None]:
    """Add up the values given to backward in this context: their sum is the loss of the next step."""
    return contextlib.nullcontext() if _of_rank is None else _of_rank.adding()


def unheard() -> contextlib.AbstractContextManager[None]:
    """Ignore the values given to backward in this context: a library reports its losses itself."""
    return contextlib.nullcontext() if _of_rank is None else _of_rank.unheard()


def whole_step() -> contextlib.AbstractContextManager[None]:
    """Treat this context as one whole step of a pipeline. If it fails, forget the values given to backward."""
    return contextlib.nullcontext() if _of_rank is None else _of_rank.whole_step()


def one_step(optimizer: Any) -> contextlib.AbstractContextManager[None]:
    """Count everything that optimizers do in this context as one step of ``optimizer``, even if none of them steps.

    For a library that steps once for each group of parameters, or skips a step after an overflow.
    """
    return contextlib.nullcontext() if _of_rank is None else _of_rank.one_step(optimizer)


def hidden(function: _Hook) -> _Hook:
    """Mark ``function`` so that torch.compile calls it without tracing it, as torch.compiler.disable would."""
    vars(function)["_torchdynamo_disable"] = True
    return function


def _hook_autograd(module: Any) -> None:
    hidden(REMOTE_LOSSES.replace(module, "backward", _remote_backward))


def _remote_backward(original: Any, context_id: int, roots: Any, *args: Any, **kwargs: Any) -> Any:
    with hearing(roots, caller(), divides=True, call=Call.ROOTS):
        return original(context_id, roots, *args, **kwargs)


def _remote_step(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    with one_step(optimizer):
        return original(optimizer, *args, **kwargs)


def _hide(rules: ModuleType) -> None:
    """Make torch.compile skip all frames of this package."""
    rules.add(__name__.partition(".")[0])
    # It stops at a function in C, which Python's own is, and would trace the one that stands in its place in a rank.
    if isinstance(warnings.warn, FunctionType):
        hidden(warnings.warn)


def _is_within_step(frame: FrameType) -> bool:
    """Whether ``frame``, torch's wrapper around an optimizer's step, runs inside another optimizer's wrapper."""
    file = frame.f_code.co_filename
    outer = frame.f_back
    while outer is not None:
        if outer.f_code.co_filename == file and "wrapper" in outer.f_code.co_name:
            return True
        outer = outer.f_back
    return False

"""Losses, steps and learning rates out of PyTorch's own calls, without a line of logging code.

When the user's code imports torch, ``torch.autograd.backward`` (through which every ``Tensor.backward`` goes), the
hooks around optimizers' steps, ``torch.amp.GradScaler`` and the DataLoader's iterators are listened to. What a cell
shows then:

* The value that ``backward()`` is called on is a series named after the variable at the call (see
  :mod:`.call_sites`), ``loss`` where it has no name. It waits, as a number, for the next optimizer step on its
  thread; the point's step is that step's number. :mod:`.losses` says what becomes of several values.
* A step that a GradScaler skips is a step, too. A step within another (of an optimizer that calls another's) is none.
* A step on a thread that never calls ``backward`` takes the values of all threads that never make a step.
* ``steps/s``, ``samples/s`` and ``lr`` are added when metrics are flushed, see :mod:`.steps`. With
  ``--grad-norm`` each step adds the norm of its gradients as the optimizer meets them (clipped, if they were;
  unscaled): ``grad_norm``, ``grad_norm/NAME``.

Nothing here waits for a device, raises into the user's code, or keeps a graph. In a cell without metrics, and between
cells, each hook is one comparison. ``torch.compile`` makes the same graphs as without: it is told not to look in here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import wrapt

from jupyter_dtrain.engine.libraries import add_library
from jupyter_dtrain.engine.metrics import SOON

from . import values
from .call_sites import Call, CallSites
from .losses import UNNAMED, Losses, Training
from .steps import Step, Stepper, Steppers, rates_of

if TYPE_CHECKING:
    from jupyter_dtrain.engine.metrics import MetricBuffer, Read
    from jupyter_dtrain.wire.messages import Watching

_Hook = TypeVar("_Hook", bound=Callable[..., Any])
_Made = tuple[Stepper, Step, dict[str, values.Value]]
"""A step, and the values that are its points."""


class TorchMetrics:
    """What :class:`~jupyter_dtrain.frameworks.torch.plugin.Torch` sees of a training loop."""

    def __init__(self, metrics: MetricBuffer) -> None:
        self._metrics = metrics
        self._on = False
        self._grad_norm = False
        self._sites = CallSites()
        self._steppers = Steppers(metrics)
        self._losses = Losses(metrics, self._sites, optimizers_exist=self._steppers.exist, tell_steps=self._tell_steps)
        # Steps whose points are made when the metrics are flushed, outside of the loop.
        self._made: deque[_Made] = deque()
        self._telling = threading.Lock()
        self._samples = 0

    def install(self) -> None:
        """Wait for torch to be imported."""
        global _of_rank  # noqa: PLW0603 — a process is one rank
        _of_rank = self
        wrapt.register_post_import_hook(self._hook, "torch")
        wrapt.register_post_import_hook(_hide, "torch._dynamo.trace_rules")
        wrapt.register_post_import_hook(self._hook_sharded_scaler, "torch.distributed.fsdp.sharded_grad_scaler")
        self._metrics.before_flush(self._tell)
        os.register_at_fork(after_in_child=self._forked)

    def begin(self, watch: Watching) -> None:
        """A cell begins."""
        self._sites.forget()
        self._steppers.begin()
        self._losses.begin()
        self._made.clear()
        self._samples = 0
        self._grad_norm = watch.grad_norm
        self._on = watch.metrics

    @contextlib.contextmanager
    def hearing(self, loss: Any, frame: FrameType | None, *, divides: bool) -> Iterator[None]:
        """See :func:`hearing`. ``frame``: who gave ``loss`` away."""
        training = self._losses.training() if self._on else None
        if training is None or training.depth:
            yield
            return
        try:
            self._losses.hear(training, loss, None, frame, Call.THROUGH, whole=divides)
        except Exception as error:  # noqa: BLE001 — the user's training goes on
            self._failed(error)
        training.depth += 1
        try:
            yield
        finally:
            training.depth -= 1

    @contextlib.contextmanager
    def unheard(self) -> Iterator[None]:
        """Backward passes in this context add no loss: the caller gives it to :meth:`add_loss`."""
        training = self._losses.training()
        training.depth += 1
        try:
            yield
        finally:
            training.depth -= 1

    def add_loss(self, parts: Sequence[Any], factor: float) -> None:
        """The sum of ``parts``, tensors as they are now, times ``factor`` is a loss of the calling thread."""
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
        """How many steps each optimizer has made in this run, by its variable."""
        return self._steppers.counts()

    def end(self) -> None:
        """The cell has ended: what still waits are points now."""
        self._on = False
        self._losses.end()

    def _forked(self) -> None:
        """What a forked process does is no part of the cell; and the locks that it has got may be held for ever."""
        self._on = False
        self._losses.forget()

    def _tell(self) -> None:
        """The metrics are about to be flushed."""
        self._tell_steps()
        self._steppers.tell()

    def _tell_steps(self) -> None:
        with self._telling:
            for _ in range(len(self._made)):
                stepper, newest, points = self._made.popleft()
                stepper.stepped(newest)
                for name, value in points.items():
                    self._losses.add(name, value, newest[0] - 1, at=newest[1])

    def _failed(self, error: Exception) -> None:
        self._metrics.complain(f"some of the cell's metrics are missing: {type(error).__name__}: {error}")

    # ---- hooks --------------------------------------------------------------------------------------------------

    def _hook(self, torch: ModuleType) -> None:
        add_library(str(Path(str(torch.__file__)).parent))
        for part in (self._hook_backward, self._hook_optimizers, self._hook_scaler, self._hook_loaders):
            try:
                part(torch)
            except Exception as error:  # noqa: BLE001 — a torch that is different inside must be imported all the same
                self._failed(error)

    def _hook_backward(self, torch: Any) -> None:
        torch.autograd.backward = self._backward(torch, torch.autograd.backward)

    def _hook_optimizers(self, torch: Any) -> None:
        torch.optim.Optimizer.__init__ = self._optimizer_init(torch.optim.Optimizer.__init__)
        # The module; torch.optim has taken the name away.
        module: Any = sys.modules["torch.optim.optimizer"]
        module.register_optimizer_step_pre_hook(self._before_step())
        module.register_optimizer_step_post_hook(self._after_step())

    def _hook_scaler(self, torch: Any) -> None:
        torch.amp.GradScaler.scale = self._scale(torch.amp.GradScaler.scale)
        torch.amp.GradScaler.step = self._scaler_step(torch.amp.GradScaler.step)

    def _hook_sharded_scaler(self, module: Any) -> None:
        # It has a way to scale of its own, and steps like the other.
        module.ShardedGradScaler.scale = self._scale(module.ShardedGradScaler.scale)

    def _hook_loaders(self, torch: Any) -> None:
        iterator = torch.utils.data.dataloader._BaseDataLoaderIter  # noqa: SLF001 — what every loader gives out
        iterator.__next__ = self._next_batch(torch, iterator.__next__)

    def _backward(self, torch: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:  # noqa: C901 — see below
        losses, local, known = self._losses, self._losses.local, self._sites.known
        getframe = sys._getframe  # noqa: SLF001 — documented in spite of its name
        method, plain = torch.Tensor.backward.__code__, torch.Tensor

        # Half of this is there to be quick: beside a small model, each line of code is felt.
        @functools.wraps(original)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            training = local.training
            if training is None or not training.on:
                if not self._on:
                    return original(tensors, grad_tensors, *args, **kwargs)
                training = losses.training()
            if not training.depth:
                try:
                    heard = False
                    # Within a step it matters whether a name has had its value.
                    plainly = training.quick and grad_tensors is None and not training.stepping
                    if plainly and type(tensors) is plain and tensors.is_cpu:
                        # Through Tensor.backward; a frame that called us directly is not known by that.
                        frame = getframe(2)
                        name = known.get((id(frame.f_code), frame.f_lasti))
                        if name is not None and name not in training.waiting and tensors.numel() == 1:
                            value = tensors.item()
                            if type(value) is float:
                                training.waiting[name] = value
                                heard = True
                    if not heard:
                        frame = getframe(1)
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

        return _hidden(backward)

    def _optimizer_init(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 — its name is seen in tracebacks
            try:
                if self._on:
                    # What waits cannot be meant for this one.
                    self._losses.give_up(self._losses.training())
                self._steppers.born(optimizer)
            except Exception as error:  # noqa: BLE001 — the user's training goes on
                self._failed(error)
            original(optimizer, *args, **kwargs)

        return _hidden(__init__)

    def _before_step(self) -> Callable[..., None]:
        losses, local = self._losses, self._losses.local

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 — torch's signature
            training = local.training
            if training is None or not training.on:
                if not self._on:
                    return
                training = losses.training()
            if training.one_step:
                return
            try:
                if training.stepping:
                    frame = sys._getframe(1)  # noqa: SLF001 — documented in spite of its name
                    if _is_within_step(frame):
                        training.nested += 1
                        return
                    # The step before this one raised.
                    training.nested = 0
                    losses.give_up(training)
                training.stepping = True
                training.in_step.clear()
                if self._grad_norm:
                    self._tell_norm(training, optimizer)
            except Exception as error:  # noqa: BLE001 — the user's training goes on
                self._failed(error)

        return _hidden(before_step)

    def _after_step(self) -> Callable[..., None]:
        losses, local, made, now = self._losses, self._losses.local, self._made, time.time

        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 — torch's signature
            training = local.training
            if training is None or not training.on:
                if not self._on:
                    return
                training = losses.training()
            if training.one_step:
                return
            try:
                if training.nested:
                    training.nested -= 1
                    return
                stepper = self._steppers.found.get(id(optimizer))
                if not training.quick or training.listed or stepper is None or stepper.optimizer() is not optimizer:
                    self._stepped(training, optimizer)
                    return
                # What _stepped does, in short.
                training.stepping = False
                training.steps += 1
                stepper.count += 1
                points, training.waiting = training.waiting, {}
                made.append((stepper, (stepper.count, now(), self._samples, rates_of(optimizer)), points))
                waiting = len(made)
                if waiting == 1 or waiting >= SOON:
                    self._metrics.expect(waiting)
            except Exception as error:  # noqa: BLE001 — the user's training goes on
                self._failed(error)

        return _hidden(after_step)

    def _stepped(self, training: Training, optimizer: Any) -> None:
        """An optimizer's step has ended, or was skipped by a scaler."""
        training.stepping = False
        training.steps += 1
        stepper = self._find(training, optimizer)
        stepper.count += 1
        points = self._losses.step(training)
        made = self._made
        made.append((stepper, (stepper.count, time.time(), self._samples, rates_of(optimizer)), points))
        waiting = len(made)
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
        return stepper

    def _tell_norm(self, training: Training, optimizer: Any) -> None:
        stepper = self._find(training, optimizer)
        if stepper.label is not None:
            # Set for an optimizer that unscales while it steps.
            scale = getattr(optimizer, "grad_scale", None)
            norm = values.gradient_norm(optimizer.param_groups, scale)
            if norm is not None:
                self._losses.add(f"grad_norm{stepper.label}", norm, stepper.count)

    def _scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scale(scaler: Any, outputs: Any) -> Any:
            result = original(scaler, outputs)
            if self._on and result is not outputs:
                try:
                    factor = scaler._scale  # noqa: SLF001 — get_scale() would wait for the device
                    self._losses.scaled(outputs, result, factor)
                except Exception as error:  # noqa: BLE001 — the user's training goes on
                    self._failed(error)
            return result

        return _hidden(scale)

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._on:
                return original(scaler, optimizer, *args, **kwargs)
            training = self._losses.training()
            steps = training.steps
            try:
                names = self._sites.names(sys._getframe(1), Call.STEP_OF)  # noqa: SLF001 — documented all the same
                training.scaler_steps = names[0] if names else None
                result = original(scaler, optimizer, *args, **kwargs)
                if training.steps == steps and self._on and not training.one_step:
                    self._skipped(training, optimizer)
            finally:
                training.scaler_steps = None
            return result

        return _hidden(step)

    def _skipped(self, training: Training, optimizer: Any) -> None:
        try:
            self._stepped(training, optimizer)
        except Exception as error:  # noqa: BLE001 — the user's training goes on
            self._failed(error)

    def _next_batch(self, torch: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807 — its name is seen in tracebacks
            batch = original(iterator)
            # Batches that nobody learns from do not count.
            if self._on and torch.is_grad_enabled():
                try:
                    self._samples += values.first_size(batch) or 0
                except Exception as error:  # noqa: BLE001 — the user's training goes on
                    self._failed(error)
            return batch

        return _hidden(__next__)


_of_rank: TorchMetrics | None = None


def hearing(loss: Any, frame: FrameType | None, *, divides: bool) -> contextlib.AbstractContextManager[None]:
    """``loss`` is what the user calls backward on, and what a library makes of it in this context is not listened to.

    For a library whose backward divides or scales what it is given. ``frame``: that of the library's caller.
    ``divides``: whether it divides by the steps of an accumulation, so that the user has not.
    """
    return contextlib.nullcontext() if _of_rank is None else _of_rank.hearing(loss, frame, divides=divides)


def hear_backward(kind: Any, divides: Callable[[Any], bool]) -> None:
    """Whenever ``kind.backward(loss)`` is called, ``loss`` is :func:`hearing`'s; ``divides`` is asked of the object."""
    original = kind.backward

    @functools.wraps(original)
    def backward(self: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)  # noqa: SLF001 — documented in spite of its name
        with hearing(loss, frame, divides=divides(self)):
            return original(self, loss, *args, **kwargs)

    kind.backward = backward


def adding() -> contextlib.AbstractContextManager[None]:
    """What backward is called on in this context is a part of the loss of the step that follows: they are added."""
    return contextlib.nullcontext() if _of_rank is None else _of_rank.adding()


def unheard() -> contextlib.AbstractContextManager[None]:
    """What backward is called on in this context is nobody's loss: a library tells its losses itself."""
    return contextlib.nullcontext() if _of_rank is None else _of_rank.unheard()


def one_step(optimizer: Any) -> contextlib.AbstractContextManager[None]:
    """What optimizers do in this context is one step, of ``optimizer``: however many they make, or none (an overflow).

    For a library that steps once for each group of parameters.
    """
    return contextlib.nullcontext() if _of_rank is None else _of_rank.one_step(optimizer)


def number(value: Any) -> tuple[Any, Read] | None:
    """What to add to the metrics for a tensor with one element; None for what is no tensor.

    Raises :class:`ValueError` for a tensor that is no number.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    return values.number(value), values.read


def _hidden(function: _Hook) -> _Hook:
    """``function``, which torch.compile calls instead of looking into it: what torch.compiler.disable sets."""
    vars(function)["_torchdynamo_disable"] = True
    return function


def _hide(rules: ModuleType) -> None:
    """Tell torch.compile that no frame of this package is worth compiling."""
    add = getattr(rules, "add", None)
    if add is not None:
        add(__name__.partition(".")[0])


def _is_within_step(frame: FrameType) -> bool:
    """Whether torch's wrapper around an optimizer's step, which is ``frame``, is inside another one's."""
    file = frame.f_code.co_filename
    outer = frame.f_back
    while outer is not None:
        if outer.f_code.co_filename == file and "wrapper" in outer.f_code.co_name:
            return True
        outer = outer.f_back
    return False

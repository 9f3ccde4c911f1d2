"""Values of ``backward()`` that wait for the optimizer step that turns them into points.

* Several values of one name before a step are gradient accumulation. They become one point: their mean, times the
  number that each was divided by, if that is how many there are. The last accumulation of a run may be shorter.
* Within a step (a closure that the optimizer calls repeatedly) the first value of a name counts, with those before it.
* A library that divides or scales the loss it is given reports that (:func:`~.metrics.hearing`). It may also report
  that the values before a step are parts of one loss (:func:`~.metrics.adding`): then their sum is the point.
* A value that a GradScaler has scaled counts as it was before scaling.
* Values for which no step comes become points of their own, in order, numbered from 0. That happens at once while no
  optimizer exists, from :data:`WAITING` values of a name on while none makes a step, and at the end of the cell.
  If a library reports that its step has failed (:func:`~.metrics.whole_step`), they make no point.

Under failure: a value that cannot be read is left out; one note per run says so.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import values
from .call_sites import Call, CallSites
from .values import Later, Value

if TYPE_CHECKING:
    from jupyter_dtrain.rank.metrics import MetricBuffer

WAITING = 512
"""Values of one name that may wait for a step; no accumulation has as many micro-batches."""
MAX_THREADS = 64
"""Number of threads beyond which those that have ended are dropped."""
NEAR = 16
"""How many nodes of the graph to search for a scaled loss, starting from the value given to ``backward()``."""
UNNAMED = "loss"
_SCALED = "jupyter_dtrain.scaled"
"""Key in the metadata that torch keeps for users on each node of a graph."""


class _Scaled(NamedTuple):
    """The known facts about a scaled loss."""

    value: float | Later | None
    scale: Any
    node: Any
    """The node of the graph before the scaling."""


class Training:
    """The state of one of the user's threads in a run."""

    def __init__(self) -> None:
        self.on = True
        """Whether the run goes on."""
        self.thread = threading.current_thread()
        self.ident = threading.get_ident()
        self.waiting: dict[str, Any] = {}
        """The values that wait for a step, by name: a number, or a list of numbers."""
        self.listed = False
        """Whether any value of :attr:`waiting` is a list."""
        self.divisors: dict[str, float | None] = {}
        """The divisor of the waiting values, by name, where all have the same one."""
        self.by_hand: set[str] = set()
        """Names whose values do not wait."""
        self.quick = False
        """Whether to keep the next value without looking at it, for a name with no value waiting."""
        self.spoke = False
        """Whether this thread ever had a value."""
        self.stepped = False
        """Whether the thread's values belong to steps that it makes itself."""
        self.steps = 0
        """Number of steps that the thread has made."""
        self.depth = 0
        """Number of nested ``backward`` calls that it is in."""
        self.stepping = False
        self.in_step: set[str] = set()
        """Names that already had their value in the current step."""
        self.parts = False
        """Whether the thread's values are parts of one loss."""
        self.nested = 0
        """Number of steps inside the current step."""
        self.one_step = False
        """Whether all optimizer steps now belong to one step of a library."""
        self.scaler_steps: str | None = None
        """The name of the optimizer that a GradScaler is about to step."""


class _Local(threading.local):
    training: Training | None = None


class Losses:
    """The values of a run that wait for an optimizer step."""

    def __init__(
        self,
        metrics: MetricBuffer,
        sites: CallSites,
        *,
        optimizers_exist: Callable[[], bool],
        report_steps: Callable[[], None],
    ) -> None:
        """``report_steps`` adds the points of all steps so far, so that points added after it come later."""
        self._metrics = metrics
        self._sites = sites
        self._optimizers_exist = optimizers_exist
        self._report_steps = report_steps
        self._lock = threading.Lock()
        self.local = _Local()
        """``local.training`` is the thread's own :class:`Training`, one of an earlier run where it is not ``on``."""
        self._trainings: list[Training] = []
        self.main: Training | None = None
        """That of the main thread, whose number no other thread ever gets; None while it has none in this run."""
        self.begin()

    def begin(self) -> None:
        """Start a run without waiting values."""
        self.forget()
        self.piped = False
        """Whether a pipeline has begun a step."""
        self._scaling = False
        # The largest number of values of a name that made one point, and what each was divided by for that.
        self._gathered: dict[str, int] = {}
        self._divided: dict[str, float] = {}
        # Names whose values are parts of one loss.
        self._parts: set[str] = set()

    def end(self) -> None:
        """End the run: turn everything that waits into points."""
        for training in self._trainings:
            self.give_up(training)
        self.forget()

    def forget(self) -> None:
        """Forget the training of all threads."""
        for training in self._trainings:
            training.on = False
        self._trainings = []
        self.main = None

    def training(self) -> Training:
        """The calling thread's :class:`Training`, which this makes if needed."""
        training = self.local.training
        if training is None or not training.on:
            training = self.local.training = Training()
            with self._lock:
                if len(self._trainings) > MAX_THREADS:
                    self._trainings[:] = [one for one in self._trainings if one.waiting or one.thread.is_alive()]
                self._trainings.append(training)
            if training.thread is threading.main_thread():
                self.main = training
        return training

    def hear(
        self,
        training: Training,
        tensors: Any,
        gradients: Any,
        frame: FrameType | None,
        call: Call,
        *,
        whole: bool = False,
    ) -> None:
        """Note that ``frame`` is about to call ``backward()`` on one tensor or several.

        ``whole``: the divisor of their values has nothing to do with accumulation.
        """
        torch = sys.modules["torch"]
        if isinstance(tensors, torch.Tensor):
            tensors = (tensors,)
        elif not isinstance(tensors, (list, tuple)):
            # An iterator that can be read only once, or the edge of a graph.
            return
        names = self._sites.names(frame, call, len(tensors))
        if names is None and gradients is not None:
            # A library's own part of a backward pass, such as a checkpoint's on one of autograd's threads.
            return
        for index, tensor in enumerate(tensors):
            if isinstance(tensor, torch.Tensor):
                name = names[index] if names is not None else None
                name = name or (UNNAMED if len(tensors) == 1 else f"{UNNAMED}[{index}]")
                try:
                    self._hear_one(training, name, tensor, whole=whole)
                except ValueError as error:
                    self._metrics.complain(f"Metrics: {name!r} is left out: {error}")

    def _hear_one(self, training: Training, name: str, tensor: Any, *, whole: bool) -> None:
        if training.stepping:
            if name in training.in_step:
                return
            training.in_step.add(name)
        node = tensor.grad_fn
        scaled = _find_scaled(node) if self._scaling and node is not None else None
        if scaled is None:
            value = values.take(tensor)
        elif node.metadata.get(_SCALED) is scaled:
            value, node = scaled.value, scaled.node
        else:
            value = values.unscaled(tensor, scaled.scale)
        if value is not None:
            self.take(training, name, value, None if whole else node)

    def take(self, training: Training, name: str, value: Value, node: Any = None) -> None:
        """Take a loss, a point at the next step or now. ``node`` made it, where it may have been divided."""
        training.spoke = True
        if not training.stepped and (name in training.by_hand or not self._optimizers_exist()):
            self.add(name, value)
        else:
            self._wait(training, name, value, node)

    def _wait(self, training: Training, name: str, value: Value, node: Any) -> None:
        """Keep ``value``, the result of ``node``, for a step."""
        training.listed = True
        waiting = training.waiting.get(name)
        if waiting is None:
            training.waiting[name] = [value]
            if training.parts:
                self._parts.add(name)
            else:
                self._parts.discard(name)
            if name in self._divided:
                training.divisors[name] = values.divisor(node)
            return
        if not isinstance(waiting, list):
            waiting = training.waiting[name] = [waiting]
        divisor = values.divisor(node)
        if len(waiting) == 1 and name not in training.divisors:
            # When the first value came, it was not yet clear that others would follow.
            training.divisors[name] = divisor
        elif divisor != training.divisors.get(name):
            # Values that were divided unlike each other have no common scale: they are shown as backward() got them.
            training.divisors[name] = None
        waiting.append(value)
        if len(waiting) == WAITING:
            # No accumulation is that long: nothing here steps, so the values of this name are points at once.
            training.by_hand.add(name)
            training.stepped = training.quick = False
            self.give_up(training, [name])

    def add(self, name: str, value: Value, step: int | None = None, at: float | None = None) -> None:
        """Add a point to the series ``name``."""
        self._metrics.add(name, value, step, read=None if type(value) is float else values.read, at=at)

    def step(self, training: Training) -> dict[str, Value]:
        """The points that were waiting for the step that this thread has just made."""
        if not training.quick:
            training.stepped = True
            training.by_hand.clear()
            training.quick = training.spoke and not self._scaling and not self._divided
        points, training.waiting = training.waiting, {}
        if training.listed:
            self._merge_all(training, points)
        elif not points and not training.spoke:
            # This thread steps and had no value: it steps for threads that call backward() and leave the step to it.
            for other in self._trainings:
                if other.waiting and not other.stepped:
                    found, other.waiting = other.waiting, {}
                    self._merge_all(other, found)
                    points.update(found)
        return points

    def _merge_all(self, training: Training, waiting: dict[str, Any]) -> None:
        training.listed = False
        for name, found in waiting.items():
            if isinstance(found, list):
                divisor = training.divisors.pop(name, None)
                waiting[name] = found[0] if len(found) == 1 and divisor is None else self._merge(name, found, divisor)

    def _merge(self, name: str, found: Sequence[Value], divisor: float | None) -> Value:
        if name in self._parts:
            return values.merge(found, 1.0)
        count = len(found)
        # Divided by the number of micro-batches: the user accumulates, and the loss is the one before the division.
        if divisor is not None and count > 1 and _close(divisor, count):
            self._divided[name] = divisor
            self._look_at_each()
        self._gathered[name] = max(count, self._gathered.get(name, 0))
        divided = divisor is not None and _close(divisor, self._divided.get(name, 0))
        return values.merge(found, (divisor or 1) / count if divided else 1 / count)

    def give_up(self, training: Training, names: Sequence[str] | None = None) -> None:
        """Stop waiting for a step, for all values of a thread or for ``names`` only."""
        if training.waiting:
            self._report_steps()
        for name in list(training.waiting) if names is None else names:
            found, divisor = training.waiting.pop(name, []), training.divisors.pop(name, None)
            if name in self._parts and training.stepped:
                continue  # parts of a loss whose other parts never came
            if not isinstance(found, list):
                found = [found]
            if 0 < len(found) < self._gathered.get(name, 0):
                # The rest of an accumulation.
                self.add(name, self._merge(name, found, divisor))
            else:
                for value in found:
                    self.add(name, value)

    @contextlib.contextmanager
    def whole_step(self) -> Iterator[None]:
        """See :func:`~.metrics.whole_step`."""
        self.piped = True
        try:
            yield
        except BaseException:
            if (training := self.local.training) is not None:
                training.waiting, training.listed = {}, False
                training.divisors.clear()
            raise

    def scaled(self, outputs: Any, result: Any, scale: Any) -> None:
        """Note that a scaler made ``result`` from the loss or losses ``outputs``."""
        if not self._scaling:
            self._scaling = True
            self._look_at_each()
        if isinstance(result, (list, tuple)):
            for output, one in zip(outputs, result, strict=False):
                self.scaled(output, one, scale)
        elif getattr(result, "grad_fn", None) is not None:
            # The metadata lives exactly as long as the graph.
            result.grad_fn.metadata[_SCALED] = _Scaled(values.take(outputs), scale, outputs.grad_fn)

    def _look_at_each(self) -> None:
        """From now on, look at each value of this run before keeping it."""
        for training in self._trainings:
            training.quick = False


def _close(left: float, right: float) -> bool:
    return abs(left - right) < 1e-4 * right


def _find_scaled(node: Any) -> _Scaled | None:
    """The scaled loss close to ``node``, the end of a graph."""
    look = [node]
    for _ in range(NEAR):
        if not look:
            return None
        node = look.pop(0)
        found: _Scaled | None = node.metadata.get(_SCALED)
        if found is not None:
            return found
        look.extend(following for following, _ in node.next_functions if following is not None)
    return None

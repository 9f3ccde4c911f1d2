"""Values of ``backward()``, waiting for the optimizer step that makes points of them.

* Several values of one name before a step are gradient accumulation, and become one point: their mean, times what
  each was divided by, if that is how many there are. The last accumulation of a run may be shorter than the others.
* Within a step (a closure that is called again and again) the first value of a name counts, and those from before it.
* A library that divides or scales what it is given says so (:func:`~.metrics.hearing`), or that the values
  before a step are parts of one (:func:`~.metrics.adding`): then their sum is the point.
* A value that a GradScaler has scaled counts as it was before.
* Values for which no step comes are points of their own, in their order, numbered from 0: at once while no optimizer
  exists, from :data:`WAITING` values of a name on while none makes a step, and at the end of the cell.

Under failure: a value that cannot be read is left out, which is said once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import values
from .call_sites import Call, CallSites
from .values import Later, Value

if TYPE_CHECKING:
    from jupyter_dtrain.engine.metrics import MetricBuffer

WAITING = 512
"""Values of one name that wait for a step; more micro-batches than anybody accumulates."""
MAX_THREADS = 64
"""Threads after which those that have ended are forgotten."""
NEAR = 16
"""Nodes of the graph in which a scaled loss is looked for, from the value that ``backward()`` is called on."""
UNNAMED = "loss"
_SCALED = "jupyter_dtrain.scaled"
"""Key in the metadata that torch keeps for users beside each node of a graph."""


class _Scaled(NamedTuple):
    """What is known of a loss that was scaled."""

    value: float | Later | None
    scale: Any
    node: Any
    """The node of the graph before the scaling."""


class Training:
    """What one of the user's threads does in a run."""

    def __init__(self) -> None:
        self.on = True
        """Whether the run goes on."""
        self.thread = threading.current_thread()
        self.waiting: dict[str, Any] = {}
        """By name: a number, or a list of values."""
        self.listed = False
        """Whether there is a list among those."""
        self.divisors: dict[str, float | None] = {}
        """By what each waiting value of a name was divided, where it was the same for all."""
        self.by_hand: set[str] = set()
        """Names whose values do not wait."""
        self.quick = False
        """Whether the next value of a name that does not wait yet is just kept."""
        self.spoke = False
        """Whether it ever had a value."""
        self.stepped = False
        """Whether its values are for its own steps."""
        self.steps = 0
        """Steps that it has made."""
        self.depth = 0
        """Calls of ``backward`` that it is in."""
        self.stepping = False
        self.in_step: set[str] = set()
        """Names that have had their value in the step that it is in."""
        self.parts = False
        """Whether its values are parts of one."""
        self.nested = 0
        """Steps within the step that it is in."""
        self.one_step = False
        """Whether all steps that optimizers make now are one of a library's."""
        self.scaler_steps: str | None = None
        """The name of the optimizer that a GradScaler is about to step."""


class _Local(threading.local):
    training: Training | None = None


class Losses:
    """The waiting values of a run."""

    def __init__(
        self,
        metrics: MetricBuffer,
        sites: CallSites,
        *,
        optimizers_exist: Callable[[], bool],
        tell_steps: Callable[[], None],
    ) -> None:
        """``tell_steps`` adds the points of all steps so far, so that those that are added after it come later."""
        self._metrics = metrics
        self._sites = sites
        self._optimizers_exist = optimizers_exist
        self._tell_steps = tell_steps
        self._lock = threading.Lock()
        self.local = _Local()
        """``local.training``: the thread's own :class:`Training`; of an earlier run where it is not ``on``."""
        self._trainings: list[Training] = []
        self.begin()

    def begin(self) -> None:
        """A run begins: nothing waits."""
        self.forget()
        self._scaling = False
        # How many values of a name made one point, at most; and by what each was divided for that.
        self._gathered: dict[str, int] = {}
        self._divided: dict[str, float] = {}
        # Names whose values are parts of one.
        self._parts: set[str] = set()

    def end(self) -> None:
        """The run ends: what waits are points now."""
        for training in self._trainings:
            self.give_up(training)
        self.forget()

    def forget(self) -> None:
        """No thread trains."""
        for training in self._trainings:
            training.on = False
        self._trainings = []

    def training(self) -> Training:
        """That of the calling thread."""
        training = self.local.training
        if training is None or not training.on:
            training = self.local.training = Training()
            with self._lock:
                if len(self._trainings) > MAX_THREADS:
                    self._trainings[:] = [one for one in self._trainings if one.waiting or one.thread.is_alive()]
                self._trainings.append(training)
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
        """``backward()`` is about to be called, by ``frame``, on one tensor or several.

        ``whole``: what they were divided by has nothing to do with accumulation.
        """
        torch = sys.modules["torch"]
        if isinstance(tensors, torch.Tensor):
            tensors = (tensors,)
        elif not isinstance(tensors, (list, tuple)):
            # Something that can be gone through only once, or the edge of a graph.
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
                    self._metrics.complain(f"{name!r} is left out: {error}")

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
        """A loss: a point at the next step, or now. ``node``: whose result it is, where it may have been divided."""
        training.spoke = True
        if not training.stepped and (name in training.by_hand or not self._optimizers_exist()):
            self.add(name, value)
        else:
            self._wait(training, name, value, node)

    def _wait(self, training: Training, name: str, value: Value, node: Any) -> None:
        """``value``, the result of a ``node``, waits for a step."""
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
            # Of the first value nobody knew yet that there would be others.
            training.divisors[name] = divisor
        elif divisor != training.divisors.get(name):
            training.divisors[name] = None
        waiting.append(value)
        if len(waiting) == WAITING:
            training.by_hand.add(name)
            training.stepped = training.quick = False
            self.give_up(training, [name])

    def add(self, name: str, value: Value, step: int | None = None, at: float | None = None) -> None:
        """A point."""
        self._metrics.add(name, value, step, read=None if type(value) is float else values.read, at=at)

    def step(self, training: Training) -> dict[str, Value]:
        """A thread has made a step: the points that were waiting for it."""
        if not training.quick:
            training.stepped = True
            training.by_hand.clear()
            training.quick = training.spoke and not self._scaling and not self._divided
        points, training.waiting = training.waiting, {}
        if training.listed:
            self._merge_all(training, points)
        elif not points and not training.spoke:
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
        if divisor is not None and count > 1 and _close(divisor, count):
            self._divided[name] = divisor
            self._look_at_each()
        self._gathered[name] = max(count, self._gathered.get(name, 0))
        divided = divisor is not None and _close(divisor, self._divided.get(name, 0))
        return values.merge(found, (divisor or 1) / count if divided else 1 / count)

    def give_up(self, training: Training, names: Sequence[str] | None = None) -> None:
        """No step comes for what waits on a thread, or for ``names`` of it."""
        if training.waiting:
            self._tell_steps()
        for name in list(training.waiting) if names is None else names:
            found, divisor = training.waiting.pop(name, []), training.divisors.pop(name, None)
            if name in self._parts and training.stepped:
                continue  # parts of a loss of which the rest never came
            if not isinstance(found, list):
                found = [found]
            if 0 < len(found) < self._gathered.get(name, 0):
                # The rest of an accumulation.
                self.add(name, self._merge(name, found, divisor))
            else:
                for value in found:
                    self.add(name, value)

    def scaled(self, outputs: Any, result: Any, scale: Any) -> None:
        """A scaler has made ``result`` of the loss or losses ``outputs``."""
        if not self._scaling:
            self._scaling = True
            self._look_at_each()
        if isinstance(result, (list, tuple)):
            for output, one in zip(outputs, result, strict=False):
                self.scaled(output, one, scale)
        elif getattr(result, "grad_fn", None) is not None:
            # Known there as long as the graph lives, and no longer.
            result.grad_fn.metadata[_SCALED] = _Scaled(values.take(outputs), scale, outputs.grad_fn)

    def _look_at_each(self) -> None:
        """From now on, no value of this run is just kept."""
        for training in self._trainings:
            training.quick = False


def _close(left: float, right: float) -> bool:
    return abs(left - right) < 1e-4 * right


def _find_scaled(node: Any) -> _Scaled | None:
    """What was scaled close to ``node``, the end of a graph."""
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

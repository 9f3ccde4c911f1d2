"""The optimizers of a run: how many steps each has made, how fast, and with which learning rates.

The hook records each step as a tuple; a flush of the metrics turns the tuples into points.

* A step's number is how many steps its optimizer made in this run before it: 0 for the first. A second optimizer with
  the same name, made after the first one's first step on the same thread, continues that one's numbers (a second
  training in one cell).
* ``lr`` and ``lr/1`` … are the parameter groups of the first optimizer. Another optimizer's are ``lr/NAME`` and
  ``lr/NAME/1`` …, by its variable. Series exist for :data:`MAX_GROUPS` groups of :data:`MAX_OPTIMIZERS` optimizers.
* ``steps/s`` counts the optimizer that made the most steps since the last point, from end of step to end of step.
  ``samples/s`` counts the samples that DataLoaders returned in that time.

Under failure: an optimizer that no longer exists keeps its numbers and adds nothing.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.events import LOCAL
from jupyter_dtrain.core.metrics import SAMPLES_PER_SECOND, STEPS_PER_SECOND
from jupyter_dtrain.plugins.framework import user_names

from .values import number, read

if TYPE_CHECKING:
    from jupyter_dtrain.rank.metrics import MetricBuffer

MAX_OPTIMIZERS = 8
MAX_GROUPS = 8
_NO_SETTINGS = frozenset({"params", "initial_lr", "param_names", "name", "differentiable", "decoupled_weight_decay"})
_SWITCHES = frozenset({"maximize", "capturable", "foreach", "fused", "amsgrad", "nesterov", "dampening"})
"""Settings that are off by default, and not worth a word then."""
ALONE = 3
"""Questions between which an optimizer has not stepped, and another has, after which its training has ended."""
SHORTEST = 0.1
"""The least number of seconds over which a rate is measured; the first rate of a run may cover less."""


Step = tuple[int, float, int, Any]
"""The newest step of an optimizer: number of steps, time, samples returned so far, learning rates (:func:`listed`)."""


def listed(rates: Any) -> list[Any]:
    """The learning rates of a :data:`Step`: a list, or a number where there is only one."""
    return rates if isinstance(rates, list) else [rates]


class Stepper:
    """One optimizer of a run."""

    __slots__ = (
        *("base", "before", "count", "label", "met", "name", "named", "newest", "optimizer", "replicas", "sent"),
        *("settings", "thread"),
    )

    def __init__(self, optimizer: Any, thread: object, name: str, label: str | None, count: int, met: int) -> None:
        """``label``: the suffix of its series; None when it has no series. ``met``: the clock at its first step."""
        self.thread = thread
        self.optimizer: Callable[[], Any] = weakref.ref(optimizer)
        self.name = name
        self.label = label
        self.count = count
        self.met = met
        self.named = True
        """Whether :attr:`name` is the name of a variable, and not of the optimizer's type."""
        self.replicas: list[int] | None = None
        """The ranks that train the optimizer's model together, where that is known."""
        self.settings: dict[str, Any] = {}
        """Its hyper-parameters at its first step."""
        self.before = 0
        """The steps that others had made in this run when they stopped, and it went on alone."""
        self.newest: Step | None = None
        self.base: Step | None = None
        """Where the measurement of the next rate starts."""
        self.sent = count
        """Number of steps whose learning rates are recorded."""

    def stepped(self, newest: Step) -> None:
        """Note the newest step of the optimizer."""
        self.newest = newest
        if self.base is None:
            self.base = newest


def rates_of(optimizer: Any) -> list[Any]:
    """The learning rates of an optimizer's first :data:`MAX_GROUPS` groups; None for a group without one.

    A ``DistributedOptimizer`` has no groups here: its parameters are on other ranks.
    """
    groups: Any = getattr(optimizer, "param_groups", ())
    if len(groups) == 1:
        rate = groups[0].get("lr")
        return [rate if type(rate) is float else _fix(rate)]
    return [_fix(group.get("lr")) for group in groups[:MAX_GROUPS]]


def settings_of(optimizer: Any) -> dict[str, Any]:
    """The hyper-parameters of an optimizer: its type, and what its groups of parameters have.

    ``lr`` is that before a schedule. What is not the same in all groups is ``lr/1`` and so on in the second and later
    ones. Tensors are left out, but for those of one number on the host.
    """
    found: dict[str, Any] = {"optimizer": type(optimizer).__name__}
    groups: Any = getattr(optimizer, "param_groups", ())
    for place, group in enumerate(groups[:MAX_GROUPS]):
        for name, value in group.items():
            if name in _NO_SETTINGS or not isinstance(name, str):
                continue
            known = _setting(group.get("initial_lr", value) if name == "lr" else value)
            if isinstance(known, (bool, int, float, str, list)) and (place == 0 or found.get(name) != known):
                found[f"{name}/{place}" if place else name] = known
    return {name: value for name, value in found.items() if name not in _SWITCHES or value}


def _setting(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(map(_setting, value))
    return _fix(value) if getattr(value, "numel", int)() == 1 else value


def _variable(stepper: Stepper, names: dict[str, Any]) -> str:
    """The name that the user's own code has at top level for the optimizer, or for what wraps it; else empty."""
    optimizer = stepper.optimizer()
    if optimizer is None:
        return ""
    namesake = names.get(stepper.name)
    if namesake is not optimizer:
        with contextlib.suppress(Exception):  # a class of the user's may have another __dict__
            if stepper.named and any(value is optimizer for value in vars(namesake).values()):
                return stepper.name
        return next((name for name, value in names.items() if value is optimizer), "")
    return stepper.name


def _fix(rate: Any) -> Any:
    # A schedule changes a CPU tensor in place, so take its value now; a device's tensor is read with the points.
    return float(rate) if getattr(rate, "is_cpu", False) else rate


class Steppers:
    """All optimizers of a run."""

    def __init__(self, metrics: MetricBuffer) -> None:
        self._metrics = metrics
        self._births: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._clock = 0
        self._lock = threading.Lock()
        self.found: dict[int, Stepper] = {}
        """The optimizers of the run, by their ids; a newer optimizer may have got such an id since."""
        self._all: list[Stepper] = []
        self._asked: dict[Stepper, int] = {}
        """What each optimizer had made when :meth:`most` was asked last."""
        self._alone = 0
        """How often in a row the one that is furthest had not stepped since, while others had."""
        self._shown = False

    def begin(self) -> None:
        """Start a run without any steps."""
        with self._lock:
            self.found = {}
            self._all = []
            self._asked, self._alone = {}, 0
            self._shown = False

    def counts(self) -> dict[str, int]:
        """How many steps each optimizer has made in this run, by its variable; among namesakes, the largest number.

        Main thread only. An optimizer that no variable of the notebook holds is ``the local NAME``; one without a
        variable, which a library made, is ``a TYPE``. An optimizer without learning rates has its parameters on other
        ranks, and is left out: ranks that made no step of it are not behind.
        """
        with self._lock:
            made = [(one, one.newest) for one in self._all if one.newest is not None and listed(one.newest[3])]
        found: dict[str, int] = {}
        if not made:
            return found
        names = dict(user_names())
        for one, newest in made:
            name = _variable(one, names) or (f"{LOCAL}{one.name}" if one.named else f"a {one.name}")
            found[name] = max(found.get(name, 0), newest[0])
        return found

    def most(self) -> int:
        """How many steps of an optimizer this run has made: the largest number of one.

        Where that one has ended, and another trains on, as in a cell with two trainings, the steps of both.
        """
        if len(self._all) < 2:  # noqa: PLR2004 — mostly, and a loop may ask at each step
            return sum(one.before + one.count for one in self._all)
        with self._lock:
            furthest = max(self._all, key=lambda one: one.before + one.count)
            made = furthest.before + furthest.count
            stepped = {one: one.count - self._asked.get(one, 0) for one in self._all}
            self._asked = {one: one.count for one in self._all}
            other = max(self._all, key=stepped.__getitem__)
            if stepped[furthest]:
                self._alone = 0
            elif stepped[other]:
                self._alone += 1
                if self._alone == ALONE:
                    self._alone = 0
                    made += stepped[other]
                    other.before = made - other.count
            return made

    def settings(self) -> dict[str, dict[str, Any]]:
        """The hyper-parameters of the optimizers of this run, the first as ``optimizer``, others by their names."""
        with self._lock:
            labelled = [(one.label, one.settings) for one in self._all if one.label is not None]
        return {label.strip("/") or "optimizer": settings for label, settings in labelled if settings}

    def born(self, optimizer: Any) -> None:
        """Note that an optimizer was made."""
        with self._lock:
            self._clock += 1
            self._births[optimizer] = self._clock

    def exist(self) -> bool:
        """Whether this process has an optimizer that might make a step."""
        return bool(self._births)

    def meet(self, optimizer: Any, thread: object, name: str) -> Stepper:
        """Add ``optimizer`` at its first step in this run, with its ``name`` and the ``thread`` that steps it."""
        with self._lock:
            stepper = self.found[id(optimizer)] = self._meet(optimizer, thread, name)
        return stepper

    def _meet(self, optimizer: Any, thread: object, name: str) -> Stepper:
        self._clock += 1
        namesakes = [one for one in self._all if one.name == name]
        before = next((one for one in reversed(namesakes) if one.thread is thread), None)
        # Made after its namesake's first step: the cell trains anew under that name, so the curve goes on. One that was
        # made before is a second optimizer of the same training, and gets a curve of its own.
        if before is not None and self._births.get(optimizer, 0) > before.met:
            successor = Stepper(optimizer, thread, name, before.label, before.count, self._clock)
            successor.before = before.before
            successor.newest, successor.base, successor.sent = before.newest, before.base, before.sent
            self._all[self._all.index(before)] = successor
            return successor
        label: str | None = None
        if not self._all:
            label = ""
        elif len(self._all) < MAX_OPTIMIZERS:
            label = f"/{name}-{len(namesakes) + 1}" if namesakes else f"/{name}"
        stepper = Stepper(optimizer, thread, name, label, 0, self._clock)
        if label is not None:
            self._all.append(stepper)
        return stepper

    def report(self) -> None:
        """Add the points that are not recorded yet."""
        with self._lock:
            steppers = list(self._all)
        for stepper in steppers:
            if stepper.newest is not None and stepper.newest[0] > stepper.sent:
                stepper.sent, _, _, rates = stepper.newest
                self._report_rates(f"lr{stepper.label}", listed(rates), stepper.sent - 1)
        self._report_speed(steppers)

    def _report_rates(self, name: str, rates: list[Any], step: int) -> None:
        for index, rate in enumerate(rates):
            with contextlib.suppress(ValueError, TypeError):
                value = number(rate) if hasattr(rate, "numel") else float(rate)
                self._metrics.add(f"{name}/{index}" if index else name, value, step, read=read)

    def _report_speed(self, steppers: list[Stepper]) -> None:
        pairs = [(one.base, one.newest) for one in steppers if one.base is not None and one.newest is not None]
        if not pairs:
            return
        base, newest = max(pairs, key=lambda pair: pair[1][0] - pair[0][0])
        steps, seconds, samples = newest[0] - base[0], newest[1] - base[1], newest[2] - base[2]
        if steps <= 0 or seconds <= 0 or (self._shown and seconds < SHORTEST):
            return
        self._shown = True
        for one in steppers:
            one.base = one.newest
        self._metrics.add(STEPS_PER_SECOND, steps / seconds, newest[0] - 1, at=newest[1])
        if samples > 0:
            self._metrics.add(SAMPLES_PER_SECOND, samples / seconds, newest[0] - 1, at=newest[1])

"""Pipelines of ``torch.distributed.pipelining``: one loss for each step, and a record of what each stage did when.

* **The loss** of a schedule's ``step()`` is the mean of its micro-batches' losses, or their sum where the schedule
  does not divide gradients (``scale_grads=False``). The rank with the last stage reports it, and it waits for the
  optimizer's step like any other. Values given to ``backward()`` within the step do not count: a schedule that
  computes the gradients of inputs and weights separately calls it for some micro-batches only, or for none.
* **The actions of stages** are recorded at every step, by the host's clock, and reported for one step in about
  :data:`PERIOD` seconds. Ranks choose the same steps without communicating: each reports steps whose number is
  divisible by a power of two, chosen by its own pace. Two ranks with different powers share the steps of the larger
  one, and at the end of the cell each rank reports its last step.
* The hooks are where every schedule passes: the methods of stages, and the functions that begin and await sends and
  receives. Waiting for a neighbour's result is a receive, and counts as idle.

Nothing here waits for a device. On a GPU the times are therefore those of the launches, and the report says so. Under
failure: with a PyTorch that lacks these methods, the loss is the value given to ``backward()``; no step is recorded.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.events import PipelineStep
from jupyter_dtrain.core.pipelines import Action, ideal_bubble, pack
from jupyter_dtrain.engine.imports import when_imported

if TYPE_CHECKING:
    from jupyter_dtrain.engine.metrics import MetricBuffer

    from .metrics import TorchMetrics

PERIOD: Final = 1.0
"""About how many seconds pass between two reported steps."""
MOST_ACTIONS: Final = 4096
"""Actions of one step on one rank to report: 53 kB. The others are only counted."""
MOST_ORDERED: Final = 50_000
"""Computations of a step on all ranks, up to which a schedule's theoretical idle time is calculated."""
MOST_COUNTED: Final = (1 << 16) - 1
"""The largest number of stages, and of micro-batches, of a schedule that is reported."""
SHORTEST: Final = 50e-6
"""Seconds that a wait for the end of a send must take to be recorded."""
_LONGEST: Final = 1 << 16  # the largest power of two
_COMPUTATIONS: Final = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
"""By PyTorch's names for them; the values that stand behind the names differ between versions."""
_KNOWN: Final = ("ScheduleGPipe", "Schedule1F1B")
_FULL: Final = 2  # position of ``full_backward`` among the arguments of a stage's backward
_LABEL: Final = "_dtrain_pipeline"  # attribute that labels a send or receive


class _Step:
    """One step of a schedule while it runs."""

    __slots__ = ("actions", "base", "began", "left_out", "losses", "works")

    def __init__(self) -> None:
        self.began = time.time()
        self.base = time.perf_counter()
        self.actions: list[tuple[str, int, int, float, float]] = []
        """Kind, stage, micro-batch, beginning and end."""
        self.left_out = 0
        self.losses: list[Any] = []
        self.works: dict[int, tuple[str, int, int]] = {}
        """By the id of a list of sends and receives: what a wait for them is for."""

    def note(self, kind: str, stage: int, microbatch: int, began: float) -> None:
        if len(self.actions) < MOST_ACTIONS:
            self.actions.append((kind, stage, microbatch, began, time.perf_counter()))
        else:
            self.left_out += 1

    def extend(self, stage: int, microbatch: int) -> None:
        """Extend the last recorded forward until now, so that it includes the loss."""
        if self.actions and self.actions[-1][:3] == ("F", stage, microbatch):
            self.actions[-1] = (*self.actions[-1][:4], time.perf_counter())


class _Schedule:
    """The schedules of one kind and size in a run: a single one, or several made one after the other."""

    def __init__(self, schedule: Any, number: int) -> None:
        first = _first(schedule)
        self.number = number
        self.name = type(schedule).__name__.removeprefix("_").removeprefix("Schedule")
        self.ranks = _ranks(first)
        self.place = int(first.group_rank)
        self.stages = int(first.num_stages)
        self.microbatches = int(schedule._n_microbatches)  # noqa: SLF001 — every schedule gets it from its user
        self.on_host = first.device.type != "cpu"
        self.theory = _theory(schedule, self.stages, self.microbatches) if self.place == 0 else None
        self.steps = 0
        self.newest: _Step | None = None
        self.told = -1
        """Number of the last step that was reported."""
        self.met = 0.0
        """When its second step began: the first one includes set-up work."""


class _Local(threading.local):
    step: _Step | None = None
    inside = False


class TorchPipelines:
    """The part of :class:`~jupyter_dtrain.frameworks.torch.plugin.Torch` that follows schedules."""

    def __init__(self, training: TorchMetrics, metrics: MetricBuffer) -> None:
        self._training = training
        self._metrics = metrics
        self._on = False
        self._local = _Local()
        self._schedules: dict[Hashable, _Schedule] = {}

    def install(self) -> None:
        """Hook the schedules once user code imports them."""
        schedules = "torch.distributed.pipelining.schedules"
        when_imported(schedules, self._hook, otherwise="a pipeline shows the values given to backward(), and no steps")
        when_imported(schedules, self._hook_transfers, otherwise="transfers of a pipeline are not shown")
        os.register_at_fork(after_in_child=self._forked)

    def begin(self, *, on: bool) -> None:
        """Start a cell; ``on``: whether it shows metrics."""
        self._schedules = {}
        self._on = on

    def end(self) -> None:
        """End the cell: report the last step of each schedule."""
        if self._on:
            for met in self._schedules.values():
                self._tell(met)
        self._on = False
        self._schedules = {}

    def _forked(self) -> None:
        self._on = False

    def _failed(self, error: Exception) -> None:
        self._metrics.complain(f"steps of pipelines are not shown: {type(error).__name__}: {error}", kind="pipelines")

    # ---- hooks --------------------------------------------------------------------------------------------------

    def _hook(self, module: Any) -> None:
        base = module._PipelineSchedule  # noqa: SLF001 — the base of all schedules
        update = base._update_losses  # noqa: SLF001 — all schedules publish their losses here
        steps = [(kind, kind.step) for kind in (module.PipelineScheduleSingle, module.PipelineScheduleMulti)]
        base._update_losses = self._giving(update)  # noqa: SLF001 — as above
        for kind, step in steps:
            kind.step = self._step(step)
        with contextlib.suppress(AttributeError):
            base._maybe_compute_loss = self._losing(base._maybe_compute_loss)  # noqa: SLF001 — a part of forward
        self._hook_stages(getattr(module, "_PipelineStageBase", None))

    def _hook_stages(self, stage: Any) -> None:
        for name, kind in (("forward_one_chunk", "F"), ("backward_one_chunk", "B"), ("backward_weight_one_chunk", "W")):
            if hasattr(stage, name):
                setattr(stage, name, self._computing(kind, getattr(stage, name)))
        if hasattr(stage, "perform_reduce_grad"):
            stage.perform_reduce_grad = self._computing("G", stage.perform_reduce_grad)
        for name, kind in (
            ("get_fwd_send_ops", "S"),
            ("get_bwd_send_ops", "S"),
            ("get_fwd_recv_ops", "R"),
            ("get_bwd_recv_ops", "R"),
        ):
            if hasattr(stage, name):
                setattr(stage, name, self._labelling(kind, getattr(stage, name)))

    def _hook_transfers(self, module: Any) -> None:
        begin, wait = module._batch_p2p, module._wait_batch_p2p  # noqa: SLF001 — all sends and receives pass here
        module._batch_p2p = self._beginning(begin)  # noqa: SLF001
        module._wait_batch_p2p = self._waiting(wait)  # noqa: SLF001

    def _step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        local = self._local

        @functools.wraps(original)
        def step(schedule: Any, *args: Any, **kwargs: Any) -> Any:
            # An evaluation only goes forward.
            if not self._on or local.inside or not getattr(schedule, "_has_backward", False):
                return original(schedule, *args, **kwargs)
            local.inside = True
            local.step = noted = _Step()
            try:
                with self._training.whole_step(), self._training.unheard():
                    result = original(schedule, *args, **kwargs)
            finally:
                local.inside = False
                local.step = None
            try:
                self._ended(schedule, noted)
            except Exception as error:  # noqa: BLE001 — the user's training goes on
                self._failed(error)
            return result

        return step

    def _giving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _update_losses(schedule: Any, *args: Any, **kwargs: Any) -> Any:
            if (step := self._local.step) is not None:
                step.losses = list(getattr(schedule, "_internal_losses", ()))
            return original(schedule, *args, **kwargs)

        return _update_losses

    def _losing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _maybe_compute_loss(
            schedule: Any, stage: Any, output: Any, targets: Any, microbatch: Any, *args: Any, **kwargs: Any
        ) -> Any:
            result = original(schedule, stage, output, targets, microbatch, *args, **kwargs)
            if (step := self._local.step) is not None and stage.is_last:
                step.extend(stage.stage_index, microbatch)
            return result

        return _maybe_compute_loss

    def _computing(self, kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compute(stage: Any, *args: Any, **kwargs: Any) -> Any:
            if (step := self._local.step) is None:
                return original(stage, *args, **kwargs)
            began = time.perf_counter()
            result = original(stage, *args, **kwargs)
            whole = kind != "B" or kwargs.get("full_backward", all(args[_FULL : _FULL + 1]))
            step.note(kind if whole else "I", stage.stage_index, args[0] if args and kind != "G" else 0, began)
            return result

        return compute

    def _labelling(self, kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def operations(stage: Any, microbatch: int) -> Any:
            found = original(stage, microbatch)
            if self._local.step is not None:
                for operation in found:
                    with contextlib.suppress(AttributeError):
                        setattr(operation, _LABEL, (kind, stage.stage_index, microbatch))
            return found

        return operations

    def _beginning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _batch_p2p(operations: Any, *args: Any, **kwargs: Any) -> Any:
            if (step := self._local.step) is None or not operations:
                return original(operations, *args, **kwargs)
            labels = [label for one in operations if (label := getattr(one, _LABEL, None)) is not None]
            began = time.perf_counter()
            works = original(operations, *args, **kwargs)
            sends = [label for label in labels if label[0] == "S"]
            receives = [label for label in labels if label[0] == "R"]
            if sends:
                kind, stage, microbatch = sends[0]
                step.note(kind, stage, microbatch, began)
            if labels:
                step.works[id(works)] = (receives or sends)[0]
            return works

        return _batch_p2p

    def _waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _wait_batch_p2p(works: Any, *args: Any, **kwargs: Any) -> Any:
            step = self._local.step
            label = step.works.pop(id(works), None) if step is not None and works else None
            if step is None or label is None:
                return original(works, *args, **kwargs)
            began = time.perf_counter()
            result = original(works, *args, **kwargs)
            if label[0] == "R" or time.perf_counter() - began > SHORTEST:
                step.note(*label, began)
            return result

        return _wait_batch_p2p

    # ---- reports ------------------------------------------------------------------------------------------------

    def _ended(self, schedule: Any, step: _Step) -> None:
        if step.losses:
            divides = getattr(schedule, "scale_grads", True)
            self._training.add_loss(step.losses, 1 / len(step.losses) if divides else 1.0)
            step.losses = []
        key = _key(schedule)
        met = self._schedules.get(key)
        if met is None:
            met = self._schedules[key] = _Schedule(schedule, len(self._schedules))
        met.newest = step
        number = met.steps
        met.steps += 1
        if number == 1:
            met.met = step.base
        pace = (step.base - met.met) / (number - 1) if number > 1 else PERIOD
        if number % _power(PERIOD / pace if pace > 0 else _LONGEST) == 0:
            self._tell(met)

    def _tell(self, met: _Schedule) -> None:
        step = met.newest
        if step is None or met.told == met.steps - 1 or max(met.stages, met.microbatches) > MOST_COUNTED:
            return
        met.told = met.steps - 1
        self._metrics.tell(
            PipelineStep(
                number=met.number,
                schedule=met.name,
                step=met.told,
                ranks=met.ranks,
                place=met.place,
                stages=met.stages,
                microbatches=met.microbatches,
                began=step.began,
                actions=pack(
                    Action(kind, stage, microbatch, begin - step.base, end - begin)
                    for kind, stage, microbatch, begin, end in step.actions
                ),
                theory=met.theory,
                on_host=met.on_host,
                left_out=step.left_out,
            )
        )


def _power(ratio: float) -> int:
    """The smallest power of two that is not below ``ratio``, from 1 to :data:`_LONGEST`."""
    return 1 << math.ceil(math.log2(min(max(ratio, 1.0), _LONGEST)))


def _first(schedule: Any) -> Any:
    """The first of the stages that the user gave to a schedule."""
    return schedule._stage if hasattr(schedule, "_stage") else schedule._stages[0]  # noqa: SLF001


def _key(schedule: Any) -> Hashable:
    first = _first(schedule)
    group = getattr(first.group, "group_name", None)
    return type(schedule).__name__, first.num_stages, schedule._n_microbatches, group  # noqa: SLF001


def _ranks(stage: Any) -> list[int]:
    import torch.distributed as dist

    return list(dist.get_process_group_ranks(stage.group if stage.group is not None else dist.group.WORLD))


def _theory(schedule: Any, stages: int, microbatches: int) -> float | None:
    if type(schedule).__name__ in _KNOWN:
        # PyTorch's own table for 1F1B counts micro-batches that do not exist.
        return (stages - 1) / (microbatches + stages - 1)
    with contextlib.suppress(Exception):
        return ideal_bubble(_order(schedule))
    return None


def _order(schedule: Any) -> dict[int, list[tuple[str, int, int]]]:
    """By rank: kind, stage and micro-batch of each computation, in the schedule's order."""
    order = getattr(schedule, "pipeline_order_with_comms", None) or schedule.pipeline_order
    found = {rank: list(_computations(actions)) for rank, actions in order.items()}
    return found if sum(map(len, found.values())) <= MOST_ORDERED else {}


def _computations(actions: Iterable[Any]) -> Iterable[tuple[str, int, int]]:
    for action in actions:
        if action is None:
            continue
        if parts := getattr(action, "sub_actions", None):  # PyTorch before 2.9 has none
            yield from _computations(parts)
        elif kind := _COMPUTATIONS.get(action.computation_type.name):
            yield kind, action.stage_index, action.microbatch_index

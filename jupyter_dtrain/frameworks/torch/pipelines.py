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
import math
import os
import threading
import time
from collections.abc import Hashable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.events import PipelineStep
from jupyter_dtrain.core.pipelines import Action, ideal_bubble, pack
from jupyter_dtrain.plugins.patches import Patch

if TYPE_CHECKING:
    from jupyter_dtrain.rank.metrics import MetricBuffer

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
"""The kinds of computations, by PyTorch's names, whose values differ between versions."""
_KNOWN: Final = ("ScheduleGPipe", "Schedule1F1B")
_LABEL: Final = "_dtrain_pipeline"  # attribute that labels a send or receive

_SCHEDULES: Final = "torch.distributed.pipelining.schedules"
PIPELINES = Patch(
    _SCHEDULES,
    replaces=("_PipelineSchedule._update_losses", "PipelineScheduleSingle.step", "PipelineScheduleMulti.step"),
    reads=("_has_backward", "_internal_losses", "_n_microbatches", "_stage", "_stages"),
    why="A schedule calls backward() for some of the micro-batches of a step, so no such value is the step's loss.",
    lost="a pipeline shows the values given to backward(), and no steps",
)
STAGES = Patch(
    _SCHEDULES,
    replaces=(
        "_PipelineSchedule._maybe_compute_loss",
        "_PipelineStageBase.forward_one_chunk",
        "_PipelineStageBase.backward_one_chunk",
        "_PipelineStageBase.backward_weight_one_chunk",
        "_PipelineStageBase.perform_reduce_grad",
    ),
    why="Where a pipeline idles is known from when each of its stages computes, which torch tells nobody.",
    lost="what the stages of a pipeline compute is not shown",
)
TRANSFERS = Patch(
    _SCHEDULES,
    replaces=(
        "_batch_p2p",
        "_wait_batch_p2p",
        "_PipelineStageBase.get_fwd_send_ops",
        "_PipelineStageBase.get_fwd_recv_ops",
        "_PipelineStageBase.get_bwd_send_ops",
        "_PipelineStageBase.get_bwd_recv_ops",
    ),
    why="A stage that waits for its neighbour idles, and torch tells nobody when and for which micro-batch.",
    lost="transfers of a pipeline are not shown",
)


class _Step:
    """One step of a schedule while it runs."""

    __slots__ = ("actions", "base", "began", "left_out", "losses", "works")

    def __init__(self) -> None:
        self.began = time.time()
        self.base = time.perf_counter()
        self.actions: list[tuple[str, int, int, float, float]] = []
        """The recorded actions: kind, stage, micro-batch, beginning and end of each."""
        self.left_out = 0
        self.losses: list[Any] = []
        self.works: dict[int, tuple[str, int, int]] = {}
        """What a wait for a list of sends and receives is for, by the id of the list."""

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
        self.reported = -1
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
        PIPELINES.when_imported(self._hook)
        STAGES.when_imported(self._hook_stages)
        TRANSFERS.when_imported(self._hook_transfers)
        os.register_at_fork(after_in_child=self._forked)

    def begin(self, *, on: bool) -> None:
        """Start a cell; ``on``: whether it shows metrics."""
        self._schedules = {}
        self._on = on

    def end(self) -> None:
        """End the cell: report the last step of each schedule."""
        if self._on:
            for met in self._schedules.values():
                self._report(met)
        self._on = False
        self._schedules = {}

    def _forked(self) -> None:
        self._on = False

    # ---- hooks --------------------------------------------------------------------------------------------------

    def _hook(self, module: Any) -> None:
        PIPELINES.replace(module._PipelineSchedule, "_update_losses", self._give)  # noqa: SLF001 — where losses pass
        for kind in (module.PipelineScheduleSingle, module.PipelineScheduleMulti):
            PIPELINES.replace(kind, "step", self._step)

    def _hook_stages(self, module: Any) -> None:
        base, stage = module._PipelineSchedule, module._PipelineStageBase  # noqa: SLF001 — the base of all of them
        STAGES.replace(base, "_maybe_compute_loss", self._lose)
        STAGES.replace(stage, "forward_one_chunk", self._forward)
        STAGES.replace(stage, "backward_one_chunk", self._backward)
        STAGES.replace(stage, "backward_weight_one_chunk", self._backward_weight)
        STAGES.replace(stage, "perform_reduce_grad", self._reduce)

    def _hook_transfers(self, module: Any) -> None:
        stage = module._PipelineStageBase  # noqa: SLF001 — the base of all stages
        TRANSFERS.replace(module, "_batch_p2p", self._begin)
        TRANSFERS.replace(module, "_wait_batch_p2p", self._wait)
        for name, kind in (("get_fwd_send_ops", "S"), ("get_fwd_recv_ops", "R")):
            TRANSFERS.replace(stage, name, partial(self._forward_operations, kind))
        for name, kind in (("get_bwd_send_ops", "S"), ("get_bwd_recv_ops", "R")):
            TRANSFERS.replace(stage, name, partial(self._backward_operations, kind))

    def _step(self, original: Any, schedule: Any, *args: Any, **kwargs: Any) -> Any:
        local = self._local
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
        self._ended(schedule, noted)
        return result

    def _give(self, original: Any, schedule: Any, *args: Any, **kwargs: Any) -> Any:
        """Note the losses of a step when the schedule hands them to the user."""
        if (step := self._local.step) is not None:
            step.losses = list(getattr(schedule, "_internal_losses", ()))
        return original(schedule, *args, **kwargs)

    def _lose(
        self,
        original: Any,
        schedule: Any,
        stage: Any,
        output: Any,
        target_mbs: Any,
        mb_index: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Compute the loss of a micro-batch, which counts as a part of its forward."""
        result = original(schedule, stage, output, target_mbs, mb_index, *args, **kwargs)
        if (step := self._local.step) is not None and stage.is_last:
            step.extend(stage.stage_index, mb_index)
        return result

    def _forward(self, original: Any, stage: Any, fwd_chunk_id: Any, *args: Any, **kwargs: Any) -> Any:
        with self._computing("F", stage, fwd_chunk_id):
            return original(stage, fwd_chunk_id, *args, **kwargs)

    def _backward(
        self,
        original: Any,
        stage: Any,
        bwd_chunk_id: Any,
        loss: Any = None,
        full_backward: bool = True,  # noqa: FBT001, FBT002 — torch's signature
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        with self._computing("B" if full_backward else "I", stage, bwd_chunk_id):
            return original(stage, bwd_chunk_id, loss, full_backward, *args, **kwargs)

    def _backward_weight(self, original: Any, stage: Any, bwd_chunk_id: Any, *args: Any, **kwargs: Any) -> Any:
        with self._computing("W", stage, bwd_chunk_id):
            return original(stage, bwd_chunk_id, *args, **kwargs)

    def _reduce(self, original: Any, stage: Any, *args: Any, **kwargs: Any) -> Any:
        with self._computing("G", stage, 0):
            return original(stage, *args, **kwargs)

    @contextlib.contextmanager
    def _computing(self, kind: str, stage: Any, microbatch: int) -> Iterator[None]:
        """Note what ``stage`` computes in this context, if it ends well."""
        step, began = self._local.step, time.perf_counter()
        yield
        if step is not None:
            step.note(kind, stage.stage_index, microbatch, began)

    def _forward_operations(self, kind: str, original: Any, stage: Any, fwd_chunk_id: int) -> Any:
        return self._labelled(kind, stage, fwd_chunk_id, original(stage, fwd_chunk_id))

    def _backward_operations(self, kind: str, original: Any, stage: Any, bwd_chunk_id: int) -> Any:
        return self._labelled(kind, stage, bwd_chunk_id, original(stage, bwd_chunk_id))

    def _labelled(self, kind: str, stage: Any, microbatch: int, operations: Any) -> Any:
        """Note which stage and micro-batch each of some sends or receives is for."""
        if self._local.step is not None:
            for operation in operations:
                with contextlib.suppress(AttributeError):
                    setattr(operation, _LABEL, (kind, stage.stage_index, microbatch))
        return operations

    def _begin(self, original: Any, p2p_ops: Any, *args: Any, **kwargs: Any) -> Any:
        """Begin sends and receives, and note what a wait for them is for."""
        if (step := self._local.step) is None or not p2p_ops:
            return original(p2p_ops, *args, **kwargs)
        labels = [label for one in p2p_ops if (label := getattr(one, _LABEL, None)) is not None]
        began = time.perf_counter()
        works = original(p2p_ops, *args, **kwargs)
        sends = [label for label in labels if label[0] == "S"]
        receives = [label for label in labels if label[0] == "R"]
        if sends:
            kind, stage, microbatch = sends[0]
            step.note(kind, stage, microbatch, began)
        if labels:
            step.works[id(works)] = (receives or sends)[0]
        return works

    def _wait(self, original: Any, work: Any) -> Any:
        """Wait for sends and receives, and record the wait as an action."""
        step = self._local.step
        label = step.works.pop(id(work), None) if step is not None and work else None
        if step is None or label is None:
            return original(work)
        began = time.perf_counter()
        result = original(work)
        if label[0] == "R" or time.perf_counter() - began > SHORTEST:
            step.note(*label, began)
        return result

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
            self._report(met)

    def _report(self, met: _Schedule) -> None:
        step = met.newest
        if step is None or met.reported == met.steps - 1 or max(met.stages, met.microbatches) > MOST_COUNTED:
            return
        met.reported = met.steps - 1
        self._metrics.send(
            PipelineStep(
                number=met.number,
                schedule=met.name,
                step=met.reported,
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
    """Return kind, stage and micro-batch of each computation, by rank and in the schedule's order."""
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

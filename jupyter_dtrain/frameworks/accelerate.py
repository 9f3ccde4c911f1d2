"""Hugging Face's Accelerate in one rank: it sees the world on hosts without a GPU, and can be set up again.

Unpatched, ``Accelerator()`` on a host without a GPU silently trains one process per rank: there it uses the world only
where ``ACCELERATE_USE_CPU`` says so. And it makes its state once per process, while a notebook goes on. Here a new
``Accelerator`` gets a new state where the old one cannot serve it, because the process group is gone, a resize has
changed its numbers, or the user asks for another precision. Older accelerators then use the new state too, because all
share it.

The loss is the argument of ``accelerator.backward``, before Accelerate divides it by the steps of an accumulation or
scales it. Releasing and recovering happen in torch's groups; Accelerate has none of its own.

Under failure: another version of Accelerate, without the parts that this module patches, stays unchanged.
"""

from __future__ import annotations

import sys
from typing import Any

from jupyter_dtrain.core.framework_report import FrameworkReport, facts_of_package
from jupyter_dtrain.core.variables import Variable, given
from jupyter_dtrain.frameworks.torch.metrics import hearing
from jupyter_dtrain.plugins.framework import Framework
from jupyter_dtrain.plugins.patches import Patch, caller

TESTED = "1.15"
"""The version that the tests run with."""
CPU = "ACCELERATE_USE_CPU"
_ALREADY = "already been initialized"
"""Part of Accelerate 1.x's error for a state that differs from the requested one."""

WORLD = Patch(
    "accelerate.state",
    why="On a host without a GPU, Accelerate sees the other ranks only where a variable says that it computes on CPUs.",
    lost="without a GPU an Accelerator trains on each rank alone, unless ACCELERATE_USE_CPU is set",
)
STATE = Patch(
    "accelerate.state",
    replaces=("AcceleratorState.__init__",),
    calls=(
        "PartialState._shared_state",
        "AcceleratorState._shared_state",
        "AcceleratorState._reset_state(reset_partial_state)",
    ),
    reads=("_reset_state", "_mixed_precision"),
    why="Accelerate makes its state once in a process, and refuses an Accelerator with other settings in a later cell.",
    lost="an Accelerator keeps the state of the first one in its process",
)
GROUP = Patch(
    "accelerate.accelerator",
    replaces=("Accelerator.__init__",),
    reads=("_shared_state", "_reset_state"),
    why="After a failure or a resize, a new Accelerator takes over the state of process groups that are gone.",
    lost="an Accelerator keeps the state of process groups that are gone",
)
LOSSES = Patch(
    "accelerate.accelerator",
    replaces=("Accelerator.backward",),
    why="Accelerate divides a loss by the steps of an accumulation before torch's backward gets it.",
    lost="a loss given to Accelerator.backward() is shown as Accelerate divides it",
)


class Accelerate(Framework):
    """The plug-in for Hugging Face's Accelerate in one rank."""

    name = "accelerate"

    def prepare(self) -> None:
        """Wait for ``accelerate`` to be imported."""
        WORLD.when_imported(_offer_cpu)
        STATE.when_imported(lambda module: STATE.replace(module.AcceleratorState, "__init__", _as_asked_for))
        GROUP.when_imported(lambda module: GROUP.replace(module.Accelerator, "__init__", _in_a_living_group))
        LOSSES.when_imported(lambda module: LOSSES.replace(module.Accelerator, "backward", _backward))

    def describe(self) -> FrameworkReport:
        """Describe Accelerate's state, once an ``Accelerator`` has made it."""
        return facts_of_package("Accelerate", "accelerate", TESTED, lambda _: _details())

    def in_use(self) -> str:
        """Accelerate is in use once it is imported."""
        return "Accelerate" if "accelerate" in sys.modules else ""


def _offer_cpu(_: Any) -> None:
    if not has_accelerator():
        given.offer(
            {CPU: Variable("true", "no GPU here: Accelerate then sees the other ranks only with this")}, Accelerate.name
        )


def _details() -> dict[str, str]:
    module: Any = sys.modules.get("accelerate.state")
    parts = [getattr(getattr(module, name, None), "_shared_state", {}) for name in ("PartialState", "AcceleratorState")]
    state = {**parts[0], **parts[1]}
    if "num_processes" not in state:
        return {"state": "none yet: Accelerator() makes it"}
    precision = state.get("_mixed_precision")
    words = f", mixed precision {precision}" if precision not in (None, "no") else ""
    return {"state": f"{state['num_processes']} processes, this one on {state.get('device', 'no device')}{words}"}


def has_accelerator() -> bool:
    """Whether torch (imported already) can compute on anything but the CPU."""
    torch: Any = sys.modules["torch"]
    accelerator = getattr(torch, "accelerator", None)  # new in torch 2.6
    return bool(torch.cuda.is_available() if accelerator is None else accelerator.is_available())


def _backward(original: Any, accelerator: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``Accelerator.backward`` and record the loss as the user gives it, before Accelerate divides it."""
    with hearing(loss, caller(), divides=getattr(accelerator, "gradient_accumulation_steps", 1) > 1):
        return original(accelerator, loss, *args, **kwargs)


def _in_a_living_group(original: Any, accelerator: Any, *args: Any, **kwargs: Any) -> None:
    """Drop Accelerate's state if it is outdated, before user code makes a new ``Accelerator``."""
    state: Any = sys.modules["accelerate.state"]
    if _is_outdated(state):
        _forget(state, everything=True)
    original(accelerator, *args, **kwargs)


def _as_asked_for(
    original: Any,
    asked: Any,
    mixed_precision: Any = None,
    cpu: Any = False,  # noqa: FBT002 — Accelerate's signature
    *args: Any,
    **kwargs: Any,
) -> None:
    """Drop Accelerate's state if it differs from the one that the new ``Accelerator`` requests."""
    try:
        original(asked, mixed_precision, cpu, *args, **kwargs)
    except ValueError as error:
        if _ALREADY not in str(error):
            raise
        _forget(sys.modules["accelerate.state"], everything=bool(cpu))
        original(asked, mixed_precision, cpu, *args, **kwargs)


def _is_outdated(state: Any) -> bool:
    """Whether Accelerate's state is that of a process group that is gone, or that has other ranks by now."""
    dist: Any = sys.modules.get("torch.distributed")
    shared = state.PartialState._shared_state  # noqa: SLF001 — as its own reset does
    # TPU processes meet without torch's groups.
    several = bool(shared) and shared.get("backend") not in (None, "xla")
    if not several or not dist.is_available():
        return False
    known = shared.get("process_index"), shared.get("num_processes")
    return not dist.is_initialized() or known != (dist.get_rank(), dist.get_world_size())


def _forget(state: Any, *, everything: bool) -> None:
    state.AcceleratorState._reset_state(reset_partial_state=everything)  # noqa: SLF001 — Accelerate's own tests call it
    if everything and hasattr(state, "GradientState"):
        state.GradientState._reset_state()  # noqa: SLF001

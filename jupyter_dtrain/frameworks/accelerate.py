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

import functools
import sys
from collections.abc import Callable
from typing import Any

from jupyter_dtrain.core.facts import Facts, facts_of_package
from jupyter_dtrain.core.variables import Variable, given
from jupyter_dtrain.engine.framework import Framework
from jupyter_dtrain.engine.imports import require, when_imported
from jupyter_dtrain.frameworks.torch.metrics import hear_backward

TESTED = "1.15"
"""The version that the tests run with."""
CPU = "ACCELERATE_USE_CPU"
_ALREADY = "already been initialized"
"""Part of Accelerate 1.x's error for a state that differs from the requested one."""


class Accelerate(Framework):
    """Hugging Face's Accelerate in one rank."""

    name = "accelerate"

    def prepare(self) -> None:
        """Wait for ``accelerate`` to be imported."""
        again = "an Accelerator keeps the state of the first one in its process"
        when_imported("accelerate.state", _hook_state, otherwise=again)
        unheard = "a loss given to Accelerator.backward() is shown as Accelerate divides it"
        when_imported("accelerate.accelerator", _hook_accelerator, otherwise=unheard)

    def describe(self) -> Facts:
        """Describe Accelerate's state, once an ``Accelerator`` has made it."""
        return facts_of_package("Accelerate", "accelerate", TESTED, lambda _: _details())

    def in_use(self) -> str:
        """Accelerate is in use once it is imported."""
        return "Accelerate" if "accelerate" in sys.modules else ""


def _hook_state(state: Any) -> None:
    if not has_accelerator():
        given.offer(
            {CPU: Variable("true", "no GPU here: Accelerate then sees the other ranks only with this")}, Accelerate.name
        )
    for kind in (state.PartialState, state.AcceleratorState):
        require(kind, "_reset_state")
    state.AcceleratorState.__init__ = _as_asked_for(state, state.AcceleratorState.__init__)


def _hook_accelerator(module: Any) -> None:
    kind, state = module.Accelerator, sys.modules["accelerate.state"]
    require(kind, "backward")
    require(state, "PartialState")
    kind.__init__ = _in_a_living_group(state, kind.__init__)
    hear_backward(kind, lambda accelerator: getattr(accelerator, "gradient_accumulation_steps", 1) > 1)


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


def _in_a_living_group(state: Any, original: Callable[..., None]) -> Callable[..., None]:
    """Drop a state that is outdated, before user code makes a new ``Accelerator``; keep any other."""

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 — its name is seen in tracebacks
        if _is_outdated(state):
            _forget(state, everything=True)
        original(self, *args, **kwargs)

    return __init__


def _as_asked_for(state: Any, original: Callable[..., None]) -> Callable[..., None]:
    """Drop a state that differs from the requested one."""

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 — its name is seen in tracebacks
        try:
            original(self, *args, **kwargs)
        except ValueError as error:
            if _ALREADY not in str(error):
                raise
            _forget(state, everything=bool(kwargs.get("cpu")))
            original(self, *args, **kwargs)

    return __init__


def _is_outdated(state: Any) -> bool:
    """Whether there is a state of several torch processes whose process group is gone, or has other numbers now."""
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

"""Tells the engine of each step that an optimizer has made, for work that belongs between steps."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from jupyter_dtrain.plugins.patches import Patch

from .metrics import hidden
from .values import is_captured

STEPS = Patch(
    "torch.optim.optimizer",
    calls=("register_optimizer_step_post_hook",),
    why="What belongs between two steps runs after a step, where torch.compile must not trace it.",
    lost="--check and snapshots between steps see no steps",
)


class StepHook:
    """Calls a function after each optimizer step of one rank. While none is set, a step costs one comparison more."""

    def __init__(self) -> None:
        self._call: Callable[[int], object] | None = None
        self._first: weakref.ref[Any] | None = None
        self._thread = 0
        self._count = 0

    def install(self, module: Any) -> None:
        """Hook the steps of all optimizers, once ``torch.optim.optimizer`` is imported."""
        guarded = STEPS.callback(self._after_step)

        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if self._call is not None:
                guarded(optimizer, args, kwargs)

        module.register_optimizer_step_post_hook(hidden(after_step))

    def follow(self, call: Callable[[int], object] | None) -> None:
        """Call ``call`` after each step of the optimizer that steps first from now on; None ends that."""
        self._call, self._first, self._count = call, None, 0

    @property
    def optimizer(self) -> Any:
        """The optimizer that steps first; None before that, and once it is gone."""
        return None if self._first is None else self._first()

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002 — torch's signature
        if (call := self._call) is None or is_captured():
            return
        if self._first is None:
            self._first, self._thread = weakref.ref(optimizer), threading.get_ident()
        if self._first() is optimizer and threading.get_ident() == self._thread:
            self._count += 1
            call(self._count)

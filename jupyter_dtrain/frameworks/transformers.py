"""Hugging Face's Transformers in one rank: what a ``Trainer`` logs is shown, and its bar is the cell's.

``Trainer`` finds the world by itself, through Accelerate (see :mod:`.accelerate`); its losses come step by step from
torch, those of the batches of an accumulation added up, since it has divided them before. Beside those it says, every
``logging_steps``, what it has gathered from all ranks, and what an evaluation found: series of the names that its own
integrations give them, ``train/loss``, ``eval/accuracy``. What is no curve (run times) is left out.

In a notebook its progress is a table for each process; here it is tqdm's bar, which the cell shows once for all ranks.

Under failure: a number that cannot be read is left out; another version, without the parts that are changed here, is
left as it is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import wrapt

from jupyter_dtrain.core.facts import Facts, facts_of_package, imported
from jupyter_dtrain.engine.framework import Framework
from jupyter_dtrain.frameworks.torch.metrics import adding
from jupyter_dtrain.wire.messages import Watching

if TYPE_CHECKING:
    from jupyter_dtrain.engine.metrics import MetricBuffer

TESTED = "5.23"
"""The version that the tests run with."""
NO_CURVES = ("epoch", "total_flos", "num_input_tokens_seen")
NO_CURVES_END = ("_runtime", "_per_second", "_time")


class Transformers(Framework):
    """Hugging Face's Transformers in one rank."""

    name = "transformers"

    def prepare(self, metrics: MetricBuffer) -> None:
        """Wait for the ``Trainer`` to be imported."""
        self._metrics = metrics
        self._on = False
        wrapt.register_post_import_hook(self._hook, "transformers.trainer")

    def before_cell(self, watch: Watching) -> None:
        """Whether this cell shows what is logged."""
        self._on = watch.metrics

    def describe(self) -> Facts:
        """Whether its ``Trainer`` is in use: most of it is imported part by part."""
        return facts_of_package("Transformers", "transformers", TESTED, lambda _: _details())

    def in_use(self) -> str:
        """Once it is imported."""
        return "Transformers" if "transformers" in sys.modules else ""

    def _hook(self, module: Any) -> None:
        callbacks: ModuleType | None = sys.modules.get("transformers.trainer_callback")
        if not hasattr(module, "DEFAULT_CALLBACKS") or callbacks is None:
            return
        kind = type("RankCallback", (callbacks.TrainerCallback,), {"on_log": self._on_log()})
        module.DEFAULT_CALLBACKS.append(kind)
        if hasattr(module, "DEFAULT_PROGRESS_CALLBACK"):
            module.DEFAULT_PROGRESS_CALLBACK = callbacks.ProgressCallback
        if hasattr(module.Trainer, "training_step"):
            module.Trainer.training_step = _adding(module.Trainer.training_step)

    def _on_log(self) -> Callable[..., None]:
        @functools.wraps(self._log)
        def on_log(
            callback: Any,  # noqa: ARG001 — what it is a method of
            args: Any,  # noqa: ARG001 — the Trainer's signature
            state: Any,
            control: Any,  # noqa: ARG001
            logs: dict[str, Any] | None = None,
            **_: Any,
        ) -> None:
            if self._on and logs:
                self._log(logs, max(0, int(state.global_step) - 1))

        return on_log

    def _log(self, logs: dict[str, Any], step: int) -> None:
        for name, value in logs.items():
            if name in NO_CURVES or name.endswith(NO_CURVES_END) or isinstance(value, (str, bytes, dict, list)):
                continue
            kind, _, rest = name.partition("_")
            shown = f"{kind}/{rest}" if kind in ("eval", "test") and rest else f"train/{name}"
            try:
                self._metrics.add(shown, float(value), step, logged=True)
            except (TypeError, ValueError) as error:
                self._metrics.complain(f"{name!r} is left out: {error}")


def _details() -> dict[str, str]:
    trainer = "imported" if imported("transformers.trainer") else "not imported"
    return {"Trainer": f"{trainer}: it finds the world through Accelerate"}


def _adding(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        with adding():
            return original(self, *args, **kwargs)

    return training_step

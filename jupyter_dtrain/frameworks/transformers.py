"""Hugging Face's Transformers in one rank: the values that a ``Trainer`` logs, and its progress as the cell's bar.

``Trainer`` finds the world through Accelerate (see :mod:`.accelerate`). Its losses come from torch, step by step; the
losses of an accumulation's batches are added up, because it has divided them before. Every ``logging_steps`` it also
logs values gathered from all ranks, and the results of evaluations. They become series with the names that its own
integrations use, such as ``train/loss`` and ``eval/accuracy``. Run times, which form no curve, are left out.

In a notebook ``Trainer`` would show its progress as a table for each process. Here it uses tqdm's bar, which the cell
shows once for all ranks.

Under failure: a number that cannot be read is left out. Another version of Transformers, without the parts that this
module patches, stays unchanged.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.framework_report import FrameworkReport, facts_of_package, imported
from jupyter_dtrain.frameworks.torch.metrics import adding
from jupyter_dtrain.plugins.framework import Framework
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.wire.messages import Watching

if TYPE_CHECKING:
    from jupyter_dtrain.rank.metrics import MetricBuffer

TESTED = "5.17 and 5.24"
"""The versions that the tests have run with."""
NO_SETTINGS = frozenset(
    (
        *("output_dir", "logging_dir", "run_name", "local_rank", "disable_tqdm", "report_to", "use_cpu", "no_cuda"),
        *("log_level", "log_level_replica", "project", "trackio_space_id", "hub_model_id", "push_to_hub"),
    )
)
"""Arguments that say where results go, and not how they come about."""
NO_CURVES = ("epoch", "total_flos", "num_input_tokens_seen")
NO_CURVES_END = ("_runtime", "_per_second", "_time")

LOGGED = Patch(
    "transformers.trainer",
    calls=("DEFAULT_CALLBACKS",),
    why="A Trainer prints what it logs, once for each rank; a callback of its own list of defaults takes the values.",
    lost="values that the Trainer logs are not shown",
)
PROGRESS = Patch(
    "transformers.trainer",
    replaces=("DEFAULT_PROGRESS_CALLBACK",),
    why="In a notebook a Trainer shows its progress as a table, and there would be one of each rank.",
    lost="the Trainer shows its progress as a table of each rank",
)
LOSSES = Patch(
    "transformers.trainer",
    replaces=("Trainer.training_step",),
    why="A Trainer divides the losses of an accumulation's batches before torch's backward gets them.",
    lost="the losses of an accumulation's batches are shown as the Trainer divides them",
)


class Transformers(Framework):
    """The plug-in for Hugging Face's Transformers in one rank."""

    name = "transformers"

    def prepare(self, metrics: MetricBuffer) -> None:
        """Wait for the ``Trainer`` to be imported."""
        self._metrics = metrics
        self._on = False
        self._arguments: dict[str, Any] = {}
        LOGGED.when_imported(self._hear_logs)
        PROGRESS.when_imported(_use_bar)
        LOSSES.when_imported(lambda module: LOSSES.replace(module.Trainer, "training_step", _training_step))

    def before_cell(self, watch: Watching) -> None:
        """Note whether this cell shows the values that a ``Trainer`` logs."""
        self._on = watch.metrics
        self._arguments = {}

    def configuration(self) -> dict[str, dict[str, Any]]:
        """Return the arguments of the ``Trainer`` that differ from their defaults."""
        return {"arguments": self._arguments} if self._arguments else {}

    def describe(self) -> FrameworkReport:
        """Describe whether its ``Trainer`` is in use, because its parts are imported one by one."""
        return facts_of_package("Transformers", "transformers", TESTED, lambda _: _details())

    def in_use(self) -> str:
        """Transformers is in use once it is imported."""
        return "Transformers" if "transformers" in sys.modules else ""

    def _hear_logs(self, module: Any) -> None:
        callbacks: Any = sys.modules["transformers.trainer_callback"]

        def on_log(
            callback: Any,  # noqa: ARG001 — a method's signature
            args: Any,  # noqa: ARG001 — the Trainer's signature
            state: Any,
            control: Any,  # noqa: ARG001
            logs: dict[str, Any] | None = None,
            **_: Any,
        ) -> None:
            if self._on and logs:
                self._log(logs, max(0, int(state.global_step) - 1))

        def on_train_begin(callback: Any, args: Any, *_: Any, **__: Any) -> None:  # noqa: ARG001 — as above
            self._arguments = _changed(args)

        ours = {one.__name__: LOGGED.callback(one) for one in (on_log, on_train_begin)}
        kind = type("RankCallback", (callbacks.TrainerCallback,), ours)
        module.DEFAULT_CALLBACKS.append(kind)

    def _log(self, logs: dict[str, Any], step: int) -> None:
        for name, value in logs.items():
            if name in NO_CURVES or name.endswith(NO_CURVES_END) or isinstance(value, (str, bytes, dict, list)):
                continue
            kind, _, rest = name.partition("_")
            shown = f"{kind}/{rest}" if kind in ("eval", "test") and rest else f"train/{name}"
            try:
                self._metrics.add(shown, float(value), step, logged=True, counted=True)
            except (TypeError, ValueError) as error:
                self._metrics.complain(f"Metrics: {name!r} is left out: {error}")


def _changed(arguments: Any) -> dict[str, Any]:
    """The arguments that are not as they are by default: numbers, text, booleans and members of enumerations."""
    found = {}
    for field in dataclasses.fields(arguments):
        value = vars(arguments).get(field.name)
        if field.name.startswith("_") or field.name in NO_SETTINGS or not isinstance(value, (int, float, str)):
            continue
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        if value != default:
            found[field.name] = value
    return found


def _details() -> dict[str, str]:
    trainer = "imported" if imported("transformers.trainer") else "not imported"
    return {"Trainer": f"{trainer}: it finds the world through Accelerate"}


def _use_bar(module: Any) -> None:
    callbacks: Any = sys.modules["transformers.trainer_callback"]
    PROGRESS.put(module, "DEFAULT_PROGRESS_CALLBACK", callbacks.ProgressCallback)


def _training_step(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    with adding():
        return original(trainer, *args, **kwargs)

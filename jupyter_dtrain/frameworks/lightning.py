"""Lightning and Fabric in one rank: they find the world, train in it without forking, and their logged values show.

Unpatched, ``strategy="ddp"`` raises an error in a notebook, ``"auto"`` forks, and without a GPU ``devices="auto"``
means one device, so that each rank trains alone. Here a rank looks like a process that torchrun started:

* Ranks have no ``sys.ps1``, by which Lightning recognises a notebook. IPython sets it, but reads it nowhere.
* Without a GPU, ``devices="auto"`` means as many processes as there are ranks on the host.
* A ``Fabric`` is set up when it is made, as under ``fabric run``, so it works without ``launch()``, and with it.

Losses come from torch, see :mod:`jupyter_dtrain.frameworks.torch.losses`: undivided, where Lightning divides them by
the batches of an accumulation. Values that a module logs with ``self.log`` appear under their names, as Lightning gives
them to loggers: values of the batches that step, at their step; means of epochs and evaluations, at the last step
before. With ``sync_dist=True`` such a mean is of all ranks.

Under failure: a logged value that cannot be read is left out. Another version of Lightning, without the parts that this
module patches, stays unchanged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.framework_report import FrameworkReport, facts_of_package
from jupyter_dtrain.frameworks.torch.values import read, take
from jupyter_dtrain.plugins.framework import Framework
from jupyter_dtrain.plugins.patches import Patch, raises_on_purpose
from jupyter_dtrain.wire.messages import Watching

if TYPE_CHECKING:
    from jupyter_dtrain.rank.metrics import MetricBuffer

TESTED = "2.6"
"""The version that the tests run with."""
DEFAULTS = {
    **dict.fromkeys(("max_epochs", "max_time", "gradient_clip_val", "gradient_clip_algorithm")),
    "max_steps": -1,
    "precision": "32-true",
    "accumulate_grad_batches": 1,
    "num_nodes": 1,
    "overfit_batches": 0.0,
    "limit_train_batches": 1.0,
    "val_check_interval": 1.0,
    "check_val_every_n_epoch": 1,
}
"""What a ``Trainer`` says of itself that is a hyper-parameter, each with its default."""
PACKAGES = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric")
"""The names under which Lightning's code is packaged."""

DEVICES = Patch(
    tuple(f"{package}.accelerators.cpu" for package in PACKAGES),
    replaces=("CPUAccelerator.auto_device_count",),
    why='Without a GPU, Lightning takes devices="auto" for one device, so that each rank trains alone.',
    lost='devices="auto" is one device where there is no GPU',
)
FABRIC = Patch(
    ("lightning.fabric.fabric", "lightning_fabric.fabric"),
    replaces=("Fabric.__init__",),
    calls=("Fabric._validate_launched()",),
    reads=("_launched",),
    why="Each rank is a process that Fabric's launch() would make, and Fabric refuses to work before that call.",
    lost="a Fabric needs launch() before its first use",
)
LOGGED = Patch(
    tuple(
        f"{package}.trainer.connectors.logger_connector.logger_connector"
        for package in ("lightning.pytorch", "pytorch_lightning")
    ),
    replaces=(
        "_LoggerConnector.update_train_step_metrics",
        "_LoggerConnector.update_train_epoch_metrics",
        "_LoggerConnector.log_eval_end_metrics",
    ),
    calls=("_LoggerConnector.metrics",),
    reads=("_should_accumulate",),
    why="Lightning gives the values of self.log() to its loggers alone, and to these only at some of the steps.",
    lost="values passed to self.log() are not shown",
)


class Lightning(Framework):
    """The plug-in for Lightning and Fabric in one rank."""

    name = "lightning"

    def prepare(self, metrics: MetricBuffer) -> None:
        """Hide ``sys.ps1`` before Lightning is imported, because it looks at it then."""
        vars(sys).pop("ps1", None)
        self._logged = _Logged(metrics)
        DEVICES.when_imported(_hook_devices)
        FABRIC.when_imported(lambda module: FABRIC.replace(module.Fabric, "__init__", _launched))
        LOGGED.when_imported(self._logged.hook)

    def before_cell(self, watch: Watching) -> None:
        """Note whether this cell shows the values that modules log."""
        self._logged.begin(on=watch.metrics)

    def configuration(self) -> dict[str, dict[str, Any]]:
        """Return what a ``Trainer`` was told that is not its default, and the ``hparams`` of its module and data."""
        return self._logged.settings

    def describe(self) -> FrameworkReport:
        """Describe the imported package, under whichever of its names it was imported."""
        packages = ("lightning", "pytorch_lightning", "lightning_fabric")
        package = next((name for name in packages if name in sys.modules), packages[0])
        return facts_of_package("Lightning", package, TESTED, lambda _: _details())

    def in_use(self) -> str:
        """Lightning is in use once it is imported."""
        return "Lightning" if any(package in sys.modules for package in PACKAGES) else ""


def _hook_devices(module: ModuleType) -> None:
    DEVICES.replace(module.CPUAccelerator, "auto_device_count", lambda _original: _local_size())


def _launched(original: Any, fabric: Any, *args: Any, **kwargs: Any) -> None:
    """Run ``Fabric.__init__``, then set up the ranks. ``LT_CLI_USED`` would do so too, but forbids ``launch()``."""
    original(fabric, *args, **kwargs)
    # Other launchers make processes, or have none to make.
    environment = getattr(fabric.strategy.launcher, "cluster_environment", None)
    if getattr(environment, "creates_processes_externally", False) and not fabric._launched:  # noqa: SLF001 — as launch()
        _set_up(fabric.strategy)
        fabric._launched = True  # noqa: SLF001


@raises_on_purpose
def _set_up(strategy: Any) -> None:
    """Set the ranks up as ``launch()`` does: wait for the other ranks, and raise Lightning's own errors."""
    strategy.setup_environment()


def _details() -> dict[str, str]:
    return {'devices="auto"': f"{_local_size()} where there is no GPU: the ranks of this host"}


def _local_size() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _settings_of(trainer: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"trainer": {"strategy": type(trainer.strategy).__name__}}
    for name, default in DEFAULTS.items():
        value = getattr(trainer, name, default)
        if isinstance(value, (int, float, str)) and value != default:
            found["trainer"][name] = value
    for name, owner in (("hparams", trainer.lightning_module), ("data", getattr(trainer, "datamodule", None))):
        if values := dict(getattr(owner, "hparams", ())):
            found[name] = values
    return found


class _Logged:
    """Records the values given to ``self.log`` as points."""

    def __init__(self, metrics: MetricBuffer) -> None:
        self._metrics = metrics
        self.on = False
        self.settings: dict[str, dict[str, Any]] = {}
        """The hyper-parameters of the training of this cell."""

    def begin(self, *, on: bool) -> None:
        """Begin a cell."""
        self.on = on
        self.settings = {}

    def hook(self, module: Any) -> None:
        """Follow the values that Lightning gives to loggers, even without a logger and at steps that it skips."""
        kind = module._LoggerConnector  # noqa: SLF001 — Lightning has no public way
        for name, ours in (
            ("update_train_step_metrics", self._step),
            ("update_train_epoch_metrics", self._epoch),
            ("log_eval_end_metrics", self._evaluation),
        ):
            LOGGED.replace(kind, name, ours)

    def _step(self, original: Any, connector: Any) -> None:
        trainer = connector.trainer
        if self.on and not self.settings:
            self.settings = _settings_of(trainer)
        by_hand = not trainer.lightning_module.automatic_optimization
        if by_hand or not trainer.fit_loop._should_accumulate():  # noqa: SLF001 — the connector itself asks this
            self._log(trainer, connector.metrics["log"])
        original(connector)

    def _epoch(self, original: Any, connector: Any) -> None:
        self._log(connector.trainer, connector.metrics["log"])
        original(connector)

    def _evaluation(self, original: Any, connector: Any, metrics: Mapping[str, Any]) -> None:
        self._log(connector.trainer, metrics)
        original(connector, metrics)

    def _log(self, trainer: Any, logged: Mapping[str, Any]) -> None:
        if not self.on or trainer.sanity_checking:
            return
        step = max(0, int(trainer.global_step) - 1)
        for name, value in logged.items():
            try:
                number = take(value) if hasattr(value, "numel") else float(value)
                if number is not None:
                    how = read if hasattr(value, "numel") else None
                    self._metrics.add(name, number, step, read=how, logged=True, counted=True)
            except (TypeError, ValueError) as error:
                self._metrics.complain(f"Metrics: {name!r} is left out: {error}")

"""Lightning and Fabric in one rank: they find the world, train in it without forking, and what they log is shown.

As they come, ``strategy="ddp"`` is refused in a notebook, ``"auto"`` forks, and ``devices="auto"`` means one device
where there is no GPU, so that each rank trains alone. Here a rank is what torchrun would have started:

* ``sys.ps1``, by which Lightning knows a notebook, is gone from ranks. IPython sets it, and reads it nowhere.
* ``devices="auto"`` without a GPU are as many processes as the rank's host has.

Losses come from torch, as :mod:`.torch_losses` has them: undivided, where Lightning divides them by the batches of an
accumulation. What a module logs with ``self.log`` is shown under its name by a callback of each ``Trainer``: values of
steps at their step, means of epochs at the last step of the epoch. With ``sync_dist=True`` that mean is of all ranks.

Under failure: a logged value that cannot be read is left out; another version, without the parts that are changed
here, is left as it is.
"""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import wrapt

from . import Framework, Watch
from .torch_values import read, take

if TYPE_CHECKING:
    from ..engine.metrics import MetricBuffer
    from ..launch.request import RankSpec
    from ..world import Placement

PACKAGES = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric")
"""The same code comes under each of these names."""


class Lightning(Framework):
    """Lightning and Fabric in one rank."""

    name = "lightning"

    def prepare(self, place: Placement, spec: RankSpec, metrics: MetricBuffer) -> None:  # noqa: ARG002
        """Before Lightning is imported: it looks at ``sys.ps1`` then."""
        vars(sys).pop("ps1", None)
        self._logged = _Logged(metrics)
        for package in PACKAGES:
            wrapt.register_post_import_hook(_hook_devices, f"{package}.accelerators.cpu")
        for package in ("lightning.pytorch", "pytorch_lightning"):
            connector = f"{package}.trainer.connectors.callback_connector"
            wrapt.register_post_import_hook(self._hook_callbacks, connector)

    def before_cell(self, generation: int, watch: Watch) -> None:  # noqa: ARG002
        """Whether this cell shows what is logged."""
        self._logged.on = watch.metrics

    def _hook_callbacks(self, module: Any) -> None:
        original = getattr(module, "_load_external_callbacks", None)
        if original is None or not hasattr(module, "Callback"):
            return

        @functools.wraps(original)
        def load(*args: Any, **kwargs: Any) -> list[Any]:
            return [*original(*args, **kwargs), _callback(module.Callback, self._logged)]

        # Lightning has an entry point for this, which everybody who has this package installed would load, and each
        # Trainer says what it found there.
        module._load_external_callbacks = load  # noqa: SLF001

    def in_use(self) -> str:
        """Once it is imported."""
        return "Lightning" if any(package in sys.modules for package in PACKAGES) else ""


def _hook_devices(module: ModuleType) -> None:
    kind = getattr(module, "CPUAccelerator", None)
    if kind is not None and hasattr(kind, "auto_device_count"):
        kind.auto_device_count = staticmethod(_local_size)


def _local_size() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


class _Logged:
    """What ``self.log`` was given, as points."""

    def __init__(self, metrics: MetricBuffer) -> None:
        self._metrics = metrics
        self.on = False

    def tell(self, trainer: Any, *, on_step: bool) -> None:
        results = getattr(trainer, "_results", None)
        if not self.on or results is None or trainer.sanity_checking:
            return
        step = max(0, int(trainer.global_step) - 1)
        try:
            # trainer.callback_metrics would be those of all steps so far, too.
            logged = results.metrics(on_step)["log"]
        except Exception as error:  # noqa: BLE001 — the user's training goes on
            self._metrics.complain(f"what Lightning logs is not shown: {type(error).__name__}: {error}")
            return
        for name, value in logged.items():
            try:
                number = take(value)
                if number is not None:
                    self._metrics.add(name, number, step, read=read, logged=True)
            except ValueError as error:
                self._metrics.complain(f"{name!r} is left out: {error}")


def _callback(base: Any, logged: _Logged) -> Any:
    """What a ``Trainer`` tells. ``base``: its package's ``Callback``."""

    def on_train_batch_end(_: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ARG001 — Lightning's signature
        logged.tell(trainer, on_step=True)

    def on_epoch_end(_: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ARG001
        logged.tell(trainer, on_step=False)

    hooks = {
        "on_train_batch_end": on_train_batch_end,
        "on_train_epoch_end": on_epoch_end,
        "on_validation_epoch_end": on_epoch_end,
        "on_test_epoch_end": on_epoch_end,
    }
    return type("RankCallback", (base,), hooks)()

"""Keras in one rank: the values that ``fit`` logs, and its progress as one bar; Keras 3 on all backends, ``tf_keras``.

``fit`` passes to every callback, after each batch, the losses and metrics so far in this epoch under Keras' own names,
and after each epoch those of the validation (``val_loss``); under ``ParameterServerStrategy`` all of them come after
each epoch. The hooks of its backend ignore what ``fit`` computes, so no loss appears twice. The cell shows its progress
bar once, instead of one for each rank.

The ranks of Keras 3 are those of its backend: JAX's under ``keras.distribution`` (see :mod:`.jax`), TensorFlow's
strategies, or PyTorch's DDP inside the model. Under the torch backend ``fit`` of a plain model averages nothing across
ranks; the cell warns about that where a process group is up. ``keras.distribution`` spans the ranks on JAX alone, once
``keras.distribution.initialize()`` was called; where it spans this rank's own devices, the cell says so.

Under failure: another version of Keras, without the parts that this module patches, stays unchanged; a value that is
no number is left out.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from jupyter_dtrain.core.contents import Kind, PartSummary
from jupyter_dtrain.core.framework_report import FrameworkReport, facts_of_package, imported
from jupyter_dtrain.frameworks.torch.metrics import unheard
from jupyter_dtrain.plugins.framework import Framework, Part
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.rank.contents import ArrayPart, asarray
from jupyter_dtrain.rank.rank_context import ProgressBar, bar_text
from jupyter_dtrain.wire.messages import Watching

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import Placement
    from jupyter_dtrain.rank.metrics import MetricBuffer

TESTED = "3.15"
"""The version that the tests run with."""
OLDER_TESTED = "2.21"
"""The tested version of ``tf_keras``."""
FITTED = ("epochs", "batch_size", "steps_per_epoch", "validation_split")
"""Arguments of ``fit`` that are hyper-parameters."""
_MAX_BAR_METRICS = 8
"""How many numbers the line of a bar shows."""

LOGS = Patch(
    ("keras.src.callbacks.callback_list", "tf_keras.src.callbacks"),
    replaces=("CallbackList.on_train_batch_end", "CallbackList.on_epoch_end"),
    why=(
        "What fit() logs reaches the cell as text only. A callback of ours would run on a thread, in any order, or "
        "make Keras 3 wait for the value of each batch."
    ),
    lost="values that fit() logs are not shown",
)
BARS = Patch(
    ("keras.src.utils.progbar", "tf_keras.src.utils.generic_utils"),
    replaces=("Progbar.update",),
    reads=("_start", "_values", "_values_order", "verbose"),
    why="Every rank would draw the same bar over and over, into one cell.",
    lost="fit() prints a progress bar for each rank",
)
FITS = Patch(
    ("keras.src.models.model", "tf_keras.src.engine.training"),
    replaces=("Model.fit",),
    reads=("_flatten_layers",),
    why=(
        "On the torch backend fit() calls backward() of the losses that it logs, and averages nothing across the ranks "
        "of a process group, without a word."
    ),
    lost="losses inside fit() are shown twice, and nothing says where fit() trains each rank alone",
)
DISTRIBUTIONS = Patch(
    "keras.src.distribution.distribution_lib",
    replaces=("initialize", "set_distribution"),
    why="A distribution that spans the devices of one rank alone trains as many models as there are ranks, silently.",
    lost="nothing says where keras.distribution does not span the ranks",
)


class Keras(Framework):
    """The plug-in for Keras in one rank."""

    name = "keras"

    def prepare(self, place: Placement, metrics: MetricBuffer) -> None:
        """Wait for the parts of Keras to be imported."""
        self._metrics = metrics
        self._place = place
        self._on = False
        self._settings: dict[str, dict[str, Any]] = {}
        self._steps = 0
        """Number of batches in this cell, over all calls of ``fit``."""
        metrics.count_by(lambda: self._steps)
        LOGS.when_imported(self._hook_callbacks)
        BARS.when_imported(lambda module: BARS.replace(module.Progbar, "update", _update))
        FITS.when_imported(lambda module: FITS.replace(module.Model, "fit", self._fit))
        DISTRIBUTIONS.when_imported(self._hook_distribution)

    def before_cell(self, watch: Watching) -> None:
        """Note whether this cell shows the values that ``fit`` logs."""
        self._on = watch.metrics
        self._steps = 0
        self._settings = {}

    def configuration(self) -> dict[str, dict[str, Any]]:
        """Return the settings of the optimizer of the last ``fit``, and its arguments."""
        return self._settings

    def describe(self) -> FrameworkReport:
        """Describe the imported Keras and its backend."""
        if imported("tf_keras") is not None and imported("keras") is None:
            return facts_of_package("Keras", "tf_keras", OLDER_TESTED, lambda _: {"backend": "tensorflow"})
        return facts_of_package("Keras", "keras", TESTED, _details)

    def parts(self, name: str, value: Any, namespace: Mapping[str, Any]) -> list[Part] | None:  # noqa: ARG002
        """Return the weights of a model and the variables of its optimizer as parts to compare."""
        kinds = tuple(sys.modules[one].Model for one in ("keras", "tf_keras") if imported(one))
        if not issubclass(type(value), kinds):
            return None
        trained = {id(weight) for weight in value.trainable_weights}
        parts: list[Part] = []
        for place, weight in enumerate(value.weights):
            kind: Kind = "parameter" if id(weight) in trained else "buffer"
            parts.append(_part(f"{place}: {getattr(weight, 'path', weight.name)}", kind, weight))
        kept = getattr(getattr(value, "optimizer", None), "variables", ())
        for place, weight in enumerate(kept() if callable(kept) else kept):
            label = f"optimizer {place}: {getattr(weight, 'path', weight.name)}"
            parts.append(_part(label, "optimizer state", weight))
        return parts

    def in_use(self) -> str:
        """Keras is in use once it is imported."""
        return "Keras" if "keras" in sys.modules or "tf_keras" in sys.modules else ""

    # The values that fit logs.

    def _hook_callbacks(self, module: Any) -> None:
        LOGS.replace(module.CallbackList, "on_train_batch_end", self._batch_ends)
        LOGS.replace(module.CallbackList, "on_epoch_end", self._epoch_ends)

    def _batch_ends(self, original: Any, callbacks: Any, batch: int, logs: Any = None) -> Any:
        if self._on:
            state = _state_of(callbacks, self._steps)
            state.batch = int(batch)
            self._steps = state.first + state.batch + 1
            # Under parameter servers a batch's values are still on a worker: they come at the end of the epoch.
            state.heard = isinstance(logs or {}, Mapping)
            if state.heard:
                self._log(logs or {}, state.first + state.batch)
        return original(callbacks, batch, logs)

    def _epoch_ends(self, original: Any, callbacks: Any, epoch: int, logs: Any = None) -> Any:
        if self._on:
            state = _state_of(callbacks, self._steps)
            unheard_of = {name: value for name, value in (logs or {}).items() if _is_new(name, state)}
            self._log(unheard_of, state.first + state.batch)
            state.first += state.batch + 1
        return original(callbacks, epoch, logs)

    def _log(self, logs: Mapping[str, Any], step: int) -> None:
        for name, value in logs.items():
            if isinstance(value, (int, float)):
                self._metrics.add(name, float(value), step)
            elif hasattr(value, "__float__"):
                self._metrics.add(name, value, step, read=_read)

    # The calls of fit.

    def _fit(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if why := _trains_alone(model):
            self._metrics.complain(why)
        if self._on:
            with contextlib.suppress(Exception):  # an optimizer of somebody's own
                self._settings = _settings_of(model.optimizer, kwargs)
        with unheard():
            return original(model, *args, **kwargs)

    # The ranks that keras.distribution spans.

    def _hook_distribution(self, module: Any) -> None:
        def initialize(original: Any, *args: Any, **kwargs: Any) -> Any:
            self._say_where_alone(module)
            return original(*args, **kwargs)

        def set_distribution(original: Any, value: Any) -> Any:
            if value is not None:
                self._say_where_alone(value)
            return original(value)

        DISTRIBUTIONS.replace(module, "initialize", initialize)
        DISTRIBUTIONS.replace(module, "set_distribution", set_distribution)

    def _say_where_alone(self, distribution: Any) -> None:
        """``distribution``: what is to span the ranks, or Keras' module for any."""
        if self._place.size > 1 and (why := _spans_one_rank(distribution)):
            self._metrics.complain(why)


def _settings_of(optimizer: Any, arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The hyper-parameters of an optimizer, and those among the arguments of ``fit`` that are named there."""
    kind = type(optimizer)
    found: dict[str, Any] = {"optimizer": kind.__name__}
    # A variable of tf_keras may be on a parameter server, and code of the user's is not run.
    if kind.__module__.startswith("keras."):
        for name, value in optimizer.get_config().items():
            if value and name not in ("name", "ema_momentum", "loss_scale_factor"):
                # A variable of 32 bits makes 0.05 to 0.05000000074505806.
                found[name] = float(f"{value:.7g}") if isinstance(value, float) else value
    told = {name: arguments[name] for name in FITTED if isinstance(arguments.get(name), (int, float))}
    return {"optimizer": found, "fit": told}


class _State:
    """How far the callbacks of one ``fit`` have come."""

    first = 0
    """The step of the first batch of this epoch."""
    batch = 0
    heard = True
    """Whether the values of the last batch were there when it ended."""


def _is_new(name: str, state: _State) -> bool:
    """Whether the value of ``name`` is known only at the end of an epoch."""
    return not state.heard or name.startswith("val_")


def _state_of(callbacks: Any, first: int) -> _State:
    found = vars(callbacks).get("_dtrain_state")
    if found is None:
        found = callbacks._dtrain_state = _State()  # noqa: SLF001 — ours
        found.first = first
    return cast("_State", found)


def _read(values: Sequence[Any]) -> list[float]:
    return [float(value) for value in values]


def _update(original: Any, progress: Any, current: Any, values: Any = None, finalize: Any = None) -> Any:
    """Report a bar that Keras would draw again and again; leave alone one that writes a line at the end."""
    if progress.verbose != 1 or not hasattr(progress, "_values_order"):
        return original(progress, current, values, finalize)
    progress.verbose = 0
    try:
        original(progress, current, values, finalize)
    finally:
        progress.verbose = 1
    at_end = progress.target is not None and current >= progress.target
    _report(progress, current, ends=at_end if finalize is None else finalize)
    return None


def _report(progress: Any, current: float, *, ends: bool) -> None:
    bar = vars(progress).setdefault("_dtrain_bar", None)
    if bar is None:
        bar = progress._dtrain_bar = ProgressBar("", None)  # noqa: SLF001 — ours
    seconds = max(time.time() - progress._start, 1e-9)  # noqa: SLF001 — the start time of its own line
    rate = current / seconds
    numbers = [(name, _mean(progress._values[name])) for name in progress._values_order]  # noqa: SLF001
    words = "".join(f", {name} {value:.4g}" for name, value in numbers[:_MAX_BAR_METRICS] if value is not None)
    text = bar_text("", current, progress.target, seconds, rate) + words
    if ends:
        bar.end(current, progress.target, text)
    else:
        bar.report(current, progress.target, rate, text, "")


def _mean(value: Any) -> float | None:
    """The mean that Keras would show, from a sum and a count, or a value; None where that is no number."""
    total, count = value if isinstance(value, list) else (value, 1)
    try:
        return float(total) / max(1, int(count))
    except Exception:  # noqa: BLE001 — text, or an array whose computation has failed
        return None


def _trains_alone(model: Any) -> str:
    """Why a ``fit`` on the torch backend averages nothing although a process group is up; else empty."""
    dist: Any = sys.modules.get("torch.distributed")
    keras: Any = sys.modules.get("keras")
    if dist is None or keras is None or keras.config.backend() != "torch" or not hasattr(model, "modules"):
        return ""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return ""
    parallel = sys.modules["torch.nn.parallel"].DistributedDataParallel
    # torch does not see every layer as a module of the model.
    layers = list(model._flatten_layers()) if hasattr(model, "_flatten_layers") else [model]  # noqa: SLF001
    if any(isinstance(one, parallel) for layer in layers if hasattr(layer, "modules") for one in layer.modules()):
        return ""
    return (
        "fit() on Keras' torch backend averages nothing across ranks: each rank trains a model of its own, as under "
        "torchrun. Use a layer that averages, keras.layers.TorchModuleWrapper(DistributedDataParallel(module)), "
        "or write the loop by hand around DistributedDataParallel(model)."
    )


def _spans_one_rank(distribution: Any) -> str:
    """Why ``distribution``, or the set-up for any, does not span the ranks; empty where it does."""
    keras: Any = sys.modules["keras"]
    backend = keras.config.backend()
    alone = "each rank trains a model of its own"
    if backend != "jax":
        return (
            f"keras.distribution spans no ranks on Keras' {backend} backend: {alone}. On JAX it spans them: "
            "`%distributed stop`, `%distributed start --env KERAS_BACKEND=jax`, then keras.distribution.initialize(). "
            "On TensorFlow, tf.distribute.MultiWorkerMirroredStrategy spans them."
        )
    if getattr(distribution, "num_processes", 2) == 1:
        return (
            f"keras.distribution spans this rank's devices alone: {alone}. Call keras.distribution.initialize() "
            "before any other use of JAX or Keras, and then make the distribution."
        )
    return ""


def _details(keras: ModuleType) -> dict[str, str]:
    return {"backend": str(keras.config.backend())}


def _part(name: str, kind: Kind, weight: Any) -> Part:
    def values() -> Any:
        found = weight.numpy() if hasattr(weight, "numpy") else weight
        return asarray(found.detach().cpu() if hasattr(found, "detach") else found)

    shape, dtype = list(weight.shape), getattr(weight.dtype, "name", str(weight.dtype))
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")  # of float32, say
    size = math.prod(shape) * (int(digits) // 8 if digits.isdecimal() else 1)
    return ArrayPart(PartSummary(name, kind, type(weight).__name__, shape, dtype, size=size), values)

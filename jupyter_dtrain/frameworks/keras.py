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
import functools
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from jupyter_dtrain.core.contents import Facts as FactsOfPart
from jupyter_dtrain.core.contents import Kind
from jupyter_dtrain.core.facts import Facts, facts_of_package, imported
from jupyter_dtrain.engine.contents import ArrayPart, Part, asarray
from jupyter_dtrain.engine.framework import Framework
from jupyter_dtrain.engine.home import Bar, bar_text
from jupyter_dtrain.engine.imports import require, when_imported
from jupyter_dtrain.frameworks.torch.metrics import unheard
from jupyter_dtrain.wire.messages import Watching

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import Placement
    from jupyter_dtrain.engine.metrics import MetricBuffer

TESTED = "3.15"
"""The version that the tests run with."""
OLDER_TESTED = "2.21"
"""The tested version of ``tf_keras``."""
_CALLBACKS = ("keras.src.callbacks.callback_list", "tf_keras.src.callbacks")
"""The modules that have ``CallbackList``."""
_BARS = ("keras.src.utils.progbar", "tf_keras.src.utils.generic_utils")
_MODELS = ("keras.src.models.model", "tf_keras.src.engine.training")
_DISTRIBUTION = "keras.src.distribution.distribution_lib"
_MAX_BAR_METRICS = 8
"""How many numbers the line of a bar shows."""


class Keras(Framework):
    """Keras in one rank."""

    name = "keras"

    def prepare(self, place: Placement, metrics: MetricBuffer) -> None:
        """Wait for the parts of Keras to be imported."""
        self._metrics = metrics
        self._place = place
        self._on = False
        self._steps = 0
        """Number of batches in this cell, over all calls of ``fit``."""
        for module in _CALLBACKS:
            when_imported(module, self._hook_callbacks, otherwise="values that fit() logs are not shown")
        for module in _BARS:
            when_imported(module, _hook_bars, otherwise="fit() prints a progress bar for each rank")
        for module in _MODELS:
            when_imported(module, self._hook_fit, otherwise="losses inside fit() are shown twice")
        otherwise = "nothing says where keras.distribution does not span the ranks"
        when_imported(_DISTRIBUTION, self._hook_distribution, otherwise=otherwise)

    def before_cell(self, watch: Watching) -> None:
        """Whether this cell shows what is logged."""
        self._on = watch.metrics
        self._steps = 0

    def describe(self) -> Facts:
        """Describe the imported Keras and its backend."""
        if imported("tf_keras") is not None and imported("keras") is None:
            return facts_of_package("Keras", "tf_keras", OLDER_TESTED, lambda _: {"backend": "tensorflow"})
        return facts_of_package("Keras", "keras", TESTED, _details)

    def parts(self, name: str, value: Any, namespace: Mapping[str, Any]) -> list[Part] | None:  # noqa: ARG002
        """A model's weights, and what its optimizer keeps."""
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
        kind: Any = module.CallbackList
        require(kind, "on_train_batch_end", "on_epoch_end")
        kind.on_train_batch_end = self._batch_ends(kind.on_train_batch_end)
        kind.on_epoch_end = self._epoch_ends(kind.on_epoch_end)

    def _batch_ends(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # Not in a callback: Keras 3 runs callbacks on threads, in any order, or else waits for each value.
        @functools.wraps(original)
        def on_train_batch_end(callbacks: Any, batch: int, logs: Any = None) -> Any:
            if self._on:
                with contextlib.suppress(Exception):
                    state = _state_of(callbacks, self._steps)
                    state.batch = int(batch)
                    self._steps = state.first + state.batch + 1
                    # Under parameter servers a batch's values are still on a worker: they come at the end of the epoch.
                    state.heard = isinstance(logs or {}, Mapping)
                    if state.heard:
                        self._tell(logs or {}, state.first + state.batch)
            return original(callbacks, batch, logs)

        return on_train_batch_end

    def _epoch_ends(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def on_epoch_end(callbacks: Any, epoch: int, logs: Any = None) -> Any:
            if self._on:
                with contextlib.suppress(Exception):
                    state = _state_of(callbacks, self._steps)
                    unheard_of = {name: value for name, value in (logs or {}).items() if _is_new(name, state)}
                    self._tell(unheard_of, state.first + state.batch)
                    state.first += state.batch + 1
            return original(callbacks, epoch, logs)

        return on_epoch_end

    def _tell(self, logs: Mapping[str, Any], step: int) -> None:
        for name, value in logs.items():
            if isinstance(value, (int, float)):
                self._metrics.add(name, float(value), step)
            elif hasattr(value, "__float__"):
                self._metrics.add(name, value, step, read=_read)

    # The calls of fit.

    def _hook_fit(self, module: Any) -> None:
        module.Model.fit = self._fitting(module.Model.fit)

    def _fitting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):  # a version that is not supported
                if why := _trains_alone(model):
                    self._metrics.complain(why)
            with unheard():
                return original(model, *args, **kwargs)

        return fit

    # The ranks that keras.distribution spans.

    def _hook_distribution(self, module: Any) -> None:
        require(module, "initialize", "set_distribution")
        module.initialize = self._spanning(module.initialize, lambda *_args, **_kwargs: module)
        module.set_distribution = self._spanning(module.set_distribution, lambda value: value)

    def _spanning(self, original: Callable[..., Any], chosen: Callable[..., Any]) -> Callable[..., Any]:
        """``chosen``: takes the arguments and gives what is to span the ranks; None where nothing is."""

        @functools.wraps(original)
        def span(*args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):  # a version that is not supported, or wrong arguments
                distribution = chosen(*args, **kwargs)
                if self._place.size > 1 and distribution is not None and (why := _spans_one_rank(distribution)):
                    self._metrics.complain(why)
            return original(*args, **kwargs)

        return span


class _State:
    """How far the callbacks of one ``fit`` have come."""

    first = 0
    """The step of the first batch of this epoch."""
    batch = 0
    heard = True
    """Whether the values of the last batch were there when it ended."""


def _is_new(name: str, state: _State) -> bool:
    """Whether only the end of an epoch tells the value of ``name``."""
    return not state.heard or name.startswith("val_")


def _state_of(callbacks: Any, first: int) -> _State:
    found = vars(callbacks).get("_dtrain_state")
    if found is None:
        found = callbacks._dtrain_state = _State()  # noqa: SLF001 — ours
        found.first = first
    return cast("_State", found)


def _read(values: Sequence[Any]) -> list[float]:
    return [float(value) for value in values]


def _hook_bars(module: Any) -> None:
    module.Progbar.update = _reporting(module.Progbar.update)


def _reporting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Report a bar that Keras would draw again and again; leave alone one that writes a line at the end."""

    @functools.wraps(original)
    def update(self: Any, current: Any, values: Any = None, finalize: Any = None) -> Any:
        if self.verbose != 1 or not hasattr(self, "_values_order"):
            return original(self, current, values, finalize)
        self.verbose = 0
        try:
            original(self, current, values, finalize)
        finally:
            self.verbose = 1
        with contextlib.suppress(Exception):
            at_end = self.target is not None and current >= self.target
            _report(self, current, ends=at_end if finalize is None else finalize)
        return None

    return update


def _report(progress: Any, current: float, *, ends: bool) -> None:
    bar = vars(progress).setdefault("_dtrain_bar", None)
    if bar is None:
        bar = progress._dtrain_bar = Bar("", None)  # noqa: SLF001 — ours
    seconds = max(time.time() - progress._start, 1e-9)  # noqa: SLF001 — the start time of its own line
    rate = current / seconds
    numbers = [(name, progress._values[name]) for name in progress._values_order]  # noqa: SLF001
    words = "".join(f", {name} {_mean(value):.4g}" for name, value in numbers[:_MAX_BAR_METRICS])
    text = bar_text("", current, progress.target, seconds, rate) + words
    if ends:
        bar.end(current, progress.target, text)
    else:
        bar.report(current, progress.target, rate, text, "")


def _mean(value: Any) -> float:
    if isinstance(value, list):
        total, count = value
        return float(total) / max(1, int(count))
    return float(value)


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
    return ArrayPart(FactsOfPart(name, kind, type(weight).__name__, shape, dtype, size=size), values)

"""Keras 3 under strategies of several ranks: ``fit``, ``evaluate`` and ``predict`` work as in Keras 2.

Unpatched, Keras 3 fails there twice. It builds a model with the mean of the ranks' batches, which do not form one
tensor (``Attempt to convert a value (PerReplica...``). And it takes the mean of a step's losses and metrics along an
axis that scalars lack (``Invalid reduction dimension 0``). Here a model is built with the batch of its own rank, and
the mean is that of the ranks' values.

Under failure: this module first looks for both places in Keras's sources. Where they differ it changes nothing, and
``%distributed info`` recommends Keras 2 (``TF_USE_LEGACY_KERAS=1``).
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from jupyter_dtrain.plugins.patches import Patch, raises_on_purpose

_BUILDS = 'reduce(\n                        "MEAN",\n                        maybe_distributed_data_batch,'
_REDUCES = 'return strategy.reduce("MEAN", v, axis=0)'
CURE = "`%distributed restart --env TF_USE_LEGACY_KERAS=1` trains with Keras 2 (pip install tf_keras)"

FITS = Patch(
    "keras.src.backend.tensorflow.trainer",
    replaces=("TensorFlowTrainer._maybe_symbolic_build", "reduce_per_replica"),
    reads=("_distribute_strategy", "_collective_keys", "_num_workers", "_in_multi_worker_mode"),
    why=(
        "Under strategies of several ranks Keras 3 builds a model with the mean of the ranks' batches, which is no "
        "tensor, and takes the mean of a step's losses along an axis that scalars lack."
    ),
    lost=f"where fit() fails with several ranks, {CURE}",
    upstream="https://github.com/keras-team/keras/issues/20585",
)


class KerasTrainer:
    """The changes to Keras 3 in this rank."""

    def __init__(self) -> None:
        self.state = ""
        """What ``%distributed info`` says of Keras 3; empty while Keras 3 is not imported for TensorFlow."""

    def hook(self, module: Any) -> None:
        """Patch ``keras.src.backend.tensorflow.trainer``, which was just imported."""
        kind: Any = getattr(module, "TensorFlowTrainer", None)
        build: Any
        reduce: Any
        build, reduce = getattr(kind, "_maybe_symbolic_build", None), getattr(module, "reduce_per_replica", None)
        self.state = f"unchanged; where `fit` fails with strategies of several ranks, {CURE}"
        if _BUILDS not in _source(build) or _REDUCES not in _source(reduce):
            raise AttributeError(f"{module.__name__} has another fit()")
        FITS.replace(kind, "_maybe_symbolic_build", functools.partial(_build_with_own_batch, module.tree))
        FITS.replace(module, "reduce_per_replica", functools.partial(_reduce_to_mean, module.tree))
        self.state = "patched: `fit` works under strategies of several ranks"


def _source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""


def _spans_ranks(strategy: Any) -> bool:
    extended: Any = getattr(strategy, "extended", None)
    return (
        hasattr(extended, "_collective_keys")
        and getattr(extended, "_num_workers", 1) > 1
        and bool(extended._in_multi_worker_mode())  # noqa: SLF001 — as Keras asks it
    )


def _build_with_own_batch(tree: Any, original: Any, trainer: Any, iterator: Any = None, data_batch: Any = None) -> None:
    strategy = trainer._distribute_strategy  # noqa: SLF001
    if iterator is None or not _spans_ranks(strategy):
        original(trainer, iterator=iterator, data_batch=data_batch)
    else:
        original(trainer, data_batch=_own_batch(tree, strategy, iterator, data_batch))


@raises_on_purpose
def _own_batch(tree: Any, strategy: Any, iterator: Any, otherwise: Any) -> Any:
    """The rank's part of the first batch, which the user's code makes; ``otherwise`` where there is none."""
    for _, _, batches in iterator:
        return tree.map_structure(lambda one: strategy.experimental_local_results(one)[0], next(batches))
    return otherwise


def _reduce_to_mean(tree: Any, original: Any, values: Any, strategy: Any, reduction: str) -> Any:
    if reduction not in ("auto", "mean") or not _spans_ranks(strategy):
        return original(values, strategy, reduction)
    return _mean_of_ranks(tree, strategy, values)


@raises_on_purpose
def _mean_of_ranks(tree: Any, strategy: Any, values: Any) -> Any:
    return tree.map_structure(lambda one: strategy.reduce("MEAN", one, axis=None), values)

"""Horovod and Keras: an error for optimizers that Horovod cannot distribute, which would otherwise train alone.

Horovod 0.28 overrides the method by which Keras 2's optimizers take their gradients. Keras 3's call another one, so no
rank averages anything, without a warning. Under failure: another version of Horovod, without the function that this
module wraps, stays unchanged.
"""

from __future__ import annotations

import sys
from typing import Any

from jupyter_dtrain.plugins.patches import Patch, meant

KERAS = Patch(
    "horovod._keras",
    replaces=("create_distributed_optimizer",),
    why="Horovod 0.28 averages no gradients of an optimizer of Keras 3: each rank trains alone, without a warning.",
    lost="Horovod may fail silently with Keras 3",
)


def refuse_keras_3(module: Any) -> None:
    """Wrap ``horovod._keras``, just imported, which makes every distributed optimizer of Keras."""
    KERAS.replace(module, "create_distributed_optimizer", _create_distributed_optimizer)


def _create_distributed_optimizer(original: Any, keras: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    if is_of_keras_3(optimizer):
        raise meant(
            TypeError(
                f"Horovod averages no gradients of Keras 3 ({type(optimizer).__name__}): each rank would silently "
                f"train alone. Set TF_USE_LEGACY_KERAS=1 (%distributed start --env) and use tf_keras, or write a loop "
                f"with hvd.DistributedGradientTape. The variable must be set before TensorFlow is imported."
            )
        )
    return original(keras, optimizer, *args, **kwargs)


def is_of_keras_3(optimizer: Any) -> bool:
    """Whether ``optimizer`` comes from the package ``keras`` in version 3 or newer."""
    keras = sys.modules.get("keras")
    major = str(getattr(keras, "__version__", "0")).partition(".")[0]
    of_keras = any(kind.__module__.partition(".")[0] == "keras" for kind in type(optimizer).__mro__)
    return of_keras and major.isdigit() and int(major) >= 3  # noqa: PLR2004 — Keras 3

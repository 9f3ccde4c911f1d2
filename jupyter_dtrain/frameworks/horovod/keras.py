"""Horovod and Keras: optimizers that Horovod cannot make distributed are refused, instead of training alone.

Horovod 0.28 overrides what optimizers of Keras 2 call for their gradients. Those of Keras 3 call something else, so
that nothing is averaged, on no rank, and nobody says so. Under failure: another Horovod, without the function that is
wrapped here, is left as it is.
"""

from __future__ import annotations

import functools
import sys
from typing import Any


def refuse_keras_3(module: Any) -> None:
    """``horovod._keras`` was imported, through which all ways to a distributed optimizer of Keras go."""
    original = getattr(module, "create_distributed_optimizer", None)
    if original is None:
        return

    @functools.wraps(original)
    def create_distributed_optimizer(keras: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if is_of_keras_3(optimizer):
            raise TypeError(
                f"Horovod averages no gradients of Keras 3 ({type(optimizer).__name__}): each rank would train alone, "
                f"silently. Set TF_USE_LEGACY_KERAS=1 (%distributed start --env) and take tf_keras, or a loop with "
                f"hvd.DistributedGradientTape. The variable must be set before TensorFlow is imported."
            )
        return original(keras, optimizer, *args, **kwargs)

    module.create_distributed_optimizer = create_distributed_optimizer


def is_of_keras_3(optimizer: Any) -> bool:
    """Whether it is an optimizer of the package ``keras``, which is in version 3 or newer."""
    keras = sys.modules.get("keras")
    major = str(getattr(keras, "__version__", "0")).partition(".")[0]
    of_keras = any(kind.__module__.partition(".")[0] == "keras" for kind in type(optimizer).__mro__)
    return of_keras and major.isdigit() and int(major) >= 3  # noqa: PLR2004 — Keras 3

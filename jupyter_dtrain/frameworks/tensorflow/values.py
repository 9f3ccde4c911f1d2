"""Numbers from TensorFlow's tensors, without making a training loop wait for a device."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


def number(value: Any) -> tuple[Any, Any] | None:
    """The number in a tensor or variable with one element, and the function that reads it; else None.

    Raises :class:`ValueError` for a tensor that is no number: one with several elements, with text, or of a function
    that is being traced.
    """
    tensorflow: Any = sys.modules["tensorflow"]
    if not isinstance(value, (tensorflow.Tensor, tensorflow.Variable)):
        return None
    if not hasattr(value, "numpy"):
        raise ValueError("it is in a function that is being traced, and has no value yet")
    if value.shape.num_elements() != 1:
        raise ValueError(f"it has the shape {tuple(value.shape)}: log one number, such as tf.reduce_mean(...)")
    if not (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool):
        raise ValueError(f"it has the type {value.dtype.name}, which is not a number")
    # A variable may have changed by the time it is read.
    return tensorflow.identity(value), read


def read(tensors: Sequence[Any]) -> list[float]:
    """The numbers of tensors that :func:`number` returned; waits for their devices."""
    return [float(tensor.numpy().item()) for tensor in tensors]

"""Losses, steps and learning rates out of PyTorch's own calls, without a line of logging code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..engine.metrics import MetricBuffer, Read
    from . import Watch


class TorchMetrics:
    """What :class:`~jupyter_dtrain.frameworks.torch.Torch` sees of a training loop."""

    def __init__(self, metrics: MetricBuffer) -> None:
        self._metrics = metrics

    def install(self) -> None:
        """Wait for torch to be imported."""

    def begin(self, watch: Watch) -> None:
        """A cell begins."""

    def end(self) -> None:
        """The cell has ended."""


def number(value: Any) -> tuple[Any, Read] | None:
    """What to add to the metrics for a tensor with one element; None for what is no tensor."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    if value.numel() != 1:
        raise ValueError(f"a tensor with {value.numel()} elements is no number")
    return value.detach().clone(), _read


def _read(tensors: Sequence[Any]) -> Sequence[float]:
    return [float(tensor) for tensor in tensors]

"""Losses and steps of training across ``torch.distributed.rpc``, on the rank that asks for them.

Distributed autograd and ``DistributedOptimizer`` leave torch's own ``backward`` and ``step``, which :mod:`.metrics`
follows, to native code and to threads of the ranks that hold the parameters. So when user code imports them:

* Each value given to ``torch.distributed.autograd.backward`` is a loss of the caller's.
* ``DistributedOptimizer.step`` is one step, whatever the optimizers on other ranks do for it. Learning rates are
  those ranks': where such an optimizer is torch's own, its rank shows them.

Under failure: values go their way to torch whatever becomes of the points.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from .call_sites import Call
from .metrics import TorchMetrics, hearing, hidden, one_step


def hook_autograd(module: Any) -> None:
    """Patch ``torch.distributed.autograd``, just imported."""
    original = module.backward

    @functools.wraps(original)
    def backward(context_id: int, roots: Any, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)  # noqa: SLF001 — documented in spite of its name
        with hearing(roots, frame, divides=True, call=Call.ROOTS):
            return original(context_id, roots, *args, **kwargs)

    module.backward = hidden(backward)


def hook_optimizer(metrics: TorchMetrics, module: Any) -> None:
    """Patch ``torch.distributed.optim.optimizer``, just imported."""
    metrics.follow(module.DistributedOptimizer)
    original = module.DistributedOptimizer.step

    @functools.wraps(original)
    def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        with one_step(optimizer):
            return original(optimizer, *args, **kwargs)

    module.DistributedOptimizer.step = hidden(step)

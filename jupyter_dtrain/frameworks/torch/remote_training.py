"""Losses and steps of training across ``torch.distributed.rpc``, on the rank that asks for them.

Distributed autograd and ``DistributedOptimizer`` leave torch's own ``backward`` and ``step``, which :mod:`.metrics`
follows, to native code and to threads of the ranks that hold the parameters. So when user code imports them:

* Each value given to ``torch.distributed.autograd.backward`` is the caller's loss.
* ``DistributedOptimizer.step`` is one step, whatever the optimizers on other ranks do for it. Learning rates
  belong to those ranks: if such an optimizer is torch's own, its rank shows them.

Under failure: torch gets its values, whatever happens to the points.
"""

from __future__ import annotations

from typing import Any

from jupyter_dtrain.plugins.patches import Patch, caller

from .call_sites import Call
from .metrics import TorchMetrics, hearing, hidden, one_step

AUTOGRAD = Patch(
    "torch.distributed.autograd",
    replaces=("backward",),
    why="Distributed autograd computes gradients without torch's own backward(), where losses are heard.",
    lost="losses of distributed autograd are not shown",
)
OPTIMIZER = Patch(
    "torch.distributed.optim.optimizer",
    replaces=("DistributedOptimizer.__init__", "DistributedOptimizer.step"),
    why="A DistributedOptimizer makes its steps on other ranks, and calls none of torch's hooks on its own.",
    lost="steps of a DistributedOptimizer are not counted",
)


def hook_autograd(module: Any) -> None:
    """Patch ``torch.distributed.autograd``, just imported."""
    hidden(AUTOGRAD.replace(module, "backward", _backward))


def _backward(original: Any, context_id: int, roots: Any, *args: Any, **kwargs: Any) -> Any:
    with hearing(roots, caller(), divides=True, call=Call.ROOTS):
        return original(context_id, roots, *args, **kwargs)


def hook_optimizer(metrics: TorchMetrics, module: Any) -> None:
    """Patch ``torch.distributed.optim.optimizer``, just imported."""
    metrics.follow(module.DistributedOptimizer, OPTIMIZER)
    hidden(OPTIMIZER.replace(module.DistributedOptimizer, "step", _step))


def _step(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    with one_step(optimizer):
        return original(optimizer, *args, **kwargs)

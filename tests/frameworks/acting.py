"""A rank's IPython without a rank, whose acts are done in torch's own hook of optimizers."""

from __future__ import annotations

import contextlib

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_dtrain.frameworks.torch.step_hook import StepHook
from tests.rank.acting import ActingRank


@contextlib.contextmanager
def acting_rank(home, *plugins):
    """Such a rank. Skips the test where there is no torch."""
    optimizers = pytest.importorskip("torch.optim.optimizer")
    rank = ActingRank(home, *plugins)
    hook = StepHook()
    for torch in plugins:
        torch._steps = hook
    before = dict(optimizers._global_optimizer_post_hooks)
    hook.install(optimizers)
    rank.begun = lambda: hook.follow(rank.step)
    try:
        yield rank
    finally:
        hook.follow(None)
        for number in optimizers._global_optimizer_post_hooks.keys() - before.keys():
            del optimizers._global_optimizer_post_hooks[number]
        InteractiveShell.clear_instance()

"""The communication hook of torchft's DistributedDataParallel, mended: it goes on when a rank dies in a collective.

A Manager reports such a failure and drops the step. But the hook of torchft 0.2.0 then expects a result that the failed
collective does not have, and raises ``AssertionError`` on every living rank; for a bucket after that one it raises
``AttributeError``. Here it returns the gradients as they are, which the dropped step never uses.

While a rank is in this hook, the steward does not release it: the Manager ends the wait by itself.

Under failure: an error that the Manager does not know of is the user's, and is raised as before.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.engine.imports import require
from jupyter_dtrain.frameworks.torch.waits import carrying_on

if TYPE_CHECKING:
    from types import ModuleType


def hook_ddp(module: ModuleType) -> None:
    """Patch ``torchft.ddp``, which user code has just imported."""
    require(module, "DistributedDataParallel")
    kind: Any = module.DistributedDataParallel
    require(kind, "_comm_hook")
    original = kind._comm_hook  # noqa: SLF001 — what is mended

    def comm_hook(state: Any, bucket: Any) -> Any:
        try:
            return original(state, bucket)
        except (AssertionError, AttributeError):
            if state.errored() is None:
                raise
        future = sys.modules["torch"].futures.Future()
        future.set_result(bucket.buffer())
        return future

    carrying_on.add(comm_hook.__code__)
    kind._comm_hook = staticmethod(functools.wraps(original)(comm_hook))  # noqa: SLF001

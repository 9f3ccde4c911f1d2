"""Three parts of torchft 0.2.0, mended, so that training goes on whenever a rank dies.

**In a collective.** A Manager reports such a failure and drops the step. But the communication hook of
DistributedDataParallel then expects a result that the failed collective does not have, and raises ``AssertionError`` on
every living rank; for a bucket after that one it raises ``AttributeError``. Here it returns the gradients as they are,
which the dropped step never uses.

**In a collective, where the others are not all connected to it.** A rank that sees the death drops the step and asks
for the next one. Another rank may wait in gloo for what that one no longer sends, and as long as it does not ask, too,
the lighthouse gives no step: more than half of the living must ask. Both waited for gloo's timeout, 60 s (3 of 60
deaths in a world of three). Here a rank that drops a step ends its connections at once, so all drop it together.

**Right after it has asked for a step**, such as when two ranks die within a second. The others then make a process
group with the dead rank, and native code waits for it until the group's timeout, 60 s. Here they first meet in the
group's store, for :data:`MEETING` seconds, and drop the step if one does not come.

While a rank is in the first of these, the steward does not release it: the Manager ends the wait by itself.

Under failure: an error that the Manager does not know of is the user's, and is raised as before.
"""

from __future__ import annotations

import functools
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.engine.imports import require
from jupyter_dtrain.frameworks.torch.waits import carrying_on

if TYPE_CHECKING:
    from types import ModuleType

GROUPS: Final = ("ProcessGroupGloo", "ProcessGroupNCCL")


MEETING: Final = 3.0
"""Seconds in which all ranks of a quorum begin to make their process group: they have heard of it at the same time."""
POLL: Final = 0.005


def hook_groups(module: ModuleType) -> None:
    """Patch ``torchft.process_group``, which user code has just imported."""
    require(module, *GROUPS)
    for name in GROUPS:
        kind: Any = getattr(module, name)
        require(kind, "_create_pg")
        kind._create_pg = _meeting(kind._create_pg)  # noqa: SLF001 — the only place that knows store and rank


def _meeting(original: Any) -> Any:
    @functools.wraps(original)
    def create(group: Any, store: Any, rank: int, world_size: int) -> Any:
        store.set(f"here/{rank}", "1")
        missing, deadline = list(range(world_size)), time.monotonic() + MEETING
        while missing := [one for one in missing if not store.check([f"here/{one}"])]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(missing)} of {world_size} replicas did not come to the new process group.")
            time.sleep(POLL)
        return original(group, store, rank, world_size)

    return create


def hook_manager(module: ModuleType) -> None:
    """Patch ``torchft.manager``, which user code has just imported."""
    require(module, "Manager")
    kind: Any = module.Manager
    require(kind, "report_error")
    original = kind.report_error

    @functools.wraps(original)
    def report_error(manager: Any, error: Exception) -> None:
        original(manager, error)
        # The next step makes the group anew. NCCL's ends by itself.
        group = getattr(manager, "_pg", None)
        if isinstance(group, sys.modules["torchft.process_group"].ProcessGroupGloo):
            group.abort(errored=False)

    kind.report_error = report_error


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

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

import sys
import time
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.frameworks.torch.waits import carrying_on
from jupyter_dtrain.plugins.patches import Patch, raises_on_purpose

if TYPE_CHECKING:
    from types import ModuleType

MEETING: Final = 3.0
"""Seconds in which all ranks of a quorum begin to make their process group: they have heard of it at the same time."""
POLL: Final = 0.005

GROUPS = Patch(
    "torchft.process_group",
    replaces=("ProcessGroupGloo._create_pg", "ProcessGroupNCCL._create_pg"),
    why="Where a replica dies after it has asked for a step, the others make a group with it, and wait in native code.",
    lost="two deaths at once may stop the others until the timeout of their process group",
)
ERRORS = Patch(
    "torchft.manager",
    replaces=("Manager.report_error",),
    reads=("_pg",),
    why="A replica that drops a step leaves another one waiting in gloo, which has not seen the death.",
    lost="the others may wait until the timeout of their process group when a rank dies",
)
GRADIENTS = Patch(
    "torchft.ddp",
    replaces=("DistributedDataParallel._comm_hook",),
    why="The communication hook expects a result of a collective that has failed, and raises on every living replica.",
    lost="its DistributedDataParallel may fail on all ranks when one dies",
    upstream="https://github.com/meta-pytorch/torchft/pull/294",
)


def hook_groups(module: ModuleType) -> None:
    """Patch ``torchft.process_group``, which user code has just imported."""
    for kind in (vars(module)["ProcessGroupGloo"], vars(module)["ProcessGroupNCCL"]):
        GROUPS.replace(kind, "_create_pg", create)


def create(original: Any, group: Any, store: Any, rank: int, world_size: int) -> Any:
    """Make a process group, once all replicas have come to its store: only this function knows store and rank."""
    _meet(store, rank, world_size)
    return original(group, store, rank, world_size)


@raises_on_purpose
def _meet(store: Any, rank: int, world_size: int) -> None:
    store.set(f"here/{rank}", "1")
    missing, deadline = list(range(world_size)), time.monotonic() + MEETING
    while missing := [one for one in missing if not store.check([f"here/{one}"])]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(missing)} of {world_size} replicas did not come to the new process group.")
        time.sleep(POLL)


def hook_manager(module: Any) -> None:
    """Patch ``torchft.manager``, which user code has just imported."""
    ERRORS.replace(module.Manager, "report_error", _report_error)


def _report_error(original: Any, manager: Any, e: Exception) -> None:
    original(manager, e)
    # The next step makes the group anew. NCCL's ends by itself.
    group = getattr(manager, "_pg", None)
    if isinstance(group, sys.modules["torchft.process_group"].ProcessGroupGloo):
        group.abort(errored=False)


def hook_ddp(module: Any) -> None:
    """Patch ``torchft.ddp``, which user code has just imported."""
    GRADIENTS.replace(module.DistributedDataParallel, "_comm_hook", _comm_hook)
    carrying_on.add(_comm_hook.__code__)


def _comm_hook(original: Any, state: Any, bucket: Any) -> Any:
    try:
        return original(state, bucket)
    except (AssertionError, AttributeError):
        if state.errored() is None:
            raise
    future = sys.modules["torch"].futures.Future()
    future.set_result(bucket.buffer())
    return future

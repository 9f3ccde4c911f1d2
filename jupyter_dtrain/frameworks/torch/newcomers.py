"""DDP modules in a world with a rank that is new, or with another number of ranks.

A DDP module sorts its gradients into buckets, first by the order of its parameters, then by the order in which the
first backward pass meets them. A rank that gets the module by pickle has the first order, and a rank that has trained
has the second: their all-reduces would add up different gradients. So all ranks go back to the first order.

Under failure: a module whose parts torch has renamed raises :class:`AttributeError`, which ends the cell: rather that
than gradients that do not belong together.
"""

from __future__ import annotations

import sys
from typing import Any

from jupyter_dtrain.plugins.patches import Patch, require

_HELPER = ("parameters", "expect_sparse_gradient", "param_to_name_mapping", "static_graph")

MODULES = Patch(
    "torch.nn.parallel.distributed",
    calls=(
        "DistributedDataParallel._build_params_for_reducer()",
        "DistributedDataParallel._build_debug_param_to_name_mapping(parameters)",
        f"DistributedDataParallel._ddp_init_helper({', '.join(_HELPER)})",
        "dist._register_comm_hook",
    ),
    reads=("_comm_hooks", "_set_static_graph"),
    why="A new rank's DDP module sorts its gradients into other buckets than one that has trained.",
    lost="a cell ends where a rank was replaced while a DDP module lived",
)


def begin_anew(module: Any) -> None:
    """Give a DDP module a fresh reducer, as its constructor and its ``__setstate__`` do."""
    dist: Any = sys.modules["torch.distributed"]
    require(sys.modules[MODULES.places[0]], *MODULES.calls)  # before anything is taken apart
    parameters, sparse = module._build_params_for_reducer()  # noqa: SLF001 — torch has no public way
    names = module._build_debug_param_to_name_mapping(parameters)  # noqa: SLF001
    del module.reducer  # its hooks on the parameters go with it
    module._ddp_init_helper(parameters, sparse, names, module.static_graph)  # noqa: SLF001
    if module.static_graph:
        module.reducer._set_static_graph()  # noqa: SLF001
        module.logger._set_static_graph()  # noqa: SLF001
    for hook, state in module._comm_hooks:  # noqa: SLF001
        dist._register_comm_hook(module.reducer, state, hook)  # noqa: SLF001

"""PyTorch's declarations for the parts that have no ranks: its options, its collectives, rows of the failure table.

Imports no framework: clients read it for ``-h``.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from jupyter_dtrain.core.declarations import Declaration, ScriptSupport
from jupyter_dtrain.core.failures import dies, hangs

TorchBackend = Literal["auto", "nccl", "gloo"]


class TorchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """PyTorch's start options."""

    torch_backend: Annotated[
        TorchBackend,
        Meta(
            title="PyTorch's backend",
            description=(
                "backend for init_process_group() in cells that name none (default: auto, which is nccl with a GPU per "
                "rank, else gloo)"
            ),
        ),
    ] = "auto"


DECLARATION = Declaration(
    name="torch",
    forwards=("CUBLAS_", "CUDNN_", "GLOO_", "NCCL_", "NVIDIA_TF32", "TORCH", "TP_"),
    interface_variables=("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"),
    interface_lists=("NCCL_SOCKET_IFNAME",),
    fabric_variables=("NCCL_IB_HCA",),
    fabric_off=("NCCL_IB_DISABLE=1",),
    distributions={"torch": "Its ranks connect by protocols that change between versions."},
    title="PyTorch",
    options=TorchOptions,
    collectives=(
        "DDP",
        "DistributedDataParallel",
        "FSDP",
        "FullyShardedDataParallel",
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "broadcast",
        "broadcast_object_list",
        "destroy_process_group",
        "distribute_module",
        "distribute_tensor",
        "fully_shard",
        "gather_object",
        "init_device_mesh",
        "init_rpc",
        "monitored_barrier",
        "new_group",
        "parallelize_module",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter_object_list",
    ),
    set_ups=("init_process_group",),
    echoes=("Connection closed by peer", "Connection reset by peer"),
    fixes={
        "Duplicate GPU detected": "NCCL needs one GPU for each rank: torch.cuda.set_device(int(os.environ"
        '["LOCAL_RANK"])) before the set-up gives each rank its own. With fewer GPUs than ranks, '
        'init_process_group("gloo") works.',
    },
    last_words={
        "op.preamble.length <= op.nbytes": "gloo aborts when ranks pass different sizes or types to one collective: "
        "start the world with --env TORCH_DISTRIBUTED_DEBUG=DETAIL, and torch names them instead",
    },
    situations=f"{__name__}:SITUATIONS",
    scripts=ScriptSupport(
        modules=("torch", "lightning", "pytorch_lightning", "accelerate", "transformers", "deepspeed"),
        family="pytorch",
        # A group that lives when Python ends may abort the process: a thread of gloo's still wants the interpreter
        # (https://github.com/pytorch/pytorch/pull/179291, which was given up).
        end="from torch import distributed\n\n"
        "if distributed.is_available() and distributed.is_initialized():\n"
        "    distributed.destroy_process_group()",
    ),
    shard="jupyter_dtrain.frameworks.torch.sharding:shard",
    place="jupyter_dtrain.frameworks.torch.sharding:place",
    trace="jupyter_dtrain.frameworks.torch.trace_events:roles",
    reducers={"torch.Tensor": "jupyter_dtrain.frameworks.torch.reduction:reduce_tensor"},
)

SITUATIONS = (
    hangs(
        "sizes-torch",
        "Ranks pass different sizes to one collective of gloo, and none receives more than it has room for.",
        ("moved for {hang} s.", "is not the same on all ranks: ", "all_reduce of float[2] on "),
        framework="torch",
    ),
    dies(
        "types-torch",
        "In a collective of gloo, a rank receives more than it has room for, because another rank passes a larger size "
        "or type, and gloo aborts the rank.",
        ("crashed (SIGABRT), gloo aborts when ranks pass different sizes or types to one collective",),
        framework="torch",
    ),
)
"""Rows of the failure table that can come about in PyTorch alone."""

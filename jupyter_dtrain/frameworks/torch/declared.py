"""PyTorch's declarations for the parts that have no ranks. Imports no framework: clients read it for ``-h``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from jupyter_dtrain.core.declarations import Declaration

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
    distributions={"torch": "Its ranks meet over protocols that change between versions."},
    title="PyTorch",
    options=TorchOptions,
    echoes=("Connection closed by peer", "Connection reset by peer"),
    last_words={
        "op.preamble.length <= op.nbytes": "gloo aborts when ranks pass different sizes or types to one collective: "
        "start the world with --env TORCH_DISTRIBUTED_DEBUG=DETAIL, and torch names them instead",
    },
    situations="jupyter_dtrain.frameworks.torch.situations:SITUATIONS",
)

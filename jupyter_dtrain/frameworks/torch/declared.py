"""What PyTorch declares to the parts that have no ranks: how gloo speaks when a peer ends, and failures of its own."""

from __future__ import annotations

from jupyter_dtrain.core.declarations import Declaration

DECLARATION = Declaration(
    name="torch",
    title="PyTorch",
    echoes=("Connection closed by peer", "Connection reset by peer"),
    last_words={
        "op.preamble.length <= op.nbytes": "gloo aborts when ranks give one collective different sizes or types: start "
        "the world with --env TORCH_DISTRIBUTED_DEBUG=DETAIL, and torch names them instead",
    },
    situations="jupyter_dtrain.frameworks.torch.situations:SITUATIONS",
)

"""Rows of the failure table that can come about in PyTorch alone."""

from __future__ import annotations

from jupyter_dtrain.core.failures import dies, hangs

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

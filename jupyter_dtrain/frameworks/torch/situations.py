"""Rows of the failure table that can come about in PyTorch alone."""

from __future__ import annotations

from jupyter_dtrain.core.failures import dies, hangs

SITUATIONS = (
    hangs(
        "sizes-torch",
        "Ranks give one collective of gloo different sizes, and none gets more than it has room for.",
        ("moved for {hang} s.", "is not the same on all ranks: ", "all_reduce of float[2] on "),
        framework="torch",
    ),
    dies(
        "types-torch",
        "A rank gets more from a collective of gloo than it has room for, because another rank brings a larger size or "
        "type. gloo aborts the rank.",
        ("crashed (SIGABRT), gloo aborts when ranks give one collective different sizes or types",),
        framework="torch",
    ),
)

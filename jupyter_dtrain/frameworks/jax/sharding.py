"""A process' place among JAX's processes, for :func:`jupyter_dtrain.shard`; it divides arrays as any others."""

from __future__ import annotations

import sys


def place() -> tuple[int, int] | None:
    """Return index and number of JAX's processes once ``jax.distributed`` is set up, None before."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "distributed") or not jax.distributed.is_initialized():
        return None
    return jax.process_index(), jax.process_count()

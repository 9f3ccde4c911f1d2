"""JAX's declarations for the parts that have no ranks: its versions, its processes, its part of a script.

Imports no framework.
"""

from __future__ import annotations

import functools
import os
import sys
import zlib
from typing import Final

from jupyter_dtrain.core.declarations import Declaration, ScriptSupport

SAME: Final = "Its processes must compile the same programs."
"""The reason why versions should agree."""


# Its source goes into an exported script, which runs without this package. So no guard stands around the function that
# it replaces, and no row of the table of patches names it: a row promises that the original goes on where ours fails.
# The head of that page names these lines.
def join_jax(_roles: tuple[str, ...]) -> None:
    """Give jax.distributed.initialize() the arguments that it lacks: it does not know every launcher by itself."""
    env = os.environ
    if env["WORLD_SIZE"] == "1":
        return
    port = 20000 + zlib.crc32(f"jax {env['MASTER_PORT']}".encode()) % 12000
    found = [f"{env['MASTER_ADDR']}:{port}", int(env["WORLD_SIZE"]), int(env["RANK"])]
    for name, value in zip(("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID"), found, strict=True):
        env.setdefault(f"KERAS_DISTRIBUTION_{name}", str(value))

    import jax

    plain = jax.distributed.initialize

    @functools.wraps(plain)
    def initialize(*given: object, **named: object) -> None:
        names = ("coordinator_address", "num_processes", "process_id")[len(given) :]
        missing = dict(zip(names, found[len(given) :], strict=True))
        plain(*given, **{**missing, **named})

    jax.distributed.initialize = initialize


def place() -> tuple[int, int] | None:
    """Return index and number of JAX's processes once ``jax.distributed`` is set up, None before."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "distributed") or not jax.distributed.is_initialized():
        return None
    return jax.process_index(), jax.process_count()


DECLARATION = Declaration(
    name="jax",
    title="JAX",
    distributions={"jax": SAME, "jaxlib": SAME},
    scripts=ScriptSupport(
        modules=("jax",),
        family="mpi",
        set_up=f"{__name__}:join_jax",
        set_up_modules=("functools", "os", "zlib"),
    ),
    place=f"{__name__}:place",
    trace="jupyter_dtrain.frameworks.jax.trace_events:roles",
)

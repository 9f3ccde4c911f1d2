"""JAX' part of an exported script: where its processes meet. Its source goes into the script.

A script runs without this package. So no guard stands around the function that it replaces, and no row of the table of
patches names it: a row promises that the original goes on where ours fails. The head of that page names these lines.
"""

from __future__ import annotations

import functools
import os
import zlib


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

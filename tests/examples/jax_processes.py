"""Runs a script in JAX's own way: processes that know each other by ``jax.distributed.initialize(address, n, number)``.

python jax_processes.py PROCESSES SCRIPT
"""

from __future__ import annotations

import functools
import os
import runpy
import socket
import subprocess
import sys

PATIENCE = 250


def main() -> int:
    """The exit status of the first process, whose prints are printed."""
    count, script = int(sys.argv[1]), sys.argv[2]
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, script, address, str(count), str(number)],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax", **keras(address, count, number)},
            stdout=None if number == 0 else subprocess.DEVNULL,
            stderr=None if number == 0 else subprocess.DEVNULL,
        )
        for number in range(count)
    ]
    try:
        return processes[0].wait(PATIENCE)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def keras(address: str, count: int, number: int) -> dict[str, str]:
    """The same facts as variables for Keras."""
    told = {"JOB_ADDRESSES": address, "NUM_PROCESSES": str(count), "PROCESS_ID": str(number)}
    return {f"KERAS_DISTRIBUTION_{name}": value for name, value in told.items()}


def play(script: str, address: str, count: int, number: int) -> None:
    """Be one of the processes."""
    import jax

    plain = jax.distributed.initialize

    @functools.wraps(plain)
    def initialize(coordinator_address=None, num_processes=None, process_id=None):
        plain(coordinator_address or address, num_processes or count, number if process_id is None else process_id)

    jax.distributed.initialize = initialize
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    if len(sys.argv) > 3:
        play(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(main())

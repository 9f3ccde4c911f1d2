"""Runs a script in TensorFlow's own way: processes with a ``TF_CONFIG``, ended with the chief (else the first worker).

python tensorflow_processes.py CHIEFS WORKERS SERVERS SCRIPT
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

PATIENCE = 250


def main() -> int:
    """The exit status of the process whose end is the script's; what that one prints is printed."""
    chiefs, workers, servers = map(int, sys.argv[1:4])
    tasks = [*["chief"] * chiefs, *["worker"] * workers, *["ps"] * servers]
    held = [socket.create_server(("127.0.0.1", 0)) for _ in tasks]
    cluster: dict[str, list[str]] = {}
    config = []
    for kind, one in zip(tasks, held, strict=True):
        addresses = cluster.setdefault(kind, [])
        config.append({"type": kind, "index": len(addresses)})
        addresses.append(f"127.0.0.1:{one.getsockname()[1]}")
    for one in held:
        one.close()
    processes = [
        subprocess.Popen(
            [sys.executable, *sys.argv[4:]],
            env={**os.environ, "TF_CONFIG": json.dumps({"cluster": cluster, "task": task})},
            stdout=None if number == 0 else subprocess.DEVNULL,
            stderr=None if number == 0 else subprocess.DEVNULL,
        )
        for number, task in enumerate(config)
    ]
    try:
        return processes[0].wait(PATIENCE)
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())

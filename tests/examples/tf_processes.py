"""Plain processes of TensorFlow, as its own tutorials start them: ``tf_processes.py N SCRIPT``, each with a TF_CONFIG.

Keras is Keras 2 in them, whose ``fit`` knows strategies of several processes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys


def main() -> int:
    """Start them and wait; the worst exit status."""
    size, *command = int(sys.argv[1]), sys.executable, *sys.argv[2:]
    held = [socket.socket() for _ in range(size)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    cluster = {"worker": [f"127.0.0.1:{one.getsockname()[1]}" for one in held]}
    for one in held:
        one.close()
    processes = []
    for index in range(size):
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        environ = {**os.environ, "TF_CONFIG": json.dumps(config), "TF_USE_LEGACY_KERAS": "1"}
        processes.append(subprocess.Popen(command, env=environ))
    return max(process.wait() for process in processes)


if __name__ == "__main__":
    sys.exit(main())

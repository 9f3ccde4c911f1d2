"""TensorFlow's part of an exported script: ``TF_CONFIG`` for ranks of one node. Its source goes into the script."""

from __future__ import annotations

import json
import os
import sys
import zlib


def join_tensorflow(roles: tuple[str, ...]) -> None:
    """Set TF_CONFIG, where TensorFlow's strategies find the other ranks, if they are all on this node."""
    env = os.environ
    size = int(env["WORLD_SIZE"])
    if "TF_CONFIG" in env or size == 1:
        return
    if env["LOCAL_WORLD_SIZE"] != env["WORLD_SIZE"]:
        sys.exit("The ranks are on several nodes: set TF_CONFIG, where TensorFlow finds them.")
    job = f"{env['MASTER_PORT']} {env.get('TORCHELASTIC_RUN_ID', '')}"
    first = 20000 + zlib.crc32(job.encode()) % 12000
    tasks = []
    cluster: dict[str, list[str]] = {}
    for rank, kind in enumerate(roles if len(roles) == size else ("worker",) * size):
        hosts = cluster.setdefault(kind, [])
        tasks.append({"type": kind, "index": len(hosts)})
        hosts.append(f"127.0.0.1:{first + rank}")
    env["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": tasks[int(env["RANK"])]})

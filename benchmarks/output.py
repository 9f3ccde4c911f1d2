"""The cost of printing: bytes, the time to the first line, and a flood through a real server."""

from __future__ import annotations

import json
import re

from .notebook import kernel, outputs, served_kernel
from .report import Measurement, summary

RANKS = 2
LINES = 400
WIDTH = 60
FLOOD = 100_000_000
FIRST_LINES = 40


def measure_bytes() -> Measurement:
    """IOPub bytes of 2 ranks x 400 lines x 60 characters, all different, against what was printed."""
    code = f"""%%distributed
import os, time
rank = int(os.environ["RANK"])
for line in range({LINES}):
    print(f"rank {{rank}} line {{line:4d}} ".ljust({WIDTH - 1}, "."))
"""
    with kernel() as notebook:
        notebook.execute(f"%load_ext jupyter_dtrain\n%distributed start -n {RANKS}")
        fast = outputs(notebook.execute(code))
        slow = outputs(notebook.execute(code + "    time.sleep(0.002)\n"))
    payload = RANKS * LINES * WIDTH
    found = Measurement({"payload, bytes": payload, "messages": len(fast), "messages, 2 ms a line": len(slow)})
    for name, messages in (("at once", fast), ("2 ms a line", slow)):
        found.promise(f"bytes sent / bytes printed, {name}", _size(messages) / payload, 2.0)
    return found


def _size(messages: list[dict[str, object]]) -> int:
    parts = ("header", "parent_header", "metadata", "content")
    return sum(len(json.dumps(message[part], default=str)) for message in messages for part in parts)


def measure_first_line() -> Measurement:
    """From ``print`` in a rank to the message at the front end, each after a pause."""
    code = f"""%%distributed
import os, time
for line in range({FIRST_LINES}):
    time.sleep(0.2)
    print("at", repr(time.time()), os.environ["RANK"])
"""
    delays = []
    with kernel() as notebook:
        notebook.execute(f"%load_ext jupyter_dtrain\n%distributed start -n {RANKS}")
        for message in notebook.execute(code):
            if message["msg_type"] == "stream":
                times = re.findall(r"at ([\d.]+)", message["content"]["text"])
                delays += [message["arrived"] - float(text) for text in times]
    found = Measurement({"print to front end, ms": summary(delays, 1000), "lines": len(delays)})
    found.promise("p95, ms", sorted(delays)[int(0.95 * len(delays))] * 1000, 100)
    return found


def measure_flood() -> Measurement:
    """100 MB printed in one cell by 2 ranks, through a Jupyter server with default limits."""
    line = WIDTH
    count = FLOOD // RANKS // line
    code = f"""%%distributed -o run
import os
rank = int(os.environ["RANK"])
for line in range({count}):
    print(f"rank {{rank}} line {{line:8d}} ".ljust({line - 1}, "."))
"""
    memory = "import os, psutil; print('rss', psutil.Process().memory_info().rss)"
    check = f"""
import hashlib
def whole(rank):
    lines = (f"rank {{rank}} line {{line:8d}} ".ljust({line - 1}, ".") + "\\n" for line in range({count}))
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode())
    return digest.hexdigest() == hashlib.sha256(run.text(rank).encode()).hexdigest()
print('whole', all(whole(rank) for rank in range({RANKS})))
"""
    with served_kernel() as notebook:
        notebook.execute(f"%load_ext jupyter_dtrain\n%distributed start -n {RANKS}")
        before = _printed(notebook.execute(memory))
        messages = notebook.execute(code)
        after = _printed(notebook.execute(memory))
        whole = "whole True" in str(outputs(notebook.execute(check)))
    shown = outputs(messages)
    kept = sum(message["size"] for message in shown if message["msg_type"] != "update_display_data")
    dropped = sum("data rate exceeded" in str(message["content"]).lower() for message in shown)
    found = Measurement(
        {
            "printed, bytes": count * line * RANKS,
            "Run.text is whole": whole,
            "notebook, bytes": kept,
            "sent, bytes": sum(message["size"] for message in shown),
            "kernel grew by, bytes": after - before,
        }
    )
    found.promise("lost text (0: none)", float(not whole), 0)
    found.promise("messages dropped by the server", float(dropped), 0)
    found.promise("notebook, MB", kept / 1e6, 4)
    found.promise("kernel's growth, MB", (after - before) / 1e6, 100)
    return found


def _printed(messages: list[dict[str, object]]) -> int:
    match = re.search(r"rss (\d+)", str(outputs(messages)))
    assert match is not None
    return int(match[1])

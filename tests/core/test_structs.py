"""Several threads read values as one type for the first time, in a process that may crash."""

from __future__ import annotations

import subprocess
import sys

SOURCE = """
import sys, threading
import msgspec
from jupyter_dtrain.core.structs import readable

sys.setswitchinterval(1e-6)
for _ in range(1000):
    Inner = msgspec.defstruct("Inner", [("a", int), ("b", list[int], []), ("c", dict[str, int], {})])
    Outer = msgspec.defstruct("Outer", [("a", Inner), ("d", "list[int]", []), ("e", list[Inner], [])])
    together = threading.Barrier(3, timeout=60)

    def read():
        together.wait()
        assert msgspec.convert({"a": {"a": 1}, "e": [{"a": 2}]}, readable(Outer)).e[0].a == 2

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("read")
"""


def test_threads_that_read_a_type_first_at_once_do_not_crash():
    """Without ``readable``, the process of three threads ends with SIGSEGV within some hundred types."""
    ended = subprocess.run([sys.executable, "-c", SOURCE], capture_output=True, text=True, timeout=300, check=False)

    assert (ended.returncode, ended.stdout) == (0, "read\n"), ended.stderr

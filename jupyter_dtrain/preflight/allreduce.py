"""Times all-reduces over all machines. Runs as the ranks of a small MPI job with one rank on each host.

Under failure: a rank ends after the seconds that it is given, wherever it waits, and MPI then ends the others. It first
tells its error or, once MPI is up, the line at which it waits.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mpi4py import MPI

SOONER: Final = 2
"""Seconds before its end at which a rank tells where it waits."""
SMALL: Final = 8
"""Bytes of the all-reduce that shows latency."""
SMALL_ROUNDS: Final = 50
LARGE: Final = 4 << 20
"""Bytes of the all-reduce that shows bandwidth."""
LARGE_ROUNDS: Final = 4


def time_all(comm: MPI.Comm) -> dict[str, float]:
    """Seconds of a small and of a large all-reduce, each the mean of several after one that does not count."""
    from mpi4py import MPI

    found = {}
    for name, size, rounds in (("small", SMALL, SMALL_ROUNDS), ("large", LARGE, LARGE_ROUNDS)):
        ours, theirs = [bytearray(size), MPI.FLOAT], [bytearray(size), MPI.FLOAT]
        comm.Allreduce(ours, theirs)
        began = time.perf_counter()
        for _ in range(rounds):
            comm.Allreduce(ours, theirs)
        found[name] = (time.perf_counter() - began) / rounds
    return found


def main() -> None:
    """Time the all-reduces of all ranks; rank 0 tells the answer. Arguments: nonce, seconds."""
    seconds, began = int(sys.argv[2]), time.monotonic()
    signal.alarm(seconds)
    from mpi4py import MPI

    rank, thread = MPI.COMM_WORLD.rank, threading.get_ident()

    def late() -> None:
        where = place(traceback.extract_stack(sys._current_frames()[thread]))  # noqa: SLF001 — the only way to it
        send("late", {"rank": rank, "why": where})

    # MPI's words on the end of a job are longer than a finding, and would stand in place of these.
    watch = threading.Timer(max(0.0, began + seconds - SOONER - time.monotonic()), late)
    watch.daemon = True
    watch.start()
    try:
        run(MPI.COMM_WORLD)
    except BaseException as error:  # noqa: BLE001 — told, and the job ends
        watch.cancel()
        where = place(traceback.extract_tb(error.__traceback__))
        send("failed", {"rank": rank, "why": f"{type(error).__name__}: {error} (in {where})"})
        # The others would wait for this rank.
        MPI.COMM_WORLD.Abort(1)
    watch.cancel()


def place(frames: traceback.StackSummary) -> str:
    """Where the innermost of ``frames`` is that has a source: mpi4py's own have none."""
    one = next((frame for frame in reversed(frames) if frame.line), frames[-1])
    return f"{one.name}, line {one.lineno}: {one.line}"


def send(kind: str, answer: dict[str, Any]) -> None:
    """Print a line with the answer, ``speeds``, or with why there is none: ``failed``, or ``late`` near the end."""
    sys.stdout.write(f"\n{sys.argv[1]} {kind} {json.dumps(answer)}\n")
    sys.stdout.flush()


def run(world: MPI.Intracomm) -> None:
    """Time the all-reduces on one rank; rank 0 prints the result."""
    found = time_all(world)
    if world.rank == 0:
        send("speeds", found)

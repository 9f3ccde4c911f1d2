"""Starts a small MPI job with one rank on each host, as the ranks of a world start, and times its all-reduces.

:func:`main` is the program of those ranks.

Under failure: a rank ends after the seconds that it is given, wherever it waits, and MPI then ends the others. It first
tells its error or, once MPI is up, the line at which it waits. The job ends at its deadline, on the hosts as well, and
the reason is a finding.
"""

from __future__ import annotations

import json
import math
import secrets
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jupyter_dtrain.core.errors import StartFailed
from jupyter_dtrain.core.frames import frame_of
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.launch.mpi import find_mpiexec, probe_mpi
from jupyter_dtrain.launch.programs import Unreached, first_words, run_here

from .findings import Finding, Scene, Speeds, name_some
from .reach import Reach

if TYPE_CHECKING:
    from mpi4py import MPI

SHARE: Final = 2 / 3
"""The part of the time that each rank has; the rest is for the job's start and its end."""
FAREWELL: Final = 3.0
"""Seconds that mpiexec has to end its daemons, which remove their folders, when its time is over."""
CODE: Final = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; from jupyter_dtrain.preflight.speed import main; main()"
)
"""The program of a rank. Without its folder on ``sys.path``: a ``random.py`` there must not break it."""
SOONER: Final = 2
"""Seconds before its end at which a rank tells where it waits."""
SMALL: Final = 8
"""Bytes of the all-reduce that shows latency."""
SMALL_ROUNDS: Final = 50
LARGE: Final = 4 << 20
"""Bytes of the all-reduce that shows bandwidth."""
LARGE_ROUNDS: Final = 4


class Failure(msgspec.Struct, frozen=True, order=True):
    """What a rank tells where it has no answer."""

    rank: int
    why: str
    """Its error and where it was raised, or where the rank waits."""


def measure(hosts: Sequence[str], reach: Reach, *, python: str, timeout: float, network: str) -> Speeds | str:
    """The speeds over all ``hosts``, or why they could not be measured.

    ``python``: the interpreter's path there. ``network``: the interface or the subnet that ranks use; empty for all.
    """
    try:
        mpi = probe_mpi(find_mpiexec(None))
    except StartFailed as error:
        return str(error)
    if not mpi.modern:
        return f"{mpi.version} is not Open MPI 5"
    nonce = secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="dtrain-") as folder:
        options, env = reach.mpi_job(hosts, mpi.path, python, Path(folder))
        job = [mpi.path, "-n", str(len(hosts)), *options, "--map-by", "node", "--bind-to", "none"]
        # The hierarchical collectives gain nothing with one rank on each host.
        job += ["--mca", "coll", "^han"]
        # A daemon on a host can hang at its end, as PMIx does at times beside a rank that aborts: it outlives mpiexec.
        limit = f"timeout -k 1 {math.ceil(timeout)} prted"
        job += ["--leave-session-attached", "--prtemca", "prte_launch_agent", limit]
        # An mpiexec that is ended while it starts leaves its folder at times: it goes with this one.
        job += ["--prtemca", "prte_local_tmpdir_base", folder]
        job += ["--mca", "btl_tcp_if_include", network] if network else []
        seconds = max(1, int(timeout * SHARE))
        ranks = [python, "-c", CODE, nonce, str(seconds)]
        done = run_here([*job, *ranks], timeout=timeout, env=env, farewell=FAREWELL)
    if isinstance(done, Unreached):
        return done.reason
    told: dict[str, list[str]] = {"speeds": [], "failed": [], "late": []}
    for begin, kind, value in map(_parts, done.output.splitlines()):
        if begin == nonce and kind in told:
            told[kind].append(value)
    if told["speeds"]:
        return msgspec.json.decode(told["speeds"][0], type=readable(Speeds))
    failed, late = (
        [msgspec.json.decode(value, type=readable(Failure)) for value in told[kind]] for kind in ("failed", "late")
    )
    if failed:
        return f"the rank on {hosts[failed[0].rank]} raised {failed[0].why}"
    if late:
        places = [f"the rank on {hosts[one.rank]} was in {one.why}" for one in sorted(late)]
        return f"its ranks had not ended after {max(0, seconds - SOONER)} s ({name_some(places)})"
    # MPI says the cause first, then how the job ended.
    return first_words(done.errors or done.output) or f"mpiexec ended with exit code {done.code}"


def _parts(line: str) -> tuple[str, str, str]:
    """A line of a rank: the nonce, what it tells, and its JSON."""
    nonce, _, rest = line.partition(" ")
    kind, _, value = rest.partition(" ")
    return nonce, kind, value


def find(scene: Scene) -> Iterator[Finding]:
    """All findings about speed."""
    if isinstance(scene.speeds, str):
        yield Finding(
            "warning",
            f"An MPI job on the hosts failed: {scene.speeds}",
            list(scene.hosts),
            "Ranks start in the same way, and would fail as well.",
            scene.fixes.mpi.format(hosts=",".join(scene.hosts)),
        )
    elif scene.speeds is not None:
        small, large = scene.speeds.small, scene.speeds.large
        yield Finding(
            "note",
            f"All-reduce over all hosts: {small * 1e6:.0f} µs for 8 bytes, {large * 1e3:.1f} ms for {LARGE >> 20} MiB "
            f"({LARGE / large / 1e9:.2f} GB/s).",
            [],
            "Gradients take at least their size divided by this rate in each step. A link of 10 Gb/s gives at most "
            "1.2 GB/s.",
        )


def interpreter(scene: Scene) -> str | None:
    """The path of Python if it is one on all hosts: MPI starts its daemons from one folder. Else None."""
    paths = {one.executable for one in scene.hosts.values()}
    return paths.pop() if len(paths) == 1 else None


def main() -> None:
    """Time the all-reduces of all ranks; rank 0 tells the answer. Arguments: nonce, seconds."""
    seconds, began = int(sys.argv[2]), time.monotonic()
    signal.alarm(seconds)
    from mpi4py import MPI

    rank, thread = MPI.COMM_WORLD.rank, threading.get_ident()

    def late() -> None:
        where = place(traceback.extract_stack(frame_of(thread)))
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

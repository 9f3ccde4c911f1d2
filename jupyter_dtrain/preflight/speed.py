"""Starts a small MPI job on the hosts, as the ranks of a world start there, and tells how fast its all-reduces were.

Under failure: the job ends at its deadline, on the hosts as well, and the reason is a finding.
"""

from __future__ import annotations

import math
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from jupyter_dtrain.core.errors import StartFailed
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.launch import local
from jupyter_dtrain.launch.programs import Unreached, first_words, run_here

from .allreduce import LARGE, SOONER
from .facts import Failure, Speeds
from .findings import Finding, Scene, name_some
from .reach import Reach

SHARE: Final = 2 / 3
"""The part of the time that each rank has; the rest is for the job's start and its end."""
FAREWELL: Final = 3.0
"""Seconds that mpiexec has to end its daemons, which remove their folders, when its time is over."""
CODE: Final = "from jupyter_dtrain.preflight.allreduce import main; main()"


def measure(hosts: Sequence[str], reach: Reach, *, python: str, timeout: float, interface: str | None) -> Speeds | str:
    """The speeds over all ``hosts``, or why they could not be measured. ``python``: the interpreter's path there."""
    try:
        mpi = local.probe_mpi(local.find_mpiexec(None))
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
        job += ["--mca", "btl_tcp_if_include", interface] if interface else []
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
            scene.cures.mpi.format(hosts=",".join(scene.hosts)),
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

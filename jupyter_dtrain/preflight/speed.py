"""Starts a small MPI job on the hosts, as the ranks of a world start there, and judges how fast its all-reduces were.

Under failure: the job ends at its deadline, on the hosts as well, and the reason is a finding.
"""

from __future__ import annotations

import math
import secrets
import statistics
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
from .reach import Reach
from .scene import Finding, Scene, name_some

SHARE: Final = 2 / 3
"""The part of the time that each rank has; the rest is for the job's start and its end."""
FAREWELL: Final = 3.0
"""Seconds that mpiexec has to end its daemons, which remove their folders, when its time is over."""
SLOW: Final = 0.5
"""A pair below this part of the median bandwidth is slow."""
FAR_BELOW: Final = 0.1
"""A median below this part of the slowest link is a warning. One TCP connection leaves much of a fast link unused."""
CODE: Final = "from jupyter_dtrain.preflight.allreduce import main; main()"


def measure(hosts: Sequence[str], reach: Reach, *, python: str, timeout: float, interface: str | None) -> Speeds | str:
    """The speeds between ``hosts``, or why they could not be measured. ``python``: the interpreter's path there."""
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
    if not isinstance(scene.speeds, Speeds) or not scene.speeds.pairs:
        return
    names = scene.timed
    found = {f"{names[one.pair[0]]} and {names[one.pair[1]]}": one for one in scene.speeds.pairs}
    rates = {name: LARGE / one.large for name, one in found.items()}
    usual = statistics.median(rates.values())
    latency = statistics.median(one.small for one in found.values())
    yield Finding(
        "note",
        f"All-reduce between two hosts: {latency * 1e6:.0f} µs for 8 bytes, {usual / 1e9:.2f} GB/s for "
        f"{LARGE >> 20} MiB (median of {len(rates)} pair{'s' if len(rates) > 1 else ''}); over all hosts "
        f"{scene.speeds.all * 1e3:.1f} ms.",
        [],
        f"Gradients take at least their size divided by this rate in each step. {_expected(scene)}",
    )
    yield from _far_below(scene, usual)
    slow = {name: rate for name, rate in rates.items() if rate < usual * SLOW}
    if slow:
        words = [f"{name} ({rate / 1e9:.2f} GB/s)" for name, rate in slow.items()]
        places = {names[index] for name in slow for index in found[name].pair}
        yield Finding(
            "warning",
            f"Some hosts are slower together than the others: {name_some(words)}.",
            sorted(places),
            "Every step waits for the slowest pair.",
            "Look at their cables and switch ports, and at what else uses their network.",
        )


def _links(scene: Scene) -> dict[str, tuple[float, str]]:
    """The bits a second of each timed host's fastest way to the others, and its name, as far as they are known.

    An active port of InfiniBand or RoCE counts if all hosts have one: Open MPI takes it by itself in a job of its own.
    """
    hosts = {name: scene.hosts[name] for name in scene.timed if name in scene.hosts}
    fabrics = {
        name: max(((_rate(one.rate), one.device) for one in facts.devices if one.active), default=(0.0, ""))
        for name, facts in hosts.items()
    }
    if fabrics and all(rate for rate, _ in fabrics.values()):
        return fabrics
    found = {}
    for name, facts in hosts.items():
        chosen = scene.chosen.get(name)
        speed = next((one.speed for one in facts.interfaces if chosen and one.name == chosen.name), 0)
        if chosen and speed:
            found[name] = (speed * 1e6, chosen.name)
    return found


def _rate(words: str) -> float:
    """The bits a second in the words of Linux, such as ``100 Gb/sec (4X EDR)``; 0 where they say something else."""
    number, _, unit = words.partition(" ")
    try:
        return float(number) * 1e9 if unit.startswith("Gb/sec") else 0.0
    except ValueError:
        return 0.0


def _expected(scene: Scene) -> str:
    """The rate to expect of this hardware, in words."""
    links = _links(scene)
    if len(links) < len(scene.timed):
        unknown = name_some(name for name in scene.timed if name not in links)
        return f"The drivers on {unknown} do not tell their links' speed; one of 10 Gb/s gives at most 1.2 GB/s."
    host, (rate, device) = min(links.items(), key=lambda one: one[1][0])
    return f"The slowest link, {device} on {host}, has {rate / 1e9:g} Gb/s: at most {rate / 8e9:.2g} GB/s."


def _far_below(scene: Scene, usual: float) -> Iterator[Finding]:
    links = _links(scene)
    slowest = min((rate for rate, _ in links.values()), default=0.0) if len(links) == len(scene.timed) else 0.0
    if slowest and usual < slowest / 8 * FAR_BELOW:
        yield Finding(
            "warning",
            f"All-reduce between hosts reaches {usual / 1e9:.2g} GB/s, far below the {slowest / 8e9:.2g} GB/s of their "
            "links.",
            list(scene.timed),
            "Every step waits for the network longer than this hardware makes it wait.",
            "See whether others use the network or these hosts at the moment, and whether the switch ports have the "
            "speed of the links (`ethtool`, `ibstatus`).",
        )


def interpreter(scene: Scene) -> str | None:
    """The path of Python if it is one on all hosts: MPI starts its daemons from one folder. Else None."""
    paths = {one.executable for one in scene.hosts.values()}
    return paths.pop() if len(paths) == 1 else None

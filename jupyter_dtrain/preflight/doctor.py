"""Examines this machine and the hosts of a world: asks all of them for facts side by side, and judges the answers.

Under failure: a machine that cannot be examined is a finding. The whole examination ends within 80 seconds, in its
quick form within :data:`QUICK`; a job of Slurm may wait before it, for as long as a person likes. Only a request that
makes no sense, and a job that Slurm does not give, raise, before any machine is asked.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec

from jupyter_dtrain.core.errors import BadRequest, StartFailed
from jupyter_dtrain.launch.hostlist import named_hosts
from jupyter_dtrain.launch.hosts import HostsOptions
from jupyter_dtrain.launch.leftovers import MARK
from jupyter_dtrain.launch.options import check
from jupyter_dtrain.launch.programs import Stopped, run_here
from jupyter_dtrain.launch.slurm.options import SlurmOptions
from jupyter_dtrain.launch.slurm.steps import Steps
from jupyter_dtrain.launch.worlds import list_worlds

from . import machines, networks, probe, software, speed
from .findings import HERE, SEVERITIES, Chosen, Connection, Examined, Finding, Scene, Speeds, sentences, show
from .probe import Facts, Interface
from .reach import MARGIN, OWN, BySrun, BySsh, Program, Reach, ask_all, slurm_nodes
from .shared_file import shared_file
from .tcp_check import try_connections

QUICK: Final = 20.0
"""Seconds that the whole quick form takes at most."""
FACTS_PATIENCE: Final = 15.0
"""Seconds for the facts of all machines; in the quick form 10."""
QUICK_FACTS_PATIENCE: Final = 10.0
PORTS_PATIENCE: Final = 15.0
"""Seconds for the connections between all machines; in the quick form 8."""
QUICK_PORTS_PATIENCE: Final = 8.0
SPEED_PATIENCE: Final = 25.0
"""Seconds for the all-reduces."""
BY_SSH: Final = ("hosts", "hostfile", "ssh_args", "python", "interface")
"""The options that name this machine and hosts over ssh, and the way there."""
FOR_OLDER: Final = {"task": "facts", "package": OWN, "mark": MARK}
"""Arguments that the probe of version 0.1.0 needs: a host with that version tells its version then."""


class Examination(msgspec.Struct, frozen=True):
    """The result: the facts of each machine, and the findings with the gravest first."""

    hosts: list[str]
    """The names of the hosts; empty where this machine alone was examined."""
    machines: Examined
    """Facts by machine, or why there are none; this machine first, as ``this machine``."""
    findings: list[Finding]
    seconds: float
    """How long it took."""
    quick: bool = False
    timed: list[str] = []
    """The hosts over which all-reduces were timed."""
    speeds: Speeds | str | None = None
    """The seconds that these took, or why they could not be timed; None if that was not tried."""

    @property
    def ok(self) -> bool:
        """Whether no finding is an error."""
        return not self.errors

    @property
    def errors(self) -> list[Finding]:
        """The findings with which no world should start."""
        return [one for one in self.findings if one.severity == "error"]

    def check(self) -> None:
        """Raise :class:`StartFailed` with all errors, their reasons and fixes, if there are any."""
        if self.errors:
            first, *others = self.errors
            more = "\n".join(f"{sentences(one)} {one.fix}".strip() for one in others)
            raise StartFailed(sentences(first), first.fix, more, option="hosts" if self.hosts else "")

    def to_json(self) -> str:
        """All of it as JSON, indented."""
        return msgspec.json.format(msgspec.json.encode({"ok": self.ok, **msgspec.to_builtins(self)}), indent=2).decode()

    def __str__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return show(self.hosts, self.findings, self.seconds)


def doctor(
    hosts: str | Iterable[str] | Mapping[str, int] | None = None,
    *,
    hostfile: str | os.PathLike[str] | None = None,
    ssh_args: str = "",
    python: str | None = None,
    interface: str | None = None,
    quick: bool = False,
    progress: Callable[[str], None] | None = None,
    **slurm: Any,
) -> Examination:
    """Examine the machines of a world before it starts, as ``%distributed doctor`` does.

    ``hosts``: as in ``gpu1:8,gpu2:8``, a list, or a dict of host and ranks; ``hostfile``: a file in Open MPI's format;
    without either, this machine alone. ``ssh_args``: options for ssh, as in a shell. ``python``: the interpreter on the
    hosts (default: the path of this one). ``interface``: the network interface to use on all machines (default: the one
    that leads there). ``quick`` times no all-reduces between machines.

    ``slurm=True``, with the options of a start in Slurm such as ``nodes=2`` and ``partition="gpu"``: the nodes of the
    job in which this process runs, or else of a new job, which waits for them and ends afterwards. ``progress`` gets a
    line of text now and then.

    Raises :class:`BadRequest`, and :class:`StartFailed` where Slurm gives no job.
    """
    asked = named_machines(
        {"hosts": hosts, "hostfile": hostfile, "ssh_args": ssh_args or None, "python": python, "interface": interface}
        | slurm,
        progress or (lambda _: None),
    )
    with asked as (machines, reach):
        return examine(machines, reach, interface=interface, quick=quick)


@contextlib.contextmanager
def named_machines(
    options: Mapping[str, Any], progress: Callable[[str], None]
) -> Iterator[tuple[dict[str, int], Reach]]:
    """The hosts that start ``options`` name, with their ranks, and the way to them, for as long as the block runs.

    None stands for an option that is not given. A job of Slurm may wait before; ``progress`` shows why. Raises as
    :func:`doctor`.
    """
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    own = {field.name for field in msgspec.structs.fields(SlurmOptions)}
    if given.keys() & own:
        asked = check(given)
        assert isinstance(asked.launcher_options, SlurmOptions)
        with slurm_nodes(asked.launcher_options, progress) as found:
            yield found
        return
    if unknown := given.keys() - BY_SSH:
        raise BadRequest(f"There is no option {min(unknown)!r}. The options are {', '.join([*BY_SSH, *sorted(own)])}.")
    reach = BySsh(given.get("ssh_args", ""), given.get("python"))
    yield named_hosts(given.get("hosts"), given.get("hostfile")), reach


def check_before_start(options: HostsOptions, slots: Mapping[str, int]) -> None:
    """The quick examination of the hosts that ``options`` name, each with its ``slots``.

    Raises :class:`BadRequest`, and :class:`StartFailed` with each reason for which no world can start there.
    """
    examine(slots, BySsh(options.ssh, options.python), interface=options.interface, quick=True).check()


def check_nodes(nodes: Mapping[str, int], steps: Steps, stopped: threading.Event) -> None:
    """The quick examination of a Slurm job's ``nodes``, each with its number of ranks, by ``steps`` of that job.

    Returns at once when ``stopped`` is set. Raises :class:`StartFailed` with each reason for which no world can start
    there.
    """
    with contextlib.suppress(Stopped):
        reach = BySrun(steps, list(nodes), stopped)
        examine(nodes, reach, quick=True).check()


def examine(
    hosts: Mapping[str, int], reach: Reach, *, interface: str | None = None, quick: bool = False
) -> Examination:
    """Ask this machine and ``hosts``, given with their ranks, for facts, and judge them.

    ``interface``: the network interface to use on all machines (default: the one that leads there). ``quick`` times no
    all-reduces between machines. Raises :class:`BadRequest` for an interface that this machine lacks.
    """
    began = time.monotonic()
    known = own_interfaces()
    wanted = None if interface is None else networks.named_interface(known, interface)
    names = list(hosts)
    patience = QUICK_FACTS_PATIENCE if quick else FACTS_PATIENCE
    examined = _facts(names, reach, patience)
    ways = networks.ways_to([name for name in names if isinstance(examined[name], Facts)], known, reach)
    chosen: dict[str, Chosen | None] = {HERE: wanted or networks.interface_to_most(ways)}
    chosen |= {
        name: networks.interface_of(one, reach.address(name, one), interface)
        for name, one in examined.items()
        if name != HERE and isinstance(one, Facts)
    }
    connections: list[Connection] = []
    usable = {name: one for name, one in chosen.items() if one is not None}
    if names and len(usable) > 1:
        patience = QUICK_PORTS_PATIENCE if quick else PORTS_PATIENCE
        connections = try_connections(usable, reach, timeout=patience)
    scene = Scene(
        examined,
        python=reach.python,
        fixes=reach.fixes,
        slots=dict(hosts),
        chosen=chosen,
        ways=ways,
        wanted=interface,
        connections=connections,
    )
    if not quick:
        scene = _timed(scene, reach)
    findings = judge(scene)
    took = round(time.monotonic() - began, 2)
    timed = [] if scene.speeds is None else list(scene.hosts)
    return Examination(names, examined, findings, took, quick, timed, scene.speeds)


def judge(scene: Scene) -> list[Finding]:
    """All findings, the gravest first; one for each distinct cause."""
    found = [*machines.find(scene), *software.find(scene), *networks.find(scene), *speed.find(scene)]
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity))


def _timed(scene: Scene, reach: Reach) -> Scene:
    """``scene`` with the speed of all-reduces, where an MPI job can run at all."""
    hosts = list(scene.hosts)
    path = speed.interpreter(scene)
    if len(hosts) == 1 or path is None or any(one.severity == "error" for one in judge(scene)):
        return scene
    network = scene.wanted or networks.common_subnet(scene)
    speeds = speed.measure(hosts, reach, python=path, timeout=SPEED_PATIENCE, network=network)
    return msgspec.structs.replace(scene, speeds=speeds)


def own_interfaces() -> list[Interface]:
    """The network interfaces of this machine; none where they cannot be listed."""
    try:
        return probe.interfaces()
    except (OSError, ValueError):
        return []


def _facts(hosts: list[str], reach: Reach, patience: float) -> Examined:
    """The facts of this machine and of ``hosts``."""
    sharing = shared_file(Path()) if hosts else contextlib.nullcontext()
    with sharing as shared, ThreadPoolExecutor(1) as beside:
        program = Program(
            probe.__name__,
            patience - MARGIN,
            packages=software.asked(),
            living=[listing.id for listing in list_worlds()],
            shared=shared,
            **FOR_OLDER,
        )
        here = beside.submit(run_here, program.command(sys.executable), timeout=patience, stdin=program.text)
        there = ask_all(dict.fromkeys(hosts, program), reach, kind=Facts, timeout=patience)
        return {HERE: program.read(here.result(), sys.executable, Facts), **there}

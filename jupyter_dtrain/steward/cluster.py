"""The processes of a world, from one launch to their end: controller, watch with the ranks, ``mpiexec``, rendezvous.

One object is one launch; a restarted world gets another. It decides nothing. It passes on the reports of the watches
and the end of ``mpiexec``, and answers questions, such as whether a start still moves.

Under failure: :meth:`Cluster.start` raises and may leave processes; :meth:`Cluster.end` leaves none, whatever state
the launch is in, within the world's ``stop_timeout`` and a few seconds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from jupyter_dtrain.core.errors import StartFailed
from jupyter_dtrain.core.processes import Work
from jupyter_dtrain.core.start_failures import AGAIN, StartFailure, process_ended, relevant
from jupyter_dtrain.core.world import rank_in
from jupyter_dtrain.launch import local
from jupyter_dtrain.launch.launcher import Launcher
from jupyter_dtrain.launch.mpi import OTHER_MPIEXEC, MpiProgram, find_mpiexec, launched_variables, probe_mpi
from jupyter_dtrain.launch.networks import shared_network
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.wire.messages import PROTOCOL
from jupyter_dtrain.wire.reports import Report, WatchReady
from jupyter_dtrain.wire.requests import RankSpec, ServerSpec, WorldRequest

from .processes import (
    abort_children,
    collect_orphans,
    describe_descendants,
    die_with_parent,
    end_processes,
    kill_descendants,
    tail,
)
from .rendezvous import Rendezvous
from .watches import WatchEnd, Watches

if TYPE_CHECKING:
    from jupyter_dtrain.launch.prepared import PreparedPrograms
    from jupyter_dtrain.wire.channels import RanksChannel

    from .progress import StartProgress

MPIEXEC_PATIENCE = 3.0
"""Seconds that ``mpiexec`` and the controller have to end after the ranks.

Their watch takes up to 2 to end the ranks' own processes. About once in some hundred times prterun does not end by
itself (Open MPI 5.0.11)."""

MORE_TIME = "Ask for fewer ranks, or for more time with JUPYTER_DTRAIN_START_TIMEOUT (seconds)."

_log = logging.getLogger(__name__)


class Cluster:
    """The processes of one launch."""

    def __init__(
        self,
        request: WorldRequest,
        launcher: Launcher,
        incarnation: int,
        umask: int,
        programs: PreparedPrograms | None = None,
        spared: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """``incarnation`` counts restarts; ``umask`` is for the ranks; ``programs`` have waited for this launch.

        ``spared``: the ids of children that are others', and outlive it.
        """
        self._spared = spared
        self._programs = programs
        self.incarnation = incarnation
        self._request = request
        self._umask = umask
        self._logs = Path(request.folder) / "logs"
        self._controller: subprocess.Popen[bytes] | None = None
        self._launcher = launcher
        self._watches: Watches | None = None
        self._hosts = 0
        """How many watches there will be, one on each host."""
        self._mpi: MpiProgram | None = None
        self._mpiexec: subprocess.Popen[bytes] | None = None
        self._mpiexec_ended: Callable[[int], None] = lambda _: None
        self._failed: Callable[[StartFailed], None] = lambda _: None
        self._environment: dict[str, str] = {}
        self._starting = threading.Lock()
        """Held while ``mpiexec`` is started on other hosts: none is once this launch is over."""
        self._over = False
        self._rendezvous: Rendezvous | None = None
        self._servers: list[Rendezvous] = []
        """The rendezvous of the frameworks that have their own."""
        self._channel: RanksChannel | None = None

    def start(
        self,
        mpi: MpiProgram | None,
        generation: int,
        progress: StartProgress,
        report: Callable[[Report], None],
        ended: Callable[[int], None],
        watch_ended: Callable[[WatchEnd], None],
        failed: Callable[[StartFailed], None],
    ) -> MpiProgram:
        """Start all processes; returns the kind of ``mpiexec`` before the ranks are ready.

        ``mpi``: the kind in an earlier launch. ``progress`` gets what the processes do, ``report`` each report of a
        rank or its watch, ``ended`` the exit code of ``mpiexec``, ``watch_ended`` the end of a watch; these three on
        threads of their own. On other hosts ``mpiexec`` starts when all watches are ready; ``failed`` gets, on a thread
        of its own, why it could not. Raises :class:`~jupyter_dtrain.core.errors.DtrainError` with the fix, or
        :class:`OSError`.
        """
        request, launcher = self._request, self._launcher
        self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A rank that comes before the controller has made this folder would end.
        (Path(request.folder) / "profile").mkdir(mode=0o700, exist_ok=True)
        for earlier in self._logs.glob("watch*.log"):
            earlier.unlink()
        self._controller = self._spawn(launcher.controller_command(self.incarnation), "controller")
        mpi = self._mpi = mpi or probe_mpi(find_mpiexec(request.options.mpiexec))
        environment = self._environment = launcher.environment()
        self._mpiexec_ended, self._failed = ended, failed

        def hear(one: Report) -> None:
            if isinstance(one, WatchReady):
                self._watch_begun()
            report(one)

        # They import what ranks need, which takes longest, while the rest is prepared.
        self._watches = Watches(request.spool, hear, watch_ended)
        commands = launcher.watches()
        self._hosts = len(commands)
        for watch in commands:
            log = f"watch-{watch.host}" if watch.host else "watch"
            process = self._spawn(watch.command, log, environment, piped=True)
            self._watches.add(watch.host, process, watch.first_line)
        if self._programs is not None:
            self._programs.end()
        if not launcher.remote:
            self._start_mpiexec("")
        told = ServerSpec(secrets.token_hex(32))
        port = int(request.options.env.get("MASTER_PORT", "0"))
        address = launcher.address
        self._rendezvous = Rendezvous(address, port, self._logs / "store.log", die_with_parent, told)
        servers: dict[str, str] = {}
        for name, module in Plugins.load().servers().items():
            server = Rendezvous(address, 0, self._logs / f"{name}.log", die_with_parent, told, module)
            self._servers.append(server)
            servers[name] = f"{server.host}:{server.port}"
        spec = RankSpec(
            world=request.name,
            world_id=request.id,
            engine_file=local.engine_file(request),
            folder=request.folder,
            scratch=launcher.scratch,
            spool=request.spool,
            path=request.path,
            master_addr=request.options.env.get("MASTER_ADDR", self._rendezvous.host),
            master_port=self._rendezvous.port,
            options=request.frameworks,
            servers=servers,
            secret=told.secret,
            settings=request.settings,
            roles=request.roles,
            gpus_per_rank=request.options.gpus_per_rank or 0,
            generation=generation,
            launched=launched_variables(request, launcher.scratch),
            given=list(request.options.env),
            protocol=PROTOCOL,
            cwd=request.cwd,
            umask=self._umask,
            remote=launcher.address if launcher.remote else "",
        )
        self._watches.begin(spec)
        if not launcher.remote:
            assert self._mpiexec is not None
            # A start on other hosts works there, where nothing here can see it.
            processes = (self._controller, self._mpiexec, *self._watches.processes)
            progress.begin(Work(process.pid for process in processes))
        return mpi

    def _watch_begun(self) -> None:
        """On other hosts: when all watches are ready, ``mpiexec`` can start. On the thread of the last one."""
        assert self._watches is not None
        with self._starting:
            begun = self._watches.begun
            if not self._launcher.remote or self._over or self._mpiexec is not None:
                return
            if len(begun) < self._hosts:
                return
            try:
                self._watches.connect(self._await_controller())
                addresses = [one.address for one in begun.values()]
                for server in (self._rendezvous, *self._servers):
                    if server is not None:
                        server.serve_hosts(addresses)
                self._start_mpiexec(shared_network(self._launcher.address, addresses))
            except StartFailed as error:
                self._failed(error)
            except (OSError, ValueError) as error:
                _log.exception("The ranks cannot be started")
                self._failed(StartFailed(f"The hosts cannot be connected: {error}.", AGAIN))

    def _await_controller(self) -> str:
        """The content of the controller's file for engines. Raises :class:`StartFailed` where none comes."""
        path = Path(local.engine_file(self._request))
        deadline = time.monotonic() + self._request.settings.start_timeout
        while True:
            with contextlib.suppress(OSError):
                if (text := path.read_text()).endswith("}"):
                    return text
            if (code := self.controller_code()) is not None:
                ended = process_ended("ipyparallel's controller", code, self.said("controller", 40))
                raise StartFailed(ended.reason, ended.fix, ended.log)
            if self._over or time.monotonic() > deadline:
                raise StartFailed("ipyparallel's controller has not written the file that says how to reach it.", AGAIN)
            time.sleep(0.02)

    def _start_mpiexec(self, network: str) -> None:
        """Start ``mpiexec`` on a thread that then waits for it: Linux ends a child with the thread that started it.

        Raises :class:`StartFailed` where it cannot be started.
        """
        assert self._mpi is not None
        command = self._launcher.ranks_command(self._mpi, network)
        started: Future[None] = Future()

        def run() -> None:
            try:
                # Where it calls srun, that sends this folder to the nodes in clear; the watches know the ranks' own.
                cwd = self._request.cwd if self._launcher.allocation is None else "/"
                mpiexec = self._mpiexec = self._spawn(command, "mpiexec", self._environment, cwd=cwd)
            except OSError as error:
                started.set_exception(StartFailed(f"mpiexec cannot be started: {error}.", OTHER_MPIEXEC))
                return
            started.set_result(None)
            self._mpiexec_ended(mpiexec.wait())

        threading.Thread(target=run, name="dtrain-mpiexec", daemon=True).start()
        started.result()

    def _spawn(
        self, command: list[str], log: str, env: dict[str, str] | None = None, *, piped: bool = False, cwd: str = ""
    ) -> subprocess.Popen[bytes]:
        """Start a process in ``cwd``, by default the world's folder.

        ``piped``: with pipes to its standard input and from its standard output.
        """
        path, where = self._logs / f"{log}.log", cwd or self._request.cwd
        if self._programs is not None and (
            process := self._programs.take(command, env=env or os.environ, cwd=where, log=path, piped=piped)
        ):
            return process
        with open(path, "ab") as file:
            return subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else file,
                stderr=file,
                cwd=where,
                preexec_fn=die_with_parent,  # noqa: PLW1509 — one prctl call, on a libc that is loaded
            )

    # Questions.

    def said(self, name: str, lines: int = 15) -> str:
        """The end of a log: ``controller``, ``mpiexec``, ``steward``, ``rank-0``."""
        return tail(self._logs / f"{name}.log", lines)

    def explain_silence(self, why: str) -> StartFailure:
        """Why the ranks never got ready, with the ends of the logs that may say more."""
        _log.error("The start is over: %s These processes are left: %s", why, describe_descendants())
        said = {name: relevant(self.said(name), 4) for name in ("mpiexec", "controller")}
        log = "\n".join(f"{name} said: {line}" for name, lines in said.items() for line in lines.splitlines())
        return StartFailure(why, MORE_TIME, log)

    def watches(self) -> dict[str, str]:
        """The routing identities of the watches that live, by the host's name; empty for this machine. Any thread."""
        return {} if self._watches is None else self._watches.living

    def controller_code(self) -> int | None:
        """The exit code of the controller; None while it runs."""
        return None if self._controller is None else self._controller.poll()

    def ranks_here(self) -> set[int]:
        """The ranks that have a process beneath ``mpiexec`` on this host, as far as it tells their numbers."""
        found = set()
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self._mpiexec.pid).children(recursive=True) if self._mpiexec else []:
                with contextlib.suppress(psutil.Error):
                    found.add(rank_in(process.environ()))
        return found - {-1}

    def has_slots(self) -> bool:
        """Whether some process on this host holds a rank's slot: where the slots end, the watch ends the ranks."""
        command = set(self._launcher.slot_command())
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if command <= {*process.cmdline()} and process.status() != psutil.STATUS_ZOMBIE:
                    return True
        return False

    def collect_orphans(self) -> None:
        """Collect the exit statuses of orphans that the steward inherited."""
        own = {process.pid for process in (self._controller, self._mpiexec) if process is not None}
        own |= {process.pid for process in self._watches.processes} if self._watches is not None else set()
        own |= {server.pid for server in (self._rendezvous, *self._servers) if server is not None and server.pid}
        collect_orphans(own.union(self._spared()))

    def abort_ranks(self) -> None:
        """Have the ranks print the stacks of their threads, and end them."""
        # On another host the children of our process there are ssh's own.
        if self._watches is not None and not self._launcher.remote:
            for process in self._watches.processes:
                abort_children(process)

    def prepare_to_connect(self) -> None:
        """Import what :meth:`connect` needs, so that the supervisor does not stand still for ipyparallel later.

        Once the ranks are up: before that it would take the processor from them.
        """
        threading.Thread(
            target=import_module, args=("jupyter_dtrain.wire.channels",), name="dtrain-import", daemon=True
        ).start()

    def connect(self) -> RanksChannel:
        """The channel to agents and watches, without announcements. The supervisor's thread calls it."""
        if self._channel is None:
            from jupyter_dtrain.wire.channels import RanksChannel

            self._channel = RanksChannel(local.client_file(self._request))
        return self._channel

    # Its end.

    def end(self) -> None:
        """End all processes. The ranks have ``stop_timeout`` to end by themselves."""
        if self._channel is not None:
            with contextlib.suppress(Exception):
                self._channel.close(linger=0)
            self._channel = None
        self._over = True
        with self._starting:
            pass  # a start that is under way has ended
        if self._watches is not None:
            self._watches.end(self._request.settings.stop_timeout)
        end_processes((self._mpiexec, self._controller), MPIEXEC_PATIENCE)
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None
        while self._servers:
            self._servers.pop().close()
        left = kill_descendants(spare=self._spared())
        if left:
            _log.error("These processes could not be killed: %s", left)

    def remove_files(self) -> None:
        """Remove the files of the launch's processes, which have ended, but keep their logs."""
        for folder in (Path(self._request.folder) / "profile", self._request.scratch):
            shutil.rmtree(folder, ignore_errors=True)
        Path(self._request.scratch).mkdir(mode=0o700)
        for path in Path(self._request.sockets).glob(f"{local.controller_sockets(self.incarnation)}:*"):
            path.unlink(missing_ok=True)
        (self._logs / "controller.log").unlink(missing_ok=True)

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
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from jupyter_dtrain.core.work import Work
from jupyter_dtrain.engine.plugins import Plugins
from jupyter_dtrain.launch import local
from jupyter_dtrain.wire.messages import PROTOCOL
from jupyter_dtrain.wire.reports import Report, rank_in, read_report
from jupyter_dtrain.wire.requests import ADDRESS, RankSpec, ServerSpec, WorldRequest

from .processes import (
    abort_children,
    collect_orphans,
    die_with_parent,
    end_process,
    is_running,
    kill_descendants,
    tail,
)
from .rendezvous import Rendezvous

if TYPE_CHECKING:
    from jupyter_dtrain.wire.channels import RanksChannel

    from .progress import Progress

ASK_AGAIN = 0.2
"""Seconds after which the steward repeats its request to a rank to end."""

WATCH_PATIENCE = 5.0
"""Seconds that the watch has to end: its ranks have one second, and their own processes up to two."""

MPIEXEC_PATIENCE = 3.0
"""Seconds that ``mpiexec`` has to end after its ranks: their watch takes up to 2 to end the ranks' own processes.

About once in some hundred times prterun does not end by itself (Open MPI 5.0.11)."""

_log = logging.getLogger(__name__)


class Cluster:
    """The processes of one launch."""

    def __init__(self, request: WorldRequest, incarnation: int, umask: int) -> None:
        """``incarnation`` counts the world's restarts; ``umask`` is for the ranks."""
        self.incarnation = incarnation
        self._request = request
        self._umask = umask
        self._logs = Path(request.folder) / "logs"
        self._controller: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self._mpiexec: subprocess.Popen[bytes] | None = None
        self._rendezvous: Rendezvous | None = None
        self._servers: list[Rendezvous] = []
        """The rendezvous of the frameworks that have their own."""
        self._channel: RanksChannel | None = None

    def start(
        self,
        mpi: local.Mpi | None,
        generation: int,
        progress: Progress,
        report: Callable[[Report], None],
        ended: Callable[[int], None],
        watch_ended: Callable[[int], None],
    ) -> local.Mpi:
        """Start all processes; returns the kind of ``mpiexec`` before the ranks are ready.

        ``mpi``: the kind in an earlier launch. ``progress`` gets what the processes do, ``report`` each report of a
        rank or its watch, ``ended`` and ``watch_ended`` the exit codes of ``mpiexec`` and the watch; these three on
        threads of their own. Raises :class:`~jupyter_dtrain.core.errors.DtrainError` with the cure, or
        :class:`OSError`.
        """
        request = self._request
        self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A rank that comes before the controller has made this folder would end.
        (Path(request.folder) / "profile").mkdir(mode=0o700, exist_ok=True)
        self._controller = self._spawn(local.controller_command(request, self.incarnation), "controller")
        mpi = mpi or local.probe_mpi(local.find_mpiexec(request.options.mpiexec))
        told = ServerSpec(secrets.token_hex(32), request.size)
        self._rendezvous = Rendezvous(
            ADDRESS, int(request.options.env.get("MASTER_PORT", "0")), self._logs / "store.log", die_with_parent, told
        )
        servers: dict[str, str] = {}
        for name, module in Plugins.load().servers().items():
            server = Rendezvous(ADDRESS, 0, self._logs / f"{name}.log", die_with_parent, told, module)
            self._servers.append(server)
            servers[name] = f"{server.host}:{server.port}"
        spec = RankSpec(
            world=request.name,
            world_id=request.id,
            engine_file=local.engine_file(request),
            folder=request.folder,
            scratch=request.scratch,
            spool=request.spool,
            path=request.path,
            master_addr=request.options.env.get("MASTER_ADDR", self._rendezvous.host),
            master_port=self._rendezvous.port,
            options=request.frameworks,
            servers=servers,
            secret=told.secret,
            settings=request.settings,
            roles=request.roles,
            generation=generation,
            launched=local.launched_variables(request),
            given=list(request.options.env),
            protocol=PROTOCOL,
        )
        environment = local.ranks_environment(request)
        watch = self._watch = self._spawn(local.watch_command(), "watch", environment, piped=True)
        mpiexec = self._mpiexec = self._spawn(local.ranks_command(request, mpi), "mpiexec", environment)
        progress.begin(Work(process.pid for process in (self._controller, watch, mpiexec)))
        for process, work in ((watch, lambda: self._read(watch, spec, report)), (mpiexec, lambda: None)):
            end = watch_ended if process is watch else ended
            threading.Thread(target=self._follow, args=(process, work, end), name="dtrain-follow", daemon=True).start()
        return mpi

    def _spawn(
        self, command: list[str], log: str, env: dict[str, str] | None = None, *, piped: bool = False
    ) -> subprocess.Popen[bytes]:
        """Start a process; ``piped``: with pipes to its standard input and from its standard output."""
        with open(self._logs / f"{log}.log", "ab") as file:
            return subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else file,
                stderr=file,
                cwd=self._request.cwd,
                preexec_fn=die_with_parent,  # noqa: PLW1509 — one prctl call, on a libc that is loaded
                umask=self._umask if piped else -1,
            )

    def _read(self, watch: subprocess.Popen[bytes], spec: RankSpec, report: Callable[[Report], None]) -> None:
        """Send the watch what it needs to begin, and pass its reports on until it ends."""
        assert watch.stdin is not None
        assert watch.stdout is not None
        with contextlib.suppress(OSError):  # it has ended, which the end of its output says too
            watch.stdin.write(spec.to_line())
            watch.stdin.flush()
        with watch.stdout:
            for line in watch.stdout:
                found = read_report(line)
                if found is not None:
                    report(found)

    def _follow(self, process: subprocess.Popen[bytes], work: Callable[[], None], ended: Callable[[int], None]) -> None:
        work()
        ended(process.wait())

    # Questions.

    def said(self, name: str, lines: int = 15) -> str:
        """The end of a log: ``controller``, ``mpiexec``, ``steward``, ``rank-0``."""
        return tail(self._logs / f"{name}.log", lines)

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

    def collect_orphans(self) -> None:
        """Collect what ended beneath the steward and has no other parent any more."""
        own = {process.pid for process in (self._controller, self._watch, self._mpiexec) if process is not None}
        own |= {server.pid for server in (self._rendezvous, *self._servers) if server is not None and server.pid}
        collect_orphans(own)

    def abort_ranks(self) -> None:
        """Have unreachable ranks print where they are, and end them."""
        abort_children(self._watch)

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

    def end(self, ranks: Iterable[int]) -> None:
        """End all processes; ``ranks`` are the process ids of those that live."""
        if self._channel is not None:
            with contextlib.suppress(Exception):
                self._channel.close(linger=0)
            self._channel = None
        self._end_ranks(list(ranks))
        end_process(self._mpiexec, MPIEXEC_PATIENCE)
        end_process(self._watch, WATCH_PATIENCE)
        if self._watch is not None and self._watch.stdin is not None:
            with contextlib.suppress(OSError):
                self._watch.stdin.close()
        end_process(self._controller, 2.0)
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None
        while self._servers:
            self._servers.pop().close()
        left = kill_descendants()
        if left:
            _log.error("These processes could not be killed: %s", left)

    def remove_files(self) -> None:
        """Remove the files of its ended processes, but keep their logs."""
        for folder in (Path(self._request.folder) / "profile", self._request.scratch):
            shutil.rmtree(folder, ignore_errors=True)
        Path(self._request.scratch).mkdir(mode=0o700)
        for path in Path(self._request.sockets).glob(f"{local.controller_sockets(self.incarnation)}:*"):
            path.unlink(missing_ok=True)
        (self._logs / "controller.log").unlink(missing_ok=True)

    def _end_ranks(self, living: list[int]) -> None:
        """Let ranks end by themselves within the given time: prterun itself kills them 0.25 s after its request.

        It repeats SIGTERM: Python notices one that arrives just before a blocking call only when that call ends.
        """
        now = asked = time.monotonic()
        deadline = now + self._request.settings.stop_timeout
        while (living := [pid for pid in living if is_running(pid)]) and now < deadline:
            if now >= asked:
                asked = now + ASK_AGAIN
                for pid in living:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGTERM)
                        os.kill(pid, signal.SIGCONT)  # a stopped process sees no other signal
            time.sleep(0.01)
            now = time.monotonic()

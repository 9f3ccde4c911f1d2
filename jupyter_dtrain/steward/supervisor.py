"""The one thread that owns a world's processes and its state.

Everybody else (the control thread that answers clients, the readers of pipes) posts to its queue or reads a snapshot.
Its phases: ``starting`` → ``running`` → ``ending``, or ``starting`` → ``failed`` → ``ending``; ``restart`` goes back to
``starting``.

Under failure:

* a start that fails leaves no process; its reason, from the logs, stays readable for :data:`FAILED_PATIENCE` seconds;
* a rank that dies is announced with its last events; the others live on;
* when the lease runs out, or the steward is told to end, nothing is left beneath it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..engine.reports import REPORT_PREFIX, Died, Ready
from ..events import Event
from ..failures import DtrainError
from ..launch import local
from ..launch.request import RankSpec, WorldRequest
from ..world import Rank, World
from .keeper import Keeper
from .processes import (
    Work,
    abort_grandchildren,
    become_subreaper,
    describe_descendants,
    die_with_parent,
    end_process,
    is_running,
    kill_descendants,
    tail,
)
from .rendezvous import Rendezvous

if TYPE_CHECKING:
    from ..channels import RanksChannel

LAUNCHES = 3
"""How often a start tries, when what was in its way was chance."""
FAILED_PATIENCE = 10.0
"""Seconds for which a failed start tells why."""
TICK = 0.5
STILL = 6.0
"""Seconds without any work after which ranks that are not ready never will be."""
ABORT_PATIENCE = 3.0
"""Seconds in which ranks that never got ready may say where they were."""
ASK_AGAIN = 0.2
"""Seconds after which a rank that was asked to end is asked again."""
REPORT_PATIENCE = 4.0
"""Seconds that a watch may take to report the end of its rank before the steward does so itself."""

_log = logging.getLogger(__name__)


class Supervisor:
    """Starts, watches and ends one world."""

    def __init__(self, request: WorldRequest, umask: int) -> None:
        """``umask``: the one that ranks get."""
        self.ended = threading.Event()
        """Set when nothing of the world is left."""
        self._request = request
        self._umask = umask
        self._logs = Path(request.folder) / "logs"
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._phase = "starting"
        self._incarnation = 0
        self._reason = ""
        self._ranks: dict[int, Rank] = {}
        self._gone: dict[int, float] = {}
        """Since when a rank's process, by id, is known to be gone without a report."""
        self._generation = 0
        self._last_run = 0
        self._healable = True
        self._gpus = 0
        self._lease_end = time.monotonic() + request.settings.lease
        self._renew_at = 0.0
        self._patience_end = 0.0
        self._controller: subprocess.Popen[bytes] | None = None
        self._mpiexec: subprocess.Popen[bytes] | None = None
        self._mpi: local.Mpi | None = None
        self._launches = 0
        self._work: Work | None = None
        self._silence = ""
        """What is told of a start that takes too long, once its ranks were asked where they are."""
        self._rendezvous: Rendezvous | None = None
        self._channel: RanksChannel | None = None
        self._waiting: list[dict[str, Any]] = []
        self._announce: Callable[[dict[str, Any]], None] | None = None
        self._notices: list[str] = []
        self._keeper = Keeper(request, self._notice)
        self._thread = threading.Thread(target=self._run, name="dtrain-supervisor", daemon=True)

    # What other threads call.

    def start(self) -> None:
        """Begin to start the world; returns at once."""
        become_subreaper()
        self._thread.start()

    def attach(self, announce: Callable[[dict[str, Any]], None]) -> None:
        """``announce`` may be used from now on."""
        self._queue.put(lambda: self._attach(announce))

    def end(self, reason: str) -> None:
        """End the world; ``ended`` is set when that is done."""
        self._queue.put(lambda: self._end(reason))

    def answer(self, content: dict[str, Any]) -> dict[str, Any]:
        """Answer a client's request. Never blocks on the world."""
        match content.get("op"):
            case "state":
                return self._snapshot()
            case "renew":
                self._keeper.renewed(content)
                with self._lock:
                    self._lease_end = time.monotonic() + self._request.settings.lease
                    self._last_run = max(self._last_run, int(content.get("last_run", 0)))
                return {"status": "ok"}
            case "advance":
                with self._lock:
                    self._generation += 1
                    return {"status": "ok", "generation": self._generation}
            case "stop":
                self._keeper.renewed(content)
                self.end("a client asked for it")
                return {"status": "ok"}
            case "restart":
                with self._lock:
                    if self._phase != "running":
                        return {"status": "error", "words": f"the world is {self._phase}"}
                    # Seen by the next snapshot, before the thread has begun.
                    self._patience_end = time.monotonic() + self._request.settings.start_timeout
                    self._phase = "starting"
                    self._incarnation += 1
                    answer = {"status": "ok", "incarnation": self._incarnation}
                self._queue.put(self._restart)
                return answer
            case "signal":
                ranks, number = [int(rank) for rank in content["ranks"]], int(content["signal"])
                self._queue.put(lambda: self._signal(ranks, number))
                return {"status": "ok"}
            case op:
                return {"status": "error", "words": f"unknown request {op!r}"}

    def _snapshot(self) -> dict[str, Any]:
        request = self._request
        with self._lock:
            ranks = [self._ranks[rank] for rank in sorted(self._ranks)]
            world = World(request.name, request.id, ranks, self._generation)
            return {
                "status": "ok",
                "phase": self._phase,
                "incarnation": self._incarnation,
                "reason": self._reason,
                "size": request.size,
                "world": msgspec.to_builtins(world),
                "healable": self._healable,
                "client_file": local.client_file(request),
                "spool": request.spool,
                "last_run": self._last_run,
                "lease_left": self._lease_end - time.monotonic(),
                "mpi": self._mpi.version if self._mpi else "",
                "notices": list(self._notices),
            }

    # Everything below runs on the supervisor's thread.

    def _run(self) -> None:
        self._start()
        self._keeper.start()
        while not self.ended.is_set():
            try:
                task = self._queue.get(timeout=TICK)
            except queue.Empty:
                task = self._tick
            try:
                task()
            except Exception:  # noqa: BLE001 — the world outlives what went wrong with one task
                _log.exception("The supervisor failed at %s", task)

    def _attach(self, announce: Callable[[dict[str, Any]], None]) -> None:
        self._announce = announce
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            announce(event)

    def _tell(self, kind: str, **content: Any) -> None:
        event = {"kind": kind, "incarnation": self._incarnation, **content}
        if self._announce is None:
            self._waiting.append(event)
        else:
            self._announce(event)

    def _notice(self, words: str) -> None:
        """Tell the user, also one who is not there yet. Any thread."""
        with self._lock:
            self._notices.append(words)
        self._queue.put(lambda: self._tell("notice", words=words))

    def _start(self) -> None:
        self._launches = 0
        self._launch()

    def _start_again(self, why: str) -> None:
        _log.warning("The world is started again. %s", why)
        self._clear()
        self._launch()

    def _clear(self) -> None:
        """End all processes and remove what they have written, but for their logs."""
        self._tear_down()
        with self._lock:
            self._ranks = {}
        for folder in (Path(self._request.folder) / "profile", self._request.scratch):
            shutil.rmtree(folder, ignore_errors=True)
        Path(self._request.scratch).mkdir(mode=0o700)
        (self._logs / "controller.log").unlink(missing_ok=True)

    def _launch(self) -> None:
        request = self._request
        self._launches += 1
        self._silence, self._work = "", None
        self._patience_end = time.monotonic() + request.settings.start_timeout
        try:
            self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._controller = self._spawn(local.controller_command(request), "controller")
            if self._mpi is None:
                self._mpi = local.probe_mpi(local.find_mpiexec(request.mpiexec))
            self._rendezvous = Rendezvous(
                local.ADDRESS, int(request.env.get("MASTER_PORT", "0")), self._logs / "store.log", die_with_parent
            )
            spec = RankSpec(
                world=request.name,
                world_id=request.id,
                engine_file=local.engine_file(request),
                folder=request.folder,
                spool=request.spool,
                path=request.path,
                master_addr=request.env.get("MASTER_ADDR", self._rendezvous.host),
                master_port=self._rendezvous.port,
                options={"torch_backend": request.torch_backend},
                settings=request.settings,
                generation=self._generation,
            )
            mpiexec = self._mpiexec = self._spawn(
                local.ranks_command(request, self._mpi), "mpiexec", local.ranks_environment(request, spec), pipe=True
            )
            self._work = Work(mpiexec)
            arguments = (mpiexec, self._incarnation)
            threading.Thread(target=self._read_reports, args=arguments, name="dtrain-reports", daemon=True).start()
        except DtrainError as error:
            self._fail(str(error))
            return
        except Exception as error:  # noqa: BLE001 — a start that fails must say so, whatever it was
            self._fail(f"{type(error).__name__}: {error}")

    def _spawn(
        self, command: list[str], log: str, env: dict[str, str] | None = None, *, pipe: bool = False
    ) -> subprocess.Popen[bytes]:
        with open(self._logs / f"{log}.log", "ab") as file:
            return subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe else file,
                stderr=file,
                cwd=self._request.cwd,
                preexec_fn=die_with_parent,  # noqa: PLW1509 — one prctl call, on a libc that is loaded
                umask=self._umask if pipe else -1,
            )

    def _read_reports(self, mpiexec: subprocess.Popen[bytes], incarnation: int) -> None:
        """Pass on what the watches report; a thread of its own."""
        assert mpiexec.stdout is not None
        with mpiexec.stdout, open(self._logs / "mpiexec.log", "ab") as log:
            for line in mpiexec.stdout:
                if line.startswith(REPORT_PREFIX.encode()):
                    self._queue.put(lambda line=line: self._report(line, mpiexec, incarnation))  # type: ignore[misc]
                else:
                    log.write(line)
                    log.flush()
        self._queue.put(lambda: self._mpiexec_ended(mpiexec, incarnation))

    def _is_current(self, mpiexec: subprocess.Popen[bytes], incarnation: int) -> bool:
        """Whether these are the present ranks': between the order to restart and its beginning there are old ones."""
        return incarnation == self._incarnation and mpiexec is self._mpiexec

    def _report(self, line: bytes, mpiexec: subprocess.Popen[bytes], incarnation: int) -> None:
        if not self._is_current(mpiexec, incarnation):
            return
        _, kind, data = line.split(b" ", 2)
        if kind == b"ready":
            self._rank_ready(msgspec.json.decode(data, type=Ready))
        elif kind == b"died":
            self._rank_died(msgspec.json.decode(data, type=Died))

    def _rank_ready(self, ready: Ready) -> None:
        if not self._ranks:
            self._gpus = local.count_gpus()
        device = f"cuda:{ready.local_rank}" if ready.local_rank < self._gpus else "cpu"
        rank = Rank(ready.rank, ready.node, ready.host, ready.local_rank, device, ready.pid, ready.engine)
        with self._lock:
            self._ranks[ready.rank] = rank
            complete = len(self._ranks) == self._request.size
            if complete and self._phase == "starting":
                self._phase = "running"
                self._lease_end = time.monotonic() + self._request.settings.lease
        self._patience_end = time.monotonic() + self._request.settings.start_timeout

    def _rank_died(self, died: Died) -> None:
        if self._phase == "starting":
            said = died.last_words.strip() or tail(self._logs / f"rank-{died.rank}.log")
            if self._silence:
                self._fail(f"{self._silence}\nRank {died.rank} was here:\n{said}")
                return
            self._fail(f"{died.words} while the world started." + (f" It said:\n{said}" if said else ""))
            return
        if self._phase != "running":
            return
        self._mark_dead(died.rank, died.words, died.run, died.events)

    def _mark_dead(self, number: int, words: str, run: int | None, events: list[Event]) -> None:
        with self._lock:
            rank = self._ranks[number]
            if rank.state == "dead":
                return
            self._ranks[number] = msgspec.structs.replace(rank, state="dead", words=words)
            self._generation += 1
            generation = self._generation
        self._keeper.rank_died(number, words)
        told = msgspec.to_builtins(events)
        self._tell("died", rank=number, words=words, run=run, events=told, generation=generation)

    def _mpiexec_ended(self, mpiexec: subprocess.Popen[bytes], incarnation: int) -> None:
        if not self._is_current(mpiexec, incarnation):
            return
        code = mpiexec.wait()
        if self._phase == "starting":
            log = tail(self._logs / "mpiexec.log", 40)
            reason = local.explain_mpiexec(log) or f"mpiexec ended with exit code {code} while the world started."
            self._fail(reason + (f" It said:\n{log}" if log else ""))
        elif self._phase == "running":
            with self._lock:
                self._healable = False
            self._tell("mpiexec ended", words=f"mpiexec ended ({code}): the ranks go on, but none can be replaced")

    def _tick(self) -> None:
        now = time.monotonic()
        if self._phase == "starting":
            self._check_starting(now)
        elif self._phase == "running":
            self._check_running()
            if now >= self._renew_at:
                self._renew_watches()
                self._renew_at = now + min(self._request.settings.lease / 4, 30.0)
        elif self._phase == "failed" and now > self._patience_end:
            self._end("nobody asked why the start failed")
        with self._lock:
            # A start has a deadline of its own, and nobody renews before it is over.
            over = self._phase != "starting" and now > self._lease_end
        if over:
            self._end("the lease is over")

    def _check_starting(self, now: float) -> None:
        said = tail(self._logs / "controller.log")
        if local.lost_a_port(said) and self._launches < LAUNCHES:
            self._start_again(said)
        elif self._launches < LAUNCHES and self._work is not None and self._work.rest() > STILL:
            # Seen about once in a thousand starts: prterun and the rank wait for each other, and nobody does anything.
            self._start_again(f"Nothing has moved for {STILL:g} s: {describe_descendants()}.")
        elif self._controller is not None and self._controller.poll() is not None:
            self._fail(f"ipyparallel's controller ended with exit code {self._controller.returncode}. It said:\n{said}")
        elif now > self._patience_end and self._silence:
            self._fail(self._silence)
        elif now > self._patience_end:
            self._silence = self._explain_silence()
            # The watches report what they say then: where in their code they were.
            abort_grandchildren(self._mpiexec)
            self._patience_end = now + ABORT_PATIENCE

    def _check_running(self) -> None:
        if self._controller is not None and self._controller.poll() is not None:
            self._end(f"ipyparallel's controller ended with {self._controller.returncode}")
            return
        now = time.monotonic()
        for rank in list(self._ranks.values()):
            if rank.state == "dead" or is_running(rank.pid):
                continue
            # Without mpiexec no watch can report; a watch that was killed took its rank along and reports nothing.
            if not self._healable:
                self._mark_dead(rank.rank, f"rank {rank.rank} ended (mpiexec is gone, so nobody knows how)", None, [])
            elif now - self._gone.setdefault(rank.pid, now) > REPORT_PATIENCE:
                self._mark_dead(rank.rank, f"rank {rank.rank} ended, and its watch told nothing of how", None, [])

    def _explain_silence(self) -> str:
        seconds = self._request.settings.start_timeout
        missing = self._request.size - len(self._ranks)
        _log.error("These are there: %s", describe_descendants())
        said = {name: tail(self._logs / f"{name}.log", 6) for name in ("mpiexec", "controller", "steward")}
        logs = "\n".join(f"{name}: {text}" for name, text in said.items() if text)
        text = f"{missing} of {self._request.size} ranks did not get ready within {seconds:g} s."
        return text + (f" The logs end with:\n{logs}" if logs else " Ask for fewer ranks with -n, or for more time.")

    def _connect(self) -> RanksChannel:
        if self._channel is None:
            from ..channels import RanksChannel

            self._channel = RanksChannel(local.client_file(self._request))
        return self._channel

    def _renew_watches(self) -> None:
        channel = self._connect()
        for rank in self._ranks.values():
            if rank.state != "dead":
                channel.ask_watch(rank.engine, op="lease")

    def _signal(self, ranks: list[int], number: int) -> None:
        channel = self._connect()
        for index in ranks:
            rank = self._ranks.get(index)
            if rank is not None and rank.state != "dead":
                channel.ask_watch(rank.engine, op="signal", signal=number)

    def _restart(self) -> None:
        self._tell("restarting")
        self._clear()
        self._keeper.ranks_ended("its world was restarted")
        with self._lock:
            self._generation += 1
            self._healable = True
        self._start()

    def _fail(self, reason: str) -> None:
        self._tear_down()
        with self._lock:
            self._phase = "failed"
            self._reason = reason
        self._patience_end = time.monotonic() + FAILED_PATIENCE

    def _end(self, reason: str) -> None:
        with self._lock:
            if self._phase == "ending":
                return
            self._phase = "ending"
            self._reason = reason
        try:
            with contextlib.suppress(Exception):
                self._tell("ended", words=reason)
            self._tear_down()
            self._keeper.close(reason)
        finally:
            # Whatever went wrong: without a steward the parent-death signals end what is left.
            for folder in self._request.passing_folders:
                shutil.rmtree(folder, ignore_errors=True)
            self.ended.set()

    def _end_ranks(self) -> None:
        """Let ranks end by themselves, for as long as they are given: prterun kills 0.25 s after it asked.

        SIGTERM is sent again and again: one that falls just before a blocking call is noticed when that call ends.
        """
        living = [rank.pid for rank in self._ranks.values() if rank.state != "dead"]
        now = asked = time.monotonic()
        deadline = now + self._request.settings.stop_timeout
        while (living := [pid for pid in living if is_running(pid)]) and now < deadline:
            if now >= asked:
                asked = now + ASK_AGAIN
                for pid in living:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGTERM)
                        os.kill(pid, signal.SIGCONT)  # one that is stopped sees nothing else
            time.sleep(0.01)
            now = time.monotonic()

    def _tear_down(self) -> None:
        if self._channel is not None:
            with contextlib.suppress(Exception):
                self._channel.close(linger=0)
            self._channel = None
        self._end_ranks()
        end_process(self._mpiexec, self._request.settings.stop_timeout)
        end_process(self._controller, 2.0)
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None
        left = kill_descendants()
        if left:
            _log.error("These processes could not be killed: %s", left)

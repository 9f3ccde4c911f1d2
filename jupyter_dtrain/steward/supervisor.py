"""The one thread that owns a world: its state, and through :class:`~.cluster.Cluster` its processes.

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
import queue
import shutil
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_dtrain.core.clients import Client
from jupyter_dtrain.core.errors import DtrainError
from jupyter_dtrain.core.events import Event, RankState
from jupyter_dtrain.core.exits import NO_ULFM, describe_controller_end, describe_mpiexec_end, describe_unknown_end
from jupyter_dtrain.core.world import Rank, World
from jupyter_dtrain.launch import local
from jupyter_dtrain.wire.messages import ASKED_FOR
from jupyter_dtrain.wire.reports import Died, Ended, Paused, Ready, Report
from jupyter_dtrain.wire.requests import WorldRequest
from jupyter_dtrain.wire.spool import last_run

from .actions import Actions
from .cluster import Cluster
from .keeper import Keeper
from .lease import Lease
from .processes import become_subreaper, describe_descendants, is_running, is_stopped
from .release import Waiting

if TYPE_CHECKING:
    from jupyter_dtrain.wire.channels import RanksChannel

LAUNCHES = 3
"""How often a start tries, when what was in its way was chance."""
FAILED_PATIENCE = 10.0
"""Seconds for which a failed start tells why."""
TICK = 0.5
STILL = 6.0
"""Seconds without any work after which ranks that are not ready never will be."""
ABORT_PATIENCE = 3.0
"""Seconds in which ranks that never got ready may say where they were."""
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
        self._lease = Lease(request.settings.lease)
        self._renew_at = 0.0
        self._patience_end = 0.0
        self._cluster = Cluster(request, 0, umask)
        self._mpi: local.Mpi | None = None
        self._launches = 0
        self._silence = ""
        """What is told of a start that takes too long, once its ranks were asked where they are."""
        self._waiting: list[dict[str, Any]] = []
        self._announce: Callable[[dict[str, Any]], None] | None = None
        self._notices: list[str] = []
        self._advanced: set[int] = set()
        """Runs after which a new generation has begun."""
        self._launch_notices: list[str] = []
        """Those that are over with this set of ranks."""
        self._interventions = Actions(
            request, self._bound, self._queue.put, self._tell, self._was_released, lambda: self._lease.is_driven
        )
        self._keeper = Keeper(request, self._notice)
        self._thread = threading.Thread(target=self._run, name="dtrain-supervisor", daemon=True)
        self._answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "state": self._snapshot,
            "request": lambda _: {"request": msgspec.to_builtins(self._request)},
            "driver": lambda _: {"driver": msgspec.to_builtins(self._lease.driver)},
            "join": self._join,
            "renew": self._renewed,
            "leave": self._leave,
            "advance": self._advance,
            "restart": self._restart_asked,
            "stop": self._stop_asked,
            **self._interventions.answers,
        }

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
        answer = self._answers.get(content.get("op", ""))
        if answer is None:
            return {"status": "error", "words": f"unknown request {content.get('op')!r}"}
        return {"status": "ok", **answer(content)}

    def _renewed(self, content: dict[str, Any]) -> dict[str, Any]:
        self._keeper.followed(content)
        if self._lease.renew(content["client"], auto=content["auto"]):
            with self._lock:
                self._last_run = max(self._last_run, int(content["last_run"]))
        return {"driver": msgspec.to_builtins(self._lease.driver)}

    def _advance(self, content: dict[str, Any]) -> dict[str, Any]:
        run = int(content["run"])
        self._queue.put(lambda: self._interventions.given_up(run))
        with self._lock:
            # Every client that has followed the run says so, the last of them perhaps when another one runs.
            if run not in self._advanced:
                self._advanced.add(run)
                self._generation += 1
            return {"generation": self._generation}

    def _stop_asked(self, content: dict[str, Any]) -> dict[str, Any]:
        self._keeper.followed(content)
        self.end(ASKED_FOR)
        return {}

    def _restart_asked(self, content: dict[str, Any]) -> dict[str, Any]:
        """``client``: the id of the one who asks; ``by``: who that is, in words."""
        with self._lock:
            if self._phase != "running":
                return {"status": "error", "words": f"the world is {self._phase}"}
            # Seen by the next snapshot, before the thread has begun.
            self._patience_end = time.monotonic() + self._request.settings.start_timeout
            self._phase = "starting"
            self._incarnation += 1
            answer = {"incarnation": self._incarnation}
        client, by = content["client"], content["by"]
        self._queue.put(lambda: self._restart(client, by))
        return answer

    def _join(self, content: dict[str, Any]) -> dict[str, Any]:
        client = msgspec.convert(content["client"], Client)
        if self._lease.join(client, take_over=content["take_over"]):
            self._keeper.driven(client)
            self._queue.put(lambda: self._tell("driver", driver=msgspec.to_builtins(client)))
        return {"driver": msgspec.to_builtins(self._lease.driver), "generation": self._generation}

    def _leave(self, content: dict[str, Any]) -> dict[str, Any]:
        self._lease.leave(content["client"])
        return {}

    def _snapshot(self, _content: dict[str, Any]) -> dict[str, Any]:
        request = self._request
        with self._lock:
            return {
                "phase": self._phase,
                "incarnation": self._incarnation,
                "reason": self._reason,
                "size": request.size,
                "world": msgspec.to_builtins(self._world()),
                "healable": self._healable,
                "client_file": local.client_file(request),
                "spool": request.spool,
                "last_run": self._last_run,
                "lease_left": self._lease.left,
                "hang_notice": request.settings.hang_notice,
                "driver": msgspec.to_builtins(self._lease.driver),
                "driven": self._lease.is_driven,
                "mpi": self._mpi.version if self._mpi else "",
                "notices": [*self._notices, *self._launch_notices],
            }

    def _world(self) -> World:
        ranks = [self._ranks[rank] for rank in sorted(self._ranks)]
        return World(self._request.name, self._request.id, ranks, self._generation)

    # Everything below runs on the supervisor's thread.

    def _run(self) -> None:
        self._start()
        self._keeper.start()
        while not self.ended.is_set():
            try:
                task = self._queue.get(timeout=self._pause())
            except queue.Empty:
                task = self._tick
            try:
                task()
            except Exception:  # noqa: BLE001 — the world outlives what went wrong with one task
                _log.exception("The supervisor failed at %s", task)

    def _pause(self) -> float:
        now = time.monotonic()
        return max(0.0, min(TICK, self._interventions.tick(now) - now))

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

    def _notice(self, words: str, *, launch: bool = False) -> None:
        """Tell the user, also one who is not there yet; ``launch``: until the next restart. Any thread."""
        notices = self._launch_notices if launch else self._notices
        with self._lock:
            notices.append(words)
        self._queue.put(lambda: self._tell("notice", words=words))

    def _start(self) -> None:
        self._launches = 0
        with self._lock:
            self._launch_notices.clear()
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
        self._cluster.remove_files()

    def _launch(self) -> None:
        self._launches += 1
        self._silence = ""
        self._patience_end = time.monotonic() + self._request.settings.start_timeout
        cluster = self._cluster = Cluster(self._request, self._incarnation, self._umask)

        def post(handle: Callable[[Any], None], what: Any) -> None:
            self._queue.put(lambda: handle(what) if self._is_current(cluster) else None)

        try:
            self._mpi = cluster.start(
                self._mpi,
                self._generation,
                lambda report: post(self._report, report),
                lambda code: post(self._mpiexec_ended, code),
            )
            if not self._mpi.modern:
                self._notice(NO_ULFM, launch=True)
        except DtrainError as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001 — a start that fails must say so, whatever it was
            self._fail(f"{type(error).__name__}: {error}")

    def _is_current(self, cluster: Cluster) -> bool:
        """Whether it is listened to: between the order to restart and its beginning there are old ranks."""
        return cluster is self._cluster and cluster.incarnation == self._incarnation

    def _report(self, report: Report) -> None:
        match report:
            case Ready():
                self._rank_ready(report)
            case Ended(run=run, outcome="error") if self._phase == "running":
                self._interventions.failed(run)
            case Paused():
                self._rank_paused(report)
            case Died():
                self._rank_died(report)

    def _rank_ready(self, ready: Ready) -> None:
        if not self._ranks:
            self._gpus = local.count_gpus()
        device = f"cuda:{ready.local_rank}" if ready.local_rank < self._gpus else "cpu"
        role = self._request.roles[ready.rank] if self._request.roles else ""
        rank = Rank(ready.rank, ready.node, ready.host, ready.local_rank, device, ready.pid, ready.engine, role=role)
        with self._lock:
            self._ranks[ready.rank] = rank
            complete = len(self._ranks) == self._request.size
            if complete and self._phase == "starting":
                self._phase = "running"
                self._lease.begin_again()
                self._cluster.prepare_to_connect()
        self._patience_end = time.monotonic() + self._request.settings.start_timeout

    def _rank_died(self, died: Died) -> None:
        if self._phase == "starting":
            said = died.last_words.strip() or self._cluster.said(f"rank-{died.rank}")
            if self._silence:
                self._fail(f"{self._silence}\nRank {died.rank} was here:\n{said}")
                return
            self._fail(f"{died.words} while the world started." + (f" It said:\n{said}" if said else ""))
            return
        if self._phase != "running":
            return
        self._mark_dead(died.rank, died.words, died.run, died.events)

    def _rank_paused(self, paused: Paused) -> None:
        """It is never taken for dead: who stopped it may let it go on."""
        with self._lock:
            rank = self._ranks.get(paused.rank)
            if rank is None or rank.state == "dead":
                return
            state: RankState = "stopped" if paused.stopped else "idle"
            self._ranks[paused.rank] = msgspec.structs.replace(rank, state=state)
        self._tell("paused", rank=paused.rank, state=state)

    def _mark_dead(self, number: int, words: str, run: int | None, events: list[Event]) -> None:
        with self._lock:
            rank = self._ranks[number]
            if rank.state == "dead":
                return
            self._ranks[number] = msgspec.structs.replace(rank, state="dead", words=words)
            self._generation += 1
            generation = self._generation
        self._keeper.rank_died(number, words)
        self._interventions.rank_died(number, run)
        told = msgspec.to_builtins(events)
        self._tell("died", rank=number, words=words, run=run, events=told, generation=generation)

    def _mpiexec_ended(self, code: int) -> None:
        if self._phase == "starting":
            log = self._cluster.said("mpiexec", 40)
            reason = local.explain_mpiexec(log) or f"mpiexec ended with exit code {code} while the world started."
            self._fail(reason + (f" It said:\n{log}" if log else ""))
        elif self._phase == "running":
            with self._lock:
                self._healable = False
            self._notice(describe_mpiexec_end(code), launch=True)

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
            over = self._phase != "starting" and self._lease.left < 0
        if over:
            self._end("the lease is over")

    def _check_starting(self, now: float) -> None:
        said = self._cluster.said("controller")
        if local.lost_a_port(said) and self._launches < LAUNCHES:
            self._start_again(said)
        elif self._launches < LAUNCHES and self._cluster.rest() > STILL:
            # Seen about once in a thousand starts: prterun and the rank wait for each other, and nobody does anything.
            self._start_again(f"Nothing has moved for {STILL:g} s: {describe_descendants()}.")
        elif (code := self._cluster.controller_code()) is not None:
            self._fail(f"ipyparallel's controller ended with exit code {code}. It said:\n{said}")
        elif now > self._patience_end and self._silence:
            self._fail(self._silence)
        elif now > self._patience_end:
            self._silence = self._explain_silence()
            # The watches report what they say then: where in their code they were.
            self._cluster.abort_ranks()
            self._patience_end = now + ABORT_PATIENCE

    def _check_running(self) -> None:
        if (code := self._cluster.controller_code()) is not None:
            self._end(describe_controller_end(code))
            return
        now = time.monotonic()
        for rank in list(self._ranks.values()):
            if rank.state == "dead":
                continue
            if is_running(rank.pid):
                if not self._healable and is_stopped(rank.pid) != (rank.state == "stopped"):
                    self._rank_paused(Paused(rank.rank, rank.state != "stopped"))
                continue
            # Without mpiexec no watch can report; a watch that was killed took its rank along and reports nothing.
            if not self._healable:
                self._ended_unseen(rank.rank, "mpiexec is gone")
            elif now - self._gone.setdefault(rank.pid, now) > REPORT_PATIENCE:
                self._ended_unseen(rank.rank, "its watch is gone")

    def _ended_unseen(self, rank: int, why: str) -> None:
        began = last_run(self._request.spool)
        if began is not None and rank in began.ranks:
            # Nothing comes of it where the run is over.
            self._interventions.failed(began.number)
        self._mark_dead(rank, describe_unknown_end(rank, why), None, [])

    def _explain_silence(self) -> str:
        seconds = self._request.settings.start_timeout
        missing = self._request.size - len(self._ranks)
        _log.error("These are there: %s", describe_descendants())
        said = {name: self._cluster.said(name, 6) for name in ("mpiexec", "controller", "steward")}
        logs = "\n".join(f"{name}: {text}" for name, text in said.items() if text)
        text = f"{missing} of {self._request.size} ranks did not get ready within {seconds:g} s."
        return text + (f" The logs end with:\n{logs}" if logs else " Ask for fewer ranks with -n, or for more time.")

    def _renew_watches(self) -> None:
        channel = self._cluster.connect()
        for rank in self._ranks.values():
            if rank.state != "dead":
                channel.ask_watch(rank.engine, op="lease")

    def _bound(self) -> tuple[World, RanksChannel] | None:
        """The world and the way to its ranks, while it runs."""
        return (self._world(), self._cluster.connect()) if self._phase == "running" else None

    def _was_released(self, run: int, waiting: dict[int, Waiting]) -> None:
        with self._lock:
            self._generation += 1
            generation = self._generation
        calls = {str(rank): one.call for rank, one in waiting.items()}
        self._tell("released", run=run, waiting=calls, generation=generation)

    def _restart(self, client: str, by: str) -> None:
        self._tell("restarting", client=client, by=by)
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

    def _tear_down(self) -> None:
        self._interventions.forget()
        self._cluster.end([rank.pid for rank in self._ranks.values() if rank.state != "dead"])

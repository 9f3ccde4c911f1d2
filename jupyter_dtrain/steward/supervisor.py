"""The one thread that owns a world's processes, and changes its :class:`~.state.State`.

Other threads (the control thread, which answers clients, and the readers of pipes) post to its queue.

Under failure:

* a start that fails leaves no process; its reason, from the logs, stays readable for :data:`FAILED_PATIENCE` seconds;
* a rank that dies is announced with its last events; the others live on;
* when the lease runs out, or the steward is asked to end, it leaves no process behind.
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

from jupyter_dtrain.core.errors import DtrainError, StartFailed
from jupyter_dtrain.core.events import Event, RankState
from jupyter_dtrain.core.exits import (
    NO_ULFM,
    SLOT_ENDED,
    describe_controller_end,
    describe_mpiexec_end,
    describe_unknown_end,
)
from jupyter_dtrain.core.start_failures import AGAIN, StartFailure, process_ended, rank_ended, relevant, too_few_gpus
from jupyter_dtrain.core.world import AddressedRank, AddressedWorld, renamed
from jupyter_dtrain.launch import launcher_of, worlds
from jupyter_dtrain.launch.mpi import MpiProgram, explain_mpiexec
from jupyter_dtrain.wire.agent_messages import RenewWatch
from jupyter_dtrain.wire.messages import to_content
from jupyter_dtrain.wire.reports import Died, Ended, Fell, Formed, Paused, Reached, Ready, Report, WatchReady
from jupyter_dtrain.wire.requests import WorldRequest
from jupyter_dtrain.wire.steward_messages import (
    Broadcast,
    Noticed,
    OpenRun,
    RankDied,
    RankPaused,
    RanksReleased,
    RanksStuck,
    WorldEnded,
    WorldRestarting,
)

from .cluster import Cluster
from .healing import HealOwner
from .keeper import Keeper
from .lease import Lease
from .nodes import Nodes
from .open_runs import OpenRuns
from .placement import Seats
from .processes import become_subreaper, describe_descendants, is_running
from .progress import REPORT_PATIENCE, STILL, StartProgress
from .rank_control import RankControl
from .requests import Requests
from .state import State, number_of, rank_of
from .watches import WatchEnd

if TYPE_CHECKING:
    from jupyter_dtrain.core.stacks import Wait
    from jupyter_dtrain.launch.prepared import PreparedPrograms
    from jupyter_dtrain.wire.channels import RanksChannel

LAUNCHES = 3
"""How often a start tries, where mere chance was in its way."""
FAILED_PATIENCE = 10.0
"""Seconds for which clients can ask why a start failed."""
TICK = 0.5
ABORT_PATIENCE = 3.0
"""Seconds in which ranks that never got ready may say where they were."""

_log = logging.getLogger(__name__)


class Supervisor:
    """Starts, watches and ends one world."""

    def __init__(self, request: WorldRequest, umask: int, programs: PreparedPrograms | None = None) -> None:
        """``umask``: the one that ranks get; ``programs``: those that have waited for this world."""
        self.ended = threading.Event()
        """Set when nothing of the world is left."""
        self._request = request
        self._umask = umask
        self._programs = programs
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lease = Lease(request.settings.keep_alive)
        self._state = State(request, self._lease)
        self._gone: dict[int, float] = {}
        """By process id: since when a rank is known to be gone without a report."""
        self._gpus: dict[str, int] = {}
        """The GPUs of each host, by its watch."""
        self._elsewhere: dict[str, list[str]] = {}
        """The hosts on which the world's folder cannot be entered, by the folder in which their ranks work."""
        launcher = self._launcher = launcher_of(request)
        self._keeper = Keeper(request, self._notice, self._state.number_run)
        self._cluster = Cluster(request, launcher, 0, umask, spared=self._keeper.senders)
        self._mpi: MpiProgram | None = None
        self._renew_at, self._launches = 0.0, 0
        self._silence: StartFailure | None = None
        """Why a start has failed that takes too long, while its ranks say where they are."""
        self._waiting: list[dict[str, Any]] = []
        self._announce: Callable[[dict[str, Any]], None] | None = None
        self._runs = OpenRuns(request.spool)
        seats = Seats(launcher, lambda: self._cluster.watches())  # noqa: PLW0108 — each launch has its own
        self._actions = RankControl(
            request,
            self._runs_to_end,
            self._bound,
            self._queue.put,
            self._broadcast,
            self._was_released,
            self._cannot_release,
            lambda: self._lease.is_driven,
            self._lease.check_driver,
            HealOwner(
                self._state, self._open_runs, self._rank_died, self._ranks_replaced, self._notice, self._gpus, seats
            ),
            self._keeper.happened,
        )
        self._thread = threading.Thread(target=self._run, name="dtrain-supervisor", daemon=True)
        self._nodes: Nodes | None = None
        if (lent := launcher.allocation) is not None:
            self._nodes = Nodes(lent, self._state, self._queue.put, self._start, self._fail, self._end, self._notice)
        self._requests = Requests(
            request, self._state, self._lease, self._keeper, self._runs, self, self._actions.answers
        )

    # Calls of other threads.

    def start(self) -> None:
        """Begin to start the world; returns at once."""
        become_subreaper()
        self._thread.start()

    def attach(self, announce: Callable[[dict[str, Any]], None]) -> None:
        """``announce`` publishes broadcasts from now on."""
        self._queue.put(lambda: self._attach(announce))

    def end(self, reason: str) -> None:
        """End the world; ``ended`` is set when that is done."""
        self._queue.put(lambda: self._end(reason))

    def answer(self, content: dict[str, Any]) -> dict[str, Any]:
        """The content of the reply to a client's request. Never waits for the world."""
        return self._requests.answer(content)

    def broadcast_soon(self, event: Broadcast) -> None:
        """Broadcast ``event`` to all clients, from the supervisor's thread. Returns at once."""
        self._queue.put(lambda: self._broadcast(event))

    def give_up(self, run: int) -> None:
        """Note that a client has ended ``run`` without the ranks that still work on it."""
        self._queue.put(lambda: self._actions.given_up(run))

    def restart(self, client: str, by: str) -> None:
        """Give the world fresh ranks, after :meth:`.State.begin_restart`; see :class:`.Restart` for the arguments."""
        self._queue.put(lambda: self._restart(client, by))

    # Everything below runs on the supervisor's thread.

    def _run(self) -> None:
        (self._start if self._nodes is None else self._nodes.start)()
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
        return max(0.0, min(TICK, self._actions.tick(now) - now))

    def _attach(self, announce: Callable[[dict[str, Any]], None]) -> None:
        self._announce = announce
        waiting, self._waiting = self._waiting, []
        for content in waiting:
            announce(content)

    def _broadcast(self, event: Broadcast) -> None:
        content = to_content(msgspec.structs.replace(event, incarnation=self._state.incarnation))
        if self._announce is None:
            self._waiting.append(content)
        else:
            self._announce(content)

    def _notice(self, words: str, *, launch: bool = False) -> None:
        """Show the user ``words``, also in clients that join later; ``launch``: until the next restart. Any thread."""
        self._state.add_notice(words, launch=launch)
        self.broadcast_soon(Noticed(words=words))

    def _start(self) -> None:
        if self._state.phase != "starting":
            return
        self._launches = 0
        self._state.forget_launch_notices()
        self._launch()

    def _start_again(self, why: str) -> None:
        _log.warning("The world is started again. %s", why)
        self._clear()
        self._launch()

    def _clear(self) -> None:
        """End all processes and remove what they have written, but for their logs."""
        self._tear_down()
        self._state.forget_ranks()
        self._cluster.remove_files()

    def _launch(self) -> None:
        self._launches += 1
        self._silence = None
        self._gpus.clear()
        self._elsewhere.clear()
        progress = self._state.progress = StartProgress(self._request.size, self._request.settings)
        programs, self._programs = self._programs, None
        cluster = self._cluster = Cluster(
            self._request, self._launcher, self._state.incarnation, self._umask, programs, self._keeper.senders
        )

        def post(handle: Callable[[Any], None], what: Any) -> None:
            self._queue.put(lambda: handle(what) if self._is_current(cluster) else None)

        try:
            self._mpi = cluster.start(
                self._mpi,
                self._state.generation,
                progress,
                lambda report: post(self._report, report),
                lambda code: post(self._mpiexec_ended, code),
                lambda end: post(self._watch_ended, end),
                lambda error: post(self._ranks_failed, error),
            )
            self._state.mpi, self._state.has_ulfm = self._mpi.version, self._mpi.modern
            if not self._mpi.modern:
                self._notice(NO_ULFM, launch=True)
        except StartFailed as error:
            self._ranks_failed(error)
        except Exception as error:  # noqa: BLE001 — a start that fails must say so, whatever it was
            words = str(error) if isinstance(error, DtrainError) else f"{type(error).__name__}: {error}"
            self._fail(StartFailure(words, AGAIN))

    def _is_current(self, cluster: Cluster) -> bool:
        """Whether reports of ``cluster`` count: the ranks of before a restart report until they have ended."""
        return cluster is self._cluster and cluster.incarnation == self._state.incarnation

    def _report(self, report: Report) -> None:
        match report:
            case WatchReady():
                self._watch_begun(report)
            case Reached() if self._state.phase == "running":
                self._actions.healing.reached(report)
            case Reached(rank=rank, step=step) if rank >= 0:
                self._state.progress.reach(rank, step)
            case Formed():
                self._actions.healing.formed(report)
            case Ready():
                self._rank_ready(report)
            case Ended() if self._state.phase == "running":
                # After an interrupt too: the client that steps up the interrupt may be gone by then.
                self._actions.failed(report.run, at_once=report.at_once)
            case Paused():
                self._rank_paused(report)
            case Fell() if self._state.phase == "running":
                self._rank_fell(report)
            case Died():
                self._rank_died(report)

    def _watch_begun(self, watch: WatchReady) -> None:
        self._gpus[watch.identity] = watch.gpus
        if watch.instead:
            self._elsewhere.setdefault(watch.instead, []).append(watch.host)

    def _rank_ready(self, ready: Ready) -> None:
        gpus, each = self._gpus.get(ready.watch, 0), self._request.options.gpus_per_rank or 0
        if self._state.phase == "starting" and (ready.local_rank + 1) * each > gpus:
            self._fail(too_few_gpus(ready.host, gpus, ready.local_rank + 1, each))
            return
        rank = rank_of(ready, gpus, self._request.roles, each)
        if self._state.phase == "running":
            self._actions.healing.ready(rank)
            return
        self._state.add_rank(rank)
        if self._state.is_complete and self._state.phase == "starting":
            # First: a client may join the moment that the world runs.
            self._lease.begin_again()
            self._state.enter("running")
            for folder, hosts in self._elsewhere.items():
                self._notice(
                    f"The notebook's folder {self._request.cwd} is missing on {', '.join(sorted(hosts))}, so the ranks "
                    f"there work in {folder}. %distributed upload . copies it, and %distributed restart moves them.",
                    launch=True,
                )
            self._cluster.prepare_to_connect()
        self._state.progress.reach(ready.rank, "ready")

    def _rank_died(self, died: Died) -> None:
        if self._state.phase == "starting":
            said = died.last_words.strip() or self._cluster.said(f"rank-{died.rank}")
            if self._silence is not None:
                log = "\n".join(filter(None, (f"Rank {died.rank} was here:\n{relevant(said)}", self._silence.log)))
                self._fail(msgspec.structs.replace(self._silence, log=log))
            else:
                self._fail(rank_ended(died.words, said))
            return
        if self._state.phase != "running" or (rank := self._actions.healing.number_of(died)) is None:
            return
        self._mark_dead(rank, renamed(died.words, died.rank, rank), died.run, died.events, asked=died.asked)

    def _rank_paused(self, paused: Paused) -> None:
        """A stopped rank is never taken for dead: it may go on."""
        self._change(paused, "stopped" if paused.stopped else "idle")

    def _rank_fell(self, fell: Fell) -> None:
        """Report that the rank has ended, and free the ranks that wait for it.

        The rank counts as dead only when clients can read its last output, which is still copied from its host.
        """
        rank = self._change(fell, "unreachable", f"{fell.words}; its last output is still on its way")
        if rank is not None:
            self._actions.rank_died(rank, fell.run)

    def _change(self, report: Paused | Fell, state: RankState, words: str = "") -> int | None:
        rank = number_of(self._state.ranks, report)
        if rank is None or not self._state.change_rank(rank, state=state, words=words):
            return None
        self._broadcast(RankPaused(rank=rank, state=state, words=words))
        return rank

    def _mark_dead(self, number: int, words: str, run: int | None, events: list[Event], *, asked: bool = False) -> None:
        if not self._state.mark_dead(number, words, events, asked=asked):
            return
        # The state changes first and the broadcast comes last: a client that asks because of it reads the new state.
        generation = self._state.next_generation()
        self._keeper.rank_died(number, words)
        self._actions.rank_died(number, run)
        self._broadcast(RankDied(rank=number, words=words, run=run, events=events, generation=generation))

    def _ranks_replaced(self, ranks: list[int]) -> None:
        self._keeper.ranks_replaced(ranks, range(self._state.request.size, self._request.size))
        if self._request.size != (request := self._state.request).size:
            self._request = request
            self._launcher.resize(request)
            worlds.relist(request.folder, request.size)

    def _ranks_failed(self, error: StartFailed) -> None:
        if self._state.phase == "starting":
            self._fail(StartFailure(error.reason, error.fix, error.log))

    def _mpiexec_ended(self, code: int, *, again: bool = False) -> None:
        """Act on the end of ``mpiexec``. ``again``: the scheduler was asked first, and left the world its nodes."""
        if self._state.phase == "starting":
            self._fail(explain_mpiexec(code, self._cluster.said("mpiexec", 40)))
        elif self._state.phase == "running" and self._nodes is not None and not again:
            self._nodes.ask(lambda: self._mpiexec_ended(code, again=True))
        elif self._state.phase == "running":
            self._state.healable = False
            ranks = self._state.ranks
            # MPI_Abort may end ranks and mpiexec at once; a report of theirs may still be on its way. An mpiexec that
            # was asked to end ends the slots first, and the ranks follow; a killed one leaves both.
            running = [rank.rank for rank in ranks if rank.state != "dead" and self._may_run(rank)]
            living = running if self._cluster.has_slots() else []
            ends_ranks = running != living or any(SLOT_ENDED in rank.words for rank in ranks)
            self._notice(describe_mpiexec_end(code, living, len(ranks), ends_ranks=ends_ranks), launch=True)

    def _may_run(self, rank: AddressedRank) -> bool:
        """Whether the rank's process may go on without ``mpiexec``; on other hosts MPI's daemon ends it."""
        return not self._launcher.remote and is_running(rank.pid)

    def _watch_ended(self, end: WatchEnd, *, again: bool = False) -> None:
        """Handle the end of a watch: one that could not begin ends by itself; any other was killed, with its ranks."""
        if self._nodes is not None and not again and self._state.phase in ("starting", "running"):
            self._nodes.ask(lambda: self._watch_ended(end, again=True))
            return
        self._gpus.pop(end.identity, None)
        log = self._cluster.said(f"watch-{end.host}" if end.host else "watch", 40)
        if self._state.phase == "starting":
            reason, fix = self._launcher.explain(end.host, end.code, log)
            where = f"The parent process of the ranks on {end.host}" if end.host else "The parent process of the ranks"
            failure = process_ended(where, end.code, log)
            self._fail(StartFailure(reason, fix, failure.log) if reason else failure)
        elif self._state.phase == "running":
            # The launcher has words for its connection; it says nothing of a watch that was killed.
            reason = self._launcher.explain(end.host, end.code, log)[0] if log.strip() else ""
            if reason:
                self._host_lost(end, reason)
                return
            for rank in self._state.ranks:
                if rank.state != "dead" and rank.watch == end.identity:
                    self._ended_unseen(rank.rank, "its parent process is gone")

    def _host_lost(self, end: WatchEnd, reason: str) -> None:
        """MPI ends a world whose daemon is gone, with or without fault tolerance (PRRTE of Open MPI 5.0.11)."""
        again = f" To go on without it: {line}" if (line := self._launcher.start_without(end.host)) else ""
        self._end(f"the host {end.host} was lost ({reason.rstrip('.')}). Its last second of output may be gone.{again}")

    def _tick(self) -> None:
        now = time.monotonic()
        if self._state.phase == "starting":
            self._check_starting(now)
        elif self._state.phase == "running":
            self._check_running()
            self._cluster.collect_orphans()
            if now >= self._renew_at:
                self._renew_watches()
                self._renew_at = now + min(self._request.settings.keep_alive / 4, 30.0)
        elif self._state.phase == "failed" and now > self._state.deadline:
            self._end(self._state.reason)
        # A start has a deadline of its own, and no client renews before it is over.
        if self._state.phase != "starting" and self._lease.left < 0:
            self._end(f"no client has controlled it for {self._request.settings.keep_alive:g} s")

    def _check_starting(self, now: float) -> None:
        if self._state.progress.waiting:
            return  # a place in a queue has no deadline; a person can give it up
        if self._launches < LAUNCHES and self._state.progress.rests:
            # Seen about once in a thousand starts: prterun and the rank wait for each other, and neither moves.
            self._start_again(f"Nothing has moved for {STILL:g} s: {describe_descendants()}.")
        elif (code := self._cluster.controller_code()) is not None:
            self._fail(process_ended("ipyparallel's controller", code, self._cluster.said("controller", 40)))
        elif not self._launcher.remote and (lost := self._state.progress.lost(self._cluster.ranks_here)) is not None:
            words = describe_unknown_end(lost, "its parent process is gone").capitalize()
            self._fail(StartFailure(f"{words}, while the world was starting.", AGAIN))
        elif self._silence is not None and now > self._state.deadline:
            self._fail(self._silence)
        elif self._silence is None and (why := self._state.progress.explain_end()):
            self._silence = self._cluster.explain_silence(why)
            # The watches report what they say then: where in their code they were.
            self._cluster.abort_ranks()
            self._state.deadline = now + ABORT_PATIENCE

    def _check_running(self) -> None:
        if (code := self._cluster.controller_code()) is not None:
            self._end(describe_controller_end(code))
            return
        now = time.monotonic()
        for rank in () if self._launcher.remote else self._state.ranks:
            # Its watch reports the end; if not, whatever the reason, nobody may wait for this rank.
            gone = rank.state != "dead" and not is_running(rank.pid)
            if gone and now - self._gone.setdefault(rank.pid, now) > REPORT_PATIENCE:
                self._ended_unseen(rank.rank, "its parent process has not reported it")
        # A rank may die after a cell was sent to it and before it begins: its watch then knows of no run.
        for run in self._runs.missing(self._state.dead) if self._state.dead else ():
            self._actions.failed(run)

    def _ended_unseen(self, rank: int, why: str) -> None:
        for open_run in self._open_runs():
            if rank in open_run.ranks:
                self._actions.failed(open_run.run)
        self._mark_dead(rank, describe_unknown_end(rank, why), None, [])

    def _renew_watches(self) -> None:
        channel = self._cluster.connect()
        # Also where all ranks have died: a watch whose lease runs out would look like a lost host.
        for watch in self._gpus:
            channel.ask(watch, RenewWatch())

    def _bound(self) -> tuple[AddressedWorld, RanksChannel] | None:
        """The world and the way to its ranks, while it runs."""
        return (self._state.world, self._cluster.connect()) if self._state.phase == "running" else None

    def _open_runs(self) -> list[OpenRun]:
        """The runs that go on. Any thread may call it."""
        return self._runs.look(self._state.dead)

    def _runs_to_end(self) -> list[OpenRun]:
        """The runs that an interrupt ends; if none goes on, the newest: its driver ends the cells queued behind it."""
        newest = self._runs.newest()
        return self._open_runs() or ([] if newest is None else [newest])

    def _was_released(self, run: int, waiting: dict[int, Wait]) -> None:
        generation = self._state.next_generation()
        calls = {rank: one.call for rank, one in waiting.items()}
        self._broadcast(RanksReleased(run=run, waiting=calls, generation=generation))

    def _cannot_release(self, run: int, waiting: dict[int, Wait]) -> None:
        self._broadcast(RanksStuck(run=run, waiting={rank: one.call for rank, one in waiting.items()}))

    def _restart(self, client: str, by: str) -> None:
        # Before the ranks end: no client may take their ends for deaths.
        self._broadcast(WorldRestarting(client=client, by=by))
        self._clear()
        self._keeper.ranks_ended("its world was restarted")
        self._runs.forget()
        self._state.next_generation()
        self._state.healable = True
        self._start()

    def _fail(self, failure: StartFailure) -> None:
        self._tear_down()
        if self._nodes is not None:
            self._nodes.give_back()
        self._state.deadline = time.monotonic() + FAILED_PATIENCE
        self._state.failure = failure
        # Last: clients learn of the failure from the phase, and by then no process of the start is left.
        self._state.enter("failed", f"{failure.reason} {failure.fix}".rstrip())

    def _end(self, reason: str) -> None:
        # Only the first reason counts: a stop, the end of the lease and a lost host may all wait in the queue. And the
        # phase changes before anything ends, since in this phase the ends of processes are no failures.
        if not self._state.enter("ending", reason):
            return
        try:
            with contextlib.suppress(Exception):
                self._broadcast(WorldEnded(words=reason))
            self._tear_down()
            self._keeper.close(reason)
            if self._nodes is not None:
                self._nodes.give_back()
        finally:
            # Whatever went wrong: without a steward the parent-death signals end what is left.
            for folder in self._request.passing_folders:
                shutil.rmtree(folder, ignore_errors=True)
            self.ended.set()

    def _tear_down(self) -> None:
        self._actions.forget()
        self._cluster.end()

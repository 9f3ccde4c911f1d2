"""Session: one client's handle on a world.

``Session.start(n=4)`` starts a world, ``session.run(code)`` runs code on its ranks, ``push`` and ``pull`` carry
values, ``interrupt``, ``restart`` and ``stop`` do what they say. The magics call nothing else.

Under failure: every wait has a deadline. A world whose steward is gone makes running cells end as ``lost`` and every
further call raise :class:`~jupyter_dtrain.failures.WorldLost`. A kernel that shuts down for good stops the worlds that
its sessions started; one that restarts or crashes leaves them to their lease.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from . import worlds
from .events import Event
from .exchange import Exchange, describe_stacks, still_work
from .failures import (
    BadRequest,
    DistributedError,
    DistributedInterrupt,
    NoWorld,
    RanksBusy,
    RanksDead,
    StartFailed,
    WorldLost,
)
from .fold import Entry, Fold
from .frameworks import Watch
from .lifecycle import open_sessions
from .news import News
from .run import Run
from .settings import Settings
from .startup import Startup
from .syntax import check_syntax
from .values import pickle_values
from .world import TorchBackend, World, count_ranks, parse_ranks

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from .channels import RanksChannel, StewardChannel
    from .launch.request import WorldRequest
    from .view import CommRelay, RunView

LOOK_PERIOD = 1.0
"""Seconds between two looks whether the steward lives; a request to it finds out at once."""

Ranks = str | int | Iterable[int] | None


class Session:
    """One client's handle on a world. Made by :meth:`start`; thread-safe."""

    def __init__(self, listing: worlds.Listing, steward: StewardChannel, request: WorldRequest) -> None:
        self.request = request
        """What the world was asked to be."""
        settings = request.settings
        self._listing = listing
        self._steward = steward
        self._settings = settings
        self._world: World | None = None
        self._channel: RanksChannel | None = None
        self._incarnation = 0
        self._next_run = 1
        self._closed = False
        self._lost = ""
        self._lock = threading.RLock()
        self._news = News()
        self._fold = Fold(settings.interrupt_timeout, self._advance, self._news.ended)
        self._exchange = Exchange(self._bound, self._fold.busy, settings)
        self._relay: CommRelay | None = None
        self._listener = threading.Thread(target=self._listen, name="dtrain-world", daemon=True)
        self.last_run: Run | None = None
        """The run that was submitted last."""

    # Starting.

    @classmethod
    def start(
        cls,
        n: int | None = None,
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        torch_backend: TorchBackend = "auto",
        mpiexec: str | None = None,
        tensorboard: str | os.PathLike[str] | None = None,
        progress: Callable[[str], None] | None = None,
        settings: Settings | None = None,
    ) -> Self:
        """Start a world of ``n`` ranks on this machine.

        ``n``: default one per visible GPU, else 2. ``name``: default ``world``, ``world-2``, …. ``env``: variables for
        the ranks. ``torch_backend``: what ``init_process_group()`` takes when the cell names none. ``mpiexec``: default
        this environment's. ``tensorboard``: a folder that gets metrics as TensorBoard's event files, one folder per run
        and rank. ``progress`` is called with a line of text whenever there is news. ``settings``: default
        :meth:`Settings.from_environment`.

        Raises :class:`BadRequest` for arguments that cannot be, and :class:`StartFailed` with the reason and what the
        logs say; either leaves nothing behind.
        """
        settings = settings or Settings.from_environment()
        with worlds.one_at_a_time():
            request = worlds.make_request(
                n,
                name=name,
                env=env or {},
                torch_backend=torch_backend,
                mpiexec=mpiexec,
                settings=settings,
                tensorboard=None if tensorboard is None else os.fspath(tensorboard),
            )
            try:
                listing = worlds.launch_steward(request, settings)
            except BaseException:
                worlds.remove_folders(request)
                raise
        session = None
        try:
            from .channels import StewardChannel

            steward = StewardChannel(
                listing.connection_file, settings.request_timeout, lambda: worlds.is_alive(listing)
            )
            session = cls(listing, steward, request)
            session._await_ranks(0, progress or (lambda _: None))
            session._listener.start()
        except BaseException:
            if session is not None:
                session._abandon_start()
            else:
                with contextlib.suppress(OSError):
                    worlds.end_steward(os.getpgid(listing.steward))
                worlds.remove_folders(request)
            with contextlib.suppress(OSError):
                Path(request.spool).rmdir()
            raise
        open_sessions.add(session)
        if words := worlds.explain_spool(request):
            session._news.hear(words)
        session._news.show()
        return session

    def _await_ranks(self, incarnation: int, progress: Callable[[str], None]) -> None:
        """Wait until the world's ranks answer, then talk to them."""
        startup = Startup(self._listing, self._steward, self.request, progress)
        state = startup.wait(incarnation)
        self._connect(state)
        startup.tell_end(state["size"])

    def _connect(self, state: dict[str, Any]) -> None:
        from .channels import RanksChannel

        world = msgspec.convert(state["world"], World)
        channel = RanksChannel(state["client_file"], self._fold.hear)
        living = [rank for rank in world.ranks if rank.state != "dead"]
        silent = channel.hello([rank.engine for rank in living], time.monotonic() + self._settings.request_timeout)
        if silent:
            channel.close(linger=0)
            numbers = [rank.rank for rank in living if rank.engine in silent]
            raise StartFailed(f"World {self.name!r}: {count_ranks(numbers)} did not answer.")
        with self._lock:
            old, self._channel, self._world = self._channel, channel, world
            self._incarnation = state["incarnation"]
            self._next_run = max(self._next_run, state["last_run"] + 1)
        self._fold.bind(world, channel, state["spool"])
        for words in state["notices"]:
            self._news.hear(words)
        if old is not None:
            old.close(linger=0)

    def _abandon_start(self) -> None:
        with contextlib.suppress(Exception):
            self._steward.ask("stop", timeout=2.0)
        self._await_steward_end()
        self._close()
        worlds.remove_runtime(self.request)

    # What it is.

    @property
    def name(self) -> str:
        """The world's name."""
        return self._listing.name

    @property
    def closed(self) -> bool:
        """Whether this session was stopped, or has lost its world."""
        return self._closed or bool(self._lost)

    @property
    def world(self) -> World:
        """The world as it is now: its ranks with node, local rank, device, pid and state.

        Raises :class:`WorldLost` when there is none any more.
        """
        with self._lock:
            self._check_open()
            assert self._world is not None
            world = self._world
        busy = self._fold.busy()
        ranks = [
            msgspec.structs.replace(rank, state="running") if rank.state == "idle" and rank.rank in busy else rank
            for rank in world.ranks
        ]
        return msgspec.structs.replace(world, ranks=ranks)

    @property
    def settings(self) -> Settings:
        """What this session was started with."""
        return self._settings

    def __repr__(self) -> str:
        if self.closed:
            return f"<Session of world {self.name!r}: stopped>"
        return f"<Session of world {self.name!r}: {self._listing.size} ranks>"

    # Running.

    def run(
        self,
        code: str,
        ranks: Ranks = None,
        *,
        wait: bool = True,
        timeout: float | None = None,
        inputs: Mapping[str, Any] | None = None,
        metrics: bool = True,
        grad_norm: bool = False,
        view: RunView | Literal["cell"] | None = "cell",
    ) -> Run:
        """Run ``code``, as a cell, on ``ranks`` (default: all).

        With ``wait`` it returns when the run has ended, and raises :class:`DistributedError` unless it ended well, or
        :class:`DistributedInterrupt`; an interrupt of the waiting thread interrupts the ranks. Without, it returns at
        once; further runs queue behind it in order. ``timeout``: seconds after which the cell is interrupted.
        ``inputs``: values that the ranks get first. ``metrics``: whether losses are taken from the frameworks' own
        calls; ``grad_norm``: whether the norm of the gradients is, too. ``view``: where output goes; ``"cell"`` is the
        current cell's output, None is nowhere but the :class:`Run`.

        Raises, without having sent anything: :class:`BadRequest` for ranks that are not there, :class:`BadSyntax`,
        :class:`TransferFailed` for ``inputs`` that cannot be pickled, :class:`RanksDead`, :class:`RanksBusy` for ranks
        that an interrupted cell left behind.
        """
        if not self.closed and not worlds.is_alive(self._listing):
            self._lose("its steward has ended")  # the listening thread is about to find out
        chosen = self._choose(ranks)
        self._news.show()
        check_syntax(code)
        if timeout is not None and not timeout > 0:
            raise BadRequest(f"The timeout must be above 0 seconds, not {timeout!r}.")
        pickled = pickle_values(inputs or {})
        self._check_alive(chosen)
        self._check_not_left_behind(chosen)
        with self._lock:
            number, self._next_run = self._next_run, self._next_run + 1
            size = self._listing.size
            run = Run(number, code, chosen, size, self._exchange.read_events, self._listing.id)
            self.last_run = run
        if view == "cell":
            from .view import Actions, CommRelay, painter_for_cell, view_of_cell

            self._relay = self._relay or CommRelay(self._send_comm, self._fold.busy)
            actions = Actions(
                interrupt=self.interrupt,
                stacks=lambda: describe_stacks(self.stacks(chosen)),
                output=run.text,
                over=lambda: run.done,
            )
            view = view_of_cell(
                painter_for_cell(),
                run,
                actions,
                self._relay,
                shown_bytes=self._settings.shown_bytes,
                paint_errors=not wait,
            )
        try:
            self._fold.submit(Entry(run, view, pickled, timeout, Watch(metrics, grad_norm)))
            if wait:
                self._wait(run)
        except DistributedInterrupt:
            raise
        except KeyboardInterrupt:
            # It fell before or beside the wait, and would leave the ranks at work on what nobody waits for.
            self._fold.interrupt()
            raise
        return run

    def _wait(self, run: Run) -> None:
        pressed = 0
        while True:
            try:
                if run.wait(1.0):
                    break
            except KeyboardInterrupt:
                pressed += 1
                self._fold.interrupt(give_up_now=pressed > 1)
        if run.outcome == "interrupted":
            raise DistributedInterrupt(run)
        if run.outcome != "ok":
            raise DistributedError(run)

    def interrupt(self) -> None:
        """Interrupt what runs, on every rank; variables stay. Returns at once; the cells end within the deadline."""
        self._check_open()
        self._fold.interrupt()

    def stacks(self, ranks: Ranks = None, timeout: float = 2.0) -> dict[int, list[dict[str, Any]] | None]:
        """Where every rank is now: its main thread's frames from the cell on; None for one that did not answer."""
        chosen = self._choose(ranks)
        answers = self._exchange.ask_agents(chosen, timeout, op="stacks")
        return {rank: None if answer is None else answer["threads"] for rank, answer in answers.items()}

    # Values.

    def push(self, values: Mapping[str, Any], ranks: Ranks = None) -> None:
        """Bind ``values`` by name on ``ranks`` (default: all): on all of them or, when one cannot be pickled, on none.

        Raises :class:`TransferFailed`, :class:`RanksBusy` and :class:`RanksDead`.
        """
        chosen = self._choose(ranks)
        self._check_alive(chosen)
        self._exchange.push(values, chosen)

    def pull(self, name: str, ranks: Ranks = None) -> dict[int, Any]:
        """The value of ``name`` on ``ranks`` (default: all), by rank.

        Raises :class:`TransferFailed` naming the ranks where it is missing or cannot be pickled, :class:`RanksBusy` and
        :class:`RanksDead`.
        """
        return self.pull_many([name], ranks)[name]

    def pull_many(self, names: list[str], ranks: Ranks = None) -> dict[str, dict[int, Any]]:
        """Several names at once: ``{name: {rank: value}}``; all or none. Raises as :meth:`pull`."""
        chosen = self._choose(ranks)
        self._check_alive(chosen)
        return self._exchange.pull(names, chosen)

    def __getitem__(self, name: str) -> dict[int, Any]:
        """``session["x"]``: the value of ``x`` on every rank."""
        return self.pull(name)

    def defined_on(self, name: str, timeout: float = 1.0) -> list[int]:
        """The ranks on which ``name`` is defined, among those that are idle; empty when they do not answer in time."""
        return self._exchange.defined_on(name, timeout)

    # Ending.

    def restart(self, progress: Callable[[str], None] | None = None) -> None:
        """End all ranks and start the same world with fresh ones; their variables are gone.

        Raises :class:`StartFailed` when it does not come up again; then the world has ended.
        """
        self._check_open()
        # Before the ranks, which are told to end, say so themselves.
        self._fold.world_lost("its world was restarted")
        answer = self._steward.ask("restart")
        if answer["status"] != "ok":
            raise BadRequest(f"World {self.name!r} cannot be restarted: {answer['words']}.")
        try:
            self._await_ranks(answer["incarnation"], progress or (lambda _: None))
        except BaseException:
            # Also when it was interrupted: between two sets of ranks there is nothing to go back to.
            self._lose("its restart failed")
            self._abandon_start()
            raise

    def stop(self) -> None:
        """End the world; returns when nothing of it is left. Raises :class:`NoWorld` when it was stopped before."""
        if self._closed:
            raise NoWorld(f"World {self.name!r} was stopped already.")
        self._fold.world_lost("its world was stopped")
        if worlds.is_alive(self._listing):
            with contextlib.suppress(WorldLost):
                self._steward.ask("stop", **self._news.to_tell())
        if not self._await_steward_end():
            raise WorldLost(
                f"World {self.name!r} was told to stop, but its steward (pid {self._listing.steward}) is still there."
            )
        self._close()

    def stop_soon(self) -> None:
        """Tell the world to end, without waiting: for a kernel that is shutting down."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(Exception):
                self._steward.ask("stop", timeout=1.0, **self._news.to_tell(self._fold.busy().values()))
            self._fold.world_lost("its kernel is shutting down")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._closed:
            self.stop()

    def _await_steward_end(self) -> bool:
        return worlds.await_end(self._listing, 2 * self._settings.stop_timeout + 10.0)

    def _close(self) -> None:
        self._closed = True
        if self._listener.is_alive() and threading.current_thread() is not self._listener:
            self._listener.join(timeout=2)
        self._fold.close()
        if self._channel is not None:
            self._channel.close(linger=0)
        self._steward.close()
        open_sessions.remove(self)

    # Inner.

    def _listen(self) -> None:
        """Hear what the steward broadcasts, and renew the lease; a thread of its own."""
        renew_at = look_at = 0.0
        while not self.closed:
            with contextlib.suppress(Exception):
                event = self._steward.listen(0.25)
                if event is not None:
                    self._heard(event)
                    continue
            now = time.monotonic()
            if now >= look_at:
                look_at = now + LOOK_PERIOD
                if not worlds.is_alive(self._listing) and not self._closed:
                    self._lose("its steward has ended")
                    return
            if now >= renew_at or self._news.waiting:
                renew_at = now + min(self._settings.lease / 4, 30.0)
                with contextlib.suppress(WorldLost):
                    news = self._news.to_tell()
                    self._steward.ask("renew", last_run=self._next_run - 1, **news)
                    self._news.was_told(news)

    def _heard(self, event: dict[str, Any]) -> None:
        match event["kind"]:
            case "died" if event["incarnation"] == self._incarnation:
                rank, words = int(event["rank"]), str(event["words"])
                with self._lock:
                    assert self._world is not None
                    ranks = list(self._world.ranks)
                    ranks[rank] = msgspec.structs.replace(ranks[rank], state="dead", words=words)
                    self._world = msgspec.structs.replace(self._world, ranks=ranks)
                self._fold.rank_died(rank, words, msgspec.convert(event["events"], list[Event]), event["generation"])
            case "notice":
                self._news.hear(str(event["words"]))
            case "ended" if not self._closed:
                self._lose(str(event["words"]))

    def _lose(self, words: str) -> None:
        self._lost = self._lost or words
        self._fold.world_lost(words)

    def _send_comm(self, rank: int, content: dict[str, Any]) -> Any:
        world, channel = self._bound()
        return channel.values(world.ranks[rank].engine, "comm", content)

    def _advance(self) -> int:
        if self._lost:
            raise WorldLost("There are no generations any more.")
        return int(self._steward.ask("advance")["generation"])

    def _bound(self) -> tuple[World, RanksChannel]:
        with self._lock:
            self._check_open()
            assert self._world is not None
            assert self._channel is not None
            return self._world, self._channel

    def _check_open(self) -> None:
        if self._closed:
            raise NoWorld(f"World {self.name!r} was stopped: start one with %distributed start.")
        if self._lost:
            raise WorldLost(f"World {self.name!r} is gone ({self._lost}): start one with %distributed start.")

    def _choose(self, ranks: Ranks) -> list[int]:
        self._check_open()
        return parse_ranks(ranks, self._listing.size)

    def _check_alive(self, ranks: list[int]) -> None:
        world, _ = self._bound()
        dead = [rank for rank in world.dead if rank.rank in ranks]
        if dead:
            living = [rank.rank for rank in world.ranks if rank.state != "dead"]
            words = "; ".join(rank.words for rank in dead)
            go_on = f", or go on without with -r {','.join(map(str, living))}" if living else ""
            raise RanksDead(f"{words[0].upper()}{words[1:]}. Make the world whole with %distributed restart{go_on}.")

    def _check_not_left_behind(self, ranks: list[int]) -> None:
        left = {rank: run for rank, run in self._fold.left_behind().items() if rank in ranks}
        if left:
            raise RanksBusy(
                f"{still_work(left).capitalize()}, which was interrupted: wait, or end it with %distributed restart."
            )

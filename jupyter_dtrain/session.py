"""Session: one client's handle on a world.

``Session.start(n=4)`` starts a world, ``Session.attach()`` joins one that is there, ``session.run(code)`` runs code on
its ranks, ``push`` and ``pull`` carry values, ``interrupt``, ``restart`` and ``stop`` do what they say. The magics call
nothing else.

Under failure: every wait has a deadline. A world whose steward is gone makes running cells end as ``lost`` and every
further call raise :class:`~jupyter_dtrain.core.errors.WorldLost`. A kernel that shuts down for good stops the worlds
that its sessions started; one that restarts or crashes leaves them to their lease, and another may attach to them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from jupyter_dtrain.client.entry import Entry
from jupyter_dtrain.client.fold import Fold
from jupyter_dtrain.client.lifecycle import OpenSessions
from jupyter_dtrain.client.link import Link, ask_request
from jupyter_dtrain.client.notebook import current_cell
from jupyter_dtrain.client.notices import Notices
from jupyter_dtrain.client.rank_access import RankAccess
from jupyter_dtrain.client.rank_requests import RankRequests, check_free
from jupyter_dtrain.client.scripts import script_cell
from jupyter_dtrain.client.startup import Startup
from jupyter_dtrain.client.syntax import check_syntax
from jupyter_dtrain.client.tuning import sweep
from jupyter_dtrain.core.causes import DistributedError, DistributedInterrupt
from jupyter_dtrain.core.clients import describe_process
from jupyter_dtrain.core.errors import BadRequest, DtrainError, NoWorld, Refused, WorldLost
from jupyter_dtrain.core.run import Run
from jupyter_dtrain.core.settings import Settings
from jupyter_dtrain.core.stop_button import StopButton
from jupyter_dtrain.core.world import Ranks, TorchBackend, World, count_ranks, parse_ranks
from jupyter_dtrain.wire.agent_messages import TellWidgets
from jupyter_dtrain.wire.messages import Watching
from jupyter_dtrain.wire.requests import WorldRequest
from jupyter_dtrain.wire.spool import last_run
from jupyter_dtrain.wire.steward_messages import ReadState
from jupyter_dtrain.wire.values import check_variable, pickle_values

from .launch import starting, worlds

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from jupyter_dtrain.client.tuning import Tuning
    from jupyter_dtrain.wire.channels import StewardChannel

    from .view import CommRelay, RunView

DEATH_POLL = 0.01


class Session(RankAccess):
    """One client's handle on a world. Made by :meth:`start`; thread-safe."""

    def __init__(self, listing: worlds.Listing, steward: StewardChannel, request: WorldRequest) -> None:
        self.request = request
        """What the world was asked to be."""
        settings = request.settings
        self._settings = settings
        self._notices = Notices()
        link = Link(listing, steward, settings, self._notices, describe_process())
        self._fold = Fold(settings, link, self._notices.ended)
        super().__init__(link, RankRequests(link.bound, self._fold.busy, settings), request.size)
        self._relay: CommRelay | None = None
        self._link.rejoin = self._rejoin
        self._started_here = False
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
        chief: bool = False,
        ps: int = 0,
        progress: Callable[[str], None] | None = None,
        settings: Settings | None = None,
    ) -> Self:
        """Start a world of ``n`` ranks on this machine.

        ``n``: default one per visible GPU, else 2. ``name``: default ``world``, ``world-2``, …. ``env``: variables for
        the ranks. ``torch_backend``: what ``init_process_group()`` takes when the cell names none. ``mpiexec``: default
        this environment's. ``tensorboard``: a folder that gets metrics as TensorBoard's event files, one folder per run
        and rank. ``chief``: rank 0 is TensorFlow's chief and the others its workers, but for the last ``ps`` ranks,
        which are parameter servers; default: all ranks are alike. ``progress`` is called with a line of text whenever
        there is news. ``settings``: default :meth:`Settings.from_environment`.

        Raises :class:`BadRequest` for arguments that cannot be, and :class:`StartFailed` with the reason and what the
        logs say; either leaves nothing behind.
        """
        settings = settings or Settings.from_environment()
        listing, request = starting.launch(
            n,
            name=name,
            env=env or {},
            torch_backend=torch_backend,
            mpiexec=mpiexec,
            settings=settings,
            tensorboard=None if tensorboard is None else os.fspath(tensorboard),
            chief=chief,
            ps=ps,
        )
        session = None
        try:
            session = cls(listing, worlds.open_channel(listing, settings.request_timeout), request)
            session._started_here = True
            session._await_ranks(0, progress or (lambda _: None))
            session._link.join(take_over=True)
        except BaseException:
            if session is not None:
                session._abandon_start()
            else:
                starting.abandon(listing, request)
            with contextlib.suppress(OSError):
                Path(request.spool).rmdir()
            raise
        open_sessions.add(session)
        if words := starting.explain_spool(request):
            session._notices.hear(words)
        session._notices.show()
        return session

    @classmethod
    def attach(
        cls,
        name: str | None = None,
        *,
        take_over: bool = False,
        view: Callable[[Run, Session], RunView] | None = None,
    ) -> Self:
        """Join a world that runs; ``name`` may be left out where there is only one.

        Where no other client drives it any more, or with ``take_over``, the session drives the world from now on, as if
        it had started it; else it observes: it can be looked at, but runs nothing. :attr:`last_run` is the run that was
        begun last, with all that its ranks have said since its beginning; while it goes on it is followed, to the
        ``view`` that is made for it.

        A kernel that shuts down does not stop a world that it only attached to.

        Raises :class:`NoWorld` when there is none (of that name), :class:`BadRequest` when there are several to choose
        from, :class:`OtherVersion` when another version of jupyter-dtrain started it, and :class:`WorldLost` when it
        does not answer.
        """
        listing = worlds.find_world(name)
        settings = Settings.from_environment()
        steward = worlds.open_channel(listing, settings.request_timeout)
        try:
            request = ask_request(steward, listing)
        except BaseException:
            steward.close()
            raise
        session = cls(listing, steward, request)
        try:
            session._join(view, take_over=take_over)
        except BaseException:
            session._close()
            raise
        open_sessions.add(session)
        session._notices.show()
        return session

    def _join(self, view: Callable[[Run, Session], RunView] | None, *, take_over: bool) -> None:
        state = self._link.ask(ReadState())
        if state.phase != "running":
            raise WorldLost(f"World {self.name!r} is {state.phase}: try again in a moment.")
        self._link.connect(state, self._fold, greet=False)
        self._link.join(take_over=take_over)
        self._follow_last_run(view)

    def take_over(self) -> None:
        """Drive the world from now on; the client that did so until now observes, and what it had queued is not run."""
        self._link.check()
        self._link.join(take_over=True)
        self._follow_last_run(None)

    def _follow_last_run(self, view: Callable[[Run, Session], RunView] | None) -> None:
        began = last_run(self.request.spool)
        if began is None or (self.last_run is not None and self.last_run.number >= began.number):
            return
        self._link.skip_run(began.number)
        run = Run(began.number, began.source, began.ranks, self.request.size, self._requests.read_events, self.id)
        run.began_earlier(began.seconds)
        self.last_run = run
        self._fold.adopt(Entry(run, None if view is None else view(run, self)))
        if not self._requests.may_go_on(run):
            # It has ended: a cell that is run now is not queued behind it.
            run.wait(self._settings.request_timeout)

    def _await_ranks(self, incarnation: int, progress: Callable[[str], None]) -> None:
        """Wait until the world's ranks answer, then talk to them."""
        startup = Startup(self._link, self.request, progress)
        state = startup.wait(incarnation)
        self._link.connect(state, self._fold, greet=True)
        startup.tell_end(state.size)

    def _abandon_start(self) -> None:
        with contextlib.suppress(Exception):
            self._link.stop(timeout=2.0)
        self._await_steward_end()
        self._close()
        starting.remove_runtime(self.request)

    # What it is.

    @property
    def name(self) -> str:
        """The world's name."""
        return self.request.name

    @property
    def id(self) -> str:
        """The world's id, which no other one has or had."""
        return self.request.id

    @property
    def closed(self) -> bool:
        """Whether this session was stopped, or has lost its world."""
        return self._link.over

    @property
    def drives(self) -> bool:
        """Whether this session may run cells; else another client does, and this one observes."""
        return self._link.drives

    @property
    def started_here(self) -> bool:
        """Whether the world was started by this session, rather than attached to."""
        return self._started_here

    @property
    def world(self) -> World:
        """The world as it is now: its ranks with node, local rank, device, pid and state.

        Raises :class:`WorldLost` when there is none any more.
        """
        world = self._link.world
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

    def tell_auto(self, *, auto: bool) -> None:
        """Tell other clients, such as JupyterLab's sidebar, whether plain cells of this process go to the ranks too."""
        self._link.tell_auto(auto=auto)

    def __repr__(self) -> str:
        if self.closed:
            return f"<Session of world {self.name!r}: stopped>"
        return f"<Session of world {self.name!r}: {self.request.size} ranks{'' if self.drives else ', observed'}>"

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
        that an interrupted cell left behind, :class:`NotDriver` where another client drives the world.
        """
        self._link.check_alive()
        chosen = self._choose(ranks)
        try:
            self._link.confirm_drives()
        finally:
            self._notices.show()
        check_syntax(code)
        if timeout is not None and not timeout > 0:
            raise BadRequest(f"The timeout must be above 0 seconds, not {timeout!r}.")
        pickled = pickle_values(inputs or {})
        self._link.check_ranks(chosen)
        check_free(chosen, self._fold.left_behind())
        cell = None
        with StopButton() as stop_button:
            run = Run(self._link.number_run(), code, chosen, self.request.size, self._requests.read_events, self.id)
            self.last_run = run
            if view == "cell":
                cell = current_cell()
                view = self.view_in_cell(run, paint_errors=not wait)
            watch = Watching(metrics, grad_norm)
            try:
                self._fold.submit(Entry(run, view, inputs=pickled, timeout=timeout, watch=watch, cell=cell))
                stop_button.pass_to(self._fold.interrupt)
                while wait and not run.wait(1.0):
                    pass
            except KeyboardInterrupt:
                # Somebody else handles SIGINT. The ranks must not be left at work on what nobody waits for.
                self._fold.interrupt()
                raise
        if wait and run.outcome == "interrupted":
            raise DistributedInterrupt(run)
        if wait and run.outcome != "ok":
            raise DistributedError(run)
        stop_button.check()
        return run

    def run_script(
        self,
        script: str | os.PathLike[str],
        arguments: Sequence[str] = (),
        ranks: Ranks = None,
        *,
        fresh: bool = False,
        **options: Any,
    ) -> Run:
        """Run a torchrun-style script with ``arguments``, as ``__main__`` of each rank.

        ``fresh``: in a namespace of its own, of which nothing stays. ``options``, and what is raised: as for
        :meth:`run`; :class:`BadRequest` also for a script that is not there.
        """
        return self.run(script_cell(script, arguments, fresh=fresh), ranks, **options)

    def tune(self, model: str, batch: str, **options: Any) -> Tuning:
        """Measure how fast DeepSpeed trains with each ZeRO stage and micro-batch, in this world; the fastest first.

        ``model``, ``batch``: names of functions on the ranks. ``model()`` gives a fresh module whose forward gives the
        loss (or a tuple, dictionary or object that has it); ``batch(n)`` gives n samples, as the arguments of one
        forward. ``stages``: default 0, 1, 2, 3; ``micro_batches``: default 1, 2, 4, 8, 16 samples of a rank.
        ``config``: DeepSpeed's configuration but for these two, or the name of one on the ranks; without an optimizer
        it is AdamW. ``steps``: how many are measured, default 5; ``warmup``: how many come before, default 2.
        ``progress`` is called with the table so far whenever there is news, on any thread.

        A combination that is out of memory, or fails otherwise, is in the table with what went wrong. An interrupt ends
        the sweep and is in :attr:`.Tuning.interrupted`. Raises :class:`BadRequest` for what cannot be, also where the
        ranks have no DeepSpeed; else, before the first combination, as :meth:`run`.
        """
        return sweep(self, model, batch, **options)

    def view_in_cell(self, run: Run, *, paint_errors: bool) -> RunView:
        """A view of ``run`` below the cell that runs in this thread. ``paint_errors``: as nobody waits for the run."""
        from .view import CommRelay, view_of_cell

        self._relay = self._relay or CommRelay(self._send_comm, self._fold.busy)
        options = {"hold": self._settings.hold, "shown_bytes": self._settings.shown_bytes, "paint_errors": paint_errors}
        return view_of_cell(run, self.interrupt, lambda: self.stacks(run.ranks), self._relay, **options)

    def interrupt(self, *, force: bool = False) -> None:
        """Interrupt what runs, on every rank; variables stay. Returns at once; the cells end within the deadline.

        Called again, it takes the next steps at once, see :mod:`.interruption`. ``force``: ranks that have not ended
        by the deadline are killed.
        """
        self._link.check_drives()
        self._fold.interrupt(force=force)

    def kill(self, ranks: Ranks) -> None:
        """End the processes of ``ranks``, whatever they do; returns when they are dead. The others keep everything.

        Raises :class:`RanksDead` when they have died before, and :class:`WorldLost` when they do not die.
        """
        if ranks is None:
            raise BadRequest("Which ranks are to be killed? %distributed restart gives fresh ones to the whole world.")
        self._link.check_drives()
        chosen = self._choose(ranks)
        self._link.check_ranks(chosen)
        self._link.kill(chosen, "by %distributed kill")
        deadline = time.monotonic() + self._settings.request_timeout
        while living := [rank.rank for rank in self._link.world.ranks if rank.rank in chosen and rank.state != "dead"]:
            if time.monotonic() > deadline:
                raise WorldLost(f"{count_ranks(living).capitalize()} did not die: %distributed restart.")
            time.sleep(DEATH_POLL)

    def resync(self, names: Iterable[str], source: int = 0) -> Run:
        """Make what ``names`` hold on all ranks what they hold on the rank ``source``: a run of its own.

        See :func:`jupyter_dtrain.resync`. Raises as :meth:`run`.
        """
        names = list(names)
        for name in names:
            check_variable(name)
        named = "".join(f"{name!r}, " for name in names)
        parse_ranks(source, self.request.size)
        return self.run(f"import jupyter_dtrain; jupyter_dtrain.resync({named}source={source})", view=None)

    # Ending.

    def restart(self, progress: Callable[[str], None] | None = None) -> None:
        """End all ranks and start the same world with fresh ones; their variables are gone.

        Raises :class:`StartFailed` when it does not come up again; then the world has ended.
        """
        self._link.check_drives()
        # Before the ranks, which are told to end, say so themselves.
        self._fold.world_lost("its world was restarted")
        try:
            incarnation = self._link.restart()
        except Refused as refused:
            raise BadRequest(f"World {self.name!r} cannot be restarted: {refused}") from None
        try:
            self._await_ranks(incarnation, progress or (lambda _: None))
        except BaseException:
            # Also when it was interrupted: between two sets of ranks there is nothing to go back to.
            self._link.lose("its restart failed")
            self._abandon_start()
            raise

    def _rejoin(self, incarnation: int, who: str) -> None:
        """Another client, ``who``, has the world restarted: go on with its fresh ranks."""
        try:
            self._await_ranks(incarnation, lambda _: None)
        except DtrainError as error:
            self._link.lose(f"it was restarted by {who} and did not come up: {error}")
        else:
            self._notices.hear(
                f"World {self.name!r} was restarted by {who}: its ranks are fresh, their variables gone."
            )

    def stop(self) -> None:
        """End the world; returns when nothing of it is left. Raises :class:`NoWorld` when it was stopped before."""
        if self._link.closed:
            raise NoWorld(f"World {self.name!r} was stopped already.")
        self._fold.world_lost("its world was stopped")
        if worlds.is_alive(self._link.listing):
            self._link.stop()
        if not self._await_steward_end():
            pid = self._link.listing.steward
            raise WorldLost(f"World {self.name!r} was told to stop, but its steward (pid {pid}) is still there.")
        self._close()

    def stop_soon(self) -> None:
        """Tell the world to end, without waiting: for a kernel that is shutting down."""
        if not self._link.closed:
            self._link.closed = True
            with contextlib.suppress(Exception):
                self._link.stop(self._fold.busy().values(), timeout=1.0)
            self._fold.world_lost("its kernel is shutting down")

    def leave(self) -> None:
        """Let go of the world, which goes on: its lease decides, unless another client renews it."""
        if not self._link.closed:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._link.closed:
            return
        if self._started_here:
            self.stop()
        else:
            self.leave()

    def _await_steward_end(self) -> bool:
        return worlds.await_end(self._link.listing, 2 * self._settings.stop_timeout + 10.0)

    def _close(self) -> None:
        self._link.close()
        self._fold.close()
        open_sessions.remove(self)

    # Inner.

    def _send_comm(self, rank: int, request: TellWidgets) -> Any:
        world, channel = self._link.bound()
        return channel.values(world.ranks[rank].engine, request)


open_sessions: OpenSessions[Session] = OpenSessions()
"""The open sessions of this process."""


def current() -> Session:
    """The session that was started last in this process. Raises :class:`NoWorld` when none has a world."""
    return open_sessions.current()

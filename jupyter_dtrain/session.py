"""Session: one client's handle on a world.

``Session.start(n=4)`` starts a world, ``Session.attach()`` joins one that is there, ``session.run(code)`` runs code on
its ranks, ``push`` and ``pull`` carry values, ``interrupt``, ``restart`` and ``stop`` act on the world. The magics call
nothing else. Each part has a module of its own in ``client/``; a session puts them together.

Under failure: every wait has a deadline. When a world's main process is gone, running cells end as ``lost``, and every
further call raises :class:`~jupyter_dtrain.core.errors.WorldLost`. A kernel that shuts down for good stops the worlds
that its sessions started; one that restarts or crashes leaves them running for their keep-alive time, in which another
may attach to them.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from jupyter_dtrain.client.calls import Calls
from jupyter_dtrain.client.cells import CellRunner, current_cell, script_cell, script_name
from jupyter_dtrain.client.flames import Flame, take_flame
from jupyter_dtrain.client.healing import Heals, Replaced, Resized, check_size
from jupyter_dtrain.client.lifecycle import OpenSessions
from jupyter_dtrain.client.link import Link
from jupyter_dtrain.client.membership import Membership, ask_request
from jupyter_dtrain.client.memory import SessionMemory
from jupyter_dtrain.client.notices import Notices
from jupyter_dtrain.client.profiling import SessionProfiles
from jupyter_dtrain.client.rank_requests import RankRequests, still_work
from jupyter_dtrain.client.resuming import NONE, Resuming
from jupyter_dtrain.client.run_scheduler import RunScheduler
from jupyter_dtrain.client.snapshots import SessionSnapshots, find_snapshot, snapshots
from jupyter_dtrain.client.steering import RunningLoop
from jupyter_dtrain.client.variables import SessionVariables, check_model, is_verb
from jupyter_dtrain.core.declarations import load, session_methods
from jupyter_dtrain.core.errors import BadRequest, RanksBusy, TransferFailed
from jupyter_dtrain.core.processes import describe_process
from jupyter_dtrain.core.run_names import check_run_name
from jupyter_dtrain.core.settings import Settings
from jupyter_dtrain.core.snapshots import SnapshotAnswer
from jupyter_dtrain.core.steering import parse_ring
from jupyter_dtrain.core.world import Ranks, count_ranks, moves, numbers_without
from jupyter_dtrain.store.runs import before_reading
from jupyter_dtrain.wire.agent_messages import SendToWidgets
from jupyter_dtrain.wire.messages import Cell, Watching
from jupyter_dtrain.wire.requests import LOCAL, WorldRequest
from jupyter_dtrain.wire.steward_messages import Lent, ReadState

from .launch import starting, worlds
from .launch.options import check, chosen_values, flat_values, lists_options
from .launch.profiles import write_profile

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from jupyter_dtrain.client.memory import Freed, MemoryRecord, MemoryReport
    from jupyter_dtrain.client.profiling import LoopProfile
    from jupyter_dtrain.client.rank_names import RankNames
    from jupyter_dtrain.client.variables import Inventory, VariableComparison
    from jupyter_dtrain.core.events import PromptOpened
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.core.snapshots import Snapshot
    from jupyter_dtrain.core.stacks import Stacks
    from jupyter_dtrain.core.world import World
    from jupyter_dtrain.wire.agent_messages import Surroundings
    from jupyter_dtrain.wire.channels import StewardChannel

    from .files.sync import Uploaded
    from .launch.start_options import StartOptions
    from .view import CommRelay, RunView
    from .view.rich import Known


T = TypeVar("T")

FORMER_NAMES: Final = {
    "check": "diff",
    "drives": "controls",
    "heal": "replace",
    "resync": "broadcast",
    "surroundings": "info",
    "sync": "upload",
    "take_over": "control",
}
"""The names that methods had in the release before, and those of now."""


class Session:
    """One client's handle on a world. Made by :meth:`start` or :meth:`attach`; thread-safe.

    ``with Session.start(2) as session:`` stops the world at the end of the block, also after an exception; a session
    that attached only lets go of it, as :meth:`leave`.
    """

    def __init__(self, listing: worlds.Listing, steward: StewardChannel, request: WorldRequest) -> None:
        self.request = request
        """The request that started the world."""
        settings = request.settings
        self._notices = Notices()
        self._link = Link(listing, steward, settings, self._notices, describe_process())
        self._scheduler = RunScheduler(settings, self._link, self._run_ended)
        self._requests = RankRequests(self._link.bound, self._scheduler.busy, settings)
        self._loop = RunningLoop(self._link, self._scheduler.running)
        self._cells = CellRunner(self._link, self._scheduler, self._requests, self._notices, request, self._loop)
        self._membership = Membership(
            self._link, self._scheduler, self._notices, request, left=lambda: open_sessions.remove(self)
        )
        self._variables = SessionVariables(self._link, self._requests, lambda: self.world, self.run)
        self._memory = SessionMemory(self._link, self._requests, lambda: self.world, lambda: self.last_run)
        self._heals = Heals(self._link, self._scheduler, self._cells, self._notices, request, self.names)
        self._trainings = Resuming(request)
        self._snapshots = SessionSnapshots(
            request, self._requests, self._notices, lambda: self._link.world, self.run, self._trainings
        )
        self._profiles = SessionProfiles(self._link, self._requests, lambda: self.world)
        self._calls = Calls(self._requests, self.run, self._scheduler.busy)
        self._relay: CommRelay | None = None
        self._displays: Known = {}
        self._started_here = False

    def _run_ended(self, run: Run) -> None:
        self._notices.ended(run)
        self._cells.ended(run)
        self._trainings.ended(run)

    # The world and its runs.

    @property
    def name(self) -> str:
        """The world's name."""
        return self.request.name

    @property
    def id(self) -> str:
        """The world's id, which no other world has or had."""
        return self.request.id

    @property
    def closed(self) -> bool:
        """Whether this session was stopped, or has lost its world."""
        return self._link.over

    @property
    def loss(self) -> str:
        """Why the world is gone; empty while it is there, and after a stop here."""
        return "" if self._link.closed else self._link.loss

    @property
    def controls(self) -> bool:
        """Whether this session controls the world, and may run cells; else it is read-only: another client does."""
        return self._link.controls

    @property
    def controller(self) -> str:
        """What controls the world, in words, such as the name of a notebook."""
        return self._link.controller

    @property
    def started_here(self) -> bool:
        """Whether this session started the world, rather than attached to it."""
        return self._started_here

    @property
    def ends(self) -> float:
        """When a scheduler takes the nodes away, in seconds since the epoch, else 0. Raises :class:`WorldLost`."""
        return 0.0 if self.request.launcher == LOCAL else self._link.ask(ReadState()).ends

    @property
    def _lent(self) -> Lent:
        """The nodes that a scheduler lends to the world; none where nobody has lent any. Raises :class:`WorldLost`."""
        request = self.request
        return Lent() if request.launcher == LOCAL or request.hosts else self._link.ask(ReadState()).lent

    @property
    def world(self) -> World:
        """The world as it is now: its ranks with node, local rank, device, pid and state.

        Raises :class:`WorldLost` when there is none any more.
        """
        return self._link.world.seen(self._scheduler.busy())

    @property
    def last_run(self) -> Run | None:
        """The run that was submitted last; None before the first.

        Runs in which new ranks are prepared, or join an elastic run (:attr:`.Run.joined`), do not count.
        """
        return self._cells.last

    @property
    def running(self) -> list[Run]:
        """The runs that have not ended, in the order of their submission; those that wait for ranks too."""
        return self._scheduler.running()

    @property
    def settings(self) -> Settings:
        """The settings that this session was started with."""
        return self.request.settings

    # Starting.

    @lists_options
    @classmethod
    def start(
        cls,
        n: int | None = None,
        *,
        progress: Callable[[str], None] | None = None,
        settings: Settings | None = None,
        **options: Unpack[StartOptions],
    ) -> Self:
        """Start a world on this machine, on hosts over ssh or in Slurm, and return when its ranks are ready.

        {options}
        * ``progress``: a function that gets a line of text whenever the start makes progress
        * ``settings``: durations and sizes (default: ``Settings.from_environment()``)

        Paths may be text or :class:`pathlib.Path`, hosts also a list, or a dict of host and ranks; None stands for the
        default.

        Raises :class:`BadRequest` for options that cannot be, and :class:`StartFailed` with the reason and the end of
        the logs. Either way nothing is left behind.
        """
        with open_sessions.starting():
            settings = settings or Settings.from_environment()
            listing, request = starting.launch({"n": n, **options}, settings=settings)
            session = None
            try:
                session = cls(listing, worlds.open_channel(listing, settings.request_timeout), request)
                session._started_here = True
                session._membership.await_ranks(0, progress or (lambda _: None))
                session._link.join(take_over=True)
            except BaseException:
                if session is not None:
                    session._membership.abandon_start()
                else:
                    starting.abandon(listing, request)
                with contextlib.suppress(OSError):
                    Path(request.spool).rmdir()
                raise
        open_sessions.add(session)
        if words := starting.explain_spool(request):
            session._notices.hear(words)
        session._notices.show()
        session._snapshots.place_orders()
        return session

    @classmethod
    def attach(
        cls,
        name: str | None = None,
        *,
        control: bool = False,
        take_over: bool | None = None,
        view: Callable[[Run, Session], RunView] | None = None,
    ) -> Self:
        """Join a world that runs; ``name`` may be left out where there is only one.

        With ``control``, or where no other client controls the world any more, the session controls it from now on, as
        if it had started it. Otherwise it is read-only: it runs nothing. :attr:`running` has the runs that go on,
        :attr:`last_run` is the newest, with all events of their ranks from the beginning; while a run goes on, the view
        that ``view`` makes shows it.

        A kernel that shuts down does not stop a world that it only attached to. ``take_over`` is the former name of
        ``control``.

        Raises :class:`NoWorld` when there is none (of that name), :class:`BadRequest` when there are several to choose
        from, :class:`OtherVersion` when another version of jupyter-dtrain started it, and :class:`WorldLost` when it
        does not answer.
        """
        if take_over is not None:
            _warn_former("The option take_over of Session.attach", "control")
            control = control or take_over
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
            session._membership.join(take_over=control)
            session._cells.follow_all(lambda run: None if view is None else view(run, session))
        except BaseException:
            session._membership.close()
            raise
        open_sessions.add(session)
        session._notices.show()
        return session

    def control(self) -> None:
        """Control the world from now on; the client that did so far is read-only then, its queued cells do not run."""
        self._link.check()
        self._link.join(take_over=True)
        self._cells.follow_all(lambda _: None)

    def _tell_auto(self, *, auto: bool) -> None:
        """Publish to other clients, such as JupyterLab's sidebar, whether plain cells here go to the ranks too."""
        self._link.tell_auto(auto=auto)

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
        step_time: bool = True,
        check: str = "",
        check_every: int = 10,
        record_memory: bool = False,
        ring: str = "",
        name: str = "",
        group: str = "",
        resume: str | int = "",
        ask: bool | None = None,
        elastic: bool = False,
        replay: Iterable[int] = (),
        view: RunView | Literal["cell"] | None = "cell",
    ) -> Run:
        """Run ``code``, as a cell, on ``ranks`` (default: all).

        * ``wait``: return when the run has ended, and raise :class:`DistributedError` unless it ended well, or
          :class:`DistributedInterrupt`; an interrupt of the waiting thread interrupts the ranks. Without, it returns at
          once; further runs queue behind it in order, and :meth:`.Run.result` raises what this would.
        * ``timeout``: seconds after which the cell is interrupted, as by :meth:`interrupt`, which raises
          :class:`RunTimeout` (default: none). An import that is interrupted half-way may fail in later cells, too:
          import first, without a timeout.
        * ``inputs``: values that the ranks get first, by name
        * ``metrics``: whether losses are taken from the frameworks' own calls, such as ``backward()``, under the names
          of their variables; ``grad_norm``: and the norm of the gradients; ``step_time``: whether the
          ranks measure where their time goes, see :attr:`.Run.step_time`
        * ``check``: the name of a model that is compared over ranks after every ``check_every`` steps, see
          :attr:`.Run.divergence`
        * ``record_memory``: whether ranks record their memory over the cell, see :meth:`memory_record`
        * ``ring``: ``"3/100"`` keeps the last three states of models, optimizers and schedulers in host memory, one
          every hundred steps of the optimizer, for :meth:`.RunningLoop.rewind`. A state with NaN is not kept.
        * ``name``: the run's, in lists; ``group``: a name that several runs have in common, such as those of a sweep
        * ``resume``: the run whose training this one goes on with, as ``"world/3"`` or 3; its metrics go on from the
          last step of that one. By default the first training after :meth:`load` goes on with the run that has trained
          the snapshot; ``"none"`` begins anew.
        * ``ask``: whether :meth:`answer` answers what the ranks ask, as by ``input()``. By default the person at this
          notebook or terminal does, while it waits for the run; where nobody can, a call that asks fails at once.
        * ``elastic``: a rank that dies is replaced while the others go on; the new one runs the cells of the runs
          ``replay``, then this cell, and all end together
        * ``view``: where output goes; ``"cell"`` is the current cell's output, None is nowhere but the :class:`Run`. A
          cell ends when its view has shown everything, or a few seconds later if the view blocks.

        Raises, without having sent anything: :class:`BadRequest` for ranks that are not there and for an elastic cell
        that waits for all ranks, :class:`BadSyntax`, :class:`TransferFailed` for ``inputs`` that cannot be pickled,
        :class:`RanksDead`, :class:`RanksBusy` for ranks that an interrupted cell left behind, :class:`ReadOnly` where
        another client controls the world.
        """
        named = check_run_name(name)
        if ranks is None:
            self._snapshots.renew_orders()

        def make_view(run: Run) -> RunView | None:
            return self._view_in_cell(run, paint_errors=not wait) if view == "cell" else view

        def view_join(run: Run) -> RunView | None:
            return self._view_in_cell(run, paint_errors=True) if view == "cell" else None

        replay = list(replay)
        if replay and not elastic:
            raise BadRequest("replay is for elastic cells: --replay needs --elastic.")
        options: dict[str, Any] = {
            "timeout": timeout,
            "inputs": inputs or {},
            "watch": Watching(
                *(metrics, grad_norm, step_time, check_model(check), check_every, record_memory),
                *(parse_ring(ring) if ring else ()),
            ),
        }
        cell = current_cell(code) if view == "cell" else Cell()
        context = self._trainings.context(cell.context, group, NONE if is_verb(code) else resume)
        context = msgspec.structs.replace(context, aside=is_verb(code))
        cell = msgspec.structs.replace(cell, run_name=named, context=context)
        beside = self._heals.companion(code, replay, view_join, **options).follow if elastic else None
        run = self._cells.run(code, ranks, make_view, wait=wait, cell=cell, beside=beside, ask=ask, **options)
        if wait and ranks is None and not elastic:
            self._snapshots.save_due(run)
        return run

    def run_script(
        self,
        script: str | os.PathLike[str],
        arguments: Sequence[str] = (),
        ranks: Ranks = None,
        *,
        module: bool = False,
        fresh: bool = False,
        **options: Any,
    ) -> Run:
        """Run a torchrun-style script with ``arguments``, as ``__main__`` of each rank.

        ``module``: ``script`` is the name of a module, as for ``python -m``. ``fresh``: in a namespace of its own,
        which is dropped afterwards. ``options``, and what is raised: as for :meth:`run`; :class:`BadRequest` also for a
        script that is not there.
        """
        options.setdefault("name", script_name(script, arguments))
        return self.run(script_cell(script, arguments, module=module, fresh=fresh), ranks, **options)

    def _view_in_cell(self, run: Run, *, paint_errors: bool) -> RunView:
        """A view of ``run`` below the cell that runs in this thread. ``paint_errors``: no exception will show them."""
        from .view import CommRelay, view_of_cell

        self._relay = self._relay or CommRelay(self._send_comm, self._scheduler.busy)
        options = {
            "hold": self.request.settings.output_delay,
            "shown_bytes": self.request.settings.shown_bytes,
            "paint_errors": paint_errors,
        }
        hosts = {rank.rank: rank.host for rank in self._link.world.ranks}
        return view_of_cell(
            run,
            self.interrupt,
            lambda: self.stacks(run.ranks),
            self._relay,
            hosts,
            self._displays,
            lambda: self._profiles.for_panel(run.ranks),
            self._cells.desk.answer,
            **options,
        )

    def call(
        self, function: Callable[..., T], *args: Any, ranks: Ranks = None, timeout: float | None = None
    ) -> dict[int, T]:
        """Call ``function`` with ``args`` on ``ranks`` (default: all), as a cell of its own; its value on each rank.

        The function, all that it uses from the notebook, and ``args`` travel by cloudpickle; a function of a module
        travels as its name, and the ranks import it, unless no import finds the module, as under pytest's
        ``importlib`` mode: then all of the module that it uses travels. On a rank it sees that rank's process: its
        modules, its GPU, its groups, but not the variables of cells; name those as in ``import __main__``.
        ``timeout``: in seconds, as for :meth:`run`. Use :func:`functools.partial` for keyword arguments.

        Raises as :meth:`run`; :class:`TransferFailed` for what cannot be pickled, before anything is sent, and for a
        value that cannot come back.
        """
        return self._calls.call(function, args, ranks, timeout)

    def map(
        self, function: Callable[[Any], T], items: Iterable[Any], *, ranks: Ranks = None, timeout: float | None = None
    ) -> list[T]:
        """Call ``function`` for each of ``items``, which ``ranks`` (default: all) share; the values in their order.

        All items travel to every rank, and each takes the next one in turn. Otherwise as :meth:`call`.
        """
        return self._calls.map(function, list(items), self._link.choose_living(ranks), timeout)

    @property
    def prompts(self) -> dict[int, PromptOpened]:
        """What ranks ask a person now, as by ``input()``, by rank. Each waits until :meth:`answer` or an interrupt."""
        return {rank: prompt for run in self.running for rank, prompt in run.fold.prompts.items()}

    def answer(self, text: str | None, ranks: Ranks = None) -> None:
        """Answer what ``ranks`` ask (default: all that ask), each with ``text``, a line without its end.

        None stands for the end of the input, which raises :class:`EOFError` there. It returns once the world has the
        answer; :attr:`prompts` says which ranks still wait. Raises :class:`BadRequest` where none of them asks,
        :class:`RanksDead`, and :class:`ReadOnly` where another client controls the world.
        """
        chosen = self._link.choose_living(ranks)
        asked = {
            run.number: {rank: one for rank, one in run.fold.prompts.items() if rank in chosen} for run in self.running
        }
        if not any(asked.values()):
            raise BadRequest(f"No prompt is open on {count_ranks(chosen)}.")
        for run, prompts in asked.items():
            if prompts:
                self._cells.desk.answer(run, {rank: one.number for rank, one in prompts.items()}, text)

    def attend(self) -> None:
        """Ask the person at this notebook or terminal what ranks ask, as a cell does that waits for its run.

        For runs that another client has begun, such as a kernel that was killed. Returns once no rank has asked
        anything for a second. Stop leaves it, and what is open, too. Raises :class:`BadRequest` where nobody asks or
        nobody can answer, and :class:`ReadOnly`.
        """
        self._link.check_drives()
        self._cells.desk.attend_all(lambda: self.running)

    @property
    def loop(self) -> RunningLoop:
        """The loop of the cell that runs now, to pause it and steer it between two of its steps."""
        return self._loop

    def debug(self, ranks: Ranks = None) -> None:
        """Show the last error of each of ``ranks`` (default: all), and look at all of them in Python's debugger.

        The person at this notebook or terminal gets its prompt, and ``q`` leaves it. The errors are those that Python
        keeps anyway, until the next cell that fails or :meth:`free`. Raises :class:`BadRequest` where no rank has an
        error, and where nobody can answer, :class:`RanksBusy`, :class:`RanksDead` and :class:`ReadOnly`.
        """
        desk = self._cells.desk
        failed = desk.look_at_failures(self._link.choose_living(ranks))
        try:
            self.run("%debug", failed, metrics=False, name="debug")
        finally:
            desk.leaves = False

    def interrupt(self, *, force: bool = False) -> None:
        """Interrupt every cell that runs, on every rank; variables stay. Returns at once; cells end by the deadline.

        Each rank gets a KeyboardInterrupt; if it has not ended later, it is freed from calls that wait for others, and
        then its cell is ended by another exception (the settings ``INTERRUPT_RELEASE`` and ``INTERRUPT_RAISE`` say
        when). Called again, it takes the next of these steps at once. ``force``: ranks that have not ended by the
        deadline are killed.
        """
        self._link.check_drives()
        self._scheduler.interrupt(force=force)

    def kill(self, ranks: Ranks) -> None:
        """Kill the processes of ``ranks``, whatever they do; returns when they are dead. The others keep everything.

        Raises :class:`RanksDead` when they have died before, and :class:`WorldLost` when they do not die.
        """
        if ranks is None:
            raise BadRequest("Name the ranks to kill. %distributed restart replaces all ranks.")
        self._membership.kill(self._link.choose_living(ranks))

    # Variables.

    def push(self, values: Mapping[str, Any], ranks: Ranks = None) -> None:
        """Bind ``values`` by name on ``ranks`` (default: all); on none if one of the values cannot be pickled.

        Raises :class:`TransferFailed`, :class:`RanksBusy`, :class:`RanksDead` and :class:`ReadOnly`.
        """
        self._variables.push(values, ranks)

    def pull(self, name: str, ranks: Ranks = None) -> dict[int, Any]:
        """The value of ``name`` on ``ranks`` (default: all), by rank.

        Raises :class:`TransferFailed`, which names the ranks where it is missing or cannot be pickled,
        :class:`RanksBusy`, :class:`RanksDead` and :class:`ReadOnly`.
        """
        return self.pull_many([name], ranks)[name]

    def pull_many(self, names: list[str], ranks: Ranks = None) -> dict[str, dict[int, Any]]:
        """Several names at once: ``{name: {rank: value}}``; all or none. Raises as :meth:`pull`."""
        return self._variables.pull(names, ranks)

    def scatter(self, name: str, data: Any, ranks: Ranks = None) -> None:
        """Cut ``data`` into consecutive parts and bind one on each of ``ranks`` (default: all) as ``name``.

        The lengths of the parts differ by at most one. Raises as :meth:`push`, and :class:`BadRequest` for data
        without a length.
        """
        self._variables.scatter(name, data, ranks)

    def gather(self, name: str, ranks: Ranks = None) -> Any:
        """The parts that ``name`` has on ``ranks`` (default: all), put together in the order of the ranks.

        Lists, tuples, texts and arrays become one; anything else becomes a list of the values. Raises as :meth:`pull`.
        """
        return self._variables.gather(name, ranks)

    def __getitem__(self, name: str) -> dict[int, Any]:
        """``session["x"]``: the value of ``x`` on every rank."""
        return self.pull(name)

    @property
    def names(self) -> RankNames:
        """The names that live on the ranks: where they are defined, how they go on, and what they stand for."""
        return self._variables.names

    def broadcast(self, names: Iterable[str], source: int = 0) -> Run:
        """Give all ranks the values that ``names`` have on the rank ``source``, in a run of its own.

        See :func:`jupyter_dtrain.broadcast`. Raises as :meth:`run`.
        """
        return self._variables.broadcast(names, source)

    def vars(self, names: Sequence[str] = (), ranks: Ranks = None, timeout: float = 30.0) -> Inventory:
        """The contents of ``names`` (default: all variables) on ``ranks`` (default: all).

        For each rank: type, shape, dtype, device, norm and a digest of the values. Ranks answer also while a cell runs.
        Values that a rank cannot read within ``timeout`` seconds have neither norm nor digest. Raises
        :class:`TransferFailed` for a name that no rank has.
        """
        return self._variables.take_inventory(names, ranks, timeout)

    def diff(self, path: str, *, states: bool = False) -> VariableComparison:
        """Compare a variable, or a dotted path such as ``model.fc.weight``, over all ranks, in a run of its own.

        Of a model, its parameters, buffers and gradients are compared, and the states of its optimizers; ``states``:
        random states, and the step counters of optimizers, samplers and loaders, too. The answer says whether all
        replicas are the same, which part differs first, and by how much.

        Tensors stay where they are: ranks compare digests, and measure only the parts that differ. Raises as
        :meth:`run`; the ranks raise :class:`TransferFailed` where the name is missing on one of them.
        """
        return self._variables.diff(path, states=states)

    # Snapshots.

    def save(
        self,
        name: str,
        names: Sequence[str],
        *,
        every: str | int | None = None,
        to: str | os.PathLike[str] | None = None,
        keep: int = 1,
        now: bool = False,
    ) -> SnapshotAnswer:
        """Save the variables ``names`` of all ranks as the snapshot ``name``; the newest ``keep`` of that name stay.

        That is a run of its own.

        Models and optimizers are saved so that a world of any size can load them, where their framework can. Anything
        else is pickled on each rank; an object with ``state_dict`` as its state. ``every``: save after so many steps of
        the optimizer, or whenever a time such as ``"10m"`` has passed, between two steps of the cells from now on,
        instead of now. Where no framework shows its steps, a time saves at the end of a cell on all ranks
        that this session has waited for.

        ``now``: between two steps of the loop of the cell that runs now, with the names that the loop sees, after the
        same step on all ranks. The loop goes on while the ranks write, and a note of the answer names the step.

        ``to``: a folder that gets it, which all hosts must see; :meth:`load` takes it as ``FOLDER/NAME`` then (default:
        ``DTRAIN_SNAPSHOTS``, or else the folder ``dtrain/snapshots`` in Jupyter's data folder).

        Raises :class:`BadRequest`, and as :meth:`run`: ranks raise :class:`TransferFailed` with the reason, such as a
        disk that has no room for it. Where it has room for no more than this one, the answer has a note.
        """
        folder = None if to is None else os.fspath(to)
        if not now:
            return self._snapshots.save(name, names, every=every, to=folder, keep=keep)
        if every is not None:
            raise BadRequest("A snapshot is saved now, or every so often, not both.")
        found = self._loop.save(self._snapshots.order(name, names, folder, keep))
        if problem := next((one.text for one in found.ranks.values() if not one.ok), ""):
            raise TransferFailed(problem)
        return SnapshotAnswer(list(names), notes=[found.words])

    def stop_saving(self, name: str = "") -> list[str]:
        """Stop saving ``name`` automatically; "" means all. Returns the names of the snapshots that were saved so.

        It returns once the ranks have written what they were writing, after ten minutes at most.
        """
        return self._snapshots.stop_saving(name)

    def load(self, name: str, names: Sequence[str] = (), *, trust: bool = False, ready: bool = False) -> SnapshotAnswer:
        """Load variables (default: all) from the newest snapshot ``name``, in a world of any size.

        ``NAME:NUMBER`` names an older one, if the saves kept some, and ``FOLDER/NAME`` one in another folder.

        Models, optimizers and other objects with a state must be there, and get their state; anything else is bound.
        ``ready``: load what can be loaded, and tell which objects must be made first. ``trust``: also load a snapshot
        that is not signed with your key; to load it can run its code.

        Raises :class:`BadRequest` where there is none, :class:`SnapshotRefused` where it is not signed with your key,
        and as :meth:`run`: ranks raise :class:`SnapshotRefused` for a file that was changed, and
        :class:`TransferFailed` for one that does not fit. Then nothing has changed.
        """
        return self._snapshots.load(name, names, trust=trust, ready=ready)

    @property
    def snapshots(self) -> list[Snapshot]:
        """All snapshots of this user, newest first."""
        return snapshots()

    # Asking ranks.

    def stacks(self, ranks: Ranks = None, timeout: float = 2.0, *, native: bool = False) -> Stacks:
        """Where the main thread of each rank is now: its frames from the cell on; None for a rank that is not known.

        A rank that does not answer within ``timeout`` seconds is inspected from outside, which gives native frames;
        ``native`` does so on every rank.
        """
        return self._requests.stacks(self._link.choose(ranks), timeout, native=native)

    def flame(self, seconds: float = 5.0, ranks: Ranks = None, file: str | Path | None = None) -> Flame:
        """Sample where the main threads of ``ranks`` (default: all) are, and wait for so many ``seconds``, 0.5 to 60.

        py-spy looks at each rank 100 times a second, from outside: also while a cell runs, which goes on, and while
        native code holds the interpreter lock. Between cells, ranks are idle. ``file``: for speedscope (default:
        ``flame-RUN.speedscope.json`` in the current folder, with a number if that exists); an existing one is
        overwritten.

        A rank that dies meanwhile keeps its samples until then. Raises :class:`BadRequest` for other times, and
        :class:`TransferFailed` when no rank can be sampled. Stop ends it.
        """
        last = self.last_run
        number = None if last is None else last.number
        return take_flame(self._link.bound, self._link.choose(ranks), seconds, file, number)

    def info(self, ranks: Ranks = None, timeout: float = 5.0) -> dict[int, Surroundings | None]:
        """The surroundings of each of ``ranks`` (default: all): its variables and why they are set, and its frameworks.

        Ranks answer also while a cell runs. A rank that is dead, or has not answered within ``timeout`` seconds, gives
        None. Values that were given as ``env`` are left out.
        """
        return self._requests.surroundings(self._link.choose(ranks), timeout)

    def memory(self, ranks: Ranks = None, most: int = 20, timeout: float = 10.0) -> MemoryReport:
        """How much memory each of ``ranks`` (default: all) has, and the names of what holds it, in bytes.

        Names such as ``model.layers.3.weight``, ``opt.state[model.fc.weight].exp_avg``, ``train().batch`` and
        ``Out[7]`` lead to the ``most`` biggest tensors, arrays and texts of each rank. What only old outputs and the
        last error keep is marked, and :meth:`free` lets go of it. Ranks answer also while a cell runs, and nothing of
        the user's runs for that. A rank that has not answered within ``timeout`` seconds gives None.

        Raises :class:`BadRequest` for ranks that are not there.
        """
        return self._memory.read(ranks, most, timeout)

    def memory_record(self, ranks: Ranks = None, run: int | None = None, timeout: float = 5.0) -> MemoryRecord:
        """The memory of each of ``ranks`` (default: all) over the newest cell that was run with ``record_memory``.

        Its peak, with the line of the cell that ran then, the lines in which memory rose, and its course, in bytes and
        in seconds since the cell began: on the host the resident memory of the process, on a GPU what the framework
        has allocated. A cell that runs has a record so far; one that failed or was interrupted has one, too. ``run``:
        the number of the run that is meant; a rank keeps the record of one. A rank that has none of that run, or has
        not answered within ``timeout`` seconds, gives None.

        Raises :class:`BadRequest` for ranks that are not there, and where no rank has such a record;
        :class:`RanksDead` where all of them are dead, :class:`TransferFailed` where none answers.
        """
        return self._memory.record(ranks, run, timeout)

    def free(self, ranks: Ranks = None) -> Freed:
        """Have ``ranks`` (default: all) let go of old outputs (``Out``, ``_``) and of the last error.

        They also collect garbage, and give back the memory that frameworks keep unused. Variables stay as they are, and
        what they hold. The answer says how much came free.

        Raises :class:`RanksBusy` while a cell runs there, :class:`RanksDead`, :class:`TransferFailed` with the reason
        of each rank that could not, and :class:`ReadOnly`.
        """
        return self._memory.free(ranks)

    def profile(
        self,
        steps: int = 5,
        ranks: Ranks = None,
        *,
        path: str | os.PathLike[str] | None = None,
        timeout: float = 60.0,
    ) -> LoopProfile:
        """Profile the next ``steps`` steps of the loop that runs now, beginning at the same step on all of ``ranks``.

        The loop goes on. The trace of all ranks goes to ``path`` (default: ``profile-RUN-STEP.json.gz`` in the working
        directory), for Perfetto; a name that ends in ``.gz`` is compressed. ``timeout``: seconds for the steps to be
        made; longer where the loop's own pace says so. A step is one of the first optimizer that steps in the cell, or
        where none does, from one :func:`jupyter_dtrain.log` of a series to the next.

        Raises :class:`BadRequest` where nothing runs, no step is seen, or no framework in use has a profiler;
        :class:`RanksDead` where all of ``ranks`` are; :class:`ProfileFailed` where no rank has recorded its steps, or
        the file cannot be written. Ranks that are missing from it are named in :attr:`.LoopProfile.notes`.
        """
        return self._profiles.profile(steps, ranks, path, timeout)

    # Files.

    def upload(
        self,
        path: str | os.PathLike[str],
        *,
        to: str | os.PathLike[str] | None = None,
        exclude: Sequence[str] = (),
        timeout: float = 600.0,
        progress: Callable[[str], None] | None = None,
    ) -> Uploaded:
        """Copy the file or folder ``path`` to the world's hosts, changed files only; nothing there is deleted.

        Its place there is the same as here, or in the folder ``to``, which may be relative to the ranks' folder.
        ``exclude``: patterns of rsync. ``timeout``: seconds. ``progress`` gets lines of text. Hosts that share this
        machine's files are left alone.

        Raises :class:`BadRequest`, and :class:`UploadFailed` with the reason of each host that lacks files and its fix.
        """
        from .files.sync import sync_world

        self._link.check()
        found = sync_world(self.request, self._lent, path, to=to, exclude=exclude, timeout=timeout, progress=progress)
        found.check()
        return found

    # New ranks.

    def replace(
        self,
        names: Iterable[str] = (),
        source: int | None = None,
        *,
        replay: Iterable[int] = (),
        progress: Callable[[str], None] | None = None,
    ) -> Replaced:
        """Replace the dead ranks with new processes; the others keep their processes and variables.

        MPI's world and the frameworks' groups span all ranks again. ``replay``: runs whose cells the new ranks run
        again, alone. ``names``: variables that they get from the rank ``source`` (default: the lowest one that lives);
        what has a state, such as models and optimizers, gets that state on all ranks. ``progress`` gets lines of text.

        Raises :class:`BadRequest`, :class:`RanksBusy`, and :class:`ReplaceFailed` with the reason where it cannot work.
        """
        return self._heals.heal(names, source, replay, progress or (lambda _: None))

    def resize(
        self,
        n: int | None = None,
        names: Iterable[str] = (),
        source: int | None = None,
        *,
        drop: Ranks = None,
        replay: Iterable[int] = (),
        progress: Callable[[str], None] | None = None,
    ) -> Resized:
        """Give the world ``n`` ranks: start new ones, or end the highest; the others keep processes and variables.

        ``drop``: the ranks that leave instead, living or dead. The others are numbered anew in their order, so with
        ``drop=1`` rank 2 becomes rank 1. ``n`` may be left out then, and must fit where it is given. The text of the
        result says which rank has which number.

        MPI's world, ``RANK``, ``WORLD_SIZE`` and the frameworks' groups follow; dead ranks that stay are replaced on
        the way. Samplers and whatever else the user's code has divided by the number of ranks stay as they were. On a
        host with GPUs, ``LOCAL_RANK`` stays too, as it names the process' GPU. ``names``, ``source`` (a number from
        before the resize), ``replay`` and ``progress``, and what is raised: as for :meth:`replace`.
        """
        self._link.check_drives()
        before = self.world.size
        dropped = check_size(n, drop, self.world)
        healed = self._heals.heal(names, source, replay, progress or (lambda _: None), size=n, drop=dropped)
        moved = moves(numbers_without(dropped, before)) if dropped else {}
        return Resized(before, self.world.size if n is None else n, healed, moved)

    # Ending.

    def restart(
        self,
        ranks: Ranks = None,
        *,
        load: str | None = None,
        replay: Iterable[int] = (),
        progress: Callable[[str], None] | None = None,
    ) -> Replaced | None:
        """End all ranks and start the same world with fresh ones; their variables are gone.

        ``ranks``: only these, and all that are dead; the others keep their processes and variables, and the answer
        tells what became of the fresh ones, as that of :meth:`replace`. All living ranks are all. ``replay``: runs
        whose cells the fresh ranks run again. ``load``: a snapshot that all ranks load then, as :meth:`load` does with
        ``ready``.

        Raises :class:`BadRequest`, before anything ends, for a run or a snapshot that is not there, and
        :class:`StartFailed` when the world does not come up again; then it has ended. With ``ranks``, as :meth:`kill`
        and :meth:`replace`; :class:`RanksBusy`, before anything ends, while other ranks work on a run without these.
        """
        self._link.check_drives()
        if ranks is not None:
            if load is not None:
                raise BadRequest("A snapshot is loaded by all ranks: leave out the ranks, or load it afterwards.")
            chosen, world = self._link.choose(ranks), self._link.world
            if not {rank.rank for rank in world.ranks if not rank.has_ended} <= {*chosen}:
                return self._restart_some(chosen, list(replay), progress)
        cells = self._heals.sources(replay)
        if load is not None:
            find_snapshot(load)
        with open_sessions.starting():
            self._membership.restart(progress or (lambda _: None))
        self._trainings.forget()
        self._snapshots.place_orders()
        for cell in cells.values():
            self.run(cell)
        if load is not None:
            self.load(load, ready=True)
        return None

    def _restart_some(self, chosen: list[int], replay: list[int], progress: Callable[[str], None] | None) -> Replaced:
        world = self._link.world
        self._heals.check_alone(self._heals.sources(replay))
        if others := [run for run in self.running if not {*run.ranks} & {*chosen}]:
            raise RanksBusy(f"Nothing was killed: {still_work(dict.fromkeys(others[-1].ranks, others[-1].number))}.")
        if living := [rank for rank in chosen if not world.ranks[rank].has_ended]:
            self._membership.kill(living)
        self._heals.await_idle(self.settings.release_grace + self.settings.interrupt_timeout)
        return self.replace(replay=replay, progress=progress)

    def stop(self) -> None:
        """End the world; returns when nothing of it is left.

        Raises :class:`NoWorld` when it was stopped before, :class:`WorldLost` when it does not end in time.
        """
        self._membership.stop()

    def store_runs(self, patience: float = 2.0) -> None:
        """Have the store know all that the ranks have said by now, which it else does within a second.

        Readers of the store in this process begin so. Never raises, and gives up after ``patience`` seconds.
        """
        self._link.store_runs(patience)

    def _stop_soon(self) -> None:
        """Ask the world to end, without waiting: for a kernel that is shutting down."""
        self._membership.stop_soon()

    def leave(self) -> None:
        """Let go of the world, which goes on until its keep-alive time is over, unless another client takes control."""
        if not self._link.closed:
            self._membership.close()

    def __repr__(self) -> str:
        if self.closed:
            return f"<Session of world {self.name!r}: stopped>"
        return f"<Session of world {self.name!r}: {self.world.size} ranks{'' if self.controls else ', read-only'}>"

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

    # Inner.

    if not TYPE_CHECKING:  # a checker that saw it would take every mistyped name for a method

        def __getattr__(self, name: str) -> Callable[..., Any]:  # a framework's, as `tune`, or a former name
            if now := FORMER_NAMES.get(name):
                _warn_former(f"Session.{name}", f"Session.{now}")
                return getattr(self, now)
            place = None if name.startswith("_") else session_methods().get(name)
            if place is None:
                raise AttributeError(f"A Session has no attribute {name!r}.", name=name, obj=self)
            return MethodType(load(place), self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *session_methods()})

    def _send_comm(self, rank: int, request: SendToWidgets) -> Any:
        world, channel = self._link.bound()
        return channel.values(world.ranks[rank].engine, request)


open_sessions: OpenSessions[Session] = OpenSessions()
"""The open sessions of this process."""
before_reading.append(open_sessions.store_all)


def _warn_former(former: str, now: str) -> None:
    """Tell the caller of the public method that calls this what ``former`` is called now."""
    words = f"{former} is called {now} now. The former name works until the next release."
    warnings.warn(words, DeprecationWarning, stacklevel=3)


def save_profile(profile: str, /, **options: Unpack[StartOptions]) -> Path:
    """Save ``options`` of :meth:`Session.start` as a profile of that name, in Jupyter's configuration folder; its file.

    Without options: those that the current world was started with. ``n=4`` is one, too. A profile of that name is
    replaced, but for its defaults of cells; other profiles and comments stay. Nobody else can read the file, as values
    of ``env`` may be secrets.

    Raises :class:`BadRequest`, and :class:`NoWorld` without options and without a world.
    """
    if any(value is not None for value in options.values()):
        asked = check(options)
        values = flat_values(asked.world, asked.framework_values, asked.launcher_values)
    else:
        request = current().request
        values = flat_values(request.options, request.frameworks, request.launcher_options)
        values |= dict.fromkeys(("name", "mpiexec"))  # found when the world started
    return write_profile(profile, chosen_values(values | {"profile": None}))


def current() -> Session:
    """The session that was started last in this process. Raises :class:`NoWorld` when none has a world."""
    return open_sessions.current()

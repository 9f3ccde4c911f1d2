"""The agent speaks for a rank: it runs cells on the main thread and answers questions on the control thread.

The control thread works while a cell runs, as long as native code releases the interpreter lock: it answers the
requests of :mod:`~jupyter_dtrain.wire.agent_messages` in milliseconds. A cell comes as a message of our own rather than
as an ``execute_request``, so that nothing queues behind a cell that failed.

Under failure: every cell that began ends with one ``Finished`` event, see :mod:`.cell_end`. A cell that comes twice
runs once: the rank begins no number again. A cell that is interrupted before the rank has begun it ends without
running, and never runs later. A request that has no answer gets the error as its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.core.events import CommMessage
from jupyter_dtrain.core.secrets import environment_secrets, redact
from jupyter_dtrain.plugins.patches import Patch, raises_on_purpose
from jupyter_dtrain.wire.agent_messages import (
    AnyAgentRequest,
    AnyValuesRequest,
    EventsRead,
    FetchValues,
    FreeMemory,
    InterruptRank,
    MemoryFreed,
    MemoryReached,
    RankPosition,
    ReachMemory,
    ReadEvents,
    ReadMemoryRecord,
    ReadPosition,
    ReadStack,
    RecordRead,
    ReleaseRank,
    RunCell,
    SendToWidgets,
    Signalled,
    StoreValues,
    WidgetsSaid,
)
from jupyter_dtrain.wire.healing_messages import AnyHealingRequest
from jupyter_dtrain.wire.lent_memory import LentMemory
from jupyter_dtrain.wire.messages import (
    HELLO_MESSAGE,
    REPLY_MESSAGE,
    REQUEST_MESSAGE,
    RUN_MESSAGE,
    VALUES_MESSAGE,
    Cell,
    Done,
    accepted,
    from_content,
    refused,
    replied,
)
from jupyter_dtrain.wire.profile_messages import AnyProfileRequest, BeginProfile, EndProfile, ReadProfile, ReadTrace
from jupyter_dtrain.wire.prompt_messages import AnswerPrompt, NotePrompts
from jupyter_dtrain.wire.reports import Report
from jupyter_dtrain.wire.steering_messages import AnySteeringRequest, CarryOut, HoldSteps, LeaveSteps, ReadSteps
from jupyter_dtrain.wire.values import Received

from .cell_end import CellEnd
from .cell_sources import CellSources
from .comms import RankComms
from .configuration import Configuration
from .debugging import RankDebugger
from .descriptors import DescriptorReader
from .healing import RankHealing
from .interrupts import CellStopped, Interrupts
from .loop_acts import LoopActs
from .main_thread import MainThread
from .media import MediaLog
from .memory import free
from .memory_record import MemoryRecorder
from .metrics import MetricBuffer
from .namespace import bound_first, fetch_values, send_code_along, store_values
from .plugins import Plugins
from .process_tree import CellProcesses
from .prompts import RankPrompts, tell_of_question
from .questions import Question, RankQuestions
from .rank_context import ProgressBar
from .recorder import Recorder
from .resources import Sampler
from .scripts import forget_script, is_script
from .steering import StepGate
from .step_time import StepTimer
from .tracebacks import Tracebacks, blame_users
from .user_text import type_name, words_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipyparallel.engine.kernel import IPythonParallelKernel

    from jupyter_dtrain.core.world import Placement
    from jupyter_dtrain.wire.lent_memory import MemoryPlace

    from .step_work import StepWork

RELEASE_PATIENCE = 10.0
"""Seconds that a cell waits for the end of a release; one takes some 50 ms."""

_OPENING = "[jupyter-dtrain] This training goes on with run {}, from step {} on; with --resume none it begins anew.\n"
LEFT = "A thread that an earlier cell had left in {} was released, so that it takes no part in this cell's collectives."
_Looking = ReadPosition | ReadStack | ReachMemory | ReadEvents | ReadMemoryRecord
_Changing = AnswerPrompt | NotePrompts | ReleaseRank | InterruptRank
_Direct = _Looking | _Changing | AnyProfileRequest | AnySteeringRequest | AnyHealingRequest


KERNEL = Patch(
    "ipykernel.kernelbase",
    replaces=("Kernel.pre_handler_hook", "Kernel.post_handler_hook"),
    why="A kernel sets Python's own handler of SIGINT around each message, where an interrupt would break the engine.",
    lost="an interrupt that comes between two cells may end the rank",
)
ERRORS = Patch(
    "IPython.core.interactiveshell",
    replaces=("InteractiveShell.showtraceback",),
    reads=("_last_traceback",),
    why="IPython prints the traceback of each rank, while the errors of the ranks travel as data and are shown as one.",
    lost="each rank prints its traceback itself",
)
STORED_ERRORS = Patch(
    "IPython.core.interactiveshell",
    replaces=("InteractiveShell._format_exception_for_storage",),
    why="IPython 9 formats every error for its history, which takes up to a second and is never read in a rank.",
    lost="a cell that fails ends up to a second later",
)
COMMANDS = Patch(
    "IPython.core.interactiveshell",
    replaces=("InteractiveShell.system",),
    why="IPython runs !command in a terminal of its own, and a rank has none.",
    lost="the output of !command may come out of order",
)
LAZY_MAGICS = Patch(
    "IPython.core.magic",
    replaces=("MagicsManager.load_lazy",),
    why="IPython never loads a magic again if an interrupt has ended the first try.",
    lost="a magic may be unknown after an interrupt",
)
THREADS = Patch(
    "threading",
    replaces=("excepthook",),
    why="A thread that ends with an exception may have waited for other ranks, of which its cell then fails.",
    lost="a cell may not say that it failed because its thread has lost other ranks",
)


class Agent:
    """Handles every request to this rank."""

    def __init__(
        self,
        kernel: IPythonParallelKernel,
        place: Placement,
        recorder: Recorder,
        descriptors: DescriptorReader,
        plugins: Plugins,
        metrics: MetricBuffer,
        sampler: Sampler,
        comms: RankComms,
        step_work: StepWork,
        home: Path,
        report: Callable[[Report], None],
        generation: int,
        healing: RankHealing,
        configuration: Configuration,
        media: MediaLog,
    ) -> None:
        """``home``: the notebook's folder; ``report`` sends to the steward; ``generation``: the world's, now."""
        self._kernel = kernel
        self._healing = healing
        self._configuration = configuration
        self._shell = kernel.shell
        self._sources = CellSources(kernel.shell)
        self._usual_transformers = self._transformers()
        self._place = place
        self._generation = self._whole = generation
        """The generation of the last cell, and the one for which the frameworks are whole."""
        self._released = False
        """Whether ranks were released in the cell that runs, or a thread of it has lost those that it waited for."""
        self._recorder = recorder
        self._descriptors = descriptors
        self._plugins = plugins
        self._metrics = metrics
        self._media = media
        self._sampler = sampler
        self._comms = comms
        self._tracebacks = Tracebacks(self._sources.name_of, home, self._sources.written)
        self._main_thread = MainThread(
            plugins, self._tracebacks, self._sources.name_of, lambda: self._interrupts.awaited
        )
        self._interrupts = Interrupts(lambda file: self._sources.name_of(file) is not None, recorder.shield)
        plugins.is_interrupt = self._interrupts.has_raised
        self._interrupts.complain = self._complain
        self._complaints: Counter[str] = Counter()
        """How often each thing that cells have left behind has raised since the last cell began."""
        self._timer = StepTimer(plugins, self._sources.name_of)
        self._prompts = RankPrompts(recorder, self._tracebacks, self._interrupts, self._timer)
        self._processes = CellProcesses(plugins.services())
        plugins.bounded = self._interrupts.bounded
        self._cell_end = CellEnd(
            place,
            recorder,
            descriptors,
            plugins,
            metrics,
            sampler,
            self._tracebacks,
            self._main_thread,
            self._interrupts,
            self._processes,
            report,
            min(healing.heritage, default=None),
            media,
        )
        self._debugger = RankDebugger(
            self._prompts,
            self._sources,
            self._main_thread.waits_itself,
            lambda: {"rank": self._place.rank, "step": metrics.step},
            self._cell_end.lost_others,
        )
        self._step_work = step_work
        self._acts = LoopActs(
            self._shell,
            plugins,
            self._sources,
            self._tracebacks,
            step_work.say,
            self._debugger.stop_between,
            lambda: step_work.prompts_open,
            step_work.placed,
        )
        self._gate = step_work.gate = StepGate(recorder, metrics, self._acts, self._interrupts, self._timer)
        self._questions = RankQuestions(
            self._shell.user_ns,
            self._shell.user_ns_hidden,
            plugins,
            place,
            self._debugger.answer,
            self._main_thread.is_alone,
        )
        self._record = MemoryRecorder(plugins, self._questions.holdings, self._is_users, self._tracebacks.line)
        self._display_failure: BaseException | None = None
        self._running: int | None = None
        self._recovering = False
        """Whether the last recovery has not reached its end."""
        self._taken: set[int] = set()
        """The numbers of the runs that this rank has begun, or will never begin."""
        self._taking = threading.Lock()
        self._releasing = threading.Lock()
        """Held by a release, so that no cell begins before it is over: the cell would lose its new connections."""
        self._hearing = False
        """Whether callbacks of widgets run, between cells."""

    def install(self) -> None:
        """Take over the kernel's handlers and hooks. Main thread, before the kernel's loop starts."""
        kernel, shell = self._kernel, self._shell
        kernel.shell_handlers[RUN_MESSAGE] = self._run
        kernel.shell_handlers[HELLO_MESSAGE] = self._hello
        kernel.shell_handlers[VALUES_MESSAGE] = self._values
        # Both would bypass the recorder, and ipyparallel's handler unpickles data that no signature covers.
        for kind in ("execute_request", "apply_request"):
            kernel.shell_handlers.pop(kind, None)
        kernel.control_handlers[REQUEST_MESSAGE] = self._request
        KERNEL.when_imported(self._hook_kernel)
        self._interrupts.install()
        # A forked child would inherit the engine's handlers, and no signal would end it.
        os.register_at_fork(after_in_child=_default_signals)
        self._sources.install()
        self._configuration.install()
        # IPython warns so at every sys.exit(), which a rank survives like any exception.
        warnings.filterwarnings("ignore", message="To exit: use 'exit'")
        blame_users()
        ERRORS.when_imported(lambda _: ERRORS.replace(shell, "showtraceback", self._showtraceback))
        if hasattr(shell, "_format_exception_for_storage"):
            STORED_ERRORS.when_imported(
                lambda _: STORED_ERRORS.replace(shell, "_format_exception_for_storage", _format_nothing)
            )
        COMMANDS.when_imported(lambda _: COMMANDS.replace(shell, "system", self._system))
        self._prompts.install(shell)
        self._debugger.install(shell)
        if hasattr(shell.magics_manager, "load_lazy"):  # from IPython 9.18 on
            LAZY_MAGICS.when_imported(lambda _: LAZY_MAGICS.replace(shell.magics_manager, "load_lazy", self._load_lazy))
        send_code_along()
        THREADS.when_imported(lambda module: THREADS.replace(module, "excepthook", self._thread_failed))

    def _hook_kernel(self, _: Any) -> None:
        for name in ("pre_handler_hook", "post_handler_hook"):
            KERNEL.replace(self._kernel, name, lambda _original: None)

    def _load_lazy(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        with self._recorder.shield.briefly():
            return original(*args, **kwargs)

    def _thread_failed(self, original: Any, args: threading.ExceptHookArgs, /) -> None:
        """Note that a thread has ended with an exception, and whether it had waited for ranks that are lost."""
        lost = args.exc_value is not None and self._cell_end.lost_others(args.exc_value)
        self._released = self._released or (lost and self._running is not None)
        original(args)

    def outlive(self, error: BaseException) -> bool:
        """Whether the rank goes on after ``error``, which has left the engine's loop: user code sent it there."""
        if self._interrupts.ending:
            return False
        self._interrupts.raised("a callback or task of the event loop", error)
        return True

    def _complain(self, what: str, error: BaseException) -> None:
        """Show in the cell, or in the next one, that ``what`` has raised ``error``; only once until a cell begins."""
        self._complaints[what] += 1
        if self._complaints[what] > 1:
            return
        frames = self._tracebacks.place(error)
        at = f" ({frames})" if frames else ""
        self._recorder.write(
            "stderr",
            f"[jupyter-dtrain] While no code of a cell ran, {what} raised {words_of(error)}{at}. The rank goes on.\n",
        )

    async def _hello(self, stream: Any, ident: Any, parent: Any) -> None:
        self._kernel.session.send(stream, "dtrain_hello_reply", {"status": "ok"}, parent, ident=ident)

    async def _values(self, stream: Any, ident: Any, parent: Any) -> None:
        buffers: list[bytes] = []
        answer: msgspec.Struct = Done()
        try:
            request: AnyValuesRequest = from_content(parent["content"], AnyValuesRequest)
            match request:
                case StoreValues(values=values, memory=place):
                    store_values(Received(values, _taken(parent["buffers"]), place))
                case FetchValues(names=names, forget=forget, memory=place):
                    answer, buffers = fetch_values(names, place, forget=forget)
                case FreeMemory():
                    self._cell_end.forget()
                    answer = MemoryFreed(free(self._shell, self._plugins))
                case SendToWidgets(messages=messages):
                    answer = WidgetsSaid(self._hear_widgets(messages))
            content = accepted(answer)
        except BaseException as error:  # noqa: BLE001 — the asker gets it; user code may raise SystemExit, too
            content = refused(Refused(str(error) or type_name(error)))
        self._kernel.session.send(stream, "dtrain_values_reply", content, parent, ident=ident, buffers=buffers)

    def _hear_widgets(self, messages: list[CommMessage]) -> list[CommMessage]:
        self._hearing = True
        try:
            with self._interrupts.enabled(), self._interrupts.left_behind.in_force():
                return self._comms.hear(messages)
        finally:
            self._hearing = False

    async def _run(self, _stream: Any, _ident: Any, parent: Any) -> None:
        """Run a cell. Its events say all that there is to say: nobody waits for a reply, not even for a refusal."""
        try:
            cell = from_content(parent["content"], RunCell)
            self._take(cell.run)
        except Refused:
            return
        # Before the first event: with that, the client gives back the memory in which they came.
        inputs = Received(cell.inputs, _taken(parent["buffers"]), cell.memory)
        exception: BaseException | None = None
        self._questions.inventory.yield_values()
        try:
            self._begin(cell)
            self._prepare(cell, inputs)
            if cell.watch.record_memory:
                self._record.begin(cell.run)
            exception = await self._execute(cell.code)
        except BaseException as error:  # noqa: BLE001 — a run that was begun must end, whatever broke
            exception = error
        self._record.end()
        with contextlib.suppress(Exception):
            self._configuration.end()
        forget_script()
        spent = None
        with contextlib.suppress(Exception):
            self._step_work.end(failed=exception is not None)
        with contextlib.suppress(Exception):
            if (window := self._timer.take(self._metrics.step)) is not None:
                self._recorder.append(window)
            spent = self._timer.end()
        try:
            self._cell_end.end(
                cell.run, exception, released=self._released, recovering=self._recovering, spent=spent, over=self._over
            )
        finally:
            self._over()  # again, for an end that failed before it came to this; otherwise it changes nothing

    def _is_users(self, file: str) -> bool:
        return self._sources.name_of(file) is not None or is_script(file)

    def _over(self) -> None:
        self._questions.inventory.take_values()
        self._running, self._released = None, False  # it works on no run from here on
        self._prompts.end()
        self._gate.end()
        self._sources.end()
        self._healing.catch_up()

    def _begin(self, cell: RunCell) -> None:
        self._healing.catch_up()  # a world that came in the very moment in which the last cell ended
        # Within a deadline: a plug-in whose release never returns must not keep every later cell from beginning.
        came = self._releasing.acquire(timeout=RELEASE_PATIENCE)
        self._released = False
        self._running, self._generation = cell.run, cell.generation
        self._sources.begin(cell.run, cell.code, cell.cell)
        if came:
            self._releasing.release()
        first = self._place.rank == min(cell.ranks)
        known = environment_secrets()
        source = redact(cell.code, known) if first else ""
        self._recorder.begin(
            cell.run, cell.ranks, source, _without_secrets(cell.cell, known), elastic=cell.elastic, joins=cell.joins
        )
        for what, times in self._complaints.items():
            if times > 1:
                self._recorder.write(
                    "stderr", f"[jupyter-dtrain] Before this cell, {what} raised {times} exceptions.\n"
                )
        self._complaints.clear()
        context = cell.cell.context
        lead = self._place.rank == min(cell.ranks) and context.resumed
        self._metrics.begin(context.first_step, _OPENING.format(context.resumed, context.first_step) if lead else "")
        self._media.begin()
        self._prompts.begin(cell.run, cell.unanswered)
        self._processes.begin()
        self._main_thread.begin()
        self._timer.begin(on=cell.watch.step_time)
        self._sampler.begin(self._main_thread.still, self._timer)
        ProgressBar.begin_run()

    def _prepare(self, cell: RunCell, inputs: Received) -> None:
        generation = cell.generation
        left = self._main_thread.left() if generation != self._whole and len(cell.ranks) == self._place.size else []
        for call in sorted({wait.call for wait in left}):
            self._recorder.write("stderr", f"[jupyter-dtrain] {LEFT.format(call)}\n")
        self._plugins.release({wait.framework for wait in left})
        with self._interrupts.enabled():
            self._plugins.before_cell(cell.run, generation, cell.watch, cell.ranks)
            if cell.joins is not None:
                self._plugins.before_joining(cell.joins)
        self._cell_end.say_failures()
        if generation != self._whole and len(cell.ranks) == self._place.size:
            self._recover(cell.code)
            self._whole = generation
        store_values(inputs)
        whole = len(cell.ranks) == self._place.size
        self._gate.begin(cell.run, _unfit(cell), cell.watch, whole=whole)
        self._step_work.begin(cell.run, cell.watch, whole=whole, elastic=cell.elastic)
        self._configuration.begin(cell)

    def _take(self, run: int) -> None:
        """Raise :class:`Refused` for a run that was taken before: by its cell, or by an interrupt that came first."""
        # The control thread takes runs as well, for interrupts that come before their cell.
        with self._taking:
            if run in self._taken:
                raise Refused(f"Rank {self._place.rank} has already begun run {run}, or never will.")
            self._taken.add(run)

    def _recover(self, code: str) -> None:
        again, self._recovering = self._recovering, True
        with self._interrupts.enabled():
            for note in self._plugins.recover(bound_first(code), again=again):
                self._recorder.write("stderr", f"[jupyter-dtrain] {note}\n")
        self._recovering = False

    async def _execute(self, code: str) -> BaseException | None:
        """Run the cell as IPython's own kernel does, except for the parts that need that kernel's threads.

        Returns the exception that ended it before its last line, or None.
        """
        shell = self._shell
        self._display_failure = None
        result, user_code = None, self._interrupts.left_behind.in_force
        with self._interrupts.enabled():
            with user_code():
                transformed, failure = code, None
                if waits := self._may_wait(code):
                    try:
                        transformed = shell.transform_cell(code)
                    except Exception:  # noqa: BLE001 — a user's input transformer; run_cell reports it as an error
                        failure = sys.exc_info()
                    waits = shell.should_run_async(code, transformed_cell=transformed, preprocessing_exc_tuple=failure)
                # Code without a top-level await runs in no task: what an interrupt raises in a task may leave the loop.
                if not waits:
                    result = shell.run_cell(code, store_history=True)
            if result is None:
                result = await self._run_async(code, transformed, failure)
            with user_code():
                self._end_debugging(result)
        self._show_pages()
        exception: BaseException | None = result.error_before_exec or result.error_in_exec or self._display_failure
        self._display_failure = None
        return exception

    def _end_debugging(self, result: Any) -> None:
        self._acts.end()
        failed = result.error_in_exec
        try:
            if self._debugger.follows_errors and isinstance(failed, Exception) and failed.__traceback__ is not None:
                with contextlib.suppress(RuntimeError):  # nobody can answer
                    self._debugger.look_at(failed.__traceback__, "%pdb", of_cell=False)
        finally:
            if self._debugger.is_used:
                self._debugger.end()

    def _may_wait(self, code: str) -> bool:
        """Whether ``code`` may have a top-level await. Only then is it worth to transform it, as IPython will again."""
        return "await" in code or "async" in code or self._transformers() != self._usual_transformers

    def _transformers(self) -> list[list[Any]]:
        shell = self._shell
        return [list(shell.input_transformers_cleanup), list(shell.input_transformers_post)]

    async def _run_async(self, code: str, transformed: str, failure: Any) -> Any:
        shell = self._shell
        cell = shell.run_cell_async(
            code, store_history=True, transformed_cell=transformed, preprocessing_exc_tuple=failure
        )
        result = None
        try:
            result = await self._interrupts.wait_for(cell)
        finally:
            with self._interrupts.left_behind.in_force():
                shell.events.trigger("post_execute")
                shell.events.trigger("post_run_cell", result)
        return result

    def _show_pages(self) -> None:
        """Print what ``name?`` would put into a pager."""
        for payload in self._shell.payload_manager.read_payload():
            if payload.get("source") == "page":
                self._recorder.write("stdout", payload["data"].get("text/plain", "") + "\n")
        self._shell.payload_manager.clear_payload()

    def _system(self, _original: Any, cmd: str) -> None:
        """Run ``!command`` without a terminal, and show its output in order with what Python prints."""
        before, _ = self._recorder.printed()
        raises_on_purpose(_run_command)(self._shell, cmd)
        try:
            self._descriptors.drain()
            printed, last = self._recorder.printed()
            if printed > before and self._shell.user_ns.get("_exit_code"):
                tell_of_question(cmd, last)
        except Exception as error:  # noqa: BLE001 — else IPython's own function would run the command again
            COMMANDS.failed("system", error)

    def _showtraceback(
        self,
        _original: Any,
        exc_tuple: Any = None,
        filename: Any = None,  # noqa: ARG002 — IPython's signature
        tb_offset: Any = None,  # noqa: ARG002
        exception_only: bool = False,  # noqa: FBT001, FBT002
        running_compiled_code: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        """Print no traceback for the cell's own error: it travels as data."""
        kind, value, trace = sys.exc_info() if exc_tuple is None else exc_tuple
        sys.last_type, sys.last_value, sys.last_traceback = kind, value, trace
        self._shell._last_traceback = []  # noqa: SLF001 — where IPython keeps it
        if exc_tuple is not None:
            # A representation that failed: the value was not shown, so the cell has failed, or the act on its loop.
            if value is None or not self._acts.cannot_show(value):
                self._display_failure = value
        elif issubclass(type(value), (KeyboardInterrupt, CellStopped)) and self._interrupts.requested:
            # The signal came after the cell's last instruction, which had failed: the end of the cell reports that.
            return
        elif (self._running is not None or self._hearing) and not running_compiled_code and not exception_only:
            # A callback failed, not the cell; or, between cells, a push or a pull.
            traceback.print_exception(kind, value, trace)

    def _request(self, stream: Any, ident: Any, parent: Any) -> None:
        def say(content: dict[str, Any]) -> None:
            self._kernel.session.send(stream, REPLY_MESSAGE, content, parent, ident=ident)

        try:
            request: AnyAgentRequest = from_content(parent["content"], AnyAgentRequest)
        except Refused as error:
            say(refused(error))
            return
        if isinstance(request, Question):
            # They may take long, and this thread has more to do; it sends the answer once that is there.
            loop = asyncio.get_running_loop()
            if not self._questions.ask(request, lambda content: loop.call_soon_threadsafe(say, content)):
                say(refused(Refused("The rank is still answering an earlier question.")))
            return
        say(replied(lambda: self._answer(request)))

    def _answer(self, request: _Direct) -> msgspec.Struct:
        match request:
            case ReadPosition() | ReadStack() | ReachMemory() | ReadEvents() | ReadMemoryRecord():
                return self._look(request)
            case ReleaseRank():
                self._release(request)
            case InterruptRank():
                return Signalled(self._interrupt(request))
            case AnswerPrompt():
                self._prompts.answer(request)
            case NotePrompts() | ReadProfile() | BeginProfile() | EndProfile() | ReadTrace():
                return self._step_work.answer(request, self._running)
            case ReadSteps() | HoldSteps() | CarryOut() | LeaveSteps():
                return self._gate.answer(request)
            case _:
                return self._healing.answer(request, self._running)
        return Done()

    def _look(self, request: _Looking) -> msgspec.Struct:
        match request:
            case ReadPosition():
                return self._position(waits=request.waits)
            case ReadStack():
                return self._main_thread.stack("idle" if self._running is None else "running")
            case ReachMemory():
                return MemoryReached(_reaches(request.place))
            case ReadEvents():
                return EventsRead(self._recorder.read(request.run, request.from_seq))
            case ReadMemoryRecord():
                return RecordRead(self._record.read())

    def _interrupt(self, request: InterruptRank) -> bool:
        """Interrupt the cell and the processes that it has started; return whether the cell has taken it.

        A cell that was not begun counts as taken, so that the rank never begins it.
        """
        if request.run == self._running:
            taken = self._interrupts.send(force=request.force)
            if not taken:
                # Some calls of the main thread end only with the child that they wait for, such as os.system.
                self._processes.interrupt(force=request.force)
            return taken
        with contextlib.suppress(Refused):
            self._take(request.run)
            self._recorder.withdraw(request.run)
            return True
        return False

    def _position(self, *, waits: bool) -> RankPosition:
        run, next_seq, finished = self._recorder.position()
        works = self._running is not None
        return RankPosition(
            rank=self._place.rank,
            state="running" if works else "idle",
            run=run,
            next=next_seq,
            finished=finished,
            waits=self._main_thread.waits() if works and waits else None,
            frameworks=self._plugins.in_use() if waits else [],
        )

    def _release(self, request: ReleaseRank) -> None:
        with self._releasing:
            if request.generation < self._generation or self._running not in (None, request.run):
                return  # it came late, or for a rank that was left behind: the groups that exist now are whole
            self._released = self._running is not None
            self._plugins.release(request.frameworks)


def _unfit(cell: RunCell) -> str:
    """Why the loop of a cell cannot be steered, as a clause; empty where it can."""
    if cell.elastic:
        return "it goes on without ranks that die, so its ranks come to no step together"
    return "its ranks have joined those of another cell" if cell.joins is not None else ""


def _without_secrets(cell: Cell, known: frozenset[str]) -> Cell:
    """``cell`` with names that may be stored."""

    def clean(name: str) -> str:
        return redact(name, known, named=False)

    context = cell.context
    context = msgspec.structs.replace(context, heading=clean(context.heading), group=clean(context.group))
    return msgspec.structs.replace(cell, run_name=clean(cell.run_name), context=context)


def _run_command(_shell: Any, _command: str) -> None:
    """IPython takes the names of this frame for variables of the command."""
    _shell.system_raw(_command)


def _format_nothing(_original: Any, *_args: Any, **_kwargs: Any) -> dict[str, Any]:
    return {}


def _default_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _reaches(place: MemoryPlace) -> bool:
    try:
        LentMemory.borrow(place).close()
    except OSError:
        return False
    return True


def _taken(buffers: list[Any]) -> list[Any]:
    """Take the buffers out of a message: the kernel keeps the message until its next one, and the values with it."""
    taken = list(buffers)
    buffers.clear()
    return taken

"""The loaded plug-ins for frameworks: each capability is asked here, and guarded here.

A rank, and the steward, hold one :class:`Plugins` and call no plug-in by themselves. It asks only the plug-ins that
override a member of :mod:`jupyter_dtrain.plugins.framework`, passes each of them the arguments that it takes, and
checks the answers.

Under failure: whatever a plug-in raises (``SystemExit`` too, but for an interrupt of the user's), the others are asked
and the caller goes on. The first failure of a member is logged with its traceback and becomes a notice for the next
cell; further failures of the same member are silent. Exceptions that a member's contract names reach the caller. At
the end of a cell each member has :data:`PATIENCE` seconds; a rank does not ask again one that takes longer.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import threading
import traceback
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jupyter_dtrain.core.framework_report import FrameworkReport
from jupyter_dtrain.core.memory import DeviceMemory
from jupyter_dtrain.core.stacks import Collective
from jupyter_dtrain.core.step_time import PARTS
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.core.variables import Variable
from jupyter_dtrain.plugins.framework import ARGUMENTS, GROUP, Doing, Framework, HeldState, Holds, Part, Settable

from .interrupts import CellStopped, Overdue
from .user_text import Words, words_of

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
    from pathlib import Path
    from types import CodeType, FrameType

    from jupyter_dtrain.core.world import Placement
    from jupyter_dtrain.plugins.framework import Look, Read, Recording
    from jupyter_dtrain.plugins.patches import Fault
    from jupyter_dtrain.wire.messages import Watching
    from jupyter_dtrain.wire.requests import RankSpec

    from .metrics import MetricBuffer

PATIENCE = 10.0
"""Seconds that a member may take at the end of a cell. A cell that ended well may compute for longer."""

_BY_KEYWORD = ("failed", "idle")
"""The arguments that a member gets by keyword in any case."""
_BITS = 63
"""Size of a count in the rank's messages, without its sign."""

_log = logging.getLogger(__name__)


OWN = "jupyter-dtrain"
"""The distribution whose plug-ins are known to be imported without effects."""


@functools.cache
def _installed() -> list[EntryPoint]:
    """The installed plug-ins, by name. Looking through all installed packages takes as long as importing a plug-in."""
    return sorted(entry_points(group=GROUP), key=lambda entry: entry.name)


class Plugins:
    """The plug-ins of this process, by name. Any thread may ask, as far as the member's contract allows it."""

    def __init__(
        self,
        plugins: Iterable[tuple[str, Any]],
        log: Callable[[str], object] = _log.error,
    ) -> None:
        """``plugins``: names and objects, in the order in which they are asked. ``log`` takes failures at length."""
        self.log = log
        self.is_interrupt: Callable[[BaseException], bool] = lambda _: False
        """Whether an exception is the user's interrupt, which no guard may delay. A rank sets it once it runs cells."""
        self.bounded: Callable[[Callable[[], Any], float], Any] = lambda call, _: call()
        """Makes a call within so many seconds, at the end of a cell. A rank sets it once it runs cells."""
        self.was_cut = False
        """Whether a call at the end of the last cell was ended before it returned."""
        self.patience = PATIENCE
        """Seconds, see :data:`PATIENCE`."""
        self._lock = threading.Lock()
        self._failed: set[tuple[str, str]] = set()
        self._notices: list[str] = []
        self._asked: dict[str, list[PluginCall]] = {}
        """By member, the calls of the plug-ins that override it, as far as they were looked up."""
        self._plugins = list(plugins)

    @classmethod
    def load(cls, log: Callable[[str], object] = _log.error) -> Plugins:
        """Make a fresh object of each installed plug-in. One that cannot be loaded is left out, with a notice."""
        loaded = cls([], log)
        for entry in _installed():
            with loaded._guard(entry.name, ""):
                plugin = entry.load()()
                loaded._plugins.append((as_text(plugin.name), plugin))
        return loaded

    @staticmethod
    def preload() -> None:
        """Import this package's own plug-ins, for the processes that this one forks.

        Those of others may do what each process must do by itself, such as to seed random numbers. :meth:`load` meets
        again, and names, one that cannot be imported.
        """
        _installed.cache_clear()  # a process may wait long for its first fork
        for entry in _installed():
            if entry.dist is not None and entry.dist.name == OWN:
                with contextlib.suppress(Exception, SystemExit):
                    entry.load()

    def take_notices(self) -> list[str]:
        """Sentences for the user about failures since the last call, also of hooks into imports. Each appears once."""
        with self._lock:
            notices, self._notices = self._notices, []
        return notices

    def patch_failed(self, fault: Fault) -> None:
        """Keep a notice that a part which this package changes in a library was left out, or failed in a call."""
        with self._lock:
            self._notices.append(fault.words)
        with contextlib.suppress(Exception):
            self.log(f"{fault.words}\n{fault.trace}")

    # Start.

    def introduce(self) -> dict[str, str]:
        """Return what each plug-in lets other ranks know, by plug-in."""
        return dict(self._answers("introduce", as_text))

    def meet(self, introductions: list[dict[str, str]]) -> None:
        """Give each plug-in what it has introduced on all ranks. ``introductions``: of :meth:`introduce`, by rank."""
        for call in self._calls("meet"):
            with self._guard(call.name, "meet"):
                call([others.get(call.name, "") for others in introductions])

    def environment(
        self, place: Placement, spec: RankSpec, offer: Callable[[Mapping[str, Variable], str], object]
    ) -> None:
        """Call ``offer`` with the variables of each plug-in, and with its name."""
        for call in self._calls("environment"):
            with self._guard(call.name, "environment"):
                offer(as_variables(call(place=place, spec=spec)), call.name)

    def prepare(self, place: Placement, spec: RankSpec, metrics: MetricBuffer) -> None:
        """Prepare the plug-ins; one that raises is left out of all that follows."""
        for call in self._calls("prepare"):
            done = False
            with self._guard(call.name, "prepare"):
                call(place=place, spec=spec, metrics=metrics)
                done = True
            if not done:
                self._plugins = [(name, plugin) for name, plugin in self._plugins if plugin is not call.plugin]
                self._asked = {}

    # Description.

    def describe(self) -> dict[str, FrameworkReport]:
        """Return each framework's report of itself, by plug-in. Where a plug-in raises, its report says what."""
        found = {}
        for call in self._calls("describe"):
            try:
                facts = as_facts(call())
            except BaseException as error:  # noqa: BLE001 — a library of another version; the reader sees why
                facts = FrameworkReport(call.name, "", "", imported=True, details={"unknown": words_of(error)})
            if facts is not None:
                found[call.name] = facts
        return found

    def configuration(self) -> dict[str, dict[str, Any]]:
        """What the frameworks know of the training in this cell: hyper-parameters by name, by object."""
        found: dict[str, dict[str, Any]] = {}
        for _, objects in self._answers("configuration", as_objects):
            for name, values in objects.items():
                found.setdefault(name, {}).update(values)
        return found

    def in_use(self) -> list[str]:
        """Titles of the frameworks that user code has imported."""
        return [title for _, title in self._answers("in_use", as_text) if title]

    def without_steps(self) -> list[str]:
        """Titles of the frameworks in use that have models, if none in use can say that a step was made; else none."""
        using = {name: title for name, title in self._answers("in_use", as_text) if title}
        if any(call.name in using for call in self._calls("follow_steps")):
            return []
        return [using[call.name] for call in self._calls("parts") if call.name in using]

    # Cells.

    def before_cell(self, run: int, generation: int, watch: Watching, ranks: Sequence[int]) -> None:
        """Notify the plug-ins that a cell is about to run, on all of ``ranks``."""
        self._notify("before_cell", run=run, generation=generation, watch=watch, ranks=ranks)

    def before_joining(self, run: int) -> None:
        """Notify the plug-ins that this rank is new, and its cell that of ``run``, which goes on in other ranks."""
        self._notify("before_joining", run)

    def after_cell(self, *, failed: bool) -> None:
        """Notify the plug-ins that the cell has ended. One may wait for computations of a cell that has not failed."""
        self.was_cut = False
        self._notify_at_end("after_cell", self.patience if failed else math.inf, failed=failed)

    def services(self) -> list[str]:
        """Words in the command lines of processes that outlive the cell that started them."""
        found = (self._attribute(name, plugin, "services", as_texts, otherwise=()) for name, plugin in self._plugins)
        return [words for services in found for words in services if words]

    def children_ended(self, pids: set[int]) -> None:
        """Notify the plug-ins that the rank has ended the processes ``pids`` of the interrupted cell."""
        self._notify_at_end("children_ended", self.patience, pids)

    def steps(self) -> dict[str, int]:
        """Return how many steps each optimizer has made, by its variable."""
        return {name: count for _, counts in self._asked_at_end("steps", as_counts) for name, count in counts.items()}

    def follow_steps(self, call: Callable[[int], object] | None) -> None:
        """Call ``call`` after each step of the optimizer that steps first; None ends that."""
        self._notify("follow_steps", call)

    def stepping(self) -> Any:
        """The optimizer whose steps :meth:`follow_steps` counts; None where there is none."""
        return next((found for _, found in self._answers("stepping", lambda one: one) if found is not None), None)

    def profilers(self) -> list[str]:
        """Titles of the frameworks in use whose profiler can record something now."""
        using = {name: title for name, title in self._answers("in_use", as_text) if title}
        found = self._answers("recording", lambda recording: recording is not None)
        return [using[name] for name, can in found if can and name in using]

    def recording(self, *, with_steps: bool = True) -> tuple[str, Recording | None]:
        """A use of the profiler of the first plug-in that has one, and the plug-in's name.

        ``with_steps``: those that show steps are asked first, else last. Raises :class:`RuntimeError` with what failed.
        """
        shows = {call.name for call in self._calls("follow_steps")}
        for call in sorted(self._calls("recording"), key=lambda call: (call.name in shows) is not with_steps):
            try:
                found: Recording | None = call()
            except BaseException as error:
                if self.is_interrupt(error):
                    raise
                raise RuntimeError(f"The plug-in {call.name!r} failed in recording: {words_of(error)}") from error
            if found is not None:
                return call.name, found
        return "", None

    def is_log(self, line: str) -> bool:
        """Whether ``line`` is a log that no cell shows."""
        return any(answer for _, answer in self._answers("is_log", bool, line))

    # Values.

    def on_host(self, value: Any) -> Any:
        """``value`` with tensors on the host. Raises :class:`ValueError` or :class:`RuntimeError` with why not."""
        for call in self._calls("on_host"):
            try:
                value = call(value)
            except ValueError:
                raise
            except BaseException as error:
                if self.is_interrupt(error):
                    raise
                raise RuntimeError(f"The plug-in {call.name!r} failed in on_host: {words_of(error)}") from error
        return value

    def number(self, value: Any) -> tuple[Any, Read] | None:
        """The number that metrics take for ``value``, and its reader. Raises :class:`ValueError` with why not."""
        answers = self._answers("number", as_point, value, documented=(ValueError,))
        return next((point for _, point in answers if point is not None), None)

    def parts(self, name: str, value: Any, namespace: Mapping[str, Any]) -> list[Part] | None:
        """The parts of ``value`` by the first framework that knows it; None where none does. Any thread may ask."""
        answers = self._answers("parts", as_parts, name=name, value=value, namespace=namespace)
        return next((parts for _, parts in answers if parts is not None), None)

    def setting(self, value: Any, path: str, name: str, namespace: Mapping[str, Any]) -> Settable | None:
        """Where to set what follows ``value`` by ``path``, by the first framework that knows it."""
        answers = self._answers("setting", as_settable, value=value, path=path, name=name, namespace=namespace)
        return next((found for _, found in answers if found is not None), None)

    def states(self, namespace: Mapping[str, Any]) -> list[Part]:
        """The random states and step counters of all frameworks."""
        return [part for _, parts in self._answers("states", as_parts, namespace) for part in parts or ()]

    # Snapshots.

    def savers(self) -> list[str]:
        """The plug-ins that may save something: ranks with other ones cannot save together."""
        return [call.name for call in self._calls("save_values")]

    def save_values(
        self, values: Mapping[str, Any], namespace: Mapping[str, Any], size: int
    ) -> Iterator[tuple[str, list[str], dict[str, Any], list[str]]]:
        """Yield each plug-in that saves some of ``values``: its name, their names, its files, and its notes.

        Raises what the first plug-in that fails raises, once all were asked.
        """
        left, failed = dict(values), list[Exception]()
        for call in self._calls("save_values"):
            try:
                names, files, *more = call(values=left, namespace=namespace, size=size)
            except Exception as error:  # noqa: BLE001 — raised below: the next one may wait for all ranks, this one too
                failed.append(error)
                continue
            left = {name: value for name, value in left.items() if name not in names}
            if names:
                yield call.name, list(names), files, [str(note) for notes in more for note in notes]
        if failed:
            raise failed[0]

    def misfit(self, plugin: str, values: Mapping[str, Any], namespace: Mapping[str, Any], folder: Path) -> str:
        """Why the states that ``plugin`` has saved do not fit; empty where they do."""
        for call in self._calls("misfit"):
            if call.name == plugin:
                return as_text(call(values=values, namespace=namespace, folder=folder))
        return f"the framework {plugin!r}, which saved {', '.join(values)}, is not installed here"

    def load_values(
        self, plugin: str, values: Mapping[str, Any], namespace: MutableMapping[str, Any], folder: Path
    ) -> list[str]:
        """Load the states that ``plugin`` has saved; return its notes. Raises what the plug-in raises."""
        for call in self._calls("load_values"):
            if call.name == plugin:
                return [str(note) for note in call(values=values, namespace=namespace, folder=folder) or ()]
        return []

    # Memory.

    def hold(self, namespace: Mapping[str, Any], room: int) -> list[HeldState]:
        """Copies of the training's state, one by each framework in it. Raises :class:`MemoryError` without room."""
        found: list[HeldState] = []
        for call in self._calls("hold"):
            left = room - sum(one.size for one in found)
            with self._guard(call.name, "hold", documented=MemoryError):
                if (held := as_held(call(namespace=namespace, room=left))) is not None:
                    found.append(held)
        return found

    def holder(self, kind: type) -> Look | None:
        """What looks into objects of the type ``kind``, by the first framework that knows it. Any thread may ask."""
        for name, look in self._answers("holder", as_look, kind):
            if look is not None:
                return functools.partial(self._held, name, look)
        return None

    def _held(self, name: str, look: Look, value: Any, still: bool) -> Holds:  # noqa: FBT001 — as the contract has it
        with self._guard(name, "holder"):
            return Holds(*look(value, still))
        return Holds()

    def devices(self) -> list[DeviceMemory]:
        """The memory of the devices that the frameworks use."""
        return [one for _, found in self._answers("devices", as_devices) for one in found]

    def reserved(self) -> int:
        """Bytes of GPU memory that the frameworks hold."""
        return sum(size for _, size in self._answers("reserved", lambda size: 0 if size is None else as_count(size)))

    def is_out_of_memory(self, exception: BaseException) -> bool:
        """Whether a framework says with ``exception`` that there was not enough memory."""
        return any(answer for _, answer in self._answers("is_out_of_memory", bool, exception))

    def free_memory(self) -> None:
        """Give back the memory that is not in use."""
        self._notify("free_memory")

    # Waiting.

    def waits(self, frame: FrameType, call: ast.Call | None, *, idle: bool) -> tuple[str, str] | None:
        """The first plug-in that knows the call in which a thread waits, with that call; None if no plug-in does."""
        answers = self._answers("waits", as_text, frame=frame, call=call, idle=idle)
        return next(((name, word) for name, word in answers if word), None)

    def part_of(self, code: CodeType) -> Doing | None:
        """What a function does in a step, by the first plug-in that knows it."""
        return next((answer for _, answer in self._answers("part_of", as_doing, code) if answer), None)

    def part_at(self, frame: FrameType, call: ast.Call | None) -> Doing | None:
        """What the main thread does in a native call, by the first plug-in that knows it."""
        return next(
            (answer for _, answer in self._answers("part_at", as_doing, frame=frame, call=call) if answer), None
        )

    def sleeps(self, part: str) -> str:
        """The call in which the main thread, which sleeps in this part of a step, waits for other ranks; else empty."""
        return next((answer for _, answer in self._answers("sleeps", as_text, part) if answer), "")

    def can_release(self, name: str, word: str) -> bool:
        """Whether the plug-in ``name`` can end a wait in ``word``."""
        for call in self._calls("can_release"):
            if call.name == name:
                with self._guard(name, "can_release"):
                    return bool(call(word))
        return True

    def worked(self) -> int:
        """Return a count that rises while others work for this rank's cell."""
        return sum(count for _, count in self._answers("worked", as_count))

    def collectives(self) -> list[Collective]:
        """The last collectives of each group."""
        return [one for _, collectives in self._answers("collectives", as_collectives) for one in collectives]

    def is_released(self, exception: BaseException) -> bool:
        """Whether a framework says with ``exception`` that another rank's release, or its death, has ended the call."""
        return any(answer for _, answer in self._answers("is_released", bool, exception))

    # Recovery.

    def needs_regroup(self) -> bool:
        """Whether the next set-up must be in a new generation."""
        return any(answer for _, answer in self._asked_at_end("needs_regroup", bool))

    def is_apart(self) -> bool:
        """Whether this rank has begun something with other ranks that does not come about."""
        return any(answer for _, answer in self._asked_at_end("is_apart", bool))

    def release(self, names: Iterable[str]) -> None:
        """End every wait for other ranks in the frameworks ``names``; an empty name stands for all."""
        wanted = set(names)
        for call in self._calls("release"):
            if call.name in wanted or "" in wanted:
                with self._guard(call.name, "release"):
                    call()

    def recover(self, bound: frozenset[str] = frozenset(), *, again: bool = False) -> Iterator[str]:
        """Rebuild released groups; yield a note for each part that cannot be rebuilt. Raises what stands in the way.

        ``bound``: the names that the next cell binds before it reads them; ``again``: whether the last try failed here.
        """
        last = {
            name: self._attribute(name, plugin, "recovers_last", bool, otherwise=False)
            for name, plugin in self._plugins
        }
        for call in sorted(self._calls("recover"), key=lambda call: last[call.name]):
            try:
                notes = [as_text(note) for note in call(bound=bound, again=again)]
            except Exception:
                raise
            except BaseException as error:
                if self.is_interrupt(error):
                    raise
                raise RuntimeError(f"The plug-in {call.name!r} failed in recover: {words_of(error)}") from error
            yield from notes

    # Ranks that replace dead ones.

    def cannot_heal(self) -> list[str]:
        """Sentences on what a heal cannot make whole here."""
        return [words for _, words in self._answers("cannot_heal", as_text) if words]

    def forbids_heal(self) -> list[str]:
        """Why no heal and no resize can work here."""
        return [words for _, words in self._answers("forbids_heal", as_text) if words]

    def forbids_fewer(self) -> list[str]:
        """Why the world cannot lose ranks that live."""
        return [words for _, words in self._answers("forbids_fewer", as_text) if words]

    def bequeath(self) -> dict[str, str]:
        """The words that this rank leaves to new ones, by plug-in."""
        return {name: words for name, words in self._answers("bequeath", as_text) if words}

    def inherit(self, heritage: Mapping[int, Mapping[str, str]]) -> None:
        """Give the plug-ins of this new rank what those of each living rank have left to them."""
        for call in self._calls("inherit"):
            with self._guard(call.name, "inherit"):
                call({rank: left[call.name] for rank, left in heritage.items() if call.name in left})

    def rejoin(self) -> None:
        """Notify the plug-ins that there are new ranks, or fewer ones, in a new MPI world."""
        self._notify("rejoin")

    # Server.

    def rendezvous(self) -> str | None:
        """The first plug-in's module that serves as the world's rendezvous store."""
        modules = (self._attribute(name, plugin, "rendezvous", as_module) for name, plugin in self._plugins)
        return next((module for module in modules if module is not None), None)

    def servers(self) -> dict[str, str]:
        """The modules of the servers that plug-ins have the steward run, by plug-in."""
        found = {name: self._attribute(name, plugin, "server", as_module) for name, plugin in self._plugins}
        return {name: module for name, module in found.items() if module is not None}

    # How they are asked.

    def _calls(self, member: str) -> list[PluginCall]:
        found = self._asked.get(member)
        if found is None:
            found = self._asked[member] = [
                PluginCall(name, plugin, member, wanted_by(plugin, member))
                for name, plugin in self._plugins
                if overrides(plugin, member)
            ]
        return found

    def _notify(self, member: str, *values: Any, **arguments: Any) -> None:
        """Call a member that has no answer in every plug-in."""
        for call in self._calls(member):
            with self._guard(call.name, member):
                call(*values, **arguments)

    def _notify_at_end(self, member: str, patience: float, *values: Any, **arguments: Any) -> None:
        """Call such a member at the end of a cell, in each plug-in for at most ``patience`` seconds."""
        for call in self._calls(member):
            with self._guard(call.name, member):
                self.bounded(functools.partial(call.__call__, *values, **arguments), patience)

    def _answers(
        self,
        member: str,
        take: Callable[[Any], Any],
        *values: Any,
        documented: tuple[type[BaseException], ...] = (),
        **arguments: Any,
    ) -> Iterator[tuple[str, Any]]:
        """Yield the name of each plug-in with what ``take``, which may raise, makes of its answer."""
        for call in self._calls(member):
            try:
                answer = take(call(*values, **arguments))
            except documented:
                raise
            except BaseException as error:  # noqa: BLE001 — the guard
                self._fails(call.name, member, error)
            else:
                yield call.name, answer

    def _asked_at_end(self, member: str, take: Callable[[Any], Any]) -> Iterator[tuple[str, Any]]:
        def taken(call: PluginCall) -> Any:
            return take(call())

        for call in self._calls(member):
            try:
                answer = self.bounded(functools.partial(taken, call), self.patience)
            except BaseException as error:  # noqa: BLE001 — the guard
                self._fails(call.name, member, error)
            else:
                yield call.name, answer

    def _attribute(self, name: str, plugin: Any, member: str, take: Callable[[Any], Any], otherwise: Any = None) -> Any:
        with self._guard(name, member):
            return take(getattr(plugin, member, otherwise))
        return otherwise

    @contextlib.contextmanager
    def _guard(
        self, name: str, member: str, documented: tuple[type[BaseException], ...] | type[BaseException] = ()
    ) -> Iterator[None]:
        try:
            yield
        except documented:
            raise
        except BaseException as error:  # noqa: BLE001 — the guard
            self._fails(name, member, error)

    def _fails(self, name: str, member: str, error: BaseException) -> None:
        if self.is_interrupt(error):
            raise error
        if isinstance(error, (Overdue, CellStopped)):
            self.was_cut = True
        if isinstance(error, CellStopped):
            return  # Stop has ended what it waited for: no failure of its own
        if isinstance(error, Overdue):
            self._asked[member] = [call for call in self._calls(member) if call.name != name]
        with self._lock:
            if (name, member) in self._failed:
                return
            self._failed.add((name, member))
        words = Words()
        what = f"failed in {member}" if member else "cannot be loaded"
        notice = f"The plug-in {name!r} {what}: {words_of(error, words)}. This rank goes on without it."
        with self._lock:
            self._notices.append(notice)
        trace = words.ask(lambda: "".join(traceback.format_exception(error)), "Its traceback {}.".format)
        with contextlib.suppress(Exception):
            self.log(f"{notice}\n{trace}")


class PluginCall(NamedTuple):
    """A member of one plug-in."""

    name: str
    plugin: Any
    member: str
    wanted: frozenset[str] | None
    """The arguments that the plug-in takes by name; None where it takes all, in the order of the contract."""

    def __call__(self, *values: Any, **arguments: Any) -> Any:
        """Call the member with the arguments that the plug-in takes."""
        method = getattr(self.plugin, self.member)
        if self.wanted is not None:
            return method(*values, **{name: arguments[name] for name in self.wanted})
        by_keyword = {name: arguments.pop(name) for name in _BY_KEYWORD if name in arguments}
        return method(*values, *arguments.values(), **by_keyword)


def wanted_by(plugin: Any, member: str) -> frozenset[str] | None:
    """The arguments that the member of a plug-in takes by name.

    None for a plug-in that has names of its own for them: it gets all arguments, in the order of the contract.
    """
    known = ARGUMENTS.get(member, ())
    try:
        parameters = inspect.signature(getattr(plugin, member)).parameters.values()
    except BaseException:  # noqa: BLE001 — the call will raise it again, where it is guarded
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if any(one.kind not in named or (one.name not in known and one.default is one.empty) for one in parameters):
        return None
    return frozenset(one.name for one in parameters if one.name in known)


def overrides(plugin: Any, member: str) -> bool:
    """Whether the plug-in overrides a member, and so has something to do there."""
    try:
        own = getattr(type(plugin), member, None)
    except BaseException:  # noqa: BLE001 — the call will raise it again, where it is guarded
        return True
    return own is not None and own is not getattr(Framework, member)


# The types that answers may have. Each raises for another type; the guard then names the plug-in.


def as_text(answer: Any) -> str:
    """Read an answer that is a text, and replace lone surrogates in it."""
    if not isinstance(answer, str):
        raise TypeError(f"a string is expected, not {type(answer).__name__}")
    return answer.encode("utf-8", "replace").decode()


def as_texts(answer: Any) -> tuple[str, ...]:
    """Read an answer that is several texts."""
    return tuple(map(as_text, answer))


def as_doing(answer: Any) -> Doing | None:
    """The answer to :meth:`.Framework.part_of` or :meth:`.Framework.part_at`."""
    if answer is not None and not (isinstance(answer, Doing) and answer.part in PARTS):
        raise TypeError(f"a plug-in must say a part of a step, not {answer!r}")
    return answer


def as_module(answer: Any) -> str | None:
    """Read an answer that is the name of a module, or None."""
    return None if answer is None else as_text(answer)


def as_count(answer: Any) -> int:
    """Read an answer that is a number which the rank's messages can carry."""
    number = int(answer)
    if number.bit_length() > _BITS:
        raise OverflowError("a count of 64 bits is expected, not a larger one")
    return number


def as_counts(answer: Any) -> dict[str, int]:
    """Read an answer that is counts by name."""
    return {as_text(name): as_count(count) for name, count in answer.items()}


def as_objects(answer: Any) -> dict[str, dict[str, Any]]:
    """Read an answer that is values by name, by object."""
    return {as_text(name): {as_text(key): value for key, value in values.items()} for name, values in answer.items()}


def as_variables(answer: Any) -> dict[str, Variable]:
    """Read an answer that is variables of the environment, by name."""
    found = {as_text(name): variable for name, variable in answer.items()}
    return msgspec.convert(msgspec.to_builtins(found), readable(dict[str, Variable]))


def as_facts(answer: Any) -> FrameworkReport | None:
    """Read an answer that is a framework's report of itself, or None."""
    return msgspec.convert(msgspec.to_builtins(answer), readable(FrameworkReport | None))


def as_collectives(answer: Any) -> list[Collective]:
    """Read an answer that is a list of recorded collectives."""
    return msgspec.convert(msgspec.to_builtins(answer), readable(list[Collective]))


def as_point(answer: Any) -> tuple[Any, Read] | None:
    """Read an answer that is a value which metrics take, with its reader, or None."""
    if answer is None:
        return None
    value, read = answer
    if not callable(read):
        raise TypeError(f"a function that reads values is expected, not {type(read).__name__}")
    return value, read


def as_look(answer: Any) -> Look | None:
    """Read an answer that is a function which looks into objects, or None."""
    if answer is not None and not callable(answer):
        raise TypeError(f"a function that looks into objects is expected, not {type(answer).__name__}")
    look: Look | None = answer
    return look


def as_held(answer: Any) -> HeldState | None:
    """Read an answer that is a copy of a training's state, or None."""
    if answer is not None and not isinstance(answer, HeldState):
        raise TypeError(f"a HeldState is expected, not {type(answer).__name__}")
    return answer


def as_settable(answer: Any) -> Settable | None:
    """Read an answer that is places in which a value may be set, or None."""
    if answer is not None and not isinstance(answer, Settable):
        raise TypeError(f"a Settable is expected, not {type(answer).__name__}")
    return answer


def as_devices(answer: Any) -> list[DeviceMemory]:
    """Read an answer that is the memory of devices."""
    return msgspec.convert(msgspec.to_builtins(answer), readable(list[DeviceMemory]))


def as_parts(answer: Any) -> list[Part] | None:
    """Read an answer that is parts of a variable, or None."""
    if answer is None:
        return None
    found = list(answer)
    for one in found:
        if not isinstance(one, Part):
            raise TypeError(f"a Part is expected, not {type(one).__name__}")
    return found

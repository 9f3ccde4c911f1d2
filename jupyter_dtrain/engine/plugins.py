"""The loaded plug-ins for frameworks: each capability is asked here, and guarded here.

A rank, and the steward, hold one :class:`Plugins` and call no plug-in by themselves. It asks only the plug-ins that
override a member of :mod:`.framework`, passes each of them the arguments that it takes, and checks the answers.

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
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jupyter_dtrain.core.facts import Facts
from jupyter_dtrain.core.stacks import Collective
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.core.variables import Variable

from . import imports
from .framework import ARGUMENTS, GROUP, Framework
from .interrupts import CellStopped, Overdue
from .words import Words, words_of

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import FrameType

    from jupyter_dtrain.core.world import Placement
    from jupyter_dtrain.wire.messages import Watching
    from jupyter_dtrain.wire.requests import RankSpec

    from .metrics import MetricBuffer, Read

PATIENCE = 10.0
"""Seconds that a member may take at the end of a cell. A cell that ended well may compute for longer."""
_BY_KEYWORD = ("failed", "idle")
"""The arguments that a member gets by keyword in any case."""
_BITS = 63
"""Size of a count in the rank's messages, without its sign."""

_log = logging.getLogger(__name__)


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
        self._asked: dict[str, list[_Call]] = {}
        """By member: the plug-ins that have it, as far as they were looked up."""
        self._plugins = list(plugins)

    @classmethod
    def load(cls, log: Callable[[str], object] = _log.error) -> Plugins:
        """One fresh object per installed plug-in. A plug-in that cannot be loaded is a failure, and is left out."""
        loaded = cls([], log)
        for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
            with loaded._guard(entry.name, ""):
                plugin = entry.load()()
                loaded._plugins.append((_text(plugin.name), plugin))
        return loaded

    @property
    def names(self) -> list[str]:
        """The names of the plug-ins."""
        return [name for name, _ in self._plugins]

    def take_notices(self) -> list[str]:
        """Sentences for the user about failures since the last call, also of hooks into imports. Each appears once."""
        with self._lock:
            notices, self._notices = self._notices, []
        return [*notices, *imports.take_notices()]

    # Start.

    def introduce(self) -> dict[str, str]:
        """Introductions, by plug-in."""
        return dict(self._answers("introduce", _text))

    def meet(self, introductions: list[dict[str, str]]) -> None:
        """``introductions``: what :meth:`introduce` gave on each rank, by rank."""
        for call in self._calls("meet"):
            with self._guard(call.name, "meet"):
                call([others.get(call.name, "") for others in introductions])

    def environment(
        self, place: Placement, spec: RankSpec, offer: Callable[[Mapping[str, Variable], str], object]
    ) -> None:
        """Each plug-in's variables are ``offer``-ed with its name."""
        for call in self._calls("environment"):
            with self._guard(call.name, "environment"):
                offer(_variables(call(place=place, spec=spec)), call.name)

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

    def describe(self) -> dict[str, Facts]:
        """Facts, by plug-in. The facts of a plug-in that raises say what it raised."""
        found = {}
        for call in self._calls("describe"):
            try:
                facts = _facts(call())
            except BaseException as error:  # noqa: BLE001 — a library of another version; the reader sees why
                facts = Facts(call.name, "", "", imported=True, details={"unknown": words_of(error)})
            if facts is not None:
                found[call.name] = facts
        return found

    def in_use(self) -> list[str]:
        """Titles of the frameworks that user code has imported."""
        return [title for _, title in self._answers("in_use", _text) if title]

    # Cells.

    def before_cell(self, run: int, generation: int, watch: Watching) -> None:
        """A cell is about to run."""
        self._tell("before_cell", run=run, generation=generation, watch=watch)

    def after_cell(self, *, failed: bool) -> None:
        """The cell has ended. A plug-in may wait for computations of a cell that has not failed."""
        self.was_cut = False
        patience = self.patience if failed else math.inf
        for call in self._calls("after_cell"):
            try:
                self.bounded(functools.partial(call.__call__, failed=failed), patience)
            except BaseException as error:  # noqa: BLE001 — the guard
                self._fails(call.name, "after_cell", error)

    def services(self) -> list[str]:
        """Words in the command lines of processes that outlive the cell that started them."""
        found = (self._attribute(name, plugin, "services", _texts, otherwise=()) for name, plugin in self._plugins)
        return [words for services in found for words in services if words]

    def children_ended(self, pids: set[int]) -> None:
        """``pids``: processes of the interrupted cell that were ended."""
        for call in self._calls("children_ended"):
            try:
                self.bounded(functools.partial(call.__call__, pids), self.patience)
            except BaseException as error:  # noqa: BLE001 — the guard
                self._fails(call.name, "children_ended", error)

    def steps(self) -> dict[str, int]:
        """How many steps each optimizer has made."""
        return {name: count for _, counts in self._asked_at_end("steps", _counts) for name, count in counts.items()}

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
        answers = self._answers("number", _point, value, documented=(ValueError,))
        return next((point for _, point in answers if point is not None), None)

    # Memory.

    def reserved(self) -> int:
        """Bytes of GPU memory that the frameworks hold."""
        return sum(size for _, size in self._answers("reserved", lambda size: 0 if size is None else _count(size)))

    def is_out_of_memory(self, exception: BaseException) -> bool:
        """Whether a framework says with ``exception`` that there was not enough memory."""
        return any(answer for _, answer in self._answers("is_out_of_memory", bool, exception))

    def free_memory(self) -> None:
        """Give back the memory that is not in use."""
        self._tell("free_memory")

    # Waiting.

    def waits(self, frame: FrameType, call: ast.Call | None, *, idle: bool) -> tuple[str, str] | None:
        """The first plug-in that knows the call in which a thread waits, with that call; None if no plug-in does."""
        answers = self._answers("waits", _text, frame=frame, call=call, idle=idle)
        return next(((name, word) for name, word in answers if word), None)

    def can_release(self, name: str, word: str) -> bool:
        """Whether the plug-in ``name`` can end a wait in ``word``."""
        for call in self._calls("can_release"):
            if call.name == name:
                with self._guard(name, "can_release"):
                    return bool(call(word))
        return True

    def worked(self) -> int:
        """Rises while others work for this rank's cell."""
        return sum(count for _, count in self._answers("worked", _count))

    def collectives(self) -> list[Collective]:
        """The last collectives of each group."""
        return [one for _, collectives in self._answers("collectives", _collectives) for one in collectives]

    # Recovery.

    def needs_regroup(self) -> bool:
        """Whether the next set-up must be in a new generation."""
        return any(answer for _, answer in self._asked_at_end("needs_regroup", bool))

    def is_apart(self) -> bool:
        """Whether this rank has begun something with other ranks that does not come about."""
        return any(answer for _, answer in self._asked_at_end("is_apart", bool))

    def release(self, names: Iterable[str]) -> None:
        """Release what waits in the frameworks ``names``; an empty name stands for all."""
        wanted = set(names)
        for call in self._calls("release"):
            if call.name in wanted or "" in wanted:
                with self._guard(call.name, "release"):
                    call()

    def recover(self, bound: frozenset[str] = frozenset(), *, again: bool = False) -> Iterator[str]:
        """Make whole what was released; yield sentences about what could not be. Raises what stands in the way.

        ``bound``: the names that the next cell binds before it reads them; ``again``: whether the last try failed here.
        """
        last = {
            name: self._attribute(name, plugin, "recovers_last", bool, otherwise=False)
            for name, plugin in self._plugins
        }
        for call in sorted(self._calls("recover"), key=lambda call: last[call.name]):
            try:
                notes = [_text(note) for note in call(bound=bound, again=again)]
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
        return [words for _, words in self._answers("cannot_heal", _text) if words]

    def forbids_heal(self) -> list[str]:
        """Why no new process can take a dead rank's place."""
        return [words for _, words in self._answers("forbids_heal", _text) if words]

    def bequeath(self) -> dict[str, str]:
        """The words that this rank leaves to new ones, by plug-in."""
        return {name: words for name, words in self._answers("bequeath", _text) if words}

    def inherit(self, heritage: Mapping[int, Mapping[str, str]]) -> None:
        """Take what each living rank has left."""
        for call in self._calls("inherit"):
            with self._guard(call.name, "inherit"):
                call({rank: left[call.name] for rank, left in heritage.items() if call.name in left})

    def rejoin(self) -> None:
        """New processes have taken the place of dead ranks."""
        self._tell("rejoin")

    # Server.

    def rendezvous(self) -> str | None:
        """The first plug-in's module that serves as the world's rendezvous store."""
        modules = (self._attribute(name, plugin, "rendezvous", _module) for name, plugin in self._plugins)
        return next((module for module in modules if module is not None), None)

    def servers(self) -> dict[str, str]:
        """Modules of servers, by plug-in."""
        found = {name: self._attribute(name, plugin, "server", _module) for name, plugin in self._plugins}
        return {name: module for name, module in found.items() if module is not None}

    # How they are asked.

    def _calls(self, member: str) -> list[_Call]:
        found = self._asked.get(member)
        if found is None:
            found = self._asked[member] = [
                _Call(name, plugin, member, _wanted(plugin, member))
                for name, plugin in self._plugins
                if _overrides(plugin, member)
            ]
        return found

    def _tell(self, member: str, **arguments: Any) -> None:
        for call in self._calls(member):
            try:
                call(**arguments)
            except BaseException as error:  # noqa: BLE001 — the guard
                self._fails(call.name, member, error)

    def _answers(
        self,
        member: str,
        take: Callable[[Any], Any],
        *values: Any,
        documented: tuple[type[BaseException], ...] = (),
        **arguments: Any,
    ) -> Iterator[tuple[str, Any]]:
        """Names of plug-ins with what ``take``, which may raise, makes of their answers."""
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
        for call in self._calls(member):
            try:
                answer = self.bounded(functools.partial(_taken, take, call), self.patience)
            except BaseException as error:  # noqa: BLE001 — the guard
                self._fails(call.name, member, error)
            else:
                yield call.name, answer

    def _attribute(self, name: str, plugin: Any, member: str, take: Callable[[Any], Any], otherwise: Any = None) -> Any:
        with self._guard(name, member):
            return take(getattr(plugin, member, otherwise))
        return otherwise

    @contextlib.contextmanager
    def _guard(self, name: str, member: str) -> Iterator[None]:
        try:
            yield
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
        notice = f"The plug-in {name!r} {_failed_in(member)}: {words_of(error, words)}. This rank goes on without it."
        with self._lock:
            self._notices.append(notice)
        trace = words.ask(lambda: "".join(traceback.format_exception(error)), "Its traceback {}.".format)
        with contextlib.suppress(Exception):
            self.log(f"{notice}\n{trace}")


class _Call(NamedTuple):
    """A member of one plug-in."""

    name: str
    plugin: Any
    member: str
    wanted: frozenset[str] | None
    """The arguments that it takes by name; None where it takes them as its contract has them."""

    def __call__(self, *values: Any, **arguments: Any) -> Any:
        method = getattr(self.plugin, self.member)
        if self.wanted is not None:
            return method(*values, **{name: arguments[name] for name in self.wanted})
        by_keyword = {name: arguments.pop(name) for name in _BY_KEYWORD if name in arguments}
        return method(*values, *arguments.values(), **by_keyword)


def _wanted(plugin: Any, member: str) -> frozenset[str] | None:
    """A plug-in that has names of its own for arguments gets all of them, in the order of the contract."""
    known = ARGUMENTS.get(member, ())
    try:
        parameters = inspect.signature(getattr(plugin, member)).parameters.values()
    except BaseException:  # noqa: BLE001 — the call will raise it again, where it is guarded
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if any(one.kind not in named or (one.name not in known and one.default is one.empty) for one in parameters):
        return None
    return frozenset(one.name for one in parameters if one.name in known)


def _overrides(plugin: Any, member: str) -> bool:
    try:
        own = getattr(type(plugin), member, None)
    except BaseException:  # noqa: BLE001 — the call will raise it again, where it is guarded
        return True
    return own is not None and own is not getattr(Framework, member)


def _failed_in(member: str) -> str:
    return f"failed in {member}" if member else "cannot be loaded"


def _taken(take: Callable[[Any], Any], call: _Call) -> Any:
    return take(call())


# The types that answers may have. Each raises for another type; the guard then names the plug-in.


def _text(answer: Any) -> str:
    if not isinstance(answer, str):
        raise TypeError(f"a string is expected, not {type(answer).__name__}")
    return answer.encode("utf-8", "replace").decode()


def _texts(answer: Any) -> tuple[str, ...]:
    return tuple(map(_text, answer))


def _module(answer: Any) -> str | None:
    return None if answer is None else _text(answer)


def _count(answer: Any) -> int:
    number = int(answer)
    if number.bit_length() > _BITS:
        raise OverflowError("a count of 64 bits is expected, not a larger one")
    return number


def _counts(answer: Any) -> dict[str, int]:
    return {_text(name): _count(count) for name, count in answer.items()}


def _variables(answer: Any) -> dict[str, Variable]:
    found = {_text(name): variable for name, variable in answer.items()}
    return msgspec.convert(msgspec.to_builtins(found), readable(dict[str, Variable]))


def _facts(answer: Any) -> Facts | None:
    return msgspec.convert(msgspec.to_builtins(answer), readable(Facts | None))


def _collectives(answer: Any) -> list[Collective]:
    return msgspec.convert(msgspec.to_builtins(answer), readable(list[Collective]))


def _point(answer: Any) -> tuple[Any, Read] | None:
    if answer is None:
        return None
    value, read = answer
    if not callable(read):
        raise TypeError(f"a function that reads values is expected, not {type(read).__name__}")
    return value, read

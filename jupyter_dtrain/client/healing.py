"""How a session heals and resizes its world: the change itself, earlier cells again on new ranks, variables for them.

Under failure: what can be wrong with the request is found before anything happens, and raises
:class:`~jupyter_dtrain.core.errors.BadRequest`. A heal that cannot work raises
:class:`~jupyter_dtrain.core.errors.ReplaceFailed` with the reason and the way on. A cell that fails on a new rank, or a
variable that cannot be copied, raises as such a cell does; the world is whole by then.

A new rank can run those earlier cells again alone that call nothing that waits for all ranks. Only the text decides. A
definition calls nothing; a call of a function that one of the cells defines counts as what is in that function. A
collective behind a name from elsewhere stays unseen: such a cell waits until it is interrupted. A package that goes on
without some ranks (``carries_on`` of a framework's declaration) waits for nobody: methods of what the cells import from
it, and of what they make with that, may have the names of collectives.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyter_dtrain.core.declarations import declarations
from jupyter_dtrain.core.errors import BadRequest, RanksBusy, Refused, ReplaceFailed, WorldLost
from jupyter_dtrain.core.run_names import cut_name
from jupyter_dtrain.core.world import (
    MAX_RANKS,
    Ranks,
    count_ranks,
    describe_moves,
    format_ranks,
    numbers_without,
    parse_ranks,
    quantity,
)
from jupyter_dtrain.wire.healing_messages import Heal, HealState, ReadHeal
from jupyter_dtrain.wire.spool import read_beginning
from jupyter_dtrain.wire.values import check_variable

from .elastic import Companion

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.core.world import World
    from jupyter_dtrain.view import RunView
    from jupyter_dtrain.wire.requests import WorldRequest

    from .cells import CellRunner
    from .link import Link
    from .notices import Notices
    from .rank_names import RankNames
    from .run_scheduler import RunScheduler

POLL: Final = 0.02
"""Seconds between two looks."""
DATA: Final = (
    "Samplers, data loaders and anything else that your code divided by the number of ranks have not changed: make "
    "them again."
)
OLD_NUMBERS: Final = "Variables that hold a rank's number, such as rank = dist.get_rank(), still hold the old one."
OWN_GPUS: Final = "Each of them keeps its GPU, and LOCAL_RANK, which names the GPU"
NOTE: Final = "[jupyter-dtrain] "
"""How the lines of our own begin in a cell."""
GREETING: Final = 5.0
"""Seconds in which a new rank answers its first message."""

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Replaced(NamedTuple):
    """What became of the dead ranks. As text, it has one sentence a line."""

    ranks: list[int]
    """The ranks that are new."""
    seconds: float
    """How long it took, without replayed cells and copies."""
    names: list[str]
    """The variables that were copied."""
    source: int
    """The rank they are from."""
    replayed: list[int]
    """The runs whose cells ran again on the new ranks."""
    notes: list[str]
    """Sentences on what could not be made whole."""
    kept_gpus: bool = False
    """Whether ranks that have another number kept local ranks that differ from it."""

    def __str__(self) -> str:
        who, one = count_ranks(self.ranks).capitalize(), len(self.ranks) == 1
        they, have = ("It", "has") if one else ("They", "have")
        said = [f"{who} {'has a new process' if one else 'have new processes'}, after {self.seconds:.1f} s"]
        if self.replayed:
            runs = f"run{'s' if len(self.replayed) > 1 else ''} {', '.join(map(str, self.replayed))}"
            said.append(f"{they} ran the cell{'s' if len(self.replayed) > 1 else ''} of {runs} again")
        if self.names:
            said.append(f"{they} got {', '.join(self.names)} from rank {self.source}")
        said += self.notes
        if not self.replayed:
            said.append(
                f"{they} {have} none of your {'other ' if self.names else ''}variables and imports yet. Run the cells "
                f"that make them with %%rank {format_ranks(self.ranks)}, and copy variables with "
                f"%distributed broadcast --from {self.source} NAMES"
            )
            said.append("Another time %distributed replace --replay RUNS does so with the cells of these runs")
        return ".\n".join(said) + "."


class Resized(NamedTuple):
    """The result of a resize."""

    before: int
    """How many ranks the world had."""
    size: int
    """How many it has."""
    healed: Replaced
    """As for a heal: the ranks that are new, and what they got."""
    moved: dict[int, int] = {}  # noqa: RUF012 — never changed
    """The ranks that have another number: their numbers, by those of before."""

    def __str__(self) -> str:
        if self.size == self.before:
            return str(self.healed)
        count = quantity(self.size, "rank")
        words = f"The world has {count} instead of {self.before}"
        if not self.healed.ranks:
            words += f" after {self.healed.seconds:.1f} s"
        lines = [f"{words}."]
        if self.moved:
            lines.append(f"{describe_moves(self.moved).capitalize()}.")
            if self.healed.kept_gpus:
                lines.append(f"{OWN_GPUS}.")
        lines += [str(self.healed)] if self.healed.ranks else [f"{note}." for note in self.healed.notes]
        return "\n".join([*lines, DATA, *([OLD_NUMBERS] if self.moved else [])])


class Heals:
    """The heals and resizes that one session asks for."""

    def __init__(
        self,
        link: Link,
        scheduler: RunScheduler,
        cells: CellRunner,
        notices: Notices,
        request: WorldRequest,
        rank_names: RankNames,
    ) -> None:
        """``request``: what the world was asked to be. ``rank_names``: the names that live on its ranks."""
        self._link = link
        self._scheduler = scheduler
        self._cells = cells
        self._notices = notices
        self._request = request
        self._rank_names = rank_names
        self._beside: set[int] = set()
        """The elastic runs, and all that their new ranks run."""

    def heal(
        self,
        names: Iterable[str],
        source: int | None,
        replay: Iterable[int],
        progress: Callable[[str], None],
        *,
        size: int | None = None,
        drop: Collection[int] = (),
    ) -> Replaced:
        """As :meth:`.Session.heal` and, with ``size`` or ``drop``, :meth:`.Session.resize`."""
        self._link.check_drives()
        names, cells = list(names), self.sources(replay)
        self.check_alone(cells)
        now = self._link.world.size
        leaving = set(drop) or set(range(now if size is None else size, now))
        chosen = self._choose(names, source, leaving, grows=size is not None and size > now)
        if busy := self._scheduler.busy():
            who, run = count_ranks(sorted(busy)).capitalize(), max(busy.values())
            raise RanksBusy(f"{who} still {'work' if len(busy) > 1 else 'works'} on run {run}: wait, or interrupt it.")
        began, verb = time.monotonic(), "replaced" if size is None and not drop else "resized"
        state = self._change(Heal(self._link.me.words, None if drop else size, sorted(drop)), verb, progress)
        ranks = [rank.rank for rank in state.ranks]
        chosen = numbers_without(leaving, now).get(chosen, chosen)
        seconds, notes = time.monotonic() - began, list(state.notes)
        if ranks:
            # A set-up waits for all ranks, but does nothing where there is a group: a new rank can run that cell alone.
            progress("making the groups of all ranks again")
            notes += _notes_in(self._cells.run_aside("pass", None, "replace", wait=True))
        for number, code in cells.items() if ranks else ():
            progress(f"running {number} again on {count_ranks(ranks)}")
            self._cells.run_aside(code, ranks, f"run {number} again", wait=True)
        if names and ranks:
            progress(f"copying {', '.join(names)} from rank {chosen}")
            named = "".join(f"{name!r}, " for name in names)
            code = f"import jupyter_dtrain\njupyter_dtrain.broadcast({named}source={chosen}, new={ranks})"
            copied = self._cells.run_aside(code, None, cut_name(f"replace: {', '.join(names)}"), wait=True)
            notes += [line.removesuffix(".") for line in copied.text(chosen).splitlines()]
        kept_gpus = any(rank.device != "cpu" and rank.local_rank != rank.rank for rank in state.moved)
        return Replaced(ranks, seconds, names if ranks else [], chosen, list(cells), notes, kept_gpus)

    def await_idle(self, seconds: float) -> None:
        """Wait until no rank works, at most ``seconds``: those that waited for a killed one are freed first."""
        deadline = time.monotonic() + seconds
        while self._scheduler.busy() and time.monotonic() < deadline:
            time.sleep(POLL)

    def companion(
        self, code: str, replay: Iterable[int], make_view: Callable[[Run], RunView | None], **options: Any
    ) -> Companion:
        """The companion of an elastic run of ``code``; new ranks run the cells of the runs ``replay`` first.

        ``options``: those of :meth:`.CellRunner.run` that a run which joins shares with it. Raises :class:`BadRequest`
        for cells that a new rank cannot run alone.
        """
        cells = self.sources(replay)
        self.check_alone(cells, group=True)
        if calls := collectives_in([*cells.values(), code], group=True)[-1]:
            raise BadRequest(
                f"This cell calls {', '.join(calls)}, which waits for all ranks, so it cannot go on without one. "
                f"--elastic is for cells that can, such as a training with torchft: see the guide."
            )

        def heal() -> HealState:
            return self._change(Heal(self._link.me.words, beside=sorted(self._beside)), "replaced", lambda _: None)

        return Companion(
            self._link, self._scheduler, self._cells, self._notices, heal, self._beside, cells, make_view, **options
        )

    def _change(self, change: Heal, verb: str, progress: Callable[[str], None]) -> HealState:
        """Have the steward do it; its result. Raises :class:`ReplaceFailed`."""
        try:
            begun = self._link.ask(change)
            self._link.ask_again()  # a cell of another thread, too, hears of the change instead of coming in between
            return self._await(begun.number, verb, progress)
        except Refused as refused:
            raise ReplaceFailed(f"{self._what(verb)} cannot be {verb}: {refused}.") from None

    def _what(self, verb: str) -> str:
        """The subject of a sentence with ``verb``."""
        name = self._request.name
        return f"The dead ranks of world {name!r}" if verb == "replaced" else f"World {name!r}"

    def _choose(self, names: Sequence[str], source: int | None, leaving: set[int], *, grows: bool) -> int:
        """The rank to copy from, by its number now, in a world that loses the ranks ``leaving``, or ``grows``.

        Raises :class:`BadRequest` where it cannot give what is asked for.
        """
        for name in names:
            check_variable(name)
        world = self._link.world
        living = [rank.rank for rank in world.ranks if not rank.has_ended]
        if source is None:
            source = min({*living} - leaving, default=0)
        elif not names:
            raise BadRequest(f"Name the variables to copy from rank {source}, such as --from {source} model opt.")
        (chosen,) = parse_ranks(source, world.size)
        if names and chosen in leaving:
            raise BadRequest(
                f"The resize would end rank {chosen}: copy from one that stays, {format_ranks({*living} - leaving)}."
            )
        if not names or (not grows and not leaving and len(living) == world.size):
            return chosen  # the steward says that nobody is dead
        if chosen not in living:
            raise BadRequest(f"Rank {chosen} is dead: copy from a living rank, {format_ranks(living)}.")
        if missing := [name for name in names if not self._rank_names.defined_on(name, chosen)]:
            raise BadRequest(f"Rank {chosen} does not have {', '.join(missing)}. Nothing was changed.")
        return chosen

    def sources(self, runs: Iterable[int]) -> dict[int, str]:
        """The cells of ``runs``. Raises :class:`BadRequest` for a run that this world does not have."""
        found = {}
        for run in runs:
            began = read_beginning(self._request.spool, run)
            if began is None or not began.source:
                raise BadRequest(
                    f"World {self._request.name!r} has no cell of a run {run}: %distributed runs lists its runs."
                )
            found[run] = began.source
        return found

    def check_alone(self, cells: Mapping[int, str], *, group: bool = False) -> None:
        """Raise :class:`BadRequest` where a new rank could not run one of these runs' ``cells`` alone.

        ``group``: as for :func:`collectives_in`.
        """
        for run, calls in zip(cells, collectives_in(cells.values(), group=group), strict=True):
            if calls:
                raise BadRequest(
                    f"Run {run} calls {', '.join(calls)}, and would wait for all ranks there: leave run {run} out of "
                    f"--replay, and run its cell on all ranks afterwards."
                )

    def _await(self, number: int, verb: str, progress: Callable[[str], None]) -> HealState:
        """Wait for the end of a heal, which the steward bounds. Raises :class:`ReplaceFailed`, :class:`WorldLost`."""
        said = ""
        while True:
            state = self._link.ask(ReadHeal(number))
            if state.phase == "failed":
                raise ReplaceFailed(f"{self._what(verb)} could not be {verb}: {state.words}.")
            if state.phase == "done":
                break
            if state.words != said:
                said = state.words
                progress(said)
            time.sleep(POLL)
        self._link.ranks_replaced([*state.ranks, *state.moved], state.size, state.generation)
        channel = self._link.bound()[1]
        late = channel.hello([rank.engine for rank in state.ranks], time.monotonic() + GREETING)
        if late:
            ranks = [rank.rank for rank in state.ranks if rank.engine in late]
            raise WorldLost(
                f"{count_ranks(ranks).capitalize()} did not answer. %distributed restart starts fresh ranks."
            )
        return state


def _notes_in(run: Run) -> list[str]:
    """The sentences in which ranks say what must be made again."""
    lines = [line for rank in run.ranks for line in run.text(rank, "stderr").splitlines()]
    said = [line.removeprefix(NOTE).rstrip(".") for line in lines if line.startswith(NOTE)]
    return list(dict.fromkeys(said))


def check_size(size: int | None, drop: Ranks, world: World) -> list[int]:
    """The ranks of ``world`` that ``drop`` names, none for None, where it is to have ``size`` ranks then.

    Raises :class:`BadRequest` for a number of ranks that no world can have, for ranks that are not there, for all of
    them, and for a ``size`` that does not fit ``drop``.
    """
    if size is None and drop is None:
        raise BadRequest("Name the number of ranks that the world is to have, or the ranks to drop.")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_RANKS):
        raise BadRequest(f"A world has 1 to {MAX_RANKS} ranks, not {size!r}.")
    if drop is None:
        return []
    dropped = parse_ranks(drop, world.size)
    left = world.size - len(dropped)
    if not left:
        raise BadRequest("These are all ranks of the world: %distributed stop ends it.")
    if size not in (None, left):
        raise BadRequest(
            f"Without {count_ranks(dropped)} this world of {world.size} has {quantity(left, 'rank')}, not "
            f"{size}: leave out {size}."
        )
    return dropped


def collectives_in(cells: Iterable[str], *, group: bool = False) -> list[list[str]]:
    """For each cell the calls in it that wait for all ranks, by the words that frameworks declare.

    ``group``: also those that set up a group of all ranks, which return at once only where the rank has that group.
    """
    trees = [_parsed(cell) for cell in cells]
    words = {word for one in declarations() for word in (*one.collectives, *(one.set_ups if group else ()))}
    defined = {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    free = _free_names(trees)
    return [list(dict.fromkeys(_calls(tree, words, defined, free, set()))) for tree in trees]


def _free_names(trees: list[ast.Module]) -> set[str]:
    """The names that the cells bind to what goes on without some ranks: by an import, or by a call of such a name."""
    packages = {package for one in declarations() for package in one.carries_on}
    free: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.Import(names=names):
                _bind(free, {(one.asname or one.name.partition(".")[0]): one.name for one in names}, packages)
            case ast.ImportFrom(module=str(module), names=names):
                _bind(free, {one.asname or one.name: module for one in names}, packages)
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=made)) if _root(made) in free:
                free.add(name)
    return free


def _bind(free: set[str], modules: dict[str, str], packages: set[str]) -> None:
    for name, module in modules.items():
        (free.add if module.partition(".")[0] in packages else free.discard)(name)


def _root(node: ast.expr) -> str:
    """The name that ``node`` begins with; empty where it begins with none."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _parsed(cell: str) -> ast.Module:
    """The cell; without its lines of IPython's own where it has such lines."""
    try:
        return ast.parse(cell)
    except SyntaxError:
        plain = [line for line in cell.splitlines() if not line.lstrip().startswith(("%", "!"))]
    try:
        return ast.parse("\n".join(plain))
    except SyntaxError:
        return ast.Module([], [])


def _calls(
    node: ast.AST, words: set[str], defined: dict[str, ast.FunctionDef], free: set[str], seen: set[str]
) -> Iterator[str]:
    """The words among the calls that ``node`` makes when it is run."""
    waiting = [*ast.iter_child_nodes(node)][::-1]  # no recursion: a sum of 500 terms is as deep as that
    while waiting:
        child = waiting.pop()
        if isinstance(child, ast.Call):
            match child.func:
                case ast.Attribute(attr=name) | ast.Name(id=name) if name in words:
                    if _root(child.func) not in free:
                        yield name
                case ast.Name(id=name) if name in defined and name not in seen:
                    seen.add(name)
                    yield from _calls(ast.Module(defined[name].body, []), words, defined, free, seen)
        if not isinstance(child, _Definition):
            waiting += [*ast.iter_child_nodes(child)][::-1]

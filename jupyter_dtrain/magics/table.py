"""The table of magics: those of cells, and the verbs of ``%distributed``, our own before those of frameworks.

``-h``, Tab and the reference read it, and nothing else lists magics.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, Final, Literal, get_args

import msgspec
from IPython.core.error import UsageError

from jupyter_dtrain.core.declarations import declarations, load_rows
from jupyter_dtrain.jobs import TARGETS

from . import across, cells, doctor, export, healing, joining, running, snapshots, steering, stored, sync, worlds
from .parsing import MagicParser, Parsed, say_renamed

WIDTH: Final = 100
"""Columns of the list of verbs."""

Group = Literal["worlds", "cells", "data", "looking inside", "the running loop", "snapshots", "runs and jobs"]
"""What a verb is about: the headings of ``%distributed -h``, in their order."""


class Verb(msgspec.Struct, frozen=True):
    """One verb of ``%distributed``."""

    name: str
    group: Group
    help: str
    arguments: Callable[[MagicParser], None]
    """Adds the verb's arguments to its parser."""
    run: Callable[[Parsed], None]
    python: str = ""
    """What a program calls for it, such as ``Session.save``; empty where only a notebook has use for it."""
    verbs: tuple[Verb, ...] = ()
    """The words that may follow, such as ``show`` in ``runs show``."""
    below: str = "verb"
    """What these words are."""
    formerly: str = ""
    """The name that it had in the release before."""

    @property
    def sentence(self) -> str:
        """The help as a sentence."""
        return f"{self.help[:1].upper()}{self.help[1:]}."

    def parser(self) -> MagicParser:
        """Its parser."""
        parser = MagicParser(prog=f"%distributed {self.name}", description=self.sentence)
        self.fill(parser)
        return parser

    def fill(self, parser: MagicParser) -> None:
        """Give ``parser`` the verb's arguments and the verbs that may follow; the parsed line has ``run``."""
        self.arguments(parser)
        parser.set_defaults(run=self.run)
        if self.verbs:
            # Its options may stand before these, so they are not in its usage.
            below = parser.add_subparsers(
                title=f"{self.below}s", metavar=self.below.upper(), parser_class=MagicParser, prog=parser.prog
            )
            for verb in self.verbs:
                child = below.add_parser(verb.name, help=verb.help, description=verb.sentence)
                verb.fill(child)
                child.set_defaults(run=partial(_run_below, parser, child.prog, verb.run))

    def sections(self, before: str) -> Iterator[tuple[str, str, MagicParser, str]]:
        """As :func:`sections`, of this verb and of those that may follow it; ``before``: the words before it."""
        title = f"{before} {self.name}"
        parser = MagicParser(prog=title, description=self.sentence)
        self.arguments(parser)
        words = f"{self.sentence} Short: `%distributed {self.name}`." if self in _SHORT else self.sentence
        if self.verbs:
            *others, last = [f"`{verb.name}`" for verb in self.verbs]
            words += f" {', '.join(others)} or {last} may follow."
        yield title, words, parser, self.python
        for verb in self.verbs:
            yield from verb.sections(title)


class CellMagic(msgspec.Struct, frozen=True):
    """One magic that begins a cell."""

    names: tuple[str, ...]
    """Its name, and shorter ones."""
    help: str
    parser: Callable[[], MagicParser]
    run: Callable[[Parsed, str, dict[str, Any]], None]
    """Gets the parsed line, the cell below it and the notebook's namespace."""
    python: str = ""
    """What a program calls for it; empty where only a notebook has use for it."""


CELL_MAGICS: Final = (
    CellMagic(
        ("distributed", "dist"),
        "run the cell on all ranks, or on some of them",
        cells.cell_parser,
        cells.run_cell,
        "Session.run",
    ),
    CellMagic(("rank",), "run the cell on some ranks", cells.rank_parser, cells.run_cell, "Session.run"),
    CellMagic(
        ("between",),
        "run the cell on all ranks between two steps of the loop that runs now",
        steering.between_parser,
        steering.between_cell,
        "RunningLoop.between",
    ),
    CellMagic(("local",), "keep the cell in the notebook in auto mode", cells.local_parser, cells.run_locally),
    CellMagic(
        ("speedup",),
        "benchmark how the cell scales: run it in worlds of several sizes",
        cells.speedup_parser,
        cells.measure,
        "speedup",
    ),
)


def cell_magic(name: str) -> CellMagic:
    """The magic with one of its names."""
    return next(magic for magic in CELL_MAGICS if name in magic.names)


def _run_below(parser: MagicParser, title: str, run: Callable[[Parsed], None], args: Parsed) -> None:
    """Run a verb that follows another one, whose own options may not stand between them: this verb ignores them."""
    for action, _ in parser.known:
        if action.dest in args and getattr(args, action.dest) != action.default:
            raise UsageError(f"{action.option_strings[-1]} is an option of {parser.prog} alone, and not of {title}.")
    run(args)


def _none(parser: MagicParser) -> None:
    """Add no arguments, for a verb that takes none."""


_SHOW = Verb(
    "show",
    "runs and jobs",
    "show a stored run: its cell, outcome, metrics and output",
    stored.show_arguments,
    stored.show,
    "Store.run",
)
_COMPARE = Verb(
    "compare",
    "runs and jobs",
    "show the metrics of stored runs side by side",
    stored.compare_arguments,
    stored.compare,
    "compare",
)
_REPORT = Verb(
    "report",
    "runs and jobs",
    "write a report on stored runs for others: one file, as a page, as a text or as a table",
    stored.report_arguments,
    stored.report,
    "report",
)
_SHORT = (_SHOW, _COMPARE)
"""Verbs below another one that work without its name, too."""
_RUNS = (
    *_SHORT,
    Verb(
        "import",
        "runs and jobs",
        "bring runs of W&B, MLflow or TensorBoard into the store, from their folders and files",
        stored.import_arguments,
        stored.import_runs,
        "import_runs",
    ),
    Verb(
        "delete",
        "runs and jobs",
        "delete stored runs: their cells, output and metrics",
        stored.delete_arguments,
        stored.delete,
        "StoredRun.delete",
    ),
)
_SNAPSHOTS = (
    Verb(
        "show",
        "snapshots",
        "show what a snapshot holds, without loading it",
        snapshots.show_arguments,
        snapshots.show,
        "snapshots",
    ),
    Verb(
        "stop",
        "snapshots",
        "stop saving a snapshot automatically",
        snapshots.stop_arguments,
        snapshots.stop,
        "Session.stop_saving",
    ),
    Verb(
        "delete",
        "snapshots",
        "delete snapshots from the disk",
        snapshots.delete_arguments,
        snapshots.delete,
        "Snapshot.delete",
    ),
)
_TARGETS = tuple(
    Verb(
        target.name,
        "runs and jobs",
        f"make {target.help}" if target.help.startswith("a ") else f"write {target.help}",
        partial(export.target_arguments, target),
        partial(export.export_cells, target.name),
        "export",
    )
    for target in TARGETS
)
_OWN: tuple[Verb, ...] = (
    Verb(
        "start",
        "worlds",
        "start a world of ranks: on this machine, on hosts over ssh or in Slurm",
        worlds.start_arguments,
        worlds.start,
        "Session.start",
    ),
    Verb(
        "stop",
        "worlds",
        "end the world and all its processes; --all ends all your worlds",
        worlds.stop_arguments,
        worlds.stop,
        "Session.stop",
    ),
    Verb("status", "worlds", "show the ranks: host, device, process and state", _none, worlds.status, "Session.world"),
    Verb(
        "worlds",
        "worlds",
        "list your worlds on this machine, and which notebook controls each",
        _none,
        joining.listing,
        "worlds",
        formerly="list",
    ),
    Verb(
        "attach",
        "worlds",
        "join a world that another notebook started; --control takes control of it",
        joining.attach_arguments,
        joining.attach,
        "Session.attach",
    ),
    Verb(
        "restart",
        "worlds",
        "replace all ranks, or some, with fresh ones; their variables are lost, unless a snapshot is loaded",
        worlds.restart_arguments,
        worlds.restart,
        "Session.restart",
    ),
    Verb(
        "replace",
        "worlds",
        "replace dead ranks; the others keep their processes and variables",
        healing.heal_arguments,
        healing.heal,
        "Session.replace",
        formerly="heal",
    ),
    Verb(
        "kill",
        "worlds",
        "kill some ranks at once; the others keep their variables",
        running.kill_arguments,
        running.kill,
        "Session.kill",
    ),
    Verb(
        "resize",
        "worlds",
        "change how many ranks the world has; those that stay keep their processes and variables",
        healing.resize_arguments,
        healing.resize,
        "Session.resize",
    ),
    Verb(
        "run",
        "cells",
        "run a script on the ranks, as torchrun would",
        cells.exec_arguments,
        cells.exec_script,
        "Session.run_script",
        formerly="exec",
    ),
    Verb(
        "interrupt",
        "cells",
        "interrupt the running cells on every rank; variables stay",
        running.interrupt_arguments,
        running.interrupt,
        "Session.interrupt",
    ),
    Verb(
        "auto",
        "cells",
        "send every plain cell to the ranks (auto mode), or stop that",
        running.auto_arguments,
        running.auto,
    ),
    Verb(
        "vars",
        "data",
        "show what variables hold on each rank, and where ranks differ",
        across.vars_arguments,
        across.show_vars,
        "Session.vars",
    ),
    Verb(
        "diff",
        "data",
        "compare a variable over all ranks, such as the replicas of a model",
        across.diff_arguments,
        across.diff,
        "Session.diff",
        formerly="check",
    ),
    Verb(
        "broadcast",
        "data",
        "copy variables from one rank to all ranks",
        running.resync_arguments,
        running.resync,
        "Session.broadcast",
        formerly="resync",
    ),
    Verb(
        "scatter",
        "data",
        "cut a variable into one part for each rank",
        across.scatter_arguments,
        across.scatter,
        "Session.scatter",
    ),
    Verb(
        "gather",
        "data",
        "put the ranks' parts of a variable together",
        across.gather_arguments,
        across.gather,
        "Session.gather",
    ),
    Verb(
        "upload",
        "data",
        "copy a file or folder to the hosts of the world; nothing there is deleted",
        sync.sync_arguments,
        sync.sync,
        "Session.upload",
        formerly="sync",
    ),
    Verb(
        "prompt",
        "looking inside",
        "answer what ranks ask in a cell that another kernel has begun, as by input() or breakpoint()",
        _none,
        running.prompt,
        "Session.attend",
    ),
    Verb(
        "debug",
        "looking inside",
        "look at the last error of each rank in Python's debugger, side by side; q leaves it",
        running.debug_arguments,
        running.debug,
        "Session.debug",
    ),
    Verb(
        "stacks",
        "looking inside",
        "show where in its code each rank is, while it runs or waits",
        running.stacks_arguments,
        running.stacks,
        "Session.stacks",
    ),
    Verb(
        "flame",
        "looking inside",
        "sample the ranks' stacks for some seconds, and show where their time goes",
        running.flame_arguments,
        running.flame,
        "Session.flame",
    ),
    Verb(
        "memory",
        "looking inside",
        "show how much memory each rank has, and the names of what holds it",
        running.memory_arguments,
        running.memory,
        "Session.memory",
    ),
    Verb(
        "free",
        "looking inside",
        "let go of what only old outputs and the last error keep, and show how much memory came free",
        running.free_arguments,
        running.free,
        "Session.free",
    ),
    Verb(
        "profile",
        "looking inside",
        "profile some steps of the loop that runs now, on all ranks together, without stopping it",
        running.profile_arguments,
        running.profile,
        "Session.profile",
    ),
    Verb(
        "info",
        "looking inside",
        "show what each framework finds on the ranks, and which variables were set and why",
        running.env_arguments,
        running.env,
        "Session.info",
        formerly="env",
    ),
    Verb(
        "doctor",
        "looking inside",
        "examine this machine, or the hosts of a world, before ranks start there",
        doctor.doctor_arguments,
        doctor.doctor,
        "doctor",
    ),
    Verb(
        "between",
        "the running loop",
        "run code on all ranks between two steps of the loop that runs now",
        steering.between_arguments,
        steering.between,
        "RunningLoop.between",
    ),
    Verb(
        "set",
        "the running loop",
        "set values on all ranks between two steps, such as opt.lr=1e-4: all of them, or none",
        steering.set_arguments,
        steering.set_values,
        "RunningLoop.set",
    ),
    Verb(
        "undo",
        "the running loop",
        "put back the values that the last set has replaced",
        steering.loop_arguments,
        steering.undo,
        "RunningLoop.undo",
    ),
    Verb(
        "pause",
        "the running loop",
        "hold all ranks after the same step, until resume",
        steering.loop_arguments,
        steering.pause,
        "RunningLoop.pause",
    ),
    Verb(
        "resume",
        "the running loop",
        "let a paused loop go on",
        steering.resume_arguments,
        steering.resume,
        "RunningLoop.resume",
    ),
    Verb(
        "step",
        "the running loop",
        "let a paused loop make some steps, and pause it again",
        steering.step_arguments,
        steering.step,
        "RunningLoop.step",
    ),
    Verb(
        "stop-after",
        "the running loop",
        "end the loop after a step, as if it had finished; the cell goes on below it",
        steering.stop_arguments,
        steering.stop_after,
        "RunningLoop.stop_after",
    ),
    Verb(
        "rewind",
        "the running loop",
        "load a state of the training that --ring has kept, on all ranks, and go on",
        steering.rewind_arguments,
        steering.rewind,
        "RunningLoop.rewind",
    ),
    Verb(
        "until-differs",
        "the running loop",
        "compare a number over all ranks after each step, and stop all of them where it differs",
        steering.until_arguments,
        steering.until_differs,
        "RunningLoop.until_differs",
    ),
    Verb(
        "save",
        "snapshots",
        "save variables of all ranks as a snapshot on disk",
        snapshots.save_arguments,
        snapshots.save,
        "Session.save",
    ),
    Verb(
        "load", "snapshots", "load a snapshot into the ranks", snapshots.load_arguments, snapshots.load, "Session.load"
    ),
    Verb(
        "snapshots",
        "snapshots",
        "list the snapshots, with size and age",
        snapshots.snapshots_arguments,
        snapshots.snapshots,
        "snapshots",
        verbs=_SNAPSHOTS,
    ),
    Verb(
        "runs",
        "runs and jobs",
        "list the stored runs, newest first",
        stored.runs_arguments,
        stored.runs,
        "runs",
        verbs=_RUNS,
    ),
    *_SHORT,
    _REPORT,
    Verb(
        "track",
        "runs and jobs",
        "send a stored run to a tracker: W&B, MLflow, trackio, or TensorBoard",
        stored.track_arguments,
        stored.track,
        "track",
    ),
    Verb(
        "export",
        "runs and jobs",
        "make a job of the cells that run on ranks, for torchrun, Slurm, Kubernetes or others",
        _none,
        export.no_target,
        "export",
        verbs=_TARGETS,
        below="target",
    ),
)


@lru_cache(1)
def verbs() -> tuple[Verb, ...]:
    """All verbs; of several with one name the first, so that ours stay ours.

    Asked when a line is parsed, not at ``%load_ext``: frameworks are found by their entry points.
    """
    found: dict[str, Verb] = {}
    for verb in (*_OWN, *load_rows(one.verbs for one in declarations())):
        found.setdefault(verb.name, verb)
    return tuple(found.values())


def _long_names() -> list[Verb]:
    return [verb for verb in verbs() if verb not in _SHORT]


def sections() -> Iterator[tuple[str, str, MagicParser, str]]:
    """Each magic that the reference has: its title, what it does, its parser and what a program calls for it.

    The verbs that follow others come after these.
    """
    for magic in CELL_MAGICS:
        parser = magic.parser()
        first, *short = [f"%%{name}" for name in magic.names]
        words = f"{parser.description} Short: {', '.join(short)}." if short else str(parser.description)
        yield first, words, parser, magic.python
    for verb in _long_names():
        yield from verb.sections("%distributed")


def verb_parser() -> MagicParser:
    """The parser of ``%distributed``."""
    parser = MagicParser(
        prog="%distributed",
        usage="%(prog)s [-h] VERB ...",
        description="Control a world of ranks. Without a verb, show its status.\n\n" + _listing(),
        epilog="""examples:
  %distributed start --hosts gpu1:8,gpu2:8
  %distributed kill 3             ranks are written as 0,2 or 4-7
  %distributed runs delete 3-5    runs too
  %distributed attach big --control

%distributed VERB -h lists the options of a verb. %dist and %%dist are short for %distributed and %%distributed.""",
    )
    subparsers = parser.add_subparsers(
        metavar="VERB", required=True, parser_class=MagicParser, help=argparse.SUPPRESS, prog="%distributed"
    )
    for verb in verbs():
        verb.fill(subparsers.add_parser(verb.name, description=verb.sentence))
    return parser


def renamed(line: str, program: str = "%distributed") -> str:
    """``line`` with the present name of a verb that has a former one, which is said once. ``program`` has the verb."""
    first, _, rest = line.strip().partition(" ")
    for verb in verbs():
        if first == verb.formerly:
            say_renamed(f"{program} {first}", f"{program} {verb.name}")
            return f"{verb.name} {rest}"
    return line


def _listing() -> str:
    """The verbs by their groups, and the magics of cells, each with its help."""
    rows: dict[str, list[tuple[str, str]]] = {group: [] for group in get_args(Group)}
    rows["cells"] = [(f"%%{magic.names[0]}", magic.help) for magic in CELL_MAGICS]
    for verb in _long_names():
        rows[verb.group].append((verb.name, verb.help))
        if verb.below == "verb":
            rows[verb.group] += [(f"{verb.name} {one.name}", one.help) for one in verb.verbs]
    width = max(len(name) for group in rows.values() for name, _ in group) + 2
    lines = []
    for group, found in rows.items():
        lines += ["", f"{group}:"]
        for name, words in found:
            lines += textwrap.wrap(
                words, WIDTH, initial_indent=f"  {name:{width}}", subsequent_indent=" " * (width + 2)
            )
    return "\n".join(lines[1:])

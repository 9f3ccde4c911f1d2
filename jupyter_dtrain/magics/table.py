"""The table of verbs that ``%distributed`` understands: our own, then those of the frameworks that are installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec

from jupyter_dtrain.core.declarations import declarations, load_rows

from . import across, cells, doctor, export, healing, joining, running, snapshots, stored, sync, worlds
from .parsing import MagicParser, Parsed


class Verb(msgspec.Struct, frozen=True):
    """One verb of ``%distributed``."""

    name: str
    help: str
    arguments: Callable[[MagicParser], None]
    """Adds the verb's arguments to its parser."""
    run: Callable[[Parsed], None]


def _none(parser: MagicParser) -> None:
    """Add no arguments, for a verb that takes none."""


_OWN: tuple[Verb, ...] = (
    Verb("start", "start a world of ranks", worlds.start_arguments, worlds.start),
    Verb("stop", "end the world and all its processes", worlds.stop_arguments, worlds.stop),
    Verb("status", "show the ranks: host, device, process and state", _none, worlds.status),
    Verb(
        "restart",
        "replace all ranks of the world; their variables are lost, unless a snapshot is loaded",
        worlds.restart_arguments,
        worlds.restart,
    ),
    Verb("save", "save variables of all ranks as a snapshot on disk", snapshots.save_arguments, snapshots.save),
    Verb("load", "load a snapshot into the ranks", snapshots.load_arguments, snapshots.load),
    Verb("snapshots", "list the snapshots, with size and age", _none, snapshots.snapshots),
    Verb("exec", "run a script on the ranks, as torchrun would", cells.exec_arguments, cells.exec_script),
    Verb(
        "interrupt",
        "interrupt the running cells on every rank; variables stay",
        running.interrupt_arguments,
        running.interrupt,
    ),
    Verb(
        "kill",
        "kill some ranks at once; the others keep their variables",
        running.kill_arguments,
        running.kill,
    ),
    Verb(
        "heal",
        "replace dead ranks; the others keep their processes and variables",
        healing.heal_arguments,
        healing.heal,
    ),
    Verb(
        "resize",
        "change how many ranks the world has; those that stay keep their processes and variables",
        healing.resize_arguments,
        healing.resize,
    ),
    Verb("resync", "copy variables from one rank to all ranks", running.resync_arguments, running.resync),
    Verb(
        "vars", "show what variables hold on each rank, and where ranks differ", across.vars_arguments, across.show_vars
    ),
    Verb("diff", "compare one variable over all ranks", across.diff_arguments, across.diff),
    Verb(
        "check",
        "check that the replicas of a model are the same on all ranks",
        across.check_arguments,
        across.check,
    ),
    Verb("scatter", "cut a variable into one part for each rank", across.scatter_arguments, across.scatter),
    Verb("gather", "put the ranks' parts of a variable together", across.gather_arguments, across.gather),
    Verb("stacks", "show where the code of every rank is now", running.stacks_arguments, running.stacks),
    Verb(
        "env",
        "show what each framework finds on the ranks, and which variables were set and why",
        running.env_arguments,
        running.env,
    ),
    Verb(
        "doctor",
        "examine this machine, or the hosts of a world, before ranks start there",
        doctor.doctor_arguments,
        doctor.doctor,
    ),
    Verb(
        "sync",
        "copy a file or folder to the hosts of the world; nothing there is deleted",
        sync.sync_arguments,
        sync.sync,
    ),
    Verb("list", "list your worlds on this machine and the client that drives each", _none, joining.listing),
    Verb("attach", "join a world that another kernel started", joining.attach_arguments, joining.attach),
    Verb("runs", "list the stored runs, newest first", stored.runs_arguments, stored.runs),
    Verb("show", "show a stored run: its cell, outcome, metrics and output", stored.show_arguments, stored.show),
    Verb("compare", "show the metrics of stored runs side by side", stored.compare_arguments, stored.compare),
    Verb(
        "export",
        "make a job of the cells that run on ranks: a script, and what launches it",
        export.export_arguments,
        export.export_cells,
    ),
    Verb(
        "auto", "turn auto mode on or off: it sends every plain cell to the ranks", running.auto_arguments, running.auto
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


def verb_parser() -> MagicParser:
    """The parser of ``%distributed``."""
    parser = MagicParser(
        prog="%distributed",
        description="Control a world of ranks. Without a verb, show its status.",
        epilog="%%distributed -h lists the options of cells that run on the ranks.",
    )
    subparsers = parser.add_subparsers(metavar="VERB", required=True, parser_class=MagicParser)
    for verb in verbs():
        one = subparsers.add_parser(verb.name, help=verb.help, description=verb.help[0].upper() + verb.help[1:] + ".")
        verb.arguments(one)
        one.set_defaults(run=verb.run)
    return parser

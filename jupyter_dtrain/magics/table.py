"""The table of verbs that ``%distributed`` understands: our own, then those of the frameworks that are installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec

from jupyter_dtrain.core.declarations import declarations, load_rows

from . import joining, running, scripts, stored, worlds
from .parsing import MagicParser, Parsed


class Verb(msgspec.Struct, frozen=True):
    """One verb of ``%distributed``."""

    name: str
    help: str
    arguments: Callable[[MagicParser], None]
    """Adds the verb's arguments to its parser."""
    run: Callable[[Parsed], None]


def _none(parser: MagicParser) -> None:
    """The verb has no arguments."""


_OWN: tuple[Verb, ...] = (
    Verb("start", "start a world of ranks", worlds.start_arguments, worlds.start),
    Verb("stop", "end the world; nothing of it is left", worlds.stop_arguments, worlds.stop),
    Verb("status", "the ranks: where they are and what they do", _none, worlds.status),
    Verb("restart", "fresh ranks for the same world; variables are gone", _none, worlds.restart),
    Verb("exec", "run a script on the ranks, as torchrun would", scripts.exec_arguments, scripts.exec_script),
    Verb(
        "interrupt",
        "interrupt the running cells on every rank; variables stay",
        running.interrupt_arguments,
        running.interrupt,
    ),
    Verb(
        "kill",
        "end some ranks, whatever they do; the others keep their variables",
        running.kill_arguments,
        running.kill,
    ),
    Verb("resync", "give all ranks what one has of some variables", running.resync_arguments, running.resync),
    Verb("stacks", "where every rank is now", running.stacks_arguments, running.stacks),
    Verb(
        "env",
        "what each framework sees in the ranks, and the variables that were set, with why",
        running.env_arguments,
        running.env,
    ),
    Verb("list", "all worlds of this user on this machine, and who drives them", _none, joining.listing),
    Verb("attach", "join a world that another kernel left behind, or drives", joining.attach_arguments, joining.attach),
    Verb("runs", "the runs that are stored, newest first", stored.runs_arguments, stored.runs),
    Verb("show", "a stored run: its cell, outcome, metrics and output", stored.show_arguments, stored.show),
    Verb("compare", "two stored runs: their metrics side by side", stored.compare_arguments, stored.compare),
    Verb("auto", "send every plain cell to the ranks, or no longer", running.auto_arguments, running.auto),
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

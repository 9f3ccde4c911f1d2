"""The declarations of frameworks to the parts that have no ranks: options, echoes, verbs, kinds of data and others.

The core names no framework. Each framework that has something to say outside its ranks offers one :class:`Declaration`
by the entry point group :data:`GROUP`. The modules that hold them are light: they import no framework, no MPI and
nothing of the engine, since clients read them where a person starts a world, asks for ``-h`` or looks at an error.

Under failure: a declaration that cannot be loaded is logged once and left out; the others count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import msgspec

GROUP = "jupyter_dtrain.declarations"

_logger = logging.getLogger(__name__)


class ScriptSupport(msgspec.Struct, frozen=True):
    """The needs of an exported script that uses a framework, see :mod:`jupyter_dtrain.jobs`."""

    modules: tuple[str, ...]
    """The modules whose import shows that a script uses it."""
    family: str
    """The word, of those that platforms use, for the way in which its processes find each other."""
    set_up: str = ""
    """``module:NAME`` of a function of Python's own library and this framework. Its source goes into the script, which
    calls it before the cells with the roles of the ranks: a tuple of text, empty where all are alike."""
    set_up_modules: tuple[str, ...] = ()
    """The modules of Python's own library that the function needs."""
    end: str = ""
    """Lines after the cells."""


class Extra(msgspec.Struct, frozen=True):
    """A package that an extra of ours installs, and that has wheels for some machines only."""

    package: str
    """The package's name on PyPI."""
    extra: str
    purpose: str
    """The purpose, as the subject of a sentence: ``elastic training``."""
    oldest: tuple[int, int]
    """The first minor version of Python with a wheel."""
    newest: tuple[int, int]
    """The last minor version of Python with a wheel."""
    machines: tuple[str, ...]
    """The processors with wheels, as Linux calls them."""


class Declaration(msgspec.Struct, frozen=True):
    """One framework's words to clients, steward and server. Every field may be left out."""

    name: str
    """As the framework's plug-in in the ranks calls itself."""
    title: str = ""
    """The framework's name as people write it; empty: its :attr:`name`."""
    options: type[msgspec.Struct] | None = None
    """Start options: a Struct whose fields all have defaults and carry descriptions. Ranks find their values in
    ``RankSpec.options`` under :attr:`name`."""
    roles: Callable[[int, Any], list[str]] | None = None
    """Gives each rank its role: takes the number of ranks and the ``options``; an empty list where all are alike.
    Raises :class:`~jupyter_dtrain.core.errors.BadRequest`."""
    echoes: tuple[str, ...] = ()
    """Parts of messages that the library shows on a rank whose peer has gone: never the cause of a failure."""
    fixes: dict[str, str] = {}
    """Parts of the library's messages, each with a sentence on what helps, which follows an error that has them."""
    last_words: dict[str, str] = {}
    """Words that the library writes before it ends its process, and their meaning."""
    forwards: tuple[str, ...] = ()
    """How the variables begin that go along from this machine to ranks on other hosts."""
    interface_variables: tuple[str, ...] = ()
    """The variables by which the library takes a network interface, for ranks on several hosts."""
    collectives: tuple[str, ...] = ()
    """The functions and methods that return only when all ranks have called them: no rank can run them alone."""
    set_ups: tuple[str, ...] = ()
    """The functions that set up a group of all ranks, and wait for them unless this rank is in it already."""
    carries_on: tuple[str, ...] = ()
    """Packages whose objects never wait for all ranks, whatever their methods are called: they go on if ranks die."""
    interface_lists: tuple[str, ...] = ()
    """Those of :attr:`interface_variables` that take a list, of which each host uses an interface that it has."""
    fabric_variables: tuple[str, ...] = ()
    """The variables that pin the library to InfiniBand or RoCE; each takes a list of devices."""
    fabric_off: tuple[str, ...] = ()
    """Settings, ``NAME=value``, under which the library uses no InfiniBand and no RoCE."""
    distributions: dict[str, str] = {}
    """Packages whose versions should agree on all hosts, each with the reason."""
    extras: tuple[Extra, ...] = ()
    """Packages that a person may want here and that not every machine can have."""
    situations: str = ""
    """``module:NAME`` of a tuple of :class:`~jupyter_dtrain.core.failures.Situation`: rows of the failure table."""
    notices: str = ""
    """``module:NAME`` of a tuple of :class:`~jupyter_dtrain.core.notices.Notice`: rows of the table of notices."""
    methods: dict[str, str] = {}
    """Methods that every :class:`~jupyter_dtrain.session.Session` gets, by name: ``module:NAME`` of a function whose
    first argument is the session."""
    verbs: str = ""
    """``module:NAME`` of a tuple of the magics' :class:`~jupyter_dtrain.magics.table.Verb`."""
    scripts: ScriptSupport | None = None
    shard: str = ""
    """``module:NAME`` of a function that takes data and a :class:`~jupyter_dtrain.core.sharding.Share` and returns that
    share, or None for data of another kind. It imports no framework: data of a kind comes from a module that is there.
    The declarations' order decides where several of them know a kind."""
    reducers: dict[str, str] = {}
    """Types whose values travel between notebook and ranks without copies, as ``module.NAME``, each with the
    ``module:NAME`` of a function that takes a value and returns what its ``__reduce_ex__`` would, but with large data
    in a :class:`pickle.PickleBuffer`."""
    trace: str = ""
    """``module:NAME`` of a function that tells what the events in a trace of the framework's profiler are: one of
    :data:`jupyter_dtrain.core.traces.Roles`. It imports no framework."""
    place: str = ""
    """``module:NAME`` of a function that returns this process' rank and the number of ranks, or None where the
    framework has none. Asked outside a world."""


@lru_cache(1)
def declarations() -> tuple[Declaration, ...]:
    """The declarations of all installed frameworks, by name. Does not raise: crash reports use it too."""
    found = []
    try:
        entries = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    except Exception:
        _logger.exception("The declarations of frameworks cannot be listed")
        return ()
    for entry in entries:
        try:
            found.append(entry.load())
        except Exception:
            _logger.exception("The declaration of the framework %s cannot be loaded", entry.name)
    return tuple(found)


@lru_cache(1)
def echoes() -> tuple[str, ...]:
    """The parts of messages by which all frameworks tell an echo of another rank's failure."""
    return tuple(words for one in declarations() for words in one.echoes)


@lru_cache(1)
def fixes() -> dict[str, str]:
    """The sentences of all frameworks on what helps, by the part of a message."""
    return {words: fix for one in declarations() for words, fix in one.fixes.items()}


def explain_last_words(said: str) -> str:
    """The meaning of ``said``, which a library wrote before it ended its process; empty where no framework knows."""
    known = (item for one in declarations() for item in one.last_words.items())
    return next((meaning for words, meaning in known if words in said), "")


@lru_cache(1)
def session_methods() -> dict[str, str]:
    """The methods that frameworks add to a session: the ``module:NAME`` of each."""
    return {name: place for one in declarations() for name, place in one.methods.items()}


@lru_cache(1)
def reducers() -> dict[str, str]:
    """The reducers of all frameworks: the ``module:NAME`` of each, by the type."""
    return {kind: place for one in declarations() for kind, place in one.reducers.items()}


def load(place: str) -> Any:
    """The object at ``module:NAME``."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def load_rows(places: Iterable[str]) -> Iterator[Any]:
    """The members of the tuples at ``places``, in order. One that cannot be loaded is logged and left out."""
    for place in filter(None, places):
        try:
            yield from load(place)
        except Exception:
            _logger.exception("A framework's declaration at %s cannot be loaded", place)


@lru_cache(1)
def _collectives() -> frozenset[str]:
    return frozenset(name.casefold() for one in declarations() for name in one.collectives)


def is_collective(call: str) -> bool:
    """Whether some framework has a collective of this name; MPI has each in two spellings."""
    return call.casefold() in _collectives()

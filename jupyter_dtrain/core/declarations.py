"""What frameworks declare to the parts that have no ranks: start options, echoes, situations and verbs.

The core names no framework. Each framework that has something to say outside its ranks offers one :class:`Declaration`
by the entry point group :data:`GROUP`. The modules that hold them are light: they import no framework, no MPI and
nothing of the engine, since clients read them where a person starts a world, asks for ``-h`` or looks at an error.

Under failure: a declaration that cannot be loaded is logged once and left out; the others count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import msgspec

GROUP = "jupyter_dtrain.declarations"


class Declaration(msgspec.Struct, frozen=True):
    """One framework's words to clients, steward and server. Every field may be left out."""

    name: str
    """As the framework's plug-in in the ranks calls itself."""
    options: type[msgspec.Struct] | None = None
    """Start options: a Struct whose fields all have defaults and carry descriptions. Ranks find their values in
    ``RankSpec.options`` under :attr:`name`."""
    roles: Callable[[int, Any], list[str]] | None = None
    """Gives each rank its role: takes the number of ranks and the ``options``; an empty list where all are alike.
    Raises :class:`~jupyter_dtrain.core.errors.BadRequest`."""
    echoes: tuple[str, ...] = ()
    """Parts of messages that the library shows on a rank whose peer has gone: never the cause of a failure."""
    last_words: dict[str, str] = {}
    """What the library writes before it ends its process, and what that means."""
    situations: str = ""
    """``module:NAME`` of a tuple of :class:`~jupyter_dtrain.core.failures.Situation`: rows of the failure table."""
    verbs: str = ""
    """``module:NAME`` of a tuple of the magics' :class:`~jupyter_dtrain.magics.table.Verb`."""


@lru_cache(1)
def declarations() -> tuple[Declaration, ...]:
    """All that are installed, by name."""
    found = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            found.append(entry.load())
        except Exception:
            logging.getLogger(__name__).exception("The declaration of the framework %s cannot be loaded", entry.name)
    return tuple(found)


def load(place: str) -> Any:
    """What stands at ``module:NAME``."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)

"""Completion in cells for the ranks: the options of the first line, and names that live on the ranks.

A part of IPython's own completer. What the options are the magics' parsers say; what values may be, the arguments'
completers (:mod:`.offers`). Says nothing rather than wait: see :mod:`jupyter_dtrain.rank_names`.
"""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from IPython.core.completer import SimpleCompletion, context_matcher

from ..errors import DtrainError
from ..lifecycle import current
from .cells import cell_parser, rank_parser
from .parsing import Completer, MagicParser
from .table import VERBS
from .transform import ON_RANKS, ranks_of

if TYPE_CHECKING:
    from .transform import CellTransform

_VERB_LINE = re.compile(r"\s*%distributed\s+(.*)")
_PATH = re.compile(r"(?<![\w.)\]\"'}])[^\W\d]\w*(?:\.\w*)*$")
"""A name, or a dotted path, at the end of what was typed."""

Offers = list[tuple[str, str]]
"""What is offered, and its kind."""


class Completions:
    """Takes part in one shell's completer."""

    def __init__(self, transform: CellTransform) -> None:
        self._transform = transform
        self._shell: Any = None

        def match(context: Any) -> Any:
            return self._match(context)

        # IPython marks it, which it cannot do with a bound method.
        self._matcher = context_matcher(identifier="jupyter_dtrain")(match)

    def install(self, shell: Any) -> None:
        """Take part."""
        self._shell = shell
        shell.Completer.custom_matchers.append(self._matcher)

    def uninstall(self, shell: Any) -> None:
        """Take part no longer."""
        if self._matcher in shell.Completer.custom_matchers:
            shell.Completer.custom_matchers.remove(self._matcher)

    def _match(self, context: Any) -> Any:
        lines = context.full_text.split("\n")
        typed = context.text_until_cursor
        fragment, offers, alone = self._offers(lines, context.cursor_line, typed)
        return {
            "completions": [SimpleCompletion(text=text, type=kind) for text, kind in offers],
            "matched_fragment": fragment,
            "suppress": alone,
        }

    def _offers(self, lines: list[str], at: int, typed: str) -> tuple[str, Offers, bool]:
        """The end of ``typed`` that may go on, how, and whether that is all."""
        first = next((index for index, line in enumerate(lines) if line.strip()), 0)
        begun = ON_RANKS.match(lines[first])
        if begun is not None and at == first and len(typed) > begun.end():
            parser = cell_parser() if begun[1] == "distributed" else rank_parser()
            return *offers(parser, typed[begun.end() :]), True
        if (verb := _VERB_LINE.match(typed)) is not None:
            return *_verb_offers(verb[1]), True
        if begun is not None or self._transform.sends(lines):
            return *self._names(typed, None if begun is None else ranks_of(lines[first])), False
        return "", [], False

    def _names(self, typed: str, ranks: str | None) -> tuple[str, Offers]:
        found = _PATH.search(typed)
        if found is None:
            return "", []
        try:
            names = current().names.complete(found[0], ranks)
        except DtrainError:
            return "", []
        path, _, fragment = found[0].rpartition(".")
        here = () if path else self._shell.user_ns  # what the notebook has as well is offered already
        return fragment, [(name, kind) for name, kind in names.items() if name not in here]


def _verb_offers(typed: str) -> tuple[str, Offers]:
    words = typed.split()
    if not words or (len(words) == 1 and not typed[-1].isspace()):
        word = words[0] if words else ""
        return word, [(verb.name, "keyword") for verb in VERBS if verb.name.startswith(word)]
    for verb in VERBS:
        if verb.name == words[0]:
            parser = MagicParser(prog=f"%distributed {verb.name}")
            verb.arguments(parser)
            return offers(parser, typed.partition(verb.name)[2])
    return "", []


def offers(parser: MagicParser, typed: str) -> tuple[str, Offers]:
    """How ``typed``, what stands behind a magic's name so far, may go on; first the end of it that this replaces."""
    word = re.search(r"\S*$", typed)[0]  # type: ignore[index]  # it matches nothing, too
    options = {text: (action, completer) for action, completer in parser.known for text in action.option_strings}
    positionals = [(action, completer) for action, completer in parser.known if not action.option_strings]
    pending, place, used = None, 0, set()
    for done in typed[: len(typed) - len(word)].split():
        name, equals, _ = done.partition("=")
        if name in options:
            action, _ = options[name]
            used.add(action.dest)
            pending = None if equals or action.nargs == 0 else name
        elif pending is None:
            place += 1
        elif options[pending][0].nargs not in ("+", "*"):
            pending = None
    name, equals, value = word.partition("=")
    if equals and name in options:
        return _values(*options[name], value)
    if word[:1] == "-" and not word[1:2].isdigit():
        return word, _option_offers(parser, used, word)
    if pending is not None:
        return _values(*options[pending], word)
    found = positionals[min(place, len(positionals) - 1) :][:1]
    if place >= len(positionals) and found and found[0][0].nargs not in ("+", "*"):
        found = []
    fragment, values = _values(*found[0], word) if found else (word, [])
    return fragment, values if word else values + _option_offers(parser, used, "--")


def _option_offers(parser: MagicParser, used: set[str], word: str) -> Offers:
    return [
        (text, "option")
        for action, _ in parser.known
        for text in action.option_strings
        if text.startswith(word) and action.dest not in used
    ]


def _values(action: argparse.Action, completer: Completer | None, word: str) -> tuple[str, Offers]:
    fragment = word.rpartition(",")[2]
    try:
        found = [str(one) for one in action.choices] if action.choices is not None else [*(completer or list)()]
    except DtrainError:
        found = []
    # A list goes on with names and numbers, not with what stands for all of them.
    found = [one for one in found if one != "all" or fragment == word]
    return fragment, [(one, "value") for one in found if one.startswith(fragment)]

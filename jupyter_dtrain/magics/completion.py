"""Tab and Shift-Tab in cells for the ranks.

Tab completes the options of the first line, and names that live on the ranks. :class:`RankCompletions` is a part of
IPython's own completer: the magics' parsers name the options, and the arguments' completers (:mod:`.offers`) the
values. Shift-Tab on a name that only the ranks have shows what it is there (:class:`Inspections`).

Under failure: both show nothing rather than wait, see :mod:`jupyter_dtrain.client.rank_names`.
"""

from __future__ import annotations

import argparse
import html
import re
import shlex
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from IPython.core.completer import SimpleCompletion, context_matcher

from jupyter_dtrain.client.rank_names import describe_names
from jupyter_dtrain.core.dotted_paths import resolve
from jupyter_dtrain.core.errors import DtrainError
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.session import current

from .parsing import Completer, MagicParser
from .table import cell_magic, verbs
from .transform import CELLS, ON_RANKS, VERB_LINE

if TYPE_CHECKING:
    from .transform import CellTransform

_PATH = re.compile(r"(?<![\w.)\]\"'}])[^\W\d]\w*(?:\.\w*)*$")
"""A name, or a dotted path, at the end of the text."""

_MANY = ("+", "*")
"""The values of ``nargs`` that allow any number of values."""

WIDTH = 50
"""Characters of the words about an offer."""

Offers = list[tuple[str, str]]
"""Each text that completion offers, with its kind; for options and verbs, with words about it, which front ends show in
the same place."""


class RankCompletions:
    """Our part of one shell's completer."""

    def __init__(self, transform: CellTransform) -> None:
        self._transform = transform
        self._shell: Any = None

        def match(context: Any) -> Any:
            return self._match(context)

        # IPython sets attributes on it, which a bound method does not allow.
        self._matcher = context_matcher(identifier="jupyter_dtrain")(match)

    def install(self, shell: Any) -> None:
        """Add the matcher to the shell's completer."""
        self._shell = shell
        shell.Completer.custom_matchers.append(self._matcher)

    def uninstall(self, shell: Any) -> None:
        """Remove the matcher."""
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
        """The end of ``typed`` that completion replaces, the offers, and whether they are all offers."""
        first = next((index for index, line in enumerate(lines) if line.strip()), 0)
        magic = CELLS.match(lines[first])
        if magic is not None and at == first and len(typed) > magic.end():
            return *offers(cell_magic(magic[1]).parser(), typed[magic.end() :]), True
        begun = ON_RANKS.match(lines[first])
        if (verb := VERB_LINE.match(typed)) is not None:
            return *_verb_offers(verb[2]), True
        if begun is not None or self._transform.sends(lines):
            ranks = None
            if begun is not None:
                ranks = _Line(cell_magic(begun[1]).parser(), lines[first][begun.end() :]).values.get("ranks")
            return *self._names(typed, ranks), False
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
        here: Container[str] = self._shell.user_ns  # IPython already offers names that the notebook has as well
        if path:
            try:
                here = dir(resolve(self._shell.user_ns, path))
            except LookupError:
                here = ()
        return fragment, [(name, kind) for name, kind in names.items() if name not in here]


def _verb_offers(typed: str) -> tuple[str, Offers]:
    words = typed.split()
    if not words or (len(words) == 1 and not typed[-1].isspace()):
        word = words[0] if words else ""
        return word, [(verb.name, _brief(verb.help)) for verb in verbs() if verb.name.startswith(word)]
    for verb in verbs():
        if verb.name == words[0]:
            return offers(verb.parser(), typed.partition(verb.name)[2])
    return "", []


class _Line:
    """The text after a magic's name, up to the cursor."""

    def __init__(self, parser: MagicParser, text: str) -> None:
        self._parser = parser
        self.options = {name: known for known in parser.known for name in known[0].option_strings}
        self._positionals = [known for known in parser.known if not known[0].option_strings]
        self.values: dict[str, str] = {}
        """The values so far, by the name that argparse keeps them under; the last of several values."""
        self.pending: tuple[argparse.Action, Completer | None] | None = None
        """The option whose value comes next."""
        self._place = 0
        try:
            words = shlex.split(text)
        except ValueError:
            words = text.split()
        for word in words:
            self._take(word)

    def _take(self, word: str) -> None:
        if self.is_over:
            return
        name, equals, value = word.partition("=")
        if not word.startswith("--") and word[:2] in self.options and len(word) > len("-r"):
            name, equals, value = word[:2], "=", word[2:]  # -r0,2
        if name in self.options:
            action, _ = known = self.options[name]
            self.values[action.dest] = value
            self.pending = None if equals or action.nargs == 0 else known
        elif self.pending is not None:
            action, _ = self.pending
            self.values[action.dest] = word
            if action.nargs not in _MANY:
                self.pending = None
        elif (positional := self.positional) is not None:
            self.values[positional[0].dest] = word
            self._place += 1

    @property
    def is_over(self) -> bool:
        """Whether the rest of the line belongs to a script."""
        return self.positional is not None and self.positional[0].nargs == argparse.REMAINDER

    @property
    def positional(self) -> tuple[argparse.Action, Completer | None] | None:
        """The argument without a name that comes next."""
        if self._place < len(self._positionals):
            return self._positionals[self._place]
        last = self._positionals[-1] if self._positionals else None
        return last if last is not None and last[0].nargs in _MANY else None

    def option_offers(self, word: str) -> Offers:
        """Options that begin with ``word`` and are not in the line yet."""
        return [
            (text, _brief(self._parser.help_of(action)) or "option")
            for action, _ in self._parser.known
            for text in action.option_strings
            if text.startswith(word) and action.dest not in self.values
        ]


def offers(parser: MagicParser, typed: str) -> tuple[str, Offers]:
    """Completions of ``typed``, the text after a magic's name; first the end of it that they replace."""
    word = re.search(r"\S*$", typed)[0]  # type: ignore[index]  # it matches empty text, too
    below = parser.verbs
    for first in re.finditer(r"\S+(?=\s)", typed):
        if first[0] in below:
            return offers(below[first[0]], typed[first.end() :])
    line = _Line(parser, typed[: len(typed) - len(word)])
    if line.is_over:
        return word, []
    name, equals, value = word.partition("=")
    if equals and name in line.options:
        return _values(line.options[name], value)
    if word[:1] == "-" and not word[1:2].isdigit():
        return word, line.option_offers(word)
    if line.pending is not None:
        return _values(line.pending, word)
    fragment, values = (word, []) if line.positional is None else _values(line.positional, word)
    values += [(name, _brief(one.description)) for name, one in below.items() if name.startswith(word)]
    return fragment, values if word else values + line.option_offers("--")


def _brief(words: str | None) -> str:
    """The words of a help text about what is offered."""
    text = (words or "").replace("%%", "%")
    text = text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
    return text.replace(" ", "\N{NO-BREAK SPACE}")  # JupyterLab wraps a kind, which is one word as a rule


def _values(known: tuple[argparse.Action, Completer | None], word: str) -> tuple[str, Offers]:
    action, completer = known
    fragment = word.rpartition(",")[2]
    try:
        found = [str(one) for one in action.choices or ()] if completer is None else list(completer(fragment))
    except DtrainError:
        found = []
    # After a comma, completion offers names and numbers, but not `all`.
    found = [one for one in found if one != "all" or fragment == word]
    return fragment, [(one, "value") for one in found if one.startswith(fragment)]


INSPECTIONS = Patch(
    "IPython.core.interactiveshell",
    replaces=("InteractiveShell.object_inspect_mime",),
    why="The notebook's kernel does not know the names that only the ranks have.",
    lost="Shift-Tab shows nothing for names that only the ranks have",
)


class Inspections:
    """Answers for one shell when its own inspector has found nothing."""

    def __init__(self) -> None:
        self._original: Any = None

    def install(self, shell: Any) -> None:
        """Wrap the shell's inspector."""

        def install(_: Any) -> None:
            original = shell.object_inspect_mime
            INSPECTIONS.replace(shell, "object_inspect_mime", _inspect)
            self._original = original

        INSPECTIONS.when_imported(install)

    def uninstall(self, shell: Any) -> None:
        """Restore the shell's inspector."""
        if self._original is not None:
            INSPECTIONS.put(shell, "object_inspect_mime", self._original)


def _inspect(original: Any, oname: str, detail_level: int = 0, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(oname, detail_level, *args, **kwargs)
    except KeyError:
        words = _describe(oname, source=detail_level > 0)
        if not words:
            raise
        # ipykernel removes text/html where a client does not want it, and needs it to be there.
        return {"text/plain": words, "text/html": f"<pre>{html.escape(words)}</pre>"}


def _describe(name: str, *, source: bool) -> str:
    if not all(part.isidentifier() for part in name.split(".")):
        return ""
    try:
        session = current()
        found = session.names.describe(name, source=source)
        return describe_names(name, found, session.world.size) if found else ""
    except DtrainError:
        return ""

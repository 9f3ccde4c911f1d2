"""Write the reference pages of the magics and of the settings: ``docs/reference/magics.md`` and ``settings.md``.

The first comes from the parsers of the magics, so it names what ``-h`` names; the second from
:class:`jupyter_dtrain.Settings`.

python scripts/reference_pages.py            write them
python scripts/reference_pages.py --check    exit with 1 if they are not what parsers and settings say
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from textwrap import fill

import msgspec

from jupyter_dtrain.core.settings import FORMER, PREFIX, Settings
from jupyter_dtrain.magics.parsing import MagicParser
from jupyter_dtrain.magics.table import sections

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
MADE = "<!-- Made by scripts/reference_pages.py from {}: change that. -->\n\n"

MAGICS = """# Magics

`%load_ext jupyter_dtrain` adds these to a notebook, or to IPython in a terminal. `-h` after each of them shows the
same in a cell. `%dist` and `%%dist` are short for `%distributed` and `%%distributed`.

RANKS is `0`, `0,2`, `1-3`, `-1` (the last) or `all`; brackets around it, as in `[0,2]`, do no harm. RUN is `3` (of this
notebook's world, or else the newest run 3), `world/3`, or a variable that holds a run.
"""

SETTINGS = f"""# Settings

Each is an environment variable, read when a session or a world starts. A world keeps the values that it was started
with. From Python, pass `Settings(keep_alive=3600)` to `Session.start`. A name that begins with `{PREFIX}` and is
not in this list is an error.

| variable | default | meaning |
| --- | --- | --- |
"""

BESIDE = """
## Other variables

| variable | meaning |
| --- | --- |
| `DTRAIN_CSV` | the CSV file to which `jupyter_dtrain.log` appends outside a world; `{rank}` in it is the rank |
"""


def main() -> int:
    """Write the pages, or compare them."""
    pages = {FOLDER / "magics.md": magics_page(), FOLDER / "settings.md": settings_page()}
    if sys.argv[1:] == ["--check"]:
        return int(any(path.read_text() != text for path, text in pages.items()))
    for path, text in pages.items():
        path.write_text(text)
    return 0


def magics_page() -> str:
    """Every magic with its arguments."""
    text = MADE.format("the parsers of jupyter_dtrain/magics/") + MAGICS
    for title, words, parser, _ in sections():
        text += _section(title, words, parser)
    return text


def _section(title: str, words: str, parser: MagicParser) -> str:
    text = f"\n## `{title}`\n\n{fill(words, 120, break_on_hyphens=False)}\n"
    for heading, actions in parser.titled():
        rows = [f"| {_spelling(one)} | {_meaning(one, parser)} |" for one in actions if one.dest != "help"]
        if rows:
            text += f"\n{heading}:\n" if heading else ""
            text += "\n| argument | meaning |\n| --- | --- |\n" + "\n".join(rows) + "\n"
    return text


def _spelling(action: argparse.Action) -> str:
    """``-n N``, as a person writes the argument."""
    value = ""
    if action.nargs != 0:
        metavar = _value(action)
        several = {"+": f"{metavar} …", "*": f"[{metavar} …]", "?": f"[{metavar}]", argparse.REMAINDER: f"{metavar} …"}
        value = several.get(str(action.nargs), metavar)
    names = list(action.option_strings) or [""]
    return ", ".join(_code(f"{name} {value}".strip()) for name in names)


def _value(action: argparse.Action) -> str:
    choices = "|".join(map(str, action.choices)) if action.choices else ""
    return action.metavar if isinstance(action.metavar, str) else (choices or action.dest.upper())


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def _meaning(action: argparse.Action, parser: MagicParser) -> str:
    words = (action.help or "").replace("%%", "%").replace("%(default)s", str(action.default))
    if others := parser.excluded_by(action):
        names = [other.option_strings[-1] if other.option_strings else _value(other) for other in others]
        words += f"; not with {' or '.join(names)}"
    for sign in "<|*":
        words = words.replace(sign, f"\\{sign}")
    return words


def settings_page() -> str:
    """Every setting with its default."""
    told = dict(_docstrings(Settings))
    rows = [
        f"| `{PREFIX}{field.name.upper()}` | {_number(field.default)} | {told[field.name]} |"
        for field in msgspec.structs.fields(Settings)
        if field.name not in FORMER
    ]
    return MADE.format("jupyter_dtrain/core/settings.py") + SETTINGS + "\n".join(rows) + "\n" + BESIDE


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _docstrings(cls: Callable[..., object]) -> Iterator[tuple[str, str]]:
    """Each attribute of a class with the text below it, on one line."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(cls)).body if isinstance(node, ast.ClassDef))
    for one, below in pairwise(body):
        match one, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(words))),
            ):
                yield name, " ".join(words.replace("``", "`").split())


if __name__ == "__main__":
    sys.exit(main())

"""The command ``jupyter dtrain``: the verbs that need no notebook, from the table that ``%distributed`` has.

Each verb has the arguments and the answers that it has in a notebook; ``export`` names its notebook first, and its
target as an option, as ``jupyter nbconvert`` does. An error ends the command with status 1 and its message, a line that
cannot be parsed with status 2.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from IPython.core.error import UsageError

from jupyter_dtrain.core.errors import DtrainError

from .jobs.exporting import TARGETS, find_target
from .magics.export import choice_arguments, export_parsed, setting_arguments
from .magics.parsing import HelpShown, MagicParser, Parsed
from .magics.table import renamed, verbs

PROGRAM: Final = "jupyter dtrain"
VERBS: Final = ("doctor", "worlds", "stop", "runs", "show", "compare", "snapshots")
"""The verbs that do here what they do in a notebook."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        args = command_parser().parse_args([*renamed(words[0], PROGRAM).split(), *words[1:]] if words else words)
        args.run(args)
    except HelpShown:
        return 0
    except UsageError as error:
        print(error, file=sys.stderr)  # noqa: T201 — a command talks to its terminal
        return 2
    except DtrainError as error:
        said = re.sub(rf"%distributed ({'|'.join(VERBS)})\b", rf"{PROGRAM} \1", str(error))
        print(f"{PROGRAM}: {said}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def command_parser() -> MagicParser:
    """The parser of the command."""
    parser = MagicParser(prog=PROGRAM, description="Distributed training in Jupyter, from a terminal.")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=MagicParser)
    words = "make a job of a notebook's cells: a script, and what launches it"
    one = subparsers.add_parser("export", help=words, description=f"{words[0].upper()}{words[1:]}.")
    one.add_argument("notebook", metavar="NOTEBOOK", help="the notebook's file")
    one.add_argument(
        "--to",
        dest="target",
        metavar="TARGET",
        required=True,
        choices=[target.name for target in TARGETS],
        help="; ".join(f"{target.name}: {target.help}" for target in TARGETS),
    )
    one.add_argument(
        "-o", "--output", metavar="FILE", help="file to write (default: the notebook's name, in this folder)"
    )
    choice_arguments(one)
    setting_arguments(one, TARGETS)
    one.set_defaults(run=_export)
    for verb in verbs():
        if verb.name in VERBS:
            two = subparsers.add_parser(verb.name, help=verb.help, description=verb.sentence)
            verb.fill(two)
    return parser


def _export(args: Parsed) -> None:
    file = args.output or f"{Path(args.notebook).stem}{find_target(args.target).suffix}"
    print(export_parsed(args, args.target, file, args.notebook))  # noqa: T201

"""The verb that runs a script on the ranks: ``%distributed exec``."""

from __future__ import annotations

import argparse

from IPython.core.getipython import get_ipython

from jupyter_dtrain.client.scripts import script_cell, script_name
from jupyter_dtrain.core.errors import BadRequest

from .cells import cell_arguments, ranks_argument, run_cell
from .offers import scripts
from .parsing import MagicParser, Parsed


def exec_arguments(parser: MagicParser) -> None:
    """Arguments of ``exec``."""
    ranks_argument(parser)
    cell_arguments(parser)
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="run in a fresh namespace and discard it (default: the script's names stay on the ranks)",
    )
    parser.add_argument(
        "-m", dest="module", action="store_true", help="run a module instead, such as package.train, as python -m does"
    )
    parser.add_argument(
        "script", metavar="SCRIPT", help="Python file to run, or with -m the name of a module", completer=scripts
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script: the rest of the line"
    )


def exec_script(args: Parsed) -> None:
    """``%distributed exec SCRIPT …``."""
    shell = get_ipython()
    if shell is None:
        raise BadRequest(
            "%distributed exec needs a notebook or IPython: in a Python program, call Session.run_script()."
        )
    # The parser put a space before numbers below 0, so that argparse did not take them for options.
    arguments = [word[1:] if word[:2] == " -" and word[2:3].isdigit() else word for word in args.arguments]
    args.run_name = args.run_name or script_name(args.script, arguments)
    run_cell(args, script_cell(args.script, arguments, module=args.module, fresh=args.fresh), shell.user_ns)

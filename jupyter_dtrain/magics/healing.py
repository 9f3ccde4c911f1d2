"""The verbs that replace dead ranks and change how many ranks there are."""

from __future__ import annotations

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.session import current

from .offers import rank_names, some_ranks
from .parsing import MagicParser, Parsed, run_numbers
from .worlds import ProgressLine, show_lines


def resize_arguments(parser: MagicParser) -> None:
    """Arguments of ``resize``."""
    parser.add_argument(
        "size",
        nargs="?",
        metavar="N",
        help="number of ranks that the world is to have: new ones start, or the highest end",
    )
    parser.add_argument(
        "--drop",
        metavar="RANKS",
        help="the ranks to end instead, such as 1 or 0,4-7, also dead ones; the others are numbered anew, in their "
        "order (N is not needed then)",
        completer=some_ranks,
    )
    heal_arguments(parser)


def heal_arguments(parser: MagicParser) -> None:
    """Arguments of ``heal``."""
    parser.options_anywhere = True
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="variables to copy to the new ranks (models, optimizers or anything else); the other ranks get the state "
        "of those that have one",
        completer=rank_names,
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=int,
        metavar="RANK",
        help="living rank to copy them from (default: the lowest living rank)",
    )
    parser.add_argument(
        "--replay",
        default="",
        metavar="RUNS",
        help="runs whose cells the new ranks run again first, such as 1,3-5 or variables of -o; the other ranks do "
        "not run them",
    )


def heal(args: Parsed) -> None:
    """``%distributed replace [--from RANK NAME …] [--replay RUNS]``."""
    replay = run_numbers(args.replay)
    line = ProgressLine()
    try:
        show_lines(line, str(current().replace(args.names, args.source, replay=replay, progress=line.say)))
    finally:
        line.end()


def resize(args: Parsed) -> None:
    """``%distributed resize [N] [--drop RANKS] [--from RANK NAME …] [--replay RUNS]``."""
    replay = run_numbers(args.replay)
    size, names = _size_and_names([*filter(None, [args.size]), *args.names])
    line = ProgressLine()
    try:
        done = current().resize(size, names, args.source, drop=args.drop, replay=replay, progress=line.say)
        show_lines(line, str(done))
    finally:
        line.end()


def _size_and_names(words: list[str]) -> tuple[int | None, list[str]]:
    """Split ``words`` into N, if it is there, and the names: argparse cannot know which the first word is."""
    if words and not words[0].strip().isidentifier():
        try:
            return int(words[0]), words[1:]
        except ValueError:
            raise BadRequest(f"{words[0]!r} is not a number of ranks.") from None
    return None, words

"""The verbs that show the memory of ranks, and that let go of what only old outputs keep."""

from __future__ import annotations

from typing import Any

from IPython.core import display_functions

from jupyter_dtrain.session import current

from .cells import ranks_argument
from .parsing import MagicParser, Parsed, count, seconds


def memory_arguments(parser: MagicParser) -> None:
    """Arguments of ``memory``."""
    ranks_argument(parser, "ranks to ask")
    parser.add_argument(
        "-n", "--most", metavar="N", type=count, default=20, help="tensors and arrays that are named (default: 20)"
    )
    parser.add_argument(
        "--timeout", metavar="S", type=seconds, default=10.0, help="seconds in which ranks look (default: 10)"
    )


def memory(args: Parsed) -> None:
    """``%distributed memory``: works also while a cell runs."""
    publish: Any = display_functions.publish_display_data
    publish(current().memory(args.ranks, args.most, args.timeout)._repr_mimebundle_())


def free_arguments(parser: MagicParser) -> None:
    """Arguments of ``free``."""
    ranks_argument(parser, "ranks that let go")


def free(args: Parsed) -> None:
    """``%distributed free``."""
    print(current().free(args.ranks))

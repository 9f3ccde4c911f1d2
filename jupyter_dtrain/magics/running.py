"""The verbs that look at and steer what runs."""

from __future__ import annotations

from IPython.core.getipython import get_ipython

from ..exchange import describe_stacks
from ..lifecycle import current
from .parsing import MagicParser, Parsed
from .transform import transform_of


def interrupt(_args: Parsed) -> None:
    """``%distributed interrupt``."""
    current().interrupt()


def stacks_arguments(parser: MagicParser) -> None:
    """Arguments of ``stacks``."""
    parser.add_argument("-r", "--ranks", metavar="RANKS", help="which ranks (default: all)")


def stacks(args: Parsed) -> None:
    """``%distributed stacks``: ranks that are at the same place are told once."""
    print(describe_stacks(current().stacks(args.ranks)))


def auto_arguments(parser: MagicParser) -> None:
    """Arguments of ``auto``."""
    parser.add_argument("switch", choices=("on", "off"), help="off is the default; %%%%local keeps one cell here")


def auto(args: Parsed) -> None:
    """``%distributed auto on|off``."""
    transform = transform_of(get_ipython())
    transform.auto = args.switch == "on"
    if transform.auto:
        print("Every plain cell now runs on all ranks; %%local keeps a cell here, %distributed auto off ends this.")
    else:
        print("Plain cells run in the notebook again; %%distributed sends one to the ranks.")

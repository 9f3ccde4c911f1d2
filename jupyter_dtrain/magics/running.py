"""The verbs that look at and steer what runs."""

from __future__ import annotations

from typing import Any

from IPython.core.getipython import get_ipython

from ..lifecycle import current
from ..world import count_ranks
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
    groups: dict[str, list[int]] = {}
    for rank, threads in current().stacks(args.ranks).items():
        groups.setdefault(_describe(threads), []).append(rank)
    for text, ranks in sorted(groups.items(), key=lambda item: item[1]):
        print(f"{count_ranks(ranks)}: {text}")


def _describe(threads: list[dict[str, Any]] | None) -> str:
    if threads is None:
        return "no answer (dead, stopped, or in native code that holds the interpreter lock)"
    main = threads[0]
    if main["state"] == "idle":
        return "idle"
    lines = []
    for frame in main["frames"]:
        function = f" in {frame['function']}" if frame["function"] else ""
        lines.append(f"\n    {frame['file']}, line {frame['line']}{function}: {frame['source']}")
    return "running" + "".join(lines)


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

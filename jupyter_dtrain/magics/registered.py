"""The magics as IPython registers them: ``%distributed VERB``, ``%%distributed``, ``%%rank`` and ``%%speedup``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from IPython.core.magic import Magics, magics_class

from jupyter_dtrain.core.errors import Refused, package_gone

from .cells import cell_parser, rank_parser, run_cell
from .parsing import HelpShown, MagicParser
from .scaling import measure, speedup_parser
from .table import verbs


@magics_class
class CellMagics(Magics):
    """The magics that the extension registers."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._namespace: dict[str, Any] = shell.user_ns

    def distributed(self, line: str, cell: str | None = None) -> None:
        """``%distributed VERB`` steers a world; ``%%distributed`` runs a cell on its ranks. -h lists the options."""
        with _for_people():
            if cell is None:
                args = verb_parser().parse_line(line or "status")
                args.run(args)
            else:
                run_cell(cell_parser().parse_line(line), cell, self._namespace)

    def rank(self, line: str, cell: str) -> None:
        """``%%rank RANKS`` runs a cell on some ranks."""
        with _for_people():
            run_cell(rank_parser().parse_line(line), cell, self._namespace)

    def speedup(self, line: str, cell: str) -> None:
        """``%%speedup 1 2 4`` measures how a cell scales with the number of ranks. -h lists the options."""
        with _for_people():
            measure(speedup_parser().parse_line(line), cell, self._namespace)


@contextlib.contextmanager
def _for_people() -> Iterator[None]:
    """Turn the help that ``-h`` printed into no error, and a package that was removed into an error with its cure."""
    try:
        yield
    except HelpShown:
        pass
    except ModuleNotFoundError:
        if gone := package_gone():
            raise Refused(gone) from None
        raise


def verb_parser() -> MagicParser:
    """The parser of ``%distributed``."""
    parser = MagicParser(
        prog="%distributed",
        description="Control a world of ranks. Without a verb, show its status.",
        epilog="%%distributed -h lists the options of cells that run on the ranks.",
    )
    subparsers = parser.add_subparsers(metavar="VERB", required=True, parser_class=MagicParser)
    for verb in verbs():
        one = subparsers.add_parser(verb.name, help=verb.help, description=verb.help[0].upper() + verb.help[1:] + ".")
        verb.arguments(one)
        one.set_defaults(run=verb.run)
    return parser

"""Whether a cell parses, found out in the notebook: a typing error goes to no rank."""

from __future__ import annotations

import ast
import warnings
from typing import Any

from .errors import BadRequest, BadSyntax


def number_of_cell() -> int | None:
    """The number of the cell that runs in this process, as the notebook shows it; None outside IPython."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None or shell.history_manager is None:
        return None
    # The execution count is raised before a cell runs in some versions of IPython (9.18), after it in others.
    number = len(shell.history_manager.input_hist_parsed) - 1
    return number if number > 0 else None


def check_syntax(code: str) -> None:
    """Raise :class:`BadSyntax` if ``code`` would not parse as an IPython cell, before it goes anywhere."""
    from IPython.core.inputtransformer2 import TransformerManager

    transform: Any = TransformerManager
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            compile(
                transform().transform_cell(code),
                "<cell>",
                "exec",
                ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                dont_inherit=True,
            )
        except SyntaxError as error:
            raise BadSyntax(error) from None
        except ValueError as error:
            raise BadRequest(f"The cell cannot be run: {error}.") from None

"""The check of a cell's syntax in the notebook: a typing error reaches no rank."""

from __future__ import annotations

import ast
import warnings
from typing import Any

from jupyter_dtrain.core.errors import BadRequest, BadSyntax


def check_syntax(code: str, above: int = 0) -> None:
    """Raise :class:`BadSyntax` if ``code`` would not parse as an IPython cell, before it goes anywhere.

    The notebook's cell has so many lines ``above`` it.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    transform: Any = TransformerManager
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            compile(
                "\n" * above + transform().transform_cell(code),
                "<cell>",
                "exec",
                ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                dont_inherit=True,
            )
        except SyntaxError as error:
            raise BadSyntax(error) from None
        except ValueError as error:
            raise BadRequest(f"The cell cannot be run: {error}.") from None
        except (RecursionError, MemoryError):
            raise BadRequest("The cell cannot be run: its code is nested too deeply for Python.") from None

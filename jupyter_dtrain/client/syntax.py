"""The check of a cell's syntax in the notebook: a typing error reaches no rank."""

from __future__ import annotations

import ast
import warnings
from typing import Any

from jupyter_dtrain.core.errors import BadRequest, BadSyntax

_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def check_syntax(code: str, above: int = 0) -> None:
    """Raise :class:`BadSyntax` if ``code`` would not parse as an IPython cell, before it goes anywhere.

    The notebook's cell has so many lines ``above`` it.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    transform: Any = TransformerManager
    text = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            text = "\n" * above + transform().transform_cell(code)
            tree = compile(text, "<cell>", "exec", _FLAGS | ast.PyCF_ONLY_AST, dont_inherit=True)
            # IPython compiles each statement of a cell by itself: there an import from the future is always the first.
            later = [one for one in tree.body if isinstance(one, ast.ImportFrom) and one.module == "__future__"]
            rest = [one for one in tree.body if one not in later]
            for part in (rest, *([one] for one in later)):
                compile(ast.Module(part, []), "<cell>", "exec", _FLAGS, dont_inherit=True)
        except SyntaxError as error:
            lines = text.splitlines()
            if error.text is None and error.lineno is not None and 0 < error.lineno <= len(lines):
                error.text = lines[error.lineno - 1]  # the compiler, unlike the parser, looks for it in a file
            raise BadSyntax(error) from None
        except ValueError as error:
            raise BadRequest(f"The cell cannot be run: {error}.") from None
        except (RecursionError, MemoryError):
            raise BadRequest("The cell cannot be run: its code is nested too deeply for Python.") from None

"""Finds the earlier cells that a new rank can run again alone: those that call nothing that waits for all ranks.

Only the text decides. A definition calls nothing; a call of a function that one of the cells defines counts as what is
in that function. A collective behind a name from elsewhere stays unseen: such a cell waits until it is interrupted.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from jupyter_dtrain.core.declarations import declarations

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def collectives_in(cells: Iterable[str]) -> list[list[str]]:
    """For each cell the calls in it that wait for all ranks, by the words that frameworks declare."""
    trees = [_parsed(cell) for cell in cells]
    words = {word for one in declarations() for word in one.collectives}
    defined = {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return [list(dict.fromkeys(_calls(tree, words, defined, set()))) for tree in trees]


def _parsed(cell: str) -> ast.Module:
    """The cell; without its lines of IPython's own where it has such lines."""
    try:
        return ast.parse(cell)
    except SyntaxError:
        plain = [line for line in cell.splitlines() if not line.lstrip().startswith(("%", "!"))]
    try:
        return ast.parse("\n".join(plain))
    except SyntaxError:
        return ast.Module([], [])


def _calls(node: ast.AST, words: set[str], defined: dict[str, ast.FunctionDef], seen: set[str]) -> Iterator[str]:
    """The words among the calls that ``node`` makes when it is run."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            match child.func:
                case ast.Attribute(attr=name) | ast.Name(id=name) if name in words:
                    yield name
                case ast.Name(id=name) if name in defined and name not in seen:
                    seen.add(name)
                    yield from _calls(ast.Module(defined[name].body, []), words, defined, seen)
        if not isinstance(child, _Definition):
            yield from _calls(child, words, defined, seen)

"""Finds the earlier cells that a new rank can run again alone: those that call nothing that waits for all ranks.

Only the text decides. A definition calls nothing; a call of a function that one of the cells defines counts as what is
in that function. A collective behind a name from elsewhere stays unseen: such a cell waits until it is interrupted.
A package that goes on without some ranks (``carries_on`` of a framework's declaration) waits for nobody: methods of
what the cells import from it, and of what they make with that, may have the names of collectives.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from jupyter_dtrain.core.declarations import declarations

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def collectives_in(cells: Iterable[str], *, group: bool = False) -> list[list[str]]:
    """For each cell the calls in it that wait for all ranks, by the words that frameworks declare.

    ``group``: also those that set up a group of all ranks, which return at once only where the rank has that group.
    """
    trees = [_parsed(cell) for cell in cells]
    words = {word for one in declarations() for word in (*one.collectives, *(one.set_ups if group else ()))}
    defined = {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    free = _free_names(trees)
    return [list(dict.fromkeys(_calls(tree, words, defined, free, set()))) for tree in trees]


def _free_names(trees: list[ast.Module]) -> set[str]:
    """The names that the cells bind to what goes on without some ranks: by an import, or by a call of such a name."""
    packages = {package for one in declarations() for package in one.carries_on}
    free: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.Import(names=names):
                _bind(free, {(one.asname or one.name.partition(".")[0]): one.name for one in names}, packages)
            case ast.ImportFrom(module=str(module), names=names):
                _bind(free, {one.asname or one.name: module for one in names}, packages)
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=made)) if _root(made) in free:
                free.add(name)
    return free


def _bind(free: set[str], modules: dict[str, str], packages: set[str]) -> None:
    for name, module in modules.items():
        (free.add if module.partition(".")[0] in packages else free.discard)(name)


def _root(node: ast.expr) -> str:
    """The name that ``node`` begins with; empty where it begins with none."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


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


def _calls(
    node: ast.AST, words: set[str], defined: dict[str, ast.FunctionDef], free: set[str], seen: set[str]
) -> Iterator[str]:
    """The words among the calls that ``node`` makes when it is run."""
    waiting = [*ast.iter_child_nodes(node)][::-1]  # no recursion: a sum of 500 terms is as deep as that
    while waiting:
        child = waiting.pop()
        if isinstance(child, ast.Call):
            match child.func:
                case ast.Attribute(attr=name) | ast.Name(id=name) if name in words:
                    if _root(child.func) not in free:
                        yield name
                case ast.Name(id=name) if name in defined and name not in seen:
                    seen.add(name)
                    yield from _calls(ast.Module(defined[name].body, []), words, defined, free, seen)
        if not isinstance(child, _Definition):
            waiting += [*ast.iter_child_nodes(child)][::-1]

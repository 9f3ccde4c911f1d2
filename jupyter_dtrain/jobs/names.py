"""The names that a cell reads from others, and those that it binds for others.

A cell's own scopes come from :mod:`symtable`, so a parameter, a loop variable of a comprehension or a name of a class
body is not taken for a name of the notebook. Code that runs at once is read in its order: ``x = x + 1``
needs an ``x`` from before. A function's body runs later, so what it reads may be bound by then.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator
from typing import Final, NamedTuple

PROVIDED: Final = frozenset(dir(builtins)) | {"__name__", "__doc__", "__annotations__", "__builtins__", "__file__"}
"""The names that every program has."""

_COMPREHENSIONS: Final = frozenset({"listcomp", "setcomp", "dictcomp", "genexpr"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class Names(NamedTuple):
    """The names that one cell binds, changes and reads."""

    bound: frozenset[str]
    """Names that the cell binds at its top level, perhaps only under a condition."""
    changed: frozenset[str]
    """Names whose objects the cell changes: ``cfg["lr"] = 0.1``, ``model.width = 3``."""
    at_once: frozenset[str]
    """Names that the cell reads before it binds them."""
    later: frozenset[str]
    """Names that the cell's functions read when they are called, and that the cell does not bind."""
    star: bool
    """Whether it imports all names of a module: then it may bind any name."""


def names_of(code: str) -> Names:
    """The names of a cell that :func:`.syntax.as_python` has read. It parses."""
    tree = ast.parse(code)
    order = _Order()
    for statement in tree.body:
        order.visit(statement)
    table = symtable.symtable(code, "<cell>", "exec")
    read, declared = _deferred(table)
    bound = order.bound | declared
    return Names(
        frozenset(bound),
        frozenset(order.changed),
        frozenset(order.needed - PROVIDED),
        frozenset(read - bound - PROVIDED),
        order.star,
    )


def _deferred(table: symtable.SymbolTable) -> tuple[set[str], set[str]]:
    """The globals that functions below ``table`` read, and those that they declare global and bind."""
    read: set[str] = set()
    bound: set[str] = set()
    for child in table.get_children():
        # A comprehension of the top level runs at once; Python 3.12 gives it no table of its own any more.
        runs_now = table.get_type() == "module" and child.get_name() in _COMPREHENSIONS
        if child.get_type() != "class" and not runs_now:
            for symbol in child.get_symbols():
                if symbol.is_global() and symbol.is_referenced():
                    read.add(symbol.get_name())
                if symbol.is_declared_global() and symbol.is_assigned():
                    bound.add(symbol.get_name())
        more = _deferred(child)
        read |= more[0]
        bound |= more[1]
    return read, bound


class _Order(ast.NodeVisitor):
    """Walks through what a cell runs at once, in the order in which it runs."""

    def __init__(self) -> None:
        self.bound: set[str] = set()
        self.changed: set[str] = set()
        self.needed: set[str] = set()
        self.star = False
        self._inner: list[set[str]] = []
        """The names of the comprehensions and class bodies around."""

    def _read(self, name: str) -> None:
        if name not in self.bound and not any(name in scope for scope in self._inner):
            self.needed.add(name)

    def _bind(self, name: str) -> None:
        (self._inner[-1] if self._inner else self.bound).add(name)

    def _all(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._bind(node.id)
        else:
            self._read(node.id)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._change(node)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._change(node)
        self.generic_visit(node)

    def _change(self, node: ast.Subscript | ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            owner: ast.expr = node
            while isinstance(owner, ast.Subscript | ast.Attribute):
                owner = owner.value
            if isinstance(owner, ast.Name):
                self.changed.add(owner.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._all(node.value, *node.targets)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._all(node.annotation, node.value)
        if node.value is not None or not isinstance(node.target, ast.Name):
            self.visit(node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target.id)
            self.changed.add(node.target.id)
        self._all(node.value, node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        # In a comprehension it binds outside of that.
        inner, self._inner = self._inner, []
        self.visit(node.target)
        self._inner = inner

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._all(node.iter, node.target, *node.body, *node.orelse)

    visit_AsyncFor = visit_For  # noqa: N815

    def visit_Import(self, node: ast.Import) -> None:
        for one in node.names:
            self._bind(one.asname or one.name.partition(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for one in node.names:
            if one.name == "*":
                self.star = True
            else:
                self._bind(one.asname or one.name)

    def visit_FunctionDef(self, node: _Function) -> None:
        arguments = node.args
        annotations = [one.annotation for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        self._all(*node.decorator_list, *arguments.defaults, *arguments.kw_defaults, *annotations, node.returns)
        self._bind(node.name)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._all(*node.args.defaults, *node.args.kw_defaults)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._all(*node.decorator_list, *node.bases, *(one.value for one in node.keywords))
        self._inner.append(set())
        self._all(*node.body)
        self._inner.pop()
        self._bind(node.name)

    def _visit_comprehension(self, node: _Comprehension) -> None:
        self._inner.append(set())
        for part in node.generators:
            self._all(part.iter, part.target, *part.ifs)
        self._all(*_results(node))
        self._inner.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension  # noqa: N815

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._all(node.type)
        if node.name:
            self._bind(node.name)
        self._all(*node.body)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self._all(node.pattern)
        if node.name:
            self._bind(node.name)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name:
            self._bind(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic_visit(node)
        if node.rest:
            self._bind(node.rest)


def _results(node: _Comprehension) -> Iterator[ast.expr]:
    if isinstance(node, ast.DictComp):
        yield from (node.key, node.value)
    else:
        yield node.elt

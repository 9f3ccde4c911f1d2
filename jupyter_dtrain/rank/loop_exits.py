"""Places to go on behind the loops of cells and scripts, for those that a person has ended: see :mod:`.loops`.

An exit stands behind its loop on a line that no source has, and the code never comes there by itself. Python gives what
leads past it no line of its own. So debuggers, profilers and all who trace lines see what they saw before; only a
``while True`` that several of its ``break`` statements may end shows the line of the last of them once more.

Under failure: nothing here raises. Code that other tools compile keeps its meaning there, too.
"""

from __future__ import annotations

import ast
import contextlib
import sys
from typing import Final

FAR: Final = 1_000_000
"""Lines between a loop and its exit: more than any cell has."""
LOOPS: Final = (ast.For, ast.While, ast.AsyncFor)
GUARDS: Final = (ast.With, ast.AsyncWith, ast.Try, getattr(ast, "TryStar", ast.Try))
"""Statements that have something to do when they are left."""
CAN_EXIT: Final = sys.version_info >= (3, 11)
"""Before Python 3.11, who looks for the call that a frame is in compares the code with its source."""
SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class LoopExits(ast.NodeTransformer):
    """Gives each loop a place to go on where it was ended: an AST transformer of IPython's.

    Only loops with no other one around them need it, in their function and in each ``with`` and ``try``.
    """

    def visit_Module(self, node: ast.Module) -> ast.Module:
        """Add the places to a cell or a script."""
        if CAN_EXIT:
            # Each elif is deeper by one than that before it. What was changed by then is right as it is.
            with contextlib.suppress(RecursionError):
                self._look_through(node, outermost=True)
        return node

    def _look_through(self, node: ast.AST, *, outermost: bool) -> None:
        for block in blocks(node):
            block[:] = [self._with_exit(one, outermost=outermost) for one in block]

    def _with_exit(self, node: ast.stmt, *, outermost: bool) -> ast.stmt:
        inner = outermost if not isinstance(node, LOOPS) else False
        self._look_through(node, outermost=inner or isinstance(node, (*SCOPES, *GUARDS)))
        if not outermost or not isinstance(node, LOOPS):
            return node
        if not isinstance(node, ast.While):
            node.orelse.insert(0, _exit(node, -1))
        elif not is_endless(node):
            node.orelse.insert(0, _exit(node, node.test.lineno))
        elif breaks := [one.lineno for one in breaks_of(node.body)]:
            # No condition ever leads behind this loop, and Python leaves out what nothing leads to.
            both = ast.If(ast.Constant(value=True), [], [])
            _place(both, node.lineno)
            both.body[:] = [node, _exit(node, breaks[-1])]
            return both
        return node


def _exit(loop: ast.stmt, line: int) -> ast.stmt:
    """Code that nothing leads to but a jump. ``line``: where the code before it stands; -1 for no line."""
    # A condition that is never true, which Python does not find out when it compiles. Others can compile it, too.
    outer, inner = (
        ast.If(ast.Compare(ast.Constant(value=0), [ast.Lt()], [ast.Constant(value=0)]), [ast.Pass()], [])
        for _ in range(2)
    )
    _place(outer, line)
    _place(inner, FAR + loop.lineno)
    outer.body[:] = [inner]
    return outer


def _place(tree: ast.AST, line: int) -> None:
    for node in ast.walk(tree):
        vars(node).update(lineno=line, end_lineno=line, col_offset=0, end_col_offset=0)


def is_endless(loop: ast.stmt) -> bool:
    """Whether no condition ends the loop."""
    return isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and bool(loop.test.value)


def breaks_of(block: list[ast.stmt]) -> list[ast.Break]:
    """The ``break`` statements of a loop with the body ``block``."""
    found: list[ast.Break] = []
    for node in block:
        if isinstance(node, ast.Break):
            found.append(node)
        elif isinstance(node, LOOPS):
            found += breaks_of(node.orelse)
        elif not isinstance(node, SCOPES):
            found += [one for inner in blocks(node) for one in breaks_of(inner)]
    return found


def blocks(node: ast.AST) -> list[list[ast.stmt]]:
    """The blocks of statements in a node."""
    found: list[list[ast.stmt]] = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
    return found + [one.body for name in ("handlers", "cases") for one in getattr(node, name, ())]

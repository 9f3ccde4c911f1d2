"""The user's loop that a step was made in, found on the stack.

A step is counted far below the loop: in a hook of an optimizer, say, which a framework calls. :func:`user_frames`
leads from there to the frame whose names a person means who acts on the loop.

Under failure: code without readable source has no loop. Nothing here raises, and nothing of the user's runs.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import inspect
import linecache
import traceback
from typing import TYPE_CHECKING, Final

from .tracebacks import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

LOOPS: Final = (ast.For, ast.While, ast.AsyncFor)
GUARDS: Final = (ast.With, ast.AsyncWith, ast.Try, getattr(ast, "TryStar", ast.Try))
"""Statements that have something to do when they are left."""
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BODIES: Final = ("body", "orelse", "handlers", "finalbody")


def user_frames(frame: FrameType, is_users: Callable[[str], bool]) -> list[FrameType]:
    """The user's frames on the stack that ends in ``frame``, from the one of the innermost loop outwards.

    The frames within that loop are left out: a hook of the user's, or the function that makes one step. Where no frame
    stands in a loop, all are there. ``is_users``: whether a code object's file is a cell's, a script's or a module of
    the user's.
    """
    found = [step for step, _ in traceback.walk_stack(frame) if is_users(step.f_code.co_filename)]
    first = next((at for at, step in enumerate(found) if loops_around(step)), 0)
    return found[first:]


def loops_around(frame: FrameType) -> list[ast.stmt]:
    """The loops and the guards (``with``, ``try``) around the line of ``frame`` in its function, outermost first.

    Empty unless the outermost is a loop, or has one inside that is around the line, too.
    """
    line = frame.f_lineno
    tree = _tree(frame.f_code)
    if line is None or tree is None:
        return []
    around = _around(tree, line)
    # The first line of a for is where its iterable is made, too, before it is a loop.
    for at, node in enumerate(around):
        if isinstance(node, (ast.For, ast.AsyncFor)) and line < node.body[0].lineno and not _iterates(frame):
            around = around[:at]
            break
    return around if any(isinstance(node, LOOPS) for node in around) else []


def is_ours(frame: FrameType) -> bool:
    """Whether the frame runs code of this package."""
    return frame.f_code.co_filename.startswith(PACKAGE)


def _around(tree: ast.Module, line: int) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    nodes: list[ast.stmt] = tree.body
    while True:
        # The last of those on one line, as what stands before it is no block.
        inner = [node for node in nodes if node.lineno <= line <= (node.end_lineno or 0)]
        if not inner:
            return found
        node = inner[-1]
        if isinstance(node, _SCOPES):
            found = []
        elif isinstance(node, (*LOOPS, *GUARDS)):
            found.append(node)
        blocks = [getattr(node, name, []) for name in _BODIES] + [case.body for case in getattr(node, "cases", ())]
        nodes = [one for block in blocks for one in block]


def _iterates(frame: FrameType) -> bool:
    """Whether the frame is in the middle of asking an iterator for its next item."""
    with contextlib.suppress(Exception):
        at = next(one for one in dis.get_instructions(frame.f_code) if one.offset == frame.f_lasti)
        return at.opname in ("FOR_ITER", "GET_ANEXT", "SEND", "YIELD_FROM")
    return False


def _tree(code: CodeType) -> ast.Module | None:
    """The source of a module, a cell or a function, with the line numbers of its file."""
    with contextlib.suppress(Exception):  # no source, or another one than that which runs
        lines = linecache.getlines(code.co_filename)
        if code.co_name == "<module>":
            return ast.parse("".join(lines))
        first = code.co_firstlineno
        block = inspect.getblock(lines[first - 1 :])
        # A method is indented, which is right below another line alone.
        return ast.parse("\n" * (first - 2) + "if True:\n" + "".join(block)) if first > 1 else ast.parse("".join(block))
    return None

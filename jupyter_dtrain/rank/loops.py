"""The user's loop that a step was made in: where it stands on the stack, and how to end it as if it had finished.

A step is counted far below the loop: in a hook of an optimizer, say, which a framework calls. :func:`user_frames`
leads from there to the frame whose names a person means who acts on the loop.

Python lets a trace function say on which line a frame goes on. So :class:`LoopEnd` ends a loop, and those around it in
other functions of the user's, at the next line that stands in no ``with`` and no ``try`` of the loop: what these have
to do at their end is done. It goes on at the exit that :mod:`.loop_exits` has put behind the loop.

Under failure: code without readable source has no loop, and neither :func:`user_frames` nor :func:`ending` raises. A
loop without an exit, as one of a library or of an imported module, is not ended. Where Python refuses to go on at the
exit, the cell ends there.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import inspect
import linecache
import sys
import traceback
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.plugins.framework import CellEnds

from .loop_exits import CAN_EXIT, FAR, GUARDS, LOOPS, SCOPES, blocks, breaks_of, is_endless
from .tracebacks import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

_HOOKS: Final = f"{PACKAGE}frameworks/"
_IN_LIBRARY: Final = "its loop is in a library"
_IN_MODULE: Final = "its loop is in an imported module"
_TOO_OLD: Final = "its loop runs in a Python before 3.11"
_NO_EXIT: Final = "its loop is a while True without a break"
_NO_LOOP: Final = "its steps stand in no loop"
_MOST_TREES: Final = 64
_trees: dict[CodeType, tuple[int, ast.Module | None]] = {}
"""The newest sources that were read, each with its number of lines: a loop is looked for at each step, or line."""


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


def ending(frame: FrameType, is_users: Callable[[str], bool]) -> LoopEnd | str:
    """What ends the user's loops on the stack that ends in ``frame``, all of them, as if they had finished.

    Where that is not possible: why, as a clause. ``is_users``: as in :func:`user_frames`.
    """
    whole = [step for step, _ in traceback.walk_stack(frame)]
    stack = [step for step in whole if not step.f_code.co_filename.startswith(PACKAGE)]
    users = [at for at, step in enumerate(stack) if is_users(step.f_code.co_filename)]
    if not users:
        return _NO_LOOP
    found = []
    begins = 0
    if any(step.f_code.co_filename.startswith(_HOOKS) for step in whole[: whole.index(stack[0])]):
        # A framework that counts the step calls its hooks in a loop: that is none of a training.
        begins = next(at for at, step in enumerate(stack) if at in users or _package(step) != _package(stack[0]))
    for at, step in enumerate(stack[begins : users[-1] + 1], begins):
        if not (around := loops_around(step)):
            continue
        loop: Any = next(one for one in around if isinstance(one, LOOPS))
        if at not in users:
            return _IN_LIBRARY
        if FAR + loop.lineno not in _exits(step.f_code):
            if not CAN_EXIT:
                return _TOO_OLD
            return _NO_EXIT if is_endless(loop) and not breaks_of(loop.body) else _IN_MODULE
        found.append((step, loop.lineno))
    return LoopEnd(found) if found else _NO_LOOP


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _exits(code: CodeType) -> set[int]:
    return {line for *_, line in code.co_lines() if line is not None and line > FAR}


class LoopEnd:
    """Ends the loops of some frames of one thread, each at its next line. That thread calls it."""

    def __init__(self, loops: list[tuple[FrameType, int]]) -> None:
        """``loops``: frames, each with the line of its outermost loop."""
        self._loops = loops
        self._before: dict[FrameType, Any] = {}
        """What traced each frame whose loop goes on."""
        self._traced = False

    def begin(self) -> None:
        """Have the loops end once the code that has called us returns to them."""
        for frame, line in self._loops:
            self._before[frame] = frame.f_trace
            frame.f_trace = self._tracer(line)
        self._loops = []
        # A tracer in C would not ask the frames. It rests until the loops have ended.
        self._others = sys.gettrace()
        if not isinstance(self._others, (FunctionType, MethodType)):
            self._traced = True
            sys.settrace(_trace_nothing)

    def cancel(self) -> None:
        """Let the loops that have not ended go on, and trace as before."""
        for frame in list(self._before):
            self._leave(frame)
        self._loops = []

    def _tracer(self, loop: int) -> Callable[[FrameType, str, Any], Any]:
        """``loop``: the line of the loop."""

        def trace(frame: FrameType, event: str, value: Any) -> Any:
            if frame not in self._before:
                return None
            if event == "line":
                target, is_over = _target(frame, loop)
                if target:
                    try:
                        frame.f_lineno = FAR + target  # type: ignore[misc] # a trace function may
                    except ValueError as error:
                        self.cancel()
                        raise CellEnds from error
                if is_over:
                    return self._leave(frame)
            elif event == "return":
                self._leave(frame)
                return None
            if (before := self._before[frame]) is not None:
                self._before[frame] = before(frame, event, value) or before
            return trace

        return trace

    def _leave(self, frame: FrameType) -> Any:
        """Trace a frame as it was traced before, and all if it was the last one."""
        before = self._before.pop(frame)
        frame.f_trace = before
        if not self._before and self._traced:
            self._traced = False
            if sys.gettrace() is _trace_nothing:
                sys.settrace(self._others)
        return before


def _trace_nothing(_frame: FrameType, _event: str, _value: Any) -> None:
    return None


def _target(frame: FrameType, line: int) -> tuple[int, bool]:
    """The line of the loop that can be ended where ``frame`` is, or 0; and whether the one at ``line`` is over then."""
    tree = _tree(frame.f_code)
    if tree is None or frame.f_lineno is None or frame.f_lineno > FAR:
        return 0, False
    around = _around(tree, frame.f_lineno)
    first = next((at for at, node in enumerate(around) if isinstance(node, LOOPS)), None)
    if first is None:
        return 0, False  # on the line of a function in the loop, or behind it
    if around[first].lineno != line:
        return 0, True  # it has ended by itself, and this is another one
    guarded = [at for at, node in enumerate(around) if at > first and isinstance(node, GUARDS)]
    if not guarded:
        return line, True
    # What stands in the guard goes on behind the loop in it, and the guard is left.
    inner = next((node.lineno for node in around[guarded[-1] :] if isinstance(node, LOOPS)), 0)
    return (inner, False) if FAR + inner in _exits(frame.f_code) else (0, False)


def _around(tree: ast.Module, line: int) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    nodes: list[ast.stmt] = tree.body
    while True:
        # The last of those on one line, as what stands before it is no block.
        inner = [node for node in nodes if node.lineno <= line <= (node.end_lineno or 0)]
        if not inner:
            return found
        node = inner[-1]
        if isinstance(node, SCOPES):
            found = []
        elif isinstance(node, (*LOOPS, *GUARDS)):
            found.append(node)
        nodes = [one for block in blocks(node) for one in block]


def _iterates(frame: FrameType) -> bool:
    """Whether the frame is in the middle of asking an iterator for its next item."""
    with contextlib.suppress(Exception):
        at = next(one for one in dis.get_instructions(frame.f_code) if one.offset == frame.f_lasti)
        return at.opname in ("FOR_ITER", "GET_ANEXT", "SEND", "YIELD_FROM")
    return False


def _tree(code: CodeType) -> ast.Module | None:
    """The source of a module, a cell or a function, with the line numbers of its file."""
    lines = linecache.getlines(code.co_filename)
    # A module that is reloaded has the same file, and other lines.
    if (found := _trees.get(code)) is not None and found[0] == len(lines):
        return found[1]
    tree = _parsed(code, lines)
    if len(_trees) >= _MOST_TREES:
        _trees.clear()
    _trees[code] = len(lines), tree
    return tree


def _parsed(code: CodeType, lines: list[str]) -> ast.Module | None:
    with contextlib.suppress(Exception):  # no source, or another one than that which runs
        if code.co_name == "<module>":
            return ast.parse("".join(lines))
        first = code.co_firstlineno
        block = inspect.getblock(lines[first - 1 :])
        if block[0][0].isspace():  # a method, say, which only stands below another line
            return ast.parse("\n" * (first - 2) + "if True:\n" + "".join(block))
        return ast.parse("\n" * (first - 1) + "".join(block))
    return None

"""Where a frame is in the source of its code: the operation that it is in the middle of, with the tree around it.

``executing`` finds it, and keeps each tree that it has read for ever: almost a megabyte for a cell of 100 lines, and
each rerun of a cell is another source. A rank lives for days, so here it forgets all of them now and then. The next
look at one of them reads it again.

In a cell, ``executing`` looks once for each statement on the line, and gives up when it finds something twice: so it
finds nothing in ``if rank == 0: work()`` or ``a = 1; work()``. There we look once for each statement of the cell.

Under failure: code without readable source has no tree and no node. Any thread may ask.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import linecache
import threading
from functools import lru_cache
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from .libraries import is_library

if TYPE_CHECKING:
    from executing.executing import Executing

FILES: Final = 16
"""Sources to keep: more than the cells and modules on one stack."""
LOOKS: Final = 1024
"""Looks after which all is forgotten: code that is made at each step (``exec``) has a place of its own each time."""


class _Sources:
    """Keeps the sources that were read, and forgets all of them now and then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: set[str] = set()
        self._looks = 0
        self._source: Any = None

    def look(self, place: FrameType | TracebackType) -> Executing:
        frame = place.tb_frame if isinstance(place, TracebackType) else place
        with self._lock:
            self._files.add(frame.f_code.co_filename)
            self._looks += 1
            if self._source is None or len(self._files) > FILES or self._looks > LOOKS:
                self._forget()
            source = self._source
        found: Executing = source.executing(place)
        if found.node is None and found.statements and len(found.statements) > 1:
            return _found_in_cell(place, found)
        return found

    def _forget(self) -> None:
        from executing import Source, executing

        # A class has caches of its own, which end with it; those of two functions are for all classes.
        self._source = type("Sources", (Source,), {})
        for function in (Source.statements_at_line, getattr(executing, "statement_containing_node", None)):
            with contextlib.suppress(AttributeError):
                function.cache_clear()  # type: ignore[union-attr]
        self._files.clear()
        self._looks = 0


def _found_in_cell(place: FrameType | TracebackType, found: Executing) -> Executing:
    """``found`` with its node, where the line has several statements and only one of them can be meant."""
    try:
        from executing.executing import NodeFinder, is_ipython_cell_code
    except ImportError:  # neither is public, so a later version may lack them
        return found
    if not is_ipython_cell_code(found.frame.f_code):
        return found
    statements: set[Any] = found.statements
    at: dict[Any, Any] = {}
    for whole in {_outermost(one) for one in statements}:
        tree = ast.Module([whole], [])  # IPython compiles each by itself
        with contextlib.suppress(Exception):  # the frame is in another one
            finder = NodeFinder(found.frame, statements, tree, _last_instruction(place), found.source)
            at[finder.result] = finder.decorator
    if len(at) != 1:
        return found
    ((node, decorator),) = at.items()
    return type(found)(found.frame, found.source, node, statements, decorator)


def _outermost(statement: Any) -> Any:
    while not isinstance(statement.parent, ast.Module):
        statement = statement.parent
    return statement


def _last_instruction(place: FrameType | TracebackType) -> int:
    return place.tb_lasti if isinstance(place, TracebackType) else place.f_lasti


_sources = _Sources()


def called_in(place: FrameType | TracebackType) -> ast.Call | None:
    """The call that a frame is in the middle of; None in a library, or where its source says nothing clear."""
    frame = place.tb_frame if isinstance(place, TracebackType) else place
    if is_library(frame.f_code.co_filename):
        return None  # to read the source of a big module takes a second
    with contextlib.suppress(Exception):
        node = executing_at(place).node
        return node if isinstance(node, ast.Call) else None
    return None


def prepare() -> None:
    """Import what a look needs, while files can be opened: user code may refuse that, or call ``os.chroot``."""
    with contextlib.suppress(ImportError):
        importlib.import_module("executing.executing")


def executing_at(place: FrameType | TracebackType) -> Executing:
    """The operation at ``place``, and its source."""
    return _sources.look(place)


def calls_on_line(frame: FrameType) -> list[ast.Call]:
    """The calls on the line that ``frame`` is at; empty where its source says nothing.

    For code of libraries: it reads the source of one function, as that of a big module takes a second.
    """
    at = frame.f_lineno or 0  # it may have none
    return [node for node in _calls(frame.f_code) if node.lineno <= at <= (node.end_lineno or 0)]


@lru_cache(64)
def _calls(code: CodeType) -> list[ast.Call]:
    with contextlib.suppress(Exception):
        first = code.co_firstlineno
        lines = inspect.getblock(linecache.getlines(code.co_filename)[first - 1 :])
        # A method is indented, which is right below another line alone.
        tree = ast.increment_lineno(ast.parse("if True:\n" + "".join(lines)), first - 2)
        return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return []

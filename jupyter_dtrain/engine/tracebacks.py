"""Exceptions and stacks of a rank, as data.

A traceback begins at the cell: it has no frames of IPython and of this package between the engine's loop and the cell.
"""

from __future__ import annotations

import builtins
import linecache
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType

from jupyter_dtrain.core.events import Error, Frame

from .libraries import is_library
from .scripts import is_script

CellName = Callable[[str], str | None]
"""From a code object's file name to a cell's name such as ``cell [3]``; None when it is no cell's."""

MAX_TEXT = 20_000
"""Characters of an exception's message that are kept."""
MAX_FRAMES = 200
MAX_MEMBERS = 15
"""Exceptions of a group that are kept."""
MAX_DEPTH = 5
"""Groups within groups."""
PACKAGE = f"{Path(__file__).parents[1]}/"


class Tracebacks:
    """Turns exceptions and frames into :class:`~jupyter_dtrain.core.events.Frame` lists."""

    def __init__(self, cell_name: CellName, home: Path) -> None:
        """``home``: the notebook's folder; modules in it count as the user's own code."""
        self._cell_name = cell_name
        self._home = f"{home.resolve()}/"

    def error(self, exception: BaseException, depth: int = 0) -> Error:
        """The error event of ``exception``, which lies ``depth`` groups deep."""
        steps = [(frame, line) for frame, line in traceback.walk_tb(exception.__traceback__)]
        members = _members(exception)
        kept = members[:MAX_MEMBERS] if depth < MAX_DEPTH else ()
        cause = exception.__cause__ or (None if exception.__suppress_context__ else exception.__context__)
        return Error(
            type(exception).__name__,
            _message(exception),
            self._frames(steps),
            [str(note) for note in getattr(exception, "__notes__", [])],
            f"{type(cause).__name__}: {_message(cause)}" if cause is not None else None,
            _place(exception) if isinstance(exception, SyntaxError) else None,
            [self.error(member, depth + 1) for member in kept],
            len(members) - len(kept),
        )

    def stack(self, frame: FrameType | None) -> list[Frame]:
        """The stack that ends in ``frame``, outermost first, from the cell on; empty when no cell is on it."""
        steps = [(step, line) for step, line in traceback.walk_stack(frame)][::-1]
        return self._frames(steps)

    def _frames(self, steps: Iterable[tuple[FrameType, int | None]]) -> list[Frame]:
        frames: list[Frame] = []
        for frame, line in steps:
            code = frame.f_code
            name = self._cell_name(code.co_filename)
            if name is None and (not frames or code.co_filename.startswith(PACKAGE)):
                continue
            own = name is not None or self._is_own(code.co_filename)
            source = linecache.getline(code.co_filename, line or 0).strip()
            function = "" if code.co_name == "<module>" else _qualified(code)
            frames.append(Frame(name or code.co_filename, line or 0, function, source, own))
        if len(frames) > MAX_FRAMES:
            half = MAX_FRAMES // 2
            frames = frames[:half] + frames[-half:]
        return frames

    def _is_own(self, file: str) -> bool:
        return is_script(file) or (os.path.realpath(file).startswith(self._home) and not is_library(file))


def cell_name(run: int, cell: int | None) -> str:
    """The name of the cell of ``run``. ``cell``: its number in the notebook, if known."""
    return f"run {run}" if cell is None else f"cell [{cell}]"


def causes(exception: BaseException | None) -> Iterator[BaseException]:
    """``exception``, its cause, that one's cause, and so on."""
    seen: set[int] = set()
    while exception is not None and id(exception) not in seen:
        seen.add(id(exception))
        yield exception
        exception = exception.__cause__ or exception.__context__


def _qualified(code: CodeType) -> str:
    """The function's name, with its class where Python knows it (from 3.11 on)."""
    name: str = getattr(code, "co_qualname", code.co_name)
    return name.rpartition("<locals>.")[2]


def _place(error: SyntaxError) -> str:
    """The file, the line and the caret, without the message, which travels on its own."""
    lines = traceback.format_exception_only(error)
    end = next((index for index, line in enumerate(lines) if not line.startswith(" ")), len(lines))
    return "".join(lines[:end])


def _members(exception: BaseException) -> tuple[BaseException, ...]:
    """The exceptions of a group (from Python 3.11 on there are groups)."""
    group = getattr(builtins, "BaseExceptionGroup", None)
    return exception.exceptions if group is not None and isinstance(exception, group) else ()


def _message(exception: BaseException) -> str:
    try:
        text = str(exception)
    except BaseException as error:  # noqa: BLE001 — a user's __str__ may raise anything, SystemExit too
        text = f"<its text could not be made: {type(error).__name__}>"
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " …"

"""Exceptions and stacks of a rank, as data.

A traceback begins at the cell: it has no frames of IPython and of this package between the engine's loop and the cell.
Where this package stands between a user and a library, its frames are left out, too, and :func:`blame_users` has
warnings name the user's line. A verb of the notebook that runs as a cell has no line of the user's.

Under failure: an exception is the user's, and its class may replace every attribute that Python documents. So this
module reads the interpreter's own attributes, and :mod:`.user_text` makes the texts that only the class can give. All
sizes are bounded. Errors are stored, so secrets are left out of their texts, see :mod:`jupyter_dtrain.core.secrets`.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import linecache
import os
import re
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from jupyter_dtrain.core.events import Error, Frame
from jupyter_dtrain.core.secrets import environment_secrets, redact
from jupyter_dtrain.plugins.libraries import is_library
from jupyter_dtrain.plugins.patches import Patch, caller
from jupyter_dtrain.plugins.sources import called_in

from .scripts import is_script
from .user_text import Words, shortened, type_name

CellName = Callable[[str], str | None]
"""From a code object's file name to a cell's name such as ``cell [3]``; None when it is no cell's."""

MAX_TEXT = 20_000
"""Characters of an exception's message that are kept, and of all its notes."""
MAX_NOTES = 50
MAX_FRAMES = 200
MAX_SOURCE = 2000
"""Characters of a frame's line, and of its names."""
MAX_MEMBERS = 15
"""Exceptions of a group that are kept."""
MAX_DEPTH = 5
"""Groups within groups."""
MAX_ERRORS = 100
"""Exceptions of all groups within one."""
MAX_CAUSES = 100
"""How many exceptions of a chain of causes are read."""
PACKAGE = f"{Path(__file__).parents[1]}/"

_PROFILES = "runctx"
"""The function of Python's profilers that runs the body of ``%%prun``, as text without a file name."""
_OF_LINE = ("<module>", "inner")
"""The names of the code of ``%time`` and ``%timeit``."""
_VERB = re.compile(
    r"__import__\('importlib'\)\.import_module\('jupyter_dtrain\.|import jupyter_dtrain\njupyter_dtrain\..*\n*\Z"
)
"""The cells of verbs, as ``client/`` writes them."""

WARNINGS = Patch(
    "warnings",
    replaces=("warn",),
    why="A library counts frames to name its caller's line, and our functions that stand in its place are frames, too.",
    lost="a warning may name a line of a library in place of the user's",
)
_OF_GUARD = 3
"""The frames between the code that warns and Python's own function: the guard, what stands in its place, its call."""


class Tracebacks:
    """Turns exceptions and frames into :class:`~jupyter_dtrain.core.events.Frame` lists."""

    def __init__(
        self, cell_name: CellName, home: Path, written: Callable[[str, int], str] = lambda _file, _line: ""
    ) -> None:
        """``home``: the notebook's folder; modules in it count as the user's own code.

        ``written``: a line of a cell as its user wrote it, before IPython's magics; empty where that is not known.
        """
        self._cell_name = cell_name
        self._written = written
        self._home = f"{home.resolve()}/"

    def error(self, exception: BaseException, words: Words | None = None) -> Error:
        """The error event of ``exception``; ``words`` makes its texts."""
        return self._error(exception, words or Words(), 0, [MAX_ERRORS])

    def _error(self, exception: BaseException, words: Words, depth: int, room: list[int]) -> Error:
        """``depth``: the groups around it; ``room``: how many more members may be kept."""
        found = members(exception)
        kept = found[: min(MAX_MEMBERS, room[0])] if depth < MAX_DEPTH else ()
        room[0] -= len(kept)
        cause = _cause(exception)
        syntax = issubclass(type(exception), SyntaxError)
        # First: a message that takes too long leaves no time for what comes after it.
        notes = words.ask(lambda: _notes(exception), lambda why: [f"<the list of its notes {why}>"])
        known = environment_secrets()

        def told(text: str) -> str:
            # Prose may name a token without giving it: "The question is 'token: '."
            return redact(text, known, named=False)

        return Error(
            type_name(exception),
            told(self._named(exception, words.text(lambda: exception, MAX_TEXT))),
            self._frames(traceback.walk_tb(_own(exception, "__traceback__")), verbs=False),
            [told(note) for note in notes],
            f"{type_name(cause)}: {told(words.text(lambda: cause, MAX_TEXT))}" if cause is not None else None,
            redact(self._named(exception, words.text(lambda: _place(exception), MAX_TEXT)), known) if syntax else None,
            [self._error(member, words, depth + 1, room) for member in kept],
            len(found) - len(kept),
        )

    def _named(self, exception: BaseException, text: str) -> str:
        """``text`` of a syntax error with the cell's name in place of a file name that we made up."""
        file = _own(exception, "filename", SyntaxError) if issubclass(type(exception), SyntaxError) else None
        if type(file) is not str or (name := self._cell_name(file)) is None:
            return text
        return text.replace(file, name)

    def place(self, exception: BaseException) -> str:
        """The last line of the user's own code that raised ``exception``, such as ``cell [3], line 2, in f``."""
        frames = self._frames(traceback.walk_tb(_own(exception, "__traceback__")))
        own = next((frame for frame in reversed(frames) if frame.cell), None)
        if own is None:
            return ""
        return f"{own.file}, line {own.line}" + (f", in {own.function}" if own.function else "")

    def stack(self, frame: FrameType | None) -> list[Frame]:
        """The stack that ends in ``frame``, outermost first, from the cell on; empty when no cell is on it."""
        steps = [step for step, _ in traceback.walk_stack(frame)]
        return self._frames((step, step.f_lineno) for step in reversed(steps))

    def call(self, frame: FrameType | None) -> str:
        """The call that the user's innermost code is in, by the name in its line; empty where that shows none."""
        for step, _ in traceback.walk_stack(frame):
            file = step.f_code.co_filename
            if self._cell_name(file) is not None or self.is_own(file):
                match called_in(step):
                    case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                        return shortened(name, MAX_SOURCE)
                return ""
        return ""

    def line(self, code: CodeType, line: int) -> Frame:
        """A line of ``code``, with its source."""
        return self._frame(code, code.co_filename, line)

    def suspended(self, frames: Iterable[FrameType]) -> list[Frame]:
        """The stack of coroutines that wait, whose ``frames`` are given outermost first."""
        return self._frames((frame, frame.f_lineno) for frame in frames)

    def _frames(self, steps: Iterable[tuple[FrameType, int | None]], *, verbs: bool = True) -> list[Frame]:
        """The first and the last of ``steps``: endless recursion makes a million.

        ``verbs``: with the lines of cells that are verbs.
        """
        half = MAX_FRAMES // 2
        first: list[tuple[CodeType, str, int]] = []
        last: deque[tuple[CodeType, str, int]] = deque(maxlen=half)
        cell = caller = ""
        place: tuple[str, int | None] = "", 0
        for frame, line in steps:
            code = frame.f_code
            file = code.co_filename
            is_cell = self._cell_name(file) is not None
            if is_cell:
                cell = file
            elif file == "<string>" and caller == _PROFILES:
                file = cell
            caller = code.co_name
            # The code of a magic on one line has the magic's place.
            twice = (file, line) == place and caller in _OF_LINE
            place = (file, line) if cell == file else place
            if twice:
                continue
            if cell and not file.startswith(PACKAGE) and (verbs or not is_cell or not _is_verb(file)):
                (first if len(first) < half else last).append((code, file, line or 0))
        return [self._frame(*step) for step in (*first, *last)]

    def _frame(self, code: CodeType, place: str, line: int) -> Frame:
        name = self._cell_name(place)
        own = name is not None or self.is_own(place)
        source = ""
        with contextlib.suppress(Exception):  # an audit hook of the user's may refuse the file
            source = linecache.getline(place, line).strip()
        if name is not None and (not source or source.startswith("get_ipython().")):
            source = self._written(place, line).strip() or source
        function = "" if code.co_name == "<module>" else _qualified(code)
        texts = (
            shortened(text, MAX_SOURCE) for text in (name or place, function, redact(source, environment_secrets()))
        )
        file, function, source = texts
        return Frame(file, line, function, source, own)

    def is_own(self, file: str) -> bool:
        """Whether ``file`` is a script or a module of the user's; cells have no files."""
        if is_script(file):
            return True
        # Cython gives the files of a library's sources, seen from the folder in which it was built.
        there = Path(file).is_absolute() or Path(file).exists()
        return there and os.path.realpath(file).startswith(self._home) and not is_library(file)


def blame_users() -> None:
    """Have ``warnings.warn`` name the line that it would name without frames of this package.

    A library counts frames to its caller (``stacklevel``), and a function of ours that stands in the library's place is
    one more. Only the frame that warns counts in any case.
    """
    WARNINGS.when_imported(lambda module: WARNINGS.replace(module, "warn", _warn))


def _warn(
    original: Any, message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **options: Any
) -> None:
    level = stacklevel
    if stacklevel > 1 and not options.get("skip_file_prefixes"):
        level = _level(caller(), stacklevel)
    original(message, category, level + _OF_GUARD, source, **options)


def _level(frame: FrameType | None, wanted: int) -> int:
    """How many frames from ``frame`` on make ``wanted`` that are not of this package, counted as Python counts them."""
    level = 0
    while frame is not None and wanted > 0:
        file = frame.f_code.co_filename
        if not level or not ("importlib" in file and "_bootstrap" in file):
            level += 1
            wanted -= level == 1 or not file.startswith(PACKAGE)
        frame = frame.f_back
    return level + max(wanted, 0)


def cell_name(run: int, cell: int | None) -> str:
    """The name of the cell of ``run``. ``cell``: its number in the notebook, if known."""
    return f"run {run}" if cell is None else f"cell [{cell}]"


def causes(exception: BaseException | None) -> Iterator[BaseException]:
    """Yield ``exception``, its cause, the cause of that cause, and so on."""
    seen: set[int] = set()
    while exception is not None and id(exception) not in seen and len(seen) < MAX_CAUSES:
        seen.add(id(exception))
        yield exception
        exception = _own(exception, "__cause__") or _own(exception, "__context__")


def trace_of(exception: BaseException) -> TracebackType | None:
    """The traceback of ``exception``, read without running code of its class."""
    found: TracebackType | None = _own(exception, "__traceback__")
    return found


def members(exception: BaseException) -> tuple[BaseException, ...]:
    """The exceptions of a group (from Python 3.11 on there are groups)."""
    group = getattr(builtins, "BaseExceptionGroup", None)
    if group is None or not issubclass(type(exception), group):
        return ()
    found: tuple[BaseException, ...] = _own(exception, "exceptions", group)
    return found


def missing_name(exception: BaseException) -> str:
    """The variable for which a :class:`NameError` was raised; empty if it is another exception."""
    if not issubclass(type(exception), NameError) or issubclass(type(exception), UnboundLocalError):
        return ""
    name = _own(exception, "name", NameError)
    return name if isinstance(name, str) and name.isidentifier() else ""


def _own(exception: BaseException, name: str, owner: type = BaseException) -> Any:
    """The interpreter's own attribute, whatever the class puts in its place."""
    return vars(owner)[name].__get__(exception)


def _cause(exception: BaseException) -> BaseException | None:
    stated: BaseException | None = _own(exception, "__cause__")
    if stated is not None or _own(exception, "__suppress_context__"):
        return stated
    context: BaseException | None = _own(exception, "__context__")
    return context


def _qualified(code: CodeType) -> str:
    """The function's name, with its class where Python knows it (from 3.11 on)."""
    name: str = getattr(code, "co_qualname", code.co_name)
    return name.rpartition("<locals>.")[2]


def _is_verb(file: str) -> bool:
    return _VERB.match("".join(linecache.getlines(file)).lstrip("\n")) is not None


def _place(error: BaseException) -> str:
    """The file, the line and the caret, without the message, which travels on its own."""
    lines = traceback.format_exception_only(error)
    end = next((index for index, line in enumerate(lines) if not line.startswith(" ")), len(lines))
    return "".join(lines[:end])


def _notes(exception: BaseException) -> list[str]:
    """The notes of ``exception``, even if user code has put something else in place of a list of strings."""
    found = getattr(exception, "__notes__", None)
    if found is None:
        return []
    if not issubclass(type(found), (list, tuple)):
        return [_note(lambda: repr(found), MAX_TEXT)]
    notes: list[str] = []
    room = MAX_TEXT
    for note in found[:MAX_NOTES]:
        notes.append(_note(functools.partial(str, note), room))
        room -= len(notes[-1])
        if room <= 0:
            break
    if len(found) > len(notes):
        notes.append(f"… and {len(found) - len(notes)} more notes")
    return notes


def _note(make: Callable[[], str], room: int) -> str:
    try:
        return shortened(make(), room)
    except BaseException as error:  # noqa: BLE001 — one note of many
        return f"<its text could not be made: {type_name(error)}>"

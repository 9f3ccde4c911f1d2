"""The code of a rank's cells: the file names under which it is compiled, and the lines that its editor shows.

All ranks compile a cell under the same file name, with which warnings begin: so they are equal on all ranks. Code that
a magic of the cell compiles, such as the body of ``%%time``, counts as code of the cell.

Under failure: :mod:`jupyter_dtrain.plugins.patches` has IPython compile a cell as it always does where a part of it
fails here. An error in such a cell may name another line.
"""

from __future__ import annotations

import itertools
import linecache
import sys
import zlib
from typing import TYPE_CHECKING, Any

from IPython.core.compilerop import CachingCompiler

from jupyter_dtrain.plugins.framework import locals_of
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.wire.messages import Cell

from .loop_exits import LoopExits
from .tracebacks import cell_name

if TYPE_CHECKING:
    from types import FrameType

_MAGICS = ("run_cell_magic", "run_line_magic")
"""IPython's functions that run a magic."""
_OF_MAGICS = ("<timed ", "<magic-timeit", "<unknown>")
"""How the file names begin under which IPython's magics compile code of a cell."""

SOURCES = Patch(
    "IPython.core.interactiveshell",
    replaces=(
        "InteractiveShell.transform_cell",
        "InteractiveShell.compile",
        "IPython.core.compilerop.CachingCompiler.get_code_name",
        "IPython.core.compilerop.CachingCompiler.__call__",
        "IPython.core.compilerop.CachingCompiler.ast_parse",
    ),
    why="A cell's code needs a name that is the same on all ranks, and the lines that its editor shows.",
    lost="an error in a cell may name another line than its editor shows",
)


class CellSources:
    """Names the code of this rank's cells, and knows its lines. Main thread, but for :meth:`name_of`."""

    def __init__(self, shell: Any) -> None:
        """``shell``: the IPython that compiles the cells."""
        self._shell = shell
        self._run: int | None = None
        """The run that the rank works on."""
        self._cell = Cell()
        """The notebook's cell that runs, or ran last."""
        self._code = ""
        """The code of that cell."""
        self._file = ""
        """The file name under which that code is compiled."""
        self._names: dict[str, str] = {}
        """Names of cells, by the file names of their code."""

    def install(self) -> None:
        """Have IPython ask here for names and lines, and give loops an exit. Once, before user code."""
        SOURCES.when_imported(self._hook)
        self._shell.ast_transformers.append(LoopExits())

    def begin(self, run: int, code: str, cell: Cell) -> None:
        """Begin ``run``, whose ``code`` comes from the notebook's ``cell``."""
        self._run, self._cell, self._code = run, cell, code

    def end(self) -> None:
        """End the run: the rank works on none any more."""
        self._run = None

    def name_of(self, file: str) -> str | None:
        """The name of the cell whose code has the file name ``file``; None for any other code. Any thread."""
        return self._names.get(file)

    def file_of(self, name: str) -> str | None:
        """The file name of the newest code of the cell with this name; None where there is none. Any thread."""
        return next((file for file, one in reversed(list(self._names.items())) if one == name), None)

    def add(self, name: str, code: str) -> str:
        """Keep other code of a person's, which counts as a cell's; return the file name to compile it under.

        ``name``: stands for it in tracebacks, and makes the file name the same on all ranks.
        """
        file = f"<ipython-input-{name.replace(' ', '-')}-{zlib.crc32(code.encode('utf-8', 'replace')):08x}>"
        self._names[file] = name
        linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
        return file

    def written(self, file: str, line: int) -> str:
        """A line of the cell that runs, as its user wrote it; empty for a line of any other code."""
        lines = self._code.splitlines()
        place = line - self._cell.above - 1
        return lines[place] if file == self._file and 0 <= place < len(lines) else ""

    def _hook(self, _: Any) -> None:
        """Name the code of cells, also code that a magic of the cell compiles, such as ``%%time``."""
        shell = self._shell
        SOURCES.replace(shell, "transform_cell", self._transform_cell)
        kind = type("CellCompiler", (CachingCompiler,), {})
        for name, ours in (
            ("get_code_name", self._code_name),
            ("__call__", self._compile),
            ("ast_parse", self._parse),
        ):
            SOURCES.replace(kind, name, ours)
        SOURCES.put(shell, "compile", kind())

    def _code_name(self, _original: Any, _compiler: Any, raw_code: str, transformed_code: str, number: int) -> str:
        """The file name of a cell's code. All ranks use the same, since warnings begin with it and must be equal."""
        run = number if self._run is None else self._run
        name = f"<ipython-input-{run}-{zlib.crc32(transformed_code.encode('utf-8', 'replace')):08x}>"
        self._names[name] = cell_name(run, self._cell.number)
        if raw_code == self._code:
            self._file = name
        return name

    def _compile(
        self, original: Any, compiler: Any, source: Any, filename: str, symbol: str, *args: Any, **kwargs: Any
    ) -> Any:
        return original(compiler, source, self._of_cell(filename), symbol, *args, **kwargs)

    def _parse(
        self, original: Any, compiler: Any, source: str, filename: str = "<unknown>", symbol: str = "exec"
    ) -> Any:
        return original(compiler, source, self._of_cell(filename), symbol)

    def _of_cell(self, filename: str) -> str:
        """The file name of the cell whose magic compiles code under ``filename``; else ``filename`` itself."""
        found = self._magic()[1] if filename.startswith(_OF_MAGICS) else None
        return found or filename

    def _transform_cell(self, original: Any, raw_cell: str) -> str:
        """Transform the cell as IPython does, and keep the line numbers that its editor shows.

        The body of a magic is part of the cell and keeps them, too; any other code that the cell runs has its own.
        IPython drops empty lines at the beginning.
        """
        code = raw_cell
        above, file = (self._cell.above, None) if code == self._code else self._magic(code)
        empty = len(list(itertools.takewhile(str.isspace, code.splitlines(keepends=True)))) if code.strip() else 0
        text = "\n" * (above + empty) + str(original(code))
        if file is not None and file == self._file and above > self._cell.above and self._code.lstrip()[:2] == "%%":
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        return text

    def _magic(self, code: str = "") -> tuple[int, str | None]:
        """How many lines stand above ``code``, which a magic of the cell runs, and the name of the cell's code."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 — documented in spite of its name
        magic = None
        while frame is not None and frame.f_code.co_filename not in self._names:
            if frame.f_code.co_name in _MAGICS:
                magic = frame
            frame = frame.f_back
        if frame is None or magic is None:
            return 0, None
        body = locals_of(magic).get("cell")
        line = frame.f_lineno or 1  # it may have none
        if not isinstance(body, str) or not code.endswith(body):
            return line - 1, frame.f_code.co_filename
        return line - code[: len(code) - len(body)].count("\n"), frame.f_code.co_filename

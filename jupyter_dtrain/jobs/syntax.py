"""A cell's IPython syntax as plain Python, or a refusal with the cell's name.

IPython itself turns ``!ls`` and ``%cd`` into calls of ``get_ipython()``, wherever they stand: in a block, or right of
an assignment. Here each such call becomes the Python that does the same, and every other line stays as it was written.

Lines that a notebook alone needs (``%matplotlib``, ``%load_ext``, ``thing?``) become comments. Everything else that has
no counterpart raises :class:`~jupyter_dtrain.core.errors.BadRequest`.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from jupyter_dtrain.core.errors import BadRequest

from .notebook import NotebookCell

SHOW: Final = "show"
"""The function of the script that prints a value as a notebook shows the last one of a cell."""

_LEFT_OUT: Final = frozenset(
    {
        "aimport",
        "alias_magic",
        "autoreload",
        "autosave",
        "colors",
        "conda",
        "config",
        "load_ext",
        "mamba",
        "matplotlib",
        "page",
        "pdoc",
        "pinfo",
        "pinfo2",
        "pip",
        "psource",
        "pylab",
        "reload_ext",
        "unload_ext",
        "uv",
        "who",
        "whos",
        "who_ls",
        "xmode",
    }
)
"""Line magics that a script does not need: they are for people, or prepare an environment."""
_SHELLS: Final = frozenset({"bash", "sh"})
_LAST: Final = re.compile(r"_+|_i+|_i?\d+|_dh|_oh|_ih|In|Out")
_SILENT: Final = re.compile(r"print|display|log|close|sleep|barrier|\w*seed\w*|set_\w+|(init|destroy)\w*|register_\w+")
"""Functions that return nothing in practice: their lines stay as they are."""
_NOTHING: Final = "pass  "
"""Stands before a comment: a block needs a statement, the top level does not."""
_FLAGS: Final = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST


class Python(NamedTuple):
    """A cell in plain Python."""

    code: str
    modules: frozenset[str]
    """The modules that the translated lines need."""
    futures: tuple[str, ...]
    """Its imports from ``__future__``, which stands at the beginning of a script."""
    awaits: bool
    """Whether it awaits at its top level."""
    shows: bool
    """Whether it calls :data:`SHOW`."""
    displays: bool
    """Whether it calls ``display``, which IPython provides."""


def as_python(cell: NotebookCell) -> str:
    """The cell with magics as calls of ``get_ipython()``. Raises :class:`BadRequest` where it is no Python."""
    from IPython.core.inputtransformer2 import TransformerManager

    transform: Any = TransformerManager
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            code = str(transform().transform_cell(cell.source))
            compile(code, "<cell>", "exec", _FLAGS, dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise BadRequest(f"{cell.name} is not Python ({error}): mend it, or leave it out with --cells.") from None
        except (RecursionError, MemoryError):
            raise BadRequest(f"{cell.name} is nested too deeply for Python: leave it out with --cells.") from None
    return code


def translate(cell: NotebookCell, known: frozenset[str]) -> Python:
    """The cell in plain Python. ``known``: the names that the job's cells bind, which shell lines may use.

    Raises :class:`BadRequest` for what cannot be translated.
    """
    return _Translation(cell, known).run()


class _Edit(NamedTuple):
    first: int
    last: int
    text: str


class _Translation:
    def __init__(self, cell: NotebookCell, known: frozenset[str]) -> None:
        self._cell = cell
        self._known = known
        self._modules: set[str] = set()
        self._futures: list[str] = []
        self._shows = False
        self._displays = False

    def run(self) -> Python:
        code = self._body(as_python(self._cell), last=True).strip("\n")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            try:
                compile(code, "<cell>", "exec", dont_inherit=True)
                awaits = False
            except SyntaxError:
                compile(code, "<cell>", "exec", _FLAGS, dont_inherit=True)
                awaits = True
        return Python(
            code, frozenset(self._modules), tuple(self._futures), awaits, self._shows, displays=self._displays
        )

    def _refuse(self, thing: str, fix: str = "") -> BadRequest:
        fix = fix or "write it in Python, or leave the cell out with --cells or --tag"
        return BadRequest(f"{self._cell.name} has {thing}, which a script cannot do: {fix}.")

    def _body(self, code: str, *, last: bool) -> str:
        tree = ast.parse(code)
        data = code.encode()
        starts = [0]
        for line in data.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))

        def place(node: ast.stmt | ast.expr) -> tuple[int, int]:
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

        edits: list[_Edit] = []
        done: set[ast.AST] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt) and (found := self._statement(node, code)) is not None:
                if not node.col_offset:
                    found = found.removeprefix(_NOTHING)
                text = f"\n{' ' * node.col_offset}".join(found.splitlines())
                edits.append(_Edit(*place(node), text))
                done.update(ast.walk(node))
            elif isinstance(node, ast.ImportFrom) and node.module == "__future__" and not node.level:
                self._futures += [one.name for one in node.names]
                edits.append(_Edit(*place(node), "# The line of __future__ stands at the beginning of the script."))
        self._check_names(tree, done)
        if last and tree.body and (expression := self._last(tree.body[-1], done, data, place)) is not None:
            first, end = place(expression)
            edits += [_Edit(first, first, f"{SHOW}("), _Edit(end, end, ")")]
            self._shows = True
        for edit in sorted(edits, reverse=True):
            data = data[: edit.first] + edit.text.encode() + data[edit.last :]
        return data.decode()

    def _check_names(self, tree: ast.AST, done: set[ast.AST]) -> None:
        """Refuse names that only IPython has, outside of what was translated."""
        for node in ast.walk(tree):
            if node in done or not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            if node.id == "get_ipython":
                raise self._refuse("a call of get_ipython()")
            if node.id == "display" and node.id not in self._known:
                self._displays = True
            if _LAST.fullmatch(node.id) and node.id not in self._known:
                raise self._refuse(f"IPython's {node.id}", "give the value a name of its own in the cell that makes it")

    def _last(
        self, node: ast.stmt, done: set[ast.AST], data: bytes, place: Callable[[ast.stmt], tuple[int, int]]
    ) -> ast.expr | None:
        """The last expression of the cell, if a notebook shows its value and it is more than a line of text."""
        if not isinstance(node, ast.Expr) or node in done:
            return None
        value = node.value
        if isinstance(value, ast.Constant) and (isinstance(value.value, str) or value.value is ...):
            return None
        if isinstance(value, ast.Call) and _SILENT.fullmatch(ast.unparse(value.func).rpartition(".")[2]):
            return None
        rest = data[place(node)[1] :].lstrip()
        return None if rest.startswith(b";") else value

    def _statement(self, node: ast.stmt, code: str) -> str | None:
        """The lines for a statement that is one magic, or assigns the value of one; None for all others."""
        match node:
            case ast.Expr(value=ast.Call() as call):
                targets = ""
            case ast.Assign(targets=left, value=ast.Call() as call):
                targets = " = ".join(ast.get_source_segment(code, one) or ast.unparse(one) for one in left)
            case _:
                return None
        kind, words = _magic_call(call)
        match kind, words:
            case "system", [command]:
                return self._shell(command)
            case "getoutput", [command]:
                return self._output(targets, command)
            case "run_line_magic", [name, line]:
                return self._line_magic(targets, name, line)
            case "run_cell_magic", [name, line, body]:
                return self._cell_magic(name, line, body)
        return None

    def _shell(self, command: str) -> str:
        words = command.split()
        if words[:2] in (["pip", "install"], ["conda", "install"], ["mamba", "install"]) or words[:3] == ["uv", "pip"]:
            return f"pass  # left out, as packages belong into the job's environment: !{command}"
        self._modules.add("subprocess")
        return f"subprocess.run({self._text(command)}, shell=True, check=False)"

    def _output(self, targets: str, command: str) -> str:
        self._modules.add("subprocess")
        call = f"subprocess.run({self._text(command)}, shell=True, check=False, stdout=subprocess.PIPE, text=True)"
        return f"{targets} = {call}.stdout.splitlines()" if targets else f"print({call}.stdout)"

    def _line_magic(self, targets: str, name: str, line: str) -> str:
        line = line.strip()
        if name == "time" and line:
            self._modules.add("time")
            return self._timed(f"{targets} = {line}" if targets else line)
        if targets:
            raise self._refuse(f"the value of %{name}")
        if name == "distributed":
            # Its options may have values of --env.
            return f"pass  # left out: %distributed {line.partition(' ')[0]}".rstrip()
        if name in _LEFT_OUT:
            return f"pass  # left out: %{f'{name} {line}'.strip()}"
        if name == "cd" and line not in ("-", "-q") and not line.startswith("-"):
            self._modules.add("os")
            folder = _unquoted(line) or "~"
            return f"os.chdir(os.path.expanduser({self._text(folder)}))"
        if name in ("env", "set_env"):
            variable, found, value = line.partition("=")
            if not found:
                variable, _, value = line.partition(" ")
            if not value.strip():
                return f"pass  # left out: %{name} {line}"
            self._modules.add("os")
            return f"os.environ[{_quoted(variable.strip())}] = {self._text(_unquoted(value.strip()))}"
        raise self._refuse(f"%{f'{name} {line}'.strip()}")

    def _cell_magic(self, name: str, line: str, body: str) -> str:
        if name == "time":
            self._modules.add("time")
            return self._timed(body)
        if name in _SHELLS and not line.strip():
            self._modules.add("subprocess")
            return f"subprocess.run([{_quoted(name)}], input={_quoted(body)}, text=True, check=True)"
        if name == "writefile" and line.strip() and not line.strip().startswith("-"):
            self._modules.add("pathlib")
            return f"pathlib.Path({_quoted(_unquoted(line.strip()))}).write_text({_quoted(body)}, encoding='utf-8')"
        raise self._refuse(f"%%{name}")

    def _timed(self, code: str) -> str:
        code = self._python(code)
        return (
            f"time_began = time.perf_counter()\n{code.rstrip()}\n"
            'print(f"Wall time: {time.perf_counter() - time_began:.3g} s")'
        )

    def _python(self, source: str) -> str:
        inner = NotebookCell(self._cell.number, source, on_ranks=self._cell.on_ranks)
        return self._body(as_python(inner), last=False)

    def _text(self, text: str) -> str:
        """``text`` as a Python expression. ``{expression}`` and ``$name`` are the cells' own, as IPython has them."""
        pieces: list[ast.expr] = []
        for literal, field in self._fields(text):
            pieces.append(ast.Constant(literal))
            if field is not None:
                value = self._field(field)
                if value is None:
                    # IPython leaves the whole line alone then: it is the shell's, as in awk '{print $1}'.
                    return _quoted(text)
                pieces.append(ast.FormattedValue(value, -1, None))
        if len(pieces) == 1 and isinstance(pieces[0], ast.Constant):
            return _quoted(str(pieces[0].value))
        return ast.unparse(ast.JoinedStr(pieces))

    def _fields(self, text: str) -> list[tuple[str, str | None]]:
        """``text`` in pieces, each with the field after it: ``{x}``, or ``$x`` for a name that the cells bind."""
        found: list[tuple[str, str | None]] = []
        literal, position = "", 0
        for match in re.finditer(r"\{([^{}]*)\}|\$(\$?)([A-Za-z_]\w*)", text):
            literal += text[position : match.start()]
            position = match.end()
            field, doubled, name = match.groups()
            if field is not None or (not doubled and name in self._known):
                found.append((literal, field if field is not None else name))
                literal = ""
            else:
                literal += f"${name}"
        return [*found, (literal + text[position:], None)]

    def _field(self, field: str) -> ast.expr | None:
        try:
            value = ast.parse(field.strip(), mode="eval").body
        except SyntaxError:
            return None
        read = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        return value if read <= self._known else None


def _magic_call(call: ast.Call) -> tuple[str, list[str]]:
    """The method of ``get_ipython()`` that is called with text alone, and its arguments; else an empty word."""
    match call.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython"), args=[]), attr=attr) if not call.keywords:
            words = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            return (attr, words) if len(words) == len(call.args) else ("", [])
    return "", []


def _quoted(text: str) -> str:
    """``text`` as a literal, with double quotes where that is easy to read."""
    if '"' not in text and "\\" not in text and text.isprintable():
        return f'"{text}"'
    return repr(text)


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text

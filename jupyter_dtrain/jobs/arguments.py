"""The hyper-parameters of exported cells, as arguments of their script: ``lr = 1e-3`` becomes ``--lr``.

A name is one if the cells bind it once, at the top level of a cell, to a number, a text or a boolean that is written
down there. A name that any cell binds twice, counts up or deletes is a variable of the program and stays one. A script
that reads its arguments itself gets none from here.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

_RESERVED: Final = frozenset({"help", "h", "local_rank", "local-rank", "mp_parameters"})
"""Options that argparse has, or that launchers add."""
_READERS: Final = frozenset(
    {"argparse", "absl", "click", "docopt", "fire", "getopt", "hydra", "jsonargparse", "optparse", "simple_parsing"}
    | {"tyro", "typer"}
)
"""Modules with which a program reads its arguments."""


class Argument(NamedTuple):
    """One argument of a script."""

    name: str
    """The variable."""
    value: str | bool | int | float
    """What the notebook had."""
    text: str
    """The same as the cell has it."""

    @property
    def flag(self) -> str:
        """``--batch-size``."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def call(self) -> str:
        """The line that adds it to the parser ``parser``."""
        flags = list(dict.fromkeys((self.flag, f"--{self.name}")))  # platforms pass --batch_size
        words = ", ".join(f'"{flag}"' for flag in flags)
        if isinstance(self.value, bool):
            return f"parser.add_argument({words}, action=argparse.BooleanOptionalAction, default={self.text})"
        return f"parser.add_argument({words}, type={type(self.value).__name__}, default={self.text})"


def arguments_of(codes: Sequence[str]) -> list[Argument]:
    """The arguments of a script of these cells, which parse, in their order."""
    trees = [ast.parse(code) for code in codes]
    if any(_reads_arguments(tree) for tree in trees):
        return []
    bound = Counter(name for tree in trees for name in _bound(tree))
    found: list[Argument] = []
    for code, tree in zip(codes, trees, strict=True):
        for statement in tree.body:
            one = _argument(statement, code)
            if one is not None and bound[one.name] == 1:
                found.append(one)
    return found


def read_from(code: str, arguments: Iterable[Argument], variable: str) -> str:
    """``code``, with the values of ``arguments`` read from the attributes of ``variable``."""
    names = {one.name for one in arguments}
    data = code.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for statement in reversed(ast.parse(code).body):
        one = _argument(statement, code)
        if one is None or one.name not in names:
            continue
        assert isinstance(statement, (ast.Assign, ast.AnnAssign))
        value = statement.value
        assert value is not None
        assert value.end_lineno is not None
        assert value.end_col_offset is not None
        first = starts[value.lineno - 1] + value.col_offset
        last = starts[value.end_lineno - 1] + value.end_col_offset
        data = data[:first] + f"{variable}.{one.name}".encode() + data[last:]
    return data.decode()


def _argument(statement: ast.stmt, code: str) -> Argument | None:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            pass
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            pass
        case _:
            return None
    try:
        found = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    text = ast.get_source_segment(code, value)
    plain = isinstance(found, (bool, int, float, str)) and text is not None and "\n" not in text
    if not plain or name.startswith("_") or name in _RESERVED:
        return None
    return Argument(name, found, text or "")


def _bound(tree: ast.Module) -> list[str]:
    """The names that a cell binds, as often as it does so, also in its functions that declare them global."""
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                found.append(name)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                found += 2 * names
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                found += [(one.asname or one.name).partition(".")[0] for one in aliases]
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.append(name)
    return found


def _reads_arguments(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names) if any(one.name.partition(".")[0] in _READERS for one in names):
                return True
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in _READERS:
                return True
            case ast.Attribute(value=ast.Name(id="sys"), attr="argv"):
                return True
    return False

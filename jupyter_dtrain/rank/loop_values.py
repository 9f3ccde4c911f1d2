"""The names that a loop sees, and the values behind them that a person may set between two steps.

:class:`LoopNames` reads and binds variables where they live, in functions, too. :func:`find` leads from a path such as
``opt.lr`` to a :class:`ValuePlace`. Frameworks are asked first, as they keep some values elsewhere than a person reads
them.

Under failure: :class:`CannotSet` says in a clause why a value cannot be set; nothing was changed then.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from keyword import iskeyword
from symtable import symtable
from types import CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyter_dtrain.plugins.framework import Settable, locals_of

from .user_text import shortened, words_of

if TYPE_CHECKING:
    from types import FrameType

    from .plugins import Plugins

_PLAIN_LOCALS: Final = sys.version_info >= (3, 13)
"""Whether ``f_locals`` of a function writes to its variables."""
_WORDS: Final = 80
"""Characters of a value in a sentence."""
_KINDS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "True or False": bool,
    "a number": numbers.Number,
    "a text": str,
    "a list": list,
    "a tuple": tuple,
    "a dictionary": dict,
}
"""The kinds of values that may be set, by their words; a value is of the first that fits."""


OPTIMIZER: Final = "optimizer"
"""The name under which a person means the optimizer that steps first, where the loop has no variable of that name."""


class CannotSet(Exception):
    """Why a value cannot be set, as a clause."""


class LoopNames:
    """The names that some frames see together.

    The first frame's own names come first, then those of its module, then those of the frames around it.
    """

    def __init__(self, frames: list[FrameType]) -> None:
        """``frames``: from the innermost outwards; empty for no names."""
        self._frames = frames

    def run(self, tree: ast.Module, text: str, file: str, flags: int, *, show: Callable[[Any], object]) -> None:
        """Run code with these names; ``show`` gets the value of its last expression, where it ends with one.

        A name that it binds anew is bound where it was found; a new name becomes the first frame's module's.

        ``text``: the source of ``tree``, in ``file``. ``flags``: as for :func:`compile`.
        """
        whole = compile(tree, file, "exec", flags, dont_inherit=True)  # what is no code of a module is an error
        module = self._frames[0].f_globals if self._frames else {}
        seen = self.read()
        if seen is module or not self._frames:
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            if last is not None:
                whole = compile(tree, file, "exec", flags, dont_inherit=True)
            exec(whole, module)  # noqa: S102 — the person's code
            if isinstance(last, ast.Expr):
                show(eval(compile(ast.Expression(last.value), file, "eval", flags, dont_inherit=True), module))  # noqa: S307
            return
        own = locals_of(self._frames[0])
        inner = [name for name in seen if (name in own or name not in module) and _can_be_local(name)]
        code = _within(tree, text, file, flags, inner)
        cells = {name: CellType(seen[name]) for name in code.co_freevars}
        try:
            show(FunctionType(code, module, closure=tuple(cells.values()))())
        finally:
            values = {name: _value(cell, seen[name]) for name, cell in cells.items()}
            self.bind({name: value for name, value in values.items() if value is not seen[name]})

    def read(self) -> dict[str, Any]:
        """All names with their values; the module's own dictionary where that has all of them."""
        if not self._frames:
            return {}
        first = self._frames[0]
        if all(_is_module(one) and one.f_globals is first.f_globals for one in self._frames):
            return first.f_globals
        merged: dict[str, Any] = {}
        for frame in reversed(self._frames[1:]):
            merged.update(frame.f_globals)
            merged.update(locals_of(frame))
        merged.update(first.f_globals)
        merged.update(locals_of(first))
        return merged

    def bind(self, changed: Mapping[str, Any]) -> None:
        """Bind names where they were found, or in the first frame's module."""
        left = dict(changed)
        for frame in self._frames:
            for own in (locals_of(frame), frame.f_globals):
                mine = {name: left.pop(name) for name in list(left) if name in own}
                if mine and own is frame.f_globals:
                    own.update(mine)
                elif mine:
                    _bind_locals(frame, mine)
        if self._frames:
            self._frames[0].f_globals.update(left)


def _within(tree: ast.Module, text: str, file: str, flags: int, names: list[str]) -> CodeType:
    """Code as that of a function which stands in another one that has the variables ``names``.

    So functions of the code keep those variables that they use, and no others, and everything else is the module's.
    """
    futures = [one for one in tree.body if isinstance(one, ast.ImportFrom) and one.module == "__future__"]
    found = _OfModule()
    body = [found.visit(one) for one in tree.body if one not in futures]
    if body and isinstance(body[-1], ast.Expr):
        body[-1] = ast.copy_location(ast.Return(body[-1].value), body[-1])
    own = [name for name in names if name not in found.declared]
    modules = sorted(found.declared.union(symtable(text, file, "exec").get_identifiers()).difference(own))
    declared = [ast.Nonlocal(own)] * bool(own) + [ast.Global(modules)] * bool(modules)
    around = ast.parse("def a():\n    def b(): pass")
    outer: Any = around.body[0]
    inner = outer.body[0]
    # No name of the code's is like one of these.
    outer.name, inner.name = "<names>", "<module>"
    outer.args.args = [ast.arg(name) for name in own]
    inner.body = [*declared, *body] or inner.body
    around.body[:0] = futures
    whole = ast.fix_missing_locations(around)
    return _code_in(_code_in(compile(whole, file, "exec", flags, dont_inherit=True)))


def _code_in(code: CodeType) -> CodeType:
    return next(one for one in code.co_consts if isinstance(one, CodeType))


class _OfModule(ast.NodeTransformer):
    """Makes a module's statement one that a function may have, too."""

    def __init__(self) -> None:
        self.declared: set[str] = set()
        """The names that it says are the module's."""

    def visit_Global(self, node: ast.Global) -> ast.stmt:
        self.declared.update(node.names)
        return ast.copy_location(ast.Pass(), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        """Leave out what a function may not say of a variable that is not its own."""
        if not isinstance(node.target, ast.Name):
            return node
        if node.value is None:
            return ast.copy_location(ast.Expr(node.annotation), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def _leave(self, node: ast.stmt) -> ast.stmt:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _leave  # noqa: N815 — the names are ast's


def _can_be_local(name: str) -> bool:
    """Whether code can have a variable of this name: Python itself has others in frames."""
    return name.isidentifier() and not iskeyword(name) and name != "__debug__"


def _value(cell: CellType, otherwise: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the code has deleted the variable
        return otherwise


def _is_module(frame: FrameType) -> bool:
    return not frame.f_code.co_flags & inspect.CO_OPTIMIZED and frame.f_locals is frame.f_globals


def _bind_locals(frame: FrameType, values: Mapping[str, Any]) -> None:
    found: Any = frame.f_locals
    found.update(values)
    if not _PLAIN_LOCALS and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    del found
    locals_of(frame)  # so that the frame keeps no values by the way


class ValuePlace:
    """Where the value of a path is kept, in one place or in several alike."""

    def __init__(self, path: str, found: Settable, *, is_variable: bool = False) -> None:
        """``is_variable``: another frame may have it by the time that it is put back."""
        self.path = path
        self.values = list(found.values)
        self.note = found.note
        self._put = found.put
        self._is_variable = is_variable

    def fitting(self, new: Any) -> Any:
        """``new`` as it can be set here. Raises :class:`CannotSet` for a value of another kind."""
        for old in self.values:
            kind = _kind(old)
            if old is None:
                continue
            if not kind:
                raise CannotSet(f"{self.path} is {_what(old)}; set replaces numbers, texts, lists and the like")
            if kind != _kind(new):
                raise CannotSet(f"{self.path} is {kind}, and {_shown(new)} is not")
            if isinstance(old, float) and isinstance(new, int):
                return float(new)
        return new

    def replace(self, new: Sequence[Any]) -> ReplacedValue:
        """Set a value in each place."""
        self._put(new)
        words = f"{self.path}: {_all_shown(self.values)} -> {_all_shown(new)}"
        return ReplacedValue(self.path, words, self.values, list(new), None if self._is_variable else self._put)


class ReplacedValue:
    """What was set, and how to put back what it has replaced."""

    def __init__(self, path: str, words: str, old: list[Any], new: list[Any], put: Any) -> None:
        """``put``: as in a :class:`Settable`; None for a variable."""
        self.path = path
        self.words = words
        self._old = old
        self._new = new
        self._put = put

    def put_back(self, names: LoopNames) -> str:
        """Put the old values back, and say so. Raises what the place of the value raises."""
        if self._put is None:
            names.bind({self.path: self._old[0]})
        else:
            self._put(self._old)
        return f"{self.path}: {_all_shown(self._new)} -> {_all_shown(self._old)}"


def find(path: str, names: LoopNames, plugins: Plugins) -> ValuePlace:
    """Where the value of ``path`` is kept. Raises :class:`CannotSet` where there is no such place."""
    first, steps = _parsed(path)
    seen = names.read()
    owner: Any = None
    where = first
    if first in seen:
        value = seen[first]
    elif first != OPTIMIZER or not steps or (value := plugins.stepping()) is None:
        raise CannotSet(f"it has no {first}")
    for at in range(len(steps) + 1):
        rest = "".join(step.words for step in steps[at:])
        if (found := plugins.setting(value, rest, path, seen)) is not None:
            return ValuePlace(path, found)
        if at < len(steps):
            owner, value = value, _inner(value, steps[at], where)
            where += steps[at].words
    if not steps:
        return ValuePlace(path, Settable([value], lambda new: names.bind({first: new[0]})), is_variable=True)
    key = steps[-1].key
    if steps[-1].is_item:
        if isinstance(owner, tuple):
            raise CannotSet(f"{path} is in a tuple, which cannot be changed")
        return ValuePlace(path, Settable([value], lambda new: owner.__setitem__(key, new[0])))
    described = inspect.getattr_static(type(owner), key, None)
    if isinstance(described, property) and described.fset is None:
        raise CannotSet(f"{path} is a property that cannot be set")
    return ValuePlace(path, Settable([value], lambda new: setattr(owner, key, new[0])))


class _Step(NamedTuple):
    words: str
    """Such as ``.lr`` or ``[1]``."""
    key: Any
    is_item: bool


def _parsed(path: str) -> tuple[str, list[_Step]]:
    """The variable of a path, and what follows it."""
    node: ast.expr = ast.parse(path, mode="eval").body
    steps: list[_Step] = []
    while not isinstance(node, ast.Name):
        match node:
            case ast.Attribute(value=inner, attr=name):
                steps.append(_Step(f".{name}", name, is_item=False))
            case ast.Subscript(value=inner, slice=index):
                key = ast.literal_eval(index)
                steps.append(_Step(f"[{key!r}]", key, is_item=True))
            case _:
                raise CannotSet(f"{path} is no variable, nor an attribute or item of one")
        node = inner
    return node.id, steps[::-1]


def _inner(value: Any, step: _Step, where: str) -> Any:
    try:
        return value[step.key] if step.is_item else getattr(value, step.key)
    except (AttributeError, LookupError):
        raise CannotSet(f"{where} has no {step.words.removeprefix('.')}") from None
    except TypeError as error:
        raise CannotSet(f"{where} has no items" if step.is_item else words_of(error)) from None
    except Exception as error:  # noqa: BLE001 — code of the user's, such as a property
        raise CannotSet(f"{where}{step.words} cannot be read: {words_of(error)}") from None


def _kind(value: Any) -> str:
    """What a value is that can be set, in words; empty for any other."""
    return next((words for words, kinds in _KINDS.items() if isinstance(value, kinds)), "")


def _what(value: Any) -> str:
    """What a value is that cannot be set."""
    if inspect.isroutine(value):
        return "a method" if inspect.ismethod(value) else "a function"
    if isinstance(value, (type, ModuleType)):
        return "a class" if isinstance(value, type) else "a module"
    return f"of the type {type(value).__name__}"


def _shown(value: Any) -> str:
    return shortened(repr(value), _WORDS)


def _all_shown(values: Sequence[Any]) -> str:
    """Values of several places in words, equal ones once."""
    return ", ".join(dict.fromkeys(map(_shown, values)))

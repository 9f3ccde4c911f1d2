"""The user's name for a value: the variable at a call, found from the frames of the running call.

``loss.backward()`` names ``loss``; so does ``accelerator.backward(loss)``, some frames further out. The first look at
an instruction reads the source that tracebacks use; later look-ups cost less than a microsecond. Facts on an
instruction live as long as its code object, which nothing here keeps.

Under failure: a call without readable source, or a value without a name, yields no name; the caller chooses one.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import weakref
from collections.abc import Sequence
from enum import Enum
from types import CodeType, FrameType
from typing import NamedTuple

from jupyter_dtrain.plugins.framework import locals_of
from jupyter_dtrain.plugins.libraries import is_library
from jupyter_dtrain.plugins.sources import executing_at

MAX_INDEX = 64
"""``losses[i]`` has a name of its own for each ``i`` below this."""

_SAME = {"sum", "mean", "float", "double", "half", "bfloat16", "to", "cpu", "cuda"}
_SAME |= {"squeeze", "reshape", "view", "clone", "contiguous", "requires_grad_"}
"""Methods of a tensor whose result still deserves the tensor's name."""
_SCALING = ("scale", "scale_loss")
"""Methods whose result shows their first argument, as in ``scaler.scale(loss)``."""


class Call(Enum):
    """How a frame of the user's passes a value to the code that asks for its name."""

    METHOD = 1
    """The frame calls a method of the value: ``loss.backward()``."""
    FUNCTION = 2
    """The frame passes the value or values to a function: ``torch.autograd.backward([a, b])``."""
    THROUGH = 3
    """The frame calls a library, which calls this package: ``accelerator.backward(loss)``."""
    ROOTS = 4
    """The frame passes the values to distributed autograd: ``dist_autograd.backward(context, [loss])``."""
    STEP = 5
    """The frame calls ``step`` of the value, perhaps through others: ``optimizer.step()``."""
    STEP_OF = 6
    """The frame calls ``step`` with the value: ``scaler.step(optimizer)``."""


class Label(NamedTuple):
    """A name, or a name and the variable that indexes it: ``losses[task]``."""

    text: str
    variable: str | None = None

    def read(self, frame: FrameType) -> str:
        """The name in ``frame``, with the index's value there."""
        if self.variable is None:
            return self.text
        value = locals_of(frame).get(self.variable, frame.f_globals.get(self.variable))
        if isinstance(value, str) or (type(value) is int and -MAX_INDEX < value < MAX_INDEX):
            return f"{self.text}[{value}]"
        return self.text


class _Site:
    """One instruction of the user's code."""

    def __init__(self, labels: Sequence[Label | None], *, spread: bool) -> None:
        """``spread``: the label belongs to a list of values."""
        self._labels = labels
        self._spread = spread
        only = labels[0] if len(labels) == 1 else None
        self.fixed = (only.text,) if only is not None and only.variable is None else None
        """The names of a single value, if they are the same each time."""

    def names(self, frame: FrameType, count: int) -> tuple[str | None, ...]:
        read = [None if label is None else label.read(frame) for label in self._labels]
        if len(read) == count:
            return tuple(read)
        if self._spread and read[0] is not None:
            return tuple(f"{read[0]}[{index}]" for index in range(count))
        return (None,) * count


_OUTWARD = {Call.METHOD: Call.THROUGH, Call.FUNCTION: Call.THROUGH, Call.ROOTS: Call.THROUGH, Call.STEP_OF: Call.STEP}
"""The kind of a call, seen from the code that called it."""
_NAMELESS = _Site((None,), spread=False)


class CallSites:
    """Names by instruction, for one process. Any thread may ask."""

    def __init__(self) -> None:
        self._sites: dict[tuple[int, int, Call], _Site | None] = {}
        self.known: dict[tuple[int, int], str] = {}
        """A shortcut: names of values whose method is called, by the code's id and the instruction."""
        self._codes: dict[int, tuple[weakref.ref[CodeType], list[tuple[int, int, Call]]]] = {}
        """The keys of each code object's instructions, by its id. They go with it: another one may get that id."""

    def names(self, frame: FrameType | None, call: Call, count: int = 1) -> tuple[str | None, ...] | None:
        """The user's names for the ``count`` values of the call that ``frame``, or its nearest user code, makes.

        A value without a name is None. The whole result is None where no user code is on this stack.
        """
        while frame is not None:
            key = (id(frame.f_code), frame.f_lasti, call)
            try:
                site = self._sites[key]
            except KeyError:
                site = self._look(frame, call)
                self._keep(frame.f_code, key, site)
            if site is not None:
                return site.fixed if count == 1 and site.fixed else site.names(frame, count)
            frame = frame.f_back
            call = _OUTWARD.get(call, call)
        return None

    def _keep(self, code: CodeType, key: tuple[int, int, Call], site: _Site | None) -> None:
        reference = weakref.ref(code, functools.partial(self._drop, key[0]))
        _, keys = self._codes.setdefault(key[0], (reference, []))
        keys.append(key)
        self._sites[key] = site
        if site is not None and site.fixed and key[2] is Call.METHOD:
            self.known[key[:2]] = site.fixed[0]

    def _drop(self, number: int, _code: object) -> None:
        """Forget a code object that has no holder any more. Python calls this before it gives the id away."""
        _, keys = self._codes.pop(number, (None, ()))
        for key in keys:
            self._sites.pop(key, None)
            self.known.pop(key[:2], None)

    def _look(self, frame: FrameType, call: Call) -> _Site | None:
        file = frame.f_code.co_filename
        if not _is_users(file):
            return None
        with contextlib.suppress(Exception):
            return _site(frame, call)
        return _NAMELESS


def _is_users(file: str) -> bool:
    if file.startswith("<"):
        # Source exists for a cell, not for code that a library has generated.
        return bool(linecache.getlines(file))
    return not is_library(file)


def _site(frame: FrameType, call: Call) -> _Site:
    found = executing_at(frame)
    if isinstance(found.node, ast.Call):
        return _read_call(found.node, call)
    # Rewritten code (by torch.compile, say) keeps its line numbers: use them where a line has only one such call.
    word = "step" if call in {Call.STEP, Call.STEP_OF} else "backward"
    line = frame.f_lineno or 0  # it may have none
    sites = [
        _read_call(node, call)
        for node in ast.walk(found.source.tree or ast.Module([], []))
        if isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and word in _function_name(node)
    ]
    return sites[0] if len(sites) == 1 else _NAMELESS


def _read_call(node: ast.Call, call: Call) -> _Site:
    receiver = _label(node.func.value) if isinstance(node.func, ast.Attribute) else None
    name = _function_name(node)
    match call:
        case Call.METHOD:
            return _Site((receiver,), spread=False)
        case Call.FUNCTION:
            return _read_argument(_argument(node, "tensors"))
        case Call.ROOTS:
            return _read_argument(_argument(node, "roots", at=1))
        case Call.THROUGH if "backward" in name:
            argument = _argument(node, "loss")
            return _Site((receiver,), spread=False) if argument is None else _read_argument(argument)
        case Call.STEP if name == "step":
            return _Site((receiver,), spread=False)
        case Call.STEP_OF if name == "step":
            return _read_argument(_argument(node, "optimizer"))
    return _NAMELESS


def _read_argument(node: ast.expr | None) -> _Site:
    match node:
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return _Site([_label(element) for element in elements], spread=False)
        case ast.Call(func=ast.Attribute(attr=method), args=[first, *_]) if method in _SCALING:
            return _read_argument(first)
    return _Site((None if node is None else _label(node),), spread=True)


def _argument(node: ast.Call, name: str, at: int = 0) -> ast.expr | None:
    if len(node.args) > at and not any(isinstance(one, ast.Starred) for one in node.args[: at + 1]):
        return node.args[at]
    return next((keyword.value for keyword in node.keywords if keyword.arg == name), None)


def _function_name(node: ast.Call) -> str:
    match node.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _label(node: ast.expr) -> Label | None:
    """The name of an expression; None where it has none, such as ``model(x).sum()`` or ``a + b``."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.NamedExpr(target=ast.Name(id=name)):
            return Label(name)
        case ast.Subscript(value=base, slice=index):
            return _indexed(_label(base), index)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _label(operand)
            return None if inner is None else Label(f"-{inner.text}", inner.variable)
        case ast.BinOp(left=left, op=ast.Div()):
            return _label(left)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            labels = [label for label in (_label(left), _label(right)) if label is not None]
            return next((label for label in labels if "loss" in label.text.lower()), labels[0] if labels else None)
        case ast.Call(func=ast.Attribute(attr=method), args=[first, *_]) if method in _SCALING:
            return _label(first)
        case ast.Call(func=ast.Attribute(value=base, attr=method)) if method in _SAME:
            return _label(base)
    return None


def _indexed(base: Label | None, index: ast.expr) -> Label | None:
    if base is None or base.variable is not None:
        return base
    match index:
        case ast.Name(id=name):
            return Label(base.text, name)
        case ast.Constant(value=value) if isinstance(value, (str, int)):
            return Label(f"{base.text}[{value}]")
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return Label(f"{base.text}[-{value}]")
    return base

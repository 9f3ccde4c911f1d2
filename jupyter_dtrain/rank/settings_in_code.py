"""Hyper-parameters in the code of a cell or a script: which of its names are settings, and what its calls are given.

The code is read as a syntax tree and never run. Names are looked up in the user's namespace, and only plain values are
taken from there, see :func:`~jupyter_dtrain.core.configuration.plain`. Settings are what the top level assigns to
literals and to what is computed from literals and settings, and what it passes to functions; results of calls, counters
and whatever a training loop changes are none. A loop over settings (``for lr in (1e-3, 1e-2): train(lr)``) makes its
names settings, whose last values count.

Under failure: code that cannot be parsed has no settings. Any thread may ask; nothing here waits.
"""

from __future__ import annotations

import ast
import contextlib
import operator
import re
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from jupyter_dtrain.core.configuration import fields_of, plain
from jupyter_dtrain.plugins.libraries import is_library

MOST: Final = 200
"""Settings of one run that are taken from its code."""
ITEMS: Final = 32
"""Items of a list or dictionary that is a setting."""
TEXT: Final = 200
"""Characters of a text that is one."""
DEPTH: Final = 4
"""Configurations in each other."""
CODE: Final = 100_000
"""Characters up to which a cell is read: the training loop waits meanwhile."""
FUNCTIONS: Final = 100
"""Functions of the user's that are followed."""

_NEVER: Final = re.compile(
    r"_.*|(my_|local_|global_|node_|world_|group_)?rank|(local_)?world_size|pid|host(name)?|device|port|master_.*|self|cls"
)
_COUNTER: Final = re.compile(
    r"[ijkt]|_|n_?iter|it|itr|iteration|idx|index|(batch|global|train|start|current|epoch)_?(step|idx|index|i|epoch)"
    r"|step|epoch|batch_?idx|batch_nb"
)
_RESULT: Final = re.compile(
    r"(.*_)?(loss|losses|acc|accuracy|err|error|elapsed|duration|seconds|time|t0|t1|start|begin|end|now|tic|toc|total|"
    r"correct|counter|best|history|result|results|score|scores|out|output|outputs|pred|preds)|best_.*|running_.*"
)
_OF_RUNS: Final = frozenset({"seed", "fold", "trial", "width", "depth", "layers", "hidden", "repeat"})
"""What a loop over a range may count that is a setting."""
_PURE: Final = frozenset(
    ("int", "float", "str", "bool", "round", "min", "max", "abs", "pow", "sum", "tuple", "list", "set", "dict")
)
_DRAWS: Final = frozenset({"choice", "uniform", "randint", "loguniform", "get_world_size"})
_PARSES: Final = frozenset({"parse_args", "parse_known_args"})
_CONFIGS: Final = frozenset(("args", "cfg", "config", "conf", "hparams", "hp", "params", "opts", "settings", "flags"))
"""Names of what has settings as attributes or items."""
_CHANGES: Final = frozenset(("append", "extend", "insert", "update", "add", "pop", "setdefault", "clear", "remove"))
_QUIET: Final = frozenset(
    (
        *("print", "display", "open", "len", "range", "enumerate", "zip", "isinstance", "getattr", "setattr"),
        *("hasattr", "sorted", "sum", "max", "min", "tqdm", "trange", "log", "log_to_csv", "progress"),
        *("broadcast", "shard", "step", "config", "log_weights", "init_process_group", "destroy_process_group"),
        *("barrier", "all_reduce", "all_gather", "reduce", "zero_grad", "backward", "join", "format", "sleep"),
        *("plot", "subplots", "figure", "legend", "savefig", "imshow", "title", "xlabel", "ylabel", "show"),
        *("save", "load", "dump", "dumps", "loads", "makedirs", "mkdir", "randn", "rand", "zeros", "ones"),
        *("empty", "tensor", "arange", "full", "linspace", "to", "cuda", "cpu", "view", "reshape", "permute"),
        *("unsqueeze", "squeeze", "mean", "argmax", "softmax", "cat", "stack", "item", "detach", "perf_counter"),
        *("time", "strftime", "exit", "run", "system", "info", "debug", "warning", "basicConfig"),
        *("set_description", "set_postfix", "to_csv", "read_csv", "DataFrame", "array", "argsort", "no_grad"),
        *("inference_mode", "autocast", "getenv", "get", "filterwarnings", "run_script", "add_argument"),
        *("ArgumentParser"),
    )
)
"""Functions whose arguments are no settings."""
_ARGUMENTS: Final = re.compile(
    r"(set_to_none|non_blocking|requires_grad|device|dtype|out|file|flush|end|sep|keepdims?|dim|axis|inplace|name|label|"
    r"color|figsize|title|desc|leave|disable|exist_ok|parents|indent|map_location|weights_only|copy|verbose|index|columns|"
    r"async_op|src|dst|group|step|epoch|memory_format|pin_memory|persistent_workers|worker_init_fn|ax|enable_.*|logger|"
    r"log(ging)?_.*|report_to|output_dir|save_strategy)"
)
"""Arguments of libraries' functions that are no settings."""
_BLOCKS: Final = ("body", "orelse", "finalbody")
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_ARITHMETIC: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_TRAINS: Final = re.compile(r"train|fit|main|run", re.IGNORECASE)
_LARGEST: Final = 1e18
_POWER: Final = 64


class NoSetting(Exception):
    """What a node of the tree stands for is not known without running it, or is no setting."""


class CodeSetting(NamedTuple):
    """One hyper-parameter."""

    name: str
    value: Any
    function: str = ""
    """The function that it was given to; empty for a variable."""
    again: bool = False
    """Whether its last value counts, and not that of the first step."""


class _CallIn(NamedTuple):
    function: ast.expr
    node: ast.Call
    in_loop: bool
    again: bool


class CodeSettings:
    """The settings in one piece of code."""

    def __init__(self, code: str | ast.Module) -> None:
        """``code``: a cell as a person wrote it, with magics and all, or a parsed script."""
        self.assigned: dict[str, bool] = {}
        """Names that are settings, each with whether a loop over settings assigns it."""
        self.objects: set[str] = set()
        """Names of results of calls: settings where these are configurations, such as argparse's namespace."""
        self.reads: set[str] = set()
        """Names that it reads."""
        self._nodes: dict[str, ast.expr] = {}
        self._left_out: dict[str, set[Any]] = {}
        """Of names that are dictionaries, the keys of what is no setting."""
        self.definitions: dict[str, ast.FunctionDef | ast.ClassDef] = {}
        """The functions and classes that it defines at top level, by name."""
        self._changed: set[str] = set()
        self._calls: list[_CallIn] = []
        tree = code if isinstance(code, ast.Module) else parse(code)
        if tree is not None:
            with contextlib.suppress(RecursionError):
                self._walk(tree.body, in_loop=False, again=False)
                self.reads = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for name in self._changed:
            self.assigned.pop(name, None)
            self.objects.discard(name)

    def settings(
        self,
        namespace: Mapping[str, Any],
        known: Iterable[str] = (),
        definitions: Mapping[str, ast.FunctionDef | ast.ClassDef] = MappingProxyType({}),
    ) -> Iterator[CodeSetting]:
        """The settings with their values now, variables first.

        ``known``: settings that earlier cells have assigned; ``definitions``: the functions and classes
        that these have defined.
        """
        for name, again in self.assigned.items():
            if name in namespace:
                yield from found(name, self._without(name, namespace[name]), again=again)
        for name in self.objects:
            if name in namespace and fields_of(namespace[name]) is not None:
                yield from found(name, namespace[name])
        definitions = {**definitions, **self.definitions}
        reads = _read(self.reads, definitions)
        for name in known:
            if name in reads and name in namespace and name not in self._changed and name not in self.assigned:
                yield from found(name, namespace[name])
        for call in self._calls:
            yield from self._given(call, namespace)
        yield from self._called(namespace, definitions, set())

    def _without(self, name: str, value: Any) -> Any:
        """A dictionary without what is no setting in it."""
        left_out = self._left_out.get(name)
        if not left_out or type(value) is not dict:
            return value
        return {key: one for key, one in list(value.items()) if key not in left_out}

    def _called(
        self,
        namespace: Mapping[str, Any],
        definitions: Mapping[str, ast.FunctionDef | ast.ClassDef],
        seen: set[str],
    ) -> Iterator[CodeSetting]:
        """What the functions that this code calls assign to literals, and pass: their variables are gone by the end."""
        for call in self._calls:
            name = _last_name(call.function)
            function = definitions.get(name)
            if (
                not isinstance(function, ast.FunctionDef)
                or name in seen
                or len(seen) == FUNCTIONS
                or not isinstance(call.function, ast.Name)
            ):
                continue
            seen.add(name)
            inside = CodeSettings(ast.Module(function.body, []))
            within = inside._within(namespace, function)
            for one in inside.assigned:
                if one in within:
                    yield from found(one, within[one], name)
            for other in inside._calls:
                yield from inside._given(other, within)
            yield from inside._called(within, definitions, seen)

    def _within(self, namespace: Mapping[str, Any], function: ast.FunctionDef) -> dict[str, Any]:
        """The names that this code, the body of ``function``, sees, as far as they are literals or global."""
        own = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
        own |= self._changed | self.objects | self.assigned.keys()
        within = {name: value for name, value in namespace.items() if name not in own}

        def look(name: str) -> Any:
            if name not in within:
                raise NoSetting
            return within[name]

        for name, node in self._nodes.items():
            if name in self.assigned:
                with contextlib.suppress(NoSetting):
                    within[name] = constant(node, look)
        return within

    def _given(self, call: _CallIn, namespace: Mapping[str, Any]) -> Iterator[CodeSetting]:
        """What a call is given, as far as that is a setting."""
        name = _last_name(call.function)
        function = _value_of(call.function, namespace)
        parameters = Parameters.of(function)
        if name in _QUIET or name in _PURE or self._is_kept(function, namespace):
            return
        if call.in_loop and parameters is None and not name[:1].isupper() and not _TRAINS.search(name):
            return
        given: dict[str, ast.expr] = {}
        if parameters is not None:
            given |= dict(zip(parameters.names, call.node.args, strict=False))
        for keyword in call.node.keywords:
            if keyword.arg is not None and (parameters is not None or not _ARGUMENTS.fullmatch(keyword.arg)):
                given[keyword.arg] = keyword.value
        for argument, node in given.items():
            with contextlib.suppress(NoSetting):
                yield from found(argument, self._constant(node, namespace), name, again=call.again)
        if parameters is not None and parameters.is_function:
            for argument, value in parameters.defaults.items():
                if argument not in given:
                    yield from found(argument, value, name, again=call.again)

    def _is_kept(self, function: Any, namespace: Mapping[str, Any]) -> bool:
        """Whether ``function`` is the class of a configuration that a variable has: its fields are settings already."""
        return issubclass(type(function), type) and any(
            type(namespace.get(name)) is function and fields_of(namespace[name]) is not None for name in self.objects
        )

    def _constant(self, node: ast.expr, namespace: Mapping[str, Any]) -> Any:
        def look(name: str) -> Any:
            if name in self._changed or name not in namespace:
                raise NoSetting
            return namespace[name]

        return constant(node, look)

    # The statements of the top level.

    def _walk(self, statements: Iterable[ast.stmt], *, in_loop: bool, again: bool) -> None:
        for one in statements:
            self._statement(one, in_loop=in_loop, again=again)

    def _statement(  # noqa: C901, PLR0912 — one case per kind of statement
        self, one: ast.stmt, *, in_loop: bool, again: bool
    ) -> None:
        if isinstance(one, _SCOPES):
            globals_ = {name for node in ast.walk(one) if isinstance(node, ast.Global) for name in node.names}
            self._changed |= globals_
            if isinstance(one, (ast.FunctionDef, ast.ClassDef)):
                self.definitions[one.name] = one
            return
        loop = False
        match one:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, in_loop=in_loop, again=again)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value, in_loop=in_loop, again=again)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                if in_loop or not self._is_setting(value):
                    self._changed.add(name)
            case ast.For(target=target, iter=over) | ast.AsyncFor(target=target, iter=over):
                names = _names(target)
                loop = not self._is_sweep(target, over)
                if loop or in_loop:
                    self._changed |= names
                else:
                    self.assigned |= dict.fromkeys(names, True)
                    again = True
            case ast.While():
                loop = True
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    if item.optional_vars is not None:
                        self._changed |= _names(item.optional_vars)
            case ast.Delete(targets=targets):
                for target in targets:
                    self._changed |= _names(target)
        for node in _expressions(one):
            self._expression(node, in_loop=in_loop, again=again)
        for block in _BLOCKS:
            self._walk(getattr(one, block, ()), in_loop=in_loop or loop, again=again)
        for handler in getattr(one, "handlers", ()):
            self._walk(handler.body, in_loop=in_loop or loop, again=again)

    def _assign(self, target: ast.expr, value: ast.expr, *, in_loop: bool, again: bool) -> None:
        match target, value:
            case ((ast.Tuple(elts=names) | ast.List(elts=names)), (ast.Tuple(elts=values) | ast.List(elts=values))):
                if len(names) == len(values):
                    for one, other in zip(names, values, strict=True):
                        self._assign(one, other, in_loop=in_loop, again=again)
                    return
        names_ = _names(target)
        if not isinstance(target, ast.Name):
            self._changed |= {name for name in names_ if name not in self.assigned}
        elif in_loop:
            self._changed.add(target.id)
        elif self._is_setting(value):
            self.assigned[target.id] = again
            self._nodes[target.id] = value
        elif self._has_settings(target.id, value):
            self.assigned[target.id] = again
        elif isinstance(value, ast.Call):
            self.assigned.pop(target.id, None)
            self.objects.add(target.id)
        else:
            self._changed.add(target.id)

    def _has_settings(self, name: str, node: ast.expr) -> bool:
        """Whether some of a dictionary's items are settings; it notes those that are none."""
        match node:
            case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
                items = {getattr(key, "value", None): value for key, value in zip(keys, values, strict=True)}
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
                items = {one.arg: one.value for one in keywords}
            case _:
                return False
        self._left_out[name] = {key for key, value in items.items() if not self._is_setting(value)}
        return len(self._left_out[name]) < len(items)

    def _expression(self, node: ast.AST, *, in_loop: bool, again: bool) -> None:
        match node:
            case ast.NamedExpr(target=target):
                self._changed |= _names(target)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if attr in _CHANGES:
                self._changed.add(name)
            case ast.Call(func=function):
                self._calls.append(_CallIn(function, node, in_loop, again))

    def _is_sweep(self, target: ast.expr, over: ast.expr) -> bool:
        """Whether a loop goes over settings, and not over data or steps."""
        match over:
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
                return all(map(self._is_setting, items))
            case ast.Name(id=name):
                return name in self.assigned
            case ast.Dict() | ast.Call(func=ast.Attribute(value=ast.Name(), attr="items" | "values")):
                return not isinstance(over, ast.Call) or _root(over.func) in self.assigned
            case ast.Call(func=function, args=arguments):
                name = _last_name(function)
                if name == "range":
                    return bool(arguments) and _names(target) <= _OF_RUNS
                if name == "enumerate":
                    return bool(arguments) and self._is_sweep(target, arguments[0])
                return name in {"product", "zip", "ParameterGrid", "reversed", "sorted", "tqdm", "progress"} and all(
                    self._is_sweep(ast.Name("_"), one) for one in arguments
                )
        return False

    def _is_setting(self, node: ast.expr) -> bool:  # noqa: C901, PLR0912 — one case per kind of expression
        """Whether an expression is made of literals and settings alone."""
        match node:
            case ast.Constant(value=value):
                return type(value) in (int, float, str, bool) or value is None
            case ast.Name(id=name):
                return name not in self._changed and name not in self.objects
            case ast.UnaryOp(operand=operand):
                return self._is_setting(operand)
            case ast.BinOp(left=left, right=right):
                return self._is_setting(left) and self._is_setting(right)
            case ast.BoolOp(values=values):
                return all(map(self._is_setting, values))
            case ast.Compare(left=left, comparators=others):
                return self._is_setting(left) and all(map(self._is_setting, others))
            case ast.IfExp(body=body, orelse=otherwise):
                return self._is_setting(body) and self._is_setting(otherwise)
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
                return bool(items) and all(map(self._is_setting, items))  # an empty one is there to be filled
            case ast.Dict(keys=keys, values=values):
                return bool(values) and all(self._is_setting(one) for one in [*keys, *values] if one is not None)
            case ast.JoinedStr(values=values):
                return all(self._is_setting(getattr(one, "value", one)) for one in values)
            case ast.Attribute() | ast.Subscript():
                return _root(node) in _CONFIGS
            case ast.Call(func=function, args=arguments, keywords=keywords):
                name = _last_name(function)
                if name in _DRAWS or name.startswith("suggest_") or name in _PARSES or name == "Path":
                    return True
                if (isinstance(function, ast.Name) and name in _PURE) or _root(function) == "math":
                    return bool(arguments or keywords) and all(
                        map(self._is_setting, [*arguments, *(one.value for one in keywords)])
                    )
        return False


class Parameters(NamedTuple):
    """The parameters of a function of the user's, or of the ``__init__`` of a class."""

    names: list[str]
    defaults: dict[str, Any]
    is_function: bool

    @classmethod
    def of(cls, function: Any) -> Parameters | None:
        """Those of ``function``; None for anything but code of the user's."""
        is_function = type(function) is types.FunctionType
        if not is_function and issubclass(type(function), type):
            function = type.__getattribute__(function, "__dict__").get("__init__")
        if type(function) is not types.FunctionType or not is_users(function):
            return None
        code = function.__code__
        names = list(code.co_varnames[: code.co_argcount])
        defaults = dict(zip(reversed(names), reversed(function.__defaults__ or ()), strict=False))
        return cls(names if is_function else names[1:], {**defaults, **(function.__kwdefaults__ or {})}, is_function)


def _read(names: Iterable[str], definitions: Mapping[str, ast.AST]) -> set[str]:
    """The names that are read where ``names`` are: also in the functions and classes that these are, and so on."""
    waiting, read = set(names), set(names)
    followed = set[str]()
    while waiting and len(followed) < FUNCTIONS:
        name = waiting.pop()
        if name in definitions and name not in followed:
            followed.add(name)
            fresh = {node.id for node in ast.walk(definitions[name]) if isinstance(node, ast.Name)} - read
            read |= fresh
            waiting |= fresh
    return read


def is_users(function: types.FunctionType) -> bool:
    """Whether a function is code of a cell or a script, whose module is ``__main__``."""
    return function.__globals__.get("__name__") == "__main__"


def is_of_library(kind: type) -> bool:
    """Whether a library has made a class of configurations: most of its fields are as they are by default."""
    module = type.__getattribute__(kind, "__module__")
    if kind in (dict, types.SimpleNamespace) or module in ("__main__", "argparse"):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return not isinstance(file, str) or is_library(file)


def parse(code: str) -> ast.Module | None:
    """The tree of a cell, without its magics; None for code that is too long, or cannot be parsed."""
    if len(code) > CODE:
        return None
    if code.lstrip().startswith("%%"):
        code = code.lstrip().partition("\n")[2]
    with contextlib.suppress(Exception):  # it has magics: without them it takes a fraction of the time
        return ast.parse(code)
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        return ast.parse(TransformerManager().transform_cell(code))  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 — SyntaxError, ValueError, RecursionError: the cell itself reports it
        return None


def found(
    name: str, value: Any, function: str = "", *, again: bool = False, depth: int = DEPTH
) -> Iterator[CodeSetting]:
    """``value`` as settings: one, or one for each field of a configuration; none where it is no hyper-parameter."""
    if _NEVER.fullmatch(name) or _COUNTER.fullmatch(name):
        return
    if (fields := fields_of(value)) is not None:
        if not depth or len(fields) > MOST or is_of_library(type(value)):
            return
        plain_names = type(value).__name__ == "Namespace"  # argparse's: the arguments of a script
        for key, one in fields.items():
            if type(key) is str:
                yield from found(key if plain_names else f"{name}.{key}", one, function, again=again, depth=depth - 1)
        return
    if type(value) not in (str, bool) and _RESULT.fullmatch(name):
        return
    with contextlib.suppress(ValueError):
        told = plain(value, 2)
        if isinstance(told, str) and (len(told) > TEXT or "\n" in told):
            return
        if isinstance(told, (list, dict)) and not 0 < len(told) <= ITEMS:
            return
        yield CodeSetting(name, told, function, again)


def constant(node: ast.expr, look: Callable[[str], Any]) -> Any:  # noqa: C901 — one case per kind of expression
    """What an expression of literals and names stands for. ``look``: finds names. Raises :class:`NoSetting`."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return look(name)
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            return [constant(one, look) for one in items]
        case ast.Dict(keys=keys, values=values) if None not in keys:
            pairs = zip(keys, values, strict=True)
            return {str(constant(key, look)): constant(one, look) for key, one in pairs if key is not None}
        case ast.UnaryOp(op=operation, operand=operand):
            return _computed(type(operation), constant(operand, look))
        case ast.BinOp(left=left, op=operation, right=right):
            return _computed(type(operation), constant(left, look), constant(right, look))
        case ast.Attribute(value=ast.Name(id=name), attr=attr):
            fields = fields_of(look(name))
            if fields is not None and attr in fields:
                return fields[attr]
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key))):
            fields = fields_of(look(name))
            if fields is not None and key in fields:
                return fields[key]
    raise NoSetting


def _computed(operation: type[ast.AST], *numbers: Any) -> Any:
    """Arithmetic of Python's own small numbers alone."""
    if any(type(one) not in (int, float, bool) or abs(one) > _LARGEST for one in numbers):
        raise NoSetting
    if operation is ast.Pow and abs(numbers[1]) > _POWER:
        raise NoSetting
    try:
        return _ARITHMETIC[operation](*numbers)
    except (ArithmeticError, KeyError):
        raise NoSetting from None


def _value_of(node: ast.expr, namespace: Mapping[str, Any]) -> Any:
    return namespace.get(node.id) if isinstance(node, ast.Name) else None


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _names(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _expressions(one: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement itself, without those of the statements and functions in it."""
    waiting = deque(node for node in ast.iter_child_nodes(one) if not isinstance(node, ast.stmt))
    while waiting:
        node = waiting.popleft()
        if isinstance(node, (*_SCOPES, ast.ExceptHandler, ast.stmt)):
            continue
        yield node
        waiting += ast.iter_child_nodes(node)

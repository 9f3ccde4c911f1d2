"""The table of patches has all that this package replaces in other libraries, and all private parts that it reads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_dtrain.plugins import patches

ROOT = Path(patches.__file__).parents[1]
PRIVATE = re.compile(r"_[A-Za-z]\w*")
DOCUMENTED = {
    *("_getframe", "_current_frames", "_exit"),  # of sys and os
    *("_replace", "_asdict", "_fields", "_make"),  # of named tuples
    "_repr_mimebundle_",  # of whatever Jupyter displays
    *("_tell_auto", "_view_in_cell"),  # of our own Session, for the magics alone
}
"""Names that their owners' documentation has in spite of the underscore."""
SETTINGS = {
    *("argv", "stdout", "stderr", "last_type", "last_value", "last_traceback"),  # of sys
    *("argtypes", "restype"),  # of functions of ctypes
    *("__doc__", "__signature__"),  # of our own functions
    *("finalize", "fast_reduce"),  # of mpi4py.rc
    *("exc_info", "log_message"),  # of a log record, and of a handler of HTTP requests that we make
    *("gradients", "hooked"),  # torch's, on objects that it makes for its callers to set
    "inter_op_parallelism_threads",  # of a configuration of TensorFlow's
    *("enable_hlo_proto", "python_tracer_level"),  # of the options of JAX's profiler
    "io_loop",  # of a kernel of ipykernel
    "last_execution_result",  # of IPython's shell
    "cell_contents",  # of a function's closure
    *("f_trace", "f_lineno"),  # of a frame
    "proceed_signal",  # of states that our own function in torch's place makes
}
"""Attributes that other libraries have for their callers to set."""
OWN_NAMES = {
    "setattr(iterator, _EPOCH, len(_stops))",
    "setattr(operation, _LABEL, (kind, stage.stage_index, microbatch))",
}
"""Attributes of our own on other libraries' objects; others begin with ``_dtrain``."""
OWN_OBJECTS = {
    "setattr(sys.modules['__main__'], path, value)",  # the user's own module
    "setattr(owner, key, new[0])",  # of whatever the user sets
    "setattr(part if name in _FOLDED else stored, name, value)",
    "setattr(picture, name, value)",
    "setattr(namespace, f'{SETTING}{now}', value)",  # a parsed line
}
"""Attributes of our own objects."""


def modules():
    """The modules of this package, by their path in it, but for the guard itself."""
    files = [file for file in sorted(ROOT.rglob("*.py")) if file != Path(patches.__file__)]
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in files}


MODULES = modules()


def declared():
    """All names of the table, those of the classes on the way too."""
    rows = patches.table()
    places = [name for one in rows for name in (*one.replaces, *one.calls, *one.reads)]
    return {part for place in places for part in place.partition("(")[0].split(".")}


def base_of(node):
    """The name of a base class: ``Client`` of ``ipyparallel.Client``, ``Generic`` of ``Generic[S]``."""
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def own_names(tree):
    """Names of attributes, methods and functions that ``tree`` itself makes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(getattr(target, "id", "") == "__slots__" for target in targets) and node.value is not None:
                found |= {one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)}
    return found


def is_self(node):
    """Whether ``node`` is the object or class whose method it stands in."""
    return getattr(node, "id", None) in ("self", "cls") or getattr(node, "arg", None) in ("self", "cls")


CLASSES = [node for tree in MODULES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
OWN_ATTRIBUTES = {
    name
    for tree in MODULES.values()
    for kind in ast.walk(tree)
    if isinstance(kind, ast.ClassDef)
    for name in own_names(kind) - {node.name for node in ast.walk(kind) if isinstance(node, ast.FunctionDef)}
} | {
    node.name
    for tree in MODULES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.FunctionDef) and any("setter" in ast.unparse(one) for one in node.decorator_list)
}
"""What objects of this package's own classes have, other than methods."""
OF_EVERY_CLASS = {"object", "ABC", "Protocol", "NamedTuple", "Generic", "Enum", "str", "int", "dict", "Exception", ""}


def family(kind):
    """A class with its bases and heirs in this package, and whether it has other bases."""
    own, foreign, todo = [], False, [kind]
    while todo:
        own.append(todo.pop())
        for base in map(base_of, own[-1].bases):
            known = [one for one in CLASSES if one.name == base]
            todo += [one for one in known if one not in own]
            foreign |= not known and base not in OF_EVERY_CLASS
    return own + [one for one in CLASSES if kind.name in map(base_of, one.bases)], foreign


def asked_name(node):
    """The name in ``getattr(one, "name")`` and ``vars(one).get("name")``; None for other calls."""
    function = node.func
    if getattr(function, "id", "") in ("getattr", "hasattr", "delattr") and not is_self(node.args[0]):
        return getattr(node.args[1], "value", None)
    of_vars = getattr(function, "attr", "") in ("get", "pop") and isinstance(function.value, ast.Call)
    if of_vars and getattr(function.value.func, "id", "") == "vars":
        return getattr(node.args[0], "value", None)
    return None


def hidden_reads(kind):
    """Private names that a class reads of itself, and neither makes nor inherits from this package."""
    own, foreign = family(kind)
    if not foreign:
        return
    names = set().union(*map(own_names, own))
    functions = [one for one in kind.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for node in [node for one in functions if one.args.args and is_self(one.args.args[0]) for node in ast.walk(one)]:
        if isinstance(node, ast.Attribute) and is_self(node.value) and node.attr not in names:
            yield node.lineno, node.attr


def private_reads():
    """Places that read a private name of somebody else's: file, line and name."""
    for file, tree in MODULES.items():
        kinds = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        here = own_names(tree).union(*(own_names(one) for kind in kinds for one in family(kind)[0]))
        found = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and not is_self(node.value) and node.attr not in here:
                found.append((node.lineno, node.attr))
            elif isinstance(node, ast.Call) and asked_name(node) not in here:
                found.append((node.lineno, asked_name(node)))
            elif isinstance(node, ast.ClassDef):
                found += hidden_reads(node)
        for line, name in found:
            if isinstance(name, str) and PRIVATE.fullmatch(name) and not name.startswith("_dtrain"):
                yield file, line, name


def new_attribute(node):
    """The attribute that ``node`` sets on an object that is not its own; None where it sets none."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not is_self(node.value):
        return None if node.attr in OWN_ATTRIBUTES or node.attr.startswith("_dtrain") else node.attr
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setattr" and not is_self(node.args[0]):
        return getattr(node.args[1], "value", None) or ast.unparse(node)
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Call):
        return getattr(node.slice, "value", None) if getattr(node.value.func, "id", "") == "vars" else None
    return None


def replaced():
    """Places that give somebody else's object or module a new attribute, other than through the guard."""
    for file, tree in MODULES.items():
        for node in ast.walk(tree):
            name = new_attribute(node)
            if name is not None and name not in SETTINGS | OWN_NAMES | OWN_OBJECTS:
                yield file, node.lineno, name


@pytest.mark.parametrize("look", [private_reads, replaced])
def test_the_table_has_all(look):
    """A version of a library that changes one of these breaks something: the table says what."""
    known = declared() | DOCUMENTED
    missing = [f"{file}:{line} {name}" for file, line, name in look() if name not in known]

    assert missing == []


def test_each_row_says_what_a_reader_needs():
    """Why it is there and what is lost without it."""
    for one in patches.table():
        assert one.why.endswith("."), one
        assert not one.lost.endswith("."), one
        assert not one.upstream or one.upstream.startswith("https://"), one


def test_the_page_says_what_the_table_says():
    """``docs/reference/patches.md``."""
    page = ROOT.parent / "scripts" / "patches_page.py"
    done = subprocess.run([sys.executable, page, "--check"], check=False)

    assert done.returncode == 0, "run python scripts/patches_page.py"

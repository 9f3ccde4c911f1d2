"""Finds the calls of MPI that a thread is in, by the expressions that its frames are in the middle of.

MPI gives no sign: it spins, and a profile of it would slow every call down. So the source says it. A call counts as
MPI's if MPI's objects are found there without running anybody's code: the object whose method is called, a method that
is called by another name, or one that is handed on (``map(comm.allreduce, values)``). Where code would have to run,
such as that of a property, the method's name decides, if no other library is known to use it.

Two frames are looked at: the user's innermost one, and the innermost of all. The second one is a library's where that
calls MPI itself, or calls what it was handed, as a thread or a pool does. There only MPI's objects count, and no name.
mpi4py's own loops that look for messages again and again count as a call.

Under failure: nothing raises for strange source, and code without source is in no call.
"""

from __future__ import annotations

import ast
import os
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from jupyter_dtrain.plugins.framework import locals_of, value_of
from jupyter_dtrain.plugins.libraries import is_library
from jupyter_dtrain.plugins.sources import called_in, calls_on_line
from jupyter_dtrain.rank.tracebacks import PACKAGE

PLAIN = frozenset({"allgather", "allreduce", "alltoall", "barrier", "bcast", "exscan", "sendrecv"})
"""The methods for Python objects that are known as MPI's by their names; so are those that begin with a capital."""


class MpiCall(NamedTuple):
    """A call of MPI."""

    kind: str
    """The class of the object: ``Comm``, ``Request``, ``Message``, ``Win`` or ``File``; empty if it is not known."""
    method: str
    owner: Any
    """The object, or its class; None if code would have to run to find it."""


def calls_in(mpi: ModuleType, frame: FrameType, call: ast.Call | None) -> list[MpiCall]:
    """The calls of MPI that a thread with the innermost ``frame`` is in, the user's first; most often one or none."""
    outer: FrameType | None = frame
    while outer is not None and is_library(outer.f_code.co_filename):
        outer = outer.f_back  # mpi4py.util.pkl5.Intracomm.bcast is written in Python
    users = None if outer is None else _call_at(mpi, outer, call if outer is frame else called_in(outer))
    found = [users] if users is not None else []
    if outer is not frame and (inner := _call_in_library(mpi, frame)) is not None:
        found.append(inner)
    return found


def _call_in_library(mpi: ModuleType, frame: FrameType) -> MpiCall | None:
    if frame.f_code.co_filename.startswith(PACKAGE):
        return None  # ours end by themselves
    for node in calls_on_line(frame):
        if (found := _call_at(mpi, frame, node, by_name=False)) is not None:
            return found
    own = f"{Path(str(mpi.__file__)).parent}{os.sep}"
    inner: FrameType | None = frame
    owner = None
    while inner is not None and inner.f_code.co_filename.startswith(own):
        for value in locals_of(inner).values():
            if owner is None and _kind(mpi, value) == "Comm":
                owner = value
        frame, inner = inner, inner.f_back
    if owner is None:
        return None
    name = frame.f_code.co_name
    if name.startswith("__"):
        name = type(locals_of(frame).get("self")).__name__
    elif frame.f_code.co_filename.startswith(f"{own}futures{os.sep}"):
        name = "mpi4py.futures"  # its own function, in a thread
    return MpiCall("", name, owner)


def _call_at(mpi: ModuleType, frame: FrameType, call: ast.Call | None, *, by_name: bool = True) -> MpiCall | None:
    """The call of MPI that ``call`` makes. ``by_name``: the name of a method may decide."""
    if call is None:
        return None
    for node in (call.func, *call.args):
        found = None
        match node:
            case ast.Attribute():
                found = _method(mpi, frame, node, named=by_name and node is call.func)
            case ast.Name():
                found = _bound(mpi, value_of(frame, node))
            case ast.Starred(value=inner):  # Thread(target=context.run, args=(comm.Barrier,))
                handed = value_of(frame, inner)
                found = _bound(mpi, handed[0]) if type(handed) is tuple and handed else None
            case ast.Call(func=ast.Name(id="map")):
                found = _call_at(mpi, frame, node)  # list(map(comm.bcast, values)) calls it later
            case ast.Call() if node is call.func and by_name:  # getattr(comm, "Barrier")(), partial(comm.bcast, 1)()
                found = _call_at(mpi, frame, node) or (MpiCall("", "", None) if _is_made(mpi, frame, node) else None)
        if found is not None:
            return found
    return None


def _method(mpi: ModuleType, frame: FrameType, node: ast.Attribute, *, named: bool) -> MpiCall | None:
    owner = value_of(frame, node.value)
    if kind := _kind(mpi, owner):
        return MpiCall(kind, node.attr, owner) if callable(getattr(getattr(mpi, kind), node.attr, None)) else None
    if owner is None and named and (_is_named(mpi, node.attr) or _is_made(mpi, frame, node.value)):
        return MpiCall("", node.attr, None)
    return _bound(mpi, value_of(frame, node))


def _bound(mpi: ModuleType, method: Any) -> MpiCall | None:
    """The call that ``method`` is, by itself or in a ``functools.partial``, which may hand it on."""
    if type(method) is partial:
        return next((found for one in (method.func, *method.args) if (found := _bound(mpi, one))), None)
    if type(method) is not type(mpi.COMM_SELF.Barrier):  # that of all bound methods that are not written in Python
        return None
    kind = _kind(mpi, method.__self__)
    return MpiCall(kind, method.__name__, method.__self__) if kind else None


def _is_named(mpi: ModuleType, name: str) -> bool:
    capital = name[:1].isupper() and any(hasattr(getattr(mpi, kind), name) for kind in _KINDS)
    return name in PLAIN or capital


def _is_made(mpi: ModuleType, frame: FrameType, node: ast.expr) -> bool:
    """Whether MPI has made the value: ``comm.irecv()``, ``comm.Split(color)``, or an item of such a value."""
    match node:
        case ast.Call(func=ast.Attribute(value=inner)) | ast.Subscript(value=inner):
            return bool(_kind(mpi, value_of(frame, inner))) or _is_made(mpi, frame, inner)
        case ast.Call(func=ast.Name(id="getattr"), args=[inner, *_]):
            return bool(_kind(mpi, value_of(frame, inner)))
        case ast.List(elts=[inner, *_]) | ast.Tuple(elts=[inner, *_]):
            return bool(_kind(mpi, value_of(frame, inner))) or _is_made(mpi, frame, inner)
    return False


_KINDS = ("Comm", "Request", "Message", "Win", "File")


def _kind(mpi: ModuleType, owner: Any) -> str:
    """The name of the class of MPI that ``owner`` is, or is an object of."""
    for name in _KINDS:
        kind = getattr(mpi, name)
        if issubclass(type(owner), kind) or (issubclass(type(owner), type) and issubclass(owner, kind)):
            return name
    return ""

"""Moves values into and out of a rank's namespace, and finds the names that a cell will bind itself.

These functions run in the rank, between cells. Only :func:`send_code_along` has an effect while cells run.

Under failure: :func:`store_values` binds every name or none, and :func:`fetch_values` names each value that cannot be
sent, with the reason.
"""

from __future__ import annotations

import ast
import pickle
import sys
from multiprocessing import context
from types import FunctionType
from typing import Any

import cloudpickle

from jupyter_dtrain.core.dotted_paths import is_plainly
from jupyter_dtrain.plugins.patches import Patch, meant
from jupyter_dtrain.wire.agent_messages import Fetched
from jupyter_dtrain.wire.lent_memory import LentMemory, MemoryPlace
from jupyter_dtrain.wire.values import Parcel, Pickled, Received, needs_memory, pack, pickle_value

from .rank_context import rank_home, user_namespace

_CURE = (
    "{} of this notebook cannot be sent to a process that multiprocessing spawns: {}: {}. Put it into a module beside "
    "the notebook and import it, or start the process with multiprocessing.get_context('fork')."
)


SPAWNED = Patch(
    "multiprocessing.reduction",
    replaces=("ForkingPickler.reducer_override",),
    why="A process that a cell spawns cannot import the cell's classes and functions, which are in no file.",
    lost="a process that a cell spawns does not know the cell's functions and classes",
)


def store_values(received: Received) -> None:
    """Bind every name, or none.

    Raises :class:`ValueError` with the name and the reason, and as the iteration over ``received``.
    """
    values = {}
    for one in received:
        try:
            values[one.name] = one.load()
        except Exception as error:  # noqa: BLE001 — unpickling may raise anything
            raise ValueError(f"{one.name!r} cannot be rebuilt here: {type(error).__name__}: {error}") from None
    user_namespace().update(values)


def bound_first(code: str) -> frozenset[str]:
    """The names that a cell's top level binds in any case, and that nothing in the cell reads before that.

    Empty for code that cannot be parsed.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        # Magics alone: the user's own changes of the code are made once, with the cell.
        statements = ast.parse(TransformerManager().transform_cell(code)).body  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 — SyntaxError, ValueError, RecursionError: the cell itself reports it
        return frozenset()
    read: set[str] = set()
    bound: set[str] = set()
    for statement in statements:
        found = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        read |= {node.id for node in found if not isinstance(node.ctx, ast.Store)}
        bound |= set(_bound_by(statement)) - read
    return frozenset(bound)


def _bound_by(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [(one.asname or one.name).partition(".")[0] for one in names]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            nodes = [node for target in targets for node in ast.walk(target)]
        case ast.AnnAssign(target=target, value=ast.expr()):
            nodes = [target]
        case _:
            return []
    return [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


def fetch_values(
    names: list[str], place: MemoryPlace | None = None, *, forget: bool = False
) -> tuple[Fetched, list[bytes]]:
    """The values of ``names`` as an answer and its buffers. ``forget``: the namespace lets go of them.

    What is large goes into the memory at ``place``, where there is one that can be written.
    """
    namespace = user_namespace()
    failed: dict[str, str] = {}

    def pickled(*, whole: bool) -> list[Pickled]:
        found = []
        for name in names:
            if name in namespace and name not in failed:
                try:
                    found.append(pickle_value(name, namespace[name], whole=whole))
                except Exception as error:  # noqa: BLE001 — a user's __reduce__ may raise anything
                    failed[name] = _why_not(namespace[name]) or f"{type(error).__name__}: {error}"
        return found

    parcel = _lent(pickled(whole=False), place) or pack(pickled(whole=True))
    missing = [name for name in names if name not in namespace]
    if forget:
        for name in names:
            namespace.pop(name, None)
    return Fetched(parcel.values, missing, failed), parcel.frames


def _lent(pickled: list[Pickled], place: MemoryPlace | None) -> Parcel | None:
    """What the memory at ``place`` takes; None where that cannot be written, and something is large."""
    if not needs_memory(pickled):
        return pack(pickled)
    if place is None:
        return None
    try:
        memory = LentMemory.borrow(place)
        try:
            return pack(pickled, memory)
        finally:
            memory.close()
    except OSError:
        return None


def _why_not(value: Any) -> str:
    """A framework's own words on why a value cannot be sent; empty where it has none."""
    home = rank_home()
    try:
        if home is not None:
            home.plugins.on_host(value)
    except ValueError as error:
        return str(error)
    except Exception:  # noqa: BLE001 — the first error stands
        return ""
    return ""


def send_code_along() -> None:
    """Have processes that cells spawn get the cells' classes and functions, which they cannot import.

    A script's processes import its file. Python 3.14 starts processes so by default. A process that a fork has made
    knows the code anyway, so messages on queues carry it only once this process has spawned one.
    """
    spawned = False

    def reducer_override(original: Any, pickler: Any, obj: Any, /) -> Any:
        nonlocal spawned
        spawned = spawned or context.get_spawning_popen() is not None
        if spawned and is_plainly(obj, type, FunctionType) and _is_of_cell(obj):
            try:
                return _receive_code, (obj.__qualname__, cloudpickle.dumps(obj))
            except Exception as error:
                words = _CURE.format(obj.__qualname__, type(error).__name__, error)
                raise meant(pickle.PicklingError(words)) from error
        return original(pickler, obj)

    def install(module: Any) -> None:
        kind = module.ForkingPickler
        SPAWNED.replace(kind, "reducer_override", reducer_override, getattr(kind, "reducer_override", _as_ever))

    SPAWNED.when_imported(install)


def _as_ever(_pickler: Any, _obj: Any) -> Any:
    return NotImplemented


def _is_of_cell(value: Any) -> bool:
    """Whether a class or function is what its name means in ``__main__``, of which there is no file."""
    main = sys.modules.get("__main__")
    try:
        if value.__module__ != "__main__" or getattr(main, "__file__", None) is not None:
            return False
        return _in_main(value.__qualname__) is value
    except Exception:  # noqa: BLE001 — a metaclass of anybody's, asked in any pickling of this process
        return False


def _in_main(path: str) -> Any:
    found: Any = sys.modules.get("__main__")
    for name in path.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found


def _receive_code(path: str, data: bytes) -> Any:
    """In another process: what ``path`` means in ``__main__``, from now on."""
    if (known := _in_main(path)) is not None:
        return known
    value = cloudpickle.loads(data)
    if "." not in path:  # so that what comes back can name it
        setattr(sys.modules["__main__"], path, value)
    return value

"""The one guard around every place where this package replaces a part of another library, and the table of them.

A module that changes a library declares a :class:`Patch` for each reason that it has: what it replaces and reads, why,
and what a user loses without it. All replacing goes through that object. The documentation's table is made from these
declarations, and a test finds what they lack.

A replacement gets the original as its first argument and calls it, as a decorator's function would::

    def step(original, optimizer, *args, **kwargs):
        with one_step(optimizer):
            return original(optimizer, *args, **kwargs)

    STEPS.replace(module.Engine, "step", step)

It names the parameters that it looks at as the library names them. A version of the library that names them otherwise,
or orders them otherwise, leaves the replacement out.

Under failure the user's call succeeds. What :meth:`Patch.when_imported` finds missing or changed at the import is left
out. When a replacement raises in a call, before it calls the original or after, the call ends as the original ends
without it. Both are reported once, with what the user loses. Exceptions of the original itself reach the user, and so
do those that a replacement raises on purpose: :func:`meant`, ``raise … from`` the original's, and those that are no
:class:`Exception`, such as an interrupt.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import Parameter
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from jupyter_dtrain.core.framework_report import installed_version

_F = TypeVar("_F", bound=Callable[..., Any])
_E = TypeVar("_E", bound=BaseException)

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_reported: set[tuple[str, str]] = set()
_table: list[Patch] = []
_hooking = threading.local()
"""``replaced``: what the hook that runs on this thread has replaced so far, with what was there; None without one."""
_ABSENT = object()

_MEANT = "_dtrain_meant"
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class Fault(NamedTuple):
    """A replacement that was left out, or failed in a call."""

    words: str
    """A sentence for the user."""
    trace: str
    """The traceback."""


def _log_fault(fault: Fault) -> None:
    _log.warning("%s\n%s", fault.words, fault.trace)


_report: Callable[[Fault], object] = _log_fault


def report_to(call: Callable[[Fault], object] | None) -> None:
    """Give each fault of this process to ``call``, on the thread where it happens; None: log it as a warning."""
    global _report  # noqa: PLW0603 — a process has one reader of faults, as it has one logger
    _report = call or _log_fault


def meant(error: _E) -> _E:
    """Return ``error``, which a replacement raises on purpose: the guard lets it end the user's call."""
    setattr(error, _MEANT, True)
    return error


def _is_meant(error: BaseException) -> bool:
    return _MEANT in vars(error)


def raises_on_purpose(function: _F) -> _F:
    """Mark each exception that leaves ``function`` as :func:`meant`: it waits for other ranks, or judges a request."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            meant(error)
            raise

    return call  # type: ignore[return-value]


class Original:
    """The replaced function, in one call of it: call it as often as the replacement needs."""

    __slots__ = ("_function", "called", "error", "result")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.called = False
        self.error: BaseException | None = None
        """The exception of its last call."""
        self.result: Any = None
        """What its last call returned."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original, and note how that ends."""
        self.called = True
        try:
            self.result = result = self._function(*args, **kwargs)
        except BaseException as error:
            self.error = error
            raise
        self.error = None
        return result


@dataclass(frozen=True, eq=False)
class Patch:
    """What this package changes, and reads beyond the public interface, in modules of one library for one reason."""

    modules: str | tuple[str, ...]
    """The module whose import brings the parts; several where a library has them in several places."""
    why: str
    """What goes wrong without it, as a sentence."""
    lost: str
    """What a user loses where it is left out, as a clause: ``losses do not appear by themselves``."""
    replaces: tuple[str, ...] = ()
    """Replaced functions, classes and values, by their place in the module: ``DataLoader.__iter__``."""
    calls: tuple[str, ...] = ()
    """Private functions and classes that are called. ``Loader._reset(loader, first_iter)`` checks the parameters."""
    reads: tuple[str, ...] = ()
    """Private attributes of objects, which nothing can look up before there is an object."""
    upstream: str = ""
    """The address of the issue, or of the public hook, that would make it needless."""
    _names: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", frozenset(name.rpartition(".")[2] for name in self.replaces))
        _table.append(self)

    @property
    def places(self) -> tuple[str, ...]:
        """All of :attr:`modules`."""
        return (self.modules,) if isinstance(self.modules, str) else self.modules

    @property
    def library(self) -> str:
        """The first part of the modules' names."""
        return self.places[0].partition(".")[0]

    def when_imported(self, hook: Callable[[Any], object]) -> None:
        """Call ``hook`` with each of the modules once user code imports it, or now where it is there.

        Where one of :attr:`calls` is missing or takes other parameters, or ``hook`` raises, the import succeeds and
        the fault is reported.
        """
        for place in self.places:
            module = sys.modules.get(place)
            # A module that is still being imported is listed, too, without its parts: the hook then comes after that.
            if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
                self._hook(hook, module)
                continue
            # Only now: it changes how this process imports modules, which is the user's in a notebook or a job.
            import wrapt

            wrapt.register_post_import_hook(functools.partial(self._hook, hook), place)

    def _hook(self, hook: Callable[[Any], object], module: Any) -> None:
        # A hook may import another library, whose own hook then runs inside this one.
        outer, _hooking.replaced = getattr(_hooking, "replaced", None), []
        try:
            require(module, *self.calls)
            hook(module)
        except Exception as error:  # noqa: BLE001 — the user's import goes on
            # All of a patch or nothing: one part may hold up what another lets go.
            for owner, name, before in reversed(_hooking.replaced):
                if before is _ABSENT:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)
            package = module.__name__.partition(".")[0]
            why = str(error).rstrip(".")
            words = f"{package}{_version(package)} lacks parts that jupyter-dtrain uses ({why})"
            self._report_once("", f"{words}: {self.lost}. %distributed info names the tested version.", error)
        finally:
            _hooking.replaced = outer

    def replace(
        self, owner: Any, name: str, ours: Callable[..., Any], original: Callable[..., Any] | None = None
    ) -> Callable[..., Any]:
        """Replace the function ``name`` of a module, a class or an object by ``ours``, guarded; return the new one.

        ``ours(original, *args, **kwargs)`` gets the arguments of each call. A method, and the function of a
        ``classmethod``, get the object or class after ``original``. ``original``: what to call in place of what is
        there, which is looked up otherwise.

        Raises :class:`AttributeError` where ``owner`` has no such function, and :class:`TypeError` where ``ours`` names
        other parameters than the function has.
        """
        self._check_declared(name)
        kind: Any = None
        if original is None:
            # Not by getattr, which would bind a classmethod to this class: its replacement must be one as well.
            original = found = inspect.getattr_static(owner, name)
            if isinstance(found, (staticmethod, classmethod)):
                kind, original = type(found), found.__func__
            elif not isinstance(owner, type) and not inspect.ismodule(owner):
                original = getattr(owner, name)
        bound = isinstance(owner, type) and kind is not staticmethod
        guarded = self.guard(ours, original, name, bound=bound)
        _set(owner, name, guarded if kind is None else kind(guarded))
        return guarded

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace the class or value ``name`` of ``owner`` by ``value``, which guards itself where it runs code."""
        self._check_declared(name)
        require(owner, name)
        _set(owner, name, value)

    def guard(
        self, ours: Callable[..., Any], original: Callable[..., Any], name: str = "", *, bound: bool = False
    ) -> Callable[..., Any]:
        """Return a function that calls ``ours`` as :meth:`replace` says, for places that are no attributes.

        ``bound``: whether the first argument is an object or a class, whose parameter may have any name.
        """
        name = str(getattr(original, "__qualname__", name) or "a call")
        _check_parameters(ours, original, bound=bound)
        report_once = self._report_once

        @functools.wraps(original)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            call = Original(original)
            try:
                return ours(call, *args, **kwargs)
            except Exception as error:
                raised, fault = call.error, error
                if fault is raised or _is_meant(fault) or (raised is not None and fault.__cause__ is raised):
                    del raised, fault  # its traceback holds this frame, and with it the arguments
                    raise
            finally:
                call.error = None  # as above
            # Not within the handler: the original's exception would show ours as its context.
            ours_at_fault = raised is not None or call.called
            try:
                if raised is not None:
                    raise raised
                result = call.result if call.called else original(*args, **kwargs)
                ours_at_fault = True  # where the original raises now, the arguments are at fault
            finally:
                if ours_at_fault:
                    report_once(name, "", fault)
                del raised, fault
            return result

        return guarded

    def callback(self, ours: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``ours`` for a public hook of the library: what it raises is reported, and the call returns None."""

        @functools.wraps(ours)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return ours(*args, **kwargs)
            except Exception as error:
                if _is_meant(error):
                    raise
                self._report_once(ours.__name__, "", error)
                return None

        return guarded

    def failed(self, name: str, error: BaseException) -> None:
        """Report that our part in ``name`` failed: for code that must catch its own exceptions to go on."""
        self._report_once(name, "", error)

    def _check_declared(self, name: str) -> None:
        if name not in self._names:
            raise LookupError(f"{name} is not among what the patch of {self.library} declares")

    def _report_once(self, name: str, words: str, error: BaseException) -> None:
        """Report a fault, the first in ``name`` alone. ``words``: the sentence for the user; empty makes one."""
        with _lock:
            known = (self.lost, name)
            if known in _reported:
                return
            _reported.add(known)
        if not words:
            why = f"{type(error).__name__}: {error}".rstrip(".: ")
            where = f"{self.library}{_version(self.library)}"
            words = (
                f"A part of jupyter-dtrain failed inside {name} of {where} ({why}), and the call went on without it: "
                f"{self.lost}."
            )
        # Without the lock: who reads faults may call something that is guarded.
        _report(Fault(words, "".join(traceback.format_exception(type(error), error, error.__traceback__))))


def _set(owner: Any, name: str, value: Any) -> None:
    """Set an attribute; a hook that fails later undoes it."""
    before = getattr(owner, "__dict__", {}).get(name, _ABSENT)
    setattr(owner, name, value)
    if (replaced := getattr(_hooking, "replaced", None)) is not None:
        replaced.append((owner, name, before))


def caller() -> FrameType:
    """The frame that has called the replaced function, for the replacement to ask directly."""
    return sys._getframe(3)  # noqa: SLF001 — documented in spite of its name: this, the replacement, the guard


IMPORTS = Patch(
    "importlib.machinery",
    reads=("_initializing",),
    why="Python lists a module in sys.modules before it has run it, and says nowhere else that it has not.",
    lost="a cell may ask a framework that another thread still imports",
)


def require(owner: Any, *names: str) -> None:
    """Raise unless ``owner`` has all attributes ``names``: dotted places, each with the parameters that it must take.

    ``_reset(loader, first_iter)``: the first parameters have these names, not counting an object or class that is bound
    at a call, and the others have defaults. Of a function in C that says no parameters only the name is looked up.

    Raises :class:`AttributeError` that names what is missing, and :class:`TypeError` for other parameters.
    """
    where = getattr(owner, "__name__", None) or type(owner).__name__
    missing = []
    for name in names:
        path, takes, parameters = name.partition("(")
        holder, found, part = None, owner, ""
        try:
            for part in path.split("."):
                holder, found = found, getattr(found, part)
        except AttributeError:
            missing.append(path)
            continue
        if takes:
            wanted = [one for one in parameters.rstrip(")").replace(" ", "").split(",") if one]
            _check_takes(f"{where}.{path}", inspect.getattr_static(holder, part), found, wanted)
    if missing:
        raise AttributeError(f"{where} has no {', '.join(missing)}")


def table() -> list[Patch]:
    """All patches of this package, in the order of their libraries and modules. It imports what declares them."""
    root = Path(__file__).parents[1]
    for file in sorted(root.rglob("*.py")):
        if " = Patch(\n" in file.read_text():
            importlib.import_module(".".join((root.name, *file.relative_to(root).with_suffix("").parts)))
    return sorted(_table, key=lambda one: (one.library.lower(), one.places, one.lost))


def _parameters(function: Any) -> list[Parameter] | None:
    """The parameters of ``function``; None where nothing names them, as with much that is written in C."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def _check_takes(where: str, raw: Any, function: Any, wanted: list[str]) -> None:
    found = _parameters(function)
    if found is None:
        return
    names = [one.name for one in found]
    if inspect.isfunction(raw) and names[:1] == ["self"] and wanted[:1] != ["self"]:
        found, names = found[1:], names[1:]
    needed = [
        one.name
        for one in found[len(wanted) :]
        if one.default is Parameter.empty and one.kind in (*_POSITIONAL, Parameter.KEYWORD_ONLY)
    ]
    variable = any(one.kind is Parameter.VAR_POSITIONAL for one in found[: len(wanted)])
    if not variable and (names[: len(wanted)] != wanted or needed):
        raise TypeError(f"{where} takes ({', '.join(names)}) where ({', '.join(wanted)}) was expected")


def _check_parameters(ours: Callable[..., Any], original: Callable[..., Any], *, bound: bool) -> None:
    """Raise :class:`TypeError` unless ``ours`` can stand for ``original``."""
    theirs, mine = _parameters(original), _parameters(ours)
    if theirs is None or mine is None:
        return
    named = [one for one in mine[1:] if one.kind in _POSITIONAL]
    takes = [one for one in theirs if one.kind in _POSITIONAL]
    kinds = {one.kind for one in theirs}
    where = getattr(original, "__qualname__", None) or repr(original)
    for index, one in enumerate(named):
        if index < len(takes):
            if (
                takes[index].name != one.name
                and not (bound and index == 0)
                and one.kind is not Parameter.POSITIONAL_ONLY
            ):
                raise TypeError(f"{where} takes {takes[index].name} where {one.name} was expected")
        elif Parameter.VAR_POSITIONAL not in kinds and one.default is Parameter.empty:
            raise TypeError(f"{where} takes no {one.name}")
    if len(takes) > len(named) and all(one.kind is not Parameter.VAR_POSITIONAL for one in mine):
        raise TypeError(f"{where} takes {takes[len(named)].name} as well")
    if Parameter.VAR_KEYWORD not in kinds:
        known = {one.name for one in theirs}
        for one in mine:
            if one.kind is Parameter.KEYWORD_ONLY and one.name not in known:
                raise TypeError(f"{where} takes no {one.name}")


def _version(package: str) -> str:
    found = str(getattr(sys.modules.get(package), "__version__", "")) or installed_version(package)
    return f" {found}" if found else ""

"""One member of one plug-in: how it is called, and which types its answers may have.

Under failure: a call raises what the plug-in raises, and a reader of an answer raises for one of another type.
:class:`~.plugins.Plugins` guards both.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jupyter_dtrain.core.framework_report import FrameworkReport
from jupyter_dtrain.core.stacks import Collective
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.core.variables import Variable
from jupyter_dtrain.plugins.framework import ARGUMENTS, Framework
from jupyter_dtrain.plugins.parts import Part

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_dtrain.plugins.framework import Read

_BY_KEYWORD = ("failed", "idle")
"""The arguments that a member gets by keyword in any case."""
_BITS = 63
"""Size of a count in the rank's messages, without its sign."""


class PluginCall(NamedTuple):
    """A member of one plug-in."""

    name: str
    plugin: Any
    member: str
    wanted: frozenset[str] | None
    """The arguments that the plug-in takes by name; None where it takes all, in the order of the contract."""

    def __call__(self, *values: Any, **arguments: Any) -> Any:
        """Call the member with the arguments that the plug-in takes."""
        method = getattr(self.plugin, self.member)
        if self.wanted is not None:
            return method(*values, **{name: arguments[name] for name in self.wanted})
        by_keyword = {name: arguments.pop(name) for name in _BY_KEYWORD if name in arguments}
        return method(*values, *arguments.values(), **by_keyword)


def wanted_by(plugin: Any, member: str) -> frozenset[str] | None:
    """The arguments that the member of a plug-in takes by name.

    None for a plug-in that has names of its own for them: it gets all arguments, in the order of the contract.
    """
    known = ARGUMENTS.get(member, ())
    try:
        parameters = inspect.signature(getattr(plugin, member)).parameters.values()
    except BaseException:  # noqa: BLE001 — the call will raise it again, where it is guarded
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if any(one.kind not in named or (one.name not in known and one.default is one.empty) for one in parameters):
        return None
    return frozenset(one.name for one in parameters if one.name in known)


def overrides(plugin: Any, member: str) -> bool:
    """Whether the plug-in overrides a member, and so has something to do there."""
    try:
        own = getattr(type(plugin), member, None)
    except BaseException:  # noqa: BLE001 — the call will raise it again, where it is guarded
        return True
    return own is not None and own is not getattr(Framework, member)


def failed_in(member: str) -> str:
    """The words for where a plug-in failed: in ``member``, or as it was loaded."""
    return f"failed in {member}" if member else "cannot be loaded"


def taken(take: Callable[[Any], Any], call: PluginCall) -> Any:
    """Make ``call``; return its answer as ``take`` reads it."""
    return take(call())


# The types that answers may have. Each raises for another type; the guard then names the plug-in.


def as_text(answer: Any) -> str:
    """Read an answer that is a text, and replace lone surrogates in it."""
    if not isinstance(answer, str):
        raise TypeError(f"a string is expected, not {type(answer).__name__}")
    return answer.encode("utf-8", "replace").decode()


def as_texts(answer: Any) -> tuple[str, ...]:
    """Read an answer that is several texts."""
    return tuple(map(as_text, answer))


def as_module(answer: Any) -> str | None:
    """Read an answer that is the name of a module, or None."""
    return None if answer is None else as_text(answer)


def as_count(answer: Any) -> int:
    """Read an answer that is a number which the rank's messages can carry."""
    number = int(answer)
    if number.bit_length() > _BITS:
        raise OverflowError("a count of 64 bits is expected, not a larger one")
    return number


def as_counts(answer: Any) -> dict[str, int]:
    """Read an answer that is counts by name."""
    return {as_text(name): as_count(count) for name, count in answer.items()}


def as_variables(answer: Any) -> dict[str, Variable]:
    """Read an answer that is variables of the environment, by name."""
    found = {as_text(name): variable for name, variable in answer.items()}
    return msgspec.convert(msgspec.to_builtins(found), readable(dict[str, Variable]))


def as_facts(answer: Any) -> FrameworkReport | None:
    """Read an answer that is a framework's report of itself, or None."""
    return msgspec.convert(msgspec.to_builtins(answer), readable(FrameworkReport | None))


def as_collectives(answer: Any) -> list[Collective]:
    """Read an answer that is a list of recorded collectives."""
    return msgspec.convert(msgspec.to_builtins(answer), readable(list[Collective]))


def as_point(answer: Any) -> tuple[Any, Read] | None:
    """Read an answer that is a value which metrics take, with its reader, or None."""
    if answer is None:
        return None
    value, read = answer
    if not callable(read):
        raise TypeError(f"a function that reads values is expected, not {type(read).__name__}")
    return value, read


def as_parts(answer: Any) -> list[Part] | None:
    """Read an answer that is parts of a variable, or None."""
    if answer is None:
        return None
    found = list(answer)
    for one in found:
        if not isinstance(one, Part):
            raise TypeError(f"a Part is expected, not {type(one).__name__}")
    return found

"""Environment variables that this project sets: each with its reason, which stands where it is set.

Each rank keeps a record, :data:`given`: which variables were set and why, which ones the user had set before and keeps,
and which ones ``--env`` gave. :meth:`Given.seen` reports them with the values that they have then.

The value of a variable that ``--env`` gave may be a secret: no answer contains it, even if other code sets it later.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import msgspec

HIDDEN = "given by --env, hidden"


class Variable(msgspec.Struct, frozen=True):
    """The value of one variable, and its reason."""

    value: str
    why: str
    """The reason for which the variable is set, in a few words."""
    by_user: bool = False
    """Whether the user had set it, so that it was left as it was."""


class SeenVariable(msgspec.Struct, frozen=True):
    """A variable with the value that a rank sees."""

    name: str
    value: str | None
    """None where it is not set any more, or is not shown."""
    why: str
    framework: str = ""
    """Name of the framework that set it; empty for what every rank is given."""
    hidden: bool = False
    """Whether it was given by ``--env``."""


def values_of(variables: Mapping[str, Variable]) -> dict[str, str]:
    """The variables as an environment: each value by its name."""
    return {name: variable.value for name, variable in variables.items()}


def where_unset(variables: Mapping[str, Variable], environ: Mapping[str, str]) -> dict[str, Variable]:
    """``variables`` as they are to be where ``environ`` has its own values, which stay."""
    return {
        name: _kept(variable, environ[name]) if name in environ else variable for name, variable in variables.items()
    }


def _kept(variable: Variable, value: str) -> Variable:
    """The user's own ``value`` in place of ``variable``, whose reason does not hold for another value."""
    same = value == variable.value
    return Variable(value, variable.why if same else f"the default is {_with_reason(variable)}", by_user=True)


def _with_reason(variable: Variable) -> str:
    return f"{variable.value} ({variable.why})"


class Given:
    """The variables of this process that were set by this project. Writing is for one thread, reading for any."""

    def __init__(self) -> None:
        self._set: dict[str, tuple[str, Variable]] = {}
        """The framework for which each variable was set, and the variable, by its name."""
        self._hidden: list[str] = []

    def hide(self, names: Iterable[str]) -> None:
        """Note that ``--env`` gave the variables ``names``: their values are never shown."""
        self._hidden = [*self._hidden, *names]

    def note(self, variables: Mapping[str, Variable], framework: str = "") -> None:
        """These are set already, as they are here."""
        self._set = self._set | {name: (framework, variable) for name, variable in variables.items()}

    def put(self, variables: Mapping[str, Variable], framework: str = "") -> None:
        """Set ``variables``, whatever was there; where ``--env`` had another value, this one is no secret."""
        others = [name for name in self._hidden if name in variables and variables[name].value != os.environ.get(name)]
        self._hidden = [name for name in self._hidden if name not in others]
        told = {name: Variable(variables[name].value, f"{variables[name].why}; differs from --env") for name in others}
        self.note({**variables, **told}, framework)
        os.environ.update(values_of(variables))

    def offer(self, variables: Mapping[str, Variable], framework: str = "") -> None:
        """Set those of ``variables`` that the environment lacks; the user's own values stay."""
        self.put(where_unset(variables, os.environ), framework)

    def seen(self) -> list[SeenVariable]:
        """All noted variables with their present values, in the order in which they were set."""
        found = [self._seen(name, framework, variable) for name, (framework, variable) in self._set.items()]
        return found + [SeenVariable(name, None, HIDDEN, hidden=True) for name in self._hidden if name not in self._set]

    def _seen(self, name: str, framework: str, variable: Variable) -> SeenVariable:
        value, why = os.environ.get(name), variable.why
        if name in self._hidden:
            return SeenVariable(name, None, f"{HIDDEN}; {why}", framework, hidden=True)
        if value is None:
            return SeenVariable(name, None, f"removed by your code, was {_with_reason(variable)}", framework)
        if value != variable.value:
            return SeenVariable(name, value, f"changed by your code, was {_with_reason(variable)}", framework)
        return SeenVariable(name, value, f"your own value, kept; {why}" if variable.by_user else why, framework)


given = Given()
"""The record of this rank; it is empty in a process that is no rank."""

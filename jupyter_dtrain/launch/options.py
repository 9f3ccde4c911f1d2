"""What can be said of a world that is to be started: one table, for the magics' ``-h`` and the sidebar's dialog.

A launcher lists its options as :class:`Option`; :func:`schema` is the same as JSON Schema, from which a dialog is
drawn, and :func:`check` takes what comes out of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from jupyter_dtrain.core.errors import BadRequest

Kind = Literal["count", "number", "switch", "text", "choice", "variables"]
"""``count`` is above 0, ``number`` may be 0; a ``switch`` is off by default."""

_TYPES: dict[Kind, dict[str, Any]] = {
    "count": {"type": "integer", "minimum": 1},
    "number": {"type": "integer", "minimum": 0},
    "switch": {"type": "boolean"},
    "text": {"type": "string"},
    "choice": {"type": "string"},
    "variables": {"type": "object", "additionalProperties": {"type": "string"}},
}


class Option(msgspec.Struct, frozen=True):
    """One option."""

    name: str
    """As an argument of :meth:`.Session.start`."""
    title: str
    """What a dialog calls it."""
    help: str
    flag: str
    """In a magic's line."""
    kind: Kind = "text"
    default: str | None = None
    choices: tuple[str, ...] = ()
    metavar: str | None = None


def schema(options: Iterable[Option]) -> dict[str, Any]:
    """The options as JSON Schema: an object, none of whose properties is required."""
    properties = {}
    for option in options:
        found = {"title": option.title, "description": option.help, **_TYPES[option.kind]}
        if option.default is not None:
            found["default"] = option.default
        if option.choices:
            found["enum"] = list(option.choices)
        properties[option.name] = found
    return {"type": "object", "properties": properties, "additionalProperties": False}


def check(options: Iterable[Option], values: Any) -> dict[str, Any]:
    """``values``, from a dialog, as arguments; empty ones are left out. Raises :class:`BadRequest`."""
    known = {option.name: option for option in options}
    if not isinstance(values, dict):
        raise BadRequest("Options are an object.")
    found = {}
    for name, value in values.items():
        if name not in known:
            raise BadRequest(f"There is no option {name!r}: {', '.join(known)}.")
        if value is not None and value not in ("", {}):
            found[name] = _checked(known[name], value)
    return found


def _checked(option: Option, value: Any) -> Any:
    match option.kind:
        case "count" if not _is_whole(value) or value < 1:
            raise BadRequest(f"{option.title} must be a whole number above 0, not {value!r}.")
        case "number" if not _is_whole(value) or value < 0:
            raise BadRequest(f"{option.title} must be 0 or a whole number above it, not {value!r}.")
        case "switch" if not isinstance(value, bool):
            raise BadRequest(f"{option.title} is either on or off (true or false), not {value!r}.")
        case "choice" if value not in option.choices:
            raise BadRequest(f"{option.title} is one of {', '.join(option.choices)}, not {value!r}.")
        case "text" if not isinstance(value, str):
            raise BadRequest(f"{option.title} must be a text.")
        case "variables" if not (isinstance(value, dict) and all(isinstance(one, str) for one in value.values())):
            # The values are not repeated: they may be secrets.
            raise BadRequest(f"{option.title}: each must have a text as its value.")
    return value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def add_to_parser(parser: argparse.ArgumentParser, options: Iterable[Option], assignment: Any) -> None:
    """The options as arguments; ``assignment`` parses ``NAME=value``."""
    for option in options:
        more: dict[str, Any] = {"help": option.help.replace("%", "%%"), "dest": option.name}
        if option.metavar is not None:
            more["metavar"] = option.metavar
        match option.kind:
            case "count":
                more["type"] = int
            case "number":
                more |= {"type": int, "default": 0}
            case "switch":
                more["action"] = "store_true"
            case "choice":
                more |= {"choices": option.choices, "default": option.default}
            case "variables":
                more |= {"type": assignment, "nargs": "+", "action": "extend", "default": []}
        parser.add_argument(option.flag, **more)

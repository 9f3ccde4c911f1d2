"""The start options of a world, in one flat list: of :class:`WorldOptions`, and those of launchers and frameworks.

The signature and docstring of ``Session.start``, the arguments of ``%distributed start``, the JSON Schema of the
sidebar's dialog and the checks of values all come from :func:`options`. Nothing reads the declarations
before one of them is asked for, so that importing the package stays light.

Under failure: the options of a framework or launcher that cannot be used (one without a default, of a type that no
dialog knows, or with the name of another) are logged once and left out; the others count.
"""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from jupyter_dtrain.core.declarations import declarations
from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.wire.requests import LOCAL, CellDefaults, Check, WorldOptions

from . import launcher as find_launcher
from . import launchers
from .hostlist import hosts_text
from .launcher import LauncherDeclaration, WorldPlan
from .profiles import Profile, find_profile, near

RESERVED: Final = frozenset({"cls", "h", "help", "progress", "run", "settings"})
"""Names that no option may have: ``Session.start`` and the magics use them."""
OPTIONS_HERE: Final = "{options}"
"""The place in a docstring where :func:`lists_options` puts the options."""

_log = logging.getLogger(__name__)

Method = TypeVar("Method", bound=Callable[..., Any])


class Option(msgspec.Struct, frozen=True):
    """One start option."""

    name: str
    framework: str
    """The framework that declares it; else empty."""
    launchers: tuple[str, ...]
    """The launchers that declare it; else empty. An option of every world has neither."""
    type: Any
    """Its annotation, as :func:`msgspec.convert` takes it."""
    default: Any
    schema: dict[str, Any]
    """JSON Schema of its values. ``metavar`` stands for the value in ``-h``."""

    @property
    def accepted(self) -> Any:
        """The type of the values that a caller in Python may give; beside it, None stands for the default."""
        plain = plain_type(self.type)
        if self.names_ranks:
            return str | Sequence[str] | Mapping[str, int]
        if plain is str and self.schema.get("number"):
            return str | int
        if plain is str and self.schema.get("metavar") in ("PATH", "DIR"):
            return str | os.PathLike[str]
        return Mapping[str, str] if get_origin(plain) is dict else plain

    @property
    def annotation(self) -> Any:
        """Its type for readers."""
        return self.accepted | None if self.default is None else self.accepted

    @property
    def description(self) -> str:
        """The effect and the default; begins in lower case and has no full stop."""
        return str(self.schema.get("description", ""))

    @property
    def flag(self) -> str:
        """The option in a magic's line."""
        return f"-{self.name}" if len(self.name) == 1 else flag_of(self.name)

    @property
    def formerly(self) -> str:
        """The name that it had in the release before; empty where it has always had this one."""
        return str(self.schema.get("formerly", ""))

    @property
    def names_ranks(self) -> bool:
        """Whether a value is a list of names with a number of ranks each, which Python may give as a list or a dict."""
        return "RANKS" in str(self.schema.get("metavar", ""))

    def label(self, *, titled: bool) -> str:
        """The option in an error: by its title, or by its name."""
        return str(self.schema.get("title", self.name)) if titled else self.name

    def convert(self, value: Any, label: str) -> Any:
        """Return ``value``, as its :class:`.Check` has it, if the option can have it.

        Raises :class:`BadRequest`, which calls the option ``label``.
        """
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if self.names_ranks and isinstance(value, (list, tuple, Mapping)):
            value = hosts_text(value)
        if self.schema.get("number") and type(value) is int:
            value = str(value)
        try:
            found = msgspec.convert(value, readable(self.type))
        except (msgspec.ValidationError, UnicodeError):  # also for text that no encoding takes
            # A message shows no values of variables: they may be secrets.
            shown = "" if self.schema["type"] == "object" else f", not {value!r}"
            raise BadRequest(f"{label} must be {_describe_values(self.schema)}{shown}.", option=self.name) from None
        for note in get_args(self.type)[1:] if get_origin(self.type) is Annotated else ():
            if isinstance(note, Check):
                found = note.function(found)
        return found


def flag_of(name: str) -> str:
    """An option of this name in a magic's line."""
    return f"--{name.replace('_', '-')}"


class Asked(NamedTuple):
    """Start options, of which :func:`check` has checked each."""

    world: WorldOptions
    frameworks: dict[str, msgspec.Struct]
    """The options of each framework, by its name."""
    launcher: LauncherDeclaration
    launcher_options: msgspec.Struct | None
    """The launcher's own options, where it has any."""
    cells: CellDefaults = CellDefaults()
    """What cells do unless their lines say otherwise."""
    profile_file: str = ""
    """The file of the profile, where one was named."""

    @property
    def framework_values(self) -> dict[str, dict[str, Any]]:
        """The frameworks' options as plain values."""
        return {name: msgspec.to_builtins(options) for name, options in self.frameworks.items()}

    @property
    def launcher_values(self) -> dict[str, Any]:
        """The launcher's own options as plain values."""
        return {} if self.launcher_options is None else msgspec.to_builtins(self.launcher_options)

    def share_gpus(self) -> Asked:
        """The same options with the number of ranks that follows from the GPUs of each, where the person gave those.

        Raises :class:`BadRequest` where this machine or the job has too few.
        """
        if self.world.gpus_per_rank is None or self.launcher.share_gpus is None:
            return self
        world, own = self.launcher.share_gpus(self.world, self.launcher_options)
        return self._replace(world=world, launcher_options=own)

    def place(self) -> WorldPlan:
        """The ranks of each host, as the launcher places them; it asks no host.

        Raises :class:`BadRequest` and :class:`~jupyter_dtrain.core.errors.StartFailed`.
        """
        return self.launcher.place(self.world.n, self.launcher_options)


@lru_cache(1)
def options() -> tuple[Option, ...]:
    """All start options: those of every world first, then the launchers' and the frameworks', each by name."""
    found = {option.name: option for option in _read_options(WorldOptions)}
    for launcher in launchers().values():
        _add_options(found, launcher.name, launcher.options, launchers=(launcher.name,), first=launcher.chosen_by)
    for declaration in declarations():
        _add_options(found, declaration.name, declaration.options, framework=declaration.name)
    return tuple(found.values())


def _add_options(
    found: dict[str, Option], name: str, kind: type[msgspec.Struct] | None, first: tuple[str, ...] = (), **owner: Any
) -> None:
    """Add the options that ``name`` declares; two launchers may share one, if they declare it in the same words."""
    if kind is None:
        return
    try:
        more = {option.name: option for option in _read_options(kind, **owner)}
    except Exception:  # noqa: BLE001 — logged: whatever a plug-in's types make msgspec raise
        _log.exception("The start options of %s cannot be used", name)
        return
    for one in more.keys() & found.keys():
        if found[one].launchers and more[one].launchers and found[one].schema == more[one].schema:
            both = found[one].launchers + more[one].launchers
            found[one] = msgspec.structs.replace(found[one], launchers=both)
            del more[one]
    if taken := more.keys() & (found.keys() | RESERVED):
        _log.error("The start options of %s cannot be used: taken names: %s", name, sorted(taken))
        return
    found |= {one: more[one] for one in sorted(more, key=lambda one: one not in first)}


def _read_options(kind: type[msgspec.Struct], framework: str = "", launchers: tuple[str, ...] = ()) -> list[Option]:
    found = []
    for field in msgspec.structs.fields(kind):
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if default is msgspec.NODEFAULT:
            raise TypeError(f"The option {field.name!r} has no default.")
        schema = _read_schema(field.name, field.type, default)
        found.append(Option(field.name, framework, launchers, field.type, default, schema))
    return found


def _read_schema(name: str, kind: Any, default: Any) -> dict[str, Any]:
    found = msgspec.json.schema(kind)
    # No dialog sends None: an option that is left open is left out.
    for part in found.pop("anyOf", ()):
        if part.get("type") != "null":
            found |= part
    plain = plain_type(kind)
    if get_origin(plain) is Literal:
        # msgspec sorts the choices; their author has put them in an order that says more.
        found |= {"type": "string", "enum": list(get_args(plain))}
    if found.get("type") not in ("boolean", "integer", "number", "object", "string"):
        raise TypeError(
            f"The option {name!r} has the type {plain}: use bool, int, float, str, Literal or dict[str, str]."
        )
    if default is not None and default != {}:
        found["default"] = default
    return found


def plain_type(kind: Any) -> Any:
    """``kind`` without ``Annotated`` and without None."""
    if get_origin(kind) is Annotated:
        return plain_type(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        parts = [part for part in get_args(kind) if part is not NoneType]
        return plain_type(parts[0]) if len(parts) == 1 else kind
    return kind


def schema(launcher: str) -> dict[str, Any]:
    """The options of worlds of a launcher as JSON Schema: an object, none of whose properties is required.

    A flag that does no more than choose the launcher is not among them.
    """
    flags = _flags(find_launcher(launcher))
    wanted = [option for option in options() if not option.launchers or launcher in option.launchers]
    properties = {option.name: option.schema for option in wanted if option.name not in flags}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def describe_launchers() -> list[dict[str, Any]]:
    """All launchers for the dialog, each with its start options. Looking for GPUs takes a moment."""
    return [
        {"name": one.name, "title": one.title, "schema": schema(one.name), **one.capacity()._asdict()}
        for one in launchers().values()
    ]


def check(
    values: Mapping[str, Any], launcher: str | None = None, *, folder: Path | None = None, titled: bool = False
) -> Asked:
    """Check each of ``values``, by option; None stands for the default. What they leave out, the profile may have.

    ``launcher``: its name; None where the options choose it. ``folder``: where the notebook is, default this process's.
    ``titled``: errors call options by their titles, as the dialog does, instead of by their names. Raises
    :class:`BadRequest`.
    """
    values = dict(_by_present_names(values))
    name = values.pop("profile", None)
    if name is None:
        return _check(values, launcher, titled=titled)
    profile = _checked_profile(name, folder)
    if launcher == LOCAL:
        launcher = None  # where a dialog leaves this machine, the profile may name another place
    given = {one: value for one, value in values.items() if value is not None}
    asked = _check(profile.options | given, launcher, titled=titled)
    named = msgspec.structs.replace(asked.world, profile=profile.name)
    return asked._replace(world=named, cells=profile.cells, profile_file=str(profile.file))


def _check(values: Mapping[str, Any], launcher: str | None, *, titled: bool) -> Asked:
    known = {option.name: option for option in options()}
    world: dict[str, Any] = {}
    own: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name not in known:
            raise BadRequest(f"There is no option {name!r}{near(name, known)}. The options are {', '.join(known)}.")
        option = known[name]
        if value is None:
            continue
        converted = option.convert(value, option.label(titled=titled))
        if option.framework:
            found.setdefault(option.framework, {})[name] = converted
        elif not option.launchers:
            world[name] = converted
        elif converted != option.default:
            own[name] = converted
    if launcher is not None:
        chosen = find_launcher(launcher)
        own = dict.fromkeys(_flags(chosen), True) | own
    else:
        chosen = _choose_launcher(own)
    for name in own:
        if chosen.name not in known[name].launchers:
            one = launchers()[known[name].launchers[0]]
            fix = f": choose it with {' or '.join(one.chosen_by)}" if one.chosen_by else ""
            label = known[name].label(titled=titled)
            raise BadRequest(f"{label} is for the launcher {one.title!r}{fix}.", option=name)
    usable = {option.framework for option in known.values()}
    frameworks = {
        declaration.name: declaration.options(**found.get(declaration.name, {}))
        for declaration in declarations()
        if declaration.options is not None and declaration.name in usable
    }
    chosen_options = None if chosen.options is None else chosen.options(**own)
    return Asked(WorldOptions(**world), frameworks, chosen, chosen_options)


def flat_values(
    world: WorldOptions, frameworks: Mapping[str, Mapping[str, Any]], launcher: Mapping[str, Any]
) -> dict[str, Any]:
    """All values of start options in one flat dict, as the options are; None where one was left open."""
    found = {**msgspec.to_builtins(world), **launcher}
    for values in frameworks.values():
        found |= values
    return found


def chosen_values(found: Mapping[str, Any]) -> dict[str, Any]:
    """Those of :func:`flat_values` that are not the default."""
    every = {option.name: option.default for option in options()}
    return {name: found[name] for name in every if found.get(name) not in (None, every[name])}


def _checked_profile(name: Any, folder: Path | None) -> Profile:
    """The profile of this name, with options that can be. Raises :class:`BadRequest`."""
    if not isinstance(name, str):
        raise BadRequest(f"profile must be text, not {name!r}.", option="profile")
    found = find_profile(name, folder)
    if "profile" in found.options:
        raise BadRequest(f"In {found.words}: a profile cannot name another one.", option="profile")
    try:
        _check(found.options, None, titled=False)
    except BadRequest as error:
        raise BadRequest(f"In {found.words}: {error}", option="profile") from None
    return found


def _by_present_names(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values with the names that their options have now; a former name is a :class:`DeprecationWarning`."""
    former = {option.formerly: option.name for option in options() if option.formerly}
    for name, value in values.items():
        if name in former:
            words = f"The option {name} is called {former[name]} now. The former name works until the next release."
            warnings.warn(words, DeprecationWarning, stacklevel=5)
        yield former.get(name, name), value


def _flags(launcher: LauncherDeclaration) -> list[str]:
    """The names of the launcher's options that do no more than choose it."""
    return [one.name for one in options() if one.name in launcher.chosen_by and one.schema["type"] == "boolean"]


def _choose_launcher(given: Iterable[str]) -> LauncherDeclaration:
    """The launcher that one of its own options chooses. ``given``: the names of the options that a person gave."""
    choosing = {one: launcher.name for launcher in launchers().values() for one in launcher.chosen_by}
    found: dict[str, str] = {}
    for name in given:
        if name in choosing:
            found.setdefault(choosing[name], name)
    if len(found) > 1:
        first, second, *_ = found.values()
        raise BadRequest(f"{first} and {second} each say where the ranks run: give one of them.", option=second)
    return find_launcher(next(iter(found), LOCAL))


def assign_roles(asked: Asked, size: int) -> list[str]:
    """The role of each of ``size`` ranks, by rank, from the framework whose options ask for roles; else empty.

    Raises :class:`BadRequest`, also where two frameworks give roles.
    """
    found = {
        declaration.name: roles
        for declaration in declarations()
        if declaration.roles is not None and (roles := declaration.roles(size, asked.frameworks.get(declaration.name)))
    }
    if len(found) > 1:
        raise BadRequest(f"{' and '.join(found)} both give roles to the ranks: use the options of one of them.")
    return next(iter(found.values()), [])


def _describe_values(schema: Mapping[str, Any]) -> str:
    """The values that an option can have, as the end of a sentence."""
    if "enum" in schema:
        *others, last = schema["enum"]
        return f"{', '.join(others)} or {last}" if others else str(last)
    limits = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    bounds = " and ".join(f"{word} {schema[limit]}" for limit, word in limits.items() if limit in schema)
    bounds = bounds and f", {bounds}"
    words = {
        "boolean": "True or False",
        "integer": f"a whole number{bounds}",
        "number": f"a number{bounds}",
        "object": "a dict that maps text to text",
        "string": "text",
    }
    return words[schema["type"]]


class _Listing(classmethod):  # type: ignore[type-arg]  # classmethod takes type arguments in type checkers only
    """A class method that gets its signature and docstring when it is looked up first."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if not hasattr(self.__func__, "__signature__"):
            _list_options(self.__func__)
        return super().__get__(instance, owner)


def lists_options(method: Method) -> Method:
    """A decorator for a class method with ``**options``: its signature and docstring name all options.

    The docstring has :data:`OPTIONS_HERE` where they belong. The options are read when the method is first looked up:
    that reads the frameworks' declarations, for which importing the class must not wait.
    """
    return _Listing(method.__func__)  # type: ignore[attr-defined,return-value]  # both are class methods


def _list_options(function: Any) -> None:
    own = inspect.signature(function)
    left = {option.name: option for option in options()}
    positional: list[inspect.Parameter] = []
    keyword_only: list[inspect.Parameter] = []
    for parameter in own.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        option = left.pop(parameter.name, None)
        shown = parameter if option is None else parameter.replace(annotation=option.annotation)
        (keyword_only if parameter.kind is inspect.Parameter.KEYWORD_ONLY else positional).append(shown)
    listed = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.annotation)
        for name, option in left.items()
    ]
    function.__signature__ = own.replace(parameters=[*positional, *listed, *keyword_only])
    lines = "\n".join(f"* ``{option.name}``: {option.description.replace('`', '``')}" for option in options())
    function.__doc__ = inspect.cleandoc(function.__doc__ or "").replace(OPTIONS_HERE, lines)

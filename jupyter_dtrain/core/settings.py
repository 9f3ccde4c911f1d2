"""Durations and sizes that a user may want to change, each with its default.

A setting is read from the environment variable ``JUPYTER_DTRAIN_<NAME>`` when a session or a world starts; a world
keeps the values that it was started with.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping

import msgspec

from .errors import BadRequest
from .structs import readable

PREFIX = "JUPYTER_DTRAIN_"
STORE_VARIABLE = "JUPYTER_DTRAIN_STORE"
"""The file of the store. A job that has this variable writes its metrics there."""
TRACK_VARIABLE = "JUPYTER_DTRAIN_TRACK"
"""The trackers that get the runs of worlds which are started without the option ``track``."""


FORMER = {"hold": "output_delay", "lease": "keep_alive", "spool_cap": "log_cap", "spool_days": "log_days"}
"""The names of the release before, and those of now."""

MAY_BE_OFF = ("warm_start",)
"""The settings that may be 0."""


class Settings(msgspec.Struct, frozen=True):
    """All settings. Durations are seconds, sizes bytes."""

    keep_alive: float = 1800.0
    """How long a world outlives the notebook that controls it (a kernel that crashed or restarts)."""
    start_timeout: float = 30.0
    """A start that makes no progress for so long has failed. On a busy machine, a start that still works goes on."""
    interrupt_timeout: float = 8.0
    """After an interrupt, ranks that take longer to become idle are named and left behind."""
    interrupt_release: float = 1.0
    """After an interrupt, ranks that wait for others in native code are freed after this long."""
    interrupt_raise: float = 5.0
    """After an interrupt, cells that have caught it and go on are ended by another exception after this long."""
    release_grace: float = 2.0
    """Ranks that wait for one that has failed are freed after this long."""
    hang_notice: float = 30.0
    """When no rank has moved for this long, the cell shows where they are."""
    stop_timeout: float = 5.0
    """A stop interrupts what runs, and gives ranks this long to end by themselves (``finally``, ``atexit``)."""
    request_timeout: float = 10.0
    """How long the world's main process or an idle rank may take to answer."""
    transfer_timeout: float = 600.0
    """How long ``push`` and ``pull`` may take."""
    log_cap: int = 1 << 30
    """Text that one rank may print in one run before the rest is counted but not kept."""
    log_days: float = 7.0
    """Logs of worlds that ended longer ago than this are removed when a world starts. Unit: days."""
    store_days: float = 365.0
    """Runs in the store that are older than this are removed. Unit: days."""
    output_delay: float = 0.03
    """How long a printed line waits, at most, for other ranks to print the same; later ones are shown below it. A
    larger value is tidier where ranks are far from each other or share few processors."""
    shown_bytes: int = 2_000_000
    """How much of its ranks' text a cell shows before it shows only the last lines."""
    warm_start: float = 600.0
    """How long programs wait for a start after ``%load_ext``, with all imported that they need; 0 for none. They take
    about 120 MB of memory, and no GPU."""
    lease: float | None = None
    hold: float | None = None
    spool_cap: int | None = None
    spool_days: float | None = None

    @property
    def longest_step(self) -> float:
        """How long a start may take for one step, however busy the machine is."""
        return 20 * self.start_timeout

    def __post_init__(self) -> None:
        """Raise :class:`BadRequest` for a value that is not a number above 0, or without end."""
        defaults = {field.name: field.default for field in msgspec.structs.fields(self)}
        for name in self.__struct_fields__:
            value, now = getattr(self, name), FORMER.get(name)
            if now is None:
                _check(name, name, value)
            elif value is not None:
                _check(now, name, value)
                words = f"The setting {name} is called {now} now. The former name works until the next release."
                warnings.warn(words, DeprecationWarning, stacklevel=2)
                if getattr(self, now) == defaults[now]:
                    msgspec.structs.force_setattr(self, now, value)
                msgspec.structs.force_setattr(self, name, None)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """The defaults, overridden by the environment. Raises :class:`BadRequest` for a value that is no number."""
        environ = os.environ if environ is None else environ
        known = {field.name: field for field in msgspec.structs.fields(cls) if field.name not in FORMER}
        values: dict[str, float] = {}
        # A present name comes after the former one of the same setting, and wins.
        for key, text in sorted(environ.items(), key=lambda one: one[0][len(PREFIX) :].lower() not in FORMER):
            if not key.startswith(PREFIX) or key in (STORE_VARIABLE, TRACK_VARIABLE):
                continue
            name = key[len(PREFIX) :].lower()
            if name in FORMER:
                now = PREFIX + FORMER[name].upper()
                words = f"{key} is called {now} now. The former name works until the next release."
                warnings.warn(words, FutureWarning, stacklevel=2)
                name = FORMER[name]
            if name not in known:
                raise BadRequest(
                    f"{key} is not a setting. The settings are {', '.join(PREFIX + n.upper() for n in known)}."
                )
            try:
                value = int(text) if known[name].type is int else float(text)
            except ValueError:
                raise BadRequest(f"{key} must be a number, not {text!r}.") from None
            _check(name, key, value)
            values[name] = value
        return msgspec.convert(values, readable(cls))


def _check(name: str, shown: str, value: object) -> None:
    """Raise :class:`BadRequest` unless the setting ``name``, which the user calls ``shown``, may have this value."""
    if name not in MAY_BE_OFF or isinstance(value, bool) or value != 0:
        check_number(shown, value)


def check_number(name: str, value: object) -> None:
    """Raise :class:`BadRequest` unless ``value``, called ``name``, is a number above 0 and below infinity."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise BadRequest(f"{name} must be a number above 0, not {value!r}.")

"""A framework's surroundings in one rank, as data: its version, what is compiled in, what it found.

Ranks report them while a cell runs, and where they do not use the framework: nothing is imported for it, and nothing
waits. A package that user code has not imported is reported with its version and as not imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import msgspec


class FrameworkReport(msgspec.Struct, frozen=True):
    """A framework's surroundings in one rank."""

    title: str
    """The name that people use."""
    version: str
    """The installed version, such as ``2.13.0+cpu``; empty where the framework is not installed."""
    tested: str
    """The versions that this project is tested with, such as ``2.13``, or the first and the last: ``2.8 and 2.15``."""
    imported: bool
    details: dict[str, str]
    """Such as ``threads`` → ``8``, in words; what stands behind a first colon and space explains the rest."""


def facts_of_package(
    title: str, package: str, tested: str, details: Callable[[Any], Mapping[str, str]] | None = None
) -> FrameworkReport:
    """The facts about an installed ``package``, whose module has its name.

    ``details`` is called with the module, once user code has imported it.
    """
    installed = installed_version(package)
    module = imported(package)
    if module is None:
        return FrameworkReport(title, installed, tested, imported=False, details={})
    used = str(getattr(module, "__version__", installed))
    found = {} if details is None else dict(details(module))
    if installed and _numbers(used) != _numbers(installed):
        found = {"installed meanwhile": f"{installed}; %distributed restart loads it"} | found
    return FrameworkReport(title, used, tested, imported=True, details=found)


def installed_version(package: str) -> str:
    """The version of an installed ``package``; empty where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def imported(name: str) -> ModuleType | None:
    """The module ``name`` if its import has come to its end; else None."""
    module = sys.modules.get(name)
    being_made = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if being_made else module


def compare_tested(version: str, tested: str) -> str:
    """In words, how ``version`` stands to those that are ``tested``, as far as these go."""
    own, (oldest, newest) = _numbers(version), (_numbers(one) for one in (tested.split(" and ") * 2)[:2])
    if not own or not newest or (oldest <= own[: len(oldest)] and own[: len(newest)] <= newest):
        return f"tested with {tested}"
    stands, plural = "newer" if own > newest else "older", "s" if oldest != newest else ""
    return f"{stands} than the tested version{plural}, {tested}; cells name what it lacks"


def _numbers(version: str) -> list[int]:
    found = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in found[0].split(".")] if found else []

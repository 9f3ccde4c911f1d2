"""The answers of ranks to questions about what is in them."""

from __future__ import annotations

import msgspec

from jupyter_dtrain.core.framework_report import FrameworkReport
from jupyter_dtrain.core.processors import Processors
from jupyter_dtrain.core.variables import SeenVariable


class Surroundings(msgspec.Struct, frozen=True):
    """The environment variables and frameworks of one rank."""

    variables: list[SeenVariable]
    frameworks: dict[str, FrameworkReport]
    """The report of each framework, by its name; a framework without anything to report is left out."""
    open: bool = False
    """Whether servers that ask for no password hear all users of the rank's host. One rank of a host finds out."""
    processors: Processors | None = None
    """The processors on which the rank may run now; None where Linux does not say."""


class NameDescription(msgspec.Struct, frozen=True):
    """The object behind a name on one rank."""

    type: str
    value: str
    """In few words, such as ``float32 (64, 10) on cuda:0``; empty where there are none."""
    signature: str
    doc: str
    source: str
    """The source code, where it was asked for and is known; else empty."""

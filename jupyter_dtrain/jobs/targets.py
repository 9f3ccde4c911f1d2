"""The table of the places to which a job can be exported. It alone names the targets that frameworks bring."""

from __future__ import annotations

from jupyter_dtrain.core.errors import BadRequest

from . import deepspeed, launchers, platforms
from .job import Target

TARGETS: tuple[Target, ...] = (*launchers.TARGETS, *platforms.TARGETS, *deepspeed.TARGETS)


def find_target(name: str) -> Target:
    """The target of this name. Raises :class:`BadRequest` where there is none."""
    for target in TARGETS:
        if target.name == name:
            return target
    raise BadRequest(f"There is no target {name!r}. There is: {', '.join(target.name for target in TARGETS)}.")

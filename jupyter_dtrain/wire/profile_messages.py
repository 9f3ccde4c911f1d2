"""Requests to a rank's agent about a profile of the loop that it runs, and their answers.

:mod:`jupyter_dtrain.rank.profiling` answers them while the cell runs. Who asks names the profile by a key of its own,
so that two clients do not take each other's.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from jupyter_dtrain.core.traces import GroupOf

from .messages import AgentRequest, Done


class ProfileState(msgspec.Struct, frozen=True):
    """How far a rank has come, in its cell and in a profile."""

    run: int | None
    """The run whose cell the rank runs now."""
    step: int
    """The steps of this cell so far."""
    pace: float
    """Seconds of a step, from the last few; 0 where that is not known."""
    profilers: list[str]
    """The frameworks in use whose profiler can record something now."""
    frameworks: list[str]
    """All frameworks in use."""
    state: Literal["none", "armed", "late", "recording", "writing", "done", "failed"] = "none"
    """What becomes of the profile of the asker; late: the rank had made the step after which it was to begin."""
    words: str = ""
    """Why it failed, or what is missing from it."""
    marks: list[int] = []
    """When each of its steps ended, in ``time.time_ns()``; the first is where it begins."""
    framework: str = ""
    """Whose profiler has recorded it: the name of a plug-in."""
    size: int = 0
    """Bytes of the compressed trace, once it is done."""
    groups: list[GroupOf] = []
    """The groups of the collectives in it, where they are known."""


class ReadProfile(AgentRequest[ProfileState], frozen=True, tag="profile"):
    """Ask how far the profile ``key`` is. A rank that is not asked so for some seconds drops it."""

    key: str


class BeginProfile(AgentRequest[ProfileState], frozen=True, tag="profile_begin"):
    """Profile the ``steps`` steps that follow step ``after`` of the cell."""

    key: str
    after: int
    steps: int


class EndProfile(AgentRequest[Done], frozen=True, tag="profile_end"):
    """Drop the profile ``key``, whatever has become of it."""

    key: str


class TracePart(msgspec.Struct, frozen=True):
    """Some bytes of a compressed trace; empty after its end."""

    data: bytes


class ReadTrace(AgentRequest[TracePart], frozen=True, tag="profile_trace"):
    """Ask for the trace of the profile ``key`` from byte ``start`` on, or the first part of that."""

    key: str
    start: int


AnyProfileRequest = ReadProfile | BeginProfile | EndProfile | ReadTrace
"""A request about a profile."""

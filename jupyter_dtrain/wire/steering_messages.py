"""Requests by which a person's acts reach a running loop: from clients to the steward, and from there to the ranks.

:mod:`.messages` says how these travel. The steward has all ranks of a run hold after the same step, carry out the act
stage by stage, and go on. What becomes of an act on each rank are events of the run,
:class:`~jupyter_dtrain.core.events.Steered`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from jupyter_dtrain.core.events import Acted
from jupyter_dtrain.core.steering import LoopAct

from .messages import AgentRequest, Done, StewardRequest

# From a client to the steward.


class SteerBegun(msgspec.Struct, frozen=True):
    """The steward has the act."""

    number: int
    """The number of the act, which counts the acts of the world."""


class Steer(StewardRequest[SteerBegun], frozen=True, tag="steer"):
    """Act on a loop between two of its steps. The steward refuses it from any client but the driver."""

    client: str
    """The id of the client."""
    by: str
    """Who acts, in words."""
    act: LoopAct
    patience: float
    """Seconds in which the ranks must make a step."""
    run: int | None = None
    """The run; None for the only one that goes on."""


class SteerState(msgspec.Struct, frozen=True):
    """How an act stands."""

    phase: Literal["going on", "done", "failed"]
    words: str
    """How far it is, what it has done, or why it was not done; a sentence or several."""
    run: int = 0
    step: int = 0
    """The step after which the ranks were held, counted from the beginning of the cell; 0 before that."""
    ranks: dict[int, Acted] = {}
    """What became of it on each rank that has carried it out."""


class ReadSteer(StewardRequest[SteerState], frozen=True, tag="steer-state"):
    """Ask how the act ``number`` stands. The steward refuses for one that it has forgotten."""

    number: int


class WithdrawSteer(StewardRequest[Done], frozen=True, tag="steer-withdraw"):
    """Give up the act ``number``, unless the ranks carry it out already. Only who asked for it gives it up."""

    client: str
    """The id of the client."""
    number: int


# From the steward to the agent of a rank.


class StepState(msgspec.Struct, frozen=True):
    """Where a rank's loop is, and what it does with an order."""

    run: int | None
    """The run whose cell the rank runs; None where it is idle."""
    newest: int
    """The newest run that it has begun; 0 before the first."""
    counts: dict[str, int]
    """The steps that it has made in this cell, by what counts them: :data:`~jupyter_dtrain.core.steering.SOURCES`."""
    state: Literal["none", "armed", "late", "held", "working", "left"] = "none"
    """``none``: it has no such order; ``late``: it had passed the step; ``left``: its loop goes on, or has ended."""
    done: int = 0
    """The newest stage that it has carried out."""
    found: Acted | None = None
    """What became of that stage."""
    unfit: str = ""
    """Why this cell cannot be steered, as a clause; empty where it can."""


class ReadSteps(AgentRequest[StepState], frozen=True, tag="steps"):
    """Ask where the loop is, and what became of the order ``key``."""

    key: str


class HoldSteps(AgentRequest[StepState], frozen=True, tag="hold-steps"):
    """Hold the loop after step ``at``. An order that the loop is held by already stays in force until it is left."""

    key: str
    run: int
    source: str
    at: int
    number: int
    """The number of the act that asks for it."""
    words: str
    by: str


class CarryOut(AgentRequest[StepState], frozen=True, tag="carry-out"):
    """Carry out one stage of an act on the loop that is held. A stage that the rank has had before changes nothing."""

    key: str
    stage: int
    """Counts the stages of the order, from 1."""
    number: int
    by: str
    act: LoopAct
    check: bool
    """Whether the rank only looks if the act can be done there."""


class LeaveSteps(AgentRequest[StepState], frozen=True, tag="leave-steps"):
    """Let the loop go on, or forget the order before the rank is held."""

    key: str
    failed: str = ""
    """Why the loop ends with an error, as a sentence; empty where it goes on."""


AnySteeringRequest = ReadSteps | HoldSteps | CarryOut | LeaveSteps

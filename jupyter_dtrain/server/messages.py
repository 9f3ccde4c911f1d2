"""The server's messages to a page: those of the stream, and answers over HTTP.

``scripts/front_end_types.py`` makes the front end's types from these structs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from jupyter_dtrain.core.events import RankState
from jupyter_dtrain.core.start_failures import StartFailure
from jupyter_dtrain.store.losses import Loss
from jupyter_dtrain.view.contents import HeldRow
from jupyter_dtrain.view.document import RankState as RunRankState
from jupyter_dtrain.view.document import RunOutcome
from jupyter_dtrain.view.points import News
from jupyter_dtrain.view.profiles import PanelProfile
from jupyter_dtrain.view.step_time import StepTimePart
from jupyter_dtrain.wire.steward_messages import WorldState, WorldStatus, name_of

from .attention import Item

WorldPhase = Literal["starting", "running", "ending", "failed", "unreachable"]
"""The state of a world, as a page sees it."""


class Driver(msgspec.Struct, frozen=True):
    """The client that drives a world."""

    pid: int
    name: str
    """The file of its notebook, or its process."""
    words: str
    """Both."""
    kernel: str
    """The id of its Jupyter kernel; empty if the driver is not a kernel."""
    there: bool
    auto: bool
    """Whether its plain cells run on the ranks too."""

    @classmethod
    def of(cls, state: WorldState | WorldStatus | None) -> Driver | None:
        """The driver of a world."""
        driver = None if state is None else state.driver
        if state is None or driver is None:
            return None
        return cls(driver.pid, name_of(driver.words), driver.words, driver.kernel, state.driven, driver.auto)


class RunSummary(msgspec.Struct, frozen=True):
    """A run of a world."""

    number: int
    cell: str
    """The id of its cell in the notebook; empty if unknown."""
    step: int | None
    """The step of the rank that is furthest ahead."""
    ranks: list[int]
    outcome: RunOutcome
    started: float
    """Seconds since the epoch."""
    ended: float | None
    elapsed: float | None
    """The seconds that it took; null while it goes on."""
    states: dict[str, int]
    """The number of ranks in each state."""


class World(msgspec.Struct, frozen=True):
    """One world."""

    id: str
    name: str
    cwd: str
    state: WorldPhase
    words: str
    """The reason for its state; empty if the state needs none."""
    progress: str
    """How far its start has come, and what it waits for; empty unless it starts."""
    failure: StartFailure | None
    """Why its start has failed; null unless it has."""
    size: int
    ready: int
    nodes: int
    dead: int
    frameworks: list[str]
    started: float
    lease_end: float | None
    """When the world ends unless a client drives it; null while one does."""
    left: str
    """The time until a scheduler takes its nodes away, in words; empty where none does."""
    driver: Driver | None
    run: RunSummary | None
    """The newest, which may have ended."""
    runs: list[RunSummary]
    """Those that go on, oldest first."""


class WorldRank(msgspec.Struct, frozen=True, array_like=True):
    """One rank of a world."""

    rank: int
    node: int
    host: str
    local_rank: int
    device: str
    pid: int
    state: RankState | RunRankState
    words: str
    """Why the rank is dead; empty if it is not."""
    waits: str
    """The call in which it waits for other ranks; empty if it does not."""
    role: str
    fresh: bool
    """Whether another process was this rank in its newest run, so that nothing of that run is this one's."""


class StoredRun(msgspec.Struct, frozen=True):
    """A run in the store."""

    id: int
    """For requests; people call it WORLD/NUMBER."""
    name: str
    note: str
    tags: list[str]
    kept: bool
    """Whether neither its age nor a request to delete it removes it."""
    world: str
    number: int
    ranks: int
    """How many ran its cell, of the `size` ranks of its world."""
    size: int
    outcome: RunOutcome
    remark: str
    ending: str
    """How it ended, in words."""
    started: float
    """Seconds since the epoch."""
    elapsed: float
    source: str
    losses: list[Loss]


class Column(msgspec.Struct, frozen=True):
    """Points of one quantity on one rank, in the order in which it logged them: three lists of equal length."""

    name: str
    rank: int
    steps: list[int | None]
    """None where a resource was measured before the first step."""
    times: list[float]
    """Seconds since the run's start."""
    values: list[float | None]
    """None for what is NaN or infinite."""


class RunColumns(msgspec.Struct, frozen=True):
    """The points that a stored run logged, and those of what it used, for charts."""

    id: int
    metrics: list[Column]
    resources: list[Column]
    step_time: StepTimePart | None = None
    """Where the time of its steps went; null where no steps were seen."""


class HeldVariables(msgspec.Struct, frozen=True):
    """The variables of ranks."""

    words: str
    """A sentence that says whether all ranks have the same variables."""
    rows: list[HeldRow]
    left_out: int
    """Further variables."""
    silent: list[int]
    """The ranks that have not answered in time."""


class ProfileProgress(msgspec.Struct, frozen=True):
    """How far a profile is."""

    words: str
    """What is going on, as a sentence; empty at the beginning and at the end."""
    profile: PanelProfile | None
    """Null until it has been made."""


class CellOutputs(msgspec.Struct, frozen=True):
    """The output of a run's cell, or the changes in it."""

    replay: str
    """Versions of another replay mean something else: its answer begins anew."""
    version: int
    """The next question names it."""
    outputs: list[tuple[int, dict[str, Any]]]
    """Outputs as in a notebook file, with their places: text is only appended, a display may be replaced."""
    cell: str
    """The cell's id in the notebook; empty if unknown."""
    executed: int | None
    """The cell's number in the notebook."""
    more: bool
    """Whether there is more already."""
    over: bool
    """Whether the run has ended and this is all."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """A message of the stream."""


class WorldsMessage(Message, frozen=True, kw_only=True, tag="worlds"):
    """All worlds."""

    worlds: list[World]


class AttentionMessage(Message, frozen=True, kw_only=True, tag="attention"):
    """All findings that need the person's attention."""

    items: list[Item]


class RanksMessage(Message, frozen=True, kw_only=True, tag="ranks"):
    """All ranks of a world that the page watches."""

    world: str
    ranks: list[WorldRank]


class RunMessage(Message, frozen=True, kw_only=True, tag="run"):
    """A run of a world that the page watches, from its beginning: one that goes on, or the newest."""

    world: str
    source: str
    document: Annotated[dict[str, Any], msgspec.Meta(extra={"type": "RunDocument"})]


class NewsMessage(News, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="news"):
    """The changes in a run since the last message about it."""

    world: str
    values: str | UnsetType = UNSET
    """The values of all series, one after the other, as little-endian float32 in base64."""
    steps: str | UnsetType = UNSET
    """The steps of the series whose steps are not even, as little-endian float64 in base64."""


AnyMessage = WorldsMessage | AttentionMessage | RanksMessage | RunMessage | NewsMessage
"""Every message of the stream."""

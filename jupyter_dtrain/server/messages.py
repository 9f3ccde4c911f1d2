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
from jupyter_dtrain.store.provenance import RunCommit
from jupyter_dtrain.store.run_columns import CellValue, ColumnHead
from jupyter_dtrain.store.run_page import MediaName, MediumHead, PageTracker
from jupyter_dtrain.store.selection import ColumnChoice, RunGroup
from jupyter_dtrain.store.views import TableView
from jupyter_dtrain.view.contents import HeldRow
from jupyter_dtrain.view.document import RankState as RunRankState
from jupyter_dtrain.view.document import RunOutcome
from jupyter_dtrain.view.made import CodeDifference, RunDifference
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
    """Its cell, cut where it is long."""
    losses: list[Loss]
    code: str = ""
    """The line of its cell that tells it from others."""
    group: str = ""
    """The name that a person gave several runs in common; empty for none."""
    heading: str = ""
    """The heading above its cell; empty where that is not known."""
    notebook: str = ""
    """The file of its notebook; empty where that is not known."""
    cell: int | None = None
    """The number of its cell in the notebook."""
    resumes: int | None = None
    """The id of the run whose training it goes on with, which may be deleted."""
    training: bool = True
    """Whether it is a training; lists of trainings leave the others out."""
    values: list[CellValue] = []
    """Its value in each column that was asked for, in their order; null where it has none."""
    place: int | None = None
    """The place of its group in the answer's `groups`; null where the list is not grouped."""


class RunListing(msgspec.Struct, frozen=True):
    """A part of the list of runs."""

    version: str
    """Changes whenever anything in the store does."""
    same: bool = False
    """Whether the store still has the version that the request named; the rest is empty then."""
    runs: list[StoredRun] = []
    total: int = 0
    """How many runs the conditions let through."""
    trainings: int = 0
    """How many runs are trainings, whatever the filter says."""
    all: int = 0
    """How many runs there are, trainings or not."""
    columns: list[ColumnHead] = []
    """Those that the request asked for, in its order."""
    groups: list[RunGroup] = []
    """In the order of the list; empty where it is not grouped."""
    configs: list[ColumnChoice] = []
    """The configuration values that listed runs have, whatever the filter says: those that differ first."""
    metrics: list[ColumnChoice] = []
    """The metrics that they have."""
    views: list[TableView] = []
    """All saved views, by name."""
    hint: str = ""
    """A name in the filter that no listed run has, as a sentence; mostly empty."""


class RunLink(msgspec.Struct, frozen=True):
    """Another run that a page names."""

    id: int
    label: str
    """WORLD/NUMBER."""
    name: str


class ConfigValue(msgspec.Struct, frozen=True):
    """A value of a run's configuration."""

    name: str
    value: Any
    """JSON; `…` where it was too long to be kept."""
    origin: str
    """`library`, `cell`, `sent` or `set`."""


class PageFailure(msgspec.Struct, frozen=True):
    """Why a run failed on some ranks."""

    ranks: list[int]
    words: str
    """One line."""
    traceback: str
    """As the rank printed it; empty where there is none."""
    echo: bool
    """Whether it only follows from the failure of another rank."""


class PageRank(msgspec.Struct, frozen=True):
    """A rank of a stored run."""

    rank: int
    host: str
    pid: int
    outcome: RunOutcome
    words: str
    """Why it is lost, or what is wrong with its log; mostly empty."""
    elapsed: float | None
    """Seconds; null while it works, and where it was lost."""
    printed: int
    """Bytes of text."""


class PageEnvironment(msgspec.Struct, frozen=True):
    """What the processes of some ranks ran in."""

    ranks: list[int]
    python: str
    packages: dict[str, str]
    devices: list[str]
    command: list[str]
    folder: str
    platform: str
    cpus: int
    memory: int
    """Bytes."""


class PageHappening(msgspec.Struct, frozen=True):
    """Something that happened to a run."""

    seconds: float | None
    """Since the run's start; null where it is not known."""
    step: int | None
    words: str
    """A sentence."""


class PageFile(msgspec.Struct, frozen=True):
    """A file or folder that belongs to a run."""

    title: str
    path: str
    host: str
    there: bool
    """Whether it is still there; of another host, true means that it is not known."""


class PageTail(msgspec.Struct, frozen=True):
    """The end of what some ranks printed, which is the same for all of them."""

    ranks: list[int]
    lines: list[str]
    more: bool
    """Whether they printed more before it."""


class MediaIndex(msgspec.Struct, frozen=True):
    """What a run has logged beside numbers."""

    names: list[MediaName]
    media: list[MediumHead]
    """Of the name that the request asked for, by step, rank and number; empty where it asked for none."""
    left_out: int = 0
    """Further ones, where there are too many for one answer."""


class RunPage(msgspec.Struct, frozen=True):
    """All of a stored run but its curves (`/metrics`) and its picture (`/dtrain/runs/ID`)."""

    run: StoredRun
    source: str
    """The whole cell."""
    config: list[ConfigValue]
    failures: list[PageFailure]
    """The cause first."""
    ranks: list[PageRank]
    environments: list[PageEnvironment]
    """One for all ranks that run in the same."""
    commit: RunCommit | None
    happenings: list[PageHappening]
    files: list[PageFile]
    cells: str
    """Lines for a notebook that run it again."""
    job: str
    """Lines for a shell that run it again as a job; empty where it was no cell of a known notebook."""
    tails: list[PageTail]
    media: list[MediaName]
    lineage: list[RunLink]
    """The runs that it goes on with, oldest first, and itself as the last; empty where it goes on with none."""
    continued: list[RunLink]
    """The runs that go on with it."""
    trackers: list[PageTracker]


class RunDifferences(msgspec.Struct, frozen=True):
    """What differs between runs, and how much is the same."""

    runs: list[RunLink]
    config: list[RunDifference]
    same: int
    """Values of the configuration that all have in common."""
    versions: list[RunDifference]
    """Of Python, packages, devices and hosts."""
    commits: list[RunDifference]
    """Commit, branch, and whether files differed."""
    code: list[CodeDifference]
    metrics: list[RunDifference]
    """Last, lowest and highest of each metric, such as `lowest loss`."""


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
    epochs: list[Column] = []
    """The epoch of each rank by step, where it logged one: an axis, which is in no chart."""
    resumes: int | None = None
    """The id of the run that it goes on with."""
    first_step: int = 0
    """The step with which it goes on."""
    lineage: list[LineagePart] = []
    """The runs whose points the metrics have, oldest first, where the request asked for the whole chain."""


class LineagePart(msgspec.Struct, frozen=True):
    """A run of a chain in which each goes on with the one before it."""

    id: int
    label: str
    """WORLD/NUMBER."""
    name: str
    first_step: int
    """The step from which on the points are its own."""
    since: float
    """The seconds of training before it, which its points' times include."""


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

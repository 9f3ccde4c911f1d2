"""Requests to a rank's agent and its watch, and their answers.

:mod:`.messages` says how these travel. A cell and values go to the rank's main thread, which takes them between cells;
everything else is answered at once, also while a cell runs.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from jupyter_dtrain.core.contents import NamedValue
from jupyter_dtrain.core.events import Batch, CommMessage
from jupyter_dtrain.core.flames import Sampled
from jupyter_dtrain.core.framework_report import FrameworkReport
from jupyter_dtrain.core.memory import FreedMemory, RankMemory
from jupyter_dtrain.core.memory_record import RecordedMemory
from jupyter_dtrain.core.processors import Processors
from jupyter_dtrain.core.stacks import Stack, Wait
from jupyter_dtrain.core.variables import SeenVariable

from .healing_messages import AnyHealingRequest
from .lent_memory import MemoryPlace
from .messages import AgentRequest, Cell, Done, Request, Watching
from .profile_messages import AnyProfileRequest
from .prompt_messages import AnswerPrompt, Evaluate, NotePrompts, ReadLastError
from .steering_messages import AnySteeringRequest

A = TypeVar("A", bound=msgspec.Struct)

EVERY_FRAMEWORK = ""
"""Stands for all frameworks in :class:`ReleaseRank`."""


# To the rank's main thread.


class PackedValue(msgspec.Struct, frozen=True):
    """One value on its way: a pickle, and buffers that the pickle does not contain."""

    name: str
    digest: str
    """SHA-256 of the pickle."""
    size: int
    """Bytes of the pickle in the lent memory; 0: it is the next buffer of the message."""
    buffers: list[int]
    """Bytes of each buffer, which follow in the lent memory."""


class RunCell(msgspec.Struct, frozen=True):
    """Run a cell. Its events report its progress and its end; the reply says nothing about them."""

    run: int
    code: str
    ranks: list[int]
    """All ranks that run it."""
    generation: int
    watch: Watching
    cell: Cell
    inputs: list[PackedValue] = []
    """The variables that the cell needs first."""
    memory: MemoryPlace | None = None
    """Where those are that are not in the message."""
    joins: int | None = None
    """The run that goes on in other ranks, and that these ranks, which are new, join; None for a run of its own."""
    elastic: bool = False
    """Whether the cell goes on without ranks that die: nothing beside it may wait for all ranks."""
    unanswered: str = "it was sent by a program that has no prompt"
    """Why nobody can answer the prompts of the cell, as a clause; empty where somebody can."""


class ValuesRequest(Request[A], frozen=True):
    """A request that an idle rank answers from its main thread."""


class StoreValues(ValuesRequest[Done], frozen=True, tag="store"):
    """Bind ``values``."""

    values: list[PackedValue]
    memory: MemoryPlace | None = None
    """Where those are that are not in the message."""


class Fetched(msgspec.Struct, frozen=True):
    """Values, and the names that have none."""

    values: list[PackedValue]
    missing: list[str]
    """The names that are not defined on the rank."""
    failed: dict[str, str]
    """Why a value cannot be pickled, by name."""


class FetchValues(ValuesRequest[Fetched], frozen=True, tag="fetch"):
    """Send the values of ``names``."""

    names: list[str]
    forget: bool = False
    """Whether the rank lets go of them."""
    memory: MemoryPlace | None = None
    """Where what is large belongs, if the rank can reach it."""


class WidgetsSaid(msgspec.Struct, frozen=True):
    """Messages of the rank's widgets since the last cell."""

    messages: list[CommMessage]


class SendToWidgets(ValuesRequest[WidgetsSaid], frozen=True, tag="comm"):
    """Pass the browser's messages on to widgets that were made in the rank."""

    messages: list[CommMessage]


class MemoryFreed(msgspec.Struct, frozen=True):
    """What the rank has given back."""

    found: FreedMemory


class FreeMemory(ValuesRequest[MemoryFreed], frozen=True, tag="free"):
    """Let go of old outputs and of the last error, collect garbage, and give memory that nothing uses back."""


AnyValuesRequest = StoreValues | FetchValues | SendToWidgets | FreeMemory
"""The content of a :data:`~.messages.VALUES_MESSAGE`."""


# To the agent.


class RankPosition(msgspec.Struct, frozen=True):
    """How far a rank has come."""

    rank: int
    state: Literal["idle", "running"]
    run: int | None
    """The newest run that the rank has begun; None before the first."""
    next: int
    """The number that the rank's next event of that run gets."""
    finished: bool
    """Whether the rank has ended that run."""
    waits: Wait | None
    """The call in which it waits for other ranks; None where it does not, or where that was not asked."""
    frameworks: list[str]
    """The frameworks in use; empty where that was not asked."""

    def works_on(self, run: int) -> bool:
        """Whether the rank has begun ``run`` and not ended it."""
        return self.run == run and not self.finished


class ReadPosition(AgentRequest[RankPosition], frozen=True, tag="state"):
    """Ask how far the rank has come."""

    waits: bool = False
    """Whether to look what it waits in, which takes 30 ms, and which frameworks it uses."""


class ReleaseRank(AgentRequest[Done], frozen=True, tag="release"):
    """Leave the calls of ``frameworks`` in which the rank waits for others."""

    run: int
    frameworks: list[str]
    generation: int
    """The generation of the world; a rank that has a newer one ignores the request."""


class MemoryReached(msgspec.Struct, frozen=True):
    """Whether the rank can read memory that the client lends."""

    yes: bool


class ReachMemory(AgentRequest[MemoryReached], frozen=True, tag="reach"):
    """Ask whether the rank can read the memory at ``place``, as on the same machine."""

    place: MemoryPlace


class ReadStack(AgentRequest[Stack], frozen=True, tag="stacks"):
    """Ask where the main thread is."""


class Signalled(msgspec.Struct, frozen=True):
    """Whether the cell has taken the interrupt."""

    sent: bool


class InterruptRank(AgentRequest[Signalled], frozen=True, tag="interrupt"):
    """Interrupt the cell, if it is that of ``run``."""

    run: int
    force: bool = False
    """Raise what ``except KeyboardInterrupt`` does not catch."""


class EventsRead(msgspec.Struct, frozen=True):
    """Events of one run; None where there are none."""

    batch: Batch | None


class ReadEvents(AgentRequest[EventsRead], frozen=True, tag="read"):
    """Send the events of ``run`` from number ``from_seq`` on, or the first part of them."""

    run: int
    from_seq: int


class Completions(msgspec.Struct, frozen=True):
    """Names and their kinds, as IPython calls them."""

    names: list[tuple[str, str]]


class Complete(AgentRequest[Completions], frozen=True, tag="complete"):
    """Ask how ``text``, a name or a dotted path, may go on."""

    text: str


class NameDescription(msgspec.Struct, frozen=True):
    """The object behind a name on one rank."""

    type: str
    value: str
    """In few words, such as ``float32 (64, 10) on cuda:0``; empty where there are none."""
    signature: str
    doc: str
    source: str
    """The source code, where it was asked for and is known; else empty."""


class Described(msgspec.Struct, frozen=True):
    """The object behind a name; None where there is none."""

    found: NameDescription | None


class Describe(AgentRequest[Described], frozen=True, tag="describe"):
    """Ask what ``name``, or a dotted path, stands for."""

    name: str
    source: bool = False
    """Whether to send the source too."""


class Surroundings(msgspec.Struct, frozen=True):
    """The environment variables and frameworks of one rank."""

    variables: list[SeenVariable]
    frameworks: dict[str, FrameworkReport]
    """The report of each framework, by its name; a framework without anything to report is left out."""
    open: bool = False
    """Whether servers that ask for no password hear all users of the rank's host. One rank of a host finds out."""
    processors: Processors | None = None
    """The processors on which the rank may run now; None where Linux does not say."""


class SurroundingsRead(msgspec.Struct, frozen=True):
    """The rank's surroundings."""

    found: Surroundings


class ReadSurroundings(AgentRequest[SurroundingsRead], frozen=True, tag="surroundings"):
    """Ask which variables and frameworks the rank sees."""


class VariablesRead(msgspec.Struct, frozen=True):
    """The rank's variables, by name."""

    found: dict[str, NamedValue]
    left_out: int = 0
    """How many further variables there are."""


class ReadVariables(AgentRequest[VariablesRead], frozen=True, tag="variables"):
    """Ask what the user's variables hold: types, shapes, norms and digests, but no value."""

    names: list[str]
    """The variables, or dotted paths; empty for all variables."""
    seconds: float
    """How long the rank may read values; those that it does not reach get neither norm nor digest."""


class MemoryRead(msgspec.Struct, frozen=True):
    """The rank's memory."""

    found: RankMemory


class ReadMemory(AgentRequest[MemoryRead], frozen=True, tag="memory"):
    """Ask how much memory the rank has, and which names hold it."""

    most: int
    """The biggest pieces that the answer names."""
    seconds: float
    """How long the rank may look."""


class RecordRead(msgspec.Struct, frozen=True):
    """The record of the newest cell whose memory was recorded, or of the one that runs, so far; None before any."""

    found: RecordedMemory | None


class ReadMemoryRecord(AgentRequest[RecordRead], frozen=True, tag="memory_record"):
    """Ask for the memory that the rank has had over its newest recorded cell."""


AnyAgentRequest = (
    ReadPosition
    | ReleaseRank
    | ReadStack
    | ReachMemory
    | InterruptRank
    | ReadEvents
    | Complete
    | Describe
    | ReadSurroundings
    | ReadVariables
    | ReadMemory
    | ReadMemoryRecord
    | AnswerPrompt
    | NotePrompts
    | Evaluate
    | ReadLastError
    | AnyProfileRequest
    | AnySteeringRequest
    | AnyHealingRequest
)
"""The content of a :data:`~.messages.REQUEST_MESSAGE` to an agent."""


# To the watch.


class WatchRequest(Request[A], frozen=True):
    """A request that the watch of a host answers, whatever its ranks do."""


class SendSignal(WatchRequest[Done], frozen=True, tag="signal"):
    """Send a rank a signal."""

    rank: int
    signal: int
    reason: str = ""
    """Why the signal is sent, for the report of the rank's death."""
    pid: int = 0
    """The id of the process, as ranks' numbers change during a resize; 0: whichever process has the rank's number."""


class RenewWatch(WatchRequest[Done], frozen=True, tag="lease"):
    """Renew the lease of all ranks of the host."""


class InspectRank(WatchRequest[Stack], frozen=True, tag="stacks"):
    """Ask where a rank's main thread is, seen from outside; the answer takes up to five seconds."""

    rank: int


class SampleRank(WatchRequest[Sampled], frozen=True, tag="sample"):
    """Ask where a rank's main thread is over some seconds, seen from outside; the answer comes when they are over.

    The question is to be repeated once a second; the newest one is answered. Without it, sampling ends.
    """

    rank: int
    pid: int
    """The id of the rank's process."""
    number: str
    """The asker's own, the same in each repetition."""
    seconds: float
    """0: end the sampling."""


AnyWatchRequest = SendSignal | RenewWatch | InspectRank | SampleRank
"""The content of a :data:`~.messages.REQUEST_MESSAGE` to a watch."""

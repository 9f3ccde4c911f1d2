"""The vocabulary that every part speaks: what ranks say during a run.

Ranks append events; everything else (the notebook's view, the steward, the store, the sidebar) reads them.
An event is numbered per ``(world, run, rank)`` from 0 on, without holes, and is written to the rank's spool
before it is announced. Hence three promises, which readers build on:

* a reader that applied every number up to ``n`` has missed nothing up to ``n``;
* applying an event twice is harmless: the key ``(world, run, rank, seq)`` tells that it came before;
* exactly one :class:`Finished` ends what a rank says about a run, written by the rank or, when the rank died,
  by its watch. Nothing after it belongs to the run.

Announcements on IOPub are :class:`Batch` objects. A batch covers a span of numbers and may leave text out of it
(the reader gets totals and the last lines instead): that bounds the bytes on the wire while the spool keeps all.
A span that no batch covered was lost on the way and is asked for with ``read(run, from_seq)``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal

import msgspec

from .structs import readable

VERSION: Final = 1
"""Version of this vocabulary. It stands in every spool file's first event and in every batch."""

EVENTS_MESSAGE: Final = "dtrain_events"
"""Message type of a :class:`Batch` on a rank's IOPub channel."""

LOCAL: Final = "the local "
"""Begins the names of optimizers that no variable of the notebook holds, see :attr:`Finished.steps`."""

Outcome = Literal["ok", "error", "interrupted", "lost"]
"""How a run ended, on one rank or as a whole. ``lost``: the rank died, or can no longer be heard."""

RUNNING: Final = "running"
"""The word for a run that goes on, which has no outcome yet."""

OUTCOMES: Final = {
    "ok": "every rank ended its cell well",
    "error": "the cell failed on some rank",
    "interrupted": "a person or a timeout ended it",
    "lost": "a rank died, or can no longer be heard",
    RUNNING: "it goes on",
}
"""The one word for each way in which a run ends, or that it goes on, as everyone shows it: cells, lists and pages."""

PAUSES: Final = ("pause", "step")
"""Kinds of acts on a loop that leave the ranks where they stand, see :class:`Steered`."""

RankState = Literal["starting", "idle", "running", "waiting", "unreachable", "stopped", "dead"]
"""The state of a rank, in the words that people read."""

MimeBundle = dict[str, Any]
"""Data by MIME type, as in Jupyter's ``display_data``: text is text, binary is base64."""


class RunContext(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the cell of a run stands, and the other runs that it belongs to."""

    notebook: str = ""
    """The file of the notebook; empty where that is not known."""
    heading: str = ""
    """The heading above the cell in that file."""
    group: str = ""
    """The name that a person gave several runs in common, such as those of a sweep."""
    resumes: str = ""
    """The run whose training this one goes on with, as ``WORLD_ID/NUMBER``; empty for one that begins anew."""
    first_step: int = 0
    """The step with which its metrics go on then."""
    aside: bool = False
    """Whether it only prepares ranks, for one of our own verbs: lists leave it out."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The first event of every run on every rank."""

    pid: int
    host: str
    spool: str
    """Path, on the steward's machine, of the file that holds all events of this run on this rank."""
    version: int = VERSION
    source: str = ""
    """The cell, on the lowest rank that runs it; empty on the others."""
    ranks: list[int] = []
    """The ranks that run the cell, on the lowest of them."""
    cell: int | None = None
    """The number that the cell has in the notebook."""
    cell_id: str = ""
    """The id that the cell has in the notebook file, where that is known."""
    name: str = ""
    """The name that the person gave the run."""
    above: int = 0
    """The lines of the notebook's cell above ``source``, such as its magic: the numbers of lines count them."""
    elastic: bool = False
    """Whether the cell goes on without ranks that die: they do not make the run a lost one."""
    joins: int | None = None
    """The elastic run that this one's ranks join, each in the place of one that was lost in it."""
    together: str = ""
    """The ranks that run the cell, on each of them, such as ``0-3,7``: the lowest may begin last."""
    context: RunContext = RunContext()
    """On the lowest rank; the others leave it out."""


class Output(msgspec.Struct, frozen=True, tag="output", omit_defaults=True):
    """Text in the order in which it was written; boundaries between events mean nothing."""

    stream: Literal["stdout", "stderr"]
    text: str
    descriptor: int = 0
    """Where text of the stream's file descriptor is in it: how many bytes of that are in the rank's events by now."""
    log: bool = False
    """Whether native code of a library logged it; the cell does not show that, see ``Framework.is_log``."""


class Display(msgspec.Struct, frozen=True, tag="display"):
    """A rich output. With ``update`` it replaces the one of the same ``display_id`` on the same rank."""

    data: MimeBundle
    metadata: dict[str, Any] = {}
    display_id: str | None = None
    update: bool = False


class ClearOutput(msgspec.Struct, frozen=True, tag="clear_output"):
    """``IPython.display.clear_output`` was called; with ``wait`` it takes effect at the next display."""

    wait: bool = False


class Result(msgspec.Struct, frozen=True, tag="result"):
    """The value of the cell's last expression, as representations."""

    data: MimeBundle
    metadata: dict[str, Any] = {}
    execution_count: int = 0


class Frame(msgspec.Struct, frozen=True):
    """One frame of a traceback, outermost first."""

    file: str
    line: int
    function: str
    source: str
    """The source line, stripped; empty where it is not known."""
    cell: bool
    """Whether the frame is the cell's (or another cell's) own code rather than a library's."""


class Error(msgspec.Struct, frozen=True, tag="error"):
    """The exception that ended the cell on this rank."""

    ename: str
    evalue: str
    frames: list[Frame]
    notes: list[str] = []
    """``BaseException.add_note`` texts."""
    cause: str | None = None
    """``ename: evalue`` of the exception's cause or context, if any."""
    syntax: str | None = None
    """For a SyntaxError: the offending line with its caret."""
    members: list[Error] = []
    """The members of an ExceptionGroup that were kept."""
    left_out: int = 0
    """How many members were not kept."""
    waited: str = ""
    """The call that it came out of, such as ``all_reduce``, in which the rank waited for others; else empty."""
    released: bool = False
    """Whether ranks had been freed before: an exception out of such a call is no cause then."""


class Series(msgspec.Struct, frozen=True):
    """Points of one metric in the order in which they were logged: columns of equal length, little-endian."""

    name: str
    steps: bytes
    """int64"""
    times: bytes
    """float64: seconds since the epoch, by the clock of the rank's host."""
    values: bytes
    """float64: NaN and the infinities are values like others."""
    left_out: int = 0
    """Points of this span that are in the spool but were not sent: the wire was full."""


class Metrics(msgspec.Struct, frozen=True, tag="metrics"):
    """Points that were logged since the last such event, at most one :class:`Series` for each name."""

    series: list[Series]


class Gpu(msgspec.Struct, frozen=True):
    """One GPU as its driver sees it. Bytes, percent, degrees Celsius, watts; None: not available."""

    index: int
    utilisation: float | None
    used: int
    """Memory in use by all processes."""
    total: int
    reserved: int | None = None
    """Memory that this rank's framework holds, in use or not."""
    temperature: float | None = None
    power: float | None = None


class Sample(msgspec.Struct, frozen=True, tag="sample", omit_defaults=True):
    """The resources that this rank takes of its host, about once a second while a cell runs."""

    cpu: float
    """Per cent of one core since the last sample, with its workers; above 100 with several threads or processes."""
    rss: int
    """Bytes of memory that the rank's process holds."""
    step: int | None = None
    """The newest step of its metrics."""
    gpu: Gpu | None = None
    still: float = 0.0
    """Seconds for which the cell has not moved."""
    host: int = 0
    """Bytes of memory that its host has, for all its processes; 0 where unknown."""
    workers: int = 0
    """Processes that its code has started, such as those of a DataLoader."""
    workers_rss: int = 0
    """Bytes of memory that the :attr:`workers` hold; pages that several processes share count for each."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How far a loop is. A later one with the same ``bar`` replaces it."""

    bar: int
    """Tells the bars of a run apart, on this rank; bars of one loop have the same number on all ranks."""
    name: str
    done: float
    total: float | None
    """None: the number of iterations is not known."""
    rate: float | None
    """Iterations per second."""
    text: str
    """The bar as one line of text."""
    ended: bool = False


class PipelineStep(msgspec.Struct, frozen=True, tag="pipeline", omit_defaults=True):
    """The actions of one rank of a pipeline in one step of its schedule; about one step a second is reported."""

    number: int
    """Tells schedules of other kinds and sizes apart, in the order of their first steps; equal on all its ranks."""
    schedule: str
    """The name of the schedule, such as ``1F1B``."""
    step: int
    """The number of the step of this schedule in the run, from 0."""
    ranks: list[int]
    """The ranks of the pipeline's process group, by the framework's numbers."""
    place: int
    """The place of this rank among :attr:`ranks`."""
    stages: int
    microbatches: int
    began: float
    """Seconds since the epoch, by the clock of the rank's host."""
    actions: bytes
    """The actions, as :func:`jupyter_dtrain.core.pipelines.pack` encodes them."""
    theory: float | None = None
    """The share of idle time, 0 to 1, that the schedule has in theory; the first of the ranks reports it."""
    on_host: bool = False
    """Times are those at which the host launched what another device computes."""
    left_out: int = 0
    """Actions beyond those that one step may report."""


class Reading(msgspec.Struct, frozen=True, tag="reading", omit_defaults=True):
    """How this rank reads its data from one loader that it trains from; a later one replaces it."""

    loader: int
    """Counts the loaders of a run, in the order of their first steps; equal on all ranks that run the same code."""
    batch: int
    """Samples of a batch."""
    iterations: int | None = None
    """Batches of an epoch, where that is known."""
    accumulation: int = 1
    """Batches that the rank reads for one step of its optimizer."""
    replicas: list[int] | None = None
    """The ranks whose gradients are averaged with this one's, where that is known."""
    digests: list[int] = []
    """Digests of the first few batches: equal values have equal digests."""
    repeats: bool = False
    """Whether its sampler, which shuffles, has drawn the same order for two epochs."""


class CodeLine(msgspec.Struct, frozen=True, array_like=True):
    """How long the main thread was in one line of the user's code, or in what that called."""

    file: str
    """The name of a cell, such as ``cell [3]``, or a file."""
    line: int
    part: str
    """What it did there, see :attr:`StepParts.parts`."""
    seconds: float


class StepParts(msgspec.Struct, frozen=True, tag="step_parts", omit_defaults=True):
    """What the main thread of this rank did since the last such event, about once a second while a cell runs."""

    seconds: float
    """The time that was observed."""
    parts: dict[str, float]
    """The seconds of each part that there was, of :data:`jupyter_dtrain.core.step_time.PARTS`."""
    calls: dict[str, float] = {}
    """The seconds of communication, by the call in which the thread waited for other ranks."""
    lines: list[CodeLine] = []
    """The user's lines that took most of the time, the longest first."""
    delayed: float = 0.0
    """Seconds in which the thread could have gone on, but other threads had the processors."""
    step: int | None = None
    """The newest step of its metrics."""
    looks: int = 0
    """How often the thread was looked at."""
    memory: list[int] = []
    """Bytes of memory that the rank held, read at even intervals."""


class Checked(msgspec.Struct, frozen=True, tag="checked", omit_defaults=True):
    """The digests of a model's parts on this rank after a step, for a standing check."""

    name: str
    """The model's variable."""
    step: int
    """Counts the cell's steps, from 1; all ranks report the same steps."""
    digests: bytes
    """Eight bytes for each part; zeros for one that cannot be read."""
    parts: list[str] = []
    """The names of the parts, where they differ from those of the last report."""


class PromptOpened(msgspec.Struct, frozen=True, tag="prompt", omit_defaults=True):
    """The rank waits for a person: code of the cell has asked for a line of text."""

    number: int
    """Counts the questions of this rank in the run, from 1."""
    kind: Literal["input", "password", "debugger"]
    text: str
    """The question, such as ``Name? ``."""
    nth: int = 1
    """How often this rank has asked just this in the run; ranks whose question is the same are asked once."""
    place: str = ""
    """The line that asks, such as ``cell [3], line 12 in train``."""
    said: str = ""
    """What a debugger has printed since its last question."""


class PromptClosed(msgspec.Struct, frozen=True, tag="prompt_closed", omit_defaults=True):
    """The rank no longer waits for a person. What a person has typed is not in it, since that may be a password."""

    number: int
    """The number of the question."""
    how: Literal["answered", "interrupted"] = "answered"
    by: str = ""
    """Where the answer came from; empty for the notebook whose cell it is."""


class Acted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of an act, or of one stage of it, on one rank."""

    ok: bool = True
    text: str = ""
    """What it has printed and shown, or the sentence that says what it has done, or why it was not done."""
    error: Error | None = None
    """What the person's own code has raised."""
    seconds: float = 0.0


class Steered(msgspec.Struct, frozen=True, tag="steered", omit_defaults=True):
    """A person's act on the rank's loop between two of its steps, and how far it is."""

    number: int
    """The number of the act, which counts the acts of the world."""
    phase: Literal["held", "begun", "done", "left"]
    """The rank stands between two steps; it begins an act, or is done with it; it goes on.

    Another act than the one that has the rank stand may begin meanwhile.
    """
    step: int = 0
    """The step after which it stands, counted from the beginning of the cell."""
    at: int | None = None
    """The newest step of the rank's metrics by then, which charts show; None where it has logged none."""
    kind: str = ""
    """What kind of act it is, where it begins: ``between``, ``set``, ``pause``, …"""
    words: str = ""
    """What was asked for, where it begins: ``set opt.lr=1e-4``."""
    by: str = ""
    """Who has asked for it, in words."""
    found: Acted | None = None
    """What became of an act that is done."""


ConfigOrigin = Literal["library", "cell", "sent", "set"]
"""Where a value of a run's configuration comes from; what comes later in this list replaces what comes before.

``library``: an object of a library has it, such as an optimizer. ``cell``: the cell assigns it, or passes it to a
function. ``sent``: the notebook sent it with the cell. ``set``: ``jupyter_dtrain.config()`` has said it.
"""


class Configured(msgspec.Struct, frozen=True, tag="configured"):
    """Hyper-parameters of the run, as this rank knows them; a later value of a name replaces an earlier one."""

    values: dict[str, Any]
    """JSON, by name: numbers, text, booleans, None, and small lists and dicts of these."""
    origin: ConfigOrigin


class Environment(msgspec.Struct, frozen=True, tag="environment", omit_defaults=True):
    """What this rank's process runs in. No environment variable is part of it."""

    python: str
    """Its version, such as ``3.11.9``."""
    packages: dict[str, str] = {}
    """The versions of the packages that are imported, by the name under which they are installed."""
    devices: list[str] = []
    """The devices that the rank may use, such as ``NVIDIA H200 (139 GiB)``."""
    command: list[str] = []
    """The program and its arguments, where the run is a script's; empty for a cell."""
    folder: str = ""
    """The working folder."""
    platform: str = ""
    """The operating system and the kind of processor."""
    cpus: int = 0
    """Processors that the rank may use."""
    memory: int = 0
    """Bytes of memory of its host."""


MediaKind = Literal["image", "figure", "histogram", "text", "table", "audio"]
"""What kind of thing was logged beside numbers; ``figure``: a drawn one, or a picture that the cell displayed."""


class MediaLogged(msgspec.Struct, frozen=True, tag="media", omit_defaults=True):
    """Something that is more than a number, logged at a step. The wire leaves its bytes out; the spool has them."""

    name: str
    kind: MediaKind
    step: int
    number: int = 0
    """Counts what was logged together under one name at one step."""
    mime: str = ""
    """``image/png``, ``audio/wav``, ``text/plain``; ``application/json`` for histograms and tables."""
    data: bytes = b""
    caption: str = ""
    left_out: int = 0
    """How many things were logged under this name before, since the last such event, and not kept."""
    note: str = ""
    """How the data is less than what was logged, such as ``a sample of 1,000,000 of 100,000,000 values``."""


class CommMessage(msgspec.Struct, frozen=True, tag="comm"):
    """A message from a widget that was made in a rank to its other half in the browser, or the other way round."""

    kind: Literal["comm_open", "comm_msg", "comm_close"]
    comm_id: str
    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    target: str = ""
    """For ``comm_open``: what is to answer, ``jupyter.widget`` for widgets."""
    buffers: list[bytes] = []


class Dropped(msgspec.Struct, frozen=True, tag="dropped"):
    """The spool reached its cap (or its disk is full): this much text was counted but not kept."""

    events: int
    bytes: int
    reason: str


class Spent(msgspec.Struct, frozen=True):
    """How the main thread of a rank spent the seconds of a cell."""

    seconds: float
    communication: float
    """Seconds in which the thread waited for other ranks."""
    data: float
    """Seconds in which the thread fetched batches from a data loader."""
    processor: float
    """Seconds in which the thread could have gone on, but other threads had the processors."""


class Finished(msgspec.Struct, frozen=True, tag="finished", omit_defaults=True):
    """The last event of every run on every rank."""

    outcome: Outcome
    elapsed: float
    """Seconds from the start of the cell on this rank."""
    words: str = ""
    """For ``lost``: what happened to the rank, in words."""
    regroup: bool = False
    """The rank's process group is unusable or half made: the next set-up must start a new generation."""
    steps: dict[str, int] = {}
    """How many steps each optimizer has made, by its variable.

    It is ``the local NAME`` where no variable of the notebook holds it, and ``a TYPE`` where a library has made it.
    """
    spent: Spent | None = None
    """How the rank spent its time, where the cell asked for that."""
    threads: Literal["", "alive", "waiting"] = ""
    """Whether threads of the cell live on, and whether one of them waits for other ranks in a collective."""


Body = (
    Started
    | Output
    | Display
    | ClearOutput
    | Result
    | Error
    | Metrics
    | Sample
    | Progress
    | PipelineStep
    | Reading
    | StepParts
    | Checked
    | PromptOpened
    | PromptClosed
    | Steered
    | Configured
    | Environment
    | MediaLogged
    | CommMessage
    | Dropped
    | Finished
)


class Event(msgspec.Struct, frozen=True):
    """One thing that a rank said during a run."""

    run: int
    rank: int
    seq: int
    time: float
    """Seconds since the epoch, by the clock of the rank's host."""
    body: Body


class Totals(msgspec.Struct, frozen=True):
    """How much a rank has printed during a run so far, and the last lines of it."""

    bytes: int = 0
    lines: int = 0
    tail: list[str] = []
    """At most the last 20 lines, each at most 400 characters, the last one perhaps unfinished."""


class Batch(msgspec.Struct, frozen=True):
    """Events of one rank and run, covering the numbers ``first`` to ``last``, both included.

    ``events`` is ascending and may leave out :class:`Output` events of the span; then ``totals`` is set. A
    :class:`Metrics` event may have fewer points than it has in the spool (``left_out``).
    """

    run: int
    rank: int
    first: int
    last: int
    events: list[Event]
    totals: Totals | None = None
    version: int = VERSION


def worst(outcomes: Collection[str | None]) -> Outcome:
    """The outcome of a run whose ranks ended with ``outcomes``."""
    found: tuple[Outcome, ...] = ("lost", "interrupted", "error")
    return next((outcome for outcome in found if outcome in outcomes), "ok")


def encode(event: Event) -> bytes:
    """One spool line, with its newline."""
    return _encoder.encode(event) + b"\n"


def encodable(body: Body) -> Body:
    """``body`` with question marks for lone surrogates, which no encoding takes."""
    return msgspec.convert(_encodable(msgspec.to_builtins(body)), readable(type(body)))


def _encodable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {_encodable(key): _encodable(one) for key, one in value.items()}
        case list() | tuple():
            return [_encodable(one) for one in value]
    return value


def decode(line: bytes) -> Event:
    """The event of one spool line. Raises :class:`msgspec.DecodeError` for anything else."""
    return _decoder.decode(line)


def to_wire(batch: Batch) -> dict[str, Any]:
    """``batch`` as the JSON content of a Jupyter message."""
    wire: dict[str, Any] = msgspec.to_builtins(batch)
    return wire


def from_wire(content: dict[str, Any]) -> Batch:
    """The batch in a message's content. Raises :class:`msgspec.ValidationError` for anything else."""
    return msgspec.convert(content, readable(Batch))


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(readable(Event))

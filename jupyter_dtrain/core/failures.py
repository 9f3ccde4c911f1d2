"""The failure table: for each situation what is noticed and by which part, what is done and until when, and the words.

Here are the table's vocabulary and the rows that every world has. A framework adds rows of its own
(:attr:`.Declaration.situations`), and :func:`situations` joins them all. ``docs/failures.md`` is made from the table
(``scripts/failures_page.py``): what a user sees and does, and in an annex what the parts do until when. The fault suite
plays every row and holds the world to it. Times are settings, or seconds on top of settings.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from .declarations import declarations, load_rows
from .settings import Settings

After = Literal["whole", "replaced", "busy", "dead", "doubtful", "empty", "unhealable", "ended"]
"""The state of the world once the cell has ended."""

AFTER: dict[After, str] = {
    "whole": "cells run on all ranks, with the same objects.",
    "replaced": "cells run on all ranks. The others have the same objects, and the new rank has those of the cells "
    "that it has run.",
    "busy": "the blocked ranks refuse cells until their work ends or `%distributed kill` ends them. The other ranks "
    "take cells (`-r`).",
    "dead": "the world refuses cells on all ranks. The living ranks take cells (`-r`). `%distributed replace` replaces "
    "the dead rank, and the others keep everything; `%distributed restart` starts fresh ranks.",
    "doubtful": "the world refuses cells on all ranks. The living ranks take cells (`-r`). `%distributed replace` "
    "replaces the dead rank, and the others keep everything, or it says that Open MPI connects no new process any "
    "more; `%distributed restart` starts fresh ranks.",
    "empty": "no rank of that host is left. The world refuses cells on all ranks, and `%distributed restart` starts "
    "fresh ranks.",
    "unhealable": "cells run on all ranks, with the same objects. `%distributed restart` starts another `mpiexec`.",
    "ended": "nothing of the world is left. `%distributed start` starts another one.",
}
"""Sentences that go on after a time, such as "Afterwards, "."""

STOP: Final = "Press Stop, and correct the cell."

DO: dict[After, str] = {
    "whole": "Correct the cell, and run it again.",
    "replaced": "Nothing.",
    "busy": "Press Stop. Ranks that stay busy: `%distributed kill RANK`.",
    "dead": "`%distributed replace`.",
    "doubtful": "`%distributed replace`; if it says that Open MPI connects no new process any more, "
    "`%distributed restart`.",
    "empty": "`%distributed restart`.",
    "unhealable": "Go on; save what you need before `%distributed restart`, which starts another `mpiexec`.",
    "ended": "`%distributed start`.",
}
"""The next step of a person, by the state of the world; a row may name another."""


class Span(NamedTuple):
    """A time: the sum of some settings and some seconds."""

    settings: tuple[str, ...]
    seconds: float

    def of(self, settings: Settings) -> float:
        """The time in seconds, with the values of ``settings``."""
        return self.seconds + sum(float(getattr(settings, name)) for name in self.settings)

    def __str__(self) -> str:
        if not self.settings:
            return f"{self.seconds:g} s"
        terms = [*(f"`{name}`" for name in self.settings), *([f"{self.seconds:g} s"] if self.seconds else [])]
        return f"{' + '.join(terms)} ({self.of(Settings()):g} s)"


class Step(NamedTuple):
    """Something that a part does, in sentences that go on after its time: "the main process …"."""

    at: Span
    """Since the situation came about or, in :data:`INTERRUPT`, since the interrupt."""
    does: str
    latest: bool = False
    """Whether ``at`` is the latest time; else the step is taken at that time."""


class Situation(NamedTuple):
    """A row of the table."""

    name: str
    what: str
    noticed: Step
    """The part that notices it, until when, and how."""
    steps: tuple[Step, ...]
    ends: Span | None
    """Until when the cell has ended by itself; None: it goes on until it is interrupted or what holds it ends."""
    outcome: Literal["ok", "error", "lost"] | None
    """The outcome of the cell, if it ended by itself."""
    words: tuple[str, ...]
    """Parts of what the user reads: ``{rank}`` is the rank that it happened to, ``{last}`` is the highest one,
    ``{call}`` is what the others wait in, ``{were}`` fits their number, ``{hang}`` is the setting ``hang_notice``."""
    kept: str
    """A sentence that says what is kept, such as variables and output."""
    after: After
    """The state of the world once the cell has ended by itself."""
    interrupted: After
    """The state of the world if the cell was interrupted instead."""
    framework: str = ""
    """The only framework in which this can come about, by its name; empty: any."""
    do: str = ""
    """The next step of a person, where it is not that of :data:`DO`."""

    @property
    def advice(self) -> str:
        """The next step of a person."""
        if self.do or self.ends is not None or self.outcome is not None:
            return self.do or DO[self.after]
        return DO["busy"] if self.interrupted == "busy" else STOP


def span(*parts: str | float) -> Span:
    """The sum of the settings with these names and of ``seconds``."""
    return Span(
        tuple(part for part in parts if isinstance(part, str)),
        sum(part for part in parts if not isinstance(part, str)),
    )


def after(at: Span, does: str) -> Step:
    """A step that is taken at a time."""
    return Step(at, does)


def by(at: Span, does: str) -> Step:
    """A step that is taken at that time at the latest."""
    return Step(at, does, latest=True)


AT_ONCE = span(0.5)

RELEASE = after(
    span("release_grace"),
    "the main process asks all ranks whether they wait for others. If one does, the main process frees every waiting "
    "rank, through the rank's framework. It asks again every 0.5 s until the run is over on every rank.",
)
STILL = by(span("hang_notice"), "every monitor reports, once a second, for how long its rank has not moved.")
TELL_HANG = by(
    span("hang_notice", 2.0),
    "the client shows where the ranks are, in groups, and which collectives do not fit together. It ends nothing.",
)
LOST = by(
    AT_ONCE,
    "the parent process writes the rank's last words and its end into the rank's log, ends the processes that the rank "
    "had started, and reports to the main process. The main process informs every client.",
)
ERROR_REPORTED = by(AT_ONCE, "the rank's monitor reports the error, and its parent process informs the main process.")
EXIT_SEEN = by(AT_ONCE, "the parent process sees the rank's exit status.")

EVERYTHING = "All ranks keep their variables."
OF_THE_OTHERS = "The other ranks keep their variables. All that the lost rank had reported is kept, too."
UNTIL_KILLED = "All ranks keep their variables, until you kill the blocked ranks."
LOGS_ALONE = "Only the logs and the stored runs are left."
ECHO = "waited in {call} and {were} released"


def dies(name: str, what: str, words: tuple[str, ...], framework: str = "") -> Situation:
    """A rank dies, and others wait for it."""
    ends = span("release_grace", 2.0)
    return Situation(
        name, what, EXIT_SEEN, (LOST, RELEASE), ends, "lost", words, OF_THE_OTHERS, "dead", "dead", framework
    )


def hangs(
    name: str,
    what: str,
    words: tuple[str, ...],
    kept: str = EVERYTHING,
    interrupted: After = "whole",
    framework: str = "",
) -> Situation:
    """No rank moves, and all of them can say so."""
    return Situation(name, what, STILL, (TELL_HANG,), None, None, words, kept, "whole", interrupted, framework)


def _goes_on(name: str, what: str, steps: tuple[Step, ...], words: tuple[str, ...], seconds: float) -> Situation:
    """A rank of an elastic cell dies, and the others wait for nobody."""
    joins = by(
        span(seconds),
        "the new rank runs the set-up cells (`--replay`), and then the cell, as a run of its own that joins the first. "
        "The others go on meanwhile.",
    )
    return Situation(
        name,
        what,
        EXIT_SEEN,
        (LOST, *steps, joins),
        span(seconds, 2.0),
        "ok",
        ("rank {rank} was killed (SIGKILL)", "Rank {rank} will be replaced while the others go on.", *words),
        OF_THE_OTHERS,
        "replaced",
        "replaced",
    )


_FORGOTTEN = after(
    span("keep_alive"),
    "the main process finds that no client has been in touch, and ends the world. A client that attaches before keeps "
    "it.",
)
_UNTIL_FORGOTTEN = (
    "All ranks keep their variables until then. `%distributed attach` brings back all that the ranks have reported."
)


_ATTACH = "`%distributed attach` in another kernel: it shows all that came meanwhile."


def _loses_kernel(name: str, what: str) -> Situation:
    """The client is gone; another may join."""
    steps = (
        after(
            span(0.0), "until then, the main process frees ranks that wait for a failed rank, as it does for a client."
        ),
    )
    row = Situation(name, what, _FORGOTTEN, steps, span(1.0), "ok", (), _UNTIL_FORGOTTEN, "whole", "whole")
    return row._replace(do=_ATTACH)


_HEAL = by(AT_ONCE, "the client asks the main process for a replacement that leaves the run alone.")

SITUATIONS: tuple[Situation, ...] = (
    Situation(
        "raises",
        "The cell raises on some ranks, and others wait for them.",
        ERROR_REPORTED,
        (RELEASE,),
        span("release_grace", 1.0),
        "error",
        ("ZeroDivisionError on rank {rank}", ECHO),
        EVERYTHING,
        "whole",
        "whole",
    ),
    Situation(
        "raises-everywhere",
        "The cell raises on all ranks.",
        by(AT_ONCE, "every rank's monitor reports the error."),
        (),
        span(1.0),
        "error",
        ("ZeroDivisionError on ranks 0-{last}",),
        EVERYTHING,
        "whole",
        "whole",
    ),
    Situation(
        "exits",
        "The cell calls `sys.exit` on some ranks, and others wait for them.",
        by(AT_ONCE, "the rank's monitor reports `SystemExit` as an error: a rank does not end with a cell."),
        (RELEASE,),
        span("release_grace", 1.0),
        "error",
        ("SystemExit on rank {rank}", ECHO),
        EVERYTHING,
        "whole",
        "whole",
    ),
    Situation(
        "memory",
        "The cell runs out of memory on a rank (`MemoryError`, or a GPU's out-of-memory error), and others wait.",
        by(AT_ONCE, "the rank's monitor reports the error."),
        (
            by(
                AT_ONCE,
                "the monitor drops the frames that the error holds, collects garbage, empties the framework's cache, "
                "and reports how much memory came free.",
            ),
            RELEASE,
        ),
        span("release_grace", 1.5),
        "error",
        ("MemoryError on rank {rank}", ECHO),
        EVERYTHING,
        "whole",
        "whole",
    ),
    hangs("collectives", "Ranks are in different collectives.", ("No rank has moved for {hang} s.", "waiting in ")),
    hangs(
        "never-arrives",
        "A rank never reaches the point where the others wait, such as the set-up of a group or a collective.",
        ("No rank has moved for {hang} s.", "waiting in {call}", "Rank {rank}: "),
    ),
    Situation(
        "loops",
        "A rank is in an endless loop of Python code, and others wait.",
        after(span(0.0), "the client shows nothing: a rank that uses a processor may be working."),
        (),
        None,
        None,
        (),
        EVERYTHING,
        "whole",
        "whole",
    ),
    hangs(
        "native",
        "A rank is blocked in native code that has released the interpreter lock, and others wait.",
        ("No rank has moved for {hang} s.", "waiting in {call}", "Rank {rank}: "),
        UNTIL_KILLED,
        interrupted="busy",
    ),
    Situation(
        "native-locked",
        "A rank is blocked in native code that holds the interpreter lock, and others wait.",
        by(
            span("hang_notice"),
            "the client gets no answer from the rank, and its parent process inspects it from outside, with py-spy.",
        ),
        (TELL_HANG,),
        None,
        None,
        ("No rank has moved for {hang} s.", "waiting in {call}", "Rank {rank}: in pthread_mutex_lock"),
        UNTIL_KILLED,
        "whole",
        "busy",
    ),
    Situation(
        "stopped",
        "A rank is stopped (SIGSTOP), and others wait.",
        by(
            AT_ONCE,
            "the parent process reports it to the main process, and the rank's state is `stopped`. The "
            "main process never counts such a rank as dead.",
        ),
        (TELL_HANG,),
        None,
        None,
        ("No rank has moved for {hang} s.", "Rank {rank}: stopped (SIGSTOP); SIGCONT lets it go on"),
        EVERYTHING,
        "whole",
        "busy",
    ),
    dies(
        "killed",
        "A rank is killed (SIGKILL, which Linux also sends when memory is short), and others wait.",
        ("rank {rank} was killed (SIGKILL)", ECHO),
    ),
    dies(
        "segfault",
        "A rank crashes (segmentation fault, abort), and others wait.",
        ("rank {rank} crashed (SIGSEGV), a fault in native code", ECHO),
    ),
    dies(
        "exit-0",
        "A rank ends itself with `os._exit(0)`, and others wait.",
        ("rank {rank} ended with exit code 0 (os._exit or a native exit)", ECHO),
    ),
    dies(
        "exit-3",
        "A rank ends itself with another exit code, and others wait.",
        ("rank {rank} ended with exit code 3", ECHO),
    ),
    Situation(
        "slot-killed",
        "The process that `mpiexec` has started for a rank is killed (SIGKILL), and others wait.",
        by(
            AT_ONCE,
            "the parent process notices that the process is gone, and ends the rank, which has a second for that.",
        ),
        (
            by(span(2.0), "the main process counts the rank as dead, and informs every client."),
            by(span("release_grace", 3.0), "the main process frees every waiting rank, as above."),
        ),
        span("release_grace", 6.0),
        "lost",
        ("rank {rank} was killed (SIGTERM), mpiexec has ended its place in MPI", ECHO),
        OF_THE_OTHERS,
        "doubtful",
        "doubtful",
    ),
    Situation(
        "watch-killed",
        "The parent process of all ranks of a host is killed (SIGKILL).",
        after(span(0.0), "Linux ends the ranks together with their parent process (parent-death signal)."),
        (by(AT_ONCE, "the main process counts the host's ranks as dead, and informs every client."),),
        span(3.0),
        "lost",
        ("rank {rank} ended for an unknown reason: its parent process is gone",),
        LOGS_ALONE,
        "empty",
        "empty",
    ),
    Situation(
        "disk-full",
        "The disk is full, or a rank's log has reached a limit.",
        by(AT_ONCE, "the rank's monitor fails to write the rank's log."),
        (by(AT_ONCE, "the monitor says so in the cell and keeps the last 4 MB in memory."),),
        span(1.5),
        "ok",
        ("rank {rank}: the log cannot be written",),
        EVERYTHING,
        "whole",
        "whole",
        do="Free space. The cell goes on.",
    ),
    Situation(
        "save-killed",
        "A rank dies while all ranks save a snapshot.",
        EXIT_SEEN,
        (LOST, RELEASE),
        span("release_grace", 2.0),
        "lost",
        ("rank {rank} was killed (SIGKILL)",),
        f"{OF_THE_OTHERS} The snapshot before it is whole, and is the one that loads.",
        "dead",
        "dead",
    ),
    Situation(
        "save-no-disk",
        "The disk is full while ranks save a snapshot.",
        by(AT_ONCE, "the rank that cannot write tells the others."),
        (by(AT_ONCE, "all ranks raise the reason, and what was written is removed."),),
        span(2.0),
        "error",
        ("cannot be written",),
        f"{EVERYTHING} The snapshot before it is whole.",
        "whole",
        "whole",
        do="Free space, and save again.",
    ),
    Situation(
        "steward-killed",
        "The main process is killed.",
        by(
            span(1.5),
            "the client notices that the process is gone. By then Linux has ended `mpiexec` and all ranks "
            "(parent-death signal).",
        ),
        (by(span(3.0), "the guard ends the world's remaining processes and removes its folders."),),
        span(3.0),
        "lost",
        ("its main process has ended",),
        LOGS_ALONE,
        "ended",
        "ended",
    ),
    Situation(
        "controller-killed",
        "ipyparallel's controller is killed, and with it the way to the ranks.",
        by(span(1.5), "the main process notices that the process is gone."),
        (by(span("stop_timeout", 3.0), "the main process ends all ranks and removes the world's folders."),),
        span(3.0),
        "lost",
        ("ipyparallel's controller was killed (SIGKILL)",),
        LOGS_ALONE,
        "ended",
        "ended",
    ),
    Situation(
        "mpiexec-killed",
        "`mpiexec` is killed.",
        by(span(1.5), "the main process notices that the process is gone."),
        (by(span(1.5), "the main process informs every client. The parent processes still report how ranks end."),),
        span(1.0),
        "ok",
        ("mpiexec has ended (SIGKILL)",),
        EVERYTHING,
        "unhealable",
        "unhealable",
    ),
    _loses_kernel("kernel-killed", "The notebook's kernel is killed or crashes while a cell runs."),
    _loses_kernel("kernel-restarted", "The notebook's kernel is restarted while a cell runs."),
    Situation(
        "kernel-shut-down",
        "The notebook's kernel is shut down for good while a cell runs.",
        by(AT_ONCE, "the client receives the `shutdown_request`."),
        (
            by(AT_ONCE, "the client asks the main process to end the world."),
            by(
                span("stop_timeout", 3.0),
                "the main process ends all ranks, which end their cells first, and removes the world's folders.",
            ),
        ),
        span("stop_timeout", 3.0),
        "lost",
        (),
        LOGS_ALONE,
        "ended",
        "ended",
    ),
    dies(
        "prompt-killed",
        "A rank is killed (SIGKILL) at a prompt, such as `input()` or a debugger's, and others wait for it.",
        ("rank {rank} was killed (SIGKILL)", ECHO),
    ),
    Situation(
        "prompt-peer-failed",
        "The cell raises on a rank while another rank is at a prompt.",
        ERROR_REPORTED,
        (
            RELEASE,
            after(
                span(0.0),
                "the prompt stays open. The rank there goes on once it is answered, and is released when it waits for "
                "others.",
            ),
        ),
        None,
        "error",
        ("ZeroDivisionError on rank {rank}", ECHO),
        EVERYTHING,
        "whole",
        "whole",
        do="Answer the prompt, or press Stop.",
    ),
    Situation(
        "prompt-kernel-killed",
        "The notebook's kernel is killed or crashes while a rank is at a prompt.",
        _FORGOTTEN,
        (
            after(
                span(0.0),
                "until then, the rank waits for its answer. A client that attaches sees what it asks "
                "(`Session.prompts`) and answers it (`%distributed prompt`, `Session.answer`).",
            ),
        ),
        None,
        "ok",
        (),
        _UNTIL_FORGOTTEN,
        "whole",
        "whole",
        do="`%distributed attach` in another kernel, and `%distributed prompt`, which answers.",
    ),
    Situation(
        "prompt-page-closed",
        "The notebook's page is closed or reloaded while a rank is at a prompt.",
        after(span(0.0), "nobody notices: the kernel waits for the run, and the rank for its answer."),
        (
            after(
                span(0.0),
                "Jupyter does not show the input box again. The cell's panel and the sidebar have a field for the "
                "answer, and the kernel then withdraws its own question.",
            ),
        ),
        None,
        "ok",
        (),
        EVERYTHING,
        "whole",
        "whole",
        do="Answer in the cell's panel or in the sidebar.",
    ),
    dies(
        "between-killed",
        "A rank is killed (SIGKILL) while it runs the code of `%distributed between`, and others wait for it.",
        ("rank {rank} was killed (SIGKILL)", "Rank {rank} has died meanwhile. It may have been done on some", ECHO),
    )._replace(
        steps=(
            LOST,
            by(AT_ONCE, "the main process ends the act, and the other ranks go on with their loops."),
            RELEASE,
        ),
    ),
    Situation(
        "between-ends-first",
        "A rank ends the cell before the step at which the ranks were to run the code of `%distributed between`.",
        by(AT_ONCE, "the main process asks the ranks how far they are, and one says that it has ended the cell."),
        (
            by(
                AT_ONCE,
                "the main process ends the act, and the ranks that stand at that step already go on with their loops. "
                "No rank has run the code.",
            ),
        ),
        span(1.0),
        "ok",
        ("Rank {rank} has ended the cell. Nothing was changed.",),
        EVERYTHING,
        "whole",
        "whole",
        do="Nothing; the loops go on. Choose an earlier step the next time.",
    ),
    dies(
        "paused-killed",
        "A rank is killed (SIGKILL) while the loop is paused, and others wait for it when they go on.",
        ("rank {rank} was killed (SIGKILL)", ECHO),
    )._replace(
        steps=(
            LOST,
            by(AT_ONCE, "the main process ends the pause, and the other ranks go on with their loops."),
            RELEASE,
        ),
    ),
    Situation(
        "paused-kernel-killed",
        "The notebook's kernel is killed or crashes while the loop is paused.",
        _FORGOTTEN,
        (
            after(
                span(0.0),
                "until then, the ranks stand where they are. A client that attaches sees the pause, and ends it "
                "(`%distributed resume`).",
            ),
        ),
        None,
        "ok",
        (),
        _UNTIL_FORGOTTEN,
        "whole",
        "whole",
        do="`%distributed attach` in another kernel, and `%distributed resume`.",
    ),
    _goes_on(
        "elastic-killed",
        "A rank of a cell with `--elastic` is killed (SIGKILL).",
        (_HEAL,),
        ("this cell as run",),
        20.0,
    ),
    _goes_on(
        "elastic-new-killed",
        "A rank of a cell with `--elastic` is killed, and the process that replaces it is killed while it joins.",
        (_HEAL, after(span(0.0), "the client does the same again for the new rank. It gives up after three deaths.")),
        ("this cell as run",),
        40.0,
    ),
)
"""The rows that every world has, whatever its cells import."""


def situations() -> tuple[Situation, ...]:
    """The whole table: the rows that every world has, then those of each framework that is installed, by its name."""
    return (*SITUATIONS, *load_rows(one.situations for one in declarations()))


INTERRUPT: tuple[Step, ...] = (
    after(
        span(0.0),
        "the client sends SIGINT to every rank, through the rank's monitor, and repeats it every 0.5 s until the rank "
        "takes it. The monitor also sends SIGINT, once, to the processes that the cell has started. When the cell has "
        "ended on the rank, the monitor ends those that are left: with SIGTERM after 2 s, with SIGKILL 1 s later.",
    ),
    after(
        span("interrupt_release"), "the main process frees the ranks that wait for others, and does so again every 2 s."
    ),
    after(
        span("interrupt_raise"),
        "the client shows where the remaining ranks are. It has their monitors raise `CellStopped` in their cells, "
        "every 0.5 s; `except KeyboardInterrupt` and `except Exception` do not catch it. Processes that the cell has "
        "started get SIGTERM then, and SIGKILL 0.5 s later.",
    ),
    after(
        span("interrupt_timeout"),
        "the client ends the cell and names the ranks that are still busy, with the line that kills them. With "
        "`--force`, it kills them itself.",
    ),
)
"""The steps after Stop, ``%distributed interrupt`` or a ``--timeout``, one after the other, until all ranks have
ended the cell. A second press takes the steps up to the exception at once and ends the cell a second later; a third
ends it."""

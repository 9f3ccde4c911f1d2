"""The causes of a run's failure, in words: one message for each distinct cause, with the ranks that share it.

The root comes before its echoes: exceptions that say something of their own first, then lost ranks, then exceptions
that came when a rank had died or ranks had been released, then ranks that were interrupted, then ranks that waited for
another one which had gone, then ranks that are still busy.
Pure functions of a run that has ended; they do not fail on a run that is incomplete.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from .declarations import echoes, fixes
from .errors import RanksError, package_gone
from .events import LOCAL
from .gpus import fault_in, fault_lines
from .notices import anchor_of_class, anchor_of_error, anchors_in, pointer
from .world import count_ranks, format_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from .events import Error, Frame, Outcome
    from .run import Run

Seen = Literal["sent", "running", "asking", "held", "ok", "error", "released", "interrupted", "dead"]
"""The state of a rank in a run, in the words that people read: a run is lost, and a rank is dead."""

QUIT: Final = "CellQuit"
"""The name of the exception by which a person ends a cell at a debugger's prompt."""

IN_FULL: Final = 4
"""How many distinct errors are shown with their tracebacks; the others get a line each."""

IN_BRIEF: Final = 16
"""How many distinct errors get such a line."""

LEFT: Final = "this client has left it"
"""Why a run is lost to a client that has left its world."""

_NAMED: Final = 3  # causes in a summary
_CONTEXT: Final = 2  # source lines around a frame's line
_WIDTH: Final = 200  # characters of a message in a line that holds others too

_ALIKE: Final = 64  # distinct errors that differ in numbers alone, with which one more is compared

_RED: Final = "\x1b[31m"
_GREEN: Final = "\x1b[32m"
_DIM: Final = "\x1b[2m"
_BOLD: Final = "\x1b[1m"
_OFF: Final = "\x1b[0m"
_NEWLINE: Final = "\n"
_COLOURS = re.compile(r"\x1b\[\d*m")

_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_PASSING = re.compile(r"0x[0-9A-Fa-f]{4,}|\[?\d+\.\d+\.\d+\.\d+\]?:\d+|(?<=\bpid )\d+|(?<=\bpid\(s\) )\d+(?:, \d+)*")
"""Text that differs whenever a process runs: addresses of memory and of ports, and pids."""
_LIBRARY = re.compile(r".*/(?:site-packages|dist-packages|lib/python3\.\d+t?)/")


class DistributedError(RanksError):
    """A cell failed on some ranks, or ranks were lost while it ran.

    ``run`` holds everything that the ranks said; ``ranks`` are those that did not end well.
    """

    def __init__(self, run: Run) -> None:

        self.run = run
        self.ranks = sorted(rank for rank, outcome in run.outcomes.items() if outcome != "ok")
        super().__init__(summary(run))

    def _render_traceback_(self) -> list[str]:

        return blocks(self.run)


class DistributedInterrupt(KeyboardInterrupt):
    """A person interrupted a cell. ``run`` holds it; ``busy`` are the ranks that had not ended by the deadline.

    It is a :class:`KeyboardInterrupt`, so that it ends a script or *Run All* as Ctrl-C does, and no
    :class:`.DtrainError`: ``except Exception`` lets it pass.
    """

    def __init__(self, run: Run) -> None:

        self.run = run
        self.busy = list(run.busy)
        super().__init__(summary(run))

    def _render_traceback_(self) -> list[str]:

        return blocks(self.run)


class RunTimeout(DistributedError, TimeoutError):
    """The cell took longer than its ``timeout``, and was interrupted; or :meth:`.Run.result` has waited long enough.

    In the second case the run goes on: ``error.run.done`` is false.
    """


def failure_of(run: Run) -> DistributedError | DistributedInterrupt | None:
    """The exception that tells how ``run``, which is over, did not end well; None where it ended well."""
    if run.outcome == "interrupted":
        return RunTimeout(run) if run.timed_out else DistributedInterrupt(run)
    return None if run.outcome == "ok" else DistributedError(telling(run))


def failure_so_far(run: Run) -> DistributedError | DistributedInterrupt | None:
    """As :func:`failure_of`; for a run that has not ended, the exception that says so."""
    return failure_of(run) if run.done else RunTimeout(run)


class LeftRunning(KeyboardInterrupt):
    """The kernel is being restarted or shut down, and nobody has interrupted ``run``."""

    def __init__(self, run: Run, world: str) -> None:

        super().__init__(
            f"This kernel is being restarted or shut down. Run {run.number} goes on if its world does: "
            f"%distributed attach {world} shows all of it."
        )

    def _render_traceback_(self) -> list[str]:

        return [str(self), pointer([anchor_of_error(type(self))])]


@dataclass
class _Cause:
    """An exception that some ranks share."""

    error: Error
    ranks: list[int]
    interrupt: bool
    """Whether an interrupt reached these ranks; a cell may raise KeyboardInterrupt by itself."""

    @property
    def echo(self) -> bool:
        return is_echo(self.error)

    @property
    def message(self) -> str:
        return f"{self.error.ename}: {self.error.evalue}" if self.error.evalue else self.error.ename

    @property
    def brief(self) -> str:
        return _brief(self.message)


@dataclass
class _Causes:
    """The exceptions of a run by their place in the story."""

    roots: list[_Cause]
    """The exceptions that came before a rank had died or ranks were released: the causes."""
    late: list[_Cause]
    """The exceptions that came later: a cell may fail because a thread was freed before it brought its result."""
    interrupts: list[_Cause]
    echoes: list[_Cause]


def summary(run: Run) -> str:
    """The run's errors in one line of plain text, the root first; empty for a run that ended well."""
    if run.not_sent:
        return run.not_sent
    causes = _causes(run)
    parts = _brief_roots(causes.roots, run)
    lost = _lost_ranks(run)
    named = 0 if run.world_end else _NAMED
    parts += [_lost(run, rank) for rank in lost[:named]]
    if run.world_end:
        parts.insert(0, run.world_end)
    elif len(lost) > _NAMED:
        parts.append(f"{count_ranks(lost[_NAMED:])} {_are(lost[_NAMED:])} dead, too")
    parts += _brief_roots(causes.late, run)
    if causes.echoes:
        ranks = sorted(rank for cause in causes.echoes for rank in cause.ranks)
        parts.append(f"{count_ranks(ranks)} stopped because of that")
    if _was_interrupted(run):
        parts.insert(0, _interrupted(run))
    elif causes.interrupts and not parts:
        ranks = sorted(rank for cause in causes.interrupts for rank in cause.ranks)
        parts.append(f"KeyboardInterrupt{_where(ranks, run)}")
    if run.busy:
        kill = f"%distributed kill {format_ranks(run.busy)}"
        parts.append(f"still busy: {count_ranks(run.busy)} ({kill} ends {_them(run.busy)})")
    if not parts and run.outcome == "running":
        parts.append(f"Run {run.number} goes on, after {run.elapsed:.1f} s")
    if not parts and run.outcome not in ("ok", "running"):
        parts.append("Ranks were lost" if run.outcome == "lost" else "The cell failed")
    return "; ".join(parts)


def _brief_roots(roots: Sequence[_Cause], run: Run) -> list[str]:
    parts = [f"{cause.brief}{_where(cause.ranks, run)}" for cause in roots[:_NAMED]]
    return [*parts, f"{len(roots) - _NAMED} more errors"] if len(roots) > _NAMED else parts


def output_of(run: Run, rank: int) -> str:
    """All text that ``rank`` printed, and below it the error that ended its cell."""
    text, error = run.text(rank), run.errors.get(rank)
    return text if error is None else told_below(text, error, run.source, run.above)


def told_below(text: str, error: Error, source: str = "", above: int = 0) -> str:
    """``text`` and below it ``error``, without colours."""
    told = _COLOURS.sub("", "\n".join(_tell(error, source, above)))
    return f"{text}{'' if text[-1:] in ('', _NEWLINE) else _NEWLINE}{told}\n"


def as_seen(
    state: Outcome | Literal["sent", "running"], error: Error | None, *, asks: bool = False, held: bool = False
) -> Seen:
    """The state of a rank in a run as people see it: a rank that was released is no rank that failed.

    ``asks``: whether it waits for a person's answer. ``held``: whether it is paused between two steps.
    """
    if asks or held:
        return "asking" if asks else "held"
    if state == "error" and error is not None and is_echo(error):
        return "released"
    return "dead" if state == "lost" else state


def told_briefly(error: Error) -> str:
    """What an error says, and the innermost line of the user's own code that it comes from."""
    own = [frame for frame in error.frames if frame.cell]
    said = _brief(f"{error.ename}: {error.evalue}" if error.evalue else error.ename)
    return f"{said}, in {Path(own[-1].file).name}, line {own[-1].line}" if own else said


def telling(run: Run) -> Run:
    """The run whose errors explain why ``run`` failed: itself, or a run that joined it if only its ranks failed."""
    if run.outcome == "lost" or run.outcome in run.outcomes.values():
        return run
    return next((join for join in run.joined if run.outcome in join.outcomes.values()), run)


def blocks(run: Run) -> list[str]:
    """The run's errors as lines with ANSI colours, for IPython's ``_render_traceback_``; empty if there are none.

    An item may hold several lines. Distinct errors beyond :data:`IN_FULL` are shown without traceback.
    """
    if run.not_sent:
        return [f"{_RED}{run.not_sent}{_OFF}"]
    causes = _causes(run)
    roots = [*causes.roots, *causes.late]
    ended = [[f"{_RED}{_capital(run.world_end)}.{_OFF}"]] if run.world_end else []
    lost = _lost_blocks(run)
    text = [*ended, *_root_blocks(causes.roots, run), *lost, *_root_blocks(causes.late, run)]
    text += [_block(cause, run) for cause in causes.interrupts[:IN_FULL]]
    end: list[list[str]] = []
    if (not causes.interrupts or run.timed_out) and _was_interrupted(run):
        end.append([f"{_RED}{_interrupted(run)}{_OFF}"])
    if causes.echoes:
        words = "; ".join(_echo(cause, run) for cause in causes.echoes[:IN_FULL])
        more = f"; and {len(causes.echoes) - IN_FULL} more" if len(causes.echoes) > IN_FULL else ""
        end.append([f"{_DIM}Because of that: {words}{more}{_OFF}"])
    end += [[words] for words in (*_fixes(roots), _apart(run), _after_loss(run)) if words]
    if faults := fault_lines(_faults(run), run.ranks):
        end.append(faults)
    if run.busy:
        words = f"%distributed kill {format_ranks(run.busy)} ends {_them(run.busy)}"
        others = "; the others keep their variables" if len(run.busy) < len(run.ranks) else ""
        end.append([f"{_RED}Still busy: {count_ranks(run.busy)}.{_OFF} {words}{others}."])
    # What a user's own error says is no notice, but for the notes that ranks add to it.
    ours = [*(line for block in (*lost, *end) for line in block), *(note for one in roots for note in one.error.notes)]
    found = [anchor_of_class(one.error.ename) for one in roots if not any(frame.cell for frame in one.error.frames)]
    found += anchors_in("\n".join(ours))
    where = pointer(["world-lost"] if run.world_end else found)
    return _joined([*text, *end, *([[f"{_DIM}{where}{_OFF}"]] if where else [])])


def _root_blocks(roots: Sequence[_Cause], run: Run) -> list[list[str]]:
    text = [_block(cause, run) for cause in roots[:IN_FULL]]
    if rest := roots[IN_FULL:]:
        brief = [f"{_name(cause.ranks, run)}{_RED}{cause.brief}{_OFF}" for cause in rest[:IN_BRIEF]]
        if len(rest) > IN_BRIEF:
            brief.append(f"… and {len(rest) - IN_BRIEF} more")
        text.append(brief)
    return text


def _joined(text: Iterable[list[str]]) -> list[str]:
    """The lines of blocks, with an empty one between two of them."""
    lines: list[str] = []
    for block in text:
        if lines:
            lines.append("")
        lines += block
    return lines


def so_far(run: Run) -> list[str]:
    """The errors of a run that goes on, as :func:`blocks` shows them, and who goes on; empty without an error."""
    causes = _causes(run)
    roots = [*causes.roots, *causes.late]
    if not roots:
        return []
    text = _root_blocks(roots, run)
    return [*_joined(text), "", f"{_DIM}{_going_on(run)}{_OFF}"]


def so_far_briefly(run: Run, ranks: Collection[int]) -> list[str]:
    """A line for each error of ``ranks`` while the run goes on."""
    found = []
    causes = _causes(run)
    for cause in [*causes.roots, *causes.late][:IN_BRIEF]:
        if failed := [rank for rank in cause.ranks if rank in ranks]:
            has = "has" if len(failed) == 1 else "have"
            found.append(f"{count_ranks(failed).capitalize()} {has} failed: {told_briefly(cause.error)}.")
    return [*found[:-1], f"{found[-1]} {_going_on(run)}"] if found else []


def _going_on(run: Run) -> str:
    ranks = run.unfinished
    return f"The cell goes on until {count_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} ended."


def _lost_blocks(run: Run) -> list[list[str]]:
    """A line for each lost rank; none where the world has ended, which the first line says."""
    if run.world_end:
        return []
    lost = _lost_ranks(run)
    text = [[f"{_RED}{_capital(_lost(run, rank))}{_OFF}"] for rank in lost[:IN_BRIEF]]
    if others := lost[IN_BRIEF:]:
        text.append([f"{_RED}{count_ranks(others).capitalize()} {_are(others)} dead, too.{_OFF}"])
    return text


def _fixes(roots: Sequence[_Cause]) -> list[str]:
    """The sentences on what helps against these errors, each once: those of frameworks, and our own."""
    said = "\n".join(cause.error.evalue for cause in roots)
    gone = package_gone() if "No module named 'jupyter_dtrain" in said else ""
    return [*filter(None, [gone]), *(fix for words, fix in fixes().items() if words in said)]


def _faults(run: Run) -> dict[int, str]:
    """The ranks that can use their GPU no more, each with the driver's words."""
    found = {rank: fault_in(_said(error)) for rank, error in run.errors.items() if rank not in run.lost}
    return {rank: words for rank, words in found.items() if words}


def _said(error: Error) -> str:
    """All that an error says, with its cause and its members."""
    return "\n".join([error.ename, error.evalue, error.cause or "", *map(_said, error.members)])


def _after_loss(run: Run) -> str:
    """The next step where ranks have ended, or this client has left them, while their world goes on; else empty."""
    if any(LEFT in words for words in run.lost.values()):
        return "The cell goes on while its world does: %distributed attach joins the world again, and shows all of it."
    ended = run.world_end or any("its world" in words or "its main process" in words for words in run.lost.values())
    if not run.lost or ended:
        return ""
    if len(run.lost) == len(run.ranks):
        return "%distributed restart replaces all ranks."
    return (
        "The other ranks keep their variables and take cells (-r); %distributed replace replaces what is dead, "
        "%distributed restart replaces all ranks."
    )


def _causes(run: Run) -> _Causes:
    errors, outcomes = run.errors, run.outcomes
    stopped = {rank: error for rank, error in errors.items() if _is_interrupt(error) and outcomes.get(rank) != "error"}
    failed = {rank: error for rank, error in errors.items() if rank not in stopped}
    causes = [
        _Cause(error, ranks, errors is stopped)
        for errors in (failed, stopped)
        for error, ranks in distinct(errors, run.pids)
    ]
    causes.sort(key=lambda cause: cause.ranks)
    interrupts = [cause for cause in causes if cause.interrupt]
    echoes = [cause for cause in causes if cause.echo and not cause.interrupt]
    roots = [cause for cause in causes if not cause.interrupt and not cause.echo]
    after = run.failed_after_a_death
    late = [
        cause
        for cause in roots
        # One rank may lose its connection before it hears of the release.
        if any(errors[rank].released for rank in cause.ranks) or after.issuperset(cause.ranks)
    ]
    roots = [cause for cause in roots if cause not in late]
    if run.elastic:
        # Its cell goes on without dead ranks: what it fails of afterwards is another matter.
        roots, late = [*roots, *late], []
    if not roots and not late and not run.lost:
        # Nothing else tells what happened, so these do; but Stop tells why ranks were released.
        stopped_too = [cause for cause in echoes if interrupts and any(errors[one].released for one in cause.ranks)]
        roots, echoes = [cause for cause in echoes if cause not in stopped_too], stopped_too
    return _Causes(roots, late, interrupts, echoes)


def distinct(errors: Mapping[int, Error], pids: Mapping[int, int]) -> list[tuple[Error, list[int]]]:
    """Each error once, with its ranks: those that are equal but for each rank's own number, pid and addresses.

    ``pids``: the process of each rank.
    """
    alike: dict[object, list[tuple[Error, list[int]]]] = {}
    for rank in sorted(errors):
        error = errors[rank]
        groups = alike.setdefault(_key(error), [])
        for first, ranks in groups[:_ALIKE]:
            if _own_numbers_differ(first, ranks[0], error, rank, pids):
                ranks.append(rank)
                break
        else:
            groups.append((error, [rank]))
    # A note that some ranks alone have, as new ones do, tells nothing of an error that all of them share.
    found = [ranks for groups in alike.values() for _, ranks in groups]
    return [(errors[min(ranks, key=lambda rank: len(errors[rank].notes))], ranks) for ranks in sorted(found)]


def _own_numbers_differ(one: Error, first: int, error: Error, rank: int, pids: Mapping[int, int]) -> bool:
    """Whether two errors of the same shape differ at most in numbers of the ranks' own."""
    if one.waited and is_echo(one):
        return True
    own = {(str(first), str(rank)), (str(pids.get(first)), str(pids.get(rank)))}
    pairs = zip(_NUMBER.findall(_shape(one.evalue)), _NUMBER.findall(_shape(error.evalue)), strict=True)
    return all(a == b or (a, b) in own for a, b in pairs) and all(
        _own_numbers_differ(a, first, b, rank, pids) for a, b in zip(one.members, error.members, strict=True)
    )


def _shape(text: str) -> str:
    """``text`` without addresses and the pids of processes."""
    return _PASSING.sub("#", text)


def _is_interrupt(error: Error) -> bool:
    return error.ename in ("KeyboardInterrupt", "CellStopped", "CancelledError", QUIT)


def is_echo(error: Error) -> bool:
    """Whether ``error`` only tells that another rank has gone."""
    # A rank may lose its connection to one that has released before its own request to release comes.
    return bool(error.released and error.waited) or any(words in error.evalue for words in echoes())


def _key(error: Error) -> object:
    """A key that is equal for errors which may be one error on different ranks: it leaves out all numbers."""
    if error.waited and is_echo(error):
        return error.waited  # what it says then names a port, or one of many ways to say the same
    # Not by file: a module may lie elsewhere on another host.
    frames = tuple((frame.line, frame.function, frame.source) for frame in error.frames if frame.cell)
    return error.ename, _NUMBER.sub("0", _shape(error.evalue)), frames, tuple(map(_key, error.members))


def _block(cause: _Cause, run: Run) -> list[str]:
    on = f" on {count_ranks(cause.ranks)}" if run.size > 1 else ""
    if cause.error.ename == QUIT:
        at = told_briefly(cause.error).partition(", in ")[2]
        return [f"{_RED}{count_ranks(cause.ranks).capitalize()} quit at a debugger's prompt{at and ', in '}{at}{_OFF}"]
    text = [f"{_RED}{_BOLD}{cause.error.ename}{_OFF}{on}", *_tell(cause.error, run.source, run.above)]
    if len({_said(run.errors[rank]) for rank in cause.ranks}) > 1:
        text.append(f"{_DIM}(as rank {cause.ranks[0]} says it; the others name their own numbers or addresses){_OFF}")
    return text


def _tell(error: Error, source: str, above: int) -> list[str]:
    """The lines of ``error``: where it was raised, its message, and the members of a group."""
    lines = []
    own = [frame for frame in error.frames if frame.cell]
    if error.syntax:
        lines.append(error.syntax.rstrip("\n"))
    else:
        known = _of_cell(own, source, above)
        for frame in own:
            lines += _frame(frame, source if frame.file in known else "", above)
    library = [frame for frame in error.frames if not frame.cell]
    if library:
        lines.append(f"{_DIM}  … {_fold(library)}{_OFF}")
    lines.append(f"{_RED}{error.ename}{_OFF}: {error.evalue}" if error.evalue else f"{_RED}{error.ename}{_OFF}")
    lines += error.notes
    if error.cause and not (_is_interrupt(error) and any(words in error.cause for words in echoes())):
        lines.append(f"{_DIM}Caused by {error.cause}{_OFF}")
    for number, member in enumerate(error.members, 1):
        lines.append(f"{_DIM}  ({number}){_OFF} {_RED}{member.ename}{_OFF}")
        lines += [f"    {line}" for part in _tell(member, source, above) for line in part.split("\n")]
    if error.left_out:
        lines.append(f"{_DIM}  … and {error.left_out} more{_OFF}")
    return lines


def _of_cell(frames: list[Frame], source: str, above: int) -> set[str]:
    """The files among those of ``frames`` whose lines are those of ``source``, which has lines ``above`` it."""
    text = source.splitlines()
    seen: dict[str, bool] = {}
    for frame in frames:
        if frame.source:
            line = frame.line - above
            same = 0 < line <= len(text) and text[line - 1].strip() == frame.source.strip()
            seen[frame.file] = seen.get(frame.file, True) and same
    return {file for file, same in seen.items() if same}


def _frame(frame: Frame, source: str, above: int) -> list[str]:
    function = "" if frame.function in ("", "<module>") else f", in {_GREEN}{frame.function}{_OFF}"
    if not source:
        # The frame is in another cell, or in a module of the user's own.
        lines = [f"  {Path(frame.file).name}, line {frame.line}{function}"]
        return [*lines, f"{_GREEN}{f'----> {frame.line}':>10}{_OFF} {frame.source}"] if frame.source else lines
    lines = [f"  line {frame.line}{function}"]
    text = source.splitlines()
    first = max(1 + above, frame.line - _CONTEXT)
    for number, line in enumerate(text[first - above - 1 : frame.line - above + _CONTEXT], first):
        if number == frame.line:
            lines.append(f"{_GREEN}{f'----> {number}':>10}{_OFF} {line}")
        else:
            lines.append(f"{_DIM}{number:>10}{_OFF} {line}")
    return lines


def _fold(frames: Sequence[Frame]) -> str:
    last = frames[-1]
    end = f"{_short(last.file)}:{last.line} in {last.function}"
    if len(frames) == 1:
        return f"1 library frame ({end})"
    return f"{len(frames)} library frames ({_short(frames[0].file)} … {end})"


def _short(file: str) -> str:
    """``file`` from its package on."""
    return _LIBRARY.sub("", file)


def _apart(run: Run) -> str:
    """Where ranks have made different numbers of steps before they ended; empty where they have not."""
    made = {rank: steps for rank, steps in run.steps.items() if rank not in run.lost}
    for name in sorted({name for steps in made.values() for name in steps}):
        counts: dict[int, list[int]] = {}
        for rank, steps in made.items():
            counts.setdefault(steps.get(name, 0), []).append(rank)
        # One that only some ranks have is no sign of anything.
        if len(counts) > 1 and 2 * len(counts.get(0, ())) <= len(made):
            each = ", ".join(f"{count_ranks(ranks)} {count}" for count, ranks in sorted(counts.items(), reverse=True))
            told = f"Steps of {name} in this cell: {each}. The states of these ranks may differ now"
            if name.startswith(LOCAL):
                return (
                    f"{told}, and %distributed broadcast reaches only top-level variables of cells: keep the model and "
                    "the optimizer in such variables, or run the cell again."
                )
            ahead = min(counts[max(counts)])
            variable = "OPTIMIZER" if " " in name else name
            line = f"%distributed broadcast --from {ahead} {variable} MODEL"
            return (
                f"{told}: {line} gives all ranks the state of rank {ahead}, and %distributed load NAME gives a sharded "
                "model that of a snapshot."
            )
    return ""


def _echo(cause: _Cause, run: Run) -> str:
    if not cause.error.waited:
        return f"{cause.brief}{_where(cause.ranks, run)}"
    return f"{count_ranks(cause.ranks)} waited in {cause.error.waited} and {_was(cause.ranks)} released"


def _brief(text: str) -> str:
    line = text.strip().partition("\n")[0].strip()
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"


def _where(ranks: list[int], run: Run) -> str:
    return f" ({count_ranks(ranks)})" if run.size > 1 else ""


def _name(ranks: list[int], run: Run) -> str:
    return f"[{format_ranks(ranks)}] " if run.size > 1 else ""


def _was_interrupted(run: Run) -> bool:
    # Where no caller waits for a run, painting comes just before its end: the outcome is not known yet.
    return run.outcome == "interrupted" or run.interrupted or bool(run.busy)


def _interrupted(run: Run) -> str:
    if quitters := [rank for rank, error in run.errors.items() if error.ename == QUIT]:
        return f"{count_ranks(quitters).capitalize()} quit at a debugger's prompt"
    return "Interrupted by its timeout" if run.timed_out else "Interrupted"


def _lost_ranks(run: Run) -> list[int]:
    """The lost ranks: first those that ended by themselves, then those that only the end of the world took."""
    return sorted(run.lost, key=lambda rank: (" is lost: " in run.lost[rank], rank))


def _lost(run: Run, rank: int) -> str:
    return run.lost[rank] or f"rank {rank} is dead"


def _are(ranks: list[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _was(ranks: list[int]) -> str:
    return "was" if len(ranks) == 1 else "were"


def _them(ranks: list[int]) -> str:
    return "it" if len(ranks) == 1 else "them"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

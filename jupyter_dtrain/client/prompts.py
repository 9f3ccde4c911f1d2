"""The prompts of ranks, where the person is: the cell that waits for a run asks what its ranks ask.

The cell waits on the main thread, which is the one that may ask in a kernel and in a terminal. It asks once for all
ranks whose questions are the same, and the steward passes the answer on to them. A run that another client has begun
has no such cell: ``%distributed prompt`` asks for it, and Stop there leaves the prompts open.

Under failure: a question is withdrawn when Stop is pressed, when it was answered elsewhere, and when its rank or its
run has ended. Where nobody can answer, the ranks know before the cell begins, and a call that asks fails at once.
"""

from __future__ import annotations

import getpass
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.errors import BadRequest, DtrainError
from jupyter_dtrain.core.fold import asked_alike
from jupyter_dtrain.core.steering import LoopAct
from jupyter_dtrain.core.stop_button import StopButton, Withdrawn
from jupyter_dtrain.core.world import count_ranks, parse_ranks
from jupyter_dtrain.wire.prompt_messages import AnswerPrompts, Evaluate, ReadLastError

from .submitted_run import at_prompts

if TYPE_CHECKING:
    from jupyter_dtrain.core.events import PromptOpened
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.wire.prompt_messages import LastError

    from .link import Link
    from .rank_requests import RankRequests
    from .steering import RunningLoop

SETTLE = 0.2
"""Seconds after a rank's question in which others that ask the same join it."""
TAKEN = 6.0
"""Seconds in which the ranks take an answer; the steward tries for five."""
TOLD = 2.0
"""Seconds in which a debugger prints what a command asks for; after that its rank counts as going on."""
LINGER = 1.0
"""Seconds in which ranks may ask again before nobody attends to them any more."""
AGREED = 60.0
"""Seconds in which ranks that a debugger lets go on come to a step together."""
POLL = 0.02
GOES_ON = "goes on"
ENDED = "has ended the cell"
DEAD = "is dead"
OUTSIDE = "is not in this cell"
RUNS = "runs, and has no answer now"
LEAVING = ("q", "quit", "exit", "c", "cont", "continue")
"""The commands that leave a debugger which only looks at an error."""
RELEASED = "waited for a rank that failed"
LOOKING = ("p", "pp", "whatis", "w", "where", "bt", "args")
"""The commands that a rank answers, too, that waits for others."""
_UNTIL = re.compile(r"\s*(?:@\s*all\s+)?until\s+differs\s+(.+?)(?:\s+([0-9.]+(?:e[+-]?\d+)?))?\s*\Z", re.IGNORECASE)
"""``until differs loss.item() 1e-3``: the ranks go on until a number differs between them."""
_ADDRESS = re.compile(r"\s*@\s*(all|[\d,: -]*\d)(?:\s+(.*))?\Z", re.DOTALL)
"""A line for the debuggers of some ranks: ``@all p loss``, ``@0,2-3 w``, ``@1``."""

NO_WAIT = "this cell was sent with --no-wait, and nobody waits for its questions (leave out --no-wait)"
AGAIN = "this cell runs to prepare new ranks"
_THREAD = "this cell was sent from a thread, and only a cell on the notebook's main thread can ask"
_PROGRAM = "this cell was sent by a program, not from a notebook"
_NO_INPUT = "the program that runs this notebook takes no questions (nbconvert, papermill, allow_stdin=False)"
_NO_TERMINAL = "this IPython has no terminal"


def why_unanswered(*, wait: bool, ask: bool | None) -> str:
    """Why nobody can answer the prompts of a cell, as a clause; empty where somebody can.

    ``wait``: whether this thread waits for the cell's end. ``ask``: whether a program answers; None: it is to be found
    out whether there is a person at this process.
    """
    if ask is not None:
        return "" if ask else _PROGRAM
    if not wait:
        return NO_WAIT
    if threading.current_thread() is not threading.main_thread():
        return _THREAD
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    if shell is None:
        return _PROGRAM
    if (kernel := getattr(shell, "kernel", None)) is not None:
        return "" if kernel.get_parent("shell").get("content", {}).get("allow_stdin") else _NO_INPUT
    return "" if sys.stdin.isatty() else _NO_TERMINAL


class PromptDesk:
    """Asks the person at this process what the ranks of a run ask. Main thread only."""

    def __init__(
        self,
        link: Link,
        requests: RankRequests,
        loop: RunningLoop,
    ) -> None:
        """``loop``: the one of the cell that runs."""
        self._link = link
        self._loop = loop
        self._requests = requests
        self._run = 0
        """The run that was attended last."""
        self._focus = -1
        """The rank of that run whose debugger was used last."""
        self._next_focus = -1
        """The rank whose debugger is used first in the next run."""
        self.leaves = False
        """Whether q leaves the debuggers of all ranks."""
        self._told: dict[int, int] = {}
        """By rank, the number of the prompt whose debugger's words were shown."""

    def attend(self, run: Run, stop_button: StopButton) -> None:
        """Ask while ranks of ``run`` ask, until Stop is pressed, the run is over, or another client takes control.

        What an answer cannot do is said, and asked again: the run goes on, and so does the cell that waits for it.
        """
        if not run.fold.prompts or not self._link.controls:
            return
        time.sleep(SETTLE)
        if self._run != run.number:
            self._run, self._focus, self._next_focus = run.number, self._next_focus, -1
            self._told.clear()
        while (prompts := run.fold.prompts) and not run.done and not stop_button.fell and self._link.controls:
            stopped = {rank: one for rank, one in prompts.items() if one.kind == "debugger"}
            asks = next((ranks for ranks in asked_alike(prompts) if ranks[0] not in stopped), None)
            try:
                if asks is not None:
                    self._ask(run, prompts, asks, stop_button)
                else:
                    self._debug(run, stopped, stop_button)
            except Withdrawn:
                _forget_typed()
            except DtrainError as error:
                _print(f"{error}\n")

    def attend_all(self, running: Callable[[], list[Run]]) -> None:
        """Ask the person at this process what ranks of the ``running`` runs ask, until none has asked for a while.

        Stop leaves what is open as it is. Raises :class:`BadRequest` where nobody can answer, or nobody asks.
        """
        if why := why_unanswered(wait=True, ask=None):
            raise BadRequest(f"Nobody can answer a prompt here: {why}.")
        if not _asking(running()):
            raise BadRequest("No rank is at a prompt.")
        with StopButton() as stop_button:
            until = time.monotonic() + LINGER
            while time.monotonic() < until and not stop_button.fell and self._link.controls:
                for run in _asking(running()):
                    self.attend(run, stop_button)
                    until = time.monotonic() + LINGER
                time.sleep(POLL)
        for run in _asking(running()) if self._link.controls else []:
            _print(f"{at_prompts(run)}.\n")

    def look_at_failures(self, ranks: list[int]) -> list[int]:
        """Show the last error of each of ``ranks``; those that have one. Until :attr:`leaves` is unset, q leaves all.

        Raises :class:`BadRequest` where nobody can answer, or there is no error, and :class:`RanksBusy`.
        """
        if why := why_unanswered(wait=True, ask=None):
            raise BadRequest(f"Nobody can answer a debugger here: {why}.")
        self._requests.check_idle(ranks, "look at the last error")
        answers = self._requests.ask_agents(ranks, TAKEN, ReadLastError())
        found = {rank: one for rank, one in answers.items() if one is not None and one.error}
        if not found:
            raise BadRequest(f"There is no error to look at on {count_ranks(ranks)}.")
        _print(failure_table(answers))
        self.leaves = True
        # Of several, the one that has brought the others down.
        self._next_focus = next((rank for rank in sorted(found) if not found[rank].echo), min(found))
        return sorted(found)

    def answer(self, run: int, prompts: dict[int, int], text: str | None) -> None:
        """Answer the same to several ranks; ``prompts`` has the number of each rank's prompt. None: end of input."""
        self._link.ask(AnswerPrompts(self._link.me.id, run, prompts, text))

    def _waits(self, run: Run, asked: Mapping[int, int]) -> bool:
        """Whether an answer of this process is wanted still."""
        return bool(_open(run, asked)) and self._link.controls

    # Questions of code.

    def _ask(self, run: Run, prompts: Mapping[int, PromptOpened], ranks: list[int], stop_button: StopButton) -> None:
        first, asked = prompts[ranks[0]], {rank: prompts[rank].number for rank in ranks}
        with stop_button.asking(lambda: not self._waits(run, asked)):
            text = _input(f"{count_ranks(ranks)}: {first.text}", hidden=first.kind == "password")
        # Others that ask the same by now were meant, too.
        late = run.fold.prompts
        alike = next((group for group in asked_alike(late) if _same(late[group[0]], first)), [])
        answered = _open(run, asked) | {rank: late[rank].number for rank in alike}
        if answered:
            self.answer(run.number, answered, text)
            _await(lambda: not _open(run, answered) or run.done, TAKEN)

    # Debuggers.

    def _debug(self, run: Run, stopped: Mapping[int, PromptOpened], stop_button: StopButton) -> None:
        """Take one line for a debugger, or for several."""
        focus = self._focus if self._focus in stopped else min(stopped)
        asked = stopped[focus]
        if self._told.get(focus) != asked.number:
            self._told[focus] = asked.number
            _print(asked.said)
        label = f"rank {focus} {asked.text}"
        if len(stopped) > 1:
            label = f"{count_ranks(sorted(stopped))}, at {focus} {asked.text}"
        with stop_button.asking(lambda: not self._waits(run, {focus: asked.number})):
            line = _input(label)
        self._focus = focus
        self._take(run, stopped, line)

    def _take(self, run: Run, stopped: Mapping[int, PromptOpened], line: str | None) -> None:
        """Do what a person's line asks of the debuggers that are open; without an address it is for the focus."""
        if (until := _UNTIL.match(line or "")) is not None:
            try:
                tolerance = float(until[2] or 0)
            except ValueError:
                words = f"{until[2]} is no distance, such as 1e-3: until differs EXPRESSION DISTANCE."
                raise BadRequest(words) from None
            self._go_on_until(run, stopped, until[1], tolerance)
            return
        named, command = _addressed(line)
        if named is None:
            if self.leaves and command in LEAVING:
                self.answer(run.number, {rank: one.number for rank, one in stopped.items()}, line)
                _await(lambda: run.done, TAKEN)
                return
            self._say(run, {self._focus: stopped[self._focus]}, line)
            return
        try:
            ranks = run.ranks if named == "all" else parse_ranks(named, run.size)
        except BadRequest as error:
            _print(f"{error}\n")
            return
        there = {rank: stopped[rank] for rank in ranks if rank in stopped}
        if not command:
            if len(ranks) == 1 and there:
                self._focus = ranks[0]
            else:
                _print(f"At a debugger's prompt: {count_ranks(sorted(stopped))}. @RANK changes to one of them.\n")
        elif command.split()[0] in LOOKING:
            self._say(run, there, command, [rank for rank in ranks if rank not in there])
        elif not there:
            _print(f"No debugger is open on {count_ranks(ranks)}: {count_ranks(sorted(stopped))} stopped.\n")
        else:
            self._say(run, there, command)

    def _go_on_until(self, run: Run, stopped: Mapping[int, PromptOpened], expression: str, tolerance: float) -> None:
        """Let all ranks go on until a number differs between them."""
        state = self._loop.begin(LoopAct("until-differs", code=expression, tolerance=tolerance), run.number)
        self.answer(run.number, {rank: one.number for rank, one in stopped.items()}, "c")
        _await(lambda: state().phase != "going on" or run.done, AGREED)
        _print(f"{state().words}\n")

    def _say(self, run: Run, prompts: Mapping[int, PromptOpened], line: str | None, others: Sequence[int] = ()) -> None:
        """Send a line to debuggers, and show what they print; and what ``others`` say that wait for ranks."""
        asked = {rank: one.number for rank, one in prompts.items()}
        if asked:
            self.answer(run.number, asked, line)

        def asking_on() -> dict[int, PromptOpened]:
            return {rank: one for rank, one in run.fold.prompts.items() if rank in asked and one.number > asked[rank]}

        _await(lambda: len(asking_on()) == len(asked) or run.done, TOLD)
        now = asking_on()
        said = {rank: one.said for rank, one in now.items()}
        self._told.update({rank: one.number for rank, one in now.items()})
        if len(asked) == 1 and not others:
            _print("".join(said.values()))
            return
        rows: dict[int, tuple[str, str]] = {}
        for rank in asked:
            rows[rank] = ("", said[rank].rstrip("\n") if rank in said else _now(run, rank))
        rows |= {rank: ("", _now(run, rank)) for rank in others if rank not in run.unfinished}
        waiting = [rank for rank in others if rank in run.unfinished]
        if waiting and line is not None:
            answers = self._requests.ask_agents(waiting, TOLD, Evaluate(run.number, line))
            for rank, answer in answers.items():
                rows[rank] = ("", "does not answer now") if answer is None else (answer.waits, answer.text or RUNS)
        _print(answer_table(rows))


def answer_table(rows: Mapping[int, tuple[str, str]]) -> str:
    """What several ranks have said, equal answers once. ``rows``: the call in which a rank waits, and its words."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank in sorted(rows):
        groups.setdefault(rows[rank], []).append(rank)
    table = []
    for (call, words), ranks in groups.items():
        waits = f" (wait{'s' if len(ranks) == 1 else ''} in {call})" if call else ""
        first, *rest = words.splitlines() or [""]
        table += [(count_ranks(ranks) + waits, first), *(("", one) for one in rest)]
    width = max((len(name) for name, _ in table), default=0)
    return "".join(f"{name:<{width}} | {words}".rstrip() + "\n" for name, words in table)


def failure_table(found: Mapping[int, LastError | None]) -> str:
    """The last error of each rank and where it was raised, equal ones once; None for a rank that does not answer."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, one in sorted(found.items()):
        if one is None:
            row = ("does not answer now", "")
        else:
            row = (RELEASED if one.echo else one.error or "no error", one.line)
        groups.setdefault(row, []).append(rank)
    rows = [(count_ranks(ranks), *row) for row, ranks in groups.items()]
    widths = [max(len(row[at]) for row in rows) for at in (0, 1)]
    return "".join(f"{who:<{widths[0]}} | {what:<{widths[1]}} | {at}".rstrip(" |") + "\n" for who, what, at in rows)


def _addressed(line: str | None) -> tuple[str | None, str]:
    """The ranks that a line names, and the command; None where it names none. The end of the input quits."""
    found = _ADDRESS.match(line or "")
    return (found[1], (found[2] or "").strip()) if found else (None, "q" if line is None else line.strip())


def _asking(runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if run.fold.prompts and not run.done]


def _now(run: Run, rank: int) -> str:
    """What a rank does that is at no prompt."""
    if rank not in run.ranks:
        return OUTSIDE
    return GOES_ON if rank in run.unfinished else DEAD if rank in run.lost else ENDED


def _open(run: Run, asked: Mapping[int, int]) -> dict[int, int]:
    """Those of the prompts that still wait."""
    prompts = run.fold.prompts
    return {rank: number for rank, number in asked.items() if rank in prompts and prompts[rank].number == number}


def _await(true: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        time.sleep(POLL)


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _same(one: PromptOpened, other: PromptOpened) -> bool:
    return (one.kind, one.text, one.nth) == (other.kind, other.text, other.nth) and one.kind != "debugger"


def _input(label: str, *, hidden: bool = False) -> str | None:
    try:
        return getpass.getpass(label) if hidden else input(label)
    except EOFError:
        return None
    except UnicodeError:
        raise BadRequest("What was typed cannot be read as text: type it again.") from None


def _forget_typed() -> None:
    """Drop the half of a line that was typed in a terminal: the next prompt there would run it."""
    from IPython.core.getipython import get_ipython

    if getattr(get_ipython(), "kernel", None) is None and sys.stdin.isatty():
        import termios

        termios.tcflush(sys.stdin, termios.TCIFLUSH)

"""Questions of a cell to a person: ``input()`` and ``getpass()`` wait here, and the notebook or its page answers.

A prompt is an event of the run, so that whoever follows the run knows that the rank waits for a person, and calls
nothing hung meanwhile. The answer comes as a request, on the control thread, and is in no event: it may be a password.

Under failure: where nobody can answer, a call that asks raises at once, with the reason and the way on. Code that
catches the error and asks the same again gets :class:`NoAnswer` at the third time, which ``except Exception`` does not
catch. A prompt ends with its cell: Stop raises in it as in any other call. Other threads and processes of the cell
never wait for longer than the cell does.
"""

from __future__ import annotations

import contextlib
import os
import pdb  # noqa: T100 — to know a debugger
import queue
import re
import sys
import threading
import time
from collections import Counter
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.core.events import PromptClosed, PromptOpened
from jupyter_dtrain.plugins.framework import locals_of
from jupyter_dtrain.plugins.patches import Patch, caller, meant

from .interrupts import CellStopped

if TYPE_CHECKING:
    from jupyter_dtrain.wire.prompt_messages import AnswerPrompt

    from .interrupts import Interrupts
    from .recorder import Recorder
    from .step_time import StepTimer
    from .tracebacks import Tracebacks

INPUT = Patch(
    "builtins",
    replaces=("input",),
    why="input() in a rank would read an empty input; here a person answers it in the notebook.",
    lost="input() finds the end of the rank's empty input",
)
PASSWORD = Patch(
    "getpass",
    replaces=("getpass",),
    why="getpass() in a rank would look for a terminal that is not there; here a person answers it in the notebook.",
    lost="getpass() finds the end of the rank's empty input",
)
EXIT = Patch(
    "ipykernel.zmqshell",
    replaces=("ZMQInteractiveShell.ask_exit",),
    why="exit() would end one rank, and leave a hole in the world.",
    lost="exit() ends the rank",
)

PLACES = 4000
"""Characters of a question that are kept."""
LOOK = 0.2
"""Seconds between two looks of a waiting thread whether its cell still runs."""
PAUSE = 0.1
"""Seconds that a refusal takes from the third one on: code may catch even that, in a loop."""
WIDTH = 60
"""Characters of a command in a sentence about it."""
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_ASKING = ("?", ":", "]", "EOFError: EOF when reading a line\n")
"""Ends of the last line of a command that has asked, and found no input."""
SECOND, THIRD = 2, 3
"""Refusals of one question: the cell shows the second one, and the third raises :class:`NoAnswer`."""

BETWEEN = "no cell of a notebook is running here"
"""Why nobody answers what asks between two cells."""
_CHILD = (
    "a process that the cell has started asks, and only the rank itself has a prompt: ask in the cell, or do without "
    "such processes (a DataLoader with num_workers=0)"
)
_REFUSED = (
    "{what} asks a person, and nobody can answer: {why}. Set values with %%distributed -i NAMES, and look at variables "
    "with another %%distributed cell."
)
Kind = Literal["input", "password", "debugger"]


class NoAnswer(BaseException):
    """Ends a cell that asks again and again where nobody can answer; ``except Exception`` does not catch it."""


class RankPrompts:
    """The prompts of the cells of this rank: one at a time, while other threads wait for their turn."""

    def __init__(
        self, recorder: Recorder, tracebacks: Tracebacks, interrupts: Interrupts, timer: StepTimer | None = None
    ) -> None:
        """``timer`` does not count the time of a prompt as the loop's."""
        self._recorder = recorder
        self._tracebacks = tracebacks
        self._interrupts = interrupts
        self._timer = timer
        self._process = os.getpid()
        self._turn = threading.Lock()
        """Held by the thread that asks."""
        self._answers: queue.SimpleQueue[AnswerPrompt] = queue.SimpleQueue()
        self._lock = threading.Lock()
        """Guards the numbers below; held for no longer than a line."""
        self._run: int | None = None
        self._number = 0
        """The prompts of the cell so far."""
        self._open = False
        """Whether the newest one waits for its answer."""
        self._asked: Counter[tuple[Kind, str]] = Counter()
        self._refused: Counter[tuple[str, str]] = Counter()
        """By call and question, how often nobody could answer."""
        self._unanswered = BETWEEN

    def install(self, shell: Any) -> None:
        """Have questions of this process come here, and refuse exit(). ``shell``: its IPython."""
        INPUT.when_imported(lambda module: INPUT.replace(module, "input", self._input))
        PASSWORD.when_imported(lambda module: PASSWORD.replace(module, "getpass", self._getpass))
        EXIT.when_imported(lambda _: EXIT.replace(shell, "ask_exit", _refuse_exit))

    def begin(self, run: int, unanswered: str) -> None:
        """A cell begins. ``unanswered``: why nobody can answer its prompts; empty where somebody can."""
        with self._lock:
            self._run, self._number, self._unanswered = run, 0, unanswered
            self._asked.clear()
            self._refused.clear()

    def end(self) -> None:
        """The cell is over: what asks from now on is refused."""
        with self._lock:
            self._run, self._unanswered = None, BETWEEN

    def answer(self, answer: AnswerPrompt) -> None:
        """Take an answer. Raises :class:`Refused` for a prompt that there was not yet; control thread."""
        with self._lock:
            if answer.run != self._run:
                return  # the cell has ended meanwhile
            if answer.number > self._number:
                raise Refused(f"There is no prompt {answer.number} in run {answer.run}.")
            if answer.number == self._number and self._open:
                self._open = False
                self._answers.put(answer)

    @property
    def run(self) -> int | None:
        """The run whose cell the rank runs now."""
        return self._run

    def check(self, what: str, *, of_cell: bool) -> None:
        """Raise as :meth:`ask` where nobody can answer ``what``.

        ``of_cell``: the cell's code calls it, and may call it again and again; else this raises no :class:`NoAnswer`.
        """
        if os.getpid() == self._process and not self._unanswered:
            return
        if of_cell:
            self.ask("debugger", "", what)
        raise RuntimeError(_REFUSED.format(what=what, why=self._unanswered or _CHILD))

    def ask_debugger(self, text: str, what: str, said: str) -> str | None:
        """The next line for a debugger that has printed ``said``; None at the end of the input."""
        try:
            return self.ask("debugger", text, what, said)
        except EOFError:
            return None
        except KeyboardInterrupt:
            raise _stopped() from None

    def ask(self, kind: Kind, text: str, what: str, said: str = "") -> str:
        """Ask a person, and wait for the answer, which has no line end.

        ``what``: the call, for the words of a refusal; ``said``: what a debugger has printed before. Raises
        :class:`EOFError` at the end of the input, and :class:`RuntimeError` where nobody can answer.
        """
        if os.getpid() != self._process:
            raise meant(RuntimeError(_REFUSED.format(what=what, why=_CHILD)))
        with self._turn:
            if self._unanswered:
                self._refuse(what, text)
            return self._wait(kind, text[:PLACES], said)

    def _wait(self, kind: Kind, text: str, said: str) -> str:
        self._asked[kind, text] += 1
        place = self._place(sys._getframe())  # noqa: SLF001 — documented in spite of its name
        with self._lock:
            self._number += 1
            self._open = True
            run, number = self._run, self._number
        how: Literal["answered", "interrupted"] = "interrupted"
        by = ""
        self._hold(on=True)
        try:
            self._recorder.append(PromptOpened(number, kind, text, self._asked[kind, text], place, said))
            answer = self._next(run, number)
            how, by = "answered", answer.by
        finally:
            self._hold(on=False)
            with self._lock:
                self._open = False
                if self._run == run:
                    self._recorder.append(PromptClosed(number, how, by))
        if answer.text is None:
            raise meant(EOFError("the answer was an end of input"))
        return answer.text

    def _next(self, run: int | None, number: int) -> AnswerPrompt:
        main = threading.current_thread() is threading.main_thread()
        while True:
            # Not an Event or a Condition: a thread that waits in one counts as one that waits for other threads.
            with contextlib.suppress(queue.Empty):
                answer = self._answers.get(timeout=LOOK)
                if (answer.run, answer.number) == (run, number):
                    return answer
            # A signal ends the main thread's wait; no signal reaches another thread.
            if not main and (self._run != run or self._interrupts.requested):
                raise CellStopped("its cell has ended")

    def _hold(self, *, on: bool) -> None:
        if self._timer is not None and threading.current_thread() is threading.main_thread():
            self._timer.resting = on

    def _place(self, frame: FrameType | None) -> str:
        """The innermost line of the user's own code."""
        own = [step for step in self._tracebacks.stack(frame) if step.cell]
        if not own:
            return ""
        at = f"{own[-1].file}, line {own[-1].line}"
        name = "" if threading.current_thread() is threading.main_thread() else f" ({threading.current_thread().name})"
        return (f"{at} in {own[-1].function}" if own[-1].function else at) + name

    def _refuse(self, what: str, text: str) -> NoReturn:
        self._refused[what, text] += 1
        times = self._refused[what, text]
        words = _REFUSED.format(what=what, why=self._unanswered)
        question = f" The question is {text!r}." if text else ""
        if times == SECOND:
            told = f"This cell goes on after an error, and asks again: {words}{question}"
            print(f"[jupyter-dtrain] {told}", file=sys.stderr)  # noqa: T201 — into the cell's output
        if times >= THIRD:
            time.sleep(PAUSE)
            raise NoAnswer(f"This cell asks again and again. {words}{question}")
        raise meant(RuntimeError(words))

    def _input(self, _original: Any, prompt: Any = "", /) -> str:
        try:
            return self.ask("input", _text(prompt), "input()")
        except KeyboardInterrupt:
            # A debugger that a library has made of pdb's, such as one that stops a single rank.
            if _is_debugger(caller()):
                raise _stopped() from None
            raise

    def _getpass(self, _original: Any, prompt: Any = "Password: ", stream: Any = None, **_options: Any) -> str:  # noqa: ARG002
        return self.ask("password", _text(prompt), "getpass()")


def tell_of_question(command: str, last: str) -> None:
    """Say what a command has died of that has failed, if its ``last`` line is a question: it has no keyboard."""
    if not _COLOUR.sub("", last).rstrip(" ").endswith(_ASKING):
        return
    name = command.strip().partition("\n")[0]
    name = name if len(name) <= WIDTH else f"{name[:WIDTH]}…"
    told = (
        f"{'' if last.endswith(chr(10)) else chr(10)}[jupyter-dtrain] `{name}` seems to have asked something, and a "
        "process that a cell starts has no keyboard: give it the answer, as in pip uninstall -y x."
    )
    print(told, file=sys.stderr)  # noqa: T201 — into the cell's output


def _is_debugger(frame: FrameType) -> bool:
    """Whether the loop of a debugger made of pdb's asks in ``frame``: it catches KeyboardInterrupt and asks again."""
    return isinstance(locals_of(frame).get("self"), pdb.Pdb)


def _stopped() -> CellStopped:
    return CellStopped("it was interrupted at a debugger's prompt")


def _text(prompt: Any) -> str:
    try:
        return str(prompt)
    except Exception as error:
        meant(error)
        raise


def _refuse_exit(_original: Any) -> NoReturn:
    words = "exit() would end this rank and leave a hole in the world: use %distributed stop in the notebook."
    raise meant(RuntimeError(words))

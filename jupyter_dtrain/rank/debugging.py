"""Python's debugger in a rank: a person's lines come by the rank's prompt, and what it prints goes to the person.

The rank needs neither a terminal nor a port for it. :class:`RankDebugger` is all that the rest of the rank knows of
debuggers: another kind, such as one that speaks the Debug Adapter Protocol, would take the place of :class:`RankPdb`.

Under failure: Stop ends the prompt as it ends any call. ``q`` and the end of the input end the cell by an exception
that ``except Exception`` does not catch; in another thread than the cell's, that exception ends the thread alone.
Breakpoints end with the cell, and so does the main thread's trace function: tracing slows all of the rank's Python. A
thread that outlives its cell is traced to its end.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import pdb  # noqa: T100 — the product's own debugger
import pprint
import re
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType, SimpleNamespace, TracebackType
from typing import IO, TYPE_CHECKING, Any, Final, cast

from IPython.core.error import UsageError

from jupyter_dtrain.core.frames import frame_of
from jupyter_dtrain.plugins.framework import locals_of
from jupyter_dtrain.plugins.patches import Patch, caller, meant
from jupyter_dtrain.wire.prompt_messages import Evaluate, Evaluated, LastError, ReadLastError

from .scripts import is_script
from .user_text import words_of

if TYPE_CHECKING:
    from jupyter_dtrain.core.stacks import Wait

    from .cell_sources import CellSources
    from .prompts import RankPrompts

BREAKPOINT = Patch(
    "sys",
    replaces=("breakpointhook",),
    why="The debugger that breakpoint() starts would read a rank's empty input.",
    lost="breakpoint() starts a debugger without a keyboard",
)
DEBUGGER = Patch(
    "pdb",
    replaces=("set_trace", "post_mortem", "Pdb.__init__"),
    why="A debugger would read a rank's empty input, and one that is made otherwise would take over Stop's signal.",
    lost="pdb.set_trace() starts a debugger without a keyboard, and Stop may start one that nobody reaches",
)

LONGEST: Final = 200
"""Characters of an error, and of its line, in a table."""
MOST: Final = 64_000
"""Characters of what a command prints that reach the person."""
_CELL = re.compile(r"(?:cell |in ?)?\[?(\d+)\]?\Z", re.IGNORECASE)
"""A cell as a person names it before a line: ``3``, ``cell 3``, ``cell [3]``, ``In[3]``."""
_FILE = re.compile(r"<ipython-input-[^>]*>")
_WHERE = ("w", "where", "bt")
_PROMPTS = ("(com) ", "() ")
"""Prompts that pdb prints itself, for a list of commands and in ``debug``; the person gets them another way."""
_PLACE = frozenset(
    ("botframe", "stopframe", "returnframe", "stoplineno", "stack", "curindex", "curframe", "curframe_locals", "lineno")
)
"""Where a debugger stands and what it stops at, by the names of pdb's attributes."""
_NO_FAILURE = "There is no error to look at on this rank: %debug looks at that of the last cell that failed."
_NO_CODE = "%debug takes no code here: put breakpoint() into it."
_ON_OFF = "%pdb on starts a debugger where a cell fails, on each rank where it does; %pdb off ends that."


class CellQuit(BaseException):
    """Ends a cell whose person has left the debugger; ``except Exception`` does not catch it."""


class RankDebugger:
    """Starts debuggers in the cells of this rank."""

    def __init__(
        self,
        prompts: RankPrompts,
        sources: CellSources,
        waits: Callable[[], Wait | None],
        here: Callable[[], dict[str, Any]],
        is_echo: Callable[[BaseException], bool],
    ) -> None:
        """``waits``: the call in which the main thread waits for other ranks.

        ``here``: names that conditions of breakpoints may use besides those of the frame. ``is_echo``: whether an error
        only says that another rank has failed.
        """
        self._prompts = prompts
        self._waits = waits
        self._main = threading.main_thread().ident or 0
        self._sources = sources
        self._here = here
        self._is_echo = is_echo
        self._started: dict[int, RankPdb] = {}
        """By thread, the debuggers of the cell that runs."""
        self.follows_errors = False
        """Whether a cell that fails starts one, as ``%pdb on`` asks for."""

    def install(self, shell: Any) -> None:
        """Have debuggers of this process come here. ``shell``: its IPython."""
        BREAKPOINT.when_imported(lambda module: BREAKPOINT.replace(module, "breakpointhook", self._breakpoint))
        DEBUGGER.when_imported(self._hook)
        shell.register_magic_function(self._debug, "line_cell", "debug")
        shell.register_magic_function(self._pdb, "line", "pdb")

    def _hook(self, module: Any) -> None:
        DEBUGGER.replace(module, "set_trace", self._set_trace)
        DEBUGGER.replace(module, "post_mortem", self._post_mortem)
        DEBUGGER.replace(module.Pdb, "__init__", _init)

    def stop(self, frame: FrameType, what: str, header: Any = None) -> None:
        """Start a debugger at ``frame``, which prints ``header`` first. ``what``: the call that asks for it."""
        debugger = self._debugger(what)
        sys.settrace(None)  # pdb would trace, and stop in, its own functions that begin anew
        if header is not None:
            debugger.message(header)
        debugger.set_trace(frame)

    def stop_between(self, frame: FrameType, words: str) -> None:
        """Start a debugger in ``frame``, whose code goes on after a step was counted; it says ``words`` first.

        Raises :class:`RuntimeError` where nobody can answer.
        """
        debugger = self._debugger("a value that differs", of_cell=False)
        sys.settrace(None)  # as in :meth:`stop`
        debugger.stdout.write(f"{words}\n")
        debugger.stop_at_next_line(frame)

    def look_at(self, trace: TracebackType, what: str, *, of_cell: bool = True) -> None:
        """Look at what a traceback ends in, until the person goes on; breakpoints stay as they are.

        ``what``: the call that asks for it; ``of_cell``: whether the cell's code has made it.
        """
        debugger = self._debugger(what, of_cell=of_cell)
        with contextlib.suppress(CellQuit):  # there is nothing to end
            debugger.look(trace)

    def end(self) -> None:
        """Forget the debuggers of the cell. Main thread, where its trace function is in force."""
        while self._started:
            self._started.popitem()[1].leave()

    @property
    def is_used(self) -> bool:
        """Whether the cell has started one."""
        return bool(self._started)

    def answer(self, question: Evaluate | ReadLastError) -> Evaluated | LastError:
        """Answer a question about this rank; any thread but the main one."""
        return self.evaluate(question) if isinstance(question, Evaluate) else self._failure()

    def _failure(self) -> LastError:
        error = getattr(sys, "last_value", None)
        if error is None or error.__traceback__ is None:
            return LastError("")
        own = [
            (frame, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if self._is_own(frame.f_code.co_filename)
        ]
        words = words_of(error).partition("\n")[0][:LONGEST]
        if not own:
            return LastError(words, echo=self._is_echo(error))
        frame, line = own[-1]
        file = frame.f_code.co_filename
        at = f"{self._sources.name_of(file) or file}, line {line}: {linecache.getline(file, line).strip()}"
        return LastError(words, at[:LONGEST], self._is_echo(error))

    def evaluate(self, question: Evaluate) -> Evaluated:
        """Carry out a command that only looks, in the innermost frame of the user's code.

        Only while the main thread waits for other ranks: the frame of one that runs changes meanwhile. What the
        expression raises, and why any other command is refused, is the answer, in words.
        """
        if self._prompts.run != question.run or (wait := self._waits()) is None:
            return Evaluated("", "")
        frame = frame_of(self._main)
        stack = [step for step, _ in traceback.walk_stack(frame)]
        own = [step for step in stack if self._is_own(step.f_code.co_filename)]
        if not own:
            return Evaluated("", "")
        command, _, text = question.command.strip().partition(" ")
        try:
            found = _look(command, text.strip(), own[0]) if command not in _WHERE else self._where(own)
        except BaseException as error:  # noqa: BLE001 — a person's own expression, which may raise anything
            found = f"*** {type(error).__name__}: {error}"
        return Evaluated(wait.call, found[:MOST])

    def _where(self, own: list[FrameType]) -> str:
        lines = []
        for frame in reversed(own):
            mark = ">" if frame is own[0] else " "
            file, line = frame.f_code.co_filename, frame.f_lineno or frame.f_code.co_firstlineno
            name = self._sources.name_of(file) or file
            lines.append(f"{mark} {name}({line}){frame.f_code.co_name}()\n-> {linecache.getline(file, line).strip()}")
        return "\n".join(lines)

    def _is_own(self, file: str) -> bool:
        return self._sources.name_of(file) is not None or is_script(file)

    def _debugger(self, what: str, *, of_cell: bool = True) -> RankPdb:
        self._prompts.check(what, of_cell=of_cell)
        found = self._started.get(threading.get_ident())
        if found is None:
            found = RankPdb(
                lambda text, said: self._prompts.ask_debugger(text, what, said),
                self._sources.name_of,
                self._sources.file_of,
                self._is_own,
                self._here,
            )
            self._started[threading.get_ident()] = found
        return found

    def _breakpoint(self, _original: Any, *_args: Any, header: Any = None, **_options: Any) -> None:
        if os.environ.get("PYTHONBREAKPOINT") != "0":  # Python's own way to turn them off
            self.stop(caller(), "breakpoint()", header)

    def _set_trace(self, _original: Any, *_args: Any, header: Any = None, **_options: Any) -> None:
        self.stop(caller(), "pdb.set_trace()", header)

    def _post_mortem(self, _original: Any, t: Any = None) -> None:
        trace = t if t is not None else sys.exc_info()[2]
        trace = getattr(trace, "__traceback__", trace)  # from Python 3.13 on, an exception does as well
        if trace is None:
            raise meant(ValueError("A valid traceback must be passed if no exception is being handled"))
        self.look_at(trace, "pdb.post_mortem()")

    def _debug(self, line: str = "", cell: str | None = None) -> None:
        if line.strip() or cell:
            raise UsageError(_NO_CODE)
        trace = getattr(getattr(sys, "last_value", None), "__traceback__", None)
        if trace is None:
            raise UsageError(_NO_FAILURE)
        self.look_at(trace, "%debug")

    def _pdb(self, line: str = "") -> None:
        wanted = line.strip().lower()
        if wanted not in ("", "on", "off", "1", "0"):
            raise UsageError(_ON_OFF)
        self.follows_errors = wanted in ("on", "1") if wanted else not self.follows_errors
        print(f"Automatic pdb calling has been turned {'ON' if self.follows_errors else 'OFF'}")  # noqa: T201


def _init(original: Any, debugger: Any, *args: Any, **options: Any) -> None:
    """Make any debugger, such as one of a library's, without handling SIGINT and without a person's own set-up."""
    original(debugger, *args[:4], **{**options, "nosigint": True, "readrc": False})


def _look(command: str, text: str, frame: FrameType) -> str:
    seen = locals_of(frame)
    if command == "args":
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
        return "\n".join(f"{name} = {seen.get(name, '*** undefined')!r}" for name in names)
    if command not in ("p", "pp", "whatis"):
        return f"*** A rank that waits answers p, pp, whatis, w and args, not {command!r}."
    if not text:
        return f"*** {command} needs an expression, as in {command} loss."
    value = eval(text, frame.f_globals, seen)  # noqa: S307 — a person's own expression
    if command == "whatis":
        return str(type(value))
    return pprint.pformat(value) if command == "pp" else repr(value)


class RankPdb(pdb.Pdb):
    """The debugger of one thread."""

    def __init__(
        self,
        ask: Callable[[str, str], str | None],
        name_of: Callable[[str], str | None],
        file_of: Callable[[str], str | None],
        is_own: Callable[[str], bool],
        here: Callable[[], dict[str, Any]],
    ) -> None:
        """``ask`` gets the prompt and what was printed, and returns a line; None is the end of the input.

        ``name_of`` and ``file_of`` lead from the file name of a cell's code to its name, and back. ``is_own``: whether
        a file is the user's. ``here``: names that conditions of breakpoints may use besides those of the frame.
        """
        self._printed = io.StringIO()
        self._asks = ask
        self._name_of = name_of
        self._file_of = file_of
        self._is_own = is_own
        self._here = here
        self._looks = False
        """Whether a person looks at an error, so that nothing can go on here."""
        # `nosigint`: it would take over the rank's SIGINT. `readrc`: a rank has no home of a person.
        super().__init__(
            stdin=cast("IO[str]", self), stdout=self._printed, nosigint=True, readrc=False, skip=["jupyter_dtrain.*"]
        )
        self.use_rawinput = False
        self.prompt = ""
        self.reset()

    def readline(self) -> str:
        """The next line, as pdb reads it from its input."""
        said = self._take()
        for prompt in _PROMPTS:
            said = said.removesuffix(prompt)
        if len(said) > MOST:
            said = f"{said[:MOST]}\n… {len(said) - MOST:,} characters more\n"
        line = self._asks("(com) " if getattr(self, "commands_defining", False) else "(Pdb) ", said)
        return "" if line is None else f"{line}\n"

    def _cmdloop(self) -> None:
        # pdb's own catches KeyboardInterrupt, and asks again.
        self.allow_kbdint = False
        self.cmdloop()

    def do_quit(self, arg: str) -> bool | None:  # noqa: ARG002 — pdb's signature
        """End the cell on this rank, or a look at an error."""
        if not self._looks:
            self.leave()
        raise CellQuit("quit at the debugger's prompt")

    do_q = do_exit = do_EOF = do_quit  # noqa: N815 — pdb's names

    def do_run(self, arg: str) -> bool | None:  # noqa: ARG002 — pdb's signature
        """Refuse: there is no program to run again."""
        self.error("a cell cannot be run again from here: q ends it")
        return None

    do_restart = do_run

    def stop_at_next_line(self, frame: FrameType) -> None:
        """Stop at the next line of ``frame``, which has called us, and not in what is called on the way back to it."""
        self.reset()
        step: FrameType | None = frame
        while step is not None:
            step.f_trace = self.trace_dispatch
            self.botframe, step = step, step.f_back
        self.set_next(frame)
        sys.settrace(self.trace_dispatch)

    def look(self, trace: TracebackType) -> None:
        """Look at what a traceback ends in, until the person goes on; then trace as before."""
        place, traced = {name: value for name, value in vars(self).items() if name in _PLACE}, sys.gettrace()
        sys.settrace(None)
        self.reset()
        self._looks = True
        try:
            self.interaction(None, trace)
        finally:
            self._looks = False
            self._let_go()
            vars(self).update(place)
            sys.settrace(traced)

    def set_continue(self) -> None:
        """Go on; from a look at an error, nothing goes on."""
        if not self._looks:
            super().set_continue()

    def leave(self) -> None:
        """Forget all breakpoints and frames, and trace no more on this thread."""
        self.clear_all_breaks()
        traced = sys.gettrace()
        self.set_continue()  # it also ends what is not this debugger's, such as a trace function of the user's
        if getattr(traced, "__self__", None) is not self:
            sys.settrace(traced)
        if self.botframe is not None and getattr(self.botframe.f_trace, "__self__", None) is self:
            self.botframe.f_trace = None  # of all frames, pdb leaves itself in this one, which is the engine's
        self._let_go()
        vars(self)["displaying"].clear()
        self._show()

    def _let_go(self) -> None:
        """Hold no frame of the cell: its variables would live as long."""
        self.forget()
        vars(self).pop("curframe_locals", None)

    def bp_commands(self, frame: FrameType) -> bool:
        """Carry out the commands of a breakpoint; whether a prompt follows. Else the cell shows what they print."""
        if super().bp_commands(frame):
            return True
        self._show()
        return False

    def _show(self) -> None:
        """Show in the cell what was printed since the last prompt."""
        if said := self._take():
            sys.stdout.write(said)

    def _take(self) -> str:
        said = self._printed.getvalue()
        self._printed.seek(0)
        self._printed.truncate()
        return said

    def break_here(self, frame: FrameType) -> bool:
        """Whether there is a breakpoint; its condition may use ``rank`` and ``step``."""
        lines = self.breaks.get(self.canonic(frame.f_code.co_filename), ())
        if frame.f_lineno not in lines and frame.f_code.co_firstlineno not in lines:
            return False
        seen = SimpleNamespace(
            f_code=frame.f_code,
            f_lineno=frame.f_lineno,
            f_globals={**self._here(), **frame.f_globals},
            f_locals=frame.f_locals,
        )
        return super().break_here(cast("FrameType", seen))

    def stop_here(self, frame: FrameType) -> bool:
        """Whether to stop. Code that no code of the user has called is IPython's, between two statements of a cell."""
        return super().stop_here(frame) and any(
            self._is_own(step.f_code.co_filename) for step, _ in traceback.walk_stack(frame)
        )

    def user_call(self, frame: FrameType, argument_list: Any) -> None:
        """Stop where a function begins; not where the next statement of a cell does, as its line comes next."""
        if frame.f_code.co_name != "<module>":
            super().user_call(frame, argument_list)

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """The stack without what lies above the user's code, in whose innermost frame a look at an error begins."""
        stack, index = super().get_stack(f, t)
        own = [at for at, (frame, _) in enumerate(stack) if self._is_own(frame.f_code.co_filename)]
        if not own:
            return stack, index
        return stack[own[0] :], max(0, (own[-1] if f is None else index) - own[0])

    def format_stack_entry(self, frame_lineno: tuple[FrameType, int], lprefix: str = ": ") -> str:
        """A line of the stack, with the names of cells."""
        return self._named(super().format_stack_entry(frame_lineno, lprefix))

    def message(self, msg: object) -> None:
        """Print ``msg``, with the names of cells. pdb passes values, too, as for ``whatis``."""
        super().message(self._named(str(msg)))

    def _named(self, text: str) -> str:
        return _FILE.sub(lambda found: self._name_of(found[0]) or found[0], text)

    def lookupmodule(self, filename: str) -> str | None:
        """The file that a person means in front of a line; a cell, too."""
        found = _CELL.match(filename.strip())
        return (found and self._file_of(f"cell [{found[1]}]")) or super().lookupmodule(filename)

"""Cells on their way to the ranks: where one comes from, what is checked before it goes out, and the wait for its end.

A front end finds the cell of a run again by the notebook's cell that runs in this process. The cell that runs a script
is checked here, and :func:`jupyter_dtrain.run_script` runs it in the ranks. A typing error reaches no rank.

Under failure: everything that can be refused is refused before anything was sent. A press of Stop goes to the ranks;
a cell that is waited for ends with its run, whose every step has a deadline.
"""

from __future__ import annotations

import ast
import contextlib
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.causes import LeftRunning, failure_of, failure_so_far
from jupyter_dtrain.core.errors import BadRequest, BadSyntax
from jupyter_dtrain.core.events import RunContext
from jupyter_dtrain.core.run import Run
from jupyter_dtrain.core.run_names import WIDTH
from jupyter_dtrain.core.secrets import environment_secrets, redact_command
from jupyter_dtrain.core.stop_button import StopButton, shutdown
from jupyter_dtrain.core.world import Ranks, parse_ranks, size_at
from jupyter_dtrain.wire.messages import Cell, Watching
from jupyter_dtrain.wire.requests import LOCAL
from jupyter_dtrain.wire.spool import Begun, last_run, read_beginning
from jupyter_dtrain.wire.steward_messages import ReadState

from .places import heading_above, notebook_file
from .prompts import AGAIN, PromptDesk, why_unanswered
from .rank_requests import check_free
from .submitted_run import SubmittedRun

if TYPE_CHECKING:
    from jupyter_dtrain.view import RunView
    from jupyter_dtrain.wire.requests import WorldRequest
    from jupyter_dtrain.wire.steward_messages import OpenRun

    from .link import Link
    from .notices import Notices
    from .rank_requests import RankRequests
    from .run_scheduler import RunScheduler
    from .steering import RunningLoop

MakeView = Callable[[Run], "RunView | None"]

Beside = Callable[[Run], Callable[[StopButton], None]]
"""The work beside a run, for as long as it lasts. It is called with the run once that is on its way to its ranks, and
returns what waits for the rest of the work after the run has ended; see :meth:`.elastic.Companion.follow`."""

ATTENDING = 0.1
"""Seconds between two looks whether ranks of the cell ask something."""
END_PATIENCE = 10.0
"""Seconds in which the steward knows why all ranks of a world are gone."""

_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def current_cell(code: str = "") -> Cell:
    """The cell that runs in this process, and from which ``code`` goes to the ranks."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None or shell.history_manager is None:
        return Cell()
    # The execution count is raised before a cell runs in some versions of IPython (9.18), after it in others.
    number = len(shell.history_manager.input_hist_parsed) - 1
    text, cell_id = shell.history_manager.input_hist_raw[-1], _id_of_cell(shell)
    context = RunContext()
    with contextlib.suppress(Exception):  # a namespace or a file of the user's may be anything
        notebook = notebook_file(shell)
        context = RunContext(notebook, heading_above(notebook, cell_id, text) if notebook else "")
    return Cell(number if number > 0 else None, cell_id, above=lines_above(text, code), context=context)


def lines_above(cell: str, code: str) -> int:
    """The lines of ``cell`` above ``code``, such as its magic; 0 if ``code`` is not the end of the cell."""
    cell, code = cell.rstrip(), code.rstrip()
    return cell.removesuffix(code).count("\n") if code and cell.endswith(f"\n{code}") else 0


def _id_of_cell(shell: object) -> str:
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return ""
    # JupyterLab, Notebook 7 and VS Code send it with every request to execute a cell.
    found = kernel.get_parent("shell").get("metadata", {}).get("cellId", "")
    return found if isinstance(found, str) else ""


def script_name(script: str | os.PathLike[str], arguments: Sequence[Any] = ()) -> str:
    """The name of a run of ``script``: its file and arguments, on one line, without secrets."""
    command = redact_command([Path(script).name, *map(str, arguments)], environment_secrets())
    words = "".join(one if one.isprintable() else " " for one in " ".join(command))
    return words if len(words) <= WIDTH else f"{words[: WIDTH - 1]}…"


def script_cell(
    script: str | os.PathLike[str], arguments: Sequence[Any] = (), *, module: bool = False, fresh: bool = False
) -> str:
    """The cell that runs ``script`` with ``arguments``, as text, on ranks of this machine.

    ``module``: ``script`` is the name of a module; the ranks look for it. ``fresh``: in a namespace of its own, which
    is dropped afterwards. Raises :class:`BadRequest` for a script that is not there, cannot be read, or is no Python,
    and for what cannot be the name of a module.
    """
    if module:
        name = os.fspath(script)
        if not all(part.isidentifier() for part in name.split(".")):
            raise BadRequest(f"{name!r} cannot be the name of a module, such as package.train; a file needs no -m.")
        return _call(name, arguments, module=True, fresh=fresh)
    path = Path(script).expanduser().absolute()
    try:
        source = path.read_bytes()
    except OSError as error:
        raise BadRequest(f"The script {path} cannot be read: {error.strerror}.") from None
    try:
        compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise BadRequest(f"{path.name}, line {error.lineno}: {error.msg}. No rank ran it.") from None
    except ValueError as error:
        raise BadRequest(f"{path.name} is not Python: {error}.") from None
    return _call(str(path), arguments, fresh=fresh)


def _call(script: str, arguments: Sequence[Any], **options: bool) -> str:
    given = [f"{name}=True" for name, value in options.items() if value]
    call = ", ".join([*map(repr, [script, *map(str, arguments)]), *given])
    return f"import jupyter_dtrain\njupyter_dtrain.run_script({call})"


def check_syntax(code: str, above: int = 0) -> None:
    """Raise :class:`BadSyntax` if ``code`` would not parse as an IPython cell, before it goes anywhere.

    The notebook's cell has so many lines ``above`` it.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    transform: Any = TransformerManager
    text = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            text = "\n" * above + transform().transform_cell(code)
            tree = compile(text, "<cell>", "exec", _FLAGS | ast.PyCF_ONLY_AST, dont_inherit=True)
            # IPython compiles each statement of a cell by itself: there an import from the future is always the first.
            later = [one for one in tree.body if isinstance(one, ast.ImportFrom) and one.module == "__future__"]
            rest = [one for one in tree.body if one not in later]
            for part in (rest, *([one] for one in later)):
                compile(ast.Module(part, []), "<cell>", "exec", _FLAGS, dont_inherit=True)
        except SyntaxError as error:
            lines = text.splitlines()
            if error.text is None and error.lineno is not None and 0 < error.lineno <= len(lines):
                error.text = lines[error.lineno - 1]  # the compiler, unlike the parser, looks for it in a file
            raise BadSyntax(error) from None
        except ValueError as error:
            raise BadRequest(f"The cell cannot be run: {error}.") from None
        except (RecursionError, MemoryError):
            raise BadRequest("The cell cannot be run: its code is nested too deeply for Python.") from None


class CellRunner:
    """The cells that one session runs. Thread-safe."""

    def __init__(
        self,
        link: Link,
        scheduler: RunScheduler,
        requests: RankRequests,
        notices: Notices,
        request: WorldRequest,
        loop: RunningLoop,
    ) -> None:
        """``request``: what the world was asked to be; ``loop``: that of the cell that runs."""
        self._link = link
        self._scheduler = scheduler
        self._requests = requests
        self._notices = notices
        self._request = request
        self.desk = PromptDesk(link, requests, loop)
        self.last: Run | None = None
        """The run that was submitted last, without those that only prepare ranks or join another run."""
        self._known: set[int] = set()
        """The runs that this session has submitted, or has found under way."""

    def ended(self, run: Run) -> None:
        """``run`` has ended, for the session. A cell that was refused may all the same begin on a rank, later."""
        if run.outcome != "ok":
            self._link.ask_again()
        if run.not_sent:
            self._known.discard(run.number)

    def run(
        self,
        code: str,
        ranks: Ranks,
        make_view: MakeView,
        *,
        wait: bool,
        timeout: float | None,
        inputs: Mapping[str, Any],
        watch: Watching,
        cell: Cell | None,
        joins: int | None = None,
        beside: Beside | None = None,
        aside: bool = False,
        ask: bool | None = None,
    ) -> Run:
        """As :meth:`.Session.run`; ``make_view`` makes the view of the run, ``cell`` is the notebook's.

        ``ask``: whether somebody answers the prompts of its ranks by :meth:`.Session.answer`; None: the person at this
        process, where there is one. ``joins``: the run that goes on in other ranks, and that these join; ``beside``:
        what makes a run elastic, the work that replaces its dead ranks; ``aside``: whether it only prepares ranks.
        """
        self._link.check_alive()
        self._link.check()
        try:
            # The runs that it did not know were on their way when this client took over. The question tells the
            # steward the number of this run, too: a cell whose values take their time to travel needs that.
            self._follow(self._link.confirm_drives(may_skip=not inputs), lambda _: None)
        finally:
            self._notices.show()
        chosen = parse_ranks(ranks, self._link.world.size)
        check_syntax(code, cell.above if cell is not None else 0)
        if timeout is not None and not timeout > 0:
            raise BadRequest(f"The timeout must be above 0 seconds, not {timeout!r}.")
        unanswered = AGAIN if aside or joins is not None else why_unanswered(wait=wait, ask=ask)
        packed = self._requests.pack(inputs, chosen)
        self._link.check_ranks(chosen)
        check_free(chosen, self._scheduler.left_behind())
        with StopButton() as stop_button:
            run = self._make(self._link.number_run(), code, chosen, aside=aside or joins is not None)
            view = make_view(run)
            try:
                submitted = SubmittedRun(
                    run,
                    view,
                    inputs=packed,
                    timeout=timeout,
                    watch=watch,
                    cell=cell,
                    joins=joins,
                    elastic=beside is not None,
                    unanswered=unanswered,
                )
                self._scheduler.submit(submitted)
                await_rest = None if beside is None else beside(run)
                stop_button.pass_to(self._scheduler.press)
                while wait and not run.wait(1.0 if unanswered else ATTENDING):
                    if shutdown.asked:
                        raise LeftRunning(run, self._link.listing.name)
                    if not unanswered and not ask:
                        self._attend(submitted, stop_button)
                if wait and await_rest is not None:
                    await_rest(stop_button)
            except KeyboardInterrupt:
                # Other code handles SIGINT, or the kernel shuts down. But for that, the ranks must not go on with what
                # no thread waits for any more.
                self._scheduler.press()
                raise
        if wait and run.outcome != "ok":
            if run.outcome != "interrupted":
                self._await_end_of_world(run)
            if failure := failure_of(run):
                raise failure
        stop_button.check()
        return run

    def _attend(self, submitted: SubmittedRun, stop_button: StopButton) -> None:
        # While the run is queued, this kernel, which waits for it, can answer those before it in no other way.
        for run in [submitted.run] if submitted.sent else self._scheduler.adopted():
            self.desk.attend(run, stop_button)

    def _await_end_of_world(self, run: Run) -> None:
        """Where all ranks of other hosts were lost at once, their hosts were taken away: the steward finds out why."""
        if self._request.launcher == LOCAL or len(run.lost) < run.size:
            return
        deadline = time.monotonic() + END_PATIENCE
        while not self._link.over and time.monotonic() < deadline:
            time.sleep(0.05)
        run.world_end = self._link.loss

    def follow_all(self, make_view: MakeView) -> None:
        """Follow what other clients have begun: all runs that go on, and the newest, which is read to its end."""
        state = self._link.ask(ReadState())
        # The driver of before may have sent a cell that no rank has begun yet.
        self._link.skip_run(state.last_run)
        newest = last_run(self._request.spool)
        self._follow(state.runs, make_view)
        if newest is None or newest.number in self._known:
            return
        run = self._adopt(newest, make_view)
        if not self._requests.may_go_on(run):
            # A cell that is run now must not queue behind it.
            run.wait(self._request.settings.request_timeout)

    def _follow(self, runs: list[OpenRun], make_view: MakeView) -> None:
        """Follow those of ``runs`` that this session does not know."""
        for open_run in runs:
            if open_run.run not in self._known:
                found = read_beginning(self._request.spool, open_run.run)
                # Where a disk is full, no rank may have kept its beginning.
                self._adopt(found or Begun(open_run.run, "", open_run.ranks, 0.0), make_view)

    def _adopt(self, began: Begun, make_view: MakeView) -> Run:
        self._link.skip_run(began.number)
        run = self._make(began.number, began.source, began.ranks)
        run.began_earlier(began.seconds)
        self._scheduler.adopt(SubmittedRun(run, make_view(run), adopted=True))
        return run

    def run_aside(self, code: str, ranks: list[int] | None, name: str, *, wait: bool) -> Run:
        """Run code that prepares ranks, named ``name`` in lists: nothing is shown, and no losses are taken.

        Raises as :meth:`run`.
        """
        return self.run(
            code,
            ranks,
            lambda _: None,
            wait=wait,
            timeout=None,
            inputs={},
            watch=Watching(metrics=False),
            cell=Cell(run_name=name, context=RunContext(aside=True)),
            aside=True,
        )

    def _make(self, number: int, code: str, ranks: list[int], *, aside: bool = False) -> Run:
        size = size_at(ranks, self._link.world.size)
        run = Run(number, code, ranks, size, self._requests.read_events, self._request.id, explain=failure_so_far)
        self._known.add(number)
        if not aside and (self.last is None or number >= self.last.number):
            self.last = run
        return run

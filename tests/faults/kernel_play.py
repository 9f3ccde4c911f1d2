"""A play whose client is a notebook's kernel, which ends."""

from __future__ import annotations

import contextlib
import time

import psutil

from jupyter_dtrain import NoWorld, Session
from jupyter_dtrain.launch import worlds
from tests.faults import cells
from tests.faults.play import INTERRUPT, SLACK, Play
from tests.faults.worlds import SETTINGS, left_of, new_mark
from tests.kernels import Notebook
from tests.processes import loose_segments


class KernelPlay(Play):
    """It ends the kernel, attaches to the world, and looks at the run that goes on there."""

    def run(self) -> tuple[float, str]:
        plan, options = self.plan, self._worlds.options
        mark = new_mark()
        shared = loose_segments()
        notebook = Notebook({"DTRAIN_TEST_MARK": mark})
        session, folders = None, []
        try:
            start = f"session = jupyter_dtrain.Session.start({plan.size}, name={mark!r}, **{options})"
            notebook.run(f"import jupyter_dtrain\n{start}\nsession.run({cells.PREPARE!r}, view=None)")
            notebook.run(f"run = session.run({self.code!r}, wait=False, view=None)")
            notebook.run("import time\nwhile not all(t.lines for t in run.totals.values()): time.sleep(0.01)")
            folders = notebook.run("print(*session.request.passing_folders)").split()
            world = psutil.Process(int(notebook.run("print(session._link.listing.steward)")))
            before = {
                rank: (int(pid),)
                for rank, pid in enumerate(notebook.run("print(*(r.pid for r in session.world.ranks))").split())
            }
            began = time.monotonic()
            self._end(notebook)
            if self.row.after == "ended":
                limit = self.row.ends.of(SETTINGS) if self.row.ends else 0.0
                self._comes(lambda: not world.is_running(), "the world goes on", limit + SLACK)
                return time.monotonic() - began, "lost"
            if plan.mode == "alone":
                self._go.touch()
            session = Session.attach(mark)
            run = session.last_run
            assert run is not None
            if plan.mode == "interrupted":
                self._check(session.controls, "the client that attaches to it does not drive it")
                began = time.monotonic()
                session.interrupt()
            self._check(run.wait(SETTINGS.interrupt_timeout + INTERRUPT + SLACK), "the cell goes on")
            seconds = time.monotonic() - began
            wanted = "interrupted" if plan.mode == "interrupted" else self.row.outcome
            limit = self.row.ends.of(SETTINGS) + SLACK if self.row.ends else 0.0
            self._check(plan.mode == "interrupted" or seconds < limit, f"it took {seconds:.1f} s")
            self._check(run.outcome == wanted, f"ended as {run.outcome}, not as {wanted}")
            self._check(run.text(0, "stdout").startswith("here\n"), "what was said is not there")
            self._check_ranks(session, before, range(plan.size), meet=True)
            return seconds, run.outcome
        finally:
            if session is not None:
                session.leave()
            notebook.close()
            with contextlib.suppress(NoWorld):
                worlds.stop_world(mark)
                if self.row.after == "ended":
                    self.problems.append("the world goes on")
            self.problems += left_of(mark, folders, shared)

    def _end(self, notebook: Notebook) -> None:
        match self.plan.situation:
            case "kernel-killed":
                notebook.kill()
            case "kernel-restarted":
                notebook.manager.restart_kernel()
            case "kernel-shut-down":
                notebook.manager.shutdown_kernel()

"""Plays in which a rank of a notebook's cell is at a prompt, and something ends that is needed for an answer."""

from __future__ import annotations

import ast
import contextlib
import time
from typing import Any

from jupyter_dtrain import NoWorld, Run, Session
from jupyter_dtrain.launch import worlds
from jupyter_dtrain.wire.prompt_messages import AnswerPrompts
from jupyter_dtrain.wire.steward_messages import ReadState
from tests.faults import cells
from tests.faults.play import INTERRUPT, PATIENCE, SLACK, Play
from tests.faults.worlds import HANG, SETTINGS, left_of, new_mark
from tests.kernels import Notebook
from tests.processes import loose_segments
from tests.steward.until import stays

TYPED = "a word"


class PromptPlay(Play):
    """The notebook has a kernel of its own; this process looks on, and takes over where that kernel is gone."""

    def run(self) -> tuple[float, str]:
        plan = self.plan
        mark, shared = new_mark(), loose_segments()
        notebook = Notebook({"DTRAIN_TEST_MARK": mark, "JUPYTER_DTRAIN_HANG_NOTICE": f"{HANG:g}"})
        session, folders = None, []
        try:
            start = f"session = jupyter_dtrain.Session.start({plan.size}, name={mark!r}, **{self._worlds.options})"
            notebook.run(f"%load_ext jupyter_dtrain\nimport jupyter_dtrain\n{start}")
            notebook.run(f"session.run({cells.PREPARE!r}, view=None)")
            folders = notebook.run("print(*session.request.passing_folders)").split()
            pids = ast.literal_eval(notebook.run("print([rank.pid for rank in session.world.ranks])"))
            before = {rank: (pid,) for rank, pid in enumerate(pids)}
            notebook.client.execute(f"%%distributed\n{self.code}", allow_stdin=True, stop_on_error=False)
            asks = (plan.victim + 1) % plan.size if plan.situation == "prompt-peer-failed" else plan.victim
            box = notebook.client.get_stdin_msg(timeout=PATIENCE)["content"]["prompt"]
            self._check(box == f"rank {asks}: token? ", f"the box asks {box!r}")
            if plan.situation == "prompt-kernel-killed":
                notebook.kill()
            session = Session.attach(mark, view=lambda *_: self._notes)
            run = session.last_run
            assert run is not None
            self._until(lambda: asks in session.prompts, "another client sees the prompt")
            limit = self._go_on(notebook, session, run, asks)
            began = time.monotonic()
            self._check(run.wait(limit), f"the cell goes on after {limit:g} s")
            seconds = time.monotonic() - began
            outcomes = ["interrupted", self.row.outcome] if plan.mode == "interrupted" else [self.row.outcome]
            self._check(run.outcome in outcomes, f"ended as {run.outcome}, not as {outcomes[0]}")
            self._check(not session.prompts, "a prompt is open in a run that is over")
            self._check(not any("moved for" in words for words in self._notes.words), "a prompt counts as a hang")
            if plan.mode == "attended" and plan.situation != "prompt-killed":
                said = run.text(asks, "stdout")
                self._check(said.endswith(f"typed {TYPED}\n"), f"the rank that asks has said {said!r}")
            if plan.situation == "prompt-kernel-killed":
                self._check_ranks(session, before, range(plan.size), meet=True)
            else:
                self._check_notebook(notebook, before)
            return seconds, run.outcome
        finally:
            if session is not None:
                session.leave()
            notebook.close()
            with contextlib.suppress(NoWorld):
                worlds.stop_world(mark)
            self.problems += left_of(mark, folders, shared)

    @property
    def code(self) -> str:
        begin = f"{cells.MEET[self.plan.framework]}\nvictim = {self.plan.victim}\nGO = {str(self._go)!r}\n"
        return begin + cells.cell_of(self.plan.situation, self.plan.framework)

    def _go_on(self, notebook: Notebook, session: Session, run: Run, asks: int) -> float:
        """Have it come about, and then answer or interrupt; the seconds after which the cell has ended."""
        situation, interrupts = self.plan.situation, self.plan.mode == "interrupted"
        self._check(session.controls is (situation == "prompt-kernel-killed"), "another client drives the world")
        if situation == "prompt-killed":
            self._stays_open(session, asks)
            self._go.touch()
        elif situation == "prompt-peer-failed":
            self._go.touch()
            others = {*range(self.plan.size)} - {asks}
            self._until(lambda: others <= {*run.outcomes}, "all ranks but the one that asks have ended")
            self._stays_open(session, asks)
        elif situation == "prompt-page-closed":
            notebook.client.stop_channels()
            self._stays_open(session, asks)
            notebook.client = notebook.manager.client()
            notebook.client.start_channels()
        else:
            self._stays_open(session, asks)
        if interrupts:
            if situation == "prompt-kernel-killed":
                session.interrupt()
            else:
                notebook.manager.interrupt_kernel()
            return SETTINGS.interrupt_timeout + INTERRUPT + SLACK
        if situation == "prompt-kernel-killed":
            session.answer(TYPED)
        elif situation == "prompt-page-closed":
            # As the panel of another page does: it answers in the name of the notebook that drives the world.
            driver = session._link.ask(ReadState()).driver
            assert driver is not None
            asked = {rank: one.number for rank, one in session.prompts.items()}
            session._link.ask(AnswerPrompts(driver.id, run.number, asked, TYPED, "another page"))
        elif situation == "prompt-peer-failed":
            notebook.client.input(TYPED)
        return SLACK + (self.row.ends.of(SETTINGS) if self.row.ends else SETTINGS.release_grace)

    def _stays_open(self, session: Session, asks: int) -> None:
        """Nothing ends the prompt, and nobody calls it a hang."""
        try:
            stays(lambda: asks in session.prompts, HANG + 1)
        except AssertionError:
            self.problems.append("the prompt was ended, although nobody has answered it")

    def _check_notebook(self, notebook: Notebook, before: dict[int, Any]) -> None:
        """The cell says what has happened; its box is withdrawn, and the next cell finds the ranks as the row says."""
        victim, size = self.plan.victim, self.plan.size
        after = self.row.interrupted if self.plan.mode == "interrupted" else self.row.after
        if self.plan.situation != "prompt-page-closed":
            reply = notebook.client.get_shell_msg(timeout=PATIENCE)["content"]
            self._check(reply["status"] == "error", "the cell ends well")
            if self.plan.mode == "attended":
                self._hear("\n".join(reply.get("traceback", [])))
        living = [rank for rank in range(size) if after == "whole" or rank != victim]
        if after == "dead":
            answer = notebook.client.execute_interactive(
                "%%distributed\n1", timeout=PATIENCE, output_hook=lambda _: None
            )
            reply = answer["content"]
            told = "\n".join(reply.get("traceback", []))
            self._check("%distributed replace" in told, f"the next cell names no way on: {told!r}")
        self._look(notebook, {rank: before[rank] for rank in living}, meet=after == "whole")
        if after == "dead":
            prepare = f"session.run({cells.PREPARE!r}, {victim}, view=None)"
            notebook.run(f"%distributed replace\nsession.run('pass', view=None)\n{prepare}")
            pids = ast.literal_eval(notebook.run("print([rank.pid for rank in session.world.ranks])"))
            self._check([pids[rank] for rank in living] == [before[rank][0] for rank in living], "others were replaced")
            self._look(notebook, {rank: (pid,) for rank, pid in enumerate(pids)}, meet=True)

    def _look(self, notebook: Notebook, before: dict[int, Any], *, meet: bool) -> None:
        """As :meth:`._check_ranks`, in the notebook."""
        code = cells.LOOK.format(meet=cells.MEET[self.plan.framework], met="meet()" if meet else "None")
        run = f"session.run({code!r}, {[*before]}, view=None, timeout={PATIENCE})"
        found = notebook.run(f"print({{rank: one.data['text/plain'] for rank, one in {run}.results.items()}})")
        for rank, text in ast.literal_eval(found).items():
            wanted = repr((before[rank][0], True, float(self.plan.size) if meet else None))
            self._check(text == wanted, f"rank {rank} is {text}, not {wanted}")

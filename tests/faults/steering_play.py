"""Plays in which a person steers the loop of a cell, and something ends meanwhile."""

from __future__ import annotations

import ast
import contextlib
import threading
import time

from jupyter_dtrain import DistributedError, NotSteered, NoWorld, RanksBusy, Run, Session
from jupyter_dtrain.core.causes import blocks
from jupyter_dtrain.launch import worlds
from tests.faults import cells
from tests.faults.changes import ChangePlay
from tests.faults.play import INTERRUPT, PATIENCE, SLACK, Play
from tests.faults.worlds import HANG, SETTINGS, World, left_of, new_mark
from tests.hosts.launching import process_at
from tests.kernels import Notebook
from tests.processes import loose_segments
from tests.steward.until import stays, until

KILL = "if rank == victim: os.kill(os.getpid(), signal.SIGKILL)"


class SteeringPlay(Play):
    """This process steers; :attr:`problems` has the differences from the table, in words."""

    def run(self) -> tuple[float, str]:
        plan = self.plan
        world = self._worlds.world(plan.size, old_mpi=False)
        before = self._processes(world.session)
        self._hosts = [rank.host for rank in world.session.world.ranks]
        run = world.session.run(self.code, wait=False, view=self._notes)
        told: list[str] = []
        began = self._steer(world, run, told)
        if plan.mode == "interrupted":
            return self._interrupt(world, run, before)
        assert self.row.ends is not None
        limit = self.row.ends.of(SETTINGS) + SLACK
        ended(run, limit)
        seconds = time.monotonic() - began
        self._check(run.outcome == self.row.outcome, f"ended as {run.outcome}, not as {self.row.outcome}")
        self._check(not any(part.held for part in run.fold.ranks.values()), "a rank is held in a run that is over")
        self._hear("\n".join([*blocks(run), *told]))
        if plan.situation == "between-ends-first":
            said = {rank: run.text(rank, "stdout") for rank in range(plan.size)}
            self._check(all(text.endswith("value 0\n") for text in said.values()), f"the act was done: {said}")
        self._check_after(world, before, self.row.after)
        return seconds, run.outcome

    @property
    def code(self) -> str:
        return code_of(self)

    def _steer(self, world: World, run: Run, told: list[str]) -> float:
        """Steer until it has come about, and keep what is told; when it came about."""
        session, victim = world.session, self.plan.victim
        if self.plan.situation == "between-killed":
            began = time.monotonic()
            self._await(between(session, KILL, told))
            return began
        if self.plan.situation == "paused-killed":
            paused = session.loop.pause()
            stays_paused(self, run, paused.step)
            process_at(self._worlds.network, session, victim).kill()
            return time.monotonic()
        self._until(lambda: self._said(run, 1), "one rank makes no more steps")
        act = between(session, "value = 1", told)
        others = [run.fold.rank(rank) for rank in self._others]
        self._until(lambda: all(part.held for part in others), "the others are held at the step")
        if self.plan.mode == "attended":
            self._go.touch()
        began = time.monotonic()
        if self.plan.mode == "interrupted":
            session.interrupt()
        self._await(act)
        return began

    def _await(self, act: threading.Thread) -> None:
        act.join(PATIENCE)
        if act.is_alive():
            raise TimeoutError("the act goes on, although a rank will never do it")


class PausedKernelPlay(Play):
    """The notebook has a kernel of its own, which pauses the loop and is killed; this process takes over."""

    def run(self) -> tuple[float, str]:
        plan = self.plan
        mark, shared = new_mark(), loose_segments()
        notebook = Notebook({"DTRAIN_TEST_MARK": mark, "JUPYTER_DTRAIN_HANG_NOTICE": f"{HANG:g}"})
        session, folders = None, []
        try:
            start = f"session = jupyter_dtrain.Session.start({plan.size}, name={mark!r}, **{self._worlds.options})"
            notebook.run(f"import jupyter_dtrain\n{start}\nsession.run({cells.PREPARE!r}, view=None)")
            folders = notebook.run("print(*session.request.passing_folders)").split()
            pids = ast.literal_eval(notebook.run("print([rank.pid for rank in session.world.ranks])"))
            notebook.run(f"run = session.run({code_of(self)!r}, wait=False, view=None)")
            step = int(notebook.run("print(session.loop.pause().step)"))
            notebook.kill()
            session = Session.attach(mark, view=lambda *_: self._notes)
            run = session.last_run
            assert run is not None
            self._check(session.controls, "the client that attaches to it does not drive it")
            self._until(lambda: run.fold.paused == step, "another client sees the pause")
            stays_paused(self, run, step)
            began = time.monotonic()
            if plan.mode == "interrupted":
                session.interrupt()
            else:
                session.loop.resume()
                session.loop.between("going = False")
            limit = SETTINGS.interrupt_timeout + INTERRUPT + SLACK
            ended(run, limit)
            seconds = time.monotonic() - began
            wanted = "interrupted" if plan.mode == "interrupted" else self.row.outcome
            self._check(run.outcome == wanted, f"ended as {run.outcome}, not as {wanted}")
            self._check_ranks(session, {rank: (pid,) for rank, pid in enumerate(pids)}, range(plan.size), meet=True)
            return seconds, run.outcome
        finally:
            if session is not None:
                session.leave()
            notebook.close()
            with contextlib.suppress(NoWorld):
                worlds.stop_world(mark)
            self.problems += left_of(mark, folders, shared)


class SteeredChangePlay(ChangePlay):
    """A loop is paused, and an act waits or goes on, where a person replaces, resizes and restarts ranks."""

    def run(self) -> tuple[float, str]:
        world = self._worlds.world(self.plan.size, old_mpi=False)
        session = world.session
        before = {rank.rank: rank.pid for rank in session.world.ranks}
        code = f"{cells.MEET[self.plan.framework]}\nvictim = 0\nprint('begun', flush=True)\n{cells.STEERED}"
        run = session.run(code, wait=False, view=None)
        until(lambda: all(totals.lines for totals in run.totals.values()), PATIENCE)
        step = session.loop.pause().step
        for change in (session.replace, lambda: session.resize(self.plan.size + 1)):
            try:
                change()
                self.problems.append("the world is changed while a loop is paused")
            except RanksBusy as busy:
                self._check(f"still work on run {run.number}" in str(busy), f"not told why: {busy}")
        self._check(run.fold.paused == step, "a change that was refused has ended the pause")
        told: list[str] = []
        act = between(session, "print('acts', flush=True)\nsleep()", told)
        until(lambda: all(run.text(rank, "stdout").endswith("acts\n") for rank in before), PATIENCE)
        began = time.monotonic()
        world.restart()
        act.join(PATIENCE)
        seconds = time.monotonic() - began
        self._check(told == ["The ranks have ended. It may have been done on some ranks."], f"told: {told}")
        with contextlib.suppress(DistributedError):
            ended(run, PATIENCE)
        self._check(run.outcome == "lost", f"the cell ended as {run.outcome}, not as lost")
        self._mend(world, {}, before)
        return seconds, "ok"


def code_of(play: Play) -> str:
    """The cell of a play, which begins at once."""
    plan = play.plan
    begin = f"{cells.MEET[plan.framework]}\nvictim = {plan.victim}\nGO = {str(play._go)!r}\n"
    return begin + cells.cell_of(plan.situation, plan.framework)


def between(session: Session, code: str, told: list[str]) -> threading.Thread:
    """Have ``code`` run between two steps; ``told`` gets why that was not done, or what became of it after all."""

    def act() -> None:
        try:
            told.append(f"It was done: {session.loop.between(code)!r}")
        except NotSteered as error:
            told.append(str(error))

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def ended(run: Run, limit: float) -> None:
    """Wait for the end of the run: whatever is to come next would wait for it as well."""
    if not run.wait(limit):
        raise TimeoutError(f"the cell goes on after {limit:g} s")


def stays_paused(play: Play, run: Run, step: int) -> None:
    """Nothing ends the pause, and nobody calls it a hang."""
    try:
        stays(lambda: run.fold.paused == step, HANG + 3)
    except AssertionError:
        play.problems.append("the pause has ended, although nobody has asked for that")
    play._check(not any("moved for" in words for words in play._notes.words), "a pause counts as a hang")

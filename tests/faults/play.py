"""Plays a situation of the failure table in a real world, and holds the world to the table.

A play never raises for what the world does wrong: it is in :attr:`Played.problems`, in words.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import psutil

from jupyter_dtrain import DistributedInterrupt, NoWorld, RanksBusy, RanksDead, Run, Session, Settings, WorldLost
from jupyter_dtrain.core.causes import blocks
from jupyter_dtrain.core.events import Finished
from jupyter_dtrain.core.failures import After, Situation, situations
from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.launch import worlds
from jupyter_dtrain.launch.local import find_mpiexec
from jupyter_dtrain.wire.spool import read_file, spool_path
from jupyter_dtrain.wire.steward_messages import ReadState
from tests.faults import cells, libraries
from tests.kernels import Notebook
from tests.processes import loose_segments, wait_for_segments, wait_until_gone
from tests.session.cells import Notes
from tests.steward.until import child_named, runs, stays, steward_of, until

Framework = Literal[
    "torch",
    "mpi",
    "lightning",
    "accelerate",
    "transformers",
    "deepspeed",
    "deepspeed-zero3",
    "fsdp2",
    "horovod",
    "horovod-stand-in",
    "jax",
    "tensorflow",
]
Mode = Literal["attended", "alone", "interrupted"]
"""A client looks on; it is gone before the situation comes about, and one attaches afterwards; it interrupts."""

HANG = 3.0
"""Seconds after which the worlds here tell that nobody moves."""
SETTINGS = Settings(hang_notice=HANG)
QUICK = Settings(hang_notice=HANG, interrupt_raise=2.0, interrupt_timeout=3.5)
"""With the same steps, sooner."""
INTERRUPT = 2.0
"""Seconds in which a cell has ended after the last step of an interrupt, whatever it does."""
SLACK = 6.0
"""Seconds that a busy machine may add to what the table says."""
PATIENCE = 30.0

IMPORTS = 300.0
"""Seconds that ranks may take to import a library."""

ROWS = {row.name: row for row in situations()}
LIBRARIES: tuple[Framework, ...] = tuple(
    name for name in get_args(Framework) if name in libraries.MEET and importlib.util.find_spec(libraries.NEEDS[name])
)
"""Those on top of PyTorch that are installed."""
DEATHS = ("killed", "segfault", "exit-0", "exit-3", "watch-killed", "types-torch")
"""Situations in which a rank dies: an interrupt comes as it does."""
SERVERS = ("worker-killed", "server-killed")
"""Situations of TensorFlow's parameter servers: a world of four ranks with roles of its own."""
SERVERS_SIZE = 4
KERNELS = ("kernel-killed", "kernel-restarted", "kernel-shut-down")
"""Situations that befall a client which is a notebook's kernel."""
OLD_MPI = """#!/bin/sh
[ "$1" = --version ] && echo "mpirun (Open MPI) 4.1.6" && exit
exec {mpiexec} "$@"
"""
"""A launcher that knows no ``--with-ft``: its MPI has no ULFM."""


class Plan(NamedTuple):
    """What is played."""

    situation: str
    framework: Framework
    size: int
    victim: int
    mode: Mode

    def __str__(self) -> str:
        return f"{self.situation}-{self.framework}-{self.size}-rank{self.victim}-{self.mode}"


class Played(NamedTuple):
    """What came of it."""

    plan: Plan
    seconds: float
    """From when it came about, or from the interrupt, to the end of the cell."""
    outcome: str
    problems: list[str]


def frameworks_of(situation: str) -> list[Framework]:
    """Those in which it can come about."""
    only = ROWS[situation].framework
    if only == "tensorflow":
        return ["tensorflow"] if importlib.util.find_spec("tensorflow") else []
    found: list[Framework] = [name for name in get_args(Framework)[:2] if only in ("", name)]
    return [*found, *LIBRARIES] if situation == "raises" else found


def modes_of(situation: str) -> list[Mode]:
    """Those that make sense."""
    if situation in SERVERS:
        return ["attended", "interrupted"]
    if situation in KERNELS:
        return ["alone", "interrupted"] if situation != "kernel-shut-down" else ["alone"]
    if situation in ("raises-everywhere", "steward-killed", "controller-killed"):
        # There is nothing to interrupt.
        return ["attended", "alone"]
    return ["attended", "alone", "interrupted"]


def all_plans(size: int, turn: int = 0) -> list[Plan]:
    """Each situation in each framework, once; with ``turn``, counted from 0, victims and modes change."""
    plans = []
    for index, situation in enumerate(ROWS):
        if situation in SERVERS and size != SERVERS_SIZE:
            continue
        for framework in frameworks_of(situation):
            modes = modes_of(situation)
            # Six turns take each mode with the first and with the last rank as the victim.
            mode = modes[(turn + index) % len(modes)]
            victim = 0 if ((turn + index) // len(modes) + (framework != "torch")) % 2 else size - 1
            if situation in SERVERS:
                victim = victim_of(situation, turn)
            plans.append(Plan(situation, framework, size, victim, mode))
    return plans


def victim_of(situation: str, turn: int = 0) -> int:
    """Of a chief (rank 0), two workers and a parameter server."""
    return 1 + turn % 2 if situation == "worker-killed" else SERVERS_SIZE - 1


def in_turns(situations: list[str], size: int) -> list[Plan]:
    """Each situation once: framework, victim and mode change from one to the next."""
    plans = []
    for index, situation in enumerate(situations):
        frameworks, modes = frameworks_of(situation), modes_of(situation)
        victim = 0 if index % 4 in (0, 3) else size - 1
        plans.append(Plan(situation, frameworks[index % len(frameworks)], size, victim, modes[index % len(modes)]))
    return plans


class Stage:
    """Keeps worlds for one play after the other; those that a play has broken are replaced."""

    def __init__(self, folder: Path, settings: Settings = SETTINGS) -> None:
        """``folder``: for files of the plays; ``settings``: of the worlds."""
        self.folder = folder
        self.settings = settings
        self._worlds: dict[tuple[int, bool], _World] = {}

    def play(self, plan: Plan) -> Played:
        """Play it."""
        play = _Play(self, plan)
        try:
            seconds, outcome = play.run()
        except (Exception, DistributedInterrupt) as error:  # noqa: BLE001 — what a play of a broken world meets, too
            play.problems.append(f"{type(error).__name__}: {error}")
            seconds, outcome, play.broken = 0.0, "", True
        if play.broken or play.problems:
            play.problems += self.discard(plan.size, old_mpi=play.old_mpi)
        return Played(plan, seconds, outcome, play.problems)

    def world(self, size: int, *, old_mpi: bool, mark: str | None = None) -> _World:
        """A world with all of its ranks, idle. ``mark``: the name of one that has to be started."""
        key = (size, old_mpi)
        if key not in self._worlds:
            self._worlds[key] = _World(size, self._mpiexec() if old_mpi else None, self.settings, mark or new_mark())
        return self._worlds[key]

    def discard(self, size: int, *, old_mpi: bool) -> list[str]:
        """End the world of that size; what it left behind."""
        world = self._worlds.pop((size, old_mpi), None)
        return [] if world is None else world.end()

    def close(self) -> list[str]:
        """End all worlds; what they left behind."""
        return [line for size, old_mpi in list(self._worlds) for line in self.discard(size, old_mpi=old_mpi)]

    def _mpiexec(self) -> str:
        path = self.folder / "mpiexec"
        path.write_text(OLD_MPI.format(mpiexec=find_mpiexec(None)))
        path.chmod(0o755)
        return str(path)


def new_mark() -> str:
    """A name that no other world has."""
    return f"play-{secrets.token_hex(8)}"


class _World:
    """A world, the session that drives it, and how to see that nothing of it is left."""

    def __init__(self, size: int, mpiexec: str | None, settings: Settings, mark: str) -> None:
        self.mark = mark
        """Its name, and the value of ``DTRAIN_TEST_MARK`` in all of its processes."""
        self.shared = loose_segments()
        with _environment(DTRAIN_TEST_MARK=self.mark):
            self.session = Session.start(size, name=self.mark, settings=settings, mpiexec=mpiexec)
        self.session.run(cells.PREPARE, view=None)

    def restart(self) -> None:
        """Fresh ranks."""
        self.session.restart()
        self.session.run(cells.PREPARE, view=None)

    def end(self) -> list[str]:
        self.session.leave()
        with contextlib.suppress(NoWorld):
            worlds.stop_world(self.mark)
        return left_of(self.mark, self.session.request.passing_folders, self.shared)


def left_of(mark: str, folders: list[str], shared: set[str]) -> list[str]:
    """What a world that has ended left behind: processes, and with them their sockets; folders; shared memory."""
    left = [f"left behind: process {line}" for line in wait_until_gone(mark)]
    with contextlib.suppress(AssertionError):  # what is there still is named below
        until(lambda: not any(Path(folder).exists() for folder in folders), 5)
    left += [f"left behind: {folder}" for folder in folders if Path(folder).exists()]
    return left + [f"left behind: /dev/shm/{name}" for name in wait_for_segments(shared)]


class _Play:
    """One play."""

    def __init__(self, stage: Stage, plan: Plan) -> None:
        self.plan = plan
        self.row: Situation = ROWS[plan.situation]
        self.problems: list[str] = []
        self.broken = False
        """Whether the world is not to be used again."""
        self.old_mpi = plan.situation == "no-ulfm"
        self._stage = stage
        self._go = stage.folder / f"go-{secrets.token_hex(4)}"
        self._others = [rank for rank in range(plan.size) if rank != plan.victim]
        self._notes = Notes()

    def run(self) -> tuple[float, str]:
        if self.plan.situation in KERNELS:
            return _KernelPlay(self).run()
        if self.plan.situation in SERVERS:
            return _ServersPlay(self).run()
        world = self._stage.world(self.plan.size, old_mpi=self.old_mpi)
        before = self._processes(world.session)
        if self.plan.framework in LIBRARIES:
            # Imported and warm: what is timed below is the failure.
            warm = f"{cells.MEET[self.plan.framework]}\nmeet()"
            world.session.run(warm, view=None, timeout=IMPORTS)
        run = world.session.run(self.code, wait=False, view=self._notes)
        self._until(lambda: self._said(run, 1), "all ranks have begun")
        if self.plan.mode == "alone":
            world.session.leave()
        began = time.monotonic()
        self._befall(world)
        self._go.touch()
        if self.plan.mode == "alone":
            self._wait_alone(world.session, run, began)
            if self.row.after == "ended":
                seconds = time.monotonic() - began
                self._check_ended(world)
                return seconds, "lost"
            alone = time.monotonic() - began
            world.session = Session.attach(world.mark, view=lambda *_: self._notes)
            run = world.session.last_run
        if self.plan.mode == "interrupted" or self.row.ends is None:
            self._until(lambda: self._has_befallen(world.session, run, before), "it has come about on all ranks")
            if self.plan.mode != "interrupted":
                self._hear_of_hang()
            return self._interrupt(world, run, before)
        limit = self.row.ends.of(SETTINGS)
        self._check(run.wait(limit + SLACK), f"the cell goes on after {limit + SLACK:g} s")
        seconds = alone if self.plan.mode == "alone" else time.monotonic() - began
        if self.row.after == "unhealable":
            self._comes(lambda: self._notices(world), "nothing is told")
        self._check(run.outcome == self.row.outcome, f"ended as {run.outcome}, not as {self.row.outcome}")
        self._hear("\n".join([*blocks(run), *self._notes.words, *self._texts(run), *self._notices(world)]))
        self._check_after(world, before, self.row.after)
        return seconds, run.outcome

    @property
    def code(self) -> str:
        begin = cells.BEGIN.format(meet=cells.MEET[self.plan.framework], victim=self.plan.victim, go=str(self._go))
        return begin + cells.cell_of(self.plan.situation, self.plan.framework)

    def _befall(self, world: _World) -> None:
        match self.plan.situation:
            case "steward-killed":
                steward_of(world.session).kill()
            case "controller-killed":
                child_named(world.session, "controller").kill()
            case "mpiexec-killed":
                child_named(world.session, "prterun").kill()

    def _wait_alone(self, session: Session, run: Run, began: float) -> None:
        """Without a client: until the ranks' logs tell the end, or for as long as a hang takes to be told."""
        if self.row.ends is None:
            stays(lambda: not self._ended(session, run), HANG)  # nothing is to come of it meanwhile
            return
        limit = began + self.row.ends.of(SETTINGS) + SLACK
        if self.row.after == "ended":
            ends = limit - time.monotonic()
            self._comes(lambda: not Path(session.request.folder).exists(), "without a client the world goes on", ends)
            return

        # Of a rank whose watch is gone nobody writes the end, nor where the disk is full.
        unwritten = self.plan.situation in ("watch-killed", "disk-full")
        ranks = self._others if unwritten else range(self.plan.size)
        ends = limit - time.monotonic()
        self._comes(lambda: self._ended(session, run).issuperset(ranks), "without a client it goes on", ends)

    def _ended(self, session: Session, run: Run) -> set[int]:
        """The ranks that have ended the run, as their spools tell it to who has no connection."""
        ended = set()
        for rank in range(self.plan.size):
            with contextlib.suppress(OSError):
                events = read_file(spool_path(session.request.spool, run.number, rank))
                ended |= {rank for event in events if isinstance(event.body, Finished)}
        return ended

    def _hear_of_hang(self) -> None:
        wanted = [words for words in self.row.words if not words.startswith("This MPI")]
        if not wanted:
            return
        told = HANG + 2 + SLACK
        self._comes(
            lambda: any("moved for" in words for words in self._notes.words), "nobody tells that it hangs", told
        )
        self._hear("\n".join(self._notes.words), wanted)

    def _interrupt(self, world: _World, run: Run, before: dict[int, Any]) -> tuple[float, str]:
        began = time.monotonic()
        world.session.interrupt()
        limit = self._stage.settings.interrupt_timeout + INTERRUPT + SLACK
        self._check(run.wait(limit), f"the cell goes on {limit:g} s after the interrupt")
        seconds = time.monotonic() - began
        self._check(run.outcome in ("interrupted", self.row.outcome), f"ended as {run.outcome} after the interrupt")
        if self.row.words and self.old_mpi:
            self._hear("\n".join(self._notices(world)), [self.row.words[-1]])
        self._check_after(world, before, self.row.interrupted)
        return seconds, run.outcome

    def _check_after(self, world: _World, before: dict[int, Any], after: After) -> None:
        session = world.session
        everybody = dict.fromkeys(range(self.plan.size))
        match after:
            case "ended":
                self._check_ended(world)
            case "whole":
                self._check_ranks(session, before, everybody, meet=True)
            case "unhealable":
                self._comes(lambda: session._link.ask(ReadState()).healable is False, "it is said to be healable")
                self._check_ranks(session, before, everybody, meet=True)
                self.broken = True
            case "dead":
                # An interrupt may be over before the death is noticed.
                self._until(lambda: session.world.dead, "a rank is dead")
                dead = [rank.rank for rank in session.world.dead]
                self._check(len(dead) == 1, f"{count_ranks(dead)} dead, not one")
                with contextlib.suppress(RanksDead):
                    session.run("1", view=None)
                    self.problems.append("a cell on all ranks is not refused")
                self._check_ranks(session, before, [rank for rank in everybody if rank not in dead], meet=False)
                world.restart()
            case "busy":
                self._check_busy(world, before)

    def _check_busy(self, world: _World, before: dict[int, Any]) -> None:
        session = world.session
        busy = sorted(session._fold.left_behind())
        with contextlib.suppress(RanksBusy):
            session.run("1", view=None)
            self.problems.append("a cell on all ranks is not refused")
        free = [rank for rank in range(self.plan.size) if rank not in busy]
        if self.old_mpi:
            self._check(self.plan.victim not in busy, "the rank that raised is busy")
            self.broken = True
            return
        held = self._others if self.plan.situation == "endless-mpi" else [self.plan.victim]
        self._check(busy == held, f"{count_ranks(busy)} busy")
        if free:
            self._check_ranks(session, before, free, meet=False)
        if self.plan.situation == "stopped":
            os.kill(before[self.plan.victim][0], 18)
            self._until(lambda: not session._fold.left_behind(), "the rank that goes on takes the interrupt")
            self._check_ranks(session, before, range(self.plan.size), meet=True)
        else:
            session.kill(busy)
            self._check([rank.rank for rank in session.world.dead] == busy, "the rank that was killed is not dead")
            world.restart()

    def _check_ended(self, world: _World) -> None:
        self.broken = True
        if self.plan.mode != "alone":
            with contextlib.suppress(WorldLost):
                world.session.run("1", view=None)
                self.problems.append("a world that has ended takes a cell")

    def _check_ranks(self, session: Session, before: dict[int, Any], ranks: Any, *, meet: bool) -> None:
        """The next cell: the same processes, the same objects, and where all take part an all-reduce."""
        code = cells.LOOK.format(meet=cells.MEET[self.plan.framework], met="meet()" if meet else "None")
        run = session.run(code, list(ranks), view=None, timeout=PATIENCE)
        for rank in ranks:
            wanted = (before[rank][0], True, float(self.plan.size) if meet else None)
            found = run.results[rank].data["text/plain"]
            self._check(found == repr(wanted), f"rank {rank} is {found}, not {wanted}")

    def _processes(self, session: Session) -> dict[int, Any]:
        return {rank.rank: (rank.pid,) for rank in session.world.ranks}

    def _notices(self, world: _World) -> list[str]:
        with contextlib.suppress(NoWorld, WorldLost):
            return list(world.session._link.ask(ReadState()).notices)
        return []

    def _texts(self, run: Run) -> Iterator[str]:
        return (run.text(rank, "stderr") for rank in run.ranks if rank in run.spool)

    def _said(self, run: Run | None, lines: int) -> bool:
        assert run is not None
        return run.done or all(
            totals.lines >= lines or rank in run.lost or rank in run.outcomes for rank, totals in run.totals.items()
        )

    def _has_befallen(self, session: Session, run: Run, before: dict[int, Any]) -> bool:
        if self.plan.situation in DEATHS:
            # What the dead say last comes with their death, and by then the others may have ended.
            return not all(runs(pid) for (pid,) in before.values())
        match self.plan.situation:
            case "stopped":
                return session.world.ranks[self.plan.victim].state == "stopped"
            case "native-locked":
                stack = session.stacks([self.plan.victim], timeout=0.2)[self.plan.victim]
                return stack is not None and stack.state == "native"
        return self._said(run, 2)

    def _until(self, condition: Callable[[], object], what: str) -> None:
        try:
            until(condition, PATIENCE)
        except AssertionError as error:
            raise TimeoutError(f"it did not come to this: {what}") from error

    def _comes(self, condition: Callable[[], object], words: str, patience: float = PATIENCE) -> None:
        """Note ``words`` as a problem when it does not come true in time, and go on."""
        try:
            until(condition, patience)
        except AssertionError:
            self.problems.append(words)

    def _hear(self, text: str, wanted: list[str] | None = None) -> None:
        """What is told has the words of the table."""
        call = cells.CALL.get(self.plan.framework, "")
        if self.plan.situation == "never-arrives" and self.plan.framework == "torch":
            call = "init_process_group"
        values = {
            "rank": self.plan.victim,
            "were": "was" if len(self._others) == 1 else "were",
            "last": self.plan.size - 1,
            "call": call,
            "hang": f"{HANG:g}",
        }
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        for words in self.row.words if wanted is None else wanted:
            line = words.format(**values)
            self._check(line.lower() in plain.lower(), f"not told: {line!r}. What was told:\n{plain}")

    def _check(self, holds: object, words: str) -> None:
        if not holds:
            self.problems.append(words)


class _KernelPlay:
    """A play in which the client is a notebook's kernel, which ends."""

    def __init__(self, play: _Play) -> None:
        self._play = play
        self._plan = play.plan

    def run(self) -> tuple[float, str]:
        play, plan = self._play, self._plan
        mark = f"play-{secrets.token_hex(8)}"
        shared = loose_segments()
        notebook = Notebook({"DTRAIN_TEST_MARK": mark})
        session, folders = None, []
        try:
            begin = f"import jupyter_dtrain\nsession = jupyter_dtrain.Session.start({plan.size}, name={mark!r})\n"
            notebook.run(f"{begin}session.run({cells.PREPARE!r}, view=None)")
            notebook.run(f"run = session.run({play.code!r}, wait=False, view=None)")
            notebook.run("import time\nwhile not all(t.lines for t in run.totals.values()): time.sleep(0.01)")
            folders = notebook.run("print(*session.request.passing_folders)").split()
            world = psutil.Process(int(notebook.run("print(session._link.listing.steward)")))
            before = {
                rank: (int(pid),)
                for rank, pid in enumerate(notebook.run("print(*(r.pid for r in session.world.ranks))").split())
            }
            began = time.monotonic()
            self._befall(notebook)
            if play.row.after == "ended":
                limit = play.row.ends.of(SETTINGS) if play.row.ends else 0.0
                play._comes(lambda: not world.is_running(), "the world goes on", limit + SLACK)
                return time.monotonic() - began, "lost"
            if plan.mode == "alone":
                play._go.touch()
            session = Session.attach(mark)
            run = session.last_run
            assert run is not None
            if plan.mode == "interrupted":
                play._check(session.drives, "who attaches to it does not drive it")
                began = time.monotonic()
                session.interrupt()
            play._check(run.wait(SETTINGS.interrupt_timeout + INTERRUPT + SLACK), "the cell goes on")
            seconds = time.monotonic() - began
            wanted = "interrupted" if plan.mode == "interrupted" else play.row.outcome
            limit = play.row.ends.of(SETTINGS) + SLACK if play.row.ends else 0.0
            play._check(plan.mode == "interrupted" or seconds < limit, f"it took {seconds:.1f} s")
            play._check(run.outcome == wanted, f"ended as {run.outcome}, not as {wanted}")
            play._check(run.text(0).startswith("here\n"), "what was said is not there")
            play._check_ranks(session, before, range(plan.size), meet=True)
            return seconds, run.outcome
        finally:
            if session is not None:
                session.leave()
            notebook.close()
            with contextlib.suppress(NoWorld):
                worlds.stop_world(mark)
                if play.row.after == "ended":
                    play.problems.append("the world goes on")
            play.problems += left_of(mark, folders, shared)

    def _befall(self, notebook: Notebook) -> None:
        match self._plan.situation:
            case "kernel-killed":
                notebook.kill()
            case "kernel-restarted":
                notebook.manager.restart_kernel()
            case "kernel-shut-down":
                notebook.manager.shutdown_kernel()


class _ServersPlay:
    """A play in which a chief hands out work, and a rank dies that works for it."""

    def __init__(self, play: _Play) -> None:
        self._play = play
        self._plan = play.plan

    def run(self) -> tuple[float, str]:
        play, plan = self._play, self._plan
        mark, shared, notes = f"play-{secrets.token_hex(8)}", loose_segments(), Notes()
        with _environment(DTRAIN_TEST_MARK=mark):
            session = Session.start(plan.size, name=mark, settings=QUICK, chief=True, ps=1)
        try:
            session.run(cells.SERVERS, view=None, timeout=IMPORTS)
            run = session.run(cells.LOOP, 0, wait=False, view=notes)
            play._until(lambda: "here" in run.text(0), "the loop has begun")
            began = time.monotonic()
            victim = session.world.ranks[plan.victim].pid
            os.kill(victim, 9)
            if plan.mode == "interrupted":
                play._until(lambda: not runs(victim), "the rank has ended")
                session.interrupt()
            limit = play.row.ends.of(SETTINGS) if play.row.ends else PATIENCE
            play._check(run.wait(limit + SLACK), "the chief's loop goes on")
            seconds = time.monotonic() - began
            # A loop that only lost a worker comes to its end.
            wanted = {"interrupted", play.row.outcome} if plan.mode == "interrupted" else {play.row.outcome or "ok"}
            play._check(run.outcome in wanted, f"ended as {run.outcome}, not as {wanted}")
            play._until(lambda: session.world.dead, "a rank is dead")
            if plan.mode == "attended":
                play._hear("\n".join([*blocks(run), *notes.words]))
            with contextlib.suppress(RanksDead):
                session.run("1", view=None)
                play.problems.append("a cell on all ranks is not refused")
            living = [rank for rank in range(plan.size) if rank != plan.victim]
            look = session.run("id(kept) == kept_id", living, view=None, timeout=PATIENCE)
            kept = {rank: result.data["text/plain"] for rank, result in look.results.items()}
            play._check(kept == dict.fromkeys(living, "True"), f"kept: {kept}")
            return seconds, run.outcome
        finally:
            session.leave()
            with contextlib.suppress(NoWorld):
                worlds.stop_world(mark)
            play.problems += left_of(mark, session.request.passing_folders, shared)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

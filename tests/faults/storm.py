"""Random faults at random moments: ``make storm SEED=1 DRAWS=100``.

    python -m tests.faults.storm [--seed 1] [--draws 100] [--only K]

Each draw is a cell of some collectives. On its way one rank or two meet a fault: an exception (a hostile one, too), a
death, a loop, a wait in native code, a child. The driver does what people do meanwhile: it presses Stop, queues cells,
kills a rank, leaves and attaches again, takes the world over, restarts it, stops it, starts another one; and a rank may
be killed while one of these goes on. The ranks write down themselves what they do, and when, without the package. What
the world says and does is compared with that:

* ranks that wait are released after the grace, neither sooner nor later, and the cell ends in time, also after Stop;
* its error begins with what failed first, names the ranks that failed, and has every cause, also after Stop, kill, the
  world's end and a restart;
* outcome, text and points are whole, and the store has the same;
* a hang is told; a dead rank is called dead, and no other;
* ranks that nothing happened to keep their variables, also when the dead ones are replaced; the next cell gives the
  right numbers; and in the end nothing is left behind.

Each promised time gets a slack, which the pace of the machine gives (:mod:`.pace`). On a machine that is so busy that
the slack exceeds what a fault costs, the storm does not see that fault.

The seed and the number of a draw make the same draw again (``--only``). Each draw is a line of ``build/storm.jsonl``; a
storm that is begun again leaves out what was good there, if the code is still the same. The exit status is 0 only if no
draw broke a promise.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import math
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from jupyter_dtrain import DistributedError, DistributedInterrupt, DtrainError, Run, Session, Settings, StartFailed
from jupyter_dtrain.core.causes import blocks
from jupyter_dtrain.store import Store
from tests.faults.__main__ import ROOT, digest, keep, lines
from tests.faults.draws import DIES, LINES, POINTS, PREPARE, RAISES, STILL, STUCK, UNSTOPPABLE, Act, Draw, draw
from tests.faults.stage import Stage
from tests.faults.told import Told, Truth
from tests.faults.worlds import World, left_of, new_mark
from tests.pace import Pace
from tests.processes import loose_segments
from tests.session.cells import Notes
from tests.steward.until import running, until

PLAYED = ROOT / "build" / "storm.jsonl"
SETTINGS = Settings(hang_notice=3.0, interrupt_raise=2.0, interrupt_timeout=3.5)
LOOK = 3.5
"""Seconds after which Stop is pressed in a cell of which a rank is stuck and moves."""
DEATH = 2.0
"""Seconds in which the steward knows of a death; the cell ends so much later."""
STORED = 2.0
"""Seconds after which the store has what has ended."""
LONGEST = 60.0
"""Seconds that an act may take, a start or a restart on a busy machine too."""
ENDS = {"end": "its world was stopped", "start": "this client has left it", "restart": "its world was restarted"}
"""Acts that end all ranks, or their client's part in them, and how the cell says so."""
STOPS = ("stop", "stop-twice")


class Broken(NamedTuple):
    """A promise that a draw has broken."""

    check: str
    """The check that saw it, in a word."""
    words: str

    def __str__(self) -> str:
        return f"{self.check}: {self.words}"


class StormPlay:
    """One draw, in a world that lives as long as it can. :attr:`broken` has the promises that were not kept."""

    def __init__(self, stage: Stage, pace: Pace, drawn: Draw) -> None:
        self.broken: list[Broken] = []
        self._stage = stage
        self._pace = pace
        self._drawn = drawn
        self._last = drawn.size - 1
        self._notes = stage.folder / f"storm-{drawn.seed}-{drawn.number}"
        self._view = Notes()
        self._queued: list[Run] = []
        self._acted: dict[str, float] = {}
        """When each act was done first."""
        self._began = time.monotonic()

    def run(self) -> list[Broken]:
        """Play it."""
        try:
            self._play()
        except (Exception, DistributedInterrupt) as error:  # noqa: BLE001 — what a broken world does is a finding
            own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]
            self._break("error", f"{type(error).__name__} in line {own[-1].lineno}: {str(error)[:300]}")
        killed = [act for act in self._drawn.acts if act.kill is not None and act.kind in ENDS]
        if self.broken or killed or "end" in self._acted:
            self._discard()
        return self.broken

    @property
    def _slack(self) -> float:
        """Seconds that this machine may add to a promised time."""
        return self._pace.slack(self._began)

    def _play(self) -> None:
        world = self._stage.world(self._drawn.size, old_mpi=False)
        for path in self._notes.parent.glob(f"{self._notes.name}-*"):
            path.unlink()
        world.session.run(PREPARE, view=None, timeout=LONGEST)
        before = world.session.run("(os.getpid(), kept_id)", view=None, timeout=LONGEST)
        pids = [rank.pid for rank in world.session.world.ranks]
        owned = {rank: result.data["text/plain"] for rank, result in before.results.items()}
        run = world.session.run(self._drawn.cell(self._notes), wait=False, view=self._view)
        for act in self._drawn.acts:
            run.wait(act.delay)
            run = self._do(act, world, run)
            if act.kind in ENDS:
                if act.kind != "restart":
                    self._expect("left behind", running(pids) == [], "ranks outlive their world")
                self._expect("end", self._ends(run, time.monotonic(), 0.0), "the cell outlives its ranks")
                self._check_end(run)
                if act.kind != "start":  # its client has left before the end
                    self._check_store(run)
                return
        self._wait(world.session, run)
        # Queued cells; after a change of the driver the session knows them, too.
        for other in [*self._queued, *world.session.running]:
            ends = self._ends(other, time.monotonic(), SETTINGS.interrupt_timeout)
            self._expect("end", ends, "a queued cell does not end")
        self._check_end(run)
        dead = self._check_ranks(world.session)
        self._check_store(run)  # it has ended on the ranks that were busy, too
        self._check_state(world.session, dead, owned)

    # What the driver does.

    def _do(self, act: Act, world: World, run: Run) -> Run:
        """Do it; the run of the cell, as the client has it now."""
        began = time.monotonic()
        self._acted.setdefault(act.kind, began)
        if act.kill is not None:
            self._acted.setdefault("kill", began)
        if act.kind == "start":
            self._discard()
            self._start(act)
        else:
            self._act(act, world)
        self._expect("end", time.monotonic() - began < LONGEST, f"{act} takes more than {LONGEST:g} s")
        if act.kind in ("leave", "take-over"):
            others = [*world.session.running, world.session.last_run]
            return next((other for other in others if other and other.number == run.number), run)
        return run

    def _start(self, act: Act) -> None:
        """A world comes up whole, or with its dead rank named, or not at all; then nothing of it is left."""
        mark, shared = new_mark(), loose_segments()
        try:
            with _killing(act, mark, self._last):
                self._stage.world(self._drawn.size, old_mpi=False, mark=mark)
        except (DtrainError, DistributedError) as error:
            self._expect("error", act.kill is not None, f"the start fails: {error}")
            if isinstance(error, StartFailed):
                self.broken += [Broken("left behind", line) for line in left_of(mark, [], shared)]

    def _act(self, act: Act, world: World) -> None:
        with _killing(act, world.mark, self._last) as killed:
            if act.kind in ("leave", "take-over"):
                self._change_driver(act, world)
            elif act.kind == "end":
                world.session.stop()
            elif act.kind == "restart":
                # A start in which a rank dies may fail; then the world has ended.
                with contextlib.suppress(*([StartFailed] if act.kill is not None else [])):
                    world.session.restart()
            else:
                with contextlib.suppress(DtrainError, DistributedError):  # the cell has ended, a rank is dead or busy
                    self._press(act, world.session)
        if killed and act.kind in ("leave", "take-over"):
            # Its watch reports it within half a second, once it has ended; another one may be dead before.
            self._comes("dead", lambda: world.session.world.ranks[self._last].has_ended, DEATH, "a rank was killed")

    def _change_driver(self, act: Act, world: World) -> None:
        before: Session = world.session
        if act.kind == "leave":
            before.leave()
        world.session = Session.attach(world.mark, view=lambda *_: self._view)
        if act.kind == "take-over":
            world.session.control()
            before.leave()

    def _press(self, act: Act, session: Session) -> None:
        match act.kind:
            case "stop":
                session.interrupt()
            case "stop-twice":
                session.interrupt()
                session.interrupt()
            case "queue":
                self._queued += [session.run("with_mpi()", wait=False, view=None) for _ in range(2)]
            case "kill":
                session.kill([self._last])

    # How the cell ends.

    def _wait(self, session: Session, run: Run) -> None:
        """Wait for its end; a cell of which a rank is stuck is stopped, once its hang was told."""
        if not self._drawn.kinds(STUCK):
            if not self._ends(run, time.monotonic(), SETTINGS.release_grace + DEATH):
                self._break("end", f"the cell goes on, though no rank is stuck: {session.stacks()}")
                self._stop(session, run)
            return
        began = time.monotonic()
        moves = not set(STILL).issuperset(one.kind for one in self._drawn.kinds(STUCK))
        pressed = self._did(*STOPS, "kill")
        while not run.wait(0.1):
            truth = self._truth()
            # Where another rank fails first, one that would be stuck is not: it waits, and is released.
            stuck = [truth.struck[one.rank] for one in self._drawn.kinds(STUCK) if one.rank in truth.struck]
            since = max([began, *stuck])
            told = any("moved for" in words for words in self._view.words)
            due = not (moves or pressed) and bool(stuck)
            limit = SETTINGS.hang_notice + 2 + self._slack if due else LOOK
            if told or time.monotonic() > since + limit:
                self._expect("hang", told or not due, f"no notice of the hang after {limit:.1f} s")
                self._stop(session, run)
                return

    def _stop(self, session: Session, run: Run) -> None:
        began = time.monotonic()
        self._acted.setdefault("stop", began)
        session.interrupt()
        way = {collective for _, collective in self._drawn.way}
        hard = self._drawn.kinds(UNSTOPPABLE) or (self._drawn.kinds(("with_deaf_child",)) and "with_window" in way)
        limit = SETTINGS.interrupt_timeout if hard else SETTINGS.interrupt_release
        if not self._ends(run, began, limit):
            self._break("stop", f"the cell goes on {time.monotonic() - began:.1f} s after Stop: {session.stacks()}")
            run.wait(LONGEST)

    def _ends(self, run: Run, since: float, limit: float) -> bool:
        while not run.wait(0.1):
            if time.monotonic() > since + limit + self._slack:
                return False
        return True

    # The promises.

    def _truth(self) -> Truth:
        return Truth(self._notes, self._drawn)

    def _check_end(self, run: Run) -> None:
        """The cell has ended: when, with which outcome and cause, and nothing of it is lost."""
        truth = self._truth()
        self._check_release(run, truth)
        self._check_cause(run, truth)
        self._check_output(run, truth)

    def _did(self, *kinds: str) -> bool:
        """Whether the driver has done one of these acts."""
        return not self._acted.keys().isdisjoint(kinds)

    @property
    def _window_may_crash(self) -> bool:
        """Open MPI 5.0 may crash where another rank dies in a window, and where a rank is released that makes one."""
        drawn = self._drawn
        makes = "with_window" in {collective for _, collective in drawn.way}
        return makes and bool(drawn.kinds(DIES, RAISES, STUCK) or "kill" in self._acted)

    @property
    def _disturbed(self) -> float:
        """When the driver did first what ends ranks or their cell."""
        return min(self._acted.get(kind, math.inf) for kind in (*STOPS, *ENDS, "kill"))

    def _check_release(self, run: Run, truth: Truth) -> None:
        """A rank that waits for one that has failed is freed after the grace: not before, and not much later."""
        failed = [truth.struck[one.rank] for one in self._drawn.kinds(RAISES, DIES) if one.rank in truth.struck]
        if not failed:
            return
        grace, first = SETTINGS.release_grace, min(failed)
        died = any(one.rank in truth.struck for one in self._drawn.kinds(DIES))
        for rank, (entered, thrown) in truth.waited.items():
            if rank in run.lost:
                continue
            waited = min(thrown, self._disturbed) - max(first + grace, entered)
            late = f"rank {rank} was released {waited:.1f} s after the grace of {grace:g} s"
            self._expect("release", math.isinf(waited) or waited < self._slack, late)
            # Where a rank dies, its connections end as well, and with them the wait.
            early = thrown < self._disturbed and not died and thrown < first + grace - 0.1
            self._expect("release", not early, f"rank {rank} was released {thrown - first:.2f} s after the failure")

    def _check_cause(self, run: Run, truth: Truth) -> None:
        """A cell that failed begins with what failed first, or one of what failed at once, on the right rank."""
        told = Told("\n".join(blocks(run)))
        # An interrupt may come before the exception of a fault that has just begun.
        sure = {rank for rank, when in truth.struck.items() if when + self._slack / 4 < self._disturbed}
        raised = {one.rank: RAISES[one.kind] for one in self._drawn.kinds(RAISES) if one.rank in truth.struck}
        died = {one.rank: DIES[one.kind] for one in self._drawn.kinds(DIES) if one.rank in truth.struck}
        ended, pressed, killed = self._did(*ENDS), self._did(*STOPS), self._did("kill")
        for rank, name in raised.items():
            if rank in sure:
                self._expect("rank", rank in told.raised.get(name, ()), f"{name} on rank {rank} is not in {told}")
        for rank, words in died.items():
            if rank in sure and not ended:
                self._expect("rank", words in told.lost.get(rank, ""), f"the end of rank {rank} is not in {told}")
        self._check_outcome(run, sure & raised.keys(), sure & died.keys(), told)
        first = told.first
        if first is None:
            self._expect("outcome", run.outcome == "ok", f"a cell that is {run.outcome} says nothing")
            return
        gone = {*died, *({self._last} if killed else ())}
        if first.name and not first.interrupt:
            fits = all(raised.get(rank) == first.name for rank in first.ranks)
        elif not first.name and first.ranks and first.ranks <= gone:
            fits = not sure & raised.keys() or bool(sure & died.keys())
        elif sure & (raised.keys() | died.keys()):
            fits = all(raised.get(rank) == first.name for rank in first.ranks) and bool(first.ranks)
        else:
            fits = (pressed and first.interrupt) or any(
                words in first.line for act, words in ENDS.items() if act in self._acted
            )
            # A cell may raise KeyboardInterrupt by itself.
            fits = fits or (bool(first.ranks) and all(raised.get(rank) == first.name for rank in first.ranks))
        self._expect("cause", fits, f"{first.line!r} is no cause, of {raised} and {died}: {told}")

    def _check_outcome(self, run: Run, raised: set[int], died: set[int], told: Told) -> None:
        ended, pressed, killed = self._did(*ENDS), self._did(*STOPS), self._did("kill")
        faults = [one for one in self._drawn.faults if one.rank in self._truth().struck]
        possible = {"lost"} if died else {"error"} if raised else {"ok"}
        if faults and possible == {"ok"}:
            possible = {"ok", "error", "lost"}
        if pressed:
            possible |= {"ok", "interrupted"} - ({"ok"} if raised or died else set())
        if killed or ended:
            possible |= {"lost", "error"}
        if faults and self._window_may_crash:
            possible |= {"lost"}
        self._expect("outcome", run.outcome in possible, f"ended as {run.outcome}, not as {possible}: {told}")
        if run.outcome == "ok":
            found = {result.data["text/plain"] for result in run.results.values()}
            self._expect("numbers", found == {repr(float(self._drawn.size))}, f"the cell gives {found}")

    def _check_output(self, run: Run, truth: Truth) -> None:
        """All lines and points are there that ranks have printed and logged before they ended the cell."""
        for rank in set(run.outcomes) - set(run.lost):
            with contextlib.suppress(DtrainError):  # a client that has left reads no spool
                printed, text = truth.made[rank]["printing"], run.text(rank, "stdout")
                for line in (0, 77, LINES - 1):
                    found = text.count(f"line {line}\n")
                    self._expect("output", found >= printed, f"line {line} is {found} times in rank {rank}'s text")
                if logged := truth.made[rank]["logging"] * POINTS:
                    found = len(run.metrics["storm"][rank].values)
                    self._expect("points", found >= logged, f"{found} of {logged} points of rank {rank}")

    def _check_store(self, run: Run) -> None:
        """It is stored as it was told.

        A client that ends its world, or leaves it, hears its ranks no more: it says that they are lost. What they say
        in the moment until they end is in the store alone.
        """
        left = {rank for rank, words in run.lost.items() if words.endswith(tuple(ENDS.values()))}
        told = {rank: outcome for rank, outcome in run.outcomes.items() if rank not in left}

        def row() -> Any:
            with contextlib.suppress(DtrainError):
                return Store.open().run(run.number, run.world_id)
            return None

        def stored() -> bool:
            if (found := row()) is None:
                return False
            if found.outcome != run.outcome and all(found.outcomes.get(rank) == "lost" for rank in left):
                return False
            return told.items() <= found.outcomes.items()

        def words() -> str:
            found = row()
            kept = "nothing" if found is None else f"{found.outcome} {found.outcomes}"
            return f"the store has {kept}, not {run.outcome} {run.outcomes}"

        self._comes("store", stored, STORED, words)

    def _check_ranks(self, session: Session) -> set[int]:
        """Only ranks with a fault are busy or dead; kills those that are busy, and gives the dead ones."""
        drawn, truth = self._drawn, self._truth()
        must_die = {one.rank for one in drawn.kinds(DIES) if one.rank in truth.struck}
        if self._did(*STOPS):
            must_die = set()
        may_die = {one.rank for one in drawn.kinds(DIES)} | ({self._last} if "kill" in self._acted else set())
        may_be_busy = {one.rank for one in drawn.kinds(UNSTOPPABLE)}
        collectives = {collective for _, collective in drawn.way}
        if self._window_may_crash:
            may_die = set(range(drawn.size))
        if "with_large_sends" in collectives and drawn.kinds(("holding",)):
            may_be_busy = set(range(drawn.size))  # MPI never refuses a large message to a rank that cannot run
        with contextlib.suppress(AssertionError):  # a second press ends a cell before all ranks have left it
            until(lambda: may_be_busy.issuperset(session._scheduler.left_behind()), self._slack)
        busy = sorted(session._scheduler.left_behind())
        if not may_be_busy.issuperset(busy):
            where = session.stacks()
            self._break("busy", f"ranks {busy} are busy, not among {sorted(may_be_busy)}: {where}")
        self._comes("left behind", lambda: not _children(session), DEATH + 2, lambda: f"{_children(session)} go on")
        if busy:
            session.kill(busy)
        dead = {rank.rank for rank in session.world.dead}
        said = [one.words for one in session.world.dead]
        self._expect("dead", must_die <= dead, f"ranks {sorted(must_die)} have died, and {sorted(dead)} are dead")
        allowed = may_die | set(busy)
        self._expect("dead", dead <= allowed, f"ranks {sorted(dead)} are dead, not among {sorted(allowed)}: {said}")
        return dead

    def _check_state(self, session: Session, dead: set[int], owned: dict[int, str]) -> None:
        """The living ranks keep their variables, also where dead ones are replaced; the next cell is right."""
        drawn = self._drawn
        living = [rank for rank in range(drawn.size) if rank not in dead]
        self._check_owned(session, living, owned)
        if dead and drawn.heals and living:
            session.replace()
            self._check_owned(session, living, owned)
            session.run("pass", view=None, timeout=LONGEST)
            session.run(PREPARE, sorted(dead), view=None, timeout=LONGEST)
        elif dead:
            session.restart()
            session.run(PREPARE, view=None, timeout=LONGEST)
        code = "with_torch(), with_mpi(), in_thread(), with_window()"
        numbers = session.run(code, view=None, timeout=LONGEST)
        found = {result.data["text/plain"] for result in numbers.results.values()}
        self._expect("numbers", found == {repr((float(drawn.size),) * 4)}, f"the next cell gives {found}")

    def _check_owned(self, session: Session, living: list[int], owned: dict[int, str]) -> None:
        """They are the processes of before, with their variables."""
        code = "(os.getpid(), id(kept)) if 'kept' in dir() else 'nothing'"
        after = session.run(code, living, view=None, timeout=LONGEST).results if living else {}
        for rank in living:
            found = after[rank].data["text/plain"]
            self._expect("variables", found == owned[rank], f"rank {rank} was {owned[rank]} and is {found}")

    def _discard(self) -> None:
        left = self._stage.discard(self._drawn.size, old_mpi=False)
        self.broken += [Broken("left behind", line) for line in left]

    def _comes(self, check: str, condition: Callable[[], object], limit: float, words: str | Callable[[], str]) -> None:
        began = time.monotonic()
        while not condition():
            if time.monotonic() > began + limit + self._slack:
                self._break(check, words if isinstance(words, str) else words())
                return
            time.sleep(0.02)

    def _expect(self, check: str, condition: bool, words: str) -> None:  # noqa: FBT001 — it reads as a sentence
        if not condition:
            self._break(check, words)

    def _break(self, check: str, words: str) -> None:
        self.broken.append(Broken(check, words))


def _children(session: Session) -> list[str]:
    """The processes that the faults of ranks have started."""
    found = []
    for rank in session.world.ranks:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(rank.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    found += (
                        [f"{child.pid}: {' '.join(child.cmdline())}"] if "1000" in " ".join(child.cmdline()) else []
                    )
    return found


@contextlib.contextmanager
def _killing(act: Act, mark: str, rank: int) -> Iterator[list[int]]:
    """Kill the process that holds a rank's slot at the act's moment, if it has one; the rank ends with it.

    In a world that starts, once that process is there.

    Gives the processes that it has killed, once it is over.
    """
    over = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        while not (found := _slots(mark, rank)) and not over.wait(0.02):
            pass
        if found and not over.wait(act.kill):
            found[-1].kill()
            killed.append(found[-1].pid)

    def guarded() -> None:
        with contextlib.suppress(psutil.Error):  # it has ended by itself
            kill()

    if act.kill is None:
        yield killed
        return
    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def _slots(mark: str, rank: int) -> list[psutil.Process]:
    """The processes that hold a rank's slot in the world of that name, in the order of their start."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.environ()
            own = words.get("DTRAIN_TEST_MARK") == mark and words.get("OMPI_COMM_WORLD_RANK") == str(rank)
            # A program that the rank has started has the rank's variables too.
            if own and any("slot_holder" in word for word in process.cmdline()):
                found.append(process)
    return sorted(found, key=lambda one: one.create_time())


def storm_digest() -> str:
    """A digest of the package and of the storm itself: what other ones found good does not count."""
    own = [ROOT / "tests" / "faults" / name for name in ("storm.py", "draws.py", "told.py")]
    return f"{digest()}-{hashlib.sha256(b''.join(path.read_bytes() for path in own)).hexdigest()[:8]}"


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def main() -> int:
    """Play the draws."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.storm", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="which draws (default: 1)")
    parser.add_argument("--draws", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--only", type=int, help="one draw alone, by its number")
    parser.add_argument("--until", default="", help="end at the first draw that one of these checks finds broken")
    wanted = parser.parse_args()
    # Once, so that worlds are ended: a second one would cut that short.
    signal.signal(signal.SIGTERM, _end)
    code, last = storm_digest(), set(filter(None, wanted.until.split(",")))
    done = {line["draw"] for line in lines(PLAYED) if line["code"] == code and not line["problems"]}
    draws = [draw(wanted.seed, number) for number in (range(wanted.draws) if wanted.only is None else [wanted.only])]
    todo = [one for one in draws if wanted.only is not None or str(one) not in done]
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as folder, Pace() as pace:
        for kind in ("RUNTIME", "DATA", "CONFIG"):
            os.environ[f"JUPYTER_{kind}_DIR"] = f"{folder}/{kind.lower()}"
        stage = Stage(Path(folder), SETTINGS)
        try:
            for drawn in todo:
                began = time.monotonic()
                found = StormPlay(stage, pace, drawn).run()
                seconds, problems = time.monotonic() - began, [str(one) for one in found]
                line = {"code": code, "draw": str(drawn), "seconds": round(seconds, 1), "problems": problems}
                keep(PLAYED, line | {"checks": [one.check for one in found], "slack": round(pace.slack(began), 1)})
                print(f"{drawn} ({seconds:.1f} s): {'; '.join(problems) or 'good'}", flush=True)
                broken += [f"{drawn}: {words}" for words in problems]
                if last & {one.check for one in found}:
                    break
        finally:
            left = stage.close()
    before = f" ({len(draws) - len(todo)} of them before)" if len(todo) < len(draws) else ""
    print(f"{len(draws)} draws of seed {wanted.seed}{before}, {len(broken)} promises broken", *broken, *left, sep="\n")
    return int(bool(broken or left))


if __name__ == "__main__":
    sys.exit(main())

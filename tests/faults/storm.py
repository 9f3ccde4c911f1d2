"""Random faults at random moments: ``make storm SEED=1 DRAWS=100``.

    python -m tests.faults.storm [--seed 1] [--draws 100] [--only K]

Each draw is a cell of some collectives. On its way one rank or two meet a fault: an exception (a hostile one, too), an
end, a signal, a loop, a wait in native code, a child. The driver does what people do meanwhile: it presses Stop, queues
cells, kills a rank, leaves and attaches again, restarts the world or stops it. Whatever was drawn, four promises hold:
the cell ends in time and names a cause; ranks that nothing happened to keep their variables; the next cell gives the
right numbers; and in the end nothing is left behind.

The seed and the number of a draw make the same draw again (``--only``). Each draw is a line of ``build/storm.jsonl``.
The exit status is 0 only if no draw broke a promise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from jupyter_dtrain import DistributedError, DistributedInterrupt, DtrainError, Run, Session, Settings
from jupyter_dtrain.core.causes import blocks
from tests.faults.__main__ import ROOT, digest
from tests.faults.play import SLACK, Stage
from tests.steward.until import running

LINES = ROOT / "build" / "storm.jsonl"
SETTINGS = Settings(hang_notice=3.0, interrupt_raise=2.0, interrupt_timeout=3.5)
SIZES = (2, 3)
PATIENCE = 12.0
"""Seconds in which a cell whose ranks fail, or none of whose ranks is stuck, ends by itself."""
STOPPED = SETTINGS.interrupt_timeout + 2.0 + SLACK
"""Seconds in which a cell ends after Stop."""

PREPARE = """
import ctypes, os, signal, subprocess, sys, threading, time
import torch, torch.distributed as dist
import jupyter_dtrain
from mpi4py import MPI

rank = int(os.environ["RANK"])
kept = object()
kept_id = id(kept)
native = ctypes.create_string_buffer(64)
ctypes.CDLL(None).pthread_mutex_lock(native)

class Mute(Exception):
    def __str__(self): raise RuntimeError("no words")

class Exits(Exception):
    def __str__(self): sys.exit(9)

class Base(BaseException):
    pass

def deep(n=0):
    return deep(n + 1)

def noted(words):
    error = ValueError(words)
    error.__notes__ = None
    raise error

def raising(words): raise ValueError(words)
def muted(words): raise Mute(words)
def exiting(words): raise Exits(words)
def based(words): raise Base(words)
def pressed(words): raise KeyboardInterrupt(words)
def recursing(words): deep()
def leaving(words): sys.exit(3)
def gone(words): os._exit(4)
def killed(words): os.kill(os.getpid(), signal.SIGKILL); time.sleep(60)
def ended(words): os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)
def crashed(words): ctypes.string_at(0)
def stray(words):
    thread = threading.Thread(target=raising, args=(words,))
    thread.start(); thread.join()
    raise ValueError(words)
def child_raises(words):
    subprocess.run([sys.executable, "-c", "raise SystemExit(7)"], check=True)

def spinning(words):
    while True: pass
def sleeping(words): time.sleep(1000)
def with_child(words): subprocess.run(["sleep", "1000"])
def swallowing(words):
    while True:
        try: time.sleep(0.1)
        except KeyboardInterrupt: pass
def holding(words): ctypes.PyDLL(None).pthread_mutex_lock(native)

def with_torch():
    dist.is_initialized() or dist.init_process_group()
    t = torch.ones(1000); dist.all_reduce(t); return float(t[0])
def with_mpi(): return float(MPI.COMM_WORLD.allreduce(1))
def in_thread():
    found = []
    dist.is_initialized() or dist.init_process_group()
    thread = threading.Thread(target=lambda: found.append(with_torch()))
    thread.start(); thread.join()
    return found[0]
def with_barrier(): MPI.COMM_WORLD.barrier(); return float(MPI.COMM_WORLD.size)

def computing(): sum(i * i for i in range(100_000))
def printing():
    for line in range(200): print("line", line)
def logging():
    for step in range(100): jupyter_dtrain.log(storm=step)
def forking(): subprocess.run(["true"], check=True)

def perform(way, at=None, fault=None, words=""):
    value = None
    for place, (before, collective) in enumerate(way):
        before()
        if place == at:
            fault(words)
        value = collective()
    if at == len(way):
        fault(words)
    return value
"""

BENIGN = ("computing", "printing", "logging", "forking")
COLLECTIVES = ("with_torch", "with_mpi", "in_thread", "with_barrier")
RAISES = (*("raising", "muted", "exiting", "based", "pressed", "recursing", "noted", "stray", "child_raises"),)
DIES = ("leaving", "gone", "killed", "ended", "crashed")
STUCK = ("spinning", "sleeping", "with_child", "swallowing", "holding")
UNSTOPPABLE = ("swallowing", "holding")
"""Faults in which a rank may go on after Stop: it counts as busy."""
HINTS = {"muted": "Mute", "exiting": "Exits", "recursing": "RecursionError", "child_raises": "CalledProcessError"}
"""The word by which a cell names such a fault; it names other faults by their own message."""
ACTS = ("stop", "stop-twice", "queue", "kill", "leave", "restart", "end")


class Fault(NamedTuple):
    """What happens to one rank."""

    rank: int
    kind: str
    at: int
    """Before which collective; after the last one where it is their number."""


class Draw(NamedTuple):
    """One cell and what happens meanwhile."""

    seed: int
    number: int
    size: int
    way: list[tuple[str, str]]
    """What a rank does before each collective, and the collective."""
    faults: list[Fault]
    acts: list[tuple[float, str]]
    """Seconds after the last act, and what the driver does."""

    @property
    def words(self) -> str:
        """The message of its exceptions."""
        return f"storm-{self.seed}-{self.number}"

    @property
    def cell(self) -> str:
        """The code for all ranks."""
        way = ", ".join(f"({before}, {collective})" for before, collective in self.way)
        faults = ", ".join(f"{one.rank}: ({one.at}, {one.kind}, {self.words!r})" for one in self.faults)
        return f"perform([{way}], *{{{faults}}}.get(rank, ()))"

    def kinds(self, *groups: tuple[str, ...]) -> list[Fault]:
        """The faults that are in one of the groups."""
        return [one for one in self.faults if any(one.kind in group for group in groups)]

    def __str__(self) -> str:
        faults = " ".join(f"{one.kind}@{one.rank}.{one.at}" for one in self.faults) or "no fault"
        acts = " ".join(f"{act}+{delay:.1f}" for delay, act in self.acts) or "looks on"
        return f"{self.seed}/{self.number}: {self.size} ranks, {len(self.way)} collectives, {faults}; {acts}"


def draw(seed: int, number: int) -> Draw:
    """The draw of this number; the same each time."""
    chance = random.Random(f"{seed}/{number}")  # noqa: S311 — the same draw each time is what is wanted
    size = chance.choice(SIZES)
    way = [(chance.choice(BENIGN), chance.choice(COLLECTIVES)) for _ in range(chance.randint(1, 4))]
    victims = chance.sample(range(size), chance.choices((0, 1, 2), (1, 6, 3))[0])
    kinds = [chance.choice(chance.choices((RAISES, DIES, STUCK), (5, 2, 3))[0]) for _ in victims]
    faults = [Fault(rank, kind, chance.randint(0, len(way))) for rank, kind in zip(victims, kinds, strict=True)]
    acts = [
        (chance.choice((0.0, 0.05, 0.3, 1.0, 2.5)), chance.choices(ACTS, (5, 2, 4, 1, 2, 1, 1))[0])
        for _ in range(chance.choices((0, 1, 2), (5, 4, 1))[0])
    ]
    return Draw(seed, number, size, way, faults, acts)


class Storm:
    """Plays draws, one after the other, in worlds that live as long as they can."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def play(self, drawn: Draw) -> list[str]:
        """The promises that were broken, in words."""
        problems: list[str] = []
        try:
            self._play(drawn, problems)
        except (Exception, DistributedInterrupt) as error:  # noqa: BLE001 — what a broken world does is a finding
            problems.append(f"{type(error).__name__}: {str(error)[:300]}")
        if problems or any(act == "end" for _, act in drawn.acts):
            problems += self._stage.discard(drawn.size, old_mpi=False)
        return problems

    def _play(self, drawn: Draw, problems: list[str]) -> None:
        world = self._stage.world(drawn.size, old_mpi=False)
        world.session.run(PREPARE, view=None, timeout=60)
        before = world.session.run("(os.getpid(), kept_id)", view=None, timeout=30)
        pids = [rank.pid for rank in world.session.world.ranks]
        owned = {rank: result.data["text/plain"] for rank, result in before.results.items()}
        run = world.session.run(drawn.cell, wait=False, view=None)
        queued: list[Run] = []
        acted = set()
        for delay, act in drawn.acts:
            run.wait(delay)
            acted.add(act)
            self._act(act, drawn, world, queued)
            if act == "end":
                self._expect(problems, running(pids) == [], "ranks outlive their world")
                self._expect(problems, run.wait(SLACK), "the cell outlives its world")
                return
            if act == "leave":
                run = world.session.last_run or run
            if act == "restart":
                self._expect(problems, run.wait(SLACK), "the cell outlives its ranks")
                return
        ended = run.wait(PATIENCE)
        if not ended:
            stuck = drawn.kinds(STUCK)
            self._expect(problems, bool(stuck), f"the cell goes on after {PATIENCE:g} s, though no rank is stuck")
            world.session.interrupt()
            acted.add("stop")
            self._expect(problems, run.wait(STOPPED), f"the cell goes on {STOPPED:g} s after Stop")
        for other in queued:
            self._expect(problems, other.wait(STOPPED), "a queued cell does not end")
        self._check_cause(drawn, run, acted, problems)
        self._check_ranks(drawn, world.session, acted, owned, problems)

    def _act(self, act: str, drawn: Draw, world: Any, queued: list[Run]) -> None:
        session: Session = world.session
        try:
            match act:
                case "stop":
                    session.interrupt()
                case "stop-twice":
                    session.interrupt()
                    session.interrupt()
                case "queue":
                    queued += [session.run("with_mpi()", wait=False, view=None) for _ in range(2)]
                case "kill":
                    session.kill([drawn.size - 1])
                case "leave":
                    session.leave()
                    world.session = Session.attach(world.mark, view=None)
                case "restart":
                    session.restart()
                case "end":
                    session.stop()
        except (DtrainError, DistributedError):
            if act in ("leave", "restart", "end"):
                raise  # the others may be refused: the cell has ended, a rank is dead or busy

    def _check_cause(self, drawn: Draw, run: Run, acted: set[str], problems: list[str]) -> None:
        """A cell that failed names what failed first, or one of what failed at once."""
        if acted & {"stop", "stop-twice", "kill"} or run.outcome in ("ok", "running"):
            self._expect(
                problems,
                run.outcome != "ok" or not [one for one in drawn.faults if one.kind != "stray"],
                "a cell with a fault is called ok",
            )
            return
        text = "\n".join(blocks(run))
        named = [*drawn.kinds(RAISES), *drawn.kinds(DIES)]
        self._expect(problems, bool(named), f"the cell ended as {run.outcome}: {text[:300]}")
        hints = HINTS | dict.fromkeys(("raising", "based", "pressed", "noted", "stray"), drawn.words)
        wanted = [hints.get(one.kind, f"ank {one.rank} ") for one in named]
        self._expect(problems, any(hint in text for hint in wanted), f"none of {wanted} is in {text[:600]!r}")

    def _check_ranks(
        self, drawn: Draw, session: Session, acted: set[str], owned: dict[int, str], problems: list[str]
    ) -> None:
        """Only ranks with a fault are dead or busy; the others keep their variables; the next cell is right."""
        may_die = {one.rank for one in drawn.kinds(DIES)} | ({drawn.size - 1} if "kill" in acted else set())
        may_be_busy = {one.rank for one in drawn.kinds(UNSTOPPABLE)}
        busy = sorted(session._fold.left_behind())
        self._expect(problems, may_be_busy.issuperset(busy), f"ranks {busy} are busy, not among {sorted(may_be_busy)}")
        if busy:
            session.kill(busy)
        dead = {rank.rank for rank in session.world.dead}
        self._expect(
            problems, dead <= may_die | set(busy), f"ranks {sorted(dead)} are dead, not among {sorted(may_die)}"
        )
        living = [rank for rank in range(drawn.size) if rank not in dead]
        after = session.run("(os.getpid(), id(kept))", living, view=None, timeout=30) if living else None
        for rank in living:
            assert after is not None
            found = after.results[rank].data["text/plain"]
            self._expect(problems, found == owned[rank], f"rank {rank} was {owned[rank]} and is {found}")
        if dead:
            session.restart()
            session.run(PREPARE, view=None, timeout=60)
        numbers = session.run("with_torch(), with_mpi(), in_thread()", view=None, timeout=30)
        found = {result.data["text/plain"] for result in numbers.results.values()}
        self._expect(problems, found == {repr((float(drawn.size),) * 3)}, f"the next cell gives {found}")

    @staticmethod
    def _expect(problems: list[str], condition: bool, words: str) -> None:  # noqa: FBT001 — it reads as a sentence
        if not condition:
            problems.append(words)


def main() -> int:
    """Play the draws."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.storm", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="which draws (default: 1)")
    parser.add_argument("--draws", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--only", type=int, help="one draw alone, by its number")
    wanted = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that worlds are ended
    code = digest()
    LINES.parent.mkdir(exist_ok=True)
    numbers = range(wanted.draws) if wanted.only is None else [wanted.only]
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("RUNTIME", "DATA", "CONFIG"):
            os.environ[f"JUPYTER_{kind}_DIR"] = f"{folder}/{kind.lower()}"
        stage = Stage(Path(folder), SETTINGS)
        try:
            storm = Storm(stage)
            for number in numbers:
                drawn = draw(wanted.seed, number)
                began = time.monotonic()
                problems = storm.play(drawn)
                seconds = time.monotonic() - began
                line = {"code": code, "draw": str(drawn), "seconds": round(seconds, 1), "problems": problems}
                with open(LINES, "a") as file:
                    file.write(json.dumps(line) + "\n")
                print(f"{drawn} ({seconds:.1f} s): {'; '.join(problems) or 'good'}", flush=True)
                broken += [f"{drawn}: {words}" for words in problems]
        finally:
            left = stage.close()
    print(f"{len(numbers)} draws of seed {wanted.seed}, {len(broken)} promises broken", *broken, *left, sep="\n")
    return int(bool(broken or left))


if __name__ == "__main__":
    sys.exit(main())

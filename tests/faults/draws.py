"""The draws of a storm: which cell runs, which ranks meet which fault in it, and what the driver does meanwhile."""

from __future__ import annotations

import random
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

SIZES = (2, 3)

PREPARE = """
import ctypes, os, signal, subprocess, sys, threading, time
import numpy as np
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
def with_deaf_child(words):
    subprocess.Popen(["sh", "-c", "trap '' INT; sleep 1000; true"])
    time.sleep(1000)
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
def with_window():
    comm = MPI.COMM_WORLD
    window = MPI.Win.Allocate(8, comm=comm)
    window.Fence(); window.Accumulate(np.ones(1), 0); window.Fence()
    window.Free()
    return float(comm.size)
def with_large_sends():
    comm, block = MPI.COMM_WORLD, np.ones(300_000)
    for sender in range(comm.size):
        if rank == sender:
            for other in range(comm.size):
                other == rank or comm.Send(block, dest=other)
        else:
            comm.Recv(np.empty_like(block), source=sender)
    return float(comm.size)

def computing(): sum(i * i for i in range(100_000))
def printing():
    for line in range(200): print("line", line)
def logging():
    for step in range(100): jupyter_dtrain.log(storm=step)
def forking(): subprocess.run(["true"], check=True)

def perform(notes, way, at=None, fault=None, words=""):
    with open(f"{notes}-{rank}", "a", buffering=1) as file:
        def note(word, place): print(word, place, time.monotonic(), file=file)
        value = None
        for place, (before, collective) in enumerate(way):
            before()
            note(before.__name__, place)
            if place == at:
                note("struck", place)
                fault(words)
            note("enters", place)
            try:
                value = collective()
            except BaseException:
                note("thrown", place)
                raise
            note("leaves", place)
        if at == len(way):
            note("struck", at)
            fault(words)
    return value
"""

BENIGN = ("computing", "printing", "logging", "forking")
COLLECTIVES = ("with_torch", "with_mpi", "in_thread", "with_barrier", "with_window", "with_large_sends")
LINES, POINTS = 200, 100
"""How many lines ``printing`` prints, and how many points ``logging`` logs."""
RAISES = {
    "raising": "ValueError",
    "muted": "Mute",
    "exiting": "Exits",
    "based": "Base",
    "pressed": "KeyboardInterrupt",
    "recursing": "RecursionError",
    "noted": "ValueError",
    "stray": "ValueError",
    "child_raises": "CalledProcessError",
    "leaving": "SystemExit",
}
"""Faults in which a rank raises, and the name of what it raises."""
DIES = {"gone": "exit code 4", "killed": "SIGKILL", "ended": "SIGTERM", "crashed": "SIGSEGV"}
"""Faults in which a rank dies, and the words for its end."""
STUCK = ("spinning", "sleeping", "with_child", "with_deaf_child", "swallowing", "holding")
UNSTOPPABLE = ("swallowing", "holding")
"""Faults in which a rank may go on after Stop: it counts as busy."""
STILL = ("sleeping", "with_child", "with_deaf_child", "holding")
"""Faults in which a rank does not move."""
ACTS = {
    "stop": 5,
    "stop-twice": 2,
    "queue": 4,
    "kill": 1,
    "leave": 2,
    "take-over": 2,
    "restart": 1,
    "end": 1,
    "start": 1,
}
"""The driver's acts, and how often each comes beside the others."""
LONG = ("leave", "take-over", "restart", "end", "start")
"""Acts that take a while: a rank may die meanwhile."""


class Fault(NamedTuple):
    """A fault of one rank."""

    rank: int
    kind: str
    at: int
    """The collective before which it comes; their number stands for the end."""


class Act(NamedTuple):
    """An act of the driver."""

    delay: float
    """Seconds after the last act."""
    kind: str
    kill: float | None = None
    """Seconds after its beginning in which the last rank is killed; None: no rank is."""

    def __str__(self) -> str:
        return f"{self.kind}+{self.delay:.1f}" + ("" if self.kill is None else f"!{self.kill:.2f}")


class Draw(NamedTuple):
    """One cell, its faults and the driver's acts."""

    seed: int
    number: int
    size: int
    way: list[tuple[str, str]]
    """The act of a rank before each collective, and the collective."""
    faults: list[Fault]
    acts: list[Act]
    heals: bool
    """Whether dead ranks are replaced in the end, rather than all ranks."""

    @property
    def words(self) -> str:
        """The message of its exceptions."""
        return f"storm-{self.seed}-{self.number}"

    def cell(self, notes: Path) -> str:
        """The code for all ranks; each writes into ``notes-RANK`` what it does, and when."""
        way = ", ".join(f"({before}, {collective})" for before, collective in self.way)
        faults = ", ".join(f"{one.rank}: ({one.at}, {one.kind}, {self.words!r})" for one in self.faults)
        return f"perform({str(notes)!r}, [{way}], *{{{faults}}}.get(rank, ()))"

    def kinds(self, *groups: Collection[str]) -> list[Fault]:
        """The faults that are in one of the groups."""
        return [one for one in self.faults if any(one.kind in group for group in groups)]

    def __str__(self) -> str:
        faults = " ".join(f"{one.kind}@{one.rank}.{one.at}" for one in self.faults) or "no fault"
        acts = " ".join(map(str, self.acts)) or "looks on"
        return f"{self.seed}/{self.number}: {self.size} ranks, {len(self.way)} collectives, {faults}; {acts}"


def draw(seed: int, number: int) -> Draw:
    """The draw of this number; the same each time."""
    chance = random.Random(f"{seed}/{number}")  # noqa: S311 — the same draw each time is what is wanted
    size = chance.choice(SIZES)
    way = [(chance.choice(BENIGN), chance.choice(COLLECTIVES)) for _ in range(chance.randint(1, 4))]
    victims = chance.sample(range(size), chance.choices((0, 1, 2), (1, 6, 3))[0])
    groups = tuple(RAISES), tuple(DIES), STUCK
    kinds = [chance.choice(chance.choices(groups, (5, 2, 3))[0]) for _ in victims]
    faults = [Fault(rank, kind, chance.randint(0, len(way))) for rank, kind in zip(victims, kinds, strict=True)]
    acts = [_act(chance) for _ in range(chance.choices((0, 1, 2), (3, 5, 2))[0])]
    return Draw(seed, number, size, way, faults, acts, heals=chance.random() < 0.5)


def _act(chance: random.Random) -> Act:
    kind = chance.choices(list(ACTS), list(ACTS.values()))[0]
    kill = chance.choice((0.0, 0.1, 0.4, 1.0)) if kind in LONG and chance.random() < 0.3 else None
    return Act(chance.choice((0.0, 0.05, 0.3, 1.0, 2.5)), kind, kill)

"""The draws of a storm: which cell runs, which ranks meet which fault in it, and what the driver does meanwhile."""

from __future__ import annotations

import random
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
COLLECTIVES = ("with_torch", "with_mpi", "in_thread", "with_barrier", "with_window", "with_large_sends")
RAISES = (*("raising", "muted", "exiting", "based", "pressed", "recursing", "noted", "stray", "child_raises"),)
DIES = ("leaving", "gone", "killed", "ended", "crashed")
STUCK = ("spinning", "sleeping", "with_child", "swallowing", "holding")
UNSTOPPABLE = ("swallowing", "holding")
"""Faults in which a rank may go on after Stop: it counts as busy."""
HINTS = {"muted": "Mute", "exiting": "Exits", "recursing": "RecursionError", "child_raises": "CalledProcessError"}
"""The word by which a cell names such a fault; it names other faults by their own message."""
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
        acts = " ".join(map(str, self.acts)) or "looks on"
        return f"{self.seed}/{self.number}: {self.size} ranks, {len(self.way)} collectives, {faults}; {acts}"


def draw(seed: int, number: int) -> Draw:
    """The draw of this number; the same each time."""
    chance = random.Random(f"{seed}/{number}")  # noqa: S311 — the same draw each time is what is wanted
    size = chance.choice(SIZES)
    way = [(chance.choice(BENIGN), chance.choice(COLLECTIVES)) for _ in range(chance.randint(1, 4))]
    victims = chance.sample(range(size), chance.choices((0, 1, 2), (1, 6, 3))[0])
    kinds = [chance.choice(chance.choices((RAISES, DIES, STUCK), (5, 2, 3))[0]) for _ in victims]
    faults = [Fault(rank, kind, chance.randint(0, len(way))) for rank, kind in zip(victims, kinds, strict=True)]
    acts = [_act(chance) for _ in range(chance.choices((0, 1, 2), (3, 5, 2))[0])]
    return Draw(seed, number, size, way, faults, acts)


def _act(chance: random.Random) -> Act:
    kind = chance.choices(list(ACTS), list(ACTS.values()))[0]
    kill = chance.choice((0.0, 0.1, 0.4, 1.0)) if kind in LONG and chance.random() < 0.3 else None
    return Act(chance.choice((0.0, 0.05, 0.3, 1.0, 2.5)), kind, kill)

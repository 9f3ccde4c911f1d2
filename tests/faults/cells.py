"""A cell for each situation of the failure table, in torch and in MPI; for one situation in libraries, too.

In every cell there are ``rank``, ``last`` (the highest rank) and ``victim``; ``meet()`` is a collective of all ranks.
A cell calls ``go()`` before its situation comes about, so that the driver can be gone by then.
"""

from __future__ import annotations

from tests.faults import libraries

PREPARE = """
import contextlib, ctypes, os, resource, signal, sys, time
import numpy, psutil
import torch, torch.distributed as dist
from mpi4py import MPI
rank, last = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1
kept = object()
kept_id = id(kept)
dist.init_process_group()
lock = ctypes.create_string_buffer(64)
ctypes.CDLL(None).pthread_mutex_lock(lock)

def slot():  # the process that mpiexec has started for this rank
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            number = process.environ().get("OMPI_COMM_WORLD_RANK")
            if words[-1].count(":") == 2:  # a heal has started it: its ranks, which of them, the generation
                ranks, place, _ = words[-1].split(":")
                number = ranks.split(",")[int(place)]
            line = " ".join(words)
            if number == str(rank) and "slot_holder" in line and os.environ["DTRAIN_WORLD"] in line:
                return process.pid

def go(path):
    print("here", flush=True)
    while not os.path.exists(path):
        time.sleep(0.01)
    print("there", flush=True)
"""

MEET = {
    "torch": """
def meet():
    dist.is_initialized() or dist.init_process_group()
    t = torch.ones(3)
    dist.all_reduce(t)
    return float(t[0])
""",
    "mpi": """
def meet():
    return float(MPI.COMM_WORLD.allreduce(1))
""",
    **libraries.MEET,
}
"""A real all-reduce, or a training; its value is the number of ranks."""

CALL = {"torch": "all_reduce", "mpi": "allreduce", **libraries.CALL}
"""The call in which ranks wait there."""

BEGIN = """{meet}
victim = {victim}
GO = {go!r}
go(GO)
"""

_SAVE = """
from jupyter_dtrain.rank.rank_context import rank_home
from jupyter_dtrain.core.snapshots import SnapshotOrder
from jupyter_dtrain.rank.snapshots import save
def keep(**values):
    order = SnapshotOrder("play", list(values), os.path.dirname(GO) + "/saved", b"k" * 32, "world")
    save(order, values, rank_home().plugins)
"""
"""Saves values as a snapshot, on all ranks."""

_ALONE = "if rank == victim:\n    {}\nmeet()\n"
"""A fault happens to the victim, and the others wait for it."""

SET_UP = """
import os, signal, time
rank = int(os.environ["RANK"])

def go(path):
    print("here", flush=True)
    while not os.path.exists(path):
        time.sleep(0.01)
"""
"""The set-up cell of an elastic cell; a new rank runs it alone."""

_ELASTIC = """
mark = GO + {deaths!r}
if rank == victim and len(os.path.exists(mark) and open(mark).read() or "") < len({deaths!r}):
    open(mark, "a").write("x")
    os.kill(os.getpid(), signal.SIGKILL)
if rank == victim:
    open(GO + "joined", "w").close()
while not os.path.exists(GO + "joined"):
    time.sleep(0.01)
"""
"""The victim dies, and so do as many of its successors as there are letters. The others work until one has joined."""

STEERED = """
import jupyter_dtrain
going, value = True, 0
def sleep():
    time.sleep(600)
while going:
    time.sleep(0.01)
    meet()
    jupyter_dtrain.step()
"""
"""A loop that goes on until somebody steers it otherwise."""

CELLS = {
    "raises": _ALONE.format("1 / 0"),
    "raises-everywhere": "1 / 0",
    "exits": _ALONE.format("sys.exit(2)"),
    "memory": _ALONE.format("held = [bytearray(10 << 20)]; bytearray(1 << 60)"),
    "loops": _ALONE.format("while True: pass"),
    "native": _ALONE.format("ctypes.CDLL(None).pthread_mutex_lock(lock)"),
    "native-locked": _ALONE.format("ctypes.PyDLL(None).pthread_mutex_lock(lock)"),
    "stopped": _ALONE.format("os.kill(os.getpid(), signal.SIGSTOP)"),
    "killed": _ALONE.format("os.kill(os.getpid(), signal.SIGKILL)"),
    "segfault": _ALONE.format("ctypes.string_at(0)"),
    "elastic-killed": _ELASTIC.format(deaths="x"),
    "elastic-new-killed": _ELASTIC.format(deaths="xx"),
    "exit-0": _ALONE.format("os._exit(0)"),
    "exit-3": _ALONE.format("os._exit(3)"),
    "slot-killed": _ALONE.format("os.kill(slot(), signal.SIGKILL); time.sleep(60)"),
    "watch-killed": _ALONE.format("os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)"),
    "sizes-torch": "dist.all_reduce(torch.ones(2 if rank == victim else 1))\nmeet()\n",
    "types-torch": "dist.all_reduce(torch.ones(3, dtype=torch.float64 if rank == victim else torch.float32))\nmeet()\n",
    "sizes-mpi": """
other = (victim + 1) % MPI.COMM_WORLD.size
if rank == other:
    MPI.COMM_WORLD.Send(numpy.ones(50), victim)
if rank == victim:
    MPI.COMM_WORLD.Recv(numpy.ones(3), other)
meet()
""",
    "disk-full": """
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
if rank == victim:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
print("a line", flush=True)
meet()
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
""",
    "save-killed": _SAVE
    + """
class Killed:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)
keep(value=Killed() if rank == victim else 1)
""",
    "save-no-disk": _SAVE
    + """
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
if rank == victim:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
try:
    keep(value=bytes(4 << 20))
finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
""",
    "endless-mpi": """
window = MPI.Win.Allocate(8, comm=MPI.COMM_WORLD)
if rank == victim:
    window.Lock(victim, MPI.LOCK_EXCLUSIVE)
meet()
if rank == victim:
    1 / 0
window.Lock(victim, MPI.LOCK_EXCLUSIVE)
""",
    "no-ulfm": _ALONE.format("1 / 0"),
    "steward-killed": "time.sleep(60)",
    "controller-killed": "time.sleep(60)",
    "mpiexec-killed": "meet()",
    "kernel-killed": "meet()",
    "kernel-restarted": "meet()",
    "kernel-shut-down": "time.sleep(60)",
    "prompt-killed": """
import threading
def die():
    go(GO)
    os.kill(os.getpid(), signal.SIGKILL)
if rank == victim:
    threading.Thread(target=die, daemon=True).start()
    input("token? ")
meet()
""",
    "prompt-peer-failed": """
if rank == victim:
    go(GO)
    1 / 0
if rank == (victim + 1) % (last + 1):
    print("typed", input("token? "))
meet()
""",
    "prompt-kernel-killed": _ALONE.format('print("typed", input("token? "))'),
    "prompt-page-closed": _ALONE.format('print("typed", input("token? "))'),
    "between-killed": STEERED,
    "between-ends-first": """
import jupyter_dtrain
value = made = 0
while not os.path.exists(GO):
    time.sleep(0.01)
    if rank != victim or made < 30:
        made += 1
        jupyter_dtrain.step()
        if made == 30:
            print("here", flush=True)
print("value", value)
""",
    "paused-killed": STEERED,
    "paused-kernel-killed": STEERED,
}
"""The code for all ranks, by name of the situation."""

CELLS_OF = {
    ("collectives", "torch"): "(dist.broadcast(torch.ones(3), 1) if rank == victim else meet())\nmeet()\n",
    ("collectives", "mpi"): "MPI.COMM_WORLD.recv(source=(victim + 1) % (last + 1)) if rank == victim else meet()\n",
    ("never-arrives", "torch"): (
        "dist.destroy_process_group()\nif rank == victim:\n    time.sleep(600)\ndist.init_process_group()\n"
    ),
    ("never-arrives", "mpi"): _ALONE.format("time.sleep(600)"),
}
"""Cells that differ by framework."""
CELLS_OF |= {("raises", library): "meet(fails=rank == victim)\n" for library in libraries.MEET}

SERVERS = """
kept = object()
kept_id = id(kept)
import tensorflow as tf
"""
"""Code for a chief, workers and parameter servers."""

LOOP = """
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weight = tf.Variable(0.0)

@tf.function
def step():
    tf.linalg.matmul(tf.ones([300, 300]), tf.ones([300, 300]))
    weight.assign_add(1.0)

coordinator.schedule(step)
coordinator.join()
print("here", flush=True)
for _ in range(3000):
    coordinator.schedule(step)
coordinator.join()
assert float(weight) >= 3001
"""
"""Code for the chief."""

LOOK = "{meet}\nos.getpid(), id(kept) == kept_id, {met}\n"
"""A look at a rank: its process, whether its objects are there, and the result of an all-reduce."""


def cell_of(situation: str, framework: str) -> str:
    """The cell in which the situation comes about."""
    return CELLS_OF.get((situation, framework)) or CELLS[situation]

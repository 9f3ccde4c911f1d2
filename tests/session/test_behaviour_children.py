"""The processes that a cell starts: Stop ends those of the interrupted cell, and no others."""

from __future__ import annotations

import ast
import contextlib

import psutil
import pytest

from tests.session.cells import begin, fail, run, shown, texts, values
from tests.steward.until import runs, until

FIRST = [0]
TWO_PROCESSES = """
import multiprocessing, os, socket, time

def say(line):  # in one write, which no line of the other process cuts in two
    os.write(1, f"{line}\\n".encode())

def work(number):
    if not number:
        server = socket.create_server(("127.0.0.1", 0))
        say(f"port {server.getsockname()[1]}")
    while True:
        say(f"child {os.getpid()}")
        time.sleep(0.1)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=work, args=(number,)) for number in range(2)]
    for one in started:
        one.start()
    say(f"begun {[one.pid for one in started]}")
    for one in started:
        one.join()
"""
SLEEP = "import time; time.sleep(1000)"
GO = """
import subprocess
def go(*command, **options):
    return subprocess.Popen([*command, "sleep", "1000"], **options)
"""
STUBBORN = "trap '' INT TERM; while true; do sleep 1; done"


def value(session, code):
    """The value of ``code`` on the first rank."""
    return ast.literal_eval(run(session, code, FIRST).results[0].data["text/plain"])


def stop(session, cell):
    """Stop the cell, and wait for its end."""
    session.interrupt()
    assert cell.wait(20)
    assert cell.busy == []


@pytest.fixture
def lives(process_at):
    """Tell whether a process of the first rank's host still runs."""

    def lives(session, pid):
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            return runs(process_at(session, 0, pid))
        return False

    return lives


def test_stop_ends_the_processes_of_a_script(world, meeting, lives):
    """Both are silent in later cells, and no process listens on their port."""
    script = meeting / "two.py"
    script.write_text(TWO_PROCESSES)
    cell = world.run_script(script, ranks=FIRST, wait=False, view=None)
    until(lambda: all(f"child {pid}" in cell.text(0) for pid in pids_in(cell)) and pids_in(cell))
    port = next(int(line[5:]) for line in cell.text(0).splitlines() if line.startswith("port "))
    stop(world, cell)
    later = run(world, "import time; time.sleep(0.5)")

    assert cell.outcome == "interrupted"
    assert [pid for pid in pids_in(cell) if lives(world, pid)] == []
    assert texts(later) == dict.fromkeys(later.ranks, "")
    refused = fail(world, f"import socket\nsocket.create_connection(('127.0.0.1', {port}))", FIRST)
    assert refused.errors[0].ename == "ConnectionRefusedError"


def pids_in(cell):
    """The processes that the script says it has started."""
    line = next((line for line in cell.text(0).splitlines() if line.startswith("begun ")), "begun []")
    return ast.literal_eval(line[6:])


@pytest.mark.parametrize("command", ["sleep 1000", pytest.param(STUBBORN, marks=pytest.mark.slow)])
def test_stop_ends_a_wait_that_ends_only_with_the_child(world, command):
    """The rank's own main thread ignores SIGINT in os.system, as the C library has it."""
    cell = begin(world, f"import os\nstatus = os.system({command!r})", FIRST)
    stop(world, cell)

    assert value(world, "1 + 1") == 2


def test_stop_ends_stubborn_processes_and_orphans(world, lives):
    """Such as ignore SIGINT and SIGTERM, and such as have lost their parent; workers of a pool, and their tasks."""
    cell = begin(
        world,
        f"""
import multiprocessing, subprocess, time
stubborn = subprocess.Popen(["bash", "-c", {STUBBORN!r}])
shell = subprocess.run("sleep 1000 > /dev/null 2>&1 & echo $!", shell=True, capture_output=True, text=True)
def task(number):
    print("task", flush=True)
    time.sleep(0.2)
pool = multiprocessing.get_context("fork").Pool(1)
worker, = pool._pool
of_cell = [stubborn.pid, int(shell.stdout), worker.pid]
pool.map(task, range(1000), chunksize=1)
""",
        FIRST,
    )
    until(lambda: "task" in cell.text(0))
    stop(world, cell)
    later = run(world, "time.sleep(0.5)", FIRST)

    assert [pid for pid in value(world, "of_cell") if lives(world, pid)] == []
    assert texts(later) == {0: ""}


def test_stop_leaves_what_other_cells_started_and_what_is_to_stay(world, lives):
    """Cells that end by themselves leave their processes, too."""
    run(world, GO, FIRST)
    run(world, "of_ok = go()", FIRST)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        run(world, "of_error = go()\n1 / 0", FIRST)
    cell = begin(
        world,
        f"""
import multiprocessing.resource_tracker
own = go()
detached = go(start_new_session=True)
nohup = go("nohup", stdout=subprocess.DEVNULL)
while open(f"/proc/{{nohup.pid}}/comm").read() != "sleep\\n":
    pass  # until then it ignores nothing
multiprocessing.resource_tracker.ensure_running()
print("all", flush=True)
{SLEEP}
""",
        FIRST,
    )
    until(lambda: "all" in cell.text(0))
    stop(world, cell)
    tracker = "multiprocessing.resource_tracker._resource_tracker._pid"
    names = ("of_ok.pid", "of_error.pid", "detached.pid", "nohup.pid", tracker, "own.pid")
    alive = [lives(world, pid) for pid in value(world, f"[{', '.join(names)}]")]
    run(world, "for one in (of_ok, of_error, detached, nohup): one.kill(); one.wait()", FIRST)

    assert alive == [True, True, True, True, True, False]


LOADER = """
import torch
from torch.utils.data import DataLoader
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        if stuck: time.sleep(1000)
        return index
{made}
seen = sum(len(batch) for batch in loader)
workers = [worker.pid for worker in loader._iterator._workers]
"""
MADE = 'loader = DataLoader(Slow(), num_workers=2, persistent_workers=True, multiprocessing_context="fork")'


@pytest.mark.slow
def test_persistent_workers_outlive_a_stop_or_are_made_again(world, lives):
    """Workers of an earlier cell stay; the interrupted cell's own end, and the loader starts new ones."""
    pytest.importorskip("torch", reason="torch, whose loader keeps workers, is not installed")
    run(world, "import time\nstuck = False\n" + LOADER.format(made=MADE), FIRST)
    cell = begin(world, f"for batch in loader:\n    print('a batch')\n    {SLEEP}", FIRST)
    until(lambda: "a batch" in cell.text(0))
    stop(world, cell)
    stayed = [lives(world, pid) for pid in value(world, "workers")]
    again = value(world, "old = workers\nsum(len(batch) for batch in loader)")
    del_old = "del loader\nstuck = True\n"
    cell = begin(world, del_old + LOADER.format(made=MADE + "\nit = iter(loader)\nprint('started')"), FIRST)
    until(lambda: "started" in cell.text(0))
    stop(world, cell)
    folder = value(world, "__import__('multiprocessing.util').util.get_temp_dir()")
    anew = value(world, "stuck = False\nsum(len(batch) for batch in loader)")
    run(world, "del loader", FIRST)

    assert stayed == [True, True]
    assert (again, anew) == (8, 8)
    # Files that workers leave there go with the world, also when the workers are killed.
    assert folder.startswith(world.request.scratch)


POOLS = {
    "pool": """
pool = multiprocessing.get_context("fork").Pool(1)
use = lambda: pool.map(work, range(3), chunksize=1)
workers = lambda: [worker.pid for worker in pool._pool]
""",
    "executor": """
pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
use = lambda: list(pool.map(work, range(3)))
workers = lambda: list(pool._processes)
""",
    "loader": """
from torch.utils.data import DataLoader
class Data(list):
    __getitem__ = lambda self, index: work(index)
pool = DataLoader(
    Data(range(3)), batch_size=None, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
)
use = lambda: [int(one) for one in pool]
workers = lambda: [worker.pid for worker in pool._iterator._workers]
""",
}


@pytest.mark.parametrize("kind", POOLS)
def test_busy_workers_of_an_earlier_cell_do_not_hold_up_what_comes_after_a_stop(world, meeting, kind):
    """Idle ones stay."""
    if kind == "loader":
        pytest.importorskip("torch", reason="torch, whose loader keeps workers, is not installed")
    work = f"""
import concurrent.futures, multiprocessing, os, time
stuck = {str(meeting / "stuck")!r}
def work(number):
    if os.path.exists(stuck):
        print("stuck", flush=True)
        time.sleep(1000)
    return number
"""
    assert value(world, f"{work}{POOLS[kind]}\nuse()") == [0, 1, 2]
    first = value(world, "workers()")
    stop(world, begin(world, SLEEP, FIRST))
    assert value(world, "use(), workers()") == ([0, 1, 2], first)
    cell = begin(world, "open(stuck, 'w').close()\nuse()", FIRST)
    until(lambda: "stuck" in cell.text(0))
    stop(world, cell)
    after = run(world, "os.remove(stuck)\nuse()", FIRST, timeout=20)
    run(world, "del pool, use, workers", FIRST)

    assert shown(after) == {0: "[0, 1, 2]"}


FAST = """
import itertools, torch
from torch.utils.data import DataLoader
options = dict(num_workers=2, persistent_workers=True, multiprocessing_context="fork")
loader = DataLoader(torch.arange(400), batch_size=4, **options)
epoch = lambda: (sum(len(batch) for batch in loader), [worker.pid for worker in loader._iterator._workers])
_, workers = epoch()
"""
LOOP = """
for _ in itertools.count():
    for batch in loader: pass
    print('an epoch', flush=True)
"""


def test_a_loader_gives_all_its_batches_after_stops_in_the_middle_of_one(world):
    """More than half of them fall between its two halves. The workers stay, but for a stop at an epoch's beginning."""
    pytest.importorskip("torch", reason="torch, whose loader keeps workers, is not installed")
    run(world, FAST, FIRST)
    stayed = 0
    for _ in range(5):
        cell = begin(world, LOOP, FIRST)
        until(lambda cell=cell: "an epoch" in cell.text(0))
        stop(world, cell)
        whole = run(world, "batches, now = epoch()\nbatches, now == workers", FIRST, timeout=20)
        batches, same = ast.literal_eval(whole.results[0].data["text/plain"])
        run(world, "workers = now", FIRST)
        assert (cell.outcome, batches) == ("interrupted", 400)
        stayed += same
    run(world, "del loader", FIRST)

    assert stayed


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_code_of_cells_travels_to_processes_that_do_not_fork(world, method):
    """A script's processes would import its file; what they send back is of the same class here."""
    run(
        world,
        "import multiprocessing\nclass Item:\n    def __init__(self, size): self.size = size\n"
        "def double(item): return Item(2 * item.size)",
        0,
    )
    code = f"with multiprocessing.get_context({method!r}).Pool(1) as pool:\n    item, = pool.map(double, [Item(21)])"
    cell = run(world, f"{code}\n(item.size, type(item) is Item)", 0, timeout=60)

    assert {0: (42, True)} == values(cell)


def test_code_that_cannot_travel_names_the_fix(world):
    """The function uses an object that stays in its process."""
    code = "import multiprocessing, threading\nlock = threading.Lock()\ndef work(): return lock"
    cell = fail(world, f"{code}\nmultiprocessing.get_context('spawn').Process(target=work).start()", 0, timeout=60)

    assert cell.errors[0].ename == "PicklingError"
    assert cell.errors[0].evalue.startswith("work of this notebook cannot be sent to a process")
    assert "get_context('fork')" in cell.errors[0].evalue


def test_a_class_that_hides_its_names_is_pickled_as_python_does(world):
    """Whatever its metaclass raises: any pickling of a process that has spawned another one asks."""
    code = """
import copyreg, multiprocessing, pickle
from multiprocessing.reduction import ForkingPickler
class Hidden(type):
    def __getattribute__(cls, name):
        if name == "__module__": raise RuntimeError("hidden")
        return type.__getattribute__(cls, name)
class Thing(metaclass=Hidden): pass
copyreg.pickle(Hidden, lambda kind: (str, ("told",)))
made = multiprocessing.get_context("spawn").Process(target=print)
made.start(); made.join()
pickle.loads(ForkingPickler.dumps(Thing))
"""
    assert values(run(world, code, 0, timeout=60)) == {0: "told"}

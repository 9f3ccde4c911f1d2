"""A rank that fails does not keep the others in PyTorch's groups: they are released, and the next cell goes on."""

from __future__ import annotations

import os
import signal

import pytest

from jupyter_dtrain import DistributedError, DistributedInterrupt
from jupyter_dtrain.core.causes import blocks
from tests.frameworks.torch_cells import SET_UP_DDP
from tests.session.cells import REFUSALS, begin, fail, pids, run, same, texts, values, without_files, without_log
from tests.steward.until import PATIENCE, until

TRAIN = (
    SET_UP_DDP
    + """

def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses

model = DistributedDataParallel(torch.nn.Linear(8, 1))
train(model, 3)
before = {name: value.clone() for name, value in model.module.state_dict().items()}
kept = object()
ids = id(kept), id(model)
"""
)

ADD = "t = torch.ones(1); dist.all_reduce(t); float(t)"


@pytest.fixture(scope="module")
def training(torch_three):
    """Three ranks that have trained a little."""
    run(torch_three, TRAIN)
    yield torch_three
    run(torch_three, "dist.is_initialized() and dist.destroy_process_group()")


@pytest.mark.parametrize("victim", [0, 1])
def test_one_raises_while_others_are_in_backward(training, victim):
    """One block, the root first; the same model trains on as if nothing had been."""
    before = pids(training)
    cell = fail(training, f"if rank == {victim}: raise ValueError('a bug')\ntrain(model, 1)")

    others = [rank for rank in range(3) if rank != victim]
    assert cell.errors[victim].ename == "ValueError"
    assert {rank: cell.errors[rank].waited for rank in others} == dict.fromkeys(others, "backward")
    with pytest.raises(DistributedError, match=rf"^ValueError: a bug \(rank {victim}\); ranks .* stopped") as caught:
        raise DistributedError(cell)
    shown = "\n".join(caught.value._render_traceback_())
    assert shown.index("ValueError") < shown.index("waited in backward and were released")
    assert "gloo" not in shown

    run(training, "losses = train(model, 3)")
    assert before == pids(training)
    assert same(True) == values(run(training, "(id(kept), id(model)) == ids"))
    undisturbed = """
        fresh = DistributedDataParallel(torch.nn.Linear(8, 1))
        fresh.module.load_state_dict(before)
        losses == train(fresh, 3)
    """
    assert same(True) == values(run(training, undisturbed.replace("\n        ", "\n")))
    run(training, "model.module.load_state_dict(before); del fresh")


def test_a_rank_that_comes_to_a_set_up_after_stop_hears_who_has_left(torch_three, meeting):
    """The others were there, and have left: it waits as for ranks that do not come, in Python and not in gloo."""
    run(
        torch_three,
        "import os, time, torch, torch.distributed as dist\nfrom pathlib import Path\nrank = int(os.environ['RANK'])\n"
        "dist.is_initialized() and dist.destroy_process_group()",
    )
    code = f"""
if rank == 0:
    try:
        while True:
            time.sleep(0.01)
    except KeyboardInterrupt:
        # Until the others have taken theirs.
        while len(list(Path({str(meeting)!r}).iterdir())) < 2:
            time.sleep(0.01)
try:
    dist.init_process_group()
finally:
    (Path({str(meeting)!r}) / str(rank)).touch()
"""
    before = pids(torch_three)
    cell = torch_three.run(code, wait=False, view=None)
    # They have announced themselves when they wait for rank 0.
    until(lambda: waiting(torch_three) == {1: "init_process_group", 2: "init_process_group"})
    torch_three.interrupt()

    assert cell.wait(PATIENCE)
    assert cell.outcomes == {0: "error", 1: "interrupted", 2: "interrupted"}
    assert cell.errors[0].evalue == "init_process_group: ranks 1-2 did not arrive."
    assert before == pids(torch_three)
    assert same(3.0) == values(run(torch_three, f"dist.is_initialized() or dist.init_process_group(); {ADD}"))


def waiting(session):
    """The calls in which ranks wait, by rank."""
    found = session.stacks()
    return {rank: stack.waits.call for rank, stack in found.items() if stack is not None and stack.waits is not None}


def test_one_raises_while_others_are_in_a_collective(training):
    """Some ranks come there long after, and some do not give up at the first time."""
    code = """
if rank == 1: raise ValueError('a bug')
if rank == 0: time.sleep(1.5)
for _ in range(2):
    try:
        dist.all_reduce(torch.ones(3))
    except RuntimeError:
        print('once more')
dist.barrier()
"""
    cell = fail(training, code)
    assert "ValueError" == cell.errors[1].ename
    assert same("error") == cell.outcomes
    assert same(3.0) == values(run(training, ADD))


@pytest.mark.parametrize("refused", REFUSALS)
def test_ranks_that_can_open_no_files_are_released_and_run_more_cells(training, refused):
    """Neither the connections nor the new group need a file."""
    with without_files(training, refused, [0, 2]):
        cell = fail(training, "if rank == 1: raise ValueError('a bug')\ndist.all_reduce(torch.ones(1))", timeout=20)
        after = run(training, ADD, timeout=20)

    assert {0: "all_reduce", 2: "all_reduce"} == {rank: cell.errors[rank].waited for rank in (0, 2)}
    assert same(3.0) == values(after)


SLOWLY = """
from jupyter_dtrain.rank.rank_context import rank_home
plugins = rank_home().plugins
release = plugins.release
def slowly(names):
    time.sleep(0.5)
    release(names)
if rank == 1: plugins.release = slowly
"""


def test_a_release_that_is_late_does_not_reach_the_next_cell(training):
    """As on a busy machine: a rank that has failed still ends its old connections when the next cell makes new ones."""
    run(training, SLOWLY)
    fail(training, "if rank == 1: raise ValueError('a bug')\ndist.all_reduce(torch.ones(1))")
    found = run(training, f"for _ in range(40):\n    time.sleep(0.02)\n    dist.barrier()\n{ADD}")
    run(training, "plugins.release = release")
    assert same(3.0) == values(found)


def test_one_raises_while_a_thread_of_others_is_in_a_collective(training):
    """Their main threads wait for that thread."""
    code = """
if rank == 1: raise ValueError('a bug')
thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1)))
thread.start()
thread.join()
dist.barrier()
"""
    cell = fail(training, f"import threading{code}", timeout=20)

    assert "ValueError" == cell.errors[1].ename
    assert same("error") == cell.outcomes
    assert same(3.0) == values(run(training, ADD))


def test_a_rank_that_raises_while_a_thread_of_others_was_handed_the_wait(training):
    """The thread runs no function of the user's."""
    code = """
if rank == 1: raise ValueError('a bug')
from threading import Thread
thread = Thread(target=dist.all_reduce(torch.ones(3), async_op=True).wait)
thread.start()
thread.join()
dist.barrier()
"""
    cell = fail(training, code)

    assert "ValueError" == cell.errors[1].ename
    assert same("error") == cell.outcomes
    assert same(3.0) == values(run(training, ADD))


def test_a_thread_that_a_cell_leaves_in_a_collective_takes_no_part_in_the_next_one(training):
    """The cell has ended well on all ranks."""
    run(
        training,
        """
from threading import Thread
if rank == 0:
    left = Thread(target=dist.all_reduce, args=(torch.full((1,), 100.0),))
    left.start()
""",
    )
    after = run(training, ADD)

    assert same(3.0) == values(after)
    assert "A thread that an earlier cell had left in all_reduce was released" in texts(after)[0]
    assert {0: False} == values(run(training, "left.join(20); left.is_alive()", [0]))


def test_a_collective_that_exceeds_its_own_timeout_breaks_no_later_cell(training, meeting):
    """gloo closes the group's connections then. No rank was released, and the cell may have caught the error."""
    late = f"""
import os
from datetime import timedelta
came = {str(meeting / "came")!r}
part = dist.new_group()
try:
    while rank == 1 and not os.path.exists(came):
        time.sleep(0.02)
    dist.monitored_barrier(timeout=timedelta(seconds=0.5))
except RuntimeError:
    open(came, "w").close()
"""
    run(training, late)
    after = run(training, ADD)

    assert same(3.0) == values(after)
    assert all("part: this process group is gone. Make it again" in text for text in texts(after).values())
    run(training, "del part")


def test_a_rank_that_never_comes_to_the_set_up(training):
    """It failed before; the others end, and the next set-up works."""
    run(training, "dist.destroy_process_group()")
    cell = fail(training, "if rank == 0: raise ValueError('a bug')\ndist.init_process_group()")
    assert {1: "init_process_group", 2: "init_process_group"} == {rank: cell.errors[rank].waited for rank in (1, 2)}
    assert "rank 0 did not arrive" in cell.errors[2].evalue
    assert same(3.0) == values(run(training, f"dist.init_process_group()\n{ADD}"))
    run(training, TRAIN)


def test_a_group_is_whole_after_ranks_were_released_from_mpi(training):
    """Both worlds are made again before the next cell."""
    fail(training, "from mpi4py import MPI\nif rank == 1: raise ValueError('a bug')\nMPI.COMM_WORLD.Barrier()")

    assert same((3, 3.0)) == values(
        run(training, f"n = MPI.COMM_WORLD.allreduce(1)\n{ADD.replace('float(t)', '(n, float(t))')}")
    )


def test_an_interrupt_frees_ranks_that_all_wait(training):
    """No rank stays behind, and the next cell finds a whole world."""
    before = pids(training)
    cell = begin(training, "dist.recv(torch.ones(1), src=0) if rank == 1 else dist.barrier()")
    training.interrupt()

    assert cell.wait(20)
    assert ("interrupted", []) == (cell.outcome, cell.busy)
    assert before == pids(training)
    assert same(3.0) == values(run(training, ADD))
    with pytest.raises(DistributedInterrupt):
        raise DistributedInterrupt(cell)


def test_things_that_cannot_be_made_whole_are_named(training):
    """A module with a group that a rank no longer has, and one whose group the user destroyed; with the way on."""
    run(
        training,
        "group = dist.new_group([0, 1, 2])\n"
        "orphan = DistributedDataParallel(torch.nn.Linear(8, 1), process_group=group)\n"
        "dist.destroy_process_group(group)",
    )
    run(
        training,
        "own = DistributedDataParallel(torch.nn.Linear(8, 1), process_group=dist.new_group([0, 1, 2]))\n"
        "kept = DistributedDataParallel(torch.nn.Linear(8, 1), process_group=dist.new_group([0, 1, 2]))",
    )
    run(training, "del own", 1)
    fail(training, "if rank == 1: raise ValueError('a bug')\ndist.barrier()")
    said = texts(run(training, ADD))
    note = without_log(said[0])
    assert note == without_log(said[2])
    assert "kept" not in note
    assert "own:" not in said[1]
    assert "own: this DDP has a process group of its own" in note
    assert "`own._update_process_group(group)`" in note
    assert "orphan: the process group of this DDP was destroyed before the failure. Wrap its module" in note
    run(training, "kept(torch.ones(1, 8)).sum().backward()\ndel kept, orphan")
    run(training, "del own", [0, 2])


@pytest.mark.slow
def test_a_model_whose_making_was_ended_stands_in_no_ones_way(training):
    """One rank raises while the others are in the constructor of DDP, and a variable keeps the unfinished module."""
    half = """
halves = []

class Half(DistributedDataParallel):
    def __init__(self, module):
        halves.append(self)
        super().__init__(module)

if rank == 1:
    raise ValueError("a bug")
Half(torch.nn.Linear(8, 1))
"""
    cell = fail(training, half)
    found = values(run(training, "losses = train(model, 3)\n['reducer' in vars(one) for one in halves]"))

    assert cell.errors[1].ename == "ValueError"
    assert found == {0: [False], 1: [], 2: [False]}


def test_a_collective_that_only_one_rank_has_begun_does_not_meet_the_next_cells(training):
    """No rank waits for it, so none is released; but it is still pending."""
    fail(training, "if rank == 0:\n    work = dist.all_reduce(torch.ones(3), async_op=True)\n1 / 0")

    assert same([6.0] * 4) == values(
        run(training, "t = torch.ones(4) * (rank + 1)\ndist.all_reduce(t)\nt.tolist()", timeout=20)
    )


@pytest.mark.here("a signal reaches its process")
def test_ranks_that_wait_for_one_that_dies_before_it_begins_are_released(launch, soon):
    """The cell has been sent to it, so the others wait; its own record knows of no run that it has died in."""
    session = launch(n=2, settings=soon)
    run(session, "import torch.distributed as dist")
    pid = session.world.ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    cell = session.run("dist.init_process_group()", wait=False, view=None)
    until(lambda: cell.pids)
    os.kill(pid, signal.SIGKILL)
    ended = cell.wait(3 * PATIENCE)
    session.stop()

    assert ended
    assert cell.errors[0].waited == "init_process_group"
    assert cell.lost[1].startswith("rank 1 was killed (SIGKILL)")


@pytest.mark.here("a signal reaches its process")
def test_what_follows_from_a_threads_lost_connection_is_not_the_cause(launch):
    """The connections of a process that dies may close long before anybody can know that it has died."""
    session = launch(n=2)
    cell = fail(session, CLOSES)
    session.stop()

    assert cell.errors[0].ename == "IndexError"
    assert cell.lost[1].startswith("rank 1 was killed (SIGKILL)")
    first, *_ = blocks(cell)
    assert "Rank 1 was killed" in first


CLOSES = """
import contextlib, os, signal, socket, threading, time
import torch, torch.distributed as dist

def sockets():
    return {fd for fd in os.listdir("/proc/self/fd") if is_socket(fd)}

def is_socket(fd):
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")

before = sockets()
dist.init_process_group()
dist.barrier()
if os.environ["RANK"] == "1":
    for fd in sockets() - before:
        with contextlib.suppress(OSError):
            one = socket.socket(fileno=os.dup(int(fd)))
            if os.environ["MASTER_PORT"] not in map(str, one.getpeername() + one.getsockname()):
                one.shutdown(socket.SHUT_WR)
    time.sleep(2)
    os.kill(os.getpid(), signal.SIGKILL)
found = []
thread = threading.Thread(target=lambda: found.append(dist.all_reduce(torch.ones(1))))
thread.start()
thread.join()
found[0]
"""

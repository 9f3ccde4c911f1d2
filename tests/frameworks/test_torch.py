"""PyTorch in the ranks: plain ``torch.distributed`` code, and what happens when it is run again or goes wrong."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time

import psutil
import pytest

from jupyter_dtrain import DistributedError, RunTimeout
from tests.steward.until import until

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

PATIENCE = 60
IMPORTS = "import os, torch\nimport torch.distributed as dist\nrank = int(os.environ['RANK'])\n"
DESTROY = "if dist.is_initialized(): dist.destroy_process_group()\n"
SUM = "total = torch.tensor([float(rank + 1)])\ndist.all_reduce(total)\ntotal.item()"


def values(run):
    """The results of a run as Python values, by rank."""
    return {rank: ast.literal_eval(result.data["text/plain"]) for rank, result in sorted(run.results.items())}


def cell(session, code, ranks=None, **options):
    """Run code without a view; the results by rank."""
    return values(session.run(code, ranks, view=None, timeout=PATIENCE, **options))


@pytest.fixture
def torch_world(torch_three):
    """The shared world of three ranks, with torch imported and no process group, before and after."""
    cell(torch_three, IMPORTS + DESTROY)
    yield torch_three
    cell(torch_three, IMPORTS + DESTROY)


def store_of(session):
    """The process of a world's rendezvous store, if it runs."""
    steward = psutil.Process(session._link.listing.steward)
    return next((child for child in steward.children() if any("torch.store" in word for word in child.cmdline())), None)


def test_torch_is_not_imported_before_the_user_does(launch):
    """It is imported neither here nor in a rank; and the store starts with the first process group."""
    heavy = "sorted({'torch', 'tensorflow', 'jax', 'numpy'} & set(__import__('sys').modules))"
    session = launch(n=1)
    in_rank = cell(session, heavy)
    store = store_of(session)
    here = subprocess.run(
        [sys.executable, "-c", f"import jupyter_dtrain, jupyter_dtrain.magics, jupyter_dtrain.session\nprint({heavy})"],
        capture_output=True,
        text=True,
        check=True,
    )
    session.stop()

    assert in_rank == {0: []}
    assert here.stdout.strip() == "[]"
    assert store is None


@pytest.mark.slow
def test_every_variable_that_torchrun_sets_is_set(torch_world, tmp_path):
    """Held against torchrun itself, on this machine, name by name."""
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os, sys\nif os.environ['RANK'] == '1':\n    json.dump(dict(os.environ), open(sys.argv[1], 'w'))\n"
    )
    found = tmp_path / "environment.json"
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", script, found],
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    theirs = {name: text for name, text in json.loads(found.read_text()).items() if os.environ.get(name) != text}
    ours = cell(torch_world, "dict(os.environ)")[1]
    # torchrun's private ones: threads (a performance choice), the way its agent ends, a pseudo terminal's size.
    own = {"OMP_NUM_THREADS", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "COLUMNS", "LINES", "_"}
    same = {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
    }

    assert set(theirs) - own - set(ours) == set()
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
    assert ours["MASTER_ADDR"] == "127.0.0.1"
    assert ours["NODE_RANK"] == "0"


@pytest.mark.slow
def test_a_process_group_without_arguments_takes_gloo_on_processors(torch_world):
    """The group works."""
    cell(torch_world, "dist.init_process_group()")

    assert cell(torch_world, "dist.get_backend(), dist.get_rank(), dist.get_world_size()") == {
        rank: ("gloo", rank, 3) for rank in range(3)
    }
    assert cell(torch_world, SUM) == dict.fromkeys(range(3), 6.0)


def test_a_second_set_up_in_a_live_group_is_harmless(torch_world):
    """A cell that is run again must not die; the group stays the same one."""
    cell(torch_world, "dist.init_process_group()\nbefore = dist.group.WORLD")
    cell(
        torch_world,
        "dist.init_process_group()\ndist.init_process_group('gloo')\ndist.init_process_group(backend='GLOO')",
    )

    assert cell(torch_world, "dist.group.WORLD is before") == dict.fromkeys(range(3), True)
    assert cell(torch_world, SUM) == dict.fromkeys(range(3), 6.0)


def test_a_second_set_up_with_another_backend_says_what_to_do(torch_world):
    """It is no accident of running a cell twice; the group lives on."""
    cell(torch_world, "dist.init_process_group('gloo')")
    with pytest.raises(DistributedError, match=r"up with backend 'gloo'.*destroy_process_group.*'nccl'") as failure:
        cell(torch_world, "dist.init_process_group('nccl')")

    assert failure.value.ranks == [0, 1, 2]
    assert cell(torch_world, SUM) == dict.fromkeys(range(3), 6.0)


def test_all_names_of_the_set_up_are_the_same(torch_world):
    """Imported from wherever."""
    names = "from torch.distributed import init_process_group\n"
    names += "from torch.distributed.distributed_c10d import init_process_group as other\n"

    assert cell(torch_world, names + "init_process_group is other is dist.init_process_group") == dict.fromkeys(
        range(3), True
    )
    assert "backend" in str(
        cell(torch_world, "list(__import__('inspect').signature(init_process_group).parameters)")[0]
    )


def test_other_ways_to_meet_work_as_ever(torch_world, tmp_path):
    """They meet by a file, or with all arguments given by hand."""
    cell(torch_world, f"dist.init_process_group('gloo', init_method='file://{tmp_path}/meet', rank=rank, world_size=3)")
    by_file = cell(torch_world, SUM)
    cell(torch_world, DESTROY + "dist.init_process_group('gloo', init_method='env://', rank=rank, world_size=3)")

    assert by_file == cell(torch_world, SUM) == dict.fromkeys(range(3), 6.0)


@pytest.mark.slow
def test_thirty_rounds_of_set_up_training_and_end_hold(torch_world):
    """The models of all rounds are still alive, which breaks plain torch on one port."""
    code = """
from torch.nn.parallel import DistributedDataParallel
kept = []
for number in range(15):
    dist.init_process_group()
    torch.manual_seed(number)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    model(torch.full((3, 4), float(rank))).sum().backward()
    kept.append(model)
    gradient = model.module.weight.grad.sum().item()
    dist.destroy_process_group()
gradient
"""
    first, second = cell(torch_world, code), cell(torch_world, code)

    assert first == second
    assert len(set(first.values())) == 1


TRAIN_AND_END = """
from torch.nn.parallel import DistributedDataParallel

def main():
    dist.init_process_group()
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 10)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()

main()
"""


def test_a_cell_that_trains_and_ends_its_group_runs_again_and_again(torch_world):
    """The group dies while its last collective is in the hands of gloo's worker; in plain torch that may hang."""
    count = "len(os.listdir('/proc/self/task')), len(os.listdir('/proc/self/fd'))"
    for _ in range(3):
        cell(torch_world, TRAIN_AND_END)
    before = cell(torch_world, count)
    for _ in range(12):
        cell(torch_world, TRAIN_AND_END)
    after = cell(torch_world, count)

    # A group has three threads, and more descriptors.
    assert all(after[rank][0] < threads + 12 for rank, (threads, _) in before.items()), (before, after)
    assert all(after[rank][1] < descriptors + 24 for rank, (_, descriptors) in before.items()), (before, after)


def test_groups_live_between_cells_and_sub_groups_work(torch_world):
    """A group of two of three ranks."""
    cell(torch_world, "dist.init_process_group()\nhalf = dist.new_group([0, 2])")
    cell(torch_world, "mine = torch.ones(1)\nif rank != 1: dist.all_reduce(mine, group=half)")

    assert cell(torch_world, "mine.item()") == {0: 2.0, 1: 1.0, 2: 2.0}


def test_sharded_training_works(torch_world):
    """FSDP2 on processors."""
    code = """
from torch.distributed.fsdp import fully_shard
dist.init_process_group()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 3))
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(3):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 6)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
losses[0] > losses[-1]
"""
    assert cell(torch_world, code) == dict.fromkeys(range(3), True)


def wait_for_stack(session, rank, function):
    """Wait until a rank is in a function of that name."""
    deadline = time.monotonic() + PATIENCE
    while True:
        stack = session.stacks([rank])[rank]
        if stack is not None and any(function in frame.source for frame in stack.frames):
            return
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_set_up_to_which_a_rank_does_not_come_can_be_interrupted(torch_world):
    """The ranks keep their variables, and the next set-up works."""
    run = torch_world.run("stage = 'kept'\ndist.init_process_group()", "0,1", wait=False, view=None)
    wait_for_stack(torch_world, 0, "init_process_group")
    torch_world.interrupt()
    ended = run.wait(PATIENCE)
    cell(torch_world, "dist.init_process_group()")

    assert ended
    assert run.outcome == "interrupted"
    assert run.busy == []
    assert cell(torch_world, "stage", "0,1") == {0: "kept", 1: "kept"}
    assert cell(torch_world, SUM) == dict.fromkeys(range(3), 6.0)


def test_a_set_up_with_a_deadline_names_the_ranks_that_did_not_come(torch_world):
    """The error uses the words of the user's world; the next set-up works."""
    late = "from datetime import timedelta\ndist.init_process_group(timeout=timedelta(seconds=1))"
    with pytest.raises(DistributedError, match=r"ranks 1-2 did not arrive within 1 s.*Every rank") as failure:
        cell(torch_world, late, "0")
    with pytest.raises(DistributedError, match=r"rank 0 did not arrive within 1 s"):
        cell(torch_world, late, "1-2")
    cell(torch_world, "dist.init_process_group()")

    assert failure.value.ranks == [0]
    assert cell(torch_world, SUM) == dict.fromkeys(range(3), 6.0)


def test_a_set_up_that_failed_on_some_ranks_only_does_not_break_the_next(torch_world):
    """It fails in one cell, where the user catches it, and again on all of them."""
    code = """
try:
    dist.init_process_group('no-such-backend' if rank else 'gloo', timeout=__import__('datetime').timedelta(seconds=1))
except Exception as error:
    problem = type(error).__name__
problem
"""
    problems = cell(torch_world, code)
    cell(torch_world, DESTROY + "dist.init_process_group()")

    assert len(problems) == 3
    assert cell(torch_world, SUM) == dict.fromkeys(range(3), 6.0)


def test_a_cell_with_a_timeout_ends_in_a_set_up_that_cannot_succeed(torch_world):
    """The cell's own deadline reaches the ranks inside of torch."""
    with pytest.raises(RunTimeout, match="timeout"):
        torch_world.run("dist.init_process_group()", 1, view=None, timeout=0.5)
    cell(torch_world, "dist.init_process_group()")

    assert cell(torch_world, SUM) == dict.fromkeys(range(3), 6.0)


@pytest.mark.parametrize("backend", ["nccl", "mpi", "ucc", "xccl", "cpu:gloo,cuda:nccl"])
def test_a_backend_that_this_torch_lacks_is_refused_with_those_that_it_has(torch_world, backend):
    """It fails at once, before any rank waits; and the next set-up works."""
    name = backend.rpartition(":")[2]
    if cell(torch_world, f"dist.is_{name}_available()")[0]:
        pytest.skip(f"this torch has {name}")
    with pytest.raises(DistributedError) as failure:
        cell(torch_world, f"dist.init_process_group({backend!r})")
    words = {error.evalue for error in failure.value.run.errors.values()}
    cell(torch_world, "dist.init_process_group('gloo')")

    assert len(words) == 1
    assert f"is built without {name.upper()}; it has gloo" in words.pop()
    assert cell(torch_world, SUM)[0] == 6.0


def test_an_address_of_the_cells_own_cannot_keep_a_world_from_meeting(torch_world):
    """The cell is that of PyTorch's examples, on a port that another program has, and again with a living module."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        by_hand = f"os.environ['MASTER_PORT'] = '{port}'\ndist.init_process_group('gloo', rank=rank, world_size=3)\n"
        by_url = f"dist.init_process_group('gloo', init_method='tcp://localhost:{port}', rank=rank, world_size=3)\n"
        kept = cell(torch_world, "os.environ['MASTER_PORT']")[0]
        model = "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))\n"
        sums = [cell(torch_world, DESTROY + way + model + SUM) for way in (by_hand, by_hand, by_url)]
        cell(torch_world, DESTROY + f"del model\nos.environ['MASTER_PORT'] = '{kept}'")

    assert sums == [dict.fromkeys(range(3), 6.0)] * 3


def test_ranks_that_meet_at_a_port_that_is_taken_say_so(torch_world):
    """Some ranks of a world do it: no rank waits, and the same port serves again and again once it is free."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        where = f"init_method='tcp://127.0.0.1:{port}', rank=rank - 1, world_size=2"
        with pytest.raises(DistributedError) as failure:
            cell(torch_world, f"dist.init_process_group('gloo', {where})", [1, 2])
    run = failure.value.run
    # Something may hold the store of before, which then goes on to serve at that port.
    held = "held = dist.distributed_c10d._get_default_store()\n"
    model = "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))\n"
    meet = f"{DESTROY}dist.init_process_group('gloo', {where})\n{held}{model}{SUM}"
    sums = [cell(torch_world, meet, [1, 2]) for _ in range(3)]
    cell(torch_world, DESTROY + "del held, model", [1, 2])

    assert {error.evalue.partition(". ")[0] for error in run.errors.values()} == {
        f"init_process_group: the cell's ranks cannot find each other at 127.0.0.1:{port}: another program uses it"
    }
    assert sorted(run.errors) == [1, 2]
    assert run.elapsed < PATIENCE / 2
    assert sums == [{1: 5.0, 2: 5.0}] * 3


def test_a_meeting_to_which_rank_0_does_not_come_can_be_ended(torch_world):
    """It ends by an interrupt, by its own timeout, and when its rank 0 has failed before."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"tcp://127.0.0.1:{port}"
    with pytest.raises(RunTimeout):
        torch_world.run(f"dist.init_process_group('gloo', {url!r}, rank=1, world_size=2)", 2, view=None, timeout=1)
    with pytest.raises(DistributedError, match="rank 0 of the group did not arrive"):
        cell(
            torch_world,
            "from datetime import timedelta\n"
            f"dist.init_process_group('gloo', {url!r}, timedelta(seconds=1), rank=1, world_size=2)",
            2,
        )
    fails = "if rank == 1: raise ValueError('a bug')\n"
    with pytest.raises(DistributedError) as failure:
        cell(torch_world, f"{fails}dist.init_process_group('gloo', {url!r}, rank=rank - 1, world_size=2)", [1, 2])
    errors = failure.value.run.errors

    assert errors[1].ename == "ValueError"
    assert (errors[2].waited, errors[2].released) == ("init_process_group", True)


def test_the_frames_of_a_failed_set_up_are_torchs_and_the_users(torch_world):
    """The traceback has no frame of the package."""
    with pytest.raises(DistributedError) as failure:
        cell(torch_world, "dist.init_process_group('no-such-backend')")
    text = "\n".join(failure.value._render_traceback_())

    assert "jupyter_dtrain" not in text
    assert "init_process_group" in text


@pytest.mark.slow
def test_the_store_listens_on_the_loopback_only_and_ends_with_its_world(launch):
    """It is a child of the steward's: no rank's death takes it along."""
    session = launch(n=2, torch_backend="gloo")
    cell(session, IMPORTS + "dist.init_process_group()")
    backend = cell(session, "dist.get_backend()")
    port = int(cell(session, "os.environ['MASTER_PORT']")[0])
    store = store_of(session)
    assert store is not None
    listening = {one.laddr for one in store.net_connections() if one.status == psutil.CONN_LISTEN}
    session.stop()

    assert backend == {0: "gloo", 1: "gloo"}
    assert listening == {("127.0.0.1", port)}
    assert not store.is_running()


@pytest.mark.slow
def test_a_store_that_is_slow_to_start_holds_up_no_stop(launch):
    """Ranks wait for it in Python, not in torch's native code."""
    session = launch(n=2)
    cell(session, IMPORTS)
    run = session.run("dist.init_process_group()", wait=False, view=None)
    store = until(lambda: store_of(session))
    store.suspend()
    try:
        wait_for_stack(session, 0, "init_process_group")
        session.interrupt()
        ended = run.wait(PATIENCE)
    finally:
        store.resume()
    again = cell(session, "dist.init_process_group()\n" + SUM)
    session.stop()

    assert ended
    assert (run.outcome, run.busy) == ("interrupted", [])
    assert again == {0: 3.0, 1: 3.0}


@pytest.mark.slow
def test_a_store_that_died_is_replaced_for_the_next_process_group(launch):
    """The one that is up needs it no longer."""
    session = launch(n=2)
    cell(session, IMPORTS + "dist.init_process_group()")
    store_of(session).kill()
    in_group = cell(session, SUM)
    cell(session, DESTROY + "dist.init_process_group()")
    again = cell(session, SUM)
    session.stop()

    assert in_group == again == {0: 3.0, 1: 3.0}


@pytest.mark.slow
def test_a_world_of_one_rank_can_train_too(launch):
    """A process group of one."""
    session = launch(n=1)
    total = cell(session, IMPORTS + "dist.init_process_group()\n" + SUM)
    session.stop()

    assert total == {0: 1.0}


def test_a_mesh_sets_up_the_default_group_again_and_again(torch_world):
    """It calls the function that it knew when torch.distributed was imported."""
    code = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
mesh = init_device_mesh("cpu", (3,))
parts = DTensor.from_local(torch.full((1,), float(rank)), mesh, [Shard(0)])
whole = parts.full_tensor().tolist()
dist.destroy_process_group()
whole
"""
    found = [cell(torch_world, code) for _ in range(3)]

    assert found == [{rank: [0.0, 1.0, 2.0] for rank in range(3)}] * 3


@pytest.mark.slow
def test_processes_that_a_rank_spawns_are_a_world_of_their_own(torch_world, tmp_path):
    """A script under plain python does the same: it says where they meet, and keeps the store itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = tmp_path / "spawns.py"
    script.write_text(f"""
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank, size):
    dist.init_process_group("gloo", rank=rank, world_size=size)
    total = torch.ones(1)
    dist.all_reduce(total)
    os.write(1, f"{{total.item()}} {{os.environ.get('TORCHELASTIC_RUN_ID')}}\\n".encode())
    dist.destroy_process_group()

if __name__ == "__main__":
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "{port}"
    mp.spawn(work, args=(2,), nprocs=2, join=True)
""")
    run = torch_world.run_script(script, ranks=1, view=None, timeout=PATIENCE)

    assert run.text(1) == "2.0 None\n" * 2
    assert cell(torch_world, "(os.environ['RANK'], os.environ['TORCHELASTIC_USE_AGENT_STORE'])")[1] == ("1", "True")

"""torch's rpc in cells: again and again, with what cells define; and when a rank does not come or does not answer."""

from __future__ import annotations

import importlib.util
import socket
import threading
from types import SimpleNamespace

import pytest

from jupyter_dtrain.frameworks.torch import rpc as rpc_of_a_rank
from tests.session.cells import begin, fail, run, same, texts, until, values

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

DEFINE = """
import os, threading, torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
other = (rank + 1) % size
answers = threading.Event()

class Server:
    def __init__(self):
        self.weights = torch.zeros(2)
    def push(self, gradient):
        self.weights -= gradient
        return self.weights

def add(a, b):
    return a + b + rank

def wait_here():
    answers.wait(60)

def train(name):
    server = rpc.remote(f"{name}{other}", Server)
    for _ in range(3):
        server.rpc_sync().push(torch.ones(2))
    return server.rpc_sync().push(torch.zeros(2)).tolist()
"""
INIT = "rpc.init_rpc(f'worker{rank}', rank=rank, world_size=size)\n"
TRAIN = "train('worker')"
TRAINED = [-3.0, -3.0]
CALL = "rpc.rpc_sync(f'worker{other}', add, args=(1, 2))"
CALLED = {0: 4, 1: 3}
AGAIN = (
    "torch's rpc ended with a cell that did not finish: call torch.distributed.rpc.init_rpc(...) again on all ranks. "
    "RRefs are gone, and need %distributed restart to work again."
)
NOT_UP = "RPC has not been initialized. Call torch.distributed.rpc.init_rpc first."
"""torch's own words for a call without rpc."""


@pytest.fixture(scope="module")
def workers(torch_pair):
    """Two ranks that know some functions."""
    run(torch_pair, DEFINE)
    return torch_pair


@pytest.fixture
def fresh(launch):
    """Two ranks that know some functions, with the first rpc of their processes up: the one that has RRefs."""
    session = launch(n=2)
    run(session, DEFINE + INIT)
    yield session
    session.stop()


@pytest.fixture
def pair(workers):
    """Two ranks with rpc up before and down afterwards; not for the first time, so without RRefs."""
    run(workers, INIT)
    yield workers
    run(workers, "answers.set()\n" + INIT + "rpc.shutdown()\nanswers = threading.Event()")


@pytest.mark.slow
def test_functions_that_cells_define_work_on_another_rank(fresh):
    """A function, an object that lives there, and a gradient that comes back from it."""
    assert values(run(fresh, "rpc.rpc_sync(f'worker{other}', add, args=(1, 2))")) == {0: 4, 1: 3}
    assert values(run(fresh, TRAIN)) == same(TRAINED, 2)
    run(
        fresh,
        """
import torch.distributed.autograd as dist_autograd
from torch.distributed.optim import DistributedOptimizer
def forward(layer, x):
    return layer.local_value()(x)
def parameters(layer):
    return [rpc.RRef(one) for one in layer.local_value().parameters()]
""",
    )
    trained = run(
        fresh,
        """
torch.manual_seed(0)
losses = []
if rank == 0:
    layer = rpc.remote("worker1", torch.nn.Linear, args=(2, 1))
    optimizer = DistributedOptimizer(torch.optim.SGD, rpc.rpc_sync("worker1", parameters, args=(layer,)), lr=0.1)
    for _ in range(3):
        with dist_autograd.context() as context:
            error = (rpc.rpc_sync("worker1", forward, args=(layer, torch.ones(4, 2))) - 3).square().mean()
            dist_autograd.backward(context, [error])
            optimizer.step(context)
            losses.append(error.item())
    del layer, optimizer
losses
""",
    )
    losses = values(trained)[0]
    seen = trained.metrics["error"]
    assert (losses, len(losses)) == (sorted(losses, reverse=True), 3)
    assert {rank: (list(points.steps), list(points.values)) for rank, points in seen.items()} == {
        0: ([0, 1, 2], losses)
    }
    # Its parameters are on another rank, so no rank is behind with its steps.
    assert trained.steps == {0: {}, 1: {}}


@pytest.mark.slow
def test_an_address_of_the_cells_own_cannot_keep_ranks_from_meeting(workers):
    """PyTorch's examples do it: another program has the port, or a rank does not come."""
    kept = values(run(workers, "os.environ['MASTER_PORT']"))[0]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        by_hand = f"os.environ['MASTER_ADDR'] = 'localhost'\nos.environ['MASTER_PORT'] = '{port}'\n{INIT}"
        by_url = "options = rpc.TensorPipeRpcBackendOptions()\n"
        by_url += f"options.init_method = 'tcp://localhost:{port}'\n"
        by_url += INIT.replace("size)", "size, rpc_backend_options=options)")
        failed = fail(workers, f"if rank: raise ValueError('a bug')\n{by_hand}")
        called = [values(run(workers, f"{way}called = {CALL}\nrpc.shutdown()\ncalled")) for way in (by_hand, by_url)]
    run(workers, f"os.environ['MASTER_PORT'] = '{kept}'")
    assert (failed.errors[0].waited, failed.errors[0].evalue) == ("init_rpc", "init_rpc: rank 1 did not arrive.")
    assert called == [CALLED, CALLED]


@pytest.mark.slow
def test_a_set_up_follows_each_end(pair):
    """Under other names, in one cell and in several; functions on other ranks work each time."""
    assert values(run(pair, f"rpc.shutdown()\n{INIT}{CALL}")) == CALLED
    several = """
found = []
for name in "abc":
    rpc.shutdown()
    rpc.init_rpc(f"{name}{rank}", rank=rank, world_size=size)
    found.append(rpc.rpc_async(f"{name}{other}", add, args=(1, 2)).wait())
rpc.shutdown()
found
"""
    assert values(run(pair, several)) == {0: [4] * 3, 1: [3] * 3}


@pytest.mark.slow
def test_rrefs_after_the_first_shutdown_are_refused_with_the_fix(fresh):
    """torch's table of them is closed for good; a fresh process has another. Calls without RRefs work."""
    assert values(run(fresh, TRAIN)) == same(TRAINED, 2)
    run(fresh, "rpc.shutdown()\n" + INIT)
    failed = fail(fresh, TRAIN)
    assert "%distributed restart gives fresh ranks, in which RRefs work again" in failed.errors[0].evalue
    assert values(run(fresh, CALL)) == CALLED
    run(fresh, "rpc.shutdown()")
    fresh.restart()
    run(fresh, DEFINE + INIT)
    assert values(run(fresh, TRAIN)) == same(TRAINED, 2)
    run(fresh, "rpc.shutdown()")


def test_a_second_set_up_while_it_is_up(pair):
    """A cell that runs again goes on; with other names the error says what to do first."""
    run(pair, INIT)
    assert values(run(pair, CALL)) == CALLED
    failed = fail(pair, "rpc.init_rpc(f'other{rank}', rank=rank, world_size=size)")
    assert "this rank as 'worker1'. Call torch.distributed.rpc.shutdown() on all ranks" in failed.errors[1].evalue
    assert values(run(pair, CALL)) == CALLED


@pytest.mark.slow
def test_an_end_to_which_a_rank_does_not_come(fresh):
    """The waiting rank is released. The message names the fix, and the fix works."""
    failed = fail(
        fresh, "kept = rpc.remote(f'worker{other}', Server)\nif rank: raise ValueError('a bug')\nrpc.shutdown()"
    )
    assert (failed.errors[0].waited, failed.errors[1].ename) == ("shutdown", "ValueError")
    told = texts(run(fresh, "rank"))
    assert (AGAIN in told[0], AGAIN in told[1]) == (True, True)
    assert values(run(fresh, INIT + CALL)) == CALLED
    run(fresh, "rpc.shutdown()")


@pytest.mark.slow
def test_an_answer_that_does_not_come(pair):
    """The rank that should give it has failed, but for a thread; who waits is released."""
    failed = fail(pair, "if rank: raise ValueError('a bug')\nrpc.rpc_sync('worker1', wait_here, timeout=0)")
    assert (failed.errors[0].waited, failed.errors[1].ename) == ("rpc_sync", "ValueError")
    for code, says in ((CALL, True), ("rpc.shutdown()", False), (CALL, False)):  # nothing makes rpc usable by itself
        told = fail(pair, code)
        assert {rank: error.evalue for rank, error in told.errors.items()} == same(NOT_UP, 2)
        assert {rank: AGAIN in text for rank, text in texts(told).items()} == same(says, 2)
    run(pair, "answers.set()")
    assert values(run(pair, INIT + CALL)) == CALLED


@pytest.mark.parametrize(
    ("ranks", "waits"),
    [
        ("pair", "rpc.rpc_async('worker1', wait_here, timeout=0).wait()"),
        pytest.param("fresh", "rpc.remote('worker1', wait_here).to_here(timeout=0)", marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_ends_a_wait_for_an_answer(request, ranks, waits):
    """The end of rpc does not wait for it later either."""
    session = request.getfixturevalue(ranks)
    waiting = begin(session, f"if rank == 0: {waits}")
    session.interrupt()
    assert waiting.wait(20)
    assert waiting.outcome == "interrupted"
    run(session, "answers.set()")
    assert values(run(session, INIT + CALL + "\nrpc.shutdown()\n" + INIT + CALL)) == CALLED
    run(session, "rpc.shutdown()")


def test_an_interrupt_of_an_end_is_an_end_for_all(pair):
    """Rank 1 leaves rpc when Stop ends its shutdown; the agent of rank 0, which calls, is of no use then."""
    calls = f"if rank: print('leaves', flush=True)\nelse:\n    while True: {CALL}\nrpc.shutdown()"
    for again in (INIT, ""):
        leaving = begin(pair, calls)
        until(lambda: "leaves" in texts(leaving)[1])  # noqa: B023 — it is over when the loop goes on
        pair.interrupt()
        assert leaving.wait(20)
        assert leaving.outcome == "interrupted"
        if again:
            assert values(run(pair, again + CALL)) == CALLED
    told = fail(pair, CALL)
    assert {rank: error.evalue for rank, error in told.errors.items()} == same(NOT_UP, 2)
    assert {rank: AGAIN in text for rank, text in texts(told).items()} == same(True, 2)


@pytest.mark.slow
def test_a_set_up_to_which_a_rank_does_not_come(workers):
    """It is named, and the next set-up works."""
    failed = fail(workers, f"if rank: raise ValueError('a bug')\n{INIT}")
    assert (failed.errors[0].waited, failed.errors[0].evalue) == ("init_rpc", "init_rpc: rank 1 did not arrive.")
    assert values(run(workers, INIT + CALL)) == CALLED
    run(workers, "rpc.shutdown()")


@pytest.mark.slow
def test_a_failure_elsewhere_leaves_rpc_alone(fresh):
    """Objects behind RRefs live on when ranks are released from a collective."""
    run(
        fresh,
        "dist.init_process_group()\nkept = rpc.remote(f'worker{other}', Server)\nkept.rpc_sync().push(torch.ones(2))",
    )
    fail(fresh, "if rank: raise ValueError('a bug')\ndist.barrier()")
    assert values(run(fresh, "kept.rpc_sync().push(torch.ones(2)).tolist()")) == same([-2.0, -2.0], 2)
    run(fresh, "rpc.shutdown()\ndist.destroy_process_group()\ndel kept")


def test_a_release_while_an_agent_is_cleared_away_is_not_forgotten(monkeypatch):
    """The next cell of all ranks begins a new generation. The agent is one that waits for a function that runs."""
    began, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def shut_down():
        began.set()
        goes_on.wait(20)

    agent = SimpleNamespace(shutdown=shut_down)
    api = SimpleNamespace(_is_current_rpc_agent_set=lambda: not ended.is_set(), _get_current_rpc_agent=lambda: agent)
    api._destroy_rref_context = api._cleanup_python_rpc_handler = lambda *_: None
    api._ignore_rref_leak, api._reset_current_rpc_agent = True, ended.set
    monkeypatch.setattr(rpc_of_a_rank.Patch, "when_imported", lambda *_: None)
    rank = rpc_of_a_rank.TorchRpc()
    rank.prepare(SimpleNamespace(generation=0, address=("127.0.0.1", 1)))
    rank._api = api
    clearing = threading.Thread(target=rank._clear)
    clearing.start()
    assert began.wait(20)
    rank.release()
    goes_on.set()
    clearing.join(20)

    assert ended.is_set()
    assert rank.needs_regroup()

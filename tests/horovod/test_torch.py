"""Horovod itself, with PyTorch, in the ranks of a world: ``make horovod``."""

from __future__ import annotations

import importlib.util
import time
from importlib.metadata import PackageNotFoundError, version

import pytest

from jupyter_dtrain import DistributedError
from jupyter_dtrain.core.stacks import Wait
from tests.faults.plans import Plan
from tests.faults.stage import Stage
from tests.faults.worlds import QUICK
from tests.frameworks.horovod_cells import BEGIN, CALLS, STAND_IN, every_call, play


def has_horovod():
    try:
        return bool(version("horovod")) and importlib.util.find_spec("torch") is not None
    except PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not has_horovod(), reason="needs Horovod with PyTorch: make horovod")

RANKS = 2
SUM = "hvd.allreduce(torch.ones(1), op=hvd.Sum).item()"
ONE_RANK = "import torch, horovod.torch as hvd\none = hvd.ProcessSet([1])\n"
OF_ONE = f"{SUM}, hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=one).item() if rank else None"
ALIKE = "len(set(hvd.allgather_object(repr(net.state_dict()))))"


@pytest.fixture(scope="module")
def pair(launch):
    """A world of two ranks in which Horovod is set up."""
    session = launch(n=RANKS)
    play(session, BEGIN + "rank")
    yield session
    session.stop()


def test_it_is_set_up_ten_times_in_ten_cells(launch):
    """It has its own world, so that the first set-up is the first; with and without a shutdown between them."""
    with launch(n=RANKS) as session:
        for _ in range(10):
            _, found = play(session, f"import torch, horovod.torch as hvd\nhvd.init()\n{SUM}")
            assert found == {0: 2.0, 1: 2.0}
        for _ in range(10):
            _, found = play(session, f"hvd.shutdown()\nhvd.init()\n{SUM}")
            assert found == {0: 2.0, 1: 2.0}


def test_the_stand_in_trains_as_horovod_does(pair, launch):
    """The same cells: losses and weights of a hundred steps, and each call."""
    code = "net = fresh()\noptimizer = distributed(net)\ntrain(net, optimizer, 100)"
    weights = "[weight.flatten().tolist() for weight in net.parameters()]"
    run, losses = play(pair, code)
    _, left = play(pair, weights)
    _, calls = play(pair, every_call())
    with launch(n=RANKS) as session:
        play(session, STAND_IN + BEGIN + "rank")
        _, losses_there = play(session, code)
        _, left_there = play(session, weights)

    for rank in range(RANKS):
        assert losses_there[rank] == pytest.approx(losses[rank], abs=1e-6)
        assert left_there[rank] == [pytest.approx(weight, abs=1e-6) for weight in left[rank]]
        # One step is one point.
        assert list(run.metrics["loss"][rank].values) == pytest.approx(losses[rank], rel=1e-5)
        assert list(run.metrics["loss"][rank].steps) == [*range(100)]
    for index, (call, wanted) in enumerate(CALLS.items()):
        assert [calls[rank][index] for rank in range(RANKS)] == wanted, call


def test_ranks_that_wait_are_released_and_the_same_optimizer_goes_on(pair):
    """Three times in succession; the weights are alike afterwards."""
    play(pair, "net = fresh()\noptimizer = distributed(net)\ntrain(net, optimizer, 2)")
    for _ in range(3):
        with pytest.raises(DistributedError) as raised:
            play(pair, "train(net, optimizer, 5, fails_at=3)")
        _, found = play(pair, f"train(net, optimizer, 20)[-1] < 5, {ALIKE}")

        assert str(raised.value).startswith("RuntimeError: one of them (rank 1)")
        assert "rank 0 stopped because of that" in str(raised.value)
        assert raised.value.run.elapsed < 20
        assert found == {0: (True, 1), 1: (True, 1)}


def test_an_optimizer_can_be_made_again_for_the_same_parameters(pair):
    """A cell that runs again does so; plain Horovod refuses the second one's gradients."""
    code = f"""
net, other = fresh(), fresh()
for _ in range(3):
    optimizer = distributed(net)
    losses = train(net, optimizer, 2)
for _ in range(3):
    same = distributed(other)
train(other, same, 2), {ALIKE}, apart(net, other) > 0
"""
    _, found = play(pair, code)
    _, once = play(pair, "net = fresh()\ntrain(net, distributed(net), 2)")

    assert [found[rank][1:] for rank in range(RANKS)] == [(1, True)] * 2
    assert [found[rank][0] for rank in range(RANKS)] == [pytest.approx(once[rank]) for rank in range(RANKS)]


def test_a_rank_that_never_comes_to_init_is_not_waited_for(pair):
    """The wait ends when that rank raises, and when the cell is stopped; the next cell sets Horovod up."""
    with pytest.raises(DistributedError, match=r"ZeroDivisionError.*rank 0 stopped because of that"):
        play(pair, "hvd.shutdown()\nif rank == 1: 1 / 0\nhvd.init()")
    assert play(pair, f"hvd.init()\n{SUM}")[1] == {0: 2.0, 1: 2.0}

    run = pair.run("import time\nhvd.shutdown()\nif rank == 1: time.sleep(600)\nhvd.init()", view=None, wait=False)
    until_it_waits(pair, "init")
    pair.interrupt()
    assert run.wait(20)
    assert run.outcome == "interrupted"
    assert play(pair, f"hvd.init()\n{SUM}")[1] == {0: 2.0, 1: 2.0}


def until_it_waits(session, call):
    """Wait until rank 0 waits in ``call`` of Horovod."""
    deadline = time.monotonic() + 60
    while (stack := session.stacks([0])[0]) is None or stack.waits != Wait("horovod", call):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_stop_button_ends_a_cell_that_waits_in_a_step(pair):
    play(pair, "import time\nnet = fresh()\noptimizer = distributed(net)\nrank")
    run = pair.run("train(net, optimizer, 5) if rank == 0 else time.sleep(600)", view=None, wait=False)
    until_it_waits(pair, "step")
    pair.interrupt()
    ended = run.wait(20)

    assert ended
    assert run.outcome == "interrupted"
    assert play(pair, f"train(net, optimizer, 5)[-1] < 50, {ALIKE}")[1] == {0: (True, 1), 1: (True, 1)}


def test_it_goes_on_after_mpis_world_was_revoked(pair):
    """Horovod keeps a copy of MPI's world: it is set up again in the one that MPI has made since."""
    with pytest.raises(DistributedError, match=r"rank 0 stopped because of that"):
        play(pair, "from mpi4py import MPI\nif rank == 1: 1 / 0\nMPI.COMM_WORLD.Barrier()")
    assert play(pair, f"{SUM}, MPI.COMM_WORLD.allreduce(1)")[1] == {0: (2.0, 2), 1: (2.0, 2)}
    assert play(pair, f"hvd.shutdown()\nhvd.init()\n{SUM}")[1] == {0: 2.0, 1: 2.0}


def test_process_sets_are_there_again_after_a_failure_but_ranks_of_ones_own_are_refused(launch):
    with launch(n=RANKS) as session:
        _, before = play(session, ONE_RANK + "hvd.init(process_sets=[one])\nrank = hvd.rank()\n" + OF_ONE)
        with pytest.raises(DistributedError, match=r"rank 1 stopped because of that"):
            play(session, f"{SUM} if rank else 1 / 0")
        _, after = play(session, OF_ONE)
        play(session, f"hvd.shutdown()\nhvd.init(comm=[0, 1])\n{SUM}")
        with pytest.raises(DistributedError, match=r"rank 1 stopped because of that"):
            play(session, f"{SUM} if rank else 1 / 0")
        run, found = play(session, "hvd.is_initialized()")

    assert before == after == {0: (2.0, None), 1: (2.0, 1.0)}
    assert found == {0: False, 1: False}
    assert "or with arguments): call it on all ranks" in run.text(0)


def test_horovod_left_on_some_ranks_only_is_shut_down_with_a_hint(pair):
    """One had shut it down itself before it failed."""
    with pytest.raises(DistributedError):
        play(pair, "if rank == 1:\n    hvd.shutdown()\n    1 / 0\nhvd.allreduce(torch.ones(1))")
    run, found = play(pair, "hvd.is_initialized()")

    assert found == {0: False, 1: False}
    assert "call it on all ranks" in run.text(0)
    assert play(pair, f"hvd.init()\n{SUM}")[1] == {0: 2.0, 1: 2.0}


def test_it_shows_what_it_is_built_with(pair):
    facts = pair.info(1)[1].frameworks["horovod"]

    assert facts.version == version("horovod")
    assert facts.details["for torch"] == "rank 1 of 2: built with mpi, gloo"


def test_a_rank_that_dies_frees_those_that_wait_for_it(launch):
    with launch(n=3) as session:
        play(session, BEGIN + "net = fresh()\noptimizer = distributed(net)\ntrain(net, optimizer, 2)")
        with pytest.raises(DistributedError, match=r"rank 1 was killed") as raised:
            play(session, "import signal\nos.kill(os.getpid(), 9) if rank == 1 else train(net, optimizer, 5)")
        alive = session.run("len(list(net.parameters()))", [0, 2], view=None, timeout=60)
        session.restart()
        again = session.run(f"import torch, horovod.torch as hvd\nhvd.init()\n{SUM}", view=None, timeout=60)

    assert raised.value.run.elapsed < 20
    assert {rank: result.data["text/plain"] for rank, result in alive.results.items()} == {0: "4", 2: "4"}
    assert {result.data["text/plain"] for result in again.results.values()} == {"3.0"}


@pytest.mark.parametrize("library", ["horovod", "horovod-stand-in"])
def test_the_world_does_what_the_failure_table_says(tmp_path, library):
    """The row of a rank that raises while the others are in the library's collective."""
    stage = Stage(tmp_path, QUICK)
    played = stage.play(Plan("raises", library, RANKS, RANKS - 1, "attended"))

    assert stage.close() == []
    assert played.problems == []

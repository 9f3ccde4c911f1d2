"""The stand-in for ``horovod.torch``, in ranks. Horovod itself is tested by ``make horovod``."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from jupyter_dtrain import DistributedError
from jupyter_dtrain.frameworks.horovod.shim.install import SHIM_VERSION
from tests.frameworks.horovod_cells import BEGIN, CALLS, PATIENCE, STAND_IN, every_call, play
from tests.pace import slack

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

RANKS = 2


@pytest.fixture(scope="module")
def pair(torch_pair):
    """Two ranks in which the stand-in is installed."""
    play(torch_pair, STAND_IN + BEGIN + "rank")
    yield torch_pair
    play(torch_pair, "import torch.distributed as dist\ndist.is_initialized() and dist.destroy_process_group()\nrank")


@pytest.mark.slow
def test_it_trains_as_ddp_does_and_one_step_is_one_point(pair):
    """It has momentum, and a state that only rank 0 had, over a hundred steps."""
    _, references = play(
        pair,
        "reference = DistributedDataParallel(fresh())\ntrain(reference, sgd(reference), 100)",
    )
    run, found = play(
        pair,
        "net = fresh()\n"
        "if rank == 1:\n    nn.init.zeros_(net[0].weight)\n"
        "optimizer = distributed(net)\n"
        "hvd.broadcast_parameters(net.state_dict(), root_rank=0)\n"
        "hvd.broadcast_optimizer_state(optimizer, root_rank=0)\n"
        "train(net, optimizer, 100)",
    )
    _, distances = play(pair, "apart(net, reference.module), type(optimizer).__name__, len(optimizer.state)")

    for rank in range(RANKS):
        assert found[rank] == pytest.approx(references[rank], abs=1e-6)
        assert distances[rank] == (pytest.approx(0, abs=1e-6), "SGD", 4)
        assert list(run.metrics["loss"][rank].values) == pytest.approx(found[rank], rel=1e-5)
        assert list(run.metrics["loss"][rank].steps) == [*range(100)]


def test_ranks_that_wait_in_a_step_are_released_and_the_same_optimizer_goes_on(pair):
    """It does so as if the failed cell had never begun its last step."""
    play(pair, "net = fresh()\noptimizer = distributed(net)\ntrain(net, optimizer, 2)")
    with pytest.raises(DistributedError) as raised:
        play(pair, "train(net, optimizer, 5, fails_at=3)")
    _, found = play(pair, "train(net, optimizer, 20)[-1] < 5, len(set(hvd.allgather_object(repr(net.state_dict()))))")

    assert str(raised.value).startswith("RuntimeError: one of them (rank 1)")
    assert "rank 0 stopped because of that" in str(raised.value)
    assert raised.value.run.elapsed < 20
    assert found == {0: (True, 1), 1: (True, 1)}


def test_an_optimizer_goes_on_after_a_failure_between_gradients_and_step(pair):
    """All ranks have reduced them by then: no rank waits, and none is released."""
    play(pair, "net = fresh()\noptimizer = distributed(net)\ntrain(net, optimizer, 1)")
    with pytest.raises(DistributedError):
        play(pair, "net(torch.ones(4, 10)).mean().backward()\nraise RuntimeError('before the step')")
    _, found = play(pair, "train(net, optimizer, 2), len(set(hvd.allgather_object(repr(net.state_dict()))))")

    assert [found[rank][1] for rank in range(RANKS)] == [1, 1]


def test_an_optimizer_can_be_made_again_for_the_same_parameters_and_gradients_accumulate(pair):
    """The one of before reduces nothing any more: with Horovod itself the cell could not be run twice."""
    _, found = play(
        pair,
        "net, reference = fresh(), DistributedDataParallel(fresh())\n"
        "for _ in range(3):\n    optimizer = distributed(net, backward_passes_per_step=2)\n"
        "ours, theirs = train(net, optimizer, 5, passes=2), train(reference, sgd(reference), 5, passes=2)\n"
        "max(abs(a - b) for a, b in zip(ours, theirs)), apart(net, reference.module)",
    )

    assert found == dict.fromkeys(range(RANKS), (pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-6)))


def test_a_scheduler_made_before_the_distributed_optimizer_sets_its_rate(pair):
    """Schedulers put a ``step`` of their own on the optimizer that they are given."""
    _, found = play(
        pair,
        "net = fresh()\nplain = sgd(net)\nscheduler = torch.optim.lr_scheduler.StepLR(plain, 1)\n"
        "optimizer = hvd.DistributedOptimizer(plain, named_parameters=net.named_parameters())\n"
        "losses = train(net, optimizer, 2)\nscheduler.step()\n"
        "losses += train(net, optimizer, 2)\n"
        "optimizer.param_groups[0]['lr'], len(set(hvd.allgather_object(repr(net.state_dict()))))",
    )

    assert found == dict.fromkeys(range(RANKS), (pytest.approx(0.005), 1))


def test_each_call_gives_what_horovods_gives(pair):
    """``make horovod`` holds these against Horovod itself."""
    _, found = play(pair, every_call())

    for index, (call, wanted) in enumerate(CALLS.items()):
        assert [found[rank][index] for rank in range(RANKS)] == wanted, call


def test_sparse_gradients_are_sparse_again_and_compression_sees_each_tensor(pair):
    """As in Horovod: SparseAdam takes no others, and a compression may depend on the tensor's shape."""
    _, found = play(
        pair,
        "table = nn.Embedding(4, 1, sparse=True)\n"
        "adam = hvd.DistributedOptimizer(torch.optim.SparseAdam(table.parameters()), sparse_as_dense=True)\n"
        "table(torch.tensor([rank, 2])).sum().backward()\nadam.step()\n"
        "class Sizes:\n"
        "    compress = staticmethod(lambda tensor: (torch.full_like(tensor, tensor.numel()), None))\n"
        "    decompress = staticmethod(lambda tensor, _: tensor)\n"
        "net = nn.Linear(3, 1)\n"
        "packed = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1), compression=Sizes)\n"
        "net(torch.ones(1, 3)).sum().backward()\npacked.synchronize()\n"
        "table.weight.grad.is_sparse, table.weight.grad.to_dense().flatten().tolist(), "
        "[one.grad.flatten().tolist() for one in net.parameters()]",
    )

    assert found == dict.fromkeys(range(RANKS), (True, [0.5, 0.5, 1.0, 0.0], [[3.0, 3.0, 3.0], [1.0]]))


WRONG = {
    "hvd.broadcast(torch.ones(1), 0, 'name', None, 5)": "TypeError: too many positional arguments",
    "hvd.allreduce_async(torch.ones(1), compression=hvd.Compression.fp16)": "TypeError: got an unexpected keyword",
    "hvd.reducescatter(torch.ones(2), op=hvd.Max)": "ValueError: reducescatter takes hvd.Average and hvd.Sum only",
    "hvd.alltoall(torch.arange(3))": "ValueError: alltoall: 3 rows cannot be split",
}


def test_arguments_that_horovod_refuses_are_refused(pair):
    """So that what runs here runs there."""
    code = f"""
words = []
for call in {list(WRONG)!r}:
    try:
        words.append(repr(eval(call)))
    except Exception as error:
        words.append(f"{{type(error).__name__}}: {{error}}")
words
"""
    _, found = play(pair, code)

    for rank in range(RANKS):
        for said, wanted in zip(found[rank], WRONG.values(), strict=True):
            assert said.startswith(wanted)


@pytest.mark.slow
def test_one_rank_alone_keeps_its_gradients_as_they_are():
    """Missing ones and sparse ones too, as in Horovod."""
    code = """
net = nn.ModuleList([nn.Embedding(2, 1, sparse=True), nn.Linear(1, 1)])
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1))
net[0](torch.tensor([0])).sum().backward()
optimizer.step()
print(net[0].weight.grad.is_sparse, net[1].weight.grad)
"""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    ended = subprocess.run(
        [sys.executable, "-c", STAND_IN + BEGIN + code],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **alone},
        timeout=PATIENCE,
    )

    assert ended.stdout == "True None\n", ended.stderr


LACKING = (
    "hvd.join()",
    "hvd.allreduce(torch.ones(1), op=hvd.Adasum)",
    "hvd.ProcessSet([0])",
    "hvd.init(process_sets=[0])",
    "hvd.elastic.run",
    "hvd.start_timeline('x')",
)


def test_the_stand_in_says_which_functions_it_lacks_and_what_it_is(pair):
    """The framework's description says so too."""
    code = f"""
words = []
for call in {LACKING!r}:
    try:
        eval(call)
    except NotImplementedError as error:
        words.append(str(error))
import horovod
hasattr(hvd, "elastic"), horovod.__version__, words
"""
    _, found = play(pair, code)
    has, version, words = found[0]
    facts = pair.info(0)[0].frameworks["horovod"]

    assert (has, version) == (False, SHIM_VERSION)
    assert "not Horovod" in version
    assert len(words) == len(LACKING)
    assert all("needs Horovod itself" in one for one in words)
    assert facts.version == SHIM_VERSION
    assert facts.details["stand-in"].startswith("yes: without process sets")


def test_it_is_set_up_and_shut_down_ten_times_in_ten_cells(pair):
    """Between them it answers as Horovod does."""
    for _ in range(10):
        run, found = play(
            pair, "hvd.shutdown()\nhvd.init(); hvd.init()\nhvd.allreduce(torch.ones(1), op=hvd.Sum).item()"
        )
        assert found == {0: 2.0, 1: 2.0}
        assert run.elapsed < 3 + slack()
    with pytest.raises(DistributedError, match=r"call hvd\.init\(\) first"):
        play(pair, "hvd.shutdown(); hvd.rank()")
    play(pair, "hvd.init(); hvd.rank()")


def test_where_horovod_is_installed_the_stand_in_is_refused(tmp_path):
    """A package of that name; only its metadata matter."""
    folder = tmp_path / "horovod-0.28.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    code = "from jupyter_dtrain.frameworks.horovod import install_shim\ninstall_shim()"
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )

    assert ended.returncode == 1
    assert "RuntimeError: Horovod 0.28.1 is installed" in ended.stderr

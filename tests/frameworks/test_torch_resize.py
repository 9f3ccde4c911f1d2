"""A world gets more ranks, then fewer, in the middle of training: the replicas stay equal, and the training goes on."""

from __future__ import annotations

import pytest

from jupyter_dtrain import ReplaceFailed
from tests.frameworks.test_torch_heal import FUNCTIONS, IMPORTS, MAKE, NAMES
from tests.session.cells import pids, run, same, values
from tests.session.test_behaviour_heal import kill, whole

pytestmark = [pytest.mark.slow, pytest.mark.here("it kills processes of ranks")]

WEIGHTS = "[round(float(p.detach().double().sum()), 9) for p in model.parameters()], step, dist.get_world_size()"


EXPLICIT = "'gloo', init_method='env://', world_size=int(os.environ['WORLD_SIZE']), rank=int(os.environ['RANK'])"


@pytest.mark.parametrize("how", ["", EXPLICIT])
def test_training_goes_on_with_more_ranks_and_with_fewer(launch, how):
    """2, 4, 3 ranks: equal weights after each, and the gradient is that of all ranks' batches."""
    with launch(n=2) as session:
        cells = [run(session, code).number for code in (IMPORTS, FUNCTIONS)]
        run(session, MAKE.replace("init_process_group()", f"init_process_group({how})"))
        run(session, "train(8)")
        for size, until in ((4, 16), (3, 24)):
            session.resize(size, NAMES, 0, replay=cells)
            run(session, f"train({until})")
            found = values(run(session, WEIGHTS))
            assert same(found[0], size) == found
            assert found[0][1:] == (until, size)
            # One process with the batches of all ranks makes the same step.
            alone = run(
                session,
                """
import copy
twin = copy.deepcopy(model)
tuned = torch.optim.Adam(twin.parameters(), lr=1e-3)
tuned.load_state_dict(copy.deepcopy(opt.state_dict()))
x, y = map(torch.cat, zip(*(batch(step, rank) for rank in range(dist.get_world_size()))))
tuned.zero_grad()
((twin(x) - y) ** 2).mean().backward()
tuned.step()
train(step + 1)
max(float((a - b).abs().max()) for a, b in zip(twin.parameters(), model.parameters()))
""",
            )
            assert all(off < 1e-5 for off in values(alone).values())
            run(session, f"step = {until}")
        # Eight of each size; the two that were made to compare are no part of the training.
        assert all(len(losses) == 26 for losses in session.pull("losses").values())


@pytest.mark.parametrize("how", ["", EXPLICIT])
def test_training_goes_on_without_the_rank_in_the_middle(launch, how):
    """DDP of four: weights are equal before and after, losses go on on all ranks, and the group is that of three."""
    with launch(n=4) as session:
        for code in (IMPORTS, FUNCTIONS, MAKE.replace("init_process_group()", f"init_process_group({how})")):
            run(session, code)
        run(session, "train(8)\nown = dist.get_rank()")
        before, weights = pids(session), values(run(session, WEIGHTS))
        assert same(weights[0], 4) == weights
        for size, drop, kept in ((3, 1, [0, 2, 3]), (2, 0, [2, 3])):
            assert session.resize(drop=drop).healed.notes == []
            told = "t = torch.ones(1) * 10**own; dist.all_reduce(t)\n(int(t), dist.get_rank(), dist.get_world_size())"
            assert values(run(session, told)) == {
                rank: (sum(10**one for one in kept), rank, size) for rank in range(size)
            }
            assert values(run(session, WEIGHTS))[size - 1][:-2] == weights[kept[-1]][:-2]
            begun = len(session.pull("losses")[0])
            trained = run(session, "train(step + 8)\nprint(len(losses))")
            assert {rank: trained.text(rank) for rank in range(size)} == dict.fromkeys(range(size), f"{begun + 8}\n")
            weights = {kept[rank]: found for rank, found in values(run(session, WEIGHTS)).items()}
            assert len({str(one) for one in weights.values()}) == 1
            assert pids(session) == {rank: before[one] for rank, one in enumerate(kept)}
        assert len({str(losses) for losses in session.pull("losses").values()}) == 1


def test_a_sharded_model_is_not_lost_with_the_ranks_that_hold_it(launch):
    """Fewer ranks are refused with the way; more ranks are not."""
    with launch(n=2) as session:
        run(session, f"{IMPORTS}\nfrom torch.distributed.fsdp import fully_shard\ndist.init_process_group()")
        run(session, "model = nn.Linear(8, 8)\nfully_shard(model)")
        with pytest.raises(
            ReplaceFailed, match=r"each rank holds only a part of model\. First save what you need \(%distributed save"
        ):
            session.resize(1)
        assert session.world.size == 2
        assert session.world.dead == []
        run(session, "del model")
        session.resize(1)
        assert session.world.size == 1


def test_parts_of_a_model_keep_their_numbers(launch):
    """A dead rank's part is lost. The others are not moved to other numbers; without the model, they are."""
    with launch(n=3) as session:
        run(session, f"{IMPORTS}\nfrom torch.distributed.fsdp import fully_shard\ndist.init_process_group()")
        run(session, "model = nn.Linear(9, 9)\nfully_shard(model)")
        with pytest.raises(ReplaceFailed, match=r"each rank holds only a part of model\. First save what you need"):
            session.resize(drop=0)
        assert session.world.dead == []
        kill(session, 1)
        with pytest.raises(
            ReplaceFailed, match=r"each rank holds only a part of model\. The ranks that stay would get"
        ):
            session.resize(drop=1)
        run(session, "del model", [0, 2])
        session.resize(drop=1)
        assert session.world.size == 2
        assert whole(session)


def test_a_new_accelerator_knows_the_new_numbers(launch):
    """Accelerate keeps the first state of its process: after ``--drop 0``, no rank would be the main process."""
    pytest.importorskip("accelerate")
    make = "from accelerate import Accelerator\naccelerator = Accelerator()\n"
    told = "(accelerator.process_index, accelerator.num_processes, accelerator.is_main_process)"
    with launch(n=3) as session:
        assert values(run(session, make + told)) == {rank: (rank, 3, rank == 0) for rank in range(3)}
        session.resize(drop=0)
        assert values(run(session, make + told)) == {rank: (rank, 2, rank == 0) for rank in range(2)}

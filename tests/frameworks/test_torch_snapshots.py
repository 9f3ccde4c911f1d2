"""Snapshots of PyTorch's models and optimizers: loaded into worlds of other sizes, saved beside training."""

from __future__ import annotations

import ast
import contextlib

import pytest

from jupyter_dtrain import DistributedError
from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.snapshots import newest, read_manifest
from tests.session.cells import run, same, texts, values
from tests.steward.until import PATIENCE, stays, until

MODEL = """
import torch
def build():
    global model, opt
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    wrap()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
x = torch.linspace(-1, 1, 64).reshape(8, 8)
def step():
    opt.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    opt.step()
    return loss.item()
"""
SHARDED = """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group()
def wrap():
    for layer in model: fully_shard(layer)
    fully_shard(model)
"""
WHOLE = "def wrap(): pass\n"
TRAIN_25 = """
def held():
    return [p.to_local().sum().item() for p in model.parameters()]
sums = {}
for done in range(1, 26):
    step()
    sums[done] = held()
"""
FOUND = "[done for done, kept in sums.items() if kept == held()]"
"""After how many steps the parameters were as they are now."""


def newest_step(folder, name):
    """The step of the newest whole snapshot; None while there is none, since ranks write beside the cell."""
    with contextlib.suppress(BadRequest):
        return read_manifest(newest(folder, name)).step
    return None


def losses(session):
    """The losses of three more steps, on rank 0."""
    return ast.literal_eval(run(session, "[step() for _ in range(3)]").results[0].data["text/plain"])


@pytest.fixture(scope="module")
def sharded(torch_pair, snapshot_folder):
    """Two ranks with a sharded model that has trained a little."""
    run(torch_pair, MODEL + SHARDED + "build()\nfor _ in range(5): step()", timeout=180)
    yield torch_pair
    run(torch_pair, "dist.is_initialized() and dist.destroy_process_group()")


@pytest.mark.slow
@pytest.mark.here("the snapshots' folder must be shared")
def test_a_sharded_model_of_four_ranks_goes_on_with_two_and_with_one(launch, snapshot_folder):
    """With the same losses, and in a model that is not sharded at all."""
    with launch(n=4) as four:
        run(four, MODEL + SHARDED + "build()\nfor _ in range(5): step()", timeout=180)
        four.save("whole", ["model", "opt"])
        wanted = losses(four)
        run(four, "build()")
        four.load("whole")
        assert losses(four) == pytest.approx(wanted, abs=1e-6)
    for size, wrapped in ((2, SHARDED), (1, WHOLE)):
        with launch(n=size) as fewer:
            run(fewer, MODEL + wrapped + "build()", timeout=180)
            assert fewer.load("whole").notes == []
            assert losses(fewer) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.here("the snapshots' folder must be shared")
def test_another_model_is_refused_with_the_keys_that_differ(sharded):
    """Other names, and other shapes; nothing is changed."""
    run(sharded, "build()")
    sharded.save("kept", ["model", "opt"])
    run(sharded, "other, model = model, torch.nn.Sequential(torch.nn.Linear(8, 3), torch.nn.ReLU())")
    with pytest.raises(DistributedError) as caught:
        sharded.load("kept", ["model"])
    words = caught.value.run.errors[0].evalue
    assert "only in the snapshot: model.2.bias, model.2.weight" in words
    assert "model.0.weight is (3, 8) here and (16, 8) in the snapshot" in words
    run(sharded, "build()")


@pytest.mark.here("the snapshots' folder must be shared")
def test_snapshots_are_saved_between_steps_of_a_cell(sharded, snapshot_folder):
    """By steps and by time; the cell trains on meanwhile."""
    run(sharded, "build()")
    sharded.save("steps", ["model", "opt"], every=10)
    run(sharded, TRAIN_25)
    # A save that is due while another one is written is left out, so on a fast machine step 20 may not be there.
    until(lambda: newest_step(snapshot_folder, "steps") is not None)
    assert sharded.stop_saving("steps") == ["steps"]
    run(sharded, "build()")
    sharded.load("steps")
    ((saved,),) = {tuple(found) for found in values(run(sharded, FOUND)).values()}
    assert saved in (10, 20)
    resumed = run(sharded, f"for _ in range({25 - saved}): step()\nheld() == sums[25]")
    assert values(resumed) == same(True, 2)
    # Its curve goes on where the snapshot was saved.
    assert [*resumed.metrics["loss"][1].steps] == list(range(saved, 25))
    sharded.save("times", ["model"], every="0.2s")
    run(sharded, "import time\nfor _ in range(30): step(); time.sleep(0.05)")
    until(lambda: newest_step(snapshot_folder, "times") is not None)
    sharded.stop_saving()


ALONE = """
from jupyter_dtrain.rank import step_work
alone = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
"""
ASKED = """
kept, step_work.PATIENCE = step_work.PATIENCE, 0.5
try:
    for index in range(3):
        if index == 1 and dist.get_rank() == 1: input("how? ")
        alone(torch.ones(2)).sum().backward()
        optimizer.step()
finally:
    step_work.PATIENCE = kept
"""


@pytest.mark.here("the snapshots' folder must be shared")
def test_a_rank_at_a_prompt_is_waited_for(sharded, snapshot_folder):
    """The others wait for it between two steps, for longer than for one that is late."""
    run(sharded, ALONE)
    sharded.save("asked", ["alone"], every=1)
    cell = sharded.run(ASKED, wait=False, ask=True, view=None)
    try:
        until(lambda: sharded.prompts)
        stays(lambda: not cell.text(0), 2.0)
        sharded.answer("so")
        assert cell.wait(PATIENCE)
    finally:
        sharded.interrupt()
        assert cell.wait(PATIENCE)
        sharded.stop_saving("asked")

    assert cell.outcome == "ok"
    assert texts(cell) == same("", 2)
    assert newest_step(snapshot_folder, "asked") is not None


@pytest.mark.here("the snapshots' folder must be shared")
def test_models_that_are_no_replicas_are_saved_by_rank(sharded):
    """Equal names are no promise of equal values: other values, other shapes, and stages with names of their own."""
    run(
        sharded,
        """
rank = dist.get_rank()
gen, wide = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)), torch.nn.Linear(2, 2 + rank)
stage = torch.nn.ModuleDict({f"layer{rank}": torch.nn.Linear(4, 4)})
held = [*gen.parameters(), *wide.parameters(), *stage.parameters()]
def fill(value):
    with torch.no_grad():
        for one in held: one.fill_(value)
fill(rank)
gen[0].weight.data.fill_(5)
""",
    )
    (note,) = sharded.save("apart", ["gen", "wide", "stage"]).notes
    assert note.startswith("gen.0.bias, gen.1.bias, gen.1.weight, wide.bias, wide.weight are not the same on all ranks")
    run(sharded, "fill(9)")
    sharded.load("apart")
    found = values(run(sharded, "[{one for one in p.flatten().tolist()} for p in held]"))
    assert found == {rank: [{5.0}, *[{float(rank)}] * 7] for rank in range(2)}


@pytest.mark.here("the snapshots' folder must be shared")
def test_a_piece_of_a_sharded_tensor_that_differs_is_saved_by_rank(sharded):
    """Where two ranks hold the same piece."""
    run(
        sharded,
        """
from torch.distributed.tensor import distribute_tensor, init_device_mesh, Replicate, Shard
mesh, rank = init_device_mesh("cpu", (2,)), dist.get_rank()
spread = torch.nn.Module()
spread.same, spread.apart = (
    torch.nn.Parameter(distribute_tensor(torch.ones(4), mesh, [place])) for place in (Shard(0), Replicate())
)
spread.apart.data._local_tensor.fill_(rank)
""",
    )
    (note,) = sharded.save("pieces", ["spread"]).notes
    assert note.startswith("spread.apart is not the same")
    run(sharded, "for one in spread.parameters(): one.data._local_tensor.fill_(9)")
    sharded.load("pieces")
    found = values(run(sharded, "[p.data._local_tensor.tolist() for p in (spread.same, spread.apart)]"))
    assert found == {rank: [[1.0] * 2, [float(rank)] * 4] for rank in range(2)}


@pytest.mark.here("the snapshots' folder must be shared")
def test_a_save_before_the_first_step_changes_nothing_and_loads(sharded):
    """An optimizer has no state before it; the next losses are those of a training without a save."""
    run(sharded, "build()")
    wanted = losses(sharded)
    run(sharded, "build()")
    sharded.save("fresh", ["model", "opt"])
    assert values(run(sharded, "len(opt.state)")) == same(0, 2)
    assert losses(sharded) == wanted
    sharded.load("fresh")
    assert values(run(sharded, "len(opt.state)")) == same(0, 2)
    assert losses(sharded) == wanted


@pytest.mark.here("the snapshots' folder must be shared")
def test_the_older_form_of_fsdp_loads_into_a_fresh_optimizer(sharded):
    """Its states are of flat parameters, which torch alone can make. No word of its buffers, which differ as DDP's."""
    run(
        sharded,
        """
from torch.distributed.fsdp import FullyShardedDataParallel
def build_flat():
    global flat, flat_opt
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    flat = FullyShardedDataParallel(net, use_orig_params=True, device_id=torch.device("cpu"))
    flat_opt = torch.optim.Adam(flat.parameters())
def step_flat():
    flat_opt.zero_grad()
    loss = flat(x + dist.get_rank()).sin().mean()
    loss.backward()
    flat_opt.step()
    return loss.item()
build_flat()
for _ in range(2): step_flat()
""",
    )
    assert sharded.save("flat", ["flat", "flat_opt"]).notes == []
    wanted = values(run(sharded, "[step_flat() for _ in range(2)]"))
    run(sharded, "build_flat()")
    sharded.load("flat")
    assert values(run(sharded, "[step_flat() for _ in range(2)]")) == wanted


@pytest.mark.here("the snapshots' folder must be shared")
def test_what_stops_one_rank_from_saving_stops_all(sharded):
    """No rank waits in torch for one that cannot come."""
    run(sharded, "lone = torch.nn.Linear(2, 2)\nif dist.get_rank(): lone = None")
    with pytest.raises(DistributedError, match="Nothing was saved: lone must be of one kind on all ranks"):
        sharded.save("lone", ["lone"])
    run(
        sharded,
        "step()\nhidden = opt\nif dist.get_rank(): hidden = torch.optim.SGD(torch.nn.Linear(2, 2).parameters())",
    )
    with pytest.raises(DistributedError, match=r"Nothing was saved\. Rank 1: .*'hidden' steps parameters of no model"):
        sharded.save("hidden", ["hidden"])


@pytest.mark.slow
@pytest.mark.here("the snapshots' folder must be shared")
def test_what_ranks_had_of_their_own_does_not_load_into_another_number_of_ranks(sharded, launch):
    """Buffers do, as DDP takes those of rank 0; the parts of a pipeline's model do, too."""
    run(
        sharded,
        """
rank = dist.get_rank()
torch.manual_seed(rank)
gen, norm = torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)
norm(torch.randn(4, 2) + rank)
stage = torch.nn.ModuleDict({f"layer{rank}": torch.nn.Linear(4, 4)})
means = norm.running_mean.tolist()
""",
    )
    (note,) = sharded.save("moved", ["gen", "norm", "stage"]).notes
    assert "gen.bias, gen.weight are not the same" in note
    with launch(n=1) as one:
        run(
            one,
            "import torch\ngen, norm = torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)\n"
            "stage = torch.nn.ModuleDict({f'layer{part}': torch.nn.Linear(4, 4) for part in range(2)})",
            timeout=180,
        )
        with pytest.raises(DistributedError, match=r"gen\.bias, gen\.weight differed between the 2 ranks that saved"):
            one.load("moved")
        (note,) = one.load("moved", ["norm", "stage"]).notes
        assert note.startswith("norm.running_mean, norm.running_var differed between the 2 ranks that saved")
        assert values(run(one, "norm.running_mean.tolist()"))[0] == values(run(sharded, "means"))[0]


@pytest.mark.slow
@pytest.mark.here("the snapshots' folder must be shared")
def test_replicas_are_saved_once(launch, snapshot_folder):
    """The files of DDP's model are not larger for more ranks, and any optimizer of it has its names."""
    with launch(n=2) as pair:
        ddp = (
            "import torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel\n"
            "dist.init_process_group()\ndef wrap():\n    global model\n    model = DistributedDataParallel(model)\n"
        )
        run(pair, MODEL + ddp + "build()\nfor _ in range(3): step()", timeout=180)
        pair.save("replicas", ["model", "opt"])
        wanted = losses(pair)
        run(pair, "build()")
        pair.load("replicas")
        assert losses(pair) == pytest.approx(wanted, abs=1e-6)
    held = read_manifest(newest(snapshot_folder, "replicas")).held
    assert held == {"model": "torch", "opt": "torch"}

"""Verbs that look change nothing on a CUDA device: no number of a training, and no graph that is being captured."""

from __future__ import annotations

import pytest

from tests.frameworks.test_observers import LOOKS, TRAINING
from tests.gpu.cells import PATIENCE, START
from tests.session.cells import begin, run, values

pytestmark = pytest.mark.gpu

ON_HOST = "model = DistributedDataParallel(net) if"
ON_DEVICE = f"""net.to(device).register_forward_pre_hook(lambda _, given: (given[0].to(device),))
    {ON_HOST}"""
BESIDE = ("vars", "vars of one", "stacks", "environment", "completion", "help", "memory")
"""The looks that ranks answer while a cell runs."""


@pytest.fixture
def observed(grouped, snapshot_folder):
    """Two ranks with a training whose model is on the device; its names end with the test."""
    assert TRAINING.count(ON_HOST) == 1
    code = TRAINING.replace(ON_HOST, ON_DEVICE).replace(
        "def digest():", "def digest(cuda=lambda: str(torch.cuda.get_rng_state().tolist())):"
    )
    run(grouped, code.replace("held += [generator", "held += [cuda(), generator"), timeout=PATIENCE)
    yield grouped
    run(grouped, START)


@pytest.mark.parametrize("default", ["None", "'cuda'"])
def test_looking_between_cells_changes_nothing(observed, default):
    """Random states of the device included, and where tensors are made on the device by default."""
    wanted = values(run(observed, "build('ddp')\ntrain() + train()"))
    found = values(run(observed, "build('ddp')\ntrain()"))
    before = {rank: losses[-1:] for rank, losses in found.items()}
    run(observed, f"torch.set_default_device({default})")
    try:
        for name, look in LOOKS.items():
            look(observed)
            assert values(run(observed, "[digest()]")) == before, name
        assert observed.diff("model").identical
        observed.load("seen", ["model", "opt"])
    finally:
        run(observed, "torch.set_default_device(None)")
    assert {rank: found[rank] + losses for rank, losses in values(run(observed, "train()")).items()} == wanted


def test_looking_beside_a_training_changes_nothing(observed):
    """Backward passes replace the gradients meanwhile; a standing check and standing snapshots read the model."""
    cell = "while len(losses) < 60: losses.append(step())\n[*losses, digest()]"
    wanted = values(run(observed, f"build('ddp'); losses = []\n{cell}", metrics=False))
    run(observed, "build('ddp'); losses = []")
    observed.save("beside", ["model", "opt", "tree"], every=7)
    try:
        training = begin(observed, cell, check="model", check_every=3)
        while not training.done:
            for name in BESIDE:
                LOOKS[name](observed)
    finally:
        observed.stop_saving()
    assert values(training) == wanted


def test_looking_beside_a_capture_breaks_no_graph(observed):
    """CUDA forbids other threads to wait or to allocate meanwhile, and would break the capture."""
    code = """
static, totals = torch.ones(64, device=device), []
one = torch.ones(1, device=device)
for _ in range(3):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            static.mul_(1.01)
            time.sleep(0.05)
    graph.replay()
    torch.cuda.synchronize()
    totals.append(static.sum().item())
totals
"""
    run(observed, "build('ddp'); train()")
    capturing = begin(observed, code)
    while not capturing.done:
        for name in BESIDE:
            LOOKS[name](observed)
    for totals in values(capturing).values():
        assert totals == pytest.approx([64 * 1.01 ** (20 * time) for time in (1, 2, 3)], rel=1e-3)


def test_the_memory_of_a_device_has_names_and_unused_memory_is_given_back(single):
    """The counts are those of the caching allocator, and a look changes none of them."""
    single.run("import torch\ntorch.ones(20_000_000, device='cuda')", view=None, timeout=PATIENCE)
    single.run("large = torch.ones(10_000_000, device='cuda')\nview = large[:5]", view=None, timeout=PATIENCE)
    found = single.memory().ranks[0]
    freed = single.free().ranks[0]
    after = single.memory().ranks[0]
    single.run("del large, view", view=None, timeout=PATIENCE)

    (device,) = found.devices
    assert device.device == "cuda:0"
    assert device.peak >= device.allocated >= 120_000_000
    assert device.reserved >= device.allocated
    pieces = {piece.names[0]: piece for piece in found.largest}
    assert pieces["large"].names == ["large", "view"]
    assert (pieces["large"].size, pieces["large"].device) == (40_000_000, "cuda:0")
    assert found.old["cuda:0"] >= 80_000_000
    assert found.unnamed("cuda:0") == device.allocated - found.named["cuda:0"]
    assert freed.device >= 80_000_000
    assert "cuda:0" not in after.old

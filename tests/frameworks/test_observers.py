"""Verbs that look change nothing: no number and no state of a training, whatever modes the user's code has set."""

from __future__ import annotations

import re

import pytest

from tests.session.cells import begin, run, same, values

TRAINING = """
import hashlib, pickle, random
import numpy, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
dist.is_initialized() or dist.init_process_group()
rank = dist.get_rank()
class Loader:  # as torchdata's, whose state_dict() begins an iteration where there is none
    def __iter__(self): return iter(())
    def state_dict(self): return {"drawn": torch.rand(1)}
    def load_state_dict(self, state): pass
stateful = Loader()
def build(kind, optimizer=torch.optim.Adam):
    global model, opt, schedule, sampler, loader, batches, generator, tree, text
    for seed in (random.seed, numpy.random.seed, torch.manual_seed): seed(7)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
    )
    model = DistributedDataParallel(net) if kind == "ddp" else fully_shard(net)
    opt = optimizer(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 2)
    data = torch.utils.data.TensorDataset(torch.randn(32, 8))
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler)
    generator, tree = torch.Generator().manual_seed(rank), {"a": [numpy.arange(3), 1.5], "b": random.Random(rank)}
    text = "text"
    for seed in (random.seed, numpy.random.seed, torch.manual_seed): seed(rank)
def step():
    (x,) = next(iter(loader))
    opt.zero_grad()
    loss = model(x + torch.randn(8, generator=generator) * random.random() * numpy.random.rand()).square().mean()
    loss.backward()
    opt.step()
    schedule.step()
    return loss.item()
def digest():
    local = lambda one: one.to_local() if hasattr(one, "to_local") else one
    held = [local(one).detach().tolist() for one in (*model.parameters(), *model.buffers())]
    held += [one.grad is None or local(one.grad).tolist() for one in model.parameters()]
    held += [{k: local(v).tolist() for k, v in state.items()} for state in opt.state.values()]
    held += [{k: v for k, v in group.items() if k != "params"} for group in opt.param_groups]
    held += [schedule.state_dict(), sampler.epoch, loader._iterator, model.training, str(tree["a"]), text]
    held += [random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist()]
    held += [generator.get_state().tolist(), tree["b"].getstate(), torch.is_grad_enabled(), torch.get_num_threads()]
    return hashlib.sha256(repr(held).encode()).hexdigest()
def train():
    return [step() for _ in range(3)] + [digest()]
"""
LOOKS = {
    "vars": lambda session: session.vars(),
    "vars of one": lambda session: session.vars(["model", "opt", "generator"]),
    "diff": lambda session: session.diff("model"),
    "diff of a tree": lambda session: session.diff("tree"),
    "diff of loaders": lambda session: [session.diff("loader"), session.diff("stateful")],
    "check": lambda session: session.diff("model", states=True),
    "save": lambda session: session.save("seen", ["model", "opt", "schedule", "generator", "tree", "text"]),
    "pull": lambda session: session.pull_many(["text", "tree"]),
    "stacks": lambda session: session.stacks(),
    "flame": lambda session: session.flame(0.5, file="/dev/null"),
    "environment": lambda session: session.info(),
    "memory": lambda session: session.memory(most=100),
    "free": lambda session: session.free(),
    "status": lambda session: session.world,
    "completion": lambda session: [session.names.complete(text) for text in ("mo", "model.", "opt.", "loader.")],
    "help": lambda session: [session.names.describe(name, source=True) for name in ("model", "opt", "loader", "step")],
}
"""The verbs that look, each as a call."""


@pytest.fixture(scope="module")
def observed(torch_pair, snapshot_folder):
    """Two ranks with a training."""
    run(torch_pair, TRAINING, timeout=300)
    yield torch_pair
    run(torch_pair, "dist.is_initialized() and dist.destroy_process_group()")


@pytest.mark.here("the snapshots' folder must be shared")
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_looking_between_cells_changes_nothing(observed, kind):
    """After each look all state is as before, random states included; the training ends with the same numbers."""
    wanted = values(run(observed, f"build({kind!r})\ntrain() + train()"))
    before = values(run(observed, f"build({kind!r}); losses = []\n[digest()]"))
    for _ in range(2):
        for name, look in LOOKS.items():
            look(observed)
            assert values(run(observed, "[digest()]")) == before, name
        losses = values(run(observed, "losses = [*losses, *train()]\nlosses"))
        before = {rank: found[-1:] for rank, found in losses.items()}
    assert losses == wanted
    run(observed, "del losses")


@pytest.mark.here("the snapshots' folder must be shared")
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_looking_beside_a_running_cell_changes_nothing(observed, kind):
    """The looks that ranks answer meanwhile; a standing check and standing snapshots; the losses that cells show.

    Beside a step, gradients are replaced and FSDP frees the memory of weights: a look at them can crash a rank.
    """
    cell = "while len(losses) < 60: losses.append(step())\n[*losses, digest()]"
    wanted = values(run(observed, f"build({kind!r}); losses = []\n{cell}", metrics=False))
    run(observed, f"build({kind!r}); losses = []")
    observed.save("beside", ["model", "opt", "tree"], every=7)
    try:
        training = begin(observed, cell, check="model", check_every=3)
        while not training.done:
            for name in ("vars", "vars of one", "stacks", "environment", "completion", "help", "memory"):
                LOOKS[name](observed)
                LOOKS["vars"](observed)
    finally:
        observed.stop_saving()
    assert values(training) == wanted
    assert all(observed.vars(["model"])["model"][rank].digest for rank in (0, 1))
    run(observed, "del losses")


def test_who_sees_a_cell_end_finds_the_values_of_every_rank(observed):
    """Values that no rank reads beside a cell are read again before the cell's end is told."""
    run(observed, "build('ddp')")
    for _ in range(30):
        run(observed, "pass")
        assert all(found.digest for found in observed.vars(["model"])["model"].values())


MODES = {
    "a default device": ("torch.set_default_device('meta')", "torch.set_default_device(None)"),
    "a default type": ("torch.set_default_dtype(torch.float64)", "torch.set_default_dtype(torch.float32)"),
    "no gradients": ("torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)"),
    "deterministic": ("torch.use_deterministic_algorithms(True)", "torch.use_deterministic_algorithms(False)"),
    "functions": ("functions = Functions(); functions.__enter__()", "functions.__exit__(None, None, None)"),
    "fake tensors": ("fake = FakeTensorMode(); fake.__enter__()", "fake.__exit__(None, None, None)"),
}
"""What user code can set for all tensors that are made, or for all functions of torch: on and off."""


@pytest.mark.here("the snapshots' folder must be shared")
@pytest.mark.parametrize("mode", MODES)
def test_no_mode_of_the_user_disturbs_a_look_or_sees_one(observed, mode):
    """Our own tensors are made where they belong."""
    run(
        observed,
        """
from torch.overrides import TorchFunctionMode
from torch._subclasses.fake_tensor import FakeTensorMode
class Functions(TorchFunctionMode):
    def __init__(self): self.seen = []
    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(function)
        return function(*args, **(kwargs or {}))
build("ddp")
train()
odd, made = torch.arange(3.0) + rank, FakeTensorMode().from_tensor(torch.ones(2))
""",
    )
    on, off = MODES[mode]
    before = values(run(observed, "[digest()]"))
    run(observed, f"{on}; None")
    try:
        assert observed.diff("model").identical
        (amount,) = observed.diff("odd").first.amounts
        observed.save("modes", ["model", "opt", "odd"])
        observed.load("modes", ["model", "opt"])
        assert observed.diff("made").found.unread == ["made"]
    finally:
        run(observed, f"{off}; None")
    assert (amount.largest, amount.count) == (1.0, 3)
    assert values(run(observed, "[digest()]")) == before
    if mode == "functions":
        seen = "[f.__name__ for f in functions.seen if getattr(f, '__name__', '') in ('empty', 'dot', 'bitwise_xor_')]"
        assert values(run(observed, seen)) == same([], 2)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("build('ddp', torch.optim.SGD)\nwith model.join():\n    for _ in range(2 + rank): step()", "gradient"),
        ("build('ddp')\nmodel.module[1].running_mean += rank", "broadcast buffer"),
    ],
)
def test_what_the_training_makes_alike_is_no_difference_of_a_model(observed, code, kind):
    """Gradients after a ``join`` in which one rank was out of data, and DDP's buffers between two steps."""
    run(observed, code)
    found = observed.diff("model")
    assert found.identical
    assert kind in {one.kind for one in found.differences} <= {"gradient", "broadcast buffer"}
    assert re.search(rf"model is the same on ranks 0-1, but for .*\d {kind}s?, which the next ", repr(found))
    assert "resync" not in repr(found)

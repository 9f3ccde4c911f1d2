"""DeepSpeed's own ways to train, cell after cell and after a failure, in a world without a compiler."""

from __future__ import annotations

import ast
import importlib.util
import threading

import pytest

from jupyter_dtrain import BadRequest, DistributedError, Settings
from jupyter_dtrain.frameworks.deepspeed.plugin import has_compiler
from jupyter_dtrain.frameworks.torch.builds import building
from tests.session.cells import Notes, until

PATIENCE = 240
DEEPSPEED = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="no deepspeed")
COMPILER = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

PREPARE = """
import os
os.environ["CXX"] = "no-such-compiler"
import deepspeed, torch
from deepspeed.pipe import PipelineModule
from torch import nn
rank = int(os.environ["RANK"])

def fresh():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

def make(net, stage, **config):
    global engine
    config = {"zero_optimization": {"stage": stage}, "train_micro_batch_size_per_gpu": 4, **config}
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)

def train(steps=3, dtype=torch.float32, fails=None):
    batches = torch.Generator().manual_seed(1)
    losses = []
    for step in range(steps):
        x = torch.randn(8, 4, generator=batches).to(dtype)
        if step == fails and rank == 1:
            raise OSError("gone")
        loss = (engine(x[rank::2]) - x[rank::2].sum(dim=1, keepdim=True)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(round(loss.item(), 5))
    return losses

def broken(*_):
    raise OSError("gone before the step")

def pipe(fails=None, amiss=None):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 1)]
    net = PipelineModule(layers=layers, num_stages=2, loss_fn=nn.MSELoss(), partition_method="uniform")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    config = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4}
    piped, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    batches, losses = torch.Generator().manual_seed(1), []
    for step in range(3):
        if step == fails and rank == 1:
            raise OSError("gone")
        pairs = [(torch.randn(4, 4, generator=batches), torch.ones(4, 1)) for _ in range(2)]
        if step == amiss and rank == 1:
            piped.optimizer.register_step_pre_hook(broken)
        losses.append(round(float(piped.train_batch(iter(pairs))), 5))
    return losses

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = fresh()

    def forward(self, x, y):
        return {"loss": (self.layers(x) - y).square().mean()}

def batch(n):
    return torch.randn(n, 4), torch.randn(n, 1)

def large(n):
    if n > 1 and rank == 1:
        raise MemoryError
    return dict(zip("xy", batch(n)))

def odd(n):
    if n == 2:
        raise ValueError("two")
    return batch(n)

def endless(n):
    import time
    if n > 1:
        print("it waits", flush=True)
        time.sleep(100)
    return batch(n)
"""
NAMES = "sorted(name for name in globals() if name[0] != '_'), torch.rand(1).item()"
ENGINES = """
import gc
gc.collect()
sum(type(one).__name__.startswith(("DeepSpeedEngine", "DeepSpeedZeroOptimizer")) and len(vars(one)) > 0
    for one in gc.get_objects() if hasattr(type(one), "__dict__"))
"""


@pytest.fixture(scope="module")
def pair(launch):
    session = launch(n=2, settings=Settings(release_grace=0.5))
    session.run(PREPARE, view=None, timeout=PATIENCE)
    yield session
    session.stop()


def cell(session, code):
    """Its last value, by rank."""
    run = session.run(code, view=None, timeout=PATIENCE)
    return {rank: ast.literal_eval(result.data["text/plain"]) for rank, result in run.results.items()}


def fails(session, code):
    with pytest.raises(DistributedError, match="gone") as raised:
        session.run(code, view=None, timeout=PATIENCE)
    assert raised.value.run.elapsed < 60


def stages(*slow):
    marked = [pytest.param(stage, marks=pytest.mark.slow) if stage in slow else stage for stage in range(4)]
    return pytest.mark.parametrize("stage", marked)


@DEEPSPEED
@stages(0, 1, 2)
@pytest.mark.slow
def test_a_model_goes_on_after_a_failure_in_another_engine(pair, stage):
    """It has its old parameters, even where they are in parts, and no leftovers of the failed step."""
    makes = f"make(engine.module, {stage})"
    undisturbed = cell(pair, f"make(fresh(), {stage}); train(2); {makes}; train()")
    cell(pair, f"make(fresh(), {stage}); train(2)")
    # One rank has gradients, the other has none.
    fails(pair, "train(1, fails=0)")

    assert cell(pair, f"{makes}; train()") == undisturbed


@pytest.mark.slow
@DEEPSPEED
def test_ranks_that_have_numbered_other_parameters_train(pair):
    """An interrupt may find one rank further in a ZeRO-3 engine's making than another."""
    undisturbed = cell(pair, "make(fresh(), 3); train()")
    counts = "from deepspeed.runtime.zero.partition_parameters import Init; Init.param_id += 7 * rank"

    assert cell(pair, f"{counts}; make(fresh(), 3); train()") == undisturbed


@DEEPSPEED
@pytest.mark.slow
@pytest.mark.parametrize("more", ["{}", "{'bf16': {'enabled': True}}", "OFFLOAD"])
def test_all_stages_train_alike(pair, more):
    found = []
    for stage in range(4):
        if more != "{}" and stage == 0:
            continue
        to_cpu = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
        if stage == 3:
            to_cpu["offload_param"] = {"device": "cpu"}
        offload = {"zero_optimization": to_cpu, "zero_force_ds_cpu_optimizer": False}
        config = offload if more == "OFFLOAD" else ast.literal_eval(more)
        dtype = "torch.bfloat16" if "bf16" in config else "torch.float32"
        trains = f"make(fresh(), {stage}, **{config}); train(dtype={dtype})"
        found.append(cell(pair, trains))
        if stage == 3:
            fails(pair, trains.replace("train(", "train(fails=1, "))
            found.append(cell(pair, trains))

    assert found == [found[0]] * len(found)


@DEEPSPEED
@pytest.mark.slow
def test_a_pipeline_trains_again_after_a_failure_and_the_engine_after_it_has_none(pair):
    """Its grid was for all engines of the process."""
    alone = cell(pair, "make(fresh(), 2); train()")
    piped = cell(pair, "pipe()")
    after = cell(pair, "make(fresh(), 2); train()")
    fails(pair, "pipe(fails=1)")
    with pytest.raises(DistributedError, match="gone before the step") as amiss:
        pair.run("pipe(amiss=2)", view=None, timeout=PATIENCE)

    # Rank 0 made that step, but its parameters are of another stage.
    assert "resync" not in "".join(amiss.value._render_traceback_())
    (losses,) = amiss.value.run.metrics["loss"].values()
    assert list(losses.values) == pytest.approx(piped[0][:2], abs=1e-5)  # none of the step that failed
    assert after == alone
    assert cell(pair, "pipe()") == piped
    assert piped[0] == piped[1]


@DEEPSPEED
@pytest.mark.slow
def test_a_sweep_survives_what_does_not_fit_and_leaves_the_ranks_as_they_were(pair):
    """Out of memory on one rank, while the other waits for it."""
    told = []
    before = cell(pair, f"torch.manual_seed(3)\n{NAMES}")
    pair.run("torch.manual_seed(3)", view=None)
    config = {"gradient_accumulation_steps": 2, "train_batch_size": 64}
    options = {"stages": [2, 1], "micro_batches": [4, 1, 2], "config": config, "steps": 2, "warmup": 1}
    tuning = pair.tune("Model", "large", progress=lambda so_far: told.append(len(so_far.trials)), **options)

    assert {(trial.stage, trial.micro_batch): trial.outcome for trial in tuning.trials} == {
        (stage, size): outcome
        for stage in (1, 2)
        for size, outcome in ((1, "ok"), (2, "out of memory"), (4, "skipped"))
    }
    assert {trial.words for trial in tuning.trials} == {
        "",
        "out of memory on rank 1",
        "skipped: micro-batch 2 is out of memory",
    }
    best, second = tuning.trials[:2]
    assert tuning.best is best
    assert best.samples_per_second >= second.samples_per_second
    # Two ranks, with two batches of one sample each.
    assert best.samples_per_second * best.seconds == pytest.approx(4)
    assert best.memory is not None
    assert best.config == {
        "gradient_accumulation_steps": 2,
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": best.stage},
    }
    assert told == sorted(told)
    assert told[-1] == 6
    assert "6 of 6 combinations" in repr(tuning)
    assert cell(pair, NAMES) == before


@DEEPSPEED
@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (("Nothing", "batch"), {}, "Nothing is not defined on the ranks"),
        (("Model", "rank"), {}, "rank is not a function on the ranks"),
        (("Model", "batch"), {"config": "rank"}, "rank is not a dictionary"),
        (("Model", "batch"), {"config": {"a": object()}}, "JSON"),
        (("Model", "batch"), {"stages": [4]}, "ZeRO has the stages 0, 1, 2 and 3"),
        (("Model", "batch"), {"micro_batches": [0]}, "1 sample or more"),
    ],
)
def test_a_sweep_that_cannot_be_says_why(pair, arguments, options, words):
    with pytest.raises(BadRequest, match=words):
        pair.tune(*arguments, **options)


@DEEPSPEED
@pytest.mark.slow
def test_a_sweep_without_deepspeed_says_what_to_install(pair):
    pair.run("import sys\nheld = sys.modules.get('deepspeed')\nsys.modules['deepspeed'] = None", view=None)
    with pytest.raises(BadRequest, match="pip install deepspeed"):
        pair.tune("fresh", "print")
    pair.run("sys.modules['deepspeed'] = held", view=None)


@DEEPSPEED
@pytest.mark.slow
def test_a_sweep_goes_on_after_an_error_and_keeps_what_it_has_when_it_is_interrupted(pair):
    before = cell(pair, ENGINES)
    odd = pair.tune("Model", "odd", stages=[3], micro_batches=[1, 2, 4], steps=1, warmup=0)

    thread = threading.Thread(
        target=lambda: (until(lambda: "it waits" in pair.last_run.text(0), PATIENCE), pair.interrupt())
    )
    thread.start()
    stopped = pair.tune("Model", "endless", stages=[0], micro_batches=[1, 2, 4], steps=1, warmup=0)
    thread.join()

    assert {trial.micro_batch: trial.outcome for trial in odd.trials} == {1: "ok", 2: "error", 4: "ok"}
    assert cell(pair, ENGINES) == before
    assert odd.trials[-1].words == "ValueError: two (ranks 0-1)"
    assert [(trial.micro_batch, trial.outcome) for trial in stopped.trials] == [(1, "ok")]
    assert stopped.interrupted
    assert "1 of 3 combinations; interrupted" in repr(stopped)
    assert cell(pair, "make(fresh(), 1); len(train())") == {0: 3, 1: 3}


def test_a_build_counts_its_seconds_and_one_within_it_says_nothing(capsys):
    """The message is the one outside of a world."""
    shown = []
    with building("an operator"), building("a part of it"):
        until(lambda: shown.append(capsys.readouterr().err) or "1 s" in "".join(shown))
    with building("what was built before"):
        pass
    shown.append(capsys.readouterr().err)

    assert "".join(shown) == "\rBuilding an operator … 1 s\rBuilding an operator: done after 1 s\n"


@COMPILER
@pytest.mark.slow
def test_a_compilation_by_torch_in_one_rank_is_a_bar_and_a_line_and_no_hang(launch, tmp_path):
    """The other rank waits for it."""
    session = launch(n=2, env={"TORCH_EXTENSIONS_DIR": str(tmp_path)}, settings=Settings(hang_notice=4))
    session.run("import os, torch, torch.distributed as dist\ndist.init_process_group()", view=None)
    notes = Notes()
    code = """
from torch.utils.cpp_extension import load_inline
if os.environ["RANK"] == "1":
    built = load_inline("seven", "int seven() { return 7; }", functions=["seven"])
dist.barrier()
"""
    run = session.run(code, view=notes, timeout=2 * PATIENCE)
    value = cell(session, "built.seven() if os.environ['RANK'] == '1' else None")
    session.stop()

    (bar,) = run.progress[1]
    assert bar.name == "Building seven (seconds)"
    assert bar.ended
    assert 4 < bar.done <= run.elapsed + 1  # it counts whole seconds
    assert value == {1: 7}
    assert run.text(1).count("[jupyter-dtrain] seven is being compiled: ") == 1
    assert run.text(0) == ""
    assert not any("moved" in words for words in notes.words)

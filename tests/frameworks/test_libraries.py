"""Lightning, Accelerate, Transformers and DeepSpeed in the ranks, held against the same programs under torchrun."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_dtrain import DistributedError, Settings
from tests.session.cells import Notes, Told

PROGRAMS = Path(__file__).parent / "programs"
LIBRARIES = ["accelerate", "transformers", "lightning", "deepspeed"]
PATIENCE = 240
RANKS = 2
FAILS = "if int(os.environ['RANK']) == 1 and len(losses) == {after}: raise RuntimeError('one of them')"
NO_COMPILER = "import os\nos.environ['CXX'] = 'no-such-compiler'"

TOLD = {"lr": 0.05, "world_size": 2, "replicas": 2, "batch_size": 4, "accumulation": 2, "global_batch": 16}
TOLD_BY = {
    "accelerate": {**TOLD, "optimizer": "SGD"},
    "deepspeed": {"world_size": 2},  # its configuration has the rest, and its optimizer is one around torch's
    "lightning": {**TOLD, "optimizer": "SGD", "max_epochs": 1, "accumulate_grad_batches": 2, "strategy": "DDPStrategy"},
    "transformers": {**TOLD, "optimizer": "AdamW", "gradient_accumulation_steps": 2, "do_eval": True},
}
"""What a run with each library tells of what made it."""


def has(library):
    return importlib.util.find_spec(library) is not None


def each_library(function):
    # Most of transformers' training is accelerate's.
    slow = {"transformers": [pytest.mark.slow]}
    marks = [
        pytest.param(one, marks=[*slow.get(one, []), pytest.mark.skipif(not has(one), reason=f"no {one}")])
        for one in LIBRARIES
    ]
    return pytest.mark.parametrize("library", marks)(function)


def code_of(library):
    return (PROGRAMS / f"with_{library}.py").read_text()


def failing(library):
    """The program, but rank 1 raises in the middle of it, while the other comes to a collective."""
    line = next(line for line in code_of(library).splitlines() if "losses.append" in line)
    indent = " " * (len(line) - len(line.lstrip()))
    return "import os\n" + code_of(library).replace(line, f"{line}\n{indent}{FAILS.format(after=3)}")


@pytest.fixture(scope="module")
def references(request, tmp_path_factory):
    """The results of the programs on each rank under torchrun, by library: those of the tests that run."""
    folder = tmp_path_factory.mktemp("torchrun")
    chosen = {item.callspec.params.get("library") for item in request.session.items if hasattr(item, "callspec")}
    names = [name for name in LIBRARIES if name in chosen and has(name)]
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        + [str(PROGRAMS / "reference.py"), str(folder)]
        + [str(PROGRAMS / f"with_{name}.py") for name in names],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return {
        name: [json.loads((folder / f"with_{name}-{rank}.json").read_text()) for rank in range(RANKS)] for name in names
    }


@pytest.fixture(scope="module")
def pair(launch, soon):
    """A world of two ranks, without a compiler."""
    session = launch(n=RANKS, settings=soon)
    session.run(NO_COMPILER, view=None)
    yield session
    session.stop()


def play(session, code, last="None", view=None, **options):
    """Run a cell; the run, and the value of ``last`` in the end, by rank."""
    run = session.run(f"{code}\n{last}", view=view, timeout=PATIENCE, **options)
    return run, {rank: ast.literal_eval(result.data["text/plain"]) for rank, result in run.results.items()}


def values(run, name, rank):
    return list(run.metrics[name][rank].values)


def true_losses(losses):
    """The loss of each step: the mean over its two batches."""
    return [sum(pair) / 2 for pair in zip(losses[::2], losses[1::2], strict=True)]


@each_library
def test_a_program_trains_as_under_torchrun_and_shows_its_true_loss(pair, references, library):
    """Twice in a world; after the first, one rank fails while the other waits for it."""
    told = Told()
    run, left = play(pair, code_of(library), "{'weights': weights, 'losses': losses}", view=told)
    with pytest.raises(DistributedError) as raised:
        play(pair, failing(library))
    again, left_again = play(pair, code_of(library), "{'weights': weights, 'losses': losses}")

    for rank in range(RANKS):
        theirs = references[library][rank]
        for ours in (left[rank], left_again[rank]):
            assert [pytest.approx(weight, abs=1e-6) for weight in ours["weights"]] == theirs["weights"]
            assert ours["losses"] == pytest.approx(theirs["losses"], abs=1e-6)
        for shown in (run, again):
            assert values(shown, "loss", rank) == pytest.approx(true_losses(left[rank]["losses"]), rel=1e-5)
            assert values(shown, "lr", rank)
        assert list(run.metrics["loss"][rank].steps) == [*range(len(left[rank]["losses"]) // 2)]
    assert {name: told.values.get(name) for name in TOLD_BY[library]} == TOLD_BY[library]
    assert str(raised.value).startswith("RuntimeError: one of them (rank 1)")
    assert raised.value.run.elapsed < 60


@pytest.mark.skipif(not has("lightning"), reason="no lightning")
def test_metrics_that_a_lightning_module_logs_are_shown(pair):
    """Steps are at their step, and means of the epoch at its last one; without a choice the devices are the world's."""
    run, found = play(
        pair,
        code_of("lightning"),
        "(trainer.world_size, losses, {name: float(value) for name, value in trainer.callback_metrics.items()})",
    )
    shown = {name: run.metrics[name][0] for name in run.metrics if name.startswith(("train", "val"))}

    assert found[0][0] == RANKS
    assert sorted(shown) == ["train_loss_epoch", "train_loss_step", "val_batches", "val_loss"]
    # The mean over both ranks, since it was logged so, for the batches that step.
    both = [(one + other) / 2 for one, other in zip(found[0][1], found[1][1], strict=True)][1::2]
    curve = [*zip(shown["train_loss_step"].steps, shown["train_loss_step"].values, strict=True)]
    assert curve == [(step, pytest.approx(value, rel=1e-5)) for step, value in enumerate(both)]
    for name in ("val_loss", "train_loss_epoch", "val_batches"):
        assert list(shown[name].values) == [pytest.approx(found[0][2][name])]
        assert list(shown[name].steps) == [3]


@pytest.mark.skipif(not has("lightning"), reason="no lightning")
def test_a_fabric_trains_without_launch_and_with_it(pair):
    """It runs in a cell, as a script, and with the line that ``fabric run`` refuses."""
    script = PROGRAMS / "fabric_alone.py"
    made = 'fabric = lightning.Fabric(accelerator="cpu")\n'
    launched = script.read_text().replace(made, f"{made}fabric.launch()\n")
    assert launched != script.read_text()
    _, found = play(pair, script.read_text(), "found")
    pair.run_script(script, view=None, timeout=PATIENCE)
    _, by_exec = play(pair, "", "found")
    _, reference = play(pair, launched, "found")

    assert found == by_exec == reference
    assert [found[rank][0] for rank in range(RANKS)] == [(0, 2), (1, 2)]
    assert len(set(found[0][1])) == 1
    assert found[0][2] == "DDPStrategy"


@pytest.mark.skipif(not has("transformers"), reason="no transformers")
def test_metrics_that_a_trainer_logs_are_shown(pair):
    run, found = play(pair, code_of("transformers"), "[entry for entry in trainer.state.log_history]")
    train = [(log["step"] - 1, log["loss"]) for log in found[0] if "loss" in log]
    (evaluated,) = [(log["step"] - 1, log["eval_loss"]) for log in found[0] if "eval_loss" in log]
    shown = {name: run.metrics[name][0] for name in ("train/loss", "eval/loss")}

    assert [*zip(shown["train/loss"].steps, shown["train/loss"].values, strict=True)] == [
        (step, pytest.approx(value)) for step, value in train
    ]
    assert [*zip(shown["eval/loss"].steps, shown["eval/loss"].values, strict=True)] == [
        (evaluated[0], pytest.approx(evaluated[1]))
    ]
    assert not any("runtime" in name or "epoch" in name for name in run.metrics)
    # The bar is the cell's; no table for each rank.
    assert all("HTML" not in run.text(rank) for rank in range(RANKS))


@pytest.mark.skipif(not has("transformers"), reason="no transformers")
def test_metrics_that_are_switched_off_show_nothing_of_a_trainer(pair):
    run, _ = play(pair, code_of("transformers"), metrics=False)

    assert list(run.metrics) == []


@pytest.mark.skipif(not has("accelerate"), reason="no accelerate")
def test_an_accelerator_can_be_made_again_with_other_settings_and_after_its_group_is_gone(pair):
    """Accelerate itself demands a new process there."""
    made = "from accelerate import Accelerator\naccelerator = Accelerator({})"
    state = "(accelerator.num_processes, accelerator.mixed_precision, accelerator.reduce(torch.ones(1)).item())"
    _, plain = play(pair, f"import torch\n{made.format('')}", state)
    _, other = play(pair, made.format("mixed_precision='bf16'"), state)
    _, ended = play(pair, f"accelerator.end_training()\n{made.format('')}", state)

    assert plain == {0: (2, "no", 2.0), 1: (2, "no", 2.0)}
    assert other == {0: (2, "bf16", 2.0), 1: (2, "bf16", 2.0)}
    assert ended == plain


@pytest.mark.slow
@pytest.mark.skipif(not has("accelerate"), reason="no accelerate")
def test_a_prepared_model_goes_on_after_a_failure(pair):
    """The old accelerator, model and optimizer work in the new group."""
    play(pair, code_of("accelerate"))
    rest = """
for batch, target in loader:
    loss = (model(batch) - target).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    {fails}
"""
    before, after = rest.format(fails=""), rest.format(fails="if accelerator.process_index == 1: raise OSError('gone')")
    with pytest.raises(DistributedError, match="gone"):
        play(pair, after)
    _, found = play(pair, before, "accelerator.unwrap_model(model)[0].weight.flatten().tolist()")

    assert found[0] == found[1]


@pytest.mark.skipif(not has("deepspeed"), reason="no deepspeed")
def test_deepspeed_says_with_the_fix_that_it_cannot_compile(pair):
    adam = re.sub(r"    optimizer=.*?\n    \),\n", "", code_of("deepspeed"), flags=re.DOTALL).replace(
        '"gradient_acc', '"optimizer": {"type": "Adam", "params": {"lr": 0.05}},\n        "gradient_acc'
    )
    adam = adam.replace("model=net,", "model=net, model_parameters=net.parameters(),")
    with pytest.raises(DistributedError, match=r'no C\+\+ compiler.*"torch_adam": true'):
        play(pair, adam)
    _, found = play(pair, adam.replace('"lr": 0.05', '"lr": 0.05, "torch_adam": True'), "engine.global_steps")

    assert found == {0: 4, 1: 4}


@pytest.mark.skipif(not has("deepspeed"), reason="no deepspeed")
def test_an_engine_of_before_a_failure_is_named_with_the_line_that_makes_it_again(pair):
    play(pair, code_of("deepspeed"))
    with pytest.raises(DistributedError):
        play(pair, "if rank == 1: raise OSError('gone')\nengine.backward(engine(features).mean())\nengine.step()")
    run, _ = play(pair, "1")

    assert "engine: this DeepSpeed engine belongs to the earlier process groups" in run.text(0)


@pytest.mark.slow
@pytest.mark.skipif(not has("deepspeed"), reason="no deepspeed")
def test_a_compilation_by_deepspeed_is_a_bar_and_no_hang(launch, tmp_path):
    """It takes half a minute and more, and no rank comes to another line meanwhile."""
    session = launch(n=RANKS, env={"TORCH_EXTENSIONS_DIR": str(tmp_path)}, settings=Settings(hang_notice=5))
    notes = Notes()
    run = session.run(code_of("deepspeed"), view=notes, timeout=2 * PATIENCE)
    bars = [bar for bar in run.progress[0] if "deepspeed_shm_comm" in bar.name]
    session.stop()

    assert [(bar.ended, bar.total) for bar in bars] == [(True, None)]
    assert 5 < bars[0].done <= run.elapsed
    assert not any("No rank has moved" in words for words in notes.words)

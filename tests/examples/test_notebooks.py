"""The examples, as a newcomer meets them, and their code without us."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import jupyter_dtrain
from tests.notebooks import (
    EXAMPLES,
    KEPT_BYTES,
    MACHINE,
    PATIENCE,
    ROOT,
    code_cells,
    execute,
    fingerprint,
    keep,
    one,
    said_in,
)

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")
    for name in ("torch", "sklearn")
]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
TF_PROCESSES = [sys.executable, str(Path(__file__).with_name("tensorflow_processes.py"))]
JAX_PROCESSES = [sys.executable, str(Path(__file__).with_name("jax_processes.py")), "2"]
LAUNCHERS: dict[str, tuple[str, list[str]]] = {
    "06_five_ways": ("torch", [*TORCHRUN, "4"]),
    "08_lightning": ("lightning", [*TORCHRUN, "2"]),
    "09_hugging_face": ("transformers", [*TORCHRUN, "2"]),
    "10_deepspeed": ("deepspeed", ["deepspeed", "--num_accelerators", "2", "--master_port", "0"]),
    "11_tensorflow": ("tensorflow", [*TF_PROCESSES, "0", "2", "0"]),
    "12_parameter_server": ("tf_keras", [*TF_PROCESSES, "1", "2", "1"]),
    "13_keras": ("keras", JAX_PROCESSES),
    "14_jax": ("flax", JAX_PROCESSES),
    "15_horovod": ("torch", [*TORCHRUN, "2"]),
    "16_mpi": ("mpi4py", ["mpiexec", "-n", "4", "--map-by", ":OVERSUBSCRIBE", sys.executable]),
}
"""For each notebook whose cells also run under a launcher of their own: its requirements, and the launcher."""
NOTEBOOK = EXAMPLES / "01_first_world.ipynb"
DEATH = EXAMPLES / "02_when_a_rank_dies.ipynb"
GPT = EXAMPLES / "03_gpt_fsdp2.ipynb"
LORA = EXAMPLES / "04_lora.ipynb"
LOSSES = EXAMPLES / "07_losses_compared.ipynb"
IMAGES = EXAMPLES / "05_images_ddp.ipynb"
JOB = EXAMPLES / "19_to_a_job.ipynb"
SCALING = EXAMPLES / "20_scaling_report.ipynb"
ELSEWHERE = [EXAMPLES / f"{name}.ipynb" for name in ("17_several_hosts", "18_slurm")]
"""Those that the tests of other hosts execute."""
FRAMEWORKS = [EXAMPLES / f"{name}.ipynb" for name in LAUNCHERS]
NOTEBOOKS = sorted([NOTEBOOK, DEATH, GPT, LORA, LOSSES, IMAGES, *FRAMEWORKS, *ELSEWHERE, JOB, SCALING])
RUN_TYPE = "application/vnd.jupyter-dtrain.run+json"


def accuracy_in(text):
    """The last accuracy that was printed."""
    return float(re.findall(r"test accuracy ([0-9.]+)", text, re.IGNORECASE)[-1])


def test_every_example_is_executed_by_a_test():
    """A person who adds a notebook adds its test."""
    assert {path.name for path in EXAMPLES.glob("*.ipynb")} == {path.name for path in NOTEBOOKS}


@one(NOTEBOOK)
def test_the_demo_trains_and_leaves_the_executed_notebook_behind(home, long_hold, tmp_path, monkeypatch, path):
    """``make demo``: the losses of both ranks, the accuracy, the notebook and its page."""
    monkeypatch.setenv("JUPYTER_DTRAIN_STORE", str(tmp_path / "runs.sqlite"))
    made = [ROOT / "build" / path.name, ROOT / "build" / path.with_suffix(".html").name]
    for file in made:
        file.unlink(missing_ok=True)
    demo = subprocess.run(
        [sys.executable, ROOT / "scripts" / "demo.py"],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    table = demo.stdout.split("Loss per rank per epoch")[-1].splitlines()
    rows = [[float(word) for word in line.split()] for line in table if re.fullmatch(r"( +[0-9.]+){3}", line)]

    assert demo.returncode == 0, demo.stdout[-3000:] + demo.stderr[-3000:]
    assert accuracy_in(demo.stdout) > 0.95
    assert [row[0] for row in rows] == list(range(10))
    assert all(first != second for _, first, second in rows)  # each rank has its own pictures
    assert all(last < first / 2 for first, last in zip(rows[0][1:], rows[-1][1:], strict=True))
    assert "make lab" in demo.stdout.splitlines()[-1]

    executed = nbformat.read(made[0], as_version=4)
    page = made[1].read_text(encoding="utf-8")
    code = code_cells(executed)
    keep(path, code, path.parent)
    text = "".join(output.get("text", "") for cell in code for output in cell.outputs)

    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    assert "[0-1] parameters identical on all 2 ranks: True" in text
    assert "[0-1] test accuracy" in page
    assert "Traceback" not in page


RESULT = re.compile(r"(?:: |loss )([0-9]+\.[0-9]{9})\b")
"""A number as the notebooks print it: with nine digits."""


def results_in(text):
    """The numbers in the text that differ from earlier ones: each rank prints them, in its own time."""
    found = []
    for value in map(float, RESULT.findall(text)):
        if not any(abs(value - other) < 1e-6 for other in found):
            found.append(value)
    return sorted(found)


KEEP = """
from jupyter_dtrain import Run
kept_runs = []
def keep(run, *arguments, made=Run.__init__, **named):
    made(run, *arguments, **named)
    kept_runs.append(run)
Run.__init__ = keep
"""
TELL = """
for run in kept_runs:
    print("steps" if run.step_time else "no steps", [one.kind for one in run.slow], *run.slow, sep="|")
"""
NOT_ITS_OWN = {"processors", "busy processor"}
"""Reasons for slow steps that lie with the machine of the tests: it has fewer processors than some examples' ranks."""


def script_of(path):
    """The ``%%distributed`` cells of a notebook, one after the other."""
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    return [source.partition("\n")[2] for source in cells if source.startswith("%%distributed")]


def own_launcher(command, environ):
    """The command, as far as this environment has it, with a free port where it wants one."""
    own = Path(sys.executable).parent / command[0]
    if not own.exists():
        pytest.skip(f"needs {command[0]}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environ["PATH"] = f"{own.parent}{os.pathsep}{environ['PATH']}"
    return [port if word == "0" and command[0] == "deepspeed" else word for word in command]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "16_mpi" else [pytest.mark.slow]) for name in LAUNCHERS],
)
def test_a_framework_does_in_cells_what_it_does_under_its_own_launcher(home, tmp_path, monkeypatch, name):
    """The notebook, exported as a script and run by the framework's own launcher, comes to the same numbers.

    It is healthy, so no sentence tells why its steps are slow.
    """
    package, launcher = LAUNCHERS[name]
    pytest.importorskip(package)
    # DeepSpeed compiles a part of itself where it can, for half a minute; that is another test's.
    monkeypatch.setenv("CXX", "no-such-compiler")
    path = EXAMPLES / f"{name}.ipynb"
    environ = {**os.environ, "ACCELERATE_USE_CPU": "true", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    environ |= {f"{mpi}_ALLOW_RUN_AS_ROOT{sure}": "1" for mpi in ("OMPI", "PRTE") for sure in ("", "_CONFIRM")}
    if name == "11_tensorflow":
        environ["TF_USE_LEGACY_KERAS"] = "1"  # by itself Keras 3 cannot fit with the strategy
    without = 'import deepspeed\ndeepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False'
    script = tmp_path / "train.py"
    # TensorFlow by itself crashes in a MirroredStrategy between cells of a strategy of all workers; ranks do not.
    jupyter_dtrain.export("script", script, path, cells="3,5-" if name == "11_tensorflow" else None)
    if name == "10_deepspeed":
        script.write_text(f"{without}\n\n{script.read_text()}")

    *cells, told = execute(path, tmp_path, around=(KEEP, TELL))
    healthy = said_in([told]).splitlines()
    command = own_launcher(launcher, environ)
    ended = subprocess.run(
        [*command, script], check=False, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path, env=environ
    )
    said = said_in(cells)
    ours, theirs = results_in(said), results_in(ended.stdout)
    print(name, ours, theirs, *healthy, sep="\n")

    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert ours, said
    assert "widget-view" not in str(cells)
    assert healthy
    if name == "06_five_ways":
        only_copies_hold_everything(said)
    # Four ranks on two processors wait for each other's turn, in collectives: so all of a small model's time goes.
    crowded = {"communication"} if "4" in launcher and (os.cpu_count() or 1) < 4 else set()
    assert {kind for line in healthy for kind in ast.literal_eval(line.split("|")[1])} <= NOT_ITS_OWN | crowded


# Before Python 3.14 torch 2.13 aborts at times where a script ends right after a collective: gloo's thread wants the
# interpreter lock to let go of the last tensor (c10::TensorImpl::decref_pyobject) and is ended in C++ that may not be.
# So the script ends without Python's own end.
ENDING = """
import os, sys
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
"""


def torchrun(path, folder, change=lambda code: code, cells=5):
    """Run the ``%%distributed`` cells of a notebook as a script on two processes."""
    bodies = script_of(path)
    script = folder / "train.py"
    script.write_text(change("\n\n".join([*bodies, ENDING])), encoding="utf-8")
    ended = subprocess.run(
        [*TORCHRUN, "2", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=folder,
    )
    assert len(bodies) >= cells
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended


def test_the_cells_run_unchanged_under_torchrun(tmp_path):
    """The promise of promises: the code is the user's own, and plain PyTorch."""
    ended = torchrun(NOTEBOOK, tmp_path)

    assert accuracy_in(ended.stdout) > 0.95
    assert ended.stdout.count("parameters identical on all 2 ranks: True") == 2
    assert len(re.findall(r"rank [01] epoch \d+ loss", ended.stdout)) == 20


@pytest.mark.slow
@one(LOSSES)
def test_the_losses_of_an_example_are_seen_without_a_line_of_code(home, tmp_path, path):
    """Both runs learn, are stored and compared; the notebook that is saved has their charts, and no widget."""
    pytest.importorskip("matplotlib")
    cells = execute(path, tmp_path)
    ends = re.findall(r"from ([0-9.]+) to ([0-9.]+)", str(cells[-4].outputs))
    charts = [
        [output for output in cell.outputs if RUN_TYPE in output.get("data", {})]
        for cell in cells
        if "model = train(" in cell.source
    ]

    assert len(ends) == 2
    assert all(float(last) < 0.8 * float(first) for first, last in ends)
    assert [len(found) for found in charts] == [1, 1]
    assert all("image/svg+xml" in found[0].data and "loss" in found[0].data["text/plain"] for found in charts)
    assert "widget-view" not in str(cells)
    assert any("image/svg+xml" in output.get("data", {}) for cell in cells for output in cell.outputs)


@pytest.mark.slow
@one(SCALING)
def test_the_scaling_report_measures_each_size_and_blames_slow_data(home, tmp_path, path):
    """Speed-ups are the machine's own; batches, steps and the cause of a cell made slow are the same everywhere."""
    cells = execute(path, tmp_path)
    reports = [
        [output for output in cell.outputs if "application/vnd.jupyter-dtrain.scaling+json" in output.get("data", {})]
        for cell in cells
        if cell.source.startswith("%%speedup")
    ]
    said = cells[-1].outputs[0].text

    assert [len(found) for found in reports] == [1, 1, 1]
    assert all("image/svg+xml" in found[0].data for found in reports)
    assert "fixed: 1 ranks, batch 64, 87 steps" in said
    assert "fixed: 2 ranks, batch 32, 87 steps" in said
    assert "grown: 2 ranks, batch 64, 45 steps" in said
    slow = reports[2][0].data["text/plain"]
    assert re.search(r"slow: 1 ranks, batch 64, 29 steps, .*, ([4-9][0-9]|100)% data", said), said
    assert "the cell failed" not in slow


@pytest.mark.slow
def test_the_example_of_losses_is_plain_pytorch_too(tmp_path):
    """Its cells under torchrun, with a few steps."""
    torchrun(LOSSES, tmp_path, lambda code: code.replace("steps=300", "steps=3"))


@pytest.mark.slow
@one(DEATH)
def test_a_training_with_a_rank_replaced_ends_like_one_that_was_not_disturbed(home, tmp_path, path):
    """A rank is killed, a new one takes its place, and the last loss is the same."""
    text = said_in(execute(path, tmp_path))
    undisturbed, replaced = (float(re.search(rf"{name}: ([0-9.]+)", text)[1]) for name in ("undisturbed", "replaced"))

    assert "Rank 1 has a new process" in text
    assert replaced == pytest.approx(undisturbed, rel=1e-5)


@pytest.mark.slow
@one(JOB)
def test_the_example_of_a_job_ends_with_equal_losses(home, tmp_path, path):
    """Cells and job stand side by side; its script is a newcomer's own training."""
    cells = execute(path, tmp_path)
    text = "".join(output.get("text", "") for cell in cells for output in cell.outputs)

    assert "2 cells for script." in text
    assert re.search(r"in cells ([0-9.]{11}), in the job \1\n", text)
    assert "#SBATCH --ntasks-per-node=8" in text
    assert "widget-view" not in str(cells)


@pytest.mark.slow
@one(IMAGES)
def test_the_accuracy_of_images_over_ranks_is_that_of_one_process(home, tmp_path, path):
    """A mean of the batches' means is another number: that is the point of the example."""
    pytest.importorskip("matplotlib")
    cells = execute(path, tmp_path)
    text = said_in(cells)
    said = {name: float(re.search(rf"{name} ([0-9.]+):", text)[1]) for name in ("wrong", "right", "alone")}

    assert said["right"] == said["alone"] > 0.85
    assert abs(said["wrong"] - said["right"]) > 0.001
    assert "Global batch 128 = 2 replicas x 32 samples x 2 accumulated" in text
    assert accuracy_in(text) == pytest.approx(said["right"], abs=0.05)
    assert (tmp_path / "best.pt").exists()
    assert len([output for cell in cells for output in cell.outputs if "image/png" in output.get("data", {})]) == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the notebook tells what a script needs there")
def test_the_example_of_images_is_plain_pytorch_too(tmp_path):
    """Its cells under torchrun, for an epoch."""
    ended = torchrun(IMAGES, tmp_path, lambda code: code.replace("EPOCHS, ACCUMULATE = 6", "EPOCHS, ACCUMULATE = 1"))

    assert re.search(r"right ([0-9.]+):.*\nalone \1:", ended.stdout)


def only_copies_hold_everything(text):
    """What the example of five ways is for: one loss, a quarter of the memory, and a checkpoint that others read."""
    rows = re.findall(r"^(DDP|FSDP2|tensor parallel|2-D mesh|pipeline) +([0-9. ]+)$", text, re.MULTILINE)
    table = {way: [float(word) for word in numbers.split()] for way, numbers in rows}
    saved, read = (float(re.search(rf"{words}: ([0-9.]+)", text)[1]) for words in ("next batch", "FSDP2's checkpoint"))

    assert list(table) == ["DDP", "FSDP2", "tensor parallel", "2-D mesh", "pipeline"]
    assert all(loss == pytest.approx(table["DDP"][0], abs=1e-4) for loss, *_ in table.values())
    assert table["FSDP2"][1] == pytest.approx(table["DDP"][1] / 4, rel=0.01)
    whole = table.pop("DDP")[4]
    assert all(0.24 * whole < total < 0.3 * whole for *_, total in table.values())
    assert read == pytest.approx(saved, abs=1e-5)


@pytest.mark.slow
@one(GPT)
def test_a_sharded_gpt_goes_on_in_a_larger_world_with_the_same_loss(home, long_hold, tmp_path, path):
    """Two ranks save, four load: the loss is equal at once and in the end, in bf16, and each has half as much."""
    pytest.importorskip("torch")
    said = said_in(execute(path, tmp_path))
    saved, whole, loaded, resumed = (
        float(re.search(rf"after \d+ steps{words}: ([0-9.]+)", said)[1])
        for words in ("", ", not interrupted", ", loaded", ", resumed")
    )
    held = [float(size) for size in re.findall(r"([0-9.]+) MB of (?:them|the weights) on this rank", said)]

    assert whole < saved < 4.5  # each byte at random: 5.5
    assert loaded == pytest.approx(saved, abs=2e-3)
    assert resumed == pytest.approx(whole, abs=1e-2)
    assert min(held) == pytest.approx(max(held) / 2, rel=0.02)


@pytest.mark.slow
@one(LORA)
def test_lora_trains_the_adapters_alone_and_equally_under_torchrun(home, long_hold, tmp_path, monkeypatch, path):
    """The loss on the other text falls; the same cells under torchrun come to the same losses."""
    pytest.importorskip("peft")
    losses = re.compile(r"loss on English before: ([0-9.]+), after: ([0-9.]+)")
    said = said_in(execute(path, tmp_path))
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    theirs = losses.search(torchrun(path, tmp_path, cells=3).stdout)
    before, after = map(float, losses.search(said).groups())
    trained, total = (
        int(number.replace(",", ""))
        for number in re.search(r"([0-9,]+) of ([0-9,]+) parameters are trained", said).groups()
    )

    assert after < before - 0.1
    assert [before, after] == pytest.approx([float(loss) for loss in theirs.groups()], abs=2e-3)
    assert trained == 163_840
    assert trained < total / 7
    assert "with LoRA, merged" in said


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_an_example_shows_what_its_code_does(path):
    """Its outputs are those of this code, in order, of no machine, and small; its mistakes are meant.

    ``make examples`` makes them.
    """
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    outputs = [output for cell in cells for output in cell.outputs]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    words = json.dumps(
        [
            {kind: value for kind, value in (output.get("data") or output).items() if not kind.startswith("image/")}
            for output in outputs
        ]
    )
    failed = [
        cell.source
        for cell in cells
        if any(output.output_type == "error" for output in cell.outputs)
        and "raises-exception" not in cell.metadata.get("tags", [])
    ]

    assert notebook.metadata["dtrain"]["executed"] == fingerprint(notebook), "run make examples"
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert failed == []
    assert kinds <= {"text/plain", "text/html", "image/png"}
    assert "image/png" in kinds
    assert MACHINE.findall(words) == []
    assert socket.gethostname() not in words
    assert path.stat().st_size <= KEPT_BYTES
    assert all(set(cell.metadata) <= {"tags"} for cell in notebook.cells)
    assert set(notebook.metadata) == {"dtrain", "kernelspec", "language_info"}

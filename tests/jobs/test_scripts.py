"""Exported scripts, run by every launcher that they are for."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from jupyter_dtrain import BadRequest
from jupyter_dtrain.jobs import export_notebook
from jupyter_dtrain.jobs.names import names_of
from tests.jobs.cells import local, notebook, ranks, read, run

PLACE = (
    "import os\nnames = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'NODE_RANK')\n"
    "os.write(1, (' '.join(os.environ[name] for name in names) + chr(10)).encode())"
)
"""Writes a line at once: torchrun gives all ranks one pipe, on which the pieces of prints mix."""
SUM = """
import torch
import torch.distributed as dist
dist.init_process_group('gloo')
x = torch.ones(1)
dist.all_reduce(x)
print(f'sum {x.item()}\\n', end='', flush=True)
"""


def export(folder, *cells, target="script", file="train.py", world=None, **more):
    return export_notebook(notebook(*cells, **(world or {})), target, folder / file, **more)


def places(ended):
    """The lines that the ranks printed about their places, by rank."""
    assert ended.returncode == 0, ended.stderr[-3000:]
    return sorted(re.findall(r"^\d+ \d+ \d+ \d+ \d+$", ended.stdout, re.MULTILINE))


def test_a_script_alone_is_a_world_of_one(tmp_path):
    export(tmp_path, ranks(1, PLACE))

    assert places(run(sys.executable, "train.py", cwd=tmp_path)) == ["0 1 0 1 0"]


def test_a_script_under_mpirun_has_torchrun_s_variables_and_its_ranks_meet(tmp_path):
    meet = "import socket\nprint(os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'])"
    export(tmp_path, ranks(1, PLACE), ranks(2, meet))
    ended = run("mpiexec", "-n", "2", sys.executable, "train.py", cwd=tmp_path)

    assert places(ended) == ["0 2 0 2 0", "1 2 1 2 0"]
    [port] = set(re.findall(r"^127\.0\.0\.1 (\d+)$", ended.stdout, re.MULTILINE))
    assert 20000 <= int(port) < 32000  # below those that systems give to connections


def test_the_launch_line_for_mpirun_starts_all_ranks(tmp_path):
    made = export(tmp_path, ranks(1, PLACE), target="mpi", file="train.sh")

    assert [Path(file).name for file in made.files] == ["train.sh", "train.py"]
    assert places(run(made.command, cwd=tmp_path)) == ["0 2 0 2 0", "1 2 1 2 0"]


def test_the_launch_line_for_torchrun_starts_all_ranks_in_one_group(tmp_path):
    pytest.importorskip("torch")
    made = export(tmp_path, ranks(1, PLACE), ranks(2, SUM), target="torchrun", file="train.sh")
    ended = run(made.command, cwd=tmp_path)

    assert places(ended) == ["0 2 0 2 0", "1 2 1 2 0"]
    assert ended.stdout.count("sum 2.0") == 2


GPUS = """
import os
written = os.write(1, f"{os.environ['RANK']} sees {os.environ['CUDA_VISIBLE_DEVICES']}\\n".encode())
"""


@pytest.mark.parametrize(
    ("variables", "seen"),
    [
        ({}, ["0 sees 0,1", "1 sees 2,3"]),
        ({"CUDA_VISIBLE_DEVICES": "7,GPU-5,1,0"}, ["0 sees 7,GPU-5", "1 sees 1,0"]),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, ["0 sees 4,5", "1 sees 4,5"]),
    ],
)
def test_each_rank_of_a_job_sees_as_many_gpus_as_in_the_notebook(tmp_path, variables, seen):
    """In their order; a launcher that shows each rank no more than its own has chosen them already."""
    made = export(tmp_path, ranks(1, GPUS), target="mpi", file="train.sh", world={"gpus_per_rank": 2})
    ended = run(made.command, cwd=tmp_path, **variables)

    assert sorted(ended.stdout.splitlines()) == seen, ended.stderr


def test_a_job_with_too_few_gpus_ends_with_the_reason(tmp_path):
    export(tmp_path, ranks(1, GPUS), world={"gpus_per_rank": 2})
    ended = run(sys.executable, "train.py", cwd=tmp_path, CUDA_VISIBLE_DEVICES="3")

    assert ended.returncode == 1
    assert ended.stderr == "CUDA_VISIBLE_DEVICES=3 has too few GPUs: each rank takes 2.\n"


def test_a_job_asks_for_the_gpus_of_all_its_ranks(tmp_path):
    export(
        tmp_path, ranks(1, "1"), target="slurm", file="train.sbatch", world={"ranks": 4, "nodes": 2, "gpus_per_rank": 3}
    )

    assert "#SBATCH --gpus-per-node=6\n" in (tmp_path / "train.sbatch").read_text()


ASKED = {"partition": "gpu", "time": "8:00:00", "gpus_per_node": "a100:4", "mem": "64G", "sbatch": "--exclusive -C x"}


def sbatch_lines(folder: Path) -> list[str]:
    """The options in the batch script."""
    lines = (folder / "train.sbatch").read_text().splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]


def test_a_batch_script_asks_for_what_the_world_asked_for(tmp_path):
    """What a line gives comes before that."""
    world = {"ranks": 8, "nodes": 2, "asked": ASKED}
    export(tmp_path, ranks(1, "1"), target="slurm", file="train.sbatch", world=world, settings={"mem": "0"})
    found = sbatch_lines(tmp_path)

    assert {"--partition=gpu", "--time=8:00:00", "--gpus-per-node=a100:4", "--mem=0"} <= set(found)
    assert found[-1] == "--exclusive -C x"


def test_another_number_of_ranks_has_its_own_number_of_gpus(tmp_path):
    world = {"ranks": 8, "nodes": 2, "asked": ASKED}
    export(tmp_path, ranks(1, "1"), target="slurm", file="train.sbatch", world=world, ranks=4)
    found = sbatch_lines(tmp_path)

    assert {"--ntasks-per-node=2", "--gpus-per-node=2", "--partition=gpu"} <= set(found)


def test_options_for_sbatch_keep_their_quotes_and_values(tmp_path):
    """sbatch reads several options in one line; each word in a line of its own would lose its option."""
    more = '--constraint a100 --comment="a b"'
    export(tmp_path, ranks(1, "1"), target="slurm", file="train.sbatch", world={"asked": {"sbatch": more}})

    assert sbatch_lines(tmp_path)[-1] == more


def test_the_gpus_of_each_rank_are_asked_for_and_not_those_of_a_node_too(tmp_path):
    world = {"ranks": 8, "nodes": 2, "gpus": True, "asked": {"gpus_per_task": "2"}}
    export(tmp_path, ranks(1, "1"), target="slurm", file="train.sbatch", world=world)
    found = sbatch_lines(tmp_path)

    assert "--gpus-per-task=2" in found
    assert not [line for line in found if line.startswith("--gpus-per-node")]


def test_a_resource_that_is_no_gpu_stays_and_makes_none(tmp_path):
    world = {"ranks": 4, "asked": {"gres": "lscratch:100"}}
    export(tmp_path, ranks(1, "1"), target="slurm", file="train.sbatch", world=world, ranks=2)
    found = sbatch_lines(tmp_path)

    assert "--gres=lscratch:100" in found
    assert not [line for line in found if "gpus" in line]


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("--slurm -N 2 --gres gpu:4", (8, 2)),
        ("--slurm -N 2 --gpus-per-node a100:4 --gpus-per-task 2", (4, 2)),
        ("--slurm -n 6 -N 3", (6, 3)),
        ("--slurm -N 2 --sbatch=--gpus-per-node=8", (16, 2)),
        ("--hosts a:2,b:2", (4, 2)),
        ("-n 3", (3, 1)),
    ],
)
def test_the_world_of_a_saved_notebook_has_the_size_that_its_start_asks_for(tmp_path, line, size):
    found = read(tmp_path, f"%distributed start {line}", "%%distributed\n1").world

    assert (found.ranks, found.nodes) == size
    assert found.asked.get("gpus_per_node") == ("a100:4" if "a100" in line else None)


def test_deepspeed_s_launcher_is_refused_where_ranks_have_several_gpus(tmp_path):
    """It shows each process one."""
    with pytest.raises(BadRequest, match=r"gives each process one GPU.* export to torchrun"):
        export(tmp_path, ranks(1, "import deepspeed"), target="deepspeed", file="t.sh", world={"gpus_per_rank": 2})


@pytest.mark.slow
def test_torch_meets_under_mpirun_as_well(tmp_path):
    pytest.importorskip("torch")
    made = export(tmp_path, ranks(1, SUM), target="mpi", file="train.sh")
    ended = run(made.command, cwd=tmp_path)

    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.count("sum 2.0") == 2


@pytest.mark.parametrize("package", ["torch", "tensorflow", "jax", "mpi4py", "horovod.torch", "deepspeed", "math"])
def test_a_script_has_every_name_that_its_set_up_and_its_end_need(tmp_path, package):
    export(tmp_path, ranks(1, f"import {package}"), world={"env": ("A",), "roles": ("chief", "worker")})
    names = names_of((tmp_path / "train.py").read_text())

    assert names.at_once | names.later == set()


def test_the_places_of_other_launchers_are_understood(tmp_path):
    """Slurm's srun and MPICH's mpiexec, by their variables; and a cluster of TensorFlow's."""
    export(tmp_path, ranks(1, PLACE))
    slurm = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "0", "SLURM_NODEID": "2"}
    slurm |= {"SLURM_STEP_TASKS_PER_NODE": "2(x2),1,1", "SLURM_STEP_NODELIST": "n[1-4]", "SLURM_JOB_ID": "7"}
    mpich = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    cluster = '{"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "task": {"type": "worker", "index": 1}}'

    assert places(run(sys.executable, "train.py", cwd=tmp_path, **slurm)) == ["5 6 0 1 2"]
    assert places(run(sys.executable, "train.py", cwd=tmp_path, **mpich)) == ["1 2 1 2 0"]
    assert places(run(sys.executable, "train.py", cwd=tmp_path, TF_CONFIG=cluster)) == ["2 3 0 1 2"]


def test_cells_of_some_ranks_run_on_these_ranks_only(tmp_path):
    cells = [ranks(1, "print('zero')", ranks="0"), ranks(2, "text = '''\nlast\n'''\nprint(text)", ranks=" -1")]
    export(tmp_path, *cells, ranks(3, "print('all')", ranks="0-1"), ranks(4, "print('two', flush=True)", ranks="[0,1]"))
    ended = run("mpiexec", "-n", "2", sys.executable, "train.py", cwd=tmp_path)
    text = (tmp_path / "train.py").read_text()

    assert ended.returncode == 0, ended.stderr
    assert [ended.stdout.count(word) for word in ("zero", "\nlast\n", "all", "two")] == [1, 1, 2, 2]
    assert "if RANK == 0:\n    print('zero')" in text
    assert "if RANK == WORLD_SIZE - 1:" in text


def test_ranks_that_the_job_does_not_have_are_refused(tmp_path):
    with pytest.raises(BadRequest, match=r"cell 3 runs on ranks 5: There is no rank 5.* Give the job more of them"):
        export(tmp_path, ranks(3, "1", ranks="5"))
    export(tmp_path, ranks(3, "1", ranks="5"), ranks=8)


def test_awaits_last_values_and_magics_run_in_a_script(tmp_path):
    export(
        tmp_path,
        ranks(1, "from __future__ import annotations\nimport asyncio\nlock = asyncio.Lock()\n{'a': 1}"),
        ranks(2, "async def load():\n    async with lock:\n        return 41\nvalue = await load()\nawait load()"),
        ranks(3, "value + 1"),
        ranks(4, "!echo from {value}\n%cd /\nlines = !pwd\nlines"),
        ranks(5, "display(value)"),
    )
    ended = run(sys.executable, "train.py", cwd=tmp_path)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["{'a': 1}", "41", "42", "from 41", "['/']", "41"]


def test_the_script_is_readable_and_names_where_it_came_from(tmp_path):
    export(tmp_path, local(1, "lr = 0.1"), ranks(2, "print(lr)", title="Train"), with_local=True, world={"ranks": 4})
    text = (tmp_path / "train.py").read_text()

    assert "2 cells of lesson.ipynb, exported by jupyter-dtrain" in ast.get_docstring(ast.parse(text))
    assert "torchrun --standalone --nproc-per-node 4 train.py" in text
    assert "# %% [cell 1, from the notebook itself] lr = 0.1\nlr = ARGUMENTS.lr\n" in text
    assert "# %% [cell 2] Train\nprint(lr)\n" in text


def test_installed_versions_go_along_as_a_block_that_tools_read(tmp_path):
    export(tmp_path, ranks(1, "import numpy, msgspec.json as m, os\nfrom unheard_of import x"))
    text = (tmp_path / "train.py").read_text()

    assert re.search(r'^#     "numpy==[0-9.]+",$', text, re.MULTILINE)
    assert re.search(r'^#     "msgspec==[0-9.]+",$', text, re.MULTILINE)
    assert '#     "unheard-of",' in text or '#     "unheard_of",' in text
    assert '"os' not in text.partition("# ///\n\n")[0]


def test_names_of_given_variables_are_exported_and_a_job_without_them_says_so(tmp_path):
    made = export(tmp_path, ranks(1, "1"), world={"env": ("CHOICE",)})
    ended = run(sys.executable, "train.py", cwd=tmp_path)

    assert "Set CHOICE where the job runs: --env gave the world a value, and exports have none." in made.notes
    assert ended.returncode == 1
    assert ended.stderr.startswith("Set CHOICE: --env gave the notebook's world a value")
    assert run(sys.executable, "train.py", cwd=tmp_path, CHOICE="x").returncode == 0


def test_an_existing_file_is_replaced_with_force_only(tmp_path):
    (tmp_path / "train.py").write_text("mine")
    with pytest.raises(BadRequest, match=r"train\.py exists already: add --force to replace it, or name another file"):
        export(tmp_path, ranks(1, "x = 1"), target="mpi", file="train.sh")

    assert (tmp_path / "train.py").read_text() == "mine"
    assert not (tmp_path / "train.sh").exists()
    export(tmp_path, ranks(1, "x = 1"), target="mpi", file="train.sh", force=True)
    assert "x = 1" in (tmp_path / "train.py").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py", "train.sh"]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("", "is a folder: name a file in it"),
        ("nowhere/train.py", "does not exist: make it first"),
        ("numpy.py", r"numpy\.py would hide the package numpy, which the job imports"),
        ("train.txt", r"A script needs a name that ends with \.py"),
    ],
)
def test_a_file_that_cannot_be_is_refused(tmp_path, file, words):
    place = tmp_path if not file else tmp_path / file
    with pytest.raises(BadRequest, match=words):
        export_notebook(notebook(ranks(1, "import numpy")), "script", place)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": "frob"}, "There is no target 'frob'. There is: script, torchrun, mpi, slurm"),
        ({"target": "slurm", "settings": {"x": "1"}}, "no setting 'x'. It has time, cpus_per_task, partition, account"),
        ({"target": "slurm", "settings": {"cpus": "0"}}, "cpus_per_task must be a whole number above 0, not '0'"),
        ({"ranks": 3, "nodes": 2}, "3 ranks cannot be spread evenly over 2 nodes: give -n as a multiple of --nodes"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path, options, words):
    with pytest.raises(BadRequest) as caught:
        export(tmp_path, ranks(1, "1"), **options)
    assert words in str(caught.value)


def test_a_cell_that_fits_into_no_script_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="cell 1 awaits, and imports"):
        export(tmp_path, ranks(1, "from asyncio import *\nawait sleep(0)"))


def test_values_of_cells_become_arguments_of_the_script(tmp_path):
    """With the cells' values as defaults; a name that a cell binds twice stays a variable of the program."""
    values = "lr = 1e-3  # the rate\nbatch_size: int = 32\nname = 'a\"b'\nuse_amp = False\nbest = 0.0\nwidth = 2 * 8"
    export(
        tmp_path, ranks(1, values), ranks(2, "best = max(best, 1)\nprint(lr, batch_size, name, use_amp, best, width)")
    )
    text = (tmp_path / "train.py").read_text()

    def says(*words):
        ended = run(sys.executable, "train.py", *words, cwd=tmp_path)
        return ended.stdout or ended.stderr

    assert "lr = ARGUMENTS.lr  # the rate" in text
    assert "best = 0.0" in text
    assert says() == '0.001 32 a"b False 1 16\n'
    assert (
        says("--lr", "0.5", "--batch-size", "8", "--use-amp", "--name", "c", "--local_rank=0") == "0.5 8 c True 1 16\n"
    )
    assert says("--batch_size=4").startswith("0.001 4 ")
    assert "unrecognized arguments: --bets" in says("--bets", "1")


def test_a_script_that_reads_its_arguments_itself_gets_none(tmp_path):
    export(tmp_path, ranks(1, "import sys\nlr = 0.1\nprint(lr, sys.argv[1:])"))

    assert run(sys.executable, "train.py", "x", cwd=tmp_path).stdout == "0.1 ['x']\n"


def test_two_targets_of_one_notebook_share_the_script_or_have_one_each(tmp_path):
    """They share it if it is the same text; one with another size of its world leaves it as it is."""
    export(tmp_path, ranks(1, "x = 1"), target="mpi", file="train.sh")
    shared = (tmp_path / "train.py").read_text()
    export(tmp_path, ranks(1, "x = 1"), target="slurm", file="train.sbatch")
    made = export(tmp_path, ranks(1, "x = 1"), target="azureml", file="train.yml", world={"ranks": 4, "nodes": 2})

    assert (tmp_path / "train.py").read_text() == shared
    assert {Path(name).name for name in made.files} == {"train.yml", "train_azureml.conda.yml", "train_azureml.py"}
    assert "train_azureml.py" in (tmp_path / "train.yml").read_text()


def test_the_head_of_a_script_tells_the_world_that_ran_and_that_of_the_job(tmp_path):
    export(tmp_path, ranks(1, "1"), ranks=16, nodes=2)
    head = ast.get_docstring(ast.parse((tmp_path / "train.py").read_text()))

    assert "1 cell of lesson.ipynb" in head
    assert "Their world had 2 ranks on 1 node. This job has 16 ranks on 2 nodes." in head
    assert (
        "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint FIRST_NODE:29400 train.py" in head
    )
    assert "mpirun -n 16 --host NODE1:8,NODE2:8 python train.py" in head


def test_losses_that_only_a_notebook_records_are_told_about(tmp_path):
    silent = export(tmp_path, ranks(1, "def f(loss):\n    loss.backward()"))
    logs = export(tmp_path, ranks(1, "import jupyter_dtrain\njupyter_dtrain.log(a=1)"), file="logs.py")

    assert any("jupyter_dtrain.log(loss=loss)" in note for note in silent.notes)
    assert not any("jupyter_dtrain.log(loss=loss)" in note for note in logs.notes)


@pytest.mark.parametrize(
    ("code", "settings", "asked", "note"),
    [
        (
            "import torch\nx = torch.device('cuda')",
            {},
            "--gpus-per-node=2",
            "one for each rank; --gpus-per-node 0 asks",
        ),
        ("import torch\nx = torch.nn.Linear(1, 1).cuda()", {}, "--gpus-per-node=2", "The code names CUDA"),
        ("import lightning\nlightning.Trainer(accelerator='gpu')", {}, "--gpus-per-node=2", "The code names CUDA"),
        ("import torch\nx = 'cuda'", {"gpus_per_node": "0"}, "", ""),
        ("import torch\nx = 'cuda'", {"gpus_per_node": "a100:8"}, "--gpus-per-node=a100:8", ""),
        ("import torch\nx = 'cuda'", {"sbatch": "--gres gpu:4"}, "", ""),
        ("import torch\nx = 'cpu'", {}, "", "The job asks for no GPUs, as the code does not name CUDA"),
        ("import numpy", {}, "", ""),
    ],
)
def test_a_job_in_slurm_asks_for_the_gpus_of_its_code_and_says_so(tmp_path, code, settings, asked, note):
    cells = [ranks(1, code)]
    made = export(tmp_path, *cells, target="slurm", file="train.sbatch", settings=settings)
    text = (tmp_path / "train.sbatch").read_text()

    assert re.findall(r"^#SBATCH (--gpus-per-node=.*)$", text, re.MULTILINE) == ([asked] if asked else [])
    assert note in " ".join(made.notes)
    assert bool(note) is any("GPU" in one for one in made.notes)


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({}, ["CPUs", "memory"]),
        ({"cpus_per_task": "8"}, ["memory"]),
        ({"cpus_per_task": "8", "mem": "64G"}, []),
        ({"sbatch": "--exclusive --mem-per-cpu=4G"}, []),
        ({"sbatch": "-c 4"}, ["memory"]),
    ],
)
def test_what_a_job_leaves_to_slurm_is_said(tmp_path, settings, left):
    """No rank has one CPU without a word: the script asks for a number, or the export tells that it does not."""
    made = export(tmp_path, ranks(1, "1"), target="slurm", file="train.sbatch", settings=settings)
    text = (tmp_path / "train.sbatch").read_text()
    notes = [one for one in made.notes if one.startswith("Slurm's defaults")]

    assert ("--cpus-per-task=8\n" in text) is ("cpus_per_task" in settings)
    assert [word for word in ("CPUs", "memory") if any(word in one for one in notes)] == left
    assert 'srun --kill-on-bad-exit=1 --cpus-per-task="$cpus"' in text

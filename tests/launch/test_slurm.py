"""Slurm's words, the options of its worlds, and the sealed pipe, without a Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from cryptography.fernet import Fernet

from jupyter_dtrain.core.errors import BadRequest, StartFailed
from jupyter_dtrain.launch.hostlist import fill
from jupyter_dtrain.launch.options import check, options, schema
from jupyter_dtrain.launch.programs import ProgramAnswer, run_on
from jupyter_dtrain.launch.slurm import sealed_pipe, shell
from jupyter_dtrain.launch.slurm.allocation import submission
from jupyter_dtrain.launch.slurm.options import TOOLS, SlurmOptions, in_job, place
from jupyter_dtrain.launch.slurm.queue import Unanswered, read_job
from jupyter_dtrain.launch.slurm.sealed_pipe import ALIVE, INPUT, Broken, Seal, Wire
from jupyter_dtrain.launch.slurm.steps import FAILED, Steps
from jupyter_dtrain.magics.parsing import HelpShown
from jupyter_dtrain.magics.table import verb_parser

RUNS = (
    "JobId=7 JobName=dtrain-world UserId=me(1000) JobState=RUNNING Reason=None RunTime=00:00:00 TimeLimit=00:10:00 "
    "StartTime=2026-11-24T01:46:35 EndTime=2026-11-24T01:56:35 Partition=main NodeList=gpu[1-2] NumNodes=2 NumCPUs=8 "
    "NumTasks=4 CPUs/Task=1 NtasksPerN:B:S:C=2:0:*:* StdOut=/dev/null Power= "
)
"""As ``scontrol show job -o`` of Slurm 22.05 prints it, but for what nobody reads."""


def waiting(reason):
    """A job that waits for ``reason``."""
    return read_job(RUNS.replace("RUNNING Reason=None", f"PENDING Reason={reason}"))


def test_a_job_is_read_from_one_line():
    job = read_job(RUNS)

    assert (job.id, job.state, job.partition, job.nodes) == ("7", "RUNNING", "main", "gpu[1-2]")
    assert (job.count, job.processors, job.tasks, job.tasks_per_node) == (2, 8, 4, 2)
    assert job.ends - job.begins == 600
    assert job.runs
    assert (job.waits, job.ended) == (False, "")


def test_a_job_without_a_limit_does_not_end():
    assert read_job(RUNS.replace("TimeLimit=00:10:00", "TimeLimit=UNLIMITED")).ends == 0


def test_an_answer_that_is_no_job_is_refused():
    with pytest.raises(Unanswered, match="cannot be read: 'slurm_load_jobs"):
        read_job("slurm_load_jobs error: something")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "not enough nodes, processors or GPUs are free (Resources)"),
        ("ReqNodeNotAvail,_UnavailableNodes:gpu2", "is not available (ReqNodeNotAvail,_UnavailableNodes:gpu2)"),
        ("Some_new_reason", "Some new reason"),
    ],
)
def test_the_reason_to_wait_is_said_in_words(reason, words):
    assert words in waiting(reason).waiting
    assert waiting(reason).never is None


def test_a_job_that_can_never_start_has_a_fix():
    assert waiting("PartitionTimeLimit").never == (
        "it asks for more time than the partition gives to a job (PartitionTimeLimit)",
        "Ask for less time with --time, or choose another --partition.",
    )


@pytest.mark.parametrize(("state", "words"), [("TIMEOUT", "time limit"), ("NODE_FAIL", "a node"), ("ODD", "ODD")])
def test_the_end_of_a_job_is_said_in_words(state, words):
    assert words in read_job(RUNS.replace("RUNNING", state)).ended


@pytest.mark.parametrize(
    ("options", "n", "wanted"),
    [
        ({}, None, (1, 1)),
        ({"nodes": 2}, None, (2, 1)),
        ({"nodes": 2}, 5, (2, 3)),
        ({"nodes": 2, "gres": "gpu:a100:4,nvme:1"}, None, (2, 4)),
        ({"nodes": 2, "gres": "gpu:4", "ntasks_per_node": 8}, None, (2, 8)),
        ({"gres": "gpu=3"}, None, (1, 3)),
        ({"gres": "nvme:2"}, None, (1, 1)),
        ({"nodes": 2, "gpus_per_node": "8"}, None, (2, 8)),
        ({"nodes": 2, "gpus_per_node": "a100:4,v100:2"}, None, (2, 6)),
        ({"gpus_per_node": "8", "gpus_per_task": "2"}, None, (1, 4)),
        ({"gres": "gpu:8", "gpus_per_task": "a100:4"}, None, (1, 2)),
        ({"gpus_per_task": "1"}, 4, (1, 4)),
        ({"nodes": 2, "sbatch": "--gpus-per-node=4"}, None, (2, 4)),
        ({"gres": "gpu:2", "sbatch": "--exclusive --gres gpu:a100:4 --gpus-per-task 2"}, None, (1, 2)),
    ],
)
def test_a_job_has_as_many_ranks_on_a_node_as_it_needs(options, n, wanted):
    assert SlurmOptions(**options).wanted(n) == wanted


@pytest.mark.parametrize(
    ("options", "processors"),
    [
        ({}, 0),
        ({"cpus_per_task": 6}, 6),
        ({"sbatch": "--cpus-per-task=4"}, 4),
        ({"sbatch": "-c 4"}, 4),
        ({"cpus_per_task": 6, "sbatch": "-c8"}, 8),
        ({"sbatch": "--constraint=a100"}, 0),
    ],
)
def test_the_processors_of_a_rank_are_counted_wherever_they_are_asked_for(options, processors):
    assert SlurmOptions(**options).processors == processors


def test_a_rank_cannot_have_more_gpus_than_its_node():
    with pytest.raises(BadRequest, match="--gpus-per-task 4 gives a rank more GPUs than the 2 of a node") as caught:
        SlurmOptions(gpus_per_node="2", gpus_per_task="4").wanted()

    assert caught.value.option == "gpus_per_task"


def test_numbers_may_be_numbers():
    """In Python and in TOML; the options of sbatch are text, as some have a unit."""
    named = check({"slurm": True, "gpus_per_node": 8, "mem": 0, "time": 90}).launcher_values

    assert (named["gpus_per_node"], named["mem"], named["time"]) == ("8", "0", "90")


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        ({"gres": "gpu:a100:8"}, 4),
        ({"gres": "gpu:8", "ntasks_per_node": 3}, 3),
        ({"nodes": 2, "gres": "gpu:2"}, 1),
        ({"gpus_per_node": "a100:6", "gpus_per_task": "2"}, 3),
        ({"ntasks_per_node": 3}, 3),
        ({}, 1),
    ],
)
def test_the_gpus_of_each_rank_decide_how_many_a_node_has(given, ranks):
    """Where --gres says how many GPUs a node has; else the nodes say later whether these suffice."""
    asked = check({"slurm": True, "gpus_per_rank": 2, **given}).share_gpus()

    assert asked.launcher_options.wanted()[1] == ranks
    assert asked.world.n is None


@pytest.mark.parametrize(
    ("given", "words", "option"),
    [
        ({"gres": "gpu:3"}, "Each node of the job has 3 GPUs, which .* such as --ntasks-per-node 1", "gpus_per_rank"),
        ({"gres": "gpu:4", "ntasks_per_node": 3}, "4 GPUs, too few for 3 ranks with 2 GPUs each", "ntasks_per_node"),
        ({"gres": "gpu:1"}, "Each node of the job has 1 GPU, too few for a rank with 2 GPUs", "gpus_per_rank"),
        ({"gpus_per_node": "3"}, "Each node of the job has 3 GPUs", "gpus_per_rank"),
        ({"gpus_per_task": "1"}, "--gpus-per-rank 2 and --gpus-per-task 1 give a rank different", "gpus_per_task"),
    ],
)
def test_a_job_with_too_few_gpus_for_its_ranks_is_refused(given, words, option):
    with pytest.raises(BadRequest, match=words) as caught:
        check({"slurm": True, "gpus_per_rank": 2, **given}).share_gpus()
    assert caught.value.option == option


def test_ranks_fill_the_nodes_in_order():
    assert fill({"a": 2, "b": 2, "c": 2}, 3) == {"a": 2, "b": 1}


def test_all_options_reach_sbatch_in_their_order():
    options = SlurmOptions(nodes=2, partition="gpu", time="5", sbatch="--qos=high --constraint='a100&nvme'")
    command = submission(options, 4, "dtrain-x")

    assert command[0] == "sbatch"
    assert {"--nodes=2", "--ntasks-per-node=2", "--partition=gpu", "--time=5", "--no-requeue"} <= set(command)
    assert command[-3:] == ["--qos=high", "--constraint=a100&nvme", "--job-name=dtrain-x"]
    options = SlurmOptions(gpus_per_node="8", gpus_per_task="2", cpus_per_task=4, mem="64G", qos="high")
    assert submission(options, 4, "dtrain-x")[4:6] == ["--nodes=1", "--ntasks-per-node=4"]
    assert submission(options, 4, "dtrain-x")[-6:-1] == [
        "--qos=high",
        "--gpus-per-node=8",
        "--gpus-per-task=2",
        "--cpus-per-task=4",
        "--mem=64G",
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--nodes=3", "may not have --nodes. Give nodes with -N."),
        ("-N3", "may not have -N. Give nodes with -N."),
        ("--array=1-3", "A world is one job."),
        ("train.sh", "'train.sh' is no option of sbatch"),
        ("--qos='high", "cannot be split"),
        ("--export=ALL", "encrypted"),
    ],
)
def test_options_that_the_world_itself_gives_are_refused(words, why):
    with pytest.raises(BadRequest, match=why) as caught:
        check({"slurm": True, "sbatch": words})

    assert caught.value.option == "sbatch"


def test_a_job_that_runs_takes_no_options_of_a_new_one():
    job = read_job(RUNS)

    assert in_job(job, SlurmOptions()) == (2, 2)
    assert in_job(job, SlurmOptions(nodes=1, ntasks_per_node=4)) == (1, 4)
    with pytest.raises(BadRequest, match="--partition, --gres would be for a new job"):
        in_job(job, SlurmOptions(partition="gpu", gres="gpu:1"))
    with pytest.raises(BadRequest, match="--cpus-per-task would be for a new job"):
        in_job(job, SlurmOptions(cpus_per_task=2))


@pytest.mark.parametrize("name", SlurmOptions.__struct_fields__)
def test_an_option_of_slurm_is_shown_to_people(name, capsys):
    """In -h, in the signature, and in the dialog, with its default; the dialog has no flag beside "Run on: Slurm"."""
    option = next(option for option in options() if option.name == name)
    with pytest.raises(HelpShown):
        verb_parser().parse_line("start -h")
    shown = " ".join(capsys.readouterr().out.split())

    assert option.flag in shown
    assert option.description in shown
    assert option.description.count("(default: ") == 1
    assert option.schema["title"]
    assert (name in schema("slurm")["properties"]) == (name != "slurm")
    assert name not in schema("local")["properties"]


def test_a_line_is_spelled_as_for_sbatch():
    line = "start --slurm -N 2 --ntasks-per-node 8 --time=1:00:00 --gres gpu:8 --sbatch '--qos=high -C a100'"
    parsed = verb_parser().parse_line(line)

    assert (parsed.slurm, parsed.nodes, parsed.ntasks_per_node) == (True, 2, 8)
    assert (parsed.time, parsed.gres, parsed.sbatch) == ("1:00:00", "gpu:8", "--qos=high -C a100")
    assert verb_parser().parse_line("start --slurm --nodes 2").nodes == 2
    assert verb_parser().parse_line("start --slurm --sbatch --exclusive --mem 0").sbatch == "--exclusive"


def test_a_machine_without_slurm_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartFailed, match=r"This machine has no Slurm: sbatch, .* cannot be found") as caught:
        place(None, SlurmOptions(slurm=True))

    assert caught.value.option == "slurm"


def test_what_seals_the_words_between_nodes_is_an_extra(monkeypatch, tmp_path):
    for tool in TOOLS:
        (tmp_path / tool).write_text("#!/bin/sh\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "cryptography", None)  # as if it were not installed
    with pytest.raises(StartFailed, match="cryptography is not installed") as caught:
        place(None, SlurmOptions(slurm=True))

    assert "pip install 'jupyter-dtrain[slurm]'" in str(caught.value)


def test_options_of_slurm_without_slurm_are_refused():
    with pytest.raises(BadRequest, match="nodes is for the launcher 'Slurm': choose it with slurm"):
        check({"nodes": 2})


@pytest.fixture
def seals():
    """Both ends of a sealed pipe."""
    key = Fernet.generate_key()
    return Seal(key, b"N", b"F"), Seal(key, b"F", b"N")


@pytest.mark.parametrize(
    ("log", "kind", "words"),
    [
        (
            (
                "srun: cluster configuration lacks support for cpu binding\n"
                "slurmstepd-n2: error: execve(): /venv/bin/python: No such file or directory\n"
                "srun: error: n2: task 0: Exited with exit code 2\n"
            ),
            "no program",
            "/venv/bin/python: No such file or directory",
        ),
        ("Traceback\nModuleNotFoundError: No module named 'x'\n", "failed", "ModuleNotFoundError: No module named 'x'"),
        ("srun: error: n2: task 0: Exited with exit code 2\n", "failed", "n2: task 0: Exited with exit code 2"),
        ("The node has not answered for 7 s.\n", "timed out", "The node has not answered for 7 s"),
        (
            "srun: error: Unable to create step for job 7: Job is gone\n",
            "failed",
            "Unable to create step for job 7: Job is gone",
        ),
        ("srun: cluster configuration lacks support for cpu binding\n", "failed", "srun ended without a word"),
    ],
)
def test_a_step_that_fails_says_why(log, kind, words):
    """In the words of the gate or of srun, whose exit codes lie: the gate has one of its own."""
    steps = Steps("7", [], "step", {}, "/")
    found = steps.explain(ProgramAnswer("", log, FAILED), "n2", "python")

    assert (found.kind, found.reason) == (kind, f"{words}.")
    assert ("under the paths of this machine" in found.fix) is ("No " in words)
    assert steps.explain(ProgramAnswer("", log, 3), "n2", "python").code == 3
    assert FAILED == sealed_pipe.FAILED


def test_a_munge_that_makes_no_credential_is_named(tmp_path, monkeypatch):
    """The pipe has failed, whatever srun would do."""
    munge = tmp_path / "munge"
    munge.write_text("#!/bin/sh\necho 'no munged' >&2\nexit 6\n")
    munge.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = run_on(["n2"], ["true"], carrier=Steps("7", [], "step", {}, "/"), timeout=20)["n2"]

    assert (found.kind, found.reason) == ("failed", "munge makes no credential: no munged.")


def test_a_sealed_line_says_nothing_and_arrives(seals):
    near, far = seals
    line = near.close(INPUT, b"zebra")

    assert b"zebra" not in line
    assert far.open(line) == (INPUT, b"zebra")


def test_a_line_that_was_changed_repeated_left_out_or_sent_back_is_noticed(seals):
    near, far = seals
    first, second, third = (near.close(INPUT, text) for text in (b"1", b"2", b"3"))
    changed = bytearray(first)
    changed[30] ^= 1

    for wrong in (bytes(changed), second, far.close(INPUT, b"1")):
        with pytest.raises(Broken):
            far.open(wrong)
    far.open(first)
    for wrong in (first, third):
        with pytest.raises(Broken):
            far.open(wrong)
    assert far.open(second) == (INPUT, b"2")


def test_a_pipe_whose_other_end_is_silent_is_given_up(seals):
    """But not before it has said something: a job's program may take long to start."""
    near, far = seals
    reads, writes = os.pipe()
    wire = Wire(near, reads, -1)
    late = threading.Timer(0.3, lambda: os.write(writes, far.close(ALIVE) + far.close(ALIVE)[:10]))
    late.start()
    lines = wire.lines(0.1)
    try:
        assert next(lines) == (ALIVE, b"")
        with pytest.raises(TimeoutError):
            next(lines)
    finally:
        late.join()
        os.close(reads)
        os.close(writes)


LATE = """
import os, sys
from cryptography.fernet import Fernet
from jupyter_dtrain.launch.slurm.sealed_pipe import CODE, OUTPUT, Seal, Wire, _pass_on

key = Fernet.generate_key()
far = Seal(key, b"F", b"N")
reads, writes = os.pipe()
os.write(writes, far.close(OUTPUT, b"late") + far.close(CODE, b"3"))
sys.stdin.read()
os._exit(_pass_on(Wire(Seal(key, b"N", b"F"), reads, -1)) or 99)
"""


def test_a_pipe_whose_reader_is_gone_waits_for_the_end_of_its_program():
    """Killed with srun, that program would leave its files."""
    with subprocess.Popen([sys.executable, "-c", LATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as gate_process:
        gate_process.stdout.close()
        gate_process.stdin.close()

    assert gate_process.returncode == 3


def test_the_remote_shell_of_a_copy_shows_no_variable(monkeypatch):
    """On its command line: other users can read that. Its steps get them in the credential."""
    monkeypatch.setenv("FROM_HERE", "zebra")
    steps = shell.steps_of("7", ["--socket=/run/a b"])

    assert steps.environment["FROM_HERE"] == "zebra"
    assert "zebra" not in " ".join(shell.command(steps))
    assert shell.command(steps)[-2:] == ["7", '["--socket=/run/a b"]']

"""The frameworks of real ranks describe themselves, and the question changes nothing."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from jupyter_dtrain.frameworks.torch.plugin import TESTED
from tests.pace import slack

ROOT = Path(__file__).parents[2]

HEAVY = ("torch", "lightning", "accelerate", "transformers", "deepspeed")
LOADED = f"import sys; sorted(set({HEAVY}) & set(sys.modules))"
SECRET = "hunter2"  # noqa: S105 — one to look for

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture(scope="module")
def given(launch):
    """A world of two ranks with variables of the user's."""
    with launch(n=2, env={"DTRAIN_SECRET": SECRET, "OMP_NUM_THREADS": "2"}) as session:
        yield session


def results(session, code, ranks=None):
    """The values, by rank."""
    run = session.run(code, ranks, view=None, timeout=60)
    return {rank: result.data["text/plain"] for rank, result in sorted(run.results.items())}


def variables(session, rank=0):
    """Value and reason, by name."""
    return {one.name: (one.value, one.why) for one in session.info(rank)[rank].variables}


def test_a_framework_that_no_cell_has_imported_shows_its_version_and_stays_unimported(given):
    """MPI every rank has."""
    found = given.info()
    installed = {name: version(name) for name in HEAVY if importlib.util.find_spec(name) is not None}

    assert list(found) == [0, 1]
    assert found[0].frameworks == found[1].frameworks
    assert {name: found[0].frameworks[name].version for name in installed} == installed
    assert not any(found[0].frameworks[name].imported or found[0].frameworks[name].details for name in HEAVY)
    mpi = found[0].frameworks["mpi"]
    assert mpi.imported
    assert mpi.details["library"].startswith("Open MPI")
    assert mpi.details["ULFM"].startswith("on: ")
    assert results(given, LOADED) == {0: "[]", 1: "[]"}


def test_the_variables_of_a_rank_have_their_reasons_and_no_secret_is_shown(given):
    """The variables come from the world, from a framework and from the user."""
    mine, other = variables(given, 0), variables(given, 1)

    assert (mine["RANK"], other["RANK"]) == (("0", mine["RANK"][1]), ("1", mine["RANK"][1]))
    assert mine["WORLD_SIZE"][0] == "2"
    assert mine["MASTER_PORT"] == other["MASTER_PORT"]
    assert mine["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == ("0", "NCCL must not end a rank that a release can free")
    assert mine["OMP_NUM_THREADS"][0] is None
    assert mine["OMP_NUM_THREADS"][1].startswith("given by --env, hidden; ")
    assert mine["DTRAIN_SECRET"] == (None, "given by --env, hidden")
    assert all(why for _, why in mine.values())
    assert SECRET not in repr(given.info()) + repr(given.request)
    # They are there all the same.
    assert results(given, "import os; (os.environ['DTRAIN_SECRET'], os.environ['OMP_NUM_THREADS'])")[1] == (
        f"('{SECRET}', '2')"
    )


def test_ranks_answer_while_a_cell_runs_and_a_stopped_one_does_not(given, tmp_path):
    """The answer comes within the deadline."""
    gate = tmp_path / "go"
    run = given.run(
        f"import os, pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)",
        view=None,
        wait=False,
    )
    meanwhile = given.info()
    stopped = given.world.ranks[1].pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        silent = given.info(timeout=1.0)
        took = time.monotonic() - begun
    finally:
        os.kill(stopped, signal.SIGCONT)
        gate.touch()
    run.wait(60)

    assert run.outcome == "ok"
    assert None not in meanwhile.values()
    assert silent[0] is not None
    assert silent[1] is None
    assert took < 8 + slack()


@needs_torch
def test_torch_shows_what_is_compiled_in_and_what_a_set_up_would_take(given):
    """It shows them only where it is imported; and the answer has a cell's changes."""
    results(given, "import torch, os", 0)
    found = given.info()
    torch = found[0].frameworks["torch"]
    results(given, "import torch.distributed as dist, os; dist.init_process_group()")
    joined = given.info(0)[0].frameworks["torch"].details
    has = results(given, "[n for n in ('gloo', 'nccl', 'mpi') if getattr(dist, f'is_{n}_available')()]", 0)[0]
    results(given, "dist.destroy_process_group(); os.environ['MASTER_ADDR'] = 'elsewhere'")
    changed = variables(given)["MASTER_ADDR"]
    results(given, "os.environ['MASTER_ADDR'] = '127.0.0.1'")

    assert torch.imported
    assert not found[1].frameworks["torch"].imported
    assert torch.version == results(given, "torch.__version__", 0)[0].strip("'")
    assert repr(torch.details["backends"].partition(": ")[0].split(", ")) == has
    assert torch.details["process group"] == "none"
    assert joined["process group"].endswith(", 2 ranks")
    assert torch.details["GPUs"] == results(given, "torch.cuda.device_count()", 0)[0]
    assert changed[0] == "elsewhere"
    assert changed[1].startswith("changed by your code, was 127.0.0.1 (")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "code", "detail", "words", "variable"),
    [
        ("accelerate", "import accelerate; accelerate.Accelerator()", "state", "2 processes", "ACCELERATE_USE_CPU"),
        ("deepspeed", "import deepspeed", "accelerator", "cpu", "DS_ACCELERATOR"),
        ("lightning", "import lightning", 'devices="auto"', "2 where", None),
        ("transformers", "from transformers import Trainer", "Trainer", "imported: ", None),
    ],
)
def test_libraries_on_top_of_torch_report_what_they_found(given, package, code, detail, words, variable):
    """So are the variables set for them, which are set where there is no GPU."""
    pytest.importorskip(package)
    results(given, code)
    facts = given.info()[1].frameworks[package]

    assert facts.imported
    assert facts.details[detail].startswith(words)
    if variable is not None and given.info(0)[0].frameworks["torch"].details["GPUs"] == "0":
        assert variables(given)[variable][1].startswith("no GPU here: ")


def test_the_versions_of_torch_that_are_said_to_be_tested_are_those_that_are():
    """From the oldest that is promised to the newest that was tried."""
    page = (ROOT / "docs" / "reference" / "versions.md").read_text()
    _, _, _, newest, result = re.search(r"^\| (PyTorch \|.*?) \|$", page, re.MULTILINE)[1].split(" | ")
    promised = re.search(r'"torch>=(\d+\.\d+)"', (ROOT / "pyproject.toml").read_text())

    assert promised is not None
    assert result.startswith("passes")
    assert f"{promised[1]} and {newest.rpartition('.')[0]}" == TESTED

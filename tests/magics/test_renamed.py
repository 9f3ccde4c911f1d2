"""Names that changed: each line of before runs, and says once what it is called now; the new line says nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SAID = "is called {} now. The former name works until the next release."


@pytest.fixture(scope="module")
def trained(ranks):
    """Three ranks with a model, two stored runs and a snapshot."""
    code = "import torch\ntorch.manual_seed(0)\nmodel = torch.nn.Linear(2, 2)\nx = 1\nsteps = list(range(12))"
    ranks.ok(f"%%distributed --name first\n{code}")
    ranks.ok("%%distributed\nx += 1")
    ranks.ok("%distributed save kept x")
    ranks.ok("import pathlib; pathlib.Path('train.py').write_text('print(\"trained\")')")
    return ranks


LINES = [
    ("%distributed list", "%distributed worlds", "%distributed worlds"),
    ("%distributed resync x", "%distributed broadcast x", "%distributed broadcast"),
    ("%distributed heal", "%distributed replace", "%distributed replace"),
    ("%distributed exec train.py", "%distributed run train.py", "%distributed run"),
    ("%distributed env", "%distributed info", "%distributed info"),
    ("%distributed check model", "%distributed diff model", "%distributed diff"),
    ("%distributed sync train.py", "%distributed upload train.py", "%distributed upload"),
    ("%distributed save kept --stop", "%distributed snapshots stop kept", "%distributed snapshots stop NAME"),
    ("%distributed attach --take-over", "%distributed attach --control", "--control"),
    ("%%distributed --run two\n1", "%%distributed --name two\n1", "--name"),
    ("%%distributed --check model --every 2\n1", "%%distributed --check model --check-every 2\n1", "--check-every"),
]


@pytest.mark.parametrize(("former", "now", "name"), LINES, ids=[name for *_, name in LINES])
def test_a_line_of_before_runs_and_names_the_new_one_once(trained, former, now, name):
    first, second, new = trained.run(former), trained.run(former), trained.run(now)

    assert SAID.format(name) in first.err
    assert "is called" not in second.err
    assert "is called" not in new.err
    assert (first.ename, second.ename) == (new.ename, new.ename)


def test_nothing_shows_a_former_name(trained):
    text = trained.ok("%distributed -h").out
    options = trained.ok("%%distributed -h").out

    verbs = {line.split()[0] for line in text.splitlines() if line.startswith("  ")}
    assert not {"heal", "resync", "exec", "env", "list", "sync", "tune"} & verbs
    assert {"replace", "broadcast", "run", "info", "worlds", "upload"} <= verbs
    assert "--run " not in options
    assert "--every " not in options


def test_runs_are_shown_compared_and_deleted_below_their_noun(trained):
    """The short forms ``show`` and ``compare`` stay."""
    trained.ok("%%distributed --name below\n1")
    trained.ok("%%distributed\n2")
    second = trained.value("__import__('jupyter_dtrain').current().last_run.number")
    first = second - 1
    listed = trained.ok("%distributed runs -n 50 --all").display_texts[0]
    shown = trained.ok(f"%distributed runs show {first}").display_texts
    short = trained.ok(f"%distributed show {first}").display_texts
    trained.ok(f"%distributed runs compare {first}-{second}")
    trained.ok(f"%distributed compare {first} {second}")
    said = trained.ok(f"%distributed runs delete {first}").out
    (label,) = re.findall(rf"Deleted 1 run: (.*/{first})\.", said)
    gone = trained.run(f"%distributed runs show {label}").said
    none = trained.run(f"%distributed runs delete {second},999").said
    other = trained.run(f"%distributed runs --world nobody delete {second}").said
    empty = trained.run("%distributed runs delete ,").said

    assert "below" in listed
    assert shown[-1].splitlines()[0] == short[-1].splitlines()[0]
    assert f"There is no run {label}" in gone
    assert "999" in none
    assert "--world is an option of %distributed runs alone, and not of %distributed runs delete" in other
    assert "names no run" in empty
    assert trained.ok(f"%distributed runs show {second}").display_texts


def test_a_snapshot_is_shown_and_deleted(trained):
    shown = trained.ok("%distributed snapshots show kept").display_texts[0]
    refused = trained.run("%distributed snapshots delete kept nothing").said
    elsewhere = trained.run("%distributed snapshots --in /tmp delete kept").said
    nobody = trained.run("%distributed load ~nobody-has-this-name/kept").said
    file = trained.run("%distributed snapshots --in /etc/hostname").said
    to = trained.run("%distributed save other x --to ~nobody-has-this-name").said
    still = trained.ok("%distributed snapshots").display_texts[0]
    said = trained.ok("%distributed snapshots delete kept").out

    assert shown.startswith("Snapshot 'kept': saved ")
    assert any(line.split()[0] == "x" for line in shown.splitlines()[1:] if line.strip())
    assert "There is no snapshot 'nothing'" in refused
    assert "--in is an option of %distributed snapshots alone" in elsewhere
    assert "begins with the name of no user" in nobody
    assert "begins with the name of no user" in to
    assert "/etc/hostname cannot be listed: Not a directory" in file
    assert "kept" in still
    assert said.startswith("Deleted 1 snapshot: kept (")
    assert "There is no snapshot 'kept'" in trained.run("%distributed load kept").said


def test_one_rank_restarts_and_the_others_keep_everything(trained):
    """What ``kill 1`` and ``heal`` did; with the cells that make its variables."""
    before = trained.ok("%%distributed -o made\nimport os\nmine = os.getpid()\nmine").display_texts
    number = trained.value("__import__('jupyter_dtrain').current().last_run.number")
    told = trained.ok("%distributed restart -r 1 --replay made")
    after = trained.ok("%%distributed\nmine").display_texts

    assert "Rank 1 has a new process" in told.display_texts[-1]
    assert min(set(before) & set(after)).startswith("[0]")
    assert len(set(before) & set(after)) == 2
    assert "is called" in trained.run(f"%distributed restart --replay {number} {number}").err


def test_a_snapshot_that_is_damaged_can_be_deleted(trained):
    trained.ok("%%distributed\nx = 1")
    trained.ok("%distributed save torn x")
    trained.ok("%distributed save torn x --keep 2")
    code = "from jupyter_dtrain.client.snapshots import snapshots_folder\nprint(snapshots_folder(), end='')"
    folder = Path(trained.ok(code).out) / "torn"
    (folder / "2" / "manifest.json").write_text("garbage")

    assert trained.ok("%distributed snapshots delete torn").out.startswith("Deleted 2 snapshots: torn:1, torn (")
    assert not folder.exists()


def test_a_restart_of_all_ranks_by_their_numbers_is_a_restart(trained):
    trained.ok("%%distributed\ny = 1")
    trained.ok("%distributed restart -r 0-2")

    assert "'y' in globals()" not in trained.ok("%%distributed\nprint('y' in globals())").out
    assert "False" in trained.ok("%%distributed\nprint('y' in globals())").out


def test_a_restart_of_a_rank_kills_nothing_while_others_work(trained):
    trained.ok("%%distributed\nimport os, pathlib, time\nmine = os.getpid()")
    trained.ok("%%rank 0 --no-wait\nwhile not pathlib.Path('enough').exists(): time.sleep(0.01)")
    refused = trained.run("%distributed restart -r 1")
    trained.ok("import pathlib; pathlib.Path('enough').touch()")

    assert "Nothing was killed: rank 0 is still working on run" in refused.said
    assert trained.ok("%%distributed\nprint(mine == os.getpid())").out == "[0-2] True\n"


def test_a_restart_of_a_rank_frees_those_that_wait_for_it(trained):
    """It hangs in a cell of all ranks; their run ends, and then it is replaced."""
    trained.ok("%%distributed\nimport time, torch.distributed as dist\ndist.init_process_group()\nz = 1")
    cell = "%%distributed --no-wait\nif dist.get_rank() == 1: time.sleep(1000)\ndist.barrier()"
    trained.ok(cell)
    told = trained.ok("%distributed restart -r 1")

    assert "Rank 1 has a new process" in told.display_texts[-1]
    assert trained.ok("%%rank 0,2\nprint(z)").out == "[0,2] 1\n"

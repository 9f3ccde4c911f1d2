"""Leftovers of worlds that never were, on this machine: found, and removed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from jupyter_dtrain.launch import leftovers
from jupyter_dtrain.launch.leftovers import MARK, Removal, marked_processes, remove_folders, remove_leftovers
from jupyter_dtrain.watch import own_folders
from tests.preflight.asking import ask
from tests.steward.until import runs, until


def leftovers_of(world, **more):
    """The ids of the leftovers of one world."""
    return [one.pid for one in ask(**more).leftovers if one.world == world]


def test_a_process_of_a_world_without_a_steward_is_a_leftover(orphan, world):
    pid = orphan(world)

    assert leftovers_of(world) == [pid]
    assert leftovers_of(world, living=[world]) == [], "a world that this machine knows to live"


def test_a_world_whose_steward_runs_has_no_leftovers(orphan, world):
    orphan(world)
    orphan(world, "jupyter_dtrain.steward.__main__")

    assert leftovers_of(world) == []


def test_a_notebook_that_was_started_from_a_rank_is_no_leftover(world, monkeypatch):
    """Nor is the probe, which has the mark from it."""
    monkeypatch.setenv(MARK, world)

    assert leftovers_of(world) == []


def test_ranks_below_a_daemon_of_another_machine_are_no_leftovers(tmp_path, world):
    """MPI's daemon keeps them for a steward elsewhere. A rank whose daemon is gone is a leftover."""
    prted = tmp_path / "prted"
    prted.symlink_to("/bin/sh")
    daemon = subprocess.Popen([prted, "-c", "sleep 120; true"], env=os.environ | {MARK: world}, start_new_session=True)
    try:
        [rank] = until(lambda: psutil.Process(daemon.pid).children())
        below = leftovers_of(world)
        daemon.kill()
        daemon.wait()

        assert below == []
        assert leftovers_of(world) == [rank.pid]
    finally:
        os.killpg(daemon.pid, signal.SIGKILL)


def test_leftovers_are_ended_and_no_other_process(orphan, world):
    """Those of the worlds that are named: not those of another dead world, nor of one that lives."""
    pids = [orphan(world), orphan(world)]
    other, living = orphan(f"{world}-other"), orphan(f"{world}-living")
    orphan(f"{world}-living", "jupyter_dtrain.steward.__main__")
    found = remove_leftovers([world, f"{world}-living"])

    assert (sorted(found.ended), found.left) == (sorted(pids), {})
    assert [runs(pid) for pid in pids] == [False, False]
    assert runs(other)
    assert runs(living)
    assert remove_leftovers([world]) == Removal()


@pytest.fixture
def left_folder(tmp_path):
    """Makes a folder as a killed watch leaves it: ``left_folder(world, label=True) -> path``."""
    made = []

    def make(world, *, label=True):
        made.append(Path(tempfile.mkdtemp(prefix=f"dtrain-{world}-")))
        (made[-1] / "run-1").mkdir()
        (made[-1] / "run-1" / "rank-0.jsonl").write_text("output")
        (made[-1] / "link").symlink_to(tmp_path)
        if label:
            own_folders._label(made[-1], world)
        return made[-1]

    yield make
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)


def folders_of(world, **more):
    """The folders that the probe finds, of one world."""
    return [Path(one.path) for one in ask(**more).folders if one.world == world]


def test_a_folder_of_a_dead_world_is_removed_by_its_label(left_folder, world, tmp_path):
    """Its name says nothing. Folders of other worlds stay, and what a link in it leads to."""
    (tmp_path / "kept").touch()
    mine, other, unlabelled = left_folder(world), left_folder(f"{world}-other"), left_folder(world, label=False)

    assert folders_of(world) == [mine]
    assert remove_leftovers([world]) == Removal(removed=[str(mine)])
    assert not mine.exists()
    assert other.exists()
    assert unlabelled.exists()
    assert (tmp_path / "kept").exists()


def test_a_folder_of_a_living_world_stays(left_folder, orphan, world):
    """It lives where this machine knows it, where a watch holds the folder's lock, and while it has a process here."""
    folder = left_folder(world)
    assert folders_of(world, living=[world]) == []
    assert remove_folders([world], [world]) == ([], {})

    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert folders_of(world) == []
    assert remove_folders([world], []) == ([], {})
    os.close(lock)

    pid = orphan(world)
    assert folders_of(world) == [folder]
    assert remove_folders([world], []) == ([], {}), "its process comes first"
    os.kill(pid, signal.SIGKILL)
    until(lambda: not runs(pid))
    assert remove_folders([world], []) == ([str(folder)], {})


def test_a_label_counts_for_one_folder_of_this_user_and_boot(left_folder, world):
    """None of these counts: a copy, a link to the folder, another boot, broken text, a folder of another user."""
    source = left_folder(world)
    label = (source / own_folders.LABEL).read_text()
    copied, rebooted, broken, foreign = (left_folder(world, label=False) for _ in range(4))
    (copied / own_folders.LABEL).write_text(label)
    own_folders._label(rebooted, world)
    told = json.loads((rebooted / own_folders.LABEL).read_text())
    (rebooted / own_folders.LABEL).write_text(json.dumps({**told, "place": "another boot/pid:[1]"}))
    (broken / own_folders.LABEL).write_text("[]")
    if os.getuid() == 0:
        own_folders._label(foreign, world)
        os.chown(foreign, 65534, 65534)
    link = source.with_name(f"{source.name}-link")
    link.symlink_to(source)
    try:
        assert folders_of(world) == [source]
        assert remove_leftovers([world]) == Removal(removed=[str(source)])
        assert all(one.exists() for one in (copied, rebooted, broken, foreign))
    finally:
        link.unlink()


def test_a_process_of_another_user_is_no_leftover(world):
    """Not even for root, who may end it."""
    if os.getuid() != 0:
        pytest.skip("needs root")
    env = os.environ | {MARK: world}
    other = subprocess.Popen(["sleep", "120"], env=env, user=65534, start_new_session=True)
    mine = subprocess.Popen(["sleep", "120"], env=env, start_new_session=True)
    try:
        until(lambda: mine.pid in [one.process.pid for one in marked_processes() if one.world == world])
        assert psutil.Process(other.pid).environ()[MARK] == world
        assert other.pid not in [one.process.pid for one in marked_processes()]
    finally:
        for process in (other, mine):
            process.kill()
            process.wait()


def test_a_process_that_ends_by_itself_is_no_leftover(orphan, world, monkeypatch):
    """A world that is just ending takes a moment."""
    pid = orphan(world)
    assert [one.pid for one in leftovers.processes([]) if one.world == world] == [pid]

    def end(_):
        os.kill(pid, signal.SIGKILL)
        until(lambda: not runs(pid))

    monkeypatch.setattr(leftovers, "time", SimpleNamespace(sleep=end))
    assert [one for one in leftovers.processes([]) if one.world == world] == []

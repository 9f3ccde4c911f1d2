"""What leads to a tracker: merged points, targets, claims, and a sender for TensorBoard that is killed in between."""

from __future__ import annotations

import os
import signal
import sys
import types
from contextlib import closing

import psutil
import pytest

from jupyter_dtrain import BadRequest, Session, TrackFailed
from jupyter_dtrain.core.settings import STORE_VARIABLE, TRACK_VARIABLE
from jupyter_dtrain.launch.options import check
from jupyter_dtrain.launch.starting import find_paths
from jupyter_dtrain.store.schema import open_for_writing
from jupyter_dtrain.trackers.merging import GRACE, PATIENCE, Merger
from jupyter_dtrain.trackers.sender import SendJob
from jupyter_dtrain.trackers.starting import start_sender
from jupyter_dtrain.trackers.state import Claim, Row, TrackedState, add_row, claim, pending, read_state, save
from jupyter_dtrain.trackers.target import check_target, read_target, trackers
from jupyter_dtrain.trackers.tracking import track
from tests.store.conftest import drain, gone_process, points
from tests.store.test_tensorboard import scalars

from .tracked import expected, wait_for


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """TensorBoard reads its files by itself where this module of its own is there; else it imports TensorFlow."""
    assert {"mlflow", "tensorboard", "trackio", "wandb"} <= trackers().keys(), "install this package again"
    name = "tensorboard.compat.notf"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))


def series(values, first=0):
    (found,) = points("loss", values, first).series
    return found


def test_points_of_ranks_are_merged_by_step():
    merger = Merger("loss", None)
    merger.add(0, series([1.0, 2.0, 3.0]), 0.0)
    merger.add(1, series([3.0, 4.0]), 0.0)

    found = merger.take([0, 1], {}, 1.0, 100)

    assert [(point.step, point.told(ranks=False)) for point in found] == [
        (0, {"loss": 2.0, "loss/min": 1.0, "loss/max": 3.0}),
        (1, {"loss": 3.0, "loss/min": 2.0, "loss/max": 4.0}),
    ]
    assert merger.waits
    assert merger.take([0, 1], {}, PATIENCE - 1, 100) == []
    (last,) = merger.take([0], {}, 1.0, 100)  # rank 1 has ended
    assert last.told(ranks=True) == {"loss": 3.0, "loss/rank-0": 3.0}


def test_a_step_waits_for_a_silent_rank_only_until_it_is_heard_of():
    merger = Merger("loss", None)
    merger.add(0, series([1.0]), 0.0)
    assert merger.take([0, 1], {1: 999.0}, 1.0, 100) == []
    assert len(merger.take([0, 1], {1: 1002.0}, 1.0, 100)) == 1
    merger.add(0, series([2.0], first=1), 0.0)
    assert merger.take([0, 1], {}, GRACE - 1, 100) == []
    assert len(merger.take([0, 1], {}, GRACE + 1, 100)) == 1


def test_points_before_the_position_are_not_sent_again():
    merger = Merger("loss", (1, 0, 0))  # the second turn has begun
    for turn in range(2):
        merger.add(0, series([10.0 * turn, 10.0 * turn + 1]), 0.0)
    assert [(point.place, point.values) for point in merger.take([], {}, 1.0, 100)] == [((1, 1, 0), {0: 11.0})]


@pytest.mark.parametrize(
    ("text", "tracker", "where", "flags"),
    [
        ("wandb", "wandb", "", set()),
        ("wandb:team/cnn?offline&ranks", "wandb", "team/cnn", {"offline", "ranks"}),
        ("mlflow?ranks", "mlflow", "", {"ranks"}),
        ("mlflow:http://host:5000/x?a=b", "mlflow", "http://host:5000/x?a=b", set()),
    ],
)
def test_targets_are_read(text, tracker, where, flags):
    found = read_target(text)
    assert (found.tracker, found.where, found.flags) == (tracker, where, flags)
    assert read_target(found.text) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no tracker"),
        ("Über:x", "names no tracker"),
        ("nothing:x", "There is no tracker 'nothing'. Installed are: "),
        ("mlflow:http://me:secret@host", "has a password in its address"),
        ("tensorboard", "Give TensorBoard a folder"),
    ],
)
def test_a_target_that_cannot_be_says_so(text, words):
    with pytest.raises(BadRequest, match=words) as caught:
        check_target(text)
    assert "secret" not in str(caught.value)


def test_a_library_that_is_missing_is_told_before_a_world_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(BadRequest, match=r"trackio is not installed here: pip install trackio"):
        Session.start(n=1, track="trackio:x")


def test_tensorboard_as_a_tracker_is_the_option_for_it(tmp_path, monkeypatch):
    wanted = f"tensorboard:{tmp_path}/boards"
    options = find_paths(check({"track": wanted}).world)
    assert (options.tensorboard, options.track) == (f"{tmp_path}/boards", None)
    monkeypatch.setenv(TRACK_VARIABLE, wanted)
    assert find_paths(check({}).world).tensorboard == f"{tmp_path}/boards"


def test_one_process_at_a_time_has_a_run(fake, db):
    fake.begin(1)
    drain(fake.writer, db)
    row = Row(1, "mlflow", "")
    add_row(db, row)
    state, before = claim(db, row)
    assert (state.again, before) == (False, 0)
    state.sent["loss"] = (0, 7, 0)
    for process in (gone_process(), (os.getppid(), 0.0)):  # the second one's id belongs to another process now
        state.claim = Claim(fake.host, *process, 0.0)
        save(db, row, state)
        found, before = claim(db, row)
        assert (found.again, before, found.sent) == (True, process[0], {"loss": (0, 7, 0)})
    parent = psutil.Process(os.getppid())
    state.claim = Claim(fake.host, parent.pid, parent.create_time(), 0.0)
    save(db, row, state)
    assert claim(db, row) is None  # it lives
    save(db, row, TrackedState(), done=True)
    assert claim(db, row) is None
    add_row(db, row)  # asked for again
    assert claim(db, row) is not None


def test_a_damaged_position_is_sent_again_with_care():
    assert read_state('{"sent": 3}') == TrackedState(again=True)


def test_rests_are_those_of_worlds_that_are_over(make_world, db):
    for world, over in ((make_world(name="living"), False), (make_world(name="gone", owner=gone_process()), True)):
        world.begin(1)
        world.finish(1)
        drain(world.writer, db)
        (run,) = db.execute("SELECT max(id) FROM runs").fetchone()
        add_row(db, Row(run, "mlflow", "over" if over else "living"))
    assert pending(db) == [("mlflow", "over")]


def test_a_sender_that_is_killed_writes_tensorboards_file_anew(fake, db, store, tmp_path):
    """It follows the run of a world to its end, and ends with the world."""
    target = check_target(f"tensorboard:{tmp_path}/boards")
    job = SendJob(str(store.path), target.text, fake.owner.id)
    fake.begin(1)
    fake.say(1, 0, points("loss", [float(step) for step in range(300)]))
    fake.say(1, 1, points("loss", [float(step) for step in range(100)]))
    drain(fake.writer, db)
    process = start_sender(job)
    try:
        wait_for(lambda: sent_until(store) == 99)  # as far as both ranks are
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        fake.say(1, 1, points("loss", [float(step) for step in range(100, 300)], first=100))
        fake.finish(1)
        fake.begin(2, "print(1)")  # logs nothing
        fake.finish(2)
        drain(fake.writer, db)
        process = start_sender(job)
        wait_for(lambda: db.execute("SELECT run FROM tracked WHERE done").fetchall() == [(1,)])
        assert process.poll() is None  # the world may have more runs
        fake.writer.close(db, "over")
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
    assert db.execute("SELECT run, words, done FROM tracked").fetchall() == [(1, "", 1)]
    (folder,) = (tmp_path / "boards").glob("*/*")
    assert scalars(folder) == expected(store, 1)


def sent_until(store):
    with closing(open_for_writing(store.path)) as db:
        row = db.execute("SELECT state FROM tracked").fetchone()
    return None if row is None else read_state(row[0]).sent.get("loss", (0, -1, 0))[1]


def test_a_run_that_a_tracker_does_not_take_says_why(fake, db, store, tmp_path, monkeypatch):
    monkeypatch.setenv(STORE_VARIABLE, str(store.path))
    fake.begin(1)
    fake.say(1, 0, points("loss", [1.0]))
    fake.finish(1)
    drain(fake.writer, db)
    folder = tmp_path / "boards"
    target = f"tensorboard:{folder}"
    folder.mkdir()
    world = folder / fake.owner.id
    world.write_text("in the way")

    with pytest.raises(TrackFailed, match=r"TensorBoard does not take run world/1: .*directory"):
        track("world/1", target)

    assert db.execute("SELECT count(*) FROM tracked").fetchone() == (0,)  # no later process tries it
    world.unlink()
    track("world/1", target)
    assert scalars(next(folder.glob("*/*"))) == {"loss": [(0, 1.0)]}

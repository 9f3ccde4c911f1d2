"""Snapshots without any framework: what is saved and loaded, what is refused, and what is left when saving fails."""

from __future__ import annotations

import os
import shutil

import pytest

from jupyter_dtrain import BadRequest, DistributedError, snapshots
from jupyter_dtrain.core.snapshots import MANIFEST, SnapshotRefused, explain_no_room, newest, numbers
from tests.session.cells import load_soon, run, same, values

FRESH_WORLD = True

PREPARE = """
import os
rank = int(os.environ["RANK"])

class Model:
    def __init__(self, weight):
        self.weight = weight

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight = state["weight"]

model = Model([float(rank)] * 3)
epoch = 7
mine = {"rank": rank}
"""


@pytest.fixture
def saved(world, snapshot_folder):
    """Three ranks, and the snapshot ``first`` of them."""
    run(world, PREPARE)
    world.save("first", ["model", "epoch", "mine"])
    return snapshot_folder


@pytest.mark.here("the snapshots' folder must be shared")
class TestSnapshots:
    """All need a folder that test and ranks see."""

    @pytest.mark.usefixtures("saved")
    def test_variables_come_back_and_an_object_with_a_state_stays_the_same_object(self, world):
        """Each rank gets its own."""
        run(world, "model.weight = None; epoch = 0; mine = None; before = id(model)")

        answer = world.load("first")

        assert sorted(answer.names) == ["epoch", "mine", "model"]
        got = values(run(world, "(model.weight, epoch, mine, id(model) == before)"))
        assert got == {rank: ([float(rank)] * 3, 7, {"rank": rank}, True) for rank in range(3)}
        assert next((one.name, one.ranks, one.ours) for one in world.snapshots) == ("first", 3, True)

    @pytest.mark.usefixtures("saved")
    def test_some_variables_can_be_chosen(self, world):
        """The others stay; one that was not saved is refused with the names that were."""
        run(world, "epoch = 0; mine = 'other'")
        world.load("first", ["epoch"])
        assert values(run(world, "(epoch, mine)")) == same((7, "other"))
        with pytest.raises(DistributedError, match=r"nothing not in the snapshot, which has model, epoch, mine"):
            world.load("first", ["nothing"])

    @pytest.mark.usefixtures("saved")
    def test_a_state_that_one_rank_cannot_take_fails_on_all_ranks(self, world):
        """Those that could take theirs do not wait for it."""
        run(world, "Model.load_state_dict = lambda self, _: 1 / (rank - 1)")
        with pytest.raises(DistributedError) as caught:
            load_soon(world, "first")
        words = "The load ended in the middle, so load again or make the variables anew. Rank 1: ZeroDivisionError"
        assert [error.evalue.startswith(words) for error in caught.value.run.errors.values()] == [True] * 3
        run(world, PREPARE)
        assert load_soon(world, "first").names == ["model", "epoch", "mine"]

    def test_a_newer_one_replaces_an_older_one_of_its_name(self, world, saved):
        """One folder is left, which only this user can read."""
        run(world, "epoch = 8")
        world.save("first", ["epoch"])
        assert len(numbers(saved / "first")) == 1
        place = newest(saved, "first")
        assert {file.stat().st_mode & 0o077 for file in place.rglob("*")} == {0}
        world.load("first")
        assert values(run(world, "epoch")) == same(8)

    def test_several_of_a_name_can_be_kept_and_each_loaded_by_its_number(self, world, saved):
        """The oldest goes; without the option, all but the newest go."""
        for epoch in range(4):
            run(world, f"epoch = {epoch}")
            world.save("several", ["epoch"], keep=3)
        found = [one.reference for one in snapshots() if one.name == "several"]
        assert found == ["several", "several:3", "several:2"]
        world.load("several:2")
        assert values(run(world, "epoch")) == same(1)
        world.load("several")
        assert values(run(world, "epoch")) == same(3)
        with pytest.raises(BadRequest, match=r"no snapshot several:1 in .*, only several:2, several:3, several:4\."):
            world.load("several:1")

        next(one for one in snapshots() if one.reference == "several:3").delete()
        assert numbers(saved / "several") == [2, 4]
        world.save("several", ["epoch"])
        assert numbers(saved / "several") == [5]

    @pytest.mark.usefixtures("saved")
    def test_another_folder_can_be_chosen_and_is_named_again(self, world, tmp_path):
        """For loads, lists and restarts; the usual folder is left alone."""
        run(world, "epoch = 9")
        world.save("first", ["epoch"], to=tmp_path / "far")
        assert [one.reference for one in snapshots(tmp_path / "far")] == ["first"]
        world.load("first")
        assert values(run(world, "epoch")) == same(7)
        world.load(f"{tmp_path}/far/first")
        assert values(run(world, "epoch")) == same(9)

    def test_what_does_not_fit_on_the_disk_is_not_begun(self, tmp_path):
        """Its size is known before the first file is written."""
        free = shutil.disk_usage(tmp_path).free
        (tmp_path / "home").mkdir()
        part = tmp_path / "home" / "part"
        part.mkdir()
        assert explain_no_room(part, 1000, 3) == ("", "")
        problem, note = explain_no_room(part, 2 * free, 1)
        assert "MB left, and this takes" in problem
        assert not note
        problem, note = explain_no_room(part, int(0.7 * free), 1)
        assert not problem
        assert "has no room for the next one" in note
        assert "has no room for 10 of them" in explain_no_room(part, int(0.2 * free), 10)[1]

    def test_a_changed_file_is_refused_unless_it_is_trusted(self, world, saved):
        """Before anything is unpickled or changed: each file, the manifest, and a file that is gone."""
        run(world, "epoch = 1")
        place = newest(saved, "first")
        file = place / "rank-1" / "epoch.pickle"
        before = file.read_bytes()
        file.write_bytes(before[:-2] + b"\x09" + before[-1:])
        with pytest.raises(DistributedError, match=r"Refused: Nothing was loaded: rank-1/epoch\.pickle was changed"):
            world.load("first")
        assert values(run(world, "epoch")) == same(1)
        file.unlink()
        with pytest.raises(DistributedError, match="cannot be read"):
            world.load("first")
        file.write_bytes(before)
        manifest = place / MANIFEST
        manifest.write_bytes(manifest.read_bytes().replace(b'"size":3', b'"size":2'))
        with pytest.raises(SnapshotRefused, match="--trust"):
            world.load("first")
        assert not world.snapshots[0].ours
        manifest.write_bytes(manifest.read_bytes().replace(b'"size":2', b'"size":3'))
        world.load("first", trust=True)
        assert values(run(world, "epoch")) == same(7)

    @pytest.mark.usefixtures("saved")
    def test_another_key_refuses_it(self, world, tmp_path, monkeypatch):
        """As another user's, or another machine's."""
        monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
        with pytest.raises(SnapshotRefused, match="not signed with your key"):
            world.load("first", ["epoch"])
        world.load("first", ["epoch"], trust=True)
        assert (tmp_path / "dtrain" / "snapshot-key").stat().st_mode & 0o777 == 0o600

    def test_a_failure_to_save_changes_nothing(self, world, saved):
        """A name that is missing, a value that cannot be pickled, no name at all, a name that is a path."""
        run(world, "import threading; lock = threading.Lock()\nif rank == 1: here = 1")
        before = newest(saved, "first")
        with pytest.raises(DistributedError, match=r"Nothing was saved\. Ranks 0,2: here is not defined"):
            world.save("first", ["here"])
        with pytest.raises(DistributedError, match=r"Nothing was saved\. Ranks 0-2: .*'lock' cannot be saved"):
            world.save("first", ["epoch", "lock"])
        with pytest.raises(BadRequest, match="Name the variables"):
            world.save("first", [])
        with pytest.raises(BadRequest, match="cannot name a snapshot"):
            world.save("../first", ["epoch"])
        with pytest.raises(BadRequest, match=r"There is no snapshot 'second' in .*, only first"):
            world.load("second")
        assert newest(saved, "first") == before
        assert [one.name for one in (saved / "first").iterdir()] == [before.name]

    def test_a_folder_that_cannot_be_written_is_named(self, world, snapshot_folder, monkeypatch):
        """Here a file stands in its place."""
        (snapshot_folder / "file").write_text("")
        monkeypatch.setenv("DTRAIN_SNAPSHOTS", str(snapshot_folder / "file"))
        run(world, "epoch = 7")
        with pytest.raises(DistributedError, match=r"Nothing was saved: .*file cannot be written"):
            world.save("first", ["epoch"])

    def test_a_file_without_an_end_is_refused_unread(self, world, saved):
        """A link to a device, or a pipe, in the place of a file, with and without trust; and of the manifest."""
        place = newest(saved, "first")
        file, manifest = place / "rank-1" / "epoch.pickle", place / MANIFEST
        before = file.read_bytes(), manifest.read_bytes()
        for make in (lambda one: one.symlink_to("/dev/zero"), os.mkfifo):
            file.unlink()
            make(file)
            for trust in (False, True):
                with pytest.raises(DistributedError, match=r"epoch\.pickle (cannot be read|is no regular file)"):
                    load_soon(world, "first", trust=trust)
            manifest.unlink()
            make(manifest)
            assert "first" not in [one.name for one in world.snapshots]
            with pytest.raises(SnapshotRefused, match="holds no whole snapshot"):
                world.load("first")
            for one, content in zip((file, manifest), before, strict=True):
                one.unlink()
                one.write_bytes(content)
        assert load_soon(world, "first", names=["epoch"]).names == ["epoch"]

    def test_a_folder_that_a_rank_does_not_see_is_left_as_it_was(self, world, tmp_path, monkeypatch):
        """Each process has a path of its own below /proc/self, as hosts have that share no disk."""
        monkeypatch.setenv("DTRAIN_SNAPSHOTS", "/proc/self/cwd/snapshots")
        run(world, f"import os; place = os.getcwd(); epoch = 1; os.chdir({str(tmp_path)!r})", 0)
        run(world, "epoch = 1", [1, 2])
        try:
            with pytest.raises(DistributedError, match="Ranks 1-2: this host does not see"):
                world.save("unseen", ["epoch"])
        finally:
            run(world, "os.chdir(place)", 0)
        assert list((tmp_path / "snapshots").iterdir()) == []

    def test_names_of_snapshots_have_one_limit(self, world):
        """The run that saves one has a shorter name where it must."""
        run(world, "epoch = 7")
        world.save("long-" + "x" * 95, ["epoch"])
        assert world.load("long-" + "x" * 95).names == ["epoch"]
        with pytest.raises(BadRequest, match="is too long to name a snapshot: use at most 100 characters"):
            world.save("long-" + "x" * 96, ["epoch"])
        with pytest.raises(DistributedError, match="is not defined"):
            world.diff(".".join(["epoch"] * 20))

    def test_a_data_folder_that_cannot_be_written_is_named(self, world, monkeypatch):
        """To list snapshots makes no key."""
        monkeypatch.setenv("JUPYTER_DATA_DIR", "/proc/nowhere")
        run(world, "epoch = 7")
        with pytest.raises(BadRequest, match=r"cannot be kept in /proc/nowhere/dtrain .*: set JUPYTER_DATA_DIR"):
            world.save("first", ["epoch"])
        assert not any(one.ours for one in world.snapshots)

    def test_a_half_written_one_is_never_loaded(self, world, saved):
        """A folder without a manifest is no snapshot, whatever its number."""
        (saved / "first" / "999").mkdir()
        (saved / "first" / "999" / "rank-0.pickle").write_bytes(b"half")
        run(world, "epoch = 0")
        world.load("first", ["epoch"])
        assert values(run(world, "epoch")) == same(7)
        (saved / "first" / "999" / "rank-0.pickle").unlink()
        (saved / "first" / "999").rmdir()

    @pytest.mark.usefixtures("saved")
    def test_after_a_restart_what_needs_an_object_waits_for_it(self, world):
        """Plain variables come at once."""
        world.restart()
        answer = world.load("first", ready=True)
        assert (sorted(answer.names), answer.waiting) == (["epoch", "mine"], ["model"])
        with pytest.raises(DistributedError, match="make model first"):
            world.load("first")
        run(world, PREPARE.replace("float(rank)", "-1.0"))
        world.load("first")
        assert values(run(world, "model.weight[0]")) == {0: 0.0, 1: 1.0, 2: 2.0}

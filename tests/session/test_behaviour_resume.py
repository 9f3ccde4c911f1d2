"""Trainings that go on with another run: by its name, or because a snapshot of it was loaded."""

from __future__ import annotations

import pytest

from jupyter_dtrain import BadRequest
from jupyter_dtrain.store import Store
from tests.session.cells import run, values

FRESH_WORLD = True

TRAIN = """
import jupyter_dtrain
for turn in range({}):
    jupyter_dtrain.log(loss=1 / (turn + 1))
"""


def steps(found, name="loss"):
    """The steps that rank 0 has logged."""
    return list(found.metrics[name][0].steps)


@pytest.mark.here("the snapshots' folder must be shared")
class TestResuming:
    """All need a folder that test and ranks see."""

    def test_a_run_goes_on_from_the_last_step_of_the_one_that_it_names(self, world):
        """On all ranks; the store knows it, and rank 0 says it once. Explicit steps stay."""
        first = run(world, TRAIN.format(3), group="sweep")
        second = run(world, TRAIN.format(2) + "jupyter_dtrain.log(own=1, step=1)", resume=first.number)
        stored = Store.open().run_of(second)

        assert [list(second.metrics["loss"][rank].steps) for rank in range(3)] == [[3, 4]] * 3
        assert steps(second, "own") == [1]
        assert (stored.resumes, stored.first_step) == (Store.open().run_of(first).id, 3)
        assert (Store.open().run_of(first).group, stored.group) == ("sweep", "")
        assert f"goes on with run {world.name}/{first.number}, from step 3 on" in second.text(0)
        assert second.text(1) == ""

    def test_a_run_that_is_not_there_or_has_logged_nothing_is_refused_before_anything_is_sent(self, world):
        """With words that name the way on."""
        quiet = run(world, "x = 1")

        with pytest.raises(BadRequest, match="There is no run nowhere/7"):
            run(world, "1", resume="nowhere/7")
        with pytest.raises(BadRequest, match="has logged no metric"):
            run(world, "1", resume=quiet.number)
        with pytest.raises(BadRequest, match="one line"):
            run(world, "1", group="x" * 61)
        assert world.last_run is quiet

    @pytest.mark.usefixtures("snapshot_folder")
    def test_the_first_training_after_a_load_goes_on_with_the_run_that_trained_the_snapshot(self, world):
        """Cells that train nothing are not in the way; the next training begins anew, and so does one that asks to."""
        first = run(world, TRAIN.format(4) + "weight = 7")
        world.save("one", ["weight"])
        run(world, TRAIN.format(9))
        world.load("one")
        between = run(world, "weight")
        second = run(world, TRAIN.format(2))
        third = run(world, TRAIN.format(2))
        world.load("one")
        anew = run(world, TRAIN.format(2), resume="none")
        store = Store.open()

        assert set(values(between).values()) == {7}
        assert store.run_of(between).resumes is None
        assert steps(second) == [4, 5]
        assert store.run_of(second).resumes == store.run_of(first).id
        assert steps(third) == steps(anew) == [0, 1]
        between_them = [store.run(f"{world.name}/{number}") for number in range(first.number, anew.number)]
        own = [one.source for one in between_them if one.aside]
        assert len(own) == 3  # a list of runs leaves them out
        assert all("snapshot_cells" in one for one in own)
        assert store.run_of(third).resumes is store.run_of(anew).resumes is None

    def test_a_snapshot_that_was_saved_in_the_middle_of_a_cell_knows_its_step(self, world):
        """A rank names the run and the step itself: no client knows them then."""
        answer = run(
            world,
            "from jupyter_dtrain.core.snapshots import SnapshotOrder\n"
            "from jupyter_dtrain.rank.rank_context import rank_home\n"
            + TRAIN.format(6)
            + "order = rank_home().step_work.placed(SnapshotOrder('a', [], '', b'', 'w'))\n"
            "(order.run, order.next_step)",
        )

        assert set(values(answer).values()) == {(answer.number, 6)}

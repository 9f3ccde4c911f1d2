"""A session's scheduler, with a channel and a steward that only keep what they are asked: the test is the ranks."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from jupyter_dtrain import Settings
from jupyter_dtrain.client.run_scheduler import RunScheduler
from jupyter_dtrain.client.submitted_run import SubmittedRun
from jupyter_dtrain.core.events import Batch, Event, Finished, Output, PromptClosed, PromptOpened, Started
from jupyter_dtrain.core.world import AddressedRank, AddressedWorld
from jupyter_dtrain.wire.messages import to_content
from jupyter_dtrain.wire.spool import Spool, spool_path
from tests.machines import Steward as Keeping
from tests.steward.until import until


class Channel:
    """Keeps the cells that a session sends to ranks."""

    def __init__(self):
        self.cells = []
        """``(rank, run)``, in order."""

    def run(self, engine, cell, _pickles):
        """A cell for a rank."""
        self.cells.append((int(engine), cell.run))

    def ask(self, *_):
        """No rank answers."""
        return Future()


class Steward(Keeping):
    """The steward of a session that drives."""

    drives = True

    def renew_soon(self):
        """Nothing was missed."""

    def advance(self, run):
        """A new generation after each run."""
        self._do("advance", run)
        return run


@pytest.fixture
def scene(tmp_path):
    """The scheduler of a world with four ranks."""

    class Scene:
        def __init__(self):
            self.channel = Channel()
            self.steward = Steward(lambda: 100.0)
            self.ended = []
            self.scheduler = RunScheduler(
                Settings(), self.steward, lambda run: self.ended.append((run.number, run.outcome))
            )

        def settle(self):
            """Everything posted before is done."""
            self.scheduler._call(lambda: None)

        def hear(self, batch):
            """A rank announces something."""
            self.scheduler.hear(to_content(batch))

    ranks = [AddressedRank(rank, 0, "here", rank, "cpu", 1000 + rank, engine=str(rank)) for rank in range(4)]
    scene = Scene()
    scene.scheduler.bind(AddressedWorld("world", "id", ranks), scene.channel, str(tmp_path))
    yield scene
    scene.scheduler.close()


@pytest.fixture
def submit(scene, make_run):
    """``submit(number, ranks, …)``: a run that was given to the scheduler."""

    def make(number, ranks=(0, 1), **options):
        submitted = SubmittedRun(make_run(number, ranks), **options)
        scene.scheduler.submit(submitted)
        return submitted.run

    return make


def test_a_cell_goes_out_at_once_and_ends_with_its_last_rank(scene, submit, said, finished):
    run = submit(1)
    scene.settle()
    assert scene.channel.cells == [(0, 1), (1, 1)]
    assert scene.scheduler.busy() == {0: 1, 1: 1}
    scene.hear(said("a\n"))
    scene.hear(finished(seq=1))
    scene.settle()
    assert (run.outcome, scene.scheduler.busy()) == ("running", {1: 1})
    scene.hear(finished(rank=1))

    assert run.wait(5)
    assert (run.outcome, run.text(0), scene.ended, scene.scheduler.busy()) == ("ok", "a\n", [(1, "ok")], {})
    assert scene.steward.times("advance") == []


def test_a_run_that_joins_another_is_shown_to_its_end_and_counted_there(scene, submit):
    """Its ranks may say everything in one batch."""

    class View(SimpleNamespace):
        def feed(self, batch, _now):
            self.seen += [type(event.body).__name__ for event in batch.events]

        def idle(self, rank, _now):
            self.seen.append(rank)

        def tick(self, _now):
            pass

        def close(self, *_):
            self.seen.append("close")

    view = View(seen=[])
    first = submit(1, (0,), elastic=True)
    joined = submit(2, (1,), view=view, joins=1)
    said = [Started(1, "here", "", joins=1), Output("stdout", "x"), Finished("ok", 0.1)]
    scene.hear(Batch(2, 1, 0, 2, [Event(2, 1, seq, 0.0, body) for seq, body in enumerate(said)]))

    assert joined.wait(5)
    assert view.seen == ["Started", "Output", "Finished", 1, "close"]
    assert first.joined == [joined]


def test_a_queued_cell_goes_out_when_its_ranks_are_free(scene, submit, finished):
    """One for other ranks does not wait."""
    first, second, other = submit(1), submit(2, (1, 2)), submit(3, (3,))
    scene.settle()
    assert scene.channel.cells == [(0, 1), (1, 1), (3, 3)]
    for rank in (0, 1):
        scene.hear(finished(rank=rank))
    assert first.wait(5)
    scene.settle()

    assert scene.channel.cells[3:] == [(1, 2), (2, 2)]
    assert [second.outcome, other.outcome] == ["running", "running"]


def test_a_cell_queued_behind_a_failed_one_never_goes_out(scene, submit, finished):
    """It says why; the ranks make their groups anew where some are unusable."""
    first, second = submit(1), submit(2)
    scene.hear(finished(rank=0, outcome="error"))
    broken = finished(rank=1)
    broken.events[0] = Event(1, 1, 0, 0.0, Finished("error", 0.1, regroup=True))
    scene.hear(broken)

    assert first.wait(5)
    assert second.wait(5)
    assert second.not_sent == "run 1, which it was queued behind, ended with: error"
    assert scene.channel.cells == [(0, 1), (1, 1)]
    assert [what for _, what, _ in scene.steward.did] == ["advance"]


def test_a_rank_that_dies_takes_its_part_of_the_cell_along(scene, submit, finished):
    """Its last events come with the news; a cell for it that is still queued is refused with the words."""
    first, second = submit(1), submit(2, (0,))
    last = [Event(1, 0, 0, 0.0, Finished("error", 0.1))]
    scene.scheduler.rank_died(1, "rank 1 was killed (SIGKILL)", [])
    scene.settle()
    assert (first.outcome, first.unfinished) == ("running", [0])
    scene.scheduler.rank_died(0, "rank 0 received SIGTERM", last)

    assert first.wait(5)
    assert second.wait(5)
    assert (first.outcomes, first.lost) == ({0: "error", 1: "lost"}, {1: "rank 1 was killed (SIGKILL)"})
    assert scene.ended == [(1, "lost"), (2, "interrupted")]


def test_a_run_ends_under_the_numbers_that_it_began_with(scene, submit, finished, tmp_path):
    """A client is late: ranks got other numbers. It reads the rest from the spools; later cells use the new ones."""
    run = submit(1, (0, 1, 2, 3))
    scene.settle()
    for rank, last in enumerate(("ok", "ok", "ok", None)):
        spool = Spool(spool_path(tmp_path, 1, rank))
        spool.append(Event(1, rank, 0, 0.0, Output("stdout", f"of {rank}\n")))
        if last:
            spool.append(Event(1, rank, 1, 0.0, Finished(last, 0.1)))
        spool.close()
    moved = [AddressedRank(rank, 0, "here", rank, "cpu", 1001 + rank, engine=str(rank + 1)) for rank in (1, 2)]
    scene.hear(finished(rank=0))
    scene.scheduler.rank_died(1, "rank 1 was killed (SIGKILL), by %distributed resize", [])
    scene.scheduler.ranks_replaced(moved, 3)

    assert run.wait(5)
    assert run.outcomes == {0: "ok", 1: "ok", 2: "ok", 3: "lost"}
    assert [run.text(rank) for rank in (1, 2, 3)] == ["of 1\n", "of 2\n", "of 3\n"]
    assert run.lost == {3: "rank 3 is another process since %distributed resize"}
    later = submit(2, (1, 2))
    scene.settle()
    assert scene.channel.cells[4:] == [(2, 2), (3, 2)]
    assert later.unfinished == [1, 2]


def test_a_cell_for_a_dead_rank_is_not_sent(scene, submit):
    """The others would wait for it."""
    scene.scheduler.rank_died(1, "rank 1 is gone", [])
    run = submit(1)

    assert run.wait(5)
    assert (run.outcome, run.not_sent, scene.channel.cells) == ("lost", "rank 1 is gone", [])


def test_an_interrupt_ends_queued_cells_and_leaves_newer_ones(scene, submit):
    """``last`` is the newest that its sender knew."""
    first, second = submit(1), submit(2)
    scene.settle()
    scene.scheduler.interrupt(last=1)
    assert second.wait(5)
    third = submit(3, (2,))
    scene.settle()
    scene.scheduler.interrupt(last=1)
    scene.settle()

    assert second.not_sent == "interrupted while it was queued"
    assert (first.interrupted, third.interrupted) == (True, False)


def test_a_cell_has_its_own_time(scene, submit):
    """When that time is over, the cell is interrupted as by Stop."""
    run = submit(1, timeout=0.01)

    assert until(lambda: run.interrupted)
    assert (run.timed_out, run.unfinished) == (True, [0, 1])


def test_its_time_stands_still_while_a_rank_asks_a_person(scene, make_run):
    """It goes on with the answer, from where it stood."""
    submitted = SubmittedRun(make_run(1, (0, 1)), timeout=100.0)
    scene.scheduler.submit(submitted)
    scene.hear(Batch(1, 0, 0, 0, [Event(1, 0, 0, 0.0, PromptOpened(1, "input", "token? "))]))
    scene.settle()
    later = time.monotonic() + 1000.0
    scene.scheduler._call(lambda: submitted.tick(later))
    assert not submitted.run.interrupted
    scene.hear(Batch(1, 0, 1, 1, [Event(1, 0, 1, 0.0, PromptClosed(1))]))
    scene.settle()
    scene.scheduler._call(lambda: submitted.tick(time.monotonic() + 90.0))
    assert not submitted.run.interrupted
    scene.scheduler._call(lambda: submitted.tick(later))

    assert submitted.run.timed_out


def test_everything_ends_with_its_world(scene, submit):
    """Queued cells never go out, later ones are lost at once, and a new world takes cells again."""
    first, second = submit(1), submit(2)
    scene.scheduler.world_lost("the steward is gone")
    late = submit(3)

    assert all(run.wait(5) for run in (first, second, late))
    assert first.lost == {rank: f"rank {rank} is lost: the steward is gone" for rank in (0, 1)}
    assert [run.outcome for run in (first, second, late)] == ["lost", "interrupted", "lost"]
    ranks = [AddressedRank(rank, 0, "here", rank, "cpu", 2000 + rank, engine=str(rank)) for rank in range(4)]
    scene.scheduler.bind(AddressedWorld("world", "id", ranks), scene.channel, "")
    submit(4)
    scene.settle()
    assert scene.channel.cells[-2:] == [(0, 4), (1, 4)]


def test_what_ranks_have_said_counts_when_their_world_is_lost(scene, submit, tmp_path):
    """Their announcements are under way; the store has read the same file. No cell goes to a world that is gone."""
    first, second, third = submit(1, (0, 1)), submit(2, (2, 3)), submit(3, (2,))
    scene.settle()
    for run, rank in ((1, 0), (2, 2), (2, 3)):
        spool = Spool(spool_path(tmp_path, run, rank))
        spool.append(Event(run, rank, 0, 0.0, Output("stdout", f"of {rank}\n")))
        spool.append(Event(run, rank, 1, 0.0, Finished("ok", 0.1)))
        spool.close()
    scene.scheduler.world_lost("its world was stopped")

    assert all(run.wait(5) for run in (first, second, third))
    assert [run.outcomes for run in (first, second, third)] == [{0: "ok", 1: "lost"}, {2: "ok", 3: "ok"}, {2: "lost"}]
    assert [first.text(0), first.lost] == ["of 0\n", {1: "rank 1 is lost: its world was stopped"}]
    assert scene.channel.cells == [(0, 1), (1, 1), (2, 2), (3, 2)]


def test_a_message_that_cannot_be_taken_ends_nothing(scene, submit, finished, caplog):
    """It is logged; so is a task that raises."""
    run = submit(1)
    scene.scheduler.hear({"run": "one"})
    for rank in (0, 1):
        scene.hear(finished(rank=rank))

    assert run.wait(5)
    assert run.outcome == "ok"
    assert "A message could not be taken" in caplog.text

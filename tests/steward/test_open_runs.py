"""The spools of ranks show which runs go on."""

from __future__ import annotations

import pytest

from jupyter_dtrain.core.events import Event, Finished, Output, Started
from jupyter_dtrain.core.world import format_ranks
from jupyter_dtrain.steward.open_runs import OpenRuns
from jupyter_dtrain.wire.spool import Spool, spool_path
from jupyter_dtrain.wire.steward_messages import Followed


class Scene:
    """A world's spools."""

    def __init__(self, folder):
        self.folder = folder
        self.runs = OpenRuns(str(folder))
        self.ranks = {}

    def begin(self, run, rank, ranks=None):
        """The first event; ``ranks`` run it, by default those of the rank that began before."""
        ranks = self.ranks.setdefault(run, ranks)
        spool = Spool(spool_path(self.folder, run, rank))
        told = ranks if rank == min(ranks) else []
        body = Started(1, "host", "", source="x" if told else "", ranks=told, together=format_ranks(ranks))
        spool.append(Event(run, rank, 0, 0.0, body))
        return spool

    def end(self, spool, run, rank):
        """The last event."""
        spool.append(Event(run, rank, 1, 0.0, Output("stdout", "x")))
        spool.append(Event(run, rank, 2, 0.0, Finished("ok", 0.1)))

    def look(self, dead=()):
        """Each run and the ranks that work on it."""
        return [(run.run, run.working) for run in self.runs.look(dead)]


@pytest.fixture
def scene(tmp_path):
    """A world in which no cell has run."""
    return Scene(tmp_path)


def test_several_runs_go_on_at_once(scene):
    """They go on until their own ranks have ended them."""
    first, second = scene.begin(1, 0, [0]), scene.begin(2, 1, [1])
    assert scene.look() == [(1, [0]), (2, [1])]
    scene.end(second, 2, 1)
    assert scene.look() == [(1, [0])]
    scene.end(first, 1, 0)

    assert scene.look() == []
    assert scene.runs.newest().run == 2


def test_a_rank_may_begin_late(scene):
    """Another has ended the run by then, and there is a newer run."""
    scene.end(scene.begin(1, 0, [0, 1]), 1, 0)
    scene.begin(2, 2, [2])
    assert scene.look() == [(2, [2])]
    scene.begin(1, 1)

    assert scene.look() == [(1, [1]), (2, [2])]


def test_the_lowest_rank_may_begin_last(scene):
    """All ranks of the run are known, from any of them, and so is that it is not over."""
    scene.end(scene.begin(1, 1, [0, 1]), 1, 1)
    scene.begin(2, 2, [1, 2])

    assert [(run.ranks, run.working) for run in scene.runs.look()] == [([1, 2], [2])]
    assert scene.runs.newest().ranks == [1, 2]
    scene.begin(1, 0)
    assert scene.look() == [(1, [0]), (2, [2])]


def test_a_run_whose_folder_is_there_and_no_event_yet(scene):
    """It is not taken for one that has ended."""
    (scene.folder / "run-1").mkdir()
    assert scene.look() == []
    scene.begin(1, 0, [0])

    assert scene.look() == [(1, [0])]


def test_a_rank_works_on_its_newest_run_alone(scene):
    """The log of an older run may lack its end."""
    scene.begin(1, 0, [0, 1])
    scene.begin(1, 1)
    scene.begin(2, 0, [0])

    assert scene.look() == [(1, [1]), (2, [0])]


def test_the_dead_work_on_nothing(scene):
    """Ranks that were replaced do not work on any run either."""
    scene.begin(1, 0, [0, 1])
    scene.begin(1, 1)
    assert scene.look([1]) == [(1, [0])]
    scene.runs.forget()

    assert scene.look() == []
    assert scene.runs.newest() is None


def test_a_client_knows_the_end_that_a_full_disk_cut_off(scene):
    """It has followed the run."""
    scene.begin(1, 0, [0])
    assert scene.look() == [(1, [0])]
    scene.runs.followed([Followed(1, ranks={"0": "ok"})])

    assert scene.look() == []

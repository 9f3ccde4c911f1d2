"""A session requests again the events of a rank that it missed."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from jupyter_dtrain import Settings
from jupyter_dtrain.client.missed_events import QUIET, MissedEvents
from jupyter_dtrain.client.world_connection import WorldConnection
from jupyter_dtrain.core.events import Event, Finished, Output, encode
from jupyter_dtrain.wire.agent_messages import EventsRead, ReadPosition
from jupyter_dtrain.wire.spool import spool_path
from tests.machines import Clock, Ranks, position


class Scene:
    """Run 1 of ranks 0 and 1, without any event yet."""

    def __init__(self, run):
        self.run = run
        self.ranks, self.reads, self.applied = Ranks(Clock()), [], []
        self.unbegun_on, self.refused_by, self.silences = [], [], []
        self.tasks = []
        self.connection = WorldConnection(Settings(), self, self.tasks.append)
        self.connection.world = SimpleNamespace(rank=lambda rank: SimpleNamespace(engine=rank))
        self.connection.channel = SimpleNamespace(ask=self._read)
        self.connection.questions = self.ranks
        self.missed = MissedEvents(run, self.connection, self, self._apply)

    def unbegun(self, rank):
        """Idle, and without an event."""
        self.unbegun_on.append(rank)

    def refused(self, rank, other):
        """Note a rank that works on another run."""
        self.refused_by.append((rank, other))

    def renew_soon(self):
        """A rank has not answered."""
        self.silences.append(True)

    def _read(self, rank, request):
        self.reads.append((rank, request.run, request.from_seq, Future()))
        return self.reads[-1][3]

    def _apply(self, batch):
        self.applied.append(batch)
        self.run.apply(batch)

    def answer(self, batch):
        """Answer the last read."""
        self.reads[-1][3].set_result(EventsRead(batch))
        assert not self.applied or self.applied[-1] is not batch  # on the scheduler's thread only
        while self.tasks:
            self.tasks.pop(0)()

    @property
    def asked(self):
        """Each read: rank, run, from which event on."""
        return [read[:3] for read in self.reads]


@pytest.fixture
def scene(make_run):
    """A scene of run 1."""
    return Scene(make_run())


def test_a_hole_is_read_a_piece_at_a_time_to_its_end(scene, said, finished):
    """One question at a time; nothing more is asked of a rank that has ended the run."""
    scene.missed.read(0)
    scene.missed.read(0)
    scene.answer(said("a", 0))
    scene.answer(said("b", 1))
    scene.answer(finished(2))

    assert scene.asked == [(0, 1, 0), (0, 1, 1), (0, 1, 2)]
    assert scene.run.text(0) == "ab"
    assert scene.run.unfinished == [1]


def test_a_rank_that_has_no_more_is_not_asked_again(scene, said):
    """The pause lasts until there is another hole."""
    scene.missed.read(0)
    scene.answer(said("a", 0))
    scene.answer(None)
    assert len(scene.asked) == 2
    scene.missed.read(0)

    assert scene.asked[-1] == (0, 1, 1)


def test_without_a_world_nothing_is_asked(scene):
    """The session does not wait for it either."""
    scene.connection.channel = None
    scene.missed.read(0)

    assert scene.asked == []


def test_a_quiet_rank_is_asked_where_it_stands(scene):
    """Once a second; what it has more is read. A silent rank is asked again, and so is a lost answer."""
    now = scene.run.heard(0)
    scene.missed.ask_quiet(now + QUIET - 0.5)
    assert not scene.ranks.asked
    scene.ranks.answer = lambda rank, _: position(1, upcoming=5) if rank == 0 else None
    scene.missed.ask_quiet(now + QUIET + 1)
    scene.missed.ask_quiet(now + QUIET + 1.5)

    assert [asked[1:] for asked in scene.ranks.asked] == [([0], ReadPosition()), ([1], ReadPosition())]
    assert scene.asked == [(0, 1, 0)]
    scene.missed.ask_quiet(now + 2 * QUIET + 1)
    assert scene.asked == [(0, 1, 0), (0, 1, 0)]


@pytest.mark.parametrize("answer", [position(1, upcoming=0), position(2, upcoming=5)])
def test_a_quiet_rank_without_news_is_left_alone(scene, answer):
    """It has said nothing more, or works on another run."""
    scene.ranks.answer = lambda *_: answer
    scene.missed.ask_quiet(scene.run.heard(0) + QUIET + 1)

    assert not scene.reads


def test_an_idle_rank_that_has_begun_nothing_gets_the_cell_again(scene):
    """It gets it only if it has no event of the run: it may have been interrupted before it began."""
    scene.ranks.answer = lambda *_: position(None)
    scene.missed.ask_quiet(scene.run.heard(1) + QUIET)
    assert scene.asked == [(0, 1, 0), (1, 1, 0)]
    scene.answer(None)

    assert scene.unbegun_on == [1]


def test_a_rank_that_works_on_another_run_has_refused_this_one(scene):
    """A rank that has just ended the other run has not."""
    scene.ranks.answer = lambda rank, _: position(9, finished=rank == 1)
    scene.missed.ask_quiet(scene.run.heard(1) + QUIET)

    assert scene.refused_by == [(0, 9)]


def test_a_rank_that_does_not_answer_may_be_dead(scene):
    """The steward is asked."""
    scene.missed.ask_quiet(scene.run.heard(1) + QUIET)

    assert len(scene.silences) == 2


def died(seq):
    """The events that a watch writes from ``seq`` on: its rank's last words, and the rank's end."""
    last = [Output("stderr", "last words"), Finished("lost", 0.1, "rank 0 was killed")]
    return [Event(1, 0, number, 5.0, body) for number, body in enumerate(last, seq)]


@pytest.mark.parametrize("written", [0, 1, 2], ids=["nothing", "a part", "all"])
def test_the_end_of_a_dead_rank_is_applied_once(scene, said, tmp_path, written):
    """Its spool has as much of that as the disk had room for; the news of the death has all."""
    path = spool_path(tmp_path, 1, 0)
    path.parent.mkdir()
    path.write_bytes(b"".join(map(encode, [*said("one", 0).events, *died(1)[:written]])))
    scene.connection.spool = str(tmp_path)
    scene.missed.read_end(0, died(1))

    assert scene.run.text(0) == "onelast words"
    assert scene.run.lost == {0: "rank 0 was killed"}


def test_the_end_of_a_dead_rank_follows_what_it_announced_on_a_full_disk(scene, said, tmp_path):
    """Its watch counts on from the last event that the disk has, and there were more."""
    for seq in range(4):
        scene.run.apply(said(str(seq), seq))
    scene.connection.spool = str(tmp_path)
    scene.missed.read_end(0, died(1))

    assert scene.run.text(0) == "0123last words"
    assert scene.run.outcomes == {0: "lost"}

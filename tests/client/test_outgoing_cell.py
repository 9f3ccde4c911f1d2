"""A cell goes to its ranks, and again to a rank that has not got it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jupyter_dtrain import Settings
from jupyter_dtrain.client.outgoing_cell import LONGEST, SPEED, OutgoingCell
from jupyter_dtrain.client.world_connection import WorldConnection
from jupyter_dtrain.wire.agent_messages import InterruptRank
from jupyter_dtrain.wire.messages import Cell, Watching
from jupyter_dtrain.wire.values import Parcel
from tests.machines import Clock, Ranks


class Scene:
    """Run 1 of ranks 0 and 1; the channel keeps the time and the rank of each cell that is sent."""

    def __init__(self, run):
        self.clock = Clock()
        self.ranks = Ranks(self.clock)
        self.sent, self.notes, self.interrupted = [], [], []
        self.run, self.controls = run, True
        world = SimpleNamespace(ranks=[SimpleNamespace(engine=rank) for rank in range(2)])
        self.connection = WorldConnection(Settings(), self, lambda task: task())
        self.connection.world, self.connection.channel = world, SimpleNamespace(run=self._keep)
        self.connection.questions = self.ranks
        painting = SimpleNamespace(note=self.notes.append)
        self.outgoing = OutgoingCell(
            run, painting, self.connection, lambda: self.interrupted.append(run.number), self.clock
        )

    def send(self, **values):
        """The cell goes out, with values."""
        self.outgoing.send(Parcel([], [*values.values()]), Watching(), Cell())

    def _keep(self, engine, message, pickles):  # noqa: ARG002 — the channel's shape
        assert message.run == self.run.number
        self.sent.append((self.clock() - 100, engine))

    def look(self, seconds):
        """Let time pass; rank 1 says twice a second that it is idle and has begun nothing."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += 0.5
            self.outgoing.unbegun(1)

    def answer(self):
        """The rank answers the newest ping."""
        self.ranks.greeted[-1][3]()


@pytest.fixture
def scene(make_run):
    """A cell that was sent at 0."""
    scene = Scene(make_run())
    scene.send()
    return scene


def test_a_rank_that_has_not_begun_is_pinged_after_waits_that_double(scene):
    scene.look(25)

    assert [(at, rank) for at, rank, _, _ in scene.ranks.greeted] == [
        (0.5, 1),
        (1.5, 1),
        (3.5, 1),
        (7.5, 1),
        (15.5, 1),
        (23.5, 1),
    ]
    assert scene.ranks.greeted[-1][2] == LONGEST
    assert scene.sent == [(0, 0), (0, 1)], "no copy waits at a rank that does not answer"


def test_a_rank_that_answers_gets_the_cell_again(scene):
    scene.look(1)
    scene.answer()

    assert scene.sent[2:] == [(1.0, 1)]


def test_an_answer_that_comes_after_the_cell_has_begun_sends_nothing(scene, said):
    scene.look(1)
    scene.run.apply(said("begun", rank=1))
    scene.answer()

    assert scene.sent[2:] == []


def test_with_the_third_ping_the_cell_says_where_the_rank_is(scene):
    scene.look(3)
    assert scene.notes == []
    scene.look(1)

    assert scene.notes[0].startswith("Rank 1 is idle but has not started this cell after")
    scene.look(20)
    assert len(scene.notes) == 1


def test_no_rank_is_pinged_while_its_values_travel(make_run):
    scene = Scene(make_run())
    scene.send(big=bytes(int(SPEED * 3)))
    scene.look(4)

    assert [at for at, *_ in scene.ranks.greeted] == [3.5]


def test_a_client_that_no_longer_drives_takes_back_what_no_rank_has_begun(scene):
    scene.controls = False
    scene.look(1)

    assert scene.interrupted[0] == 1
    assert scene.ranks.greeted == []


def test_without_a_world_nothing_is_sent_again(scene):
    scene.look(1)
    scene.connection.channel = None
    scene.answer()

    assert len(scene.sent) == 2


def test_a_cell_of_a_client_that_is_gone_is_taken_back_at_the_third_look(make_run):
    scene = Scene(make_run())
    scene.look(2)

    assert scene.notes == ["Rank 1 never began this cell, and the client that sent it is gone."]
    assert [(ranks, question) for _, ranks, question in scene.ranks.asked] == [([1], InterruptRank(1, force=False))]


def test_a_rank_that_works_on_a_run_of_another_client_refuses_the_cell(scene, said):
    scene.outgoing.refused(0, 7)
    assert scene.run.not_sent.startswith("Rank 0 is still working on run 7, which this session does not follow.")

    scene.run.apply(said("begun", rank=1))
    scene.outgoing.refused(0, 7)
    assert scene.notes[-1].endswith("which is interrupted on all ranks.")
    assert scene.interrupted == [1, 1]

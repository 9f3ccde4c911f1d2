"""A client learns from the steward whether it drives the world, and does what it then may do."""

from __future__ import annotations

import os
import queue
import threading

import msgspec
import psutil
import pytest

from jupyter_dtrain.client.link import SCHEDULING, Link
from jupyter_dtrain.client.notices import Notices
from jupyter_dtrain.core.errors import NoWorld, RanksBusy, ReadOnly, WorldLost
from jupyter_dtrain.core.settings import Settings
from jupyter_dtrain.core.world import AddressedRank, AddressedWorld, Client
from jupyter_dtrain.launch.worlds import Listing
from jupyter_dtrain.wire.messages import PROTOCOL, Done
from jupyter_dtrain.wire.steward_messages import (
    Advance,
    Advanced,
    Driven,
    DriverChanged,
    Join,
    Joined,
    KillRanks,
    Leave,
    Noticed,
    RanksReplaced,
    ReadStatus,
    ReleaseRun,
    Renew,
    WorldEnded,
    WorldNews,
    WorldRestarting,
    WorldStatus,
)
from tests.session.cells import until

OTHER = Client("other", 1, 0.0, "the notebook b.ipynb (pid 7)")


class Steward:
    """Says what the test makes it say; this process stands for it."""

    def __init__(self):
        self.driver = None
        self.said = queue.Queue()
        self.asked, self.patience = [], []
        self.silent = False

    def ask(self, request, timeout=None):
        """The answer to any request that these tests make."""
        self.asked.append(request)
        self.patience.append(timeout)
        if self.silent:
            raise WorldLost("no answer")
        match request:
            case Join(client, take_over, protocol):
                assert protocol == PROTOCOL
                if self.driver is None or take_over:
                    self.driver = client
                return Joined(self.driver, 0)
            case Renew():
                return Driven(self.driver)
            case Leave() | ReleaseRun() | KillRanks():
                return Done()
            case Advance():
                return Advanced(3)
            case ReadStatus():
                return WorldStatus()
        raise AssertionError(request)

    def listen(self, timeout):
        """The next broadcast."""
        try:
            return self.said.get(timeout=min(timeout, 0.02))
        except queue.Empty:
            return None

    def say(self, broadcast):
        """Send it to every client."""
        self.said.put(broadcast)

    def close(self):
        """Nothing is held."""


@pytest.fixture
def steward():
    """The steward of a world that no client drives."""
    return Steward()


@pytest.fixture
def listing():
    """A world whose steward is alive: it is this process."""
    return Listing("w", "id", 2, "/", os.getpid(), psutil.Process().create_time(), "")


@pytest.fixture
def notices():
    """Notices for the user."""
    return Notices()


@pytest.fixture
def link(steward, listing, notices):
    """A client's link; it is closed in the end."""
    link = Link(listing, steward, Settings(), notices, "the notebook a.ipynb")
    yield link
    if not link.closed:
        link.close()


def words(notices, capsys):
    """The words that the user sees."""
    notices.show()
    return capsys.readouterr().err


def test_the_first_client_drives(link):
    """It drives from the moment at which it joins."""
    assert not link.controls
    link.join(take_over=False)
    link.check_drives()

    assert link.controls


def test_another_clients_world_can_only_be_looked_at_until_it_is_taken_over(link, steward):
    """The error says by whom and how."""
    steward.driver = OTHER
    link.join(take_over=False)
    with pytest.raises(ReadOnly, match=r"b\.ipynb.*%distributed attach w --control"):
        link.check_drives()
    link.join(take_over=True)

    link.check_drives()


def test_a_client_that_is_taken_over_observes_and_says_so_once(link, steward, notices, capsys):
    """It hears it by itself, or asks before a cell."""
    link.join(take_over=False)
    steward.driver = OTHER
    steward.say(DriverChanged(driver=OTHER))
    until(lambda: not link.controls)
    with pytest.raises(ReadOnly):
        link.confirm_drives()

    assert words(notices, capsys).count("is now controlled by b.ipynb") == 1


def test_a_silent_steward_is_not_waited_for_before_a_cell(link, steward):
    """The last answer counts."""
    link.join(take_over=False)
    steward.silent = True

    link.confirm_drives()


def test_a_restart_by_another_client_refuses_cells_and_joins_the_fresh_ranks(link, steward):
    """It joins them in another thread."""
    joined, threads = queue.Queue(), []
    link.rejoin = lambda *which: (threads.append(threading.current_thread().name), joined.put(which))
    link.join(take_over=False)
    steward.say(WorldRestarting(client="other", by=OTHER.words, incarnation=3))

    assert joined.get(timeout=10) == (3, OTHER.words)
    assert threads == ["dtrain-rejoin"]
    with pytest.raises(RanksBusy, match=r"is being restarted by the notebook b\.ipynb"):
        link.check_drives()


def test_an_observer_loses_a_world_that_is_restarted(link, steward):
    """The error says how to join it again."""
    steward.driver = OTHER
    link.join(take_over=False)
    steward.say(WorldRestarting(client="other", by=OTHER.words, incarnation=3))
    until(lambda: link.over)

    with pytest.raises(WorldLost, match="%distributed attach w joins it again"):
        link.check()


def test_a_world_that_has_ended_is_lost_with_the_reason(link, steward):
    """The first one counts; nothing is asked of its steward any more."""
    link.join(take_over=False)
    steward.say(WorldEnded(words="its lease ran out"))
    until(lambda: link.over)
    link.lose("something else")
    asked = len(steward.asked)
    with pytest.raises(WorldLost, match="its lease ran out"):
        link.ask(ReadStatus())

    assert len(steward.asked) == asked


def test_a_steward_that_has_ended_is_noticed(steward, listing, notices):
    """A request notices it at once, and without one the next look does."""
    gone = msgspec.structs.replace(listing, created=0.0)
    link = Link(gone, steward, Settings(), notices, "a client")
    steward.silent = True
    with pytest.raises(WorldLost, match="its main process has ended"):
        link.ask(ReadStatus())
    steward.silent = False
    other = Link(gone, steward, Settings(), notices, "a client")
    other.join(take_over=False)

    until(lambda: other.over)


def test_a_world_that_was_left_is_no_world_any_more(link, steward):
    """The steward hears it."""
    link.join(take_over=False)
    link.close()

    assert Leave(link.me.id) in steward.asked
    with pytest.raises(NoWorld):
        link.check()


def test_the_thread_that_folds_runs_waits_little_for_the_steward(link, steward):
    """The requests of an interruption and of the end of a run do not wait."""
    link.release(7)
    link.kill([0, 1], "a reason")
    assert link.advance(7) == 3

    assert steward.asked == [ReleaseRun(7), KillRanks([0, 1], "a reason"), Advance(7)]
    assert steward.patience == [SCHEDULING] * 3
    assert SCHEDULING == 1.0


def test_numbers_of_runs_are_those_of_the_world(link):
    """Another client's run is skipped."""
    assert [link.number_run(), link.number_run()] == [1, 2]
    link.skip_run(7)
    link.skip_run(3)

    assert link.number_run() == 8


RANKS = [
    AddressedRank(number, 0, "here", number, "cpu", 1000 + number, engine=f"engine {number}") for number in range(4)
]
MOVED = [msgspec.structs.replace(RANKS[number + 1], rank=number) for number in (1, 2)]
"""Ranks 2 and 3 once rank 1 has left."""


def test_ranks_get_other_numbers(link, steward):
    """By the broadcast; an answer that it has overtaken kills nobody, as its dead rank has another number."""
    link._world = AddressedWorld("w", "id", RANKS, generation=4)
    link.join(take_over=False)
    steward.say(RanksReplaced(ranks=MOVED, size=3, generation=6))
    until(lambda: link._world.size == 3)
    old = WorldNews(0, None, 5, {1: "rank 1 was killed (SIGKILL)"}, [2], [], [], 4)
    link._take_driven(Driven(None, old))

    assert link._world.ranks == [RANKS[0], *MOVED]
    assert link._world.generation == 6


def test_other_numbers_are_known_without_the_broadcast(link):
    """It was lost: the steward's next answer names the ranks with other numbers, and who is dead under those."""
    link._world = AddressedWorld("w", "id", RANKS, generation=4)
    news = WorldNews(0, None, 7, {2: "rank 2 is gone"}, [], [], [], 3, "", MOVED)
    link._take_driven(Driven(None, news))

    assert [(rank.rank, rank.pid, rank.state) for rank in link._world.ranks] == [
        (0, 1000, "idle"),
        (1, 1002, "idle"),
        (2, 1003, "dead"),
    ]


def test_the_user_is_shown_what_the_steward_has_to_say(link, steward, notices, capsys):
    """Once."""
    link.join(take_over=False)
    for _ in range(2):
        steward.say(Noticed(words="Disk full."))
    steward.say(WorldEnded(words="done"))
    until(lambda: link.over)

    assert words(notices, capsys) == "[jupyter-dtrain] Disk full.\n"

"""The meeting place of a world's ranks for JAX, without JAX."""

from __future__ import annotations

import socket
import threading

import pytest

from jupyter_dtrain.frameworks.jax import coordinator
from jupyter_dtrain.frameworks.jax.coordinator import LONGEST, CoordinatorServer, Meetings
from jupyter_dtrain.frameworks.jax.rendezvous import Absent, meet, stay_away
from jupyter_dtrain.wire.requests import Desk, ServerSpec
from tests.session.cells import until

SECRET = "5ec7e7"  # noqa: S105 — not one


class Coordinators:
    """Begins none, but says where it would be."""

    def __init__(self):
        self.sizes = []
        self.fails = None

    def __call__(self, size):
        self.sizes.append(size)
        if self.fails is not None:
            raise self.fails
        return f"host:{len(self.sizes)}"


@pytest.fixture
def coordinators():
    """No coordinator has started yet."""
    return Coordinators()


@pytest.fixture
def meetings(coordinators):
    """No rank is there."""
    return Meetings("host", coordinators)


@pytest.fixture
def server(meetings):
    """Serves the meetings; its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = CoordinatorServer(listening, meetings, ServerSpec(SECRET))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield Desk(*listening.getsockname(), SECRET)
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_coordinator_begins_when_all_are_there(meetings, coordinators):
    """Once; a rank that asks again gets the same."""
    assert meetings.arrive("a", 1, 2, comes=True) == {"here": [1], "absent": [], "address": "", "problem": ""}
    assert coordinators.sizes == []
    assert meetings.arrive("a", 0, 2, comes=True)["address"] == "host:1"
    assert meetings.arrive("a", 1, 2, comes=True)["address"] == "host:1"

    assert coordinators.sizes == [2]


def test_a_rank_that_went_away_is_not_there_any_more(meetings, coordinators):
    """It may come again; no rank leaves a meeting that has taken place."""
    meetings.arrive("a", 0, 2, comes=True)
    meetings.leave("a", 0)
    meetings.leave("unknown", 0)
    assert meetings.arrive("a", 1, 2, comes=True)["here"] == [1]
    meetings.arrive("a", 0, 2, comes=True)
    meetings.leave("a", 0)

    assert meetings.arrive("a", 1, 2, comes=True)["here"] == [0, 1]
    assert coordinators.sizes == [2]


def test_a_rank_that_will_not_come_is_named(meetings, coordinators):
    """It is not there."""
    meetings.arrive("a", 0, 2, comes=True)
    found = meetings.arrive("a", 1, 2, comes=False)

    assert (found["here"], found["absent"], found["address"]) == ([0], [1], "")
    assert coordinators.sizes == []


def test_a_coordinator_that_cannot_begin_is_the_reason_for_all(meetings, coordinators):
    """It is not tried again for this meeting; the next one may go well."""
    coordinators.fails = RuntimeError("no port")
    meetings.arrive("a", 0, 2, comes=True)
    assert meetings.arrive("a", 1, 2, comes=True)["problem"] == "RuntimeError: no port"
    assert meetings.arrive("a", 0, 2, comes=True)["problem"] == "RuntimeError: no port"
    assert coordinators.sizes == [2]
    coordinators.fails = None
    meetings.arrive("b", 0, 2, comes=True)

    assert meetings.arrive("b", 1, 2, comes=True)["address"] == "host:2"


def test_ranks_meet(server):
    """The one that comes first waits."""
    found = {}

    def come(rank):
        found[rank] = meet("init()", server, "a", rank, 2, 10.0, lambda: False)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {0: "host:1", 1: "host:1"}


def test_a_rank_that_waits_too_long_names_who_is_missing(server):
    """So does one that was released; both have left the meeting then."""
    with pytest.raises(TimeoutError, match=r"rank 1 did not arrive within 0\.05 s"):
        meet("init()", server, "a", 0, 2, 0.05, lambda: False)
    with pytest.raises(RuntimeError, match=r"init\(\): rank 1 did not arrive"):
        meet("init()", server, "a", 0, 2, 10.0, lambda: True)


def test_a_rank_that_has_gone_is_not_counted(server, meetings):
    """Its connection shows that."""
    with pytest.raises(TimeoutError):
        meet("init()", server, "a", 0, 2, 0.0, lambda: False)
    until(lambda: meetings.arrive("a", 1, 2, comes=False)["here"] == [])


def test_a_rank_that_stays_away_ends_the_wait_of_others(server):
    """The wait ends at once."""
    stay_away(server, "a", 1, 2)
    with pytest.raises(Absent, match="rank 1 had not set it up"):
        meet("init()", server, "a", 0, 2, 10.0, lambda: False)


def test_a_rank_learns_why_there_is_no_coordinator(server, meetings, coordinators):
    """The error has the words of the failure."""
    coordinators.fails = OSError("no port")
    meetings.arrive("a", 1, 2, comes=True)
    with pytest.raises(RuntimeError, match=r"init\(\): JAX's coordinator cannot start: OSError: no port"):
        meet("init()", server, "a", 0, 2, 10.0, lambda: False)


STRANGE = [
    b'{"meeting":"x","rank":0,"size":1,"comes":true}\n',
    b'{"secret":"","meeting":"x","rank":0,"size":2,"comes":true}\n',
    b'{"secret":"5ec7e8","meeting":"x","rank":0,"size":2,"comes":true}\n',
    b'{"secret":"5ec7e7","meeting":"x","rank":2,"size":2,"comes":true}\n',
    b'{"secret":"5ec7e7","meeting":"x","rank":-1,"size":2,"comes":true}\n',
    b'{"secret":"\xff","meeting":"x","rank":0,"size":2,"comes":true}\n',
    b'{"secret":"5ec7e7","meeting":"x","rank":0,"size":100000,"comes":true}\n',
    b"[]\n",
    b"\n",
    b" " * LONGEST,
]
"""Lines that no rank sends: a wrong secret or none, a rank or a world that cannot be, no JSON, an endless line."""


@pytest.mark.parametrize("line", STRANGE, ids=lambda line: line[:40].decode(errors="replace").strip() or "blank")
def test_a_client_that_is_no_rank_gets_no_answer(server, meetings, coordinators, line):
    """The connection is closed, and no coordinator began or ended."""
    meetings.arrive("a", 0, 2, comes=True)
    with socket.create_connection(server[:2], 10) as stranger:
        stranger.sendall(line)

        assert stranger.recv(1) == b""
    assert meetings.arrive("a", 0, 2, comes=True)["here"] == [0]
    assert coordinators.sizes == []


@pytest.mark.parametrize("drip", [b"", b"{"])
def test_a_silent_connection_is_closed(server, monkeypatch, drip):
    """A client that takes for ever to introduce itself is closed too."""
    monkeypatch.setattr(coordinator, "SILENCE", 0.2)
    with socket.create_connection(server[:2], 10) as silent:
        silent.sendall(drip)

        assert silent.recv(1) == b""


def test_a_rank_that_is_known_may_be_silent(server, monkeypatch):
    """It may be stopped for a while."""
    monkeypatch.setattr(coordinator, "SILENCE", 0.05)
    line = b'{"secret":"5ec7e7","meeting":"a","rank":0,"size":2,"comes":true}\n'
    with socket.create_connection(server[:2], 10) as rank:
        rank.sendall(line)
        assert rank.recv(1000)
        rank.settimeout(0.2)
        with pytest.raises(TimeoutError):
            rank.recv(1)
        rank.sendall(line)

        assert b'"here": [0]' in rank.recv(1000)

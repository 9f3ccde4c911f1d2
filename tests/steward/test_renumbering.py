"""The steward matches reports to ranks while these get other numbers, and its list follows."""

from __future__ import annotations

import pytest

from jupyter_dtrain.core.world import AddressedRank
from jupyter_dtrain.steward.state import number_of, rank_of, renumber
from jupyter_dtrain.wire.reports import Paused, Ready


def a_rank(number: int, **changes) -> AddressedRank:
    """A rank whose process has the id 1000 + ``number``."""
    return AddressedRank(**{"rank": number, "node": 0, "host": "here", "local_rank": number, "device": "cpu"} | changes)


RANKS = [a_rank(number, pid=1000 + number, engine=str(number)) for number in range(4)]
LATER = [
    RANKS[0],
    a_rank(1, pid=1002, engine="2"),
    a_rank(2, pid=1003, engine="3", state="dead", words="rank 2 was killed (SIGKILL)"),
]


@pytest.mark.parametrize(
    ("ranks", "rank", "pid", "number"),
    [
        (RANKS, 2, 1002, 2),  # a report of before
        (RANKS, 1, 1002, 2),  # the rank has its new number, and the steward does not use it yet
        (LATER, 2, 1002, 1),  # it was on its way for long
        (LATER, 1, 1002, 1),
        (RANKS, 1, 1777, None),  # a new process that has the number of a living rank, until the world is taken
        (LATER, 0, 1003, None),  # a dead rank has no other number, and its process id may be another's by now
        (LATER, 2, 0, 2),  # a report that names no process
    ],
)
def test_a_report_is_about_the_rank_with_its_process(ranks, rank, pid, number):
    assert number_of(ranks, Paused(rank, True, pid)) == number


def test_processes_of_two_hosts_that_share_an_id_are_told_apart_by_their_watches():
    ranks = [a_rank(0, pid=1000, engine="0", watch="a"), a_rank(1, pid=1000, engine="1", watch="b")]
    assert [number_of(ranks, Paused(rank, True, 1000, watch)) for rank in (0, 1) for watch in "ab"] == [0, 1, 0, 1]
    assert number_of(ranks, Paused(1, True, 1000, "c")) is None


def test_those_that_stay_keep_process_and_device():
    """A dead one too: the words on its end have its number then."""
    gpus = [a_rank(n, pid=1000 + n, engine=str(n), device=f"cuda:{n}") for n in range(3)]
    dead = a_rank(3, pid=1003, engine="3", device="cuda:3", state="dead", words="rank 3 crashed (SIGSEGV)")
    found = renumber([*gpus, dead], {0: 0, 2: 1, 3: 2}, {0: 0, 2: 2})

    assert [(n, rank.rank, rank.pid, rank.local_rank, rank.device) for n, rank in found.items()] == [
        (0, 0, 1000, 0, "cuda:0"),
        (1, 1, 1002, 2, "cuda:2"),
        (2, 2, 1003, 3, "cuda:3"),
    ]
    assert found[2].words == "rank 2 crashed (SIGSEGV)"


@pytest.mark.parametrize(("gpus", "devices"), [(0, ["cpu"] * 3), (2, ["cuda:0", "cuda:1", "cuda:0"])])
def test_ranks_beyond_the_gpus_of_their_host_share_them_in_turn(gpus, devices):
    ranks = [rank_of(Ready(rank, 3, 1, "here", "e", rank, 0), gpus, ()) for rank in range(3)]

    assert [rank.device for rank in ranks] == devices

"""Every row of the failure table, once, on three ranks; frameworks, victims and modes in turns.

``make faults`` plays all combinations, on two and on four ranks. Libraries on top of PyTorch are slow.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_dtrain.core.failures import situations
from tests.faults.plans import (
    CHANGES,
    ELASTIC,
    HERE,
    LIBRARIES,
    PROFILES,
    SERVERS,
    SERVERS_SIZE,
    Framework,
    Mode,
    Plan,
    frameworks_of,
    in_turns,
    modes_of,
    victim_of,
)
from tests.faults.stage import Stage
from tests.faults.worlds import QUICK
from tests.hosts.network import Network

SIZE = 3
LONG = (
    *("native", "native-locked", "endless-mpi", "no-ulfm", "kernel-restarted", "kernel-shut-down"),
    *("kernel-killed", "mpiexec-killed", "watch-killed", "controller-killed"),
    *("prompt-kernel-killed", "prompt-peer-failed", "paused-killed", "paused-kernel-killed"),
)
"""Slow tests: rows whose play waits longest, or that tests/steward shows as well."""
PLANS = [
    pytest.param(plan, id=str(plan), marks=[pytest.mark.slow] if plan.situation in LONG else [])
    for plan in in_turns([row.name for row in situations() if row.name not in (*SERVERS, *ELASTIC)], SIZE)
]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, hosts: Network | None) -> Iterator[Stage]:
    """The worlds in which they are played."""
    stage = Stage(tmp_path_factory.mktemp("plays"), QUICK, hosts)
    yield stage
    assert stage.close() == []


@pytest.mark.parametrize("plan", PLANS)
def test_the_world_does_what_the_table_says(stage: Stage, plan: Plan) -> None:
    """The table fixes outcome, time, words, the kept state and the next cell; and no process stays behind."""
    if plan.situation in HERE and stage.network is not None:
        pytest.skip("on this machine only: the ranks of hosts end without mpiexec, see tests/hosts/test_faults.py")
    played = stage.play(plan)

    assert played.problems == []


@pytest.mark.parametrize(
    ("situation", "mode"),
    [
        pytest.param(name, mode, marks=[] if (name, mode) == ("elastic-killed", "attended") else [pytest.mark.slow])
        for name in ELASTIC
        for mode in modes_of(name)
    ],
)
def test_an_elastic_cell_goes_on_when_a_rank_dies(stage: Stage, situation: str, mode: Mode) -> None:
    """A new process joins it, also where another one died while it joined; and Stop ends it meanwhile."""
    if stage.network is not None:
        pytest.skip("on this machine only: no rank is started on other hosts in a world that runs")
    played = stage.play(Plan(situation, "torch", SIZE, SIZE - 1, mode))

    assert played.problems == []


@pytest.mark.slow
@pytest.mark.parametrize("situation", CHANGES)
def test_a_change_in_which_something_dies_ends_and_the_world_is_whole(stage: Stage, situation: str) -> None:
    """A heal or a resize: it succeeds, or says why it cannot; a further one makes the world whole then."""
    if stage.network is not None:
        pytest.skip("on this machine only: no rank is started on other hosts in a world that runs")
    played = stage.play(Plan(situation, "torch", SIZE, SIZE - 1, "attended"))

    assert played.problems == []


@pytest.mark.parametrize(
    "situation",
    [
        pytest.param(name, marks=[] if name in ("profile-raises", "profile-killed") else [pytest.mark.slow])
        for name in PROFILES
    ],
)
def test_a_profile_in_which_something_fails_harms_no_loop(stage: Stage, situation: str) -> None:
    """It ends with what there is, or says why there is nothing; the world is whole afterwards."""
    if stage.network is not None:
        pytest.skip("on this machine only: the file that cannot be written is this machine's")
    played = stage.play(Plan(situation, "torch", SIZE, SIZE - 1, "attended"))

    assert played.problems == []


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_trains_again_after_one_rank_has_raised(stage: Stage, library: Framework) -> None:
    """The others were in its collective."""
    if library == "lightning" and stage.network is not None:
        pytest.skip("on this machine only: Lightning needs the same number of ranks on each host, and here they differ")
    played = stage.play(Plan("raises", library, SIZE, SIZE - 1, "attended"))

    assert played.problems == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["attended", "interrupted"])
@pytest.mark.parametrize("situation", [name for name in SERVERS if frameworks_of(name)])
def test_a_rank_that_works_for_a_chief_dies(stage: Stage, situation: str, mode: Mode) -> None:
    """The chief goes on without a worker; without a parameter server no rank goes on."""
    played = stage.play(Plan(situation, "tensorflow", SERVERS_SIZE, victim_of(situation), mode))

    assert played.problems == []

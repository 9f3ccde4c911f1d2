"""``resize --drop`` ends chosen ranks; the others keep processes and variables, and get new numbers in their order."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from jupyter_dtrain import BadRequest, DistributedError, RanksDead, ReplaceFailed, Session
from jupyter_dtrain.wire.spool import read_file, spool_path
from tests.session.cells import begin, pids, run, values
from tests.session.test_behaviour_heal import kill, newcomer, whole
from tests.steward.until import child_named, until

pytestmark = pytest.mark.here("it kills processes of ranks")

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "ROLE_RANK")
PLACE = f"""
import os
[os.environ[name] for name in {NAMES}]
"""
SUM = """
from mpi4py import MPI
import jupyter_dtrain
jupyter_dtrain.comm.allreduce(1 << jupyter_dtrain.comm.Get_rank())
"""


@pytest.fixture(scope="module")
def world(launch):
    """A world for tests that begin with :func:`fill`."""
    with launch(n=4) as session:
        yield session


def fill(session: Session, size: int = 4) -> dict[int, int]:
    """Give the world ``size`` living ranks, each with its number in ``own``; their process ids."""
    if session.world.dead:
        session.replace()
    if session.world.size != size:
        session.resize(size)
    run(session, "import os\nown = int(os.environ['RANK'])")
    return pids(session)


def test_the_middle_one_of_four_is_dropped(world):
    """Processes, variables, environment, MPI, output, logs, an observer, the run of before, kill and interrupt."""
    before = fill(world)
    last = run(world, "print('of', own)")
    with Session.attach(world.name) as other:
        done = world.resize(drop=1)
        until(lambda: other.world.size == 3)
        assert pids(other) == pids(world)
        # The run of before has the numbers of before, for a client that comes later as well.
        assert {rank: last.text(rank) for rank in range(4)} == {rank: f"of {rank}\n" for rank in range(4)}
        running = begin(world, "import time\nprint('now', own, flush=True)\nwhile own != 3: time.sleep(0.01)")
        until(lambda: [*running.outcomes] == [2])
        assert {rank: running.text(rank)[-6:] for rank in range(3)} == {0: "now 0\n", 1: "now 2\n", 2: "now 3\n"}
        world.interrupt()
        assert running.wait(20)

    assert str(done).startswith("The world has 3 ranks instead of 4")
    assert "\nRank 2 is rank 1 now, rank 3 is rank 2.\n" in str(done)
    assert "Samplers" in str(done)
    assert done.moved == {2: 1, 3: 2}
    assert pids(world) == {0: before[0], 1: before[2], 2: before[3]}
    assert not psutil.pid_exists(before[1])
    assert whole(world)
    assert values(run(world, "own")) == {0: 0, 1: 2, 2: 3}
    assert values(run(world, PLACE)) == {rank: [str(rank), str(rank), "3", str(rank), str(rank)] for rank in range(3)}
    assert values(run(world, SUM)) == dict.fromkeys(range(3), 7)
    assert values(run(world, "list(jupyter_dtrain.shard(range(3)))")) == {rank: [rank] for rank in range(3)}
    assert [(rank.rank, rank.local_rank, rank.device) for rank in world.world.ranks] == [
        (rank, rank, "cpu") for rank in range(3)
    ]
    # For a client that has missed the broadcast.
    news = world._link._steward.ask(world._link._renewal(0)).news
    assert {rank.rank: rank.pid for rank in news.replaced}.items() >= {1: before[2], 2: before[3]}.items()
    with Session.attach(world.name, control=True) as late:
        assert pids(late) == pids(world)
        assert values(run(late, "own")) == {0: 0, 1: 2, 2: 3}
    world.control()
    assert values(run(world, "own", [1])) == {1: 2}
    with pytest.raises(BadRequest, match="There is no rank 3"):
        world.run("1", [3])


def test_a_rank_is_killed_and_reported_dead_under_its_new_number(world):
    """After a drop and a grow: the signal hits the right process, the report names the number, a heal replaces it."""
    before = fill(world)
    world.resize(drop=0)
    world.resize(4)
    assert {rank: pid for rank, pid in pids(world).items() if rank < 3} == {rank: before[rank + 1] for rank in range(3)}
    # In the middle of a run, by somebody else.
    with pytest.raises(DistributedError, match=r"rank 1 was killed \(SIGKILL\)") as caught:
        run(world, "import os\nif own == 2:\n    os.write(1, b'last words\\n')\n    os.kill(os.getpid(), 9)")
    assert list(caught.value.run.lost) == [1]
    assert caught.value.run.text(1) == "last words\n"
    # The watch has written them, and the end, where they belong.
    *_, last = read_file(spool_path(world.request.spool, caught.value.run.number, 1))
    assert (last.rank, last.body.outcome) == (1, "lost")
    assert [rank.rank for rank in world.world.dead] == [1]
    # Idle, by its number.
    world.kill([2])
    assert not psutil.pid_exists(before[3])
    assert [rank.rank for rank in world.world.dead] == [1, 2]
    assert world.world.ranks[2].words.startswith("rank 2 was killed")
    assert world.replace().ranks == [1, 2]
    assert whole(world)
    assert values(run(world, "globals().get('own', -1)")) == {0: 1, 1: -1, 2: -1, 3: -1}


def test_a_dead_rank_is_dropped_instead_of_replaced(world):
    """A way on from a hole without a new process. A dead rank that stays is replaced, under its new number."""
    before = fill(world)
    kill(world, 1)
    with pytest.raises(RanksDead):
        run(world, "1")
    done = world.resize(drop=[1])
    assert done.healed.ranks == []
    assert pids(world) == {0: before[0], 1: before[2], 2: before[3]}
    assert whole(world)
    assert world.world.dead == []
    before = fill(world)
    kill(world, 3)
    run(world, "model = [own]", [0, 1, 2])
    done = world.resize(2, ["model"], 2, drop="0-1")
    assert (done.healed.ranks, done.healed.source) == ([1], 0)
    assert "\nRank 2 is rank 0 now, rank 3 is rank 1.\nRank 1 has a new process" in str(done)
    assert values(run(world, "(globals().get('own', -1), model)")) == {0: (2, [2]), 1: (-1, [2])}
    assert pids(world)[0] == before[2]
    assert whole(world)


def test_an_impossible_drop_is_refused_before_anything_happens(world):
    """All ranks, a rank that is not there, none, a number that does not fit, a source that leaves, neither."""
    before = fill(world)
    for drop, n, words in (
        ("all", None, "These are all ranks of the world: %distributed stop ends it"),
        (4, None, "There is no rank 4: this world has ranks 0 to 3"),
        ("", None, "No rank was named"),
        ([], None, "No rank was named"),
        ("x", None, "'x' names no rank"),
        ("1", 2, "Without rank 1 this world of 4 has 3 ranks, not 2: leave out 2"),
        ("1,2", 4, "Without ranks 1-2 this world of 4 has 2 ranks, not 4"),
        (None, None, "Name the number of ranks that the world is to have, or the ranks to drop"),
    ):
        with pytest.raises(BadRequest) as caught:
            world.resize(n, drop=drop)
        assert words in str(caught.value)
    with pytest.raises(BadRequest, match="The resize would end rank 1: copy from one that stays, 0,2-3"):
        world.resize(3, ["own"], 1, drop=1)
    kill(world, 0, 2, 3)
    with pytest.raises(ReplaceFailed, match="no rank is left that could take a new one in"):
        world.resize(drop=1)
    assert pids(world)[1] == before[1]
    assert values(run(world, "own", [1])) == {1: 1}


@pytest.mark.slow
def test_ranks_keep_local_ranks_that_name_gpus(launch, tmp_path, monkeypatch):
    """``set_device(LOCAL_RANK)`` in a cell that runs again must not move a process to another GPU than its model's.

    The program that counts GPUs counts four here; no framework looks for them.
    """
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\nfor i in 0 1 2 3; do echo "GPU $i: A (UUID: GPU-$i)"; done\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with launch(n=4) as session:
        done = session.resize(drop=1)
        assert "Each of them keeps its GPU, and LOCAL_RANK, which names the GPU." in str(done)
        assert values(run(session, PLACE)) == {
            rank: [str(rank), local, "3", local, str(rank)] for rank, local in enumerate("023")
        }
        # A new rank gets the free one, and a heal leaves all as it is.
        session.resize(4)
        kill(session, 0)
        session.replace()
        assert [(rank.local_rank, rank.device) for rank in session.world.ranks] == [
            (0, "cuda:0"),
            (2, "cuda:2"),
            (3, "cuda:3"),
            (1, "cuda:1"),
        ]
        assert [place[1] for place in values(run(session, PLACE)).values()] == [*"0231"]
        with Session.attach(session.name) as other:
            assert other.world.ranks == session.world.ranks


def test_logs_go_on_under_the_new_number(world):
    """Both files say where the text of before is."""
    fill(world)
    world.resize(drop=2)
    logs = Path(world.request.folder) / "logs"
    words = "[jupyter-dtrain] rank 3 is rank 2 from here on\n"

    assert (logs / "rank-3.log").read_text().endswith(words)
    assert (logs / "rank-2.log").read_text().endswith(words)


def test_a_run_that_another_process_left_unfinished_under_the_number_is_not_ended_again(world):
    """As a full disk leaves one. The rank that has the number now dies idle, before its first run under it."""
    fill(world)
    last = run(world, "own")
    world.resize(drop=1)
    spool = Path(world.request.spool) / f"run-{last.number}" / "rank-1.jsonl"
    cut = "".join(spool.read_text().splitlines(keepends=True)[:-1])
    spool.write_text(cut)
    kill(world, 1)

    assert spool.read_text() == cut
    assert [rank.rank for rank in world.world.dead] == [1]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 3])
def test_a_death_during_a_drop_is_healed_too(launch, victim):
    """A rank that stays dies: the resize begins again, or is over. Numbers are all new, and the dead one's is right."""
    with launch(n=4) as session:
        run(session, "import os\nown = int(os.environ['RANK'])")
        before, struck = pids(session), []

        def strike(words):
            if not struck:
                struck.append(words)
                os.kill(before[victim], signal.SIGKILL)

        session.resize(drop=1, progress=strike)
        assert struck
        number = {0: 0, 3: 2}[victim]
        if session.world.ranks[number].pid == before[victim]:
            until(lambda: [rank.rank for rank in session.world.dead] == [number])
            session.replace()
        assert whole(session)
        kept = {0: 0, 1: 2, 2: 3} | {number: -1}
        assert values(run(session, "globals().get('own', -1)")) == kept


@pytest.mark.slow
def test_a_new_process_with_the_number_of_a_living_rank_is_told_apart(launch):
    """Rank 0 leaves, and rank 2 is dead: its new process is rank 1, as is a living rank until all take the world.

    Another rank dies meanwhile, so the new process ends with the first try, and the living rank does not.
    """
    with launch(n=4) as session:
        run(session, "import os\nown = int(os.environ['RANK'])")
        before, struck = pids(session), []
        kill(session, 2)

        def strike(words):
            if not struck and words.startswith("rank 1 starts"):
                struck.append(newcomer(session).pid)
                os.kill(before[3], signal.SIGKILL)

        done = session.resize(drop=0, progress=strike)
        assert done.healed.ranks == [1, 2]
        assert pids(session)[0] == before[1]
        assert whole(session)
        assert values(run(session, "globals().get('own', -1)")) == {0: 1, 1: -1, 2: -1}
        until(lambda: not psutil.pid_exists(struck[0]))


@pytest.mark.slow
def test_a_resize_that_fails_leaves_all_numbers_as_they_were(launch):
    """``mpiexec`` dies while it goes on. The rank that was to leave may have ended; the others are who they were."""
    with launch(n=4) as session:
        run(session, "import os\nown = int(os.environ['RANK'])")
        before = pids(session)
        kill(session, 3)
        mpiexec = child_named(session, "prterun")

        def strike(words):
            if words.startswith("starting") and mpiexec.is_running():
                mpiexec.kill()

        with pytest.raises(ReplaceFailed, match="mpiexec, which starts new ranks, has ended"):
            session.resize(drop=1, progress=strike)
        assert [rank.rank for rank in session.world.dead] == [1, 3]
        assert {rank: pids(session)[rank] for rank in (0, 2)} == {0: before[0], 2: before[2]}
        assert values(run(session, "(own, int(os.environ['RANK']))", [0, 2])) == {0: (0, 0), 2: (2, 2)}

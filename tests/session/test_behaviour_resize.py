"""``resize`` changes how many ranks a world has; those that stay keep their processes and variables."""

from __future__ import annotations

import psutil
import pytest

from jupyter_dtrain import BadRequest, RanksBusy, ReplaceFailed, Session
from jupyter_dtrain.launch.worlds import list_worlds
from tests.session.cells import begin, pids, run, values
from tests.session.test_behaviour_heal import kill, newcomer, whole
from tests.steward.until import child_named, until

pytestmark = pytest.mark.here("it kills processes of ranks")

SIZES = """
import os
names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")
[os.environ[name] for name in names]
"""


LATE = """
import time
from jupyter_dtrain.wire.messages import REQUEST_MESSAGE
healing = get_ipython().kernel.control_handlers[REQUEST_MESSAGE].__self__._healing
ended_before = []
class Late:
    def __init__(self, comm): self.comm = comm
    def Shrink(self):
        made = self.comm.Shrink()
        asked = healing._try
        time.sleep(1)
        ended_before.append(asked is None or asked.given_up)
        return made
healing._base = Late(healing._base)
"""
"""A rank that is slow to leave the call in which it makes a communicator with the others that live."""


@pytest.fixture(scope="module")
def world(launch):
    """Two ranks; a test leaves any number alive."""
    with launch(n=2) as session:
        yield session


def listed(session: Session) -> int:
    """How many ranks the list of worlds shows."""
    return next(one.size for one in list_worlds() if one.id == session.id)


def test_a_world_grows_and_shrinks_and_ranks_that_stay_keep_everything(world):
    """2, 4, 3: numbers, the environment, MPI, the list of worlds, another client, output of a run from before."""
    run(world, "import os\nkept = [os.environ['RANK']]")
    before = pids(world)
    grown = world.resize(4)
    assert grown.healed.ranks == [2, 3]
    assert "The world has 4 ranks instead of 2" in str(grown)
    assert "Samplers" in str(grown)
    assert whole(world)
    assert values(run(world, SIZES)) == dict.fromkeys(range(4), ["4"] * 3)
    assert values(run(world, "globals().get('kept', 0)")) == {0: ["0"], 1: ["1"], 2: 0, 3: 0}
    assert listed(world) == 4
    four, last = pids(world), run(world, "print('of', os.environ['RANK'])")
    with Session.attach(world.name) as other:
        shrunk = world.resize(3)
        until(lambda: other.world.size == 3)
        assert pids(other) == {rank: four[rank] for rank in range(3)}

    assert str(shrunk).startswith("The world has 3 ranks instead of 4")
    assert whole(world)
    assert values(run(world, SIZES)) == dict.fromkeys(range(3), ["3"] * 3)
    assert {rank: four[rank] for rank in range(2)} == before
    assert pids(world) == {rank: four[rank] for rank in range(3)}
    assert not psutil.pid_exists(four[3])
    assert values(run(world, "globals().get('kept', 0)")) == {0: ["0"], 1: ["1"], 2: 0}
    assert listed(world) == 3
    assert {rank: last.text(rank) for rank in range(4)} == {rank: f"of {rank}\n" for rank in range(4)}
    with pytest.raises(BadRequest, match="There is no rank 3"):
        world.run("1", [3])


def test_a_client_that_comes_after_a_shrink_reads_the_run_of_before(world):
    """The newest run was on ranks that are gone; nothing waits for them, and the stored run is whole."""
    size = world.world.size
    world.resize(size + 1)
    last = run(world, "import os\nprint('of', os.environ['RANK'])")
    world.resize(size)
    with Session.attach(world.name, control=True) as other:
        found = other.last_run
        assert found.number == last.number
        assert found.outcome == "ok"
        assert all(found.text(rank).endswith(f"of {rank}\n") for rank in range(size + 1))
        assert whole(other)
        other.interrupt()
    world.control()
    assert whole(world)


def test_no_cell_begins_while_the_world_is_resized(world):
    """It would have the world changed under it; the error says when to try again."""
    size, refused = world.world.size, []

    def try_it(_):
        try:
            world.run("1", [0], view=None)
        except RanksBusy as error:
            refused.append(str(error))

    world.resize(size + 1, progress=try_it)
    world.resize(size)
    assert refused
    assert refused[0].startswith(f"The world is being resized from {size} to {size + 1} ranks: run the cell when")
    assert whole(world)


@pytest.mark.slow
def test_standing_snapshots_go_on_with_new_ranks(launch, tmp_path, monkeypatch):
    """They get the order before the next cell of all ranks."""
    pytest.importorskip("torch")
    monkeypatch.setenv("DTRAIN_SNAPSHOTS", str(tmp_path))
    make = """
import torch
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        opt.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        opt.step()
"""
    with launch(n=2) as session:
        run(session, make)
        session.save("auto", ["model"], every=2)
        session.resize(3)
        run(session, make)
        trained = run(session, "train(7)")
        assert trained.elapsed < 30
        session.stop_saving()
        assert [(one.name, one.ranks) for one in session.snapshots] == [("auto", 3)]


def test_new_ranks_run_earlier_cells_and_get_variables(world):
    """As those that a heal starts; dead ranks are replaced on the way."""
    size = world.world.size
    first = run(world, "def twice(x): return 2 * x")
    run(world, "own = [7]")
    kill(world, 1)
    done = world.resize(size + 1, ["own"], 0, replay=[first.number])

    assert done.healed.ranks == [1, size]
    assert values(run(world, "(own, twice(2))")) == {rank: ([7], 4) for rank in range(size + 1)}
    assert whole(world)


@pytest.mark.slow
def test_a_restart_keeps_the_number_of_ranks(world):
    """The world is started again as it is now."""
    size = world.world.size
    world.resize(size - 1)
    world.restart()

    assert world.world.size == size - 1
    assert whole(world)


def test_an_impossible_resize_is_refused_before_anything_happens(world):
    """The same number, no number, too many, busy ranks, an unknown variable."""
    size = world.world.size
    before = pids(world)
    for wrong in (0, -1, 1025, True, "3"):
        with pytest.raises(BadRequest, match="A world has 1 to 1024 ranks"):
            world.resize(wrong)
    with pytest.raises(ReplaceFailed, match=f"it has {size} ranks"):
        world.resize(size)
    with pytest.raises(BadRequest, match=r"Rank 0 does not have modle\. Nothing was changed"):
        world.resize(size + 1, ["modle"], 0)
    busy = begin(world, "import time\nwhile True: time.sleep(0.01)", [0])
    with pytest.raises(RanksBusy, match=f"Rank 0 still works on run {busy.number}"):
        world.resize(size + 1)
    world.interrupt()
    assert busy.wait(20)
    assert pids(world) == before
    assert whole(world)


def test_a_try_ends_when_no_rank_makes_a_communicator_any_more(launch):
    """Where no process can be started; a rank that still made one would crash in Open MPI as others revoke it."""
    with launch(n=3) as session:
        run(session, LATE, [2])
        before = pids(session)
        mpiexec = child_named(session, "prterun")
        limits = mpiexec.rlimit(psutil.RLIMIT_NOFILE)
        mpiexec.rlimit(psutil.RLIMIT_NOFILE, (mpiexec.num_fds(), limits[1]))
        with pytest.raises(ReplaceFailed, match=r"try 3 of 3"):
            session.resize(4)
        mpiexec.rlimit(psutil.RLIMIT_NOFILE, limits)

        assert values(run(session, "healing._base = healing._base.comm\nended_before", [2])) == {2: [False] * 3}
        assert pids(session) == before
        session.resize(4)
        assert whole(session)


@pytest.mark.slow
@pytest.mark.parametrize("to", [4, 2])
@pytest.mark.parametrize("victim", ["new", 0, 1])
def test_a_death_during_a_resize_is_healed_too(launch, to, victim):
    """A new rank dies, or one that stays: the resize begins again, and ends with a whole world."""
    with launch(n=3) as session:
        struck = []

        def strike(words):
            if not struck and (victim != "new" or words.startswith("rank 3 starts")):
                process = newcomer(session) if victim == "new" else psutil.Process(session.world.ranks[victim].pid)
                if process is not None:
                    struck.append(process.pid)
                    process.kill()

        done = session.resize(to, progress=strike)
        assert struck or (to == 2 and victim == "new")
        assert done.size == session.world.size == to
        if any(rank.pid in struck for rank in session.world.ranks):
            # A resize to fewer ranks takes a tenth of a second: it was over when the rank died.
            until(lambda: session.world.dead)
            session.replace()
        assert whole(session)


@pytest.mark.slow
def test_ten_resizes_in_a_row_keep_memory_and_descriptors(launch):
    """A rank that lives through all of them, its watch and its steward."""
    with launch(n=2) as session:
        rank = psutil.Process(session.world.ranks[0].pid)
        watched = [rank, rank.parent(), rank.parent().parent()]

        def look():
            return [(one.memory_full_info().uss, one.num_fds(), one.num_threads()) for one in watched]

        def resize(times):
            for turn in range(times):
                session.resize((4, 1, 3, 2)[turn % 4])
                assert whole(session)

        resize(4)
        before = look()
        resize(12)
        for (memory, files, threads), (more, more_files, more_threads) in zip(before, look(), strict=True):
            assert more - memory < 6 << 20
            assert more_files <= files + 6
            assert more_threads <= threads + 1

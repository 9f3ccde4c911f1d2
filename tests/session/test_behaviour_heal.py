"""``heal`` puts new processes in the place of dead ranks; the others keep their processes and variables."""

from __future__ import annotations

import os
import signal
import subprocess

import psutil
import pytest

from jupyter_dtrain import BadRequest, DistributedError, RanksBusy, ReplaceFailed, Session
from jupyter_dtrain.core.causes import blocks
from jupyter_dtrain.wire.healing_messages import ReadHeritage
from tests.session.cells import begin, fail, pids, run, same, values
from tests.steward.until import steward_of, until

pytestmark = pytest.mark.here("it kills processes of ranks")

TOLD = """
import os
import jupyter_dtrain
from mpi4py import MPI
comm = jupyter_dtrain.comm
(comm.allreduce(1), comm.rank, comm is MPI.COMM_WORLD, os.environ["RANK"], os.environ["OMPI_COMM_WORLD_RANK"])
"""


@pytest.fixture(scope="module")
def healed(launch):
    """Four ranks; each test leaves them alive."""
    with launch(n=4) as session:
        yield session


def kill(session: Session, *ranks: int) -> None:
    """Kill ``ranks``, and wait until the session knows."""
    for rank in ranks:
        os.kill(session.world.ranks[rank].pid, signal.SIGKILL)
    until(lambda: {*ranks} <= {rank.rank for rank in session.world.dead})


def whole(session: Session) -> bool:
    """Whether MPI's world spans all ranks, each under its number, as the attribute and in the environment."""
    size = session.world.size
    return values(run(session, TOLD)) == {rank: (size, rank, True, str(rank), str(rank)) for rank in range(size)}


def newcomer(session: Session) -> psutil.Process | None:
    """The newest process that the watch has forked, if it is none of the world's ranks."""
    known = {rank.pid for rank in session.world.ranks}
    watch = psutil.Process(next(rank.pid for rank in session.world.ranks if rank.state != "dead")).parent()
    new = [child for child in watch.children() if child.pid not in known]
    return max(new, key=lambda child: child.create_time(), default=None)


def test_a_network_that_goes_away_after_a_heal_keeps_no_rank_waiting(passing_network, launch):
    """Ranks would reach a new one by the fastest network of the machine, and wait for ever once that has gone."""
    with launch(n=3) as session:
        run(session, "1")
        kill(session, 2)
        session.replace()
        subprocess.run(passing_network, check=True)

        assert whole(session)


@pytest.mark.parametrize(
    "victims",
    [(0,), *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in ((1,), (1, 3), (0, 1, 2)))],
)
def test_new_ranks_have_the_numbers_of_the_dead_and_the_others_keep_everything(healed, victims):
    """One rank, rank 0, several at once, all but one."""
    run(healed, "import os\nkept = [os.environ['RANK']]")
    before = pids(healed)
    kill(healed, *victims)
    done = healed.replace()
    assert f"imports yet. Run the cells that make them with %%rank {victims[0]}" in str(done)
    after = pids(healed)

    assert done.ranks == [*victims]
    assert whole(healed)
    assert [rank for rank in range(4) if before[rank] != after[rank]] == [*victims]
    assert values(run(healed, "globals().get('kept', 0)")) == {
        rank: 0 if rank in victims else [str(rank)] for rank in range(4)
    }
    assert healed.world.dead == []


def test_the_new_ranks_run_earlier_cells_and_get_variables(healed):
    """Cells run on the new rank alone. Variables are copied to it; what has a state is equal everywhere then."""
    first = run(healed, "import os\nran = [os.environ['RANK']]\ndef twice(x): return 2 * x")
    run(
        healed,
        """
class Counter:
    def __init__(self): self.steps = 0
    def state_dict(self): return {"steps": self.steps}
    def load_state_dict(self, state): self.steps = state["steps"]
counter = Counter()
counter.steps = 7 if os.environ["RANK"] == "0" else 6
holder = [counter]
own = [int(os.environ["RANK"])]
""",
    )
    kill(healed, 2)
    done = healed.replace(["counter", "holder", "own"], 0, replay=[first.number])

    assert values(run(healed, "ran, twice(2)")) == {rank: ([str(rank)], 4) for rank in range(4)}
    assert same((7, True), 4) == values(run(healed, "(counter.steps, holder[0] is counter)"))
    assert values(run(healed, "own")) == {0: [0], 1: [1], 2: [0], 3: [3]}
    assert done.names == ["counter", "holder", "own"]
    assert "Rank 2 has a new process" in str(done)
    assert "counter was not the same on ranks 1,3, and has the values of rank 0 now.\n" in f"{done}\n"


def test_a_variable_that_a_new_rank_lacks_has_a_fix_in_its_error(healed):
    """A name that no rank has is the user's slip: its error is the same on all ranks, and blames no new one."""
    run(healed, "model = {'weight': 1}")
    kill(healed, 1)
    healed.replace()
    missing = fail(healed, "model").errors
    slip = fail(healed, "modle")

    assert missing.keys() == {1}
    assert missing[1].notes == [
        (
            "Rank 1 is a new process, without the variables that cells made before it came. "
            "%distributed broadcast --from 0 model copies model from rank 0."
        )
    ]
    assert "new process" not in "\n".join(blocks(slip))
    healed.broadcast(["model"], 0)
    assert same({"weight": 1}, 4) == values(run(healed, "model"))


def test_an_impossible_heal_is_refused_before_anything_happens(healed):
    """Nobody dead, a dead source, a missing name, a source without names, cells that wait for all ranks, busy ranks."""
    together = run(healed, f"{TOLD}\ndef later(): comm.barrier()")
    hidden = run(healed, "def waits():\n    comm.barrier()\nif comm.rank < 0: waits()")
    with pytest.raises(ReplaceFailed, match=r"no rank is dead\. %distributed broadcast"):
        healed.replace()
    kill(healed, 1)
    with pytest.raises(BadRequest, match=r"Rank 1 is dead: copy from a living rank, 0,2-3\."):
        healed.replace(["comm"], 1)
    with pytest.raises(BadRequest, match=r"Rank 0 does not have modle\. Nothing was changed"):
        healed.replace(["modle"], 0)
    with pytest.raises(BadRequest, match="Name the variables"):
        healed.replace(source=0)
    with pytest.raises(BadRequest, match="There is no rank 4"):
        healed.replace(["comm"], 4)
    with pytest.raises(BadRequest, match=f"Run {together.number} calls allreduce, and would wait for all ranks there"):
        healed.replace(replay=[together.number])
    with pytest.raises(BadRequest, match=f"Run {hidden.number} calls barrier"):
        healed.replace(replay=[hidden.number])
    with pytest.raises(BadRequest, match="has no cell of a run 99999"):
        healed.replace(replay=[99999])
    busy = begin(healed, "import time\nwhile True: time.sleep(0.01)", [2])
    with pytest.raises(RanksBusy, match=f"Rank 2 still works on run {busy.number}"):
        healed.replace()
    healed.interrupt()
    assert busy.wait(20)
    assert [rank.rank for rank in healed.world.dead] == [1]
    healed.replace()
    assert whole(healed)


def test_a_rank_is_idle_for_everybody_once_its_run_is_over(healed):
    """A thread that a cell has left behind keeps the main thread from the interpreter just then."""
    engines = [rank.engine for rank in healed._link.world.ranks]
    run(healed, "import threading\ngo_on = True\ndef work():\n    while go_on: pass")
    run(healed, "threading.Thread(target=work, daemon=True).start()")
    found = []
    for _ in range(20):
        over = run(healed, "1")
        asked = [healed._link.bound()[1].ask(engine, ReadHeritage()) for engine in engines]
        found += [future.result(20).run == over.number for future in asked]
    run(healed, "go_on = False")
    assert not any(found)


def test_a_new_rank_is_released_and_its_world_made_again_like_any_other(healed):
    """A rank that raises while others wait in MPI frees them, in the new world too."""
    kill(healed, 3)
    healed.replace()
    failed = fail(healed, f"{TOLD}\nif comm.rank == 3: 1 / 0\ncomm.barrier()")

    assert failed.errors[3].ename == "ZeroDivisionError"
    assert {failed.errors[rank].waited for rank in range(3)} == {"barrier"}
    assert whole(healed)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["new", 0, 2])
def test_a_death_during_a_heal_is_healed_too(healed, victim):
    """The new rank itself dies, or a living one: the heal begins again, and ends with a whole world."""
    struck = []

    def strike(words):
        if not struck and words == "rank 1 starts":
            process = newcomer(healed) if victim == "new" else psutil.Process(healed.world.ranks[victim].pid)
            if process is not None:
                struck.append(process.pid)
                process.kill()

    kill(healed, 1)
    done = healed.replace(progress=strike)

    assert struck
    assert done.ranks == ([1] if victim == "new" else sorted([1, victim]))
    assert whole(healed)


@pytest.mark.slow
def test_a_rank_is_replaced_after_its_slot_was_ended_first(launch):
    """``mpiexec`` may give the new process a connection that it does not answer: the next try gets another."""
    for _ in range(4):  # it happens in about half of them
        with launch(n=4) as session:
            before = pids(session)
            holders = [
                one for one in steward_of(session).children(recursive=True) if "slot_holder" in str(one.cmdline())
            ]
            next(one for one in holders if one.environ().get("OMPI_COMM_WORLD_RANK") == "0").kill()
            until(lambda session=session: [rank.rank for rank in session.world.dead] == [0])
            assert session.replace().ranks == [0]
            assert whole(session)
            assert {rank: pid for rank, pid in pids(session).items() if before[rank] == pid}.keys() == {1, 2, 3}
            watch = psutil.Process(pids(session)[0]).parent()
            until(lambda watch=watch, session=session: len(watch.children()) == session.world.size)


@pytest.mark.slow
def test_ten_heals_in_a_row_keep_memory_and_descriptors(healed):
    """A rank that lives through all of them, its watch and its steward."""
    rank = psutil.Process(healed.world.ranks[2].pid)
    watched = [rank, rank.parent(), rank.parent().parent()]

    def heal(times):
        for turn in range(times):
            kill(healed, (0, 1, 3)[turn % 3])
            healed.replace()
            assert whole(healed)

    def look():
        return [(one.memory_full_info().uss, one.num_fds(), one.num_threads()) for one in watched]

    heal(3)
    before = look()
    heal(10)
    after = look()

    for (memory, files, threads), (more, more_files, more_threads) in zip(before, after, strict=True):
        assert more - memory < 6 << 20
        assert more_files <= files + 6
        assert more_threads <= threads + 1


@pytest.mark.slow
def test_a_world_can_replace_dead_ranks_by_itself(launch):
    """With ``auto_replace``, once no cell runs."""
    with launch(n=3, auto_replace=True) as session:
        run(session, "import os\nkept = 1")
        with pytest.raises(DistributedError):
            run(session, "if os.environ['RANK'] == '1': os.kill(os.getpid(), 9)")
        until(lambda: not session.world.dead)
        assert whole(session)
        assert values(run(session, "globals().get('kept', 0)")) == {0: 1, 1: 0, 2: 1}


@pytest.mark.slow
def test_a_client_that_joins_later_talks_to_the_new_ranks(healed):
    """It reads the world from the steward."""
    kill(healed, 0)
    healed.replace()
    with Session.attach(healed.name, control=True) as other:
        assert whole(other)
        assert pids(other) == pids(healed)
    healed.control()
    assert whole(healed)


@pytest.mark.slow
def test_where_it_cannot_work_it_says_why(launch):
    """``mpiexec`` has ended; no rank is left; MPI cannot reach a new rank."""
    with launch(n=2, env={"OMPI_MCA_btl": "self,sm", "OMPI_MCA_pml": "ob1"}) as session:
        kill(session, 1)
        with pytest.raises(ReplaceFailed, match=r"OMPI_MCA_btl leaves out tcp.*%distributed restart"):
            session.replace()
    with launch(n=2) as session:
        watch = psutil.Process(session.world.ranks[0].pid).parent()
        mpiexec = next(one for one in watch.parent().children() if "prterun" in " ".join(one.cmdline()))
        kill(session, 1)
        mpiexec.kill()
        until(lambda: "mpiexec" in str(_failure(session)))
        kill(session, 0)
        with pytest.raises(ReplaceFailed, match=r"no rank is left.*%distributed restart"):
            session.replace()


def _failure(session: Session) -> Exception:
    with pytest.raises(ReplaceFailed) as caught:
        session.replace()
    return caught.value

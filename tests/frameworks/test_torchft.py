"""torchft in cells: training goes on when ranks die, and with ``elastic`` new ranks join it by themselves."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from jupyter_dtrain import BadRequest, DistributedInterrupt, ReplaceFailed, Run, Session
from jupyter_dtrain.wire.messages import Watching
from tests.pace import slack
from tests.session.cells import Notes, pids, run, same, values
from tests.steward.until import child_named, family, running, until

pytestmark = [
    pytest.mark.here("it kills processes of ranks"),
    pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="torchft has no wheel for this machine"),
]

MAKE = """
import os, time
import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

torch.manual_seed(int(os.environ["RANK"]))
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
inner = torch.optim.Adam(model.parameters(), lr=1e-3)

def load(state):
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["optimizer"])

def save():
    return {"model": model.state_dict(), "optimizer": inner.state_dict()}

manager = Manager(pg=ProcessGroupGloo(), load_state_dict=load, state_dict=save, min_replica_size=1)
ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)

def train(goes_on):
    longest, last = 0.0, None  # the first step waits for all ranks
    while goes_on():
        optimizer.zero_grad()
        ddp(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        now = time.monotonic()
        longest, last = max(longest, now - (last or now)), now
        print(manager.current_step(), flush=True)
        time.sleep(0.01)
    return manager.current_step(), round(longest, 2), weights()

def weights():
    return [round(float(p.detach().double().sum()), 9) for p in model.parameters()]
"""
TRAIN = "train(lambda: manager.current_step() < {})"
WHOLE = "from mpi4py import MPI\n(MPI.COMM_WORLD.allreduce(1), weights())"


class Goal:
    """The step at which a training ends: a file says it, so that a test chooses it while ranks are busy."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def cell(self) -> str:
        return f"""
def goes_on(path={str(self._path)!r}):
    return not os.path.exists(path) or manager.current_step() < int(open(path).read())

train(goes_on)
"""

    def set(self, step: int) -> None:
        written = self._path.with_suffix(".new")
        written.write_text(str(step))
        written.rename(self._path)


@pytest.fixture
def goal(tmp_path):
    return Goal(tmp_path / "goal")


@pytest.fixture(scope="module")
def three(launch):
    """Three ranks; each test leaves them alive and idle."""
    with launch(n=3) as session:
        yield session


def step_of(run: Run, rank: int) -> int:
    """The last step that ``rank`` has printed."""
    tail = run.totals[rank].tail
    return int(tail[-1]) if tail and tail[-1].isdigit() else 0


def kill(session: Session, *ranks: int) -> None:
    for rank in ranks:
        os.kill(session.world.ranks[rank].pid, signal.SIGKILL)


class Elastic:
    """An elastic run on a thread of its own, as a notebook's cell is while a test acts."""

    def __init__(self, session: Session, code: str, made: Run, **options) -> None:
        self.notes, self.session = Notes(), session
        self.before = session.last_run.number
        self.raised: BaseException | None = None
        self._call = lambda: session.run(code, view=self.notes, elastic=True, replay=[made.number], **options)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        until(lambda: session.last_run.number > self.before)
        self.run = session.last_run

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 — looked at later
            self.raised = error

    def trains(self, steps: int = 20, rank: int = 2) -> None:
        """Wait until it has trained for so many steps more."""
        begun = step_of(self.run, rank)
        until(lambda: step_of(self.run, rank) >= begun + steps, 60)

    def said(self, words: str) -> str:
        """The note with ``words`` in it, once it is there."""
        return until(lambda: next((one for one in self.notes.words if words in one), ""), 60)

    def loses_rank_1(self, trap: Path, goal: Goal, words: str) -> str:
        """Set the trap for new ranks, and kill rank 1: the others go on to their end; the note with ``words``."""
        self.trains()
        trap.touch()
        kill(self.session, 1)
        said = self.said(words)
        self.trains()
        goal.set(step_of(self.run, 2) + 20)
        assert self.end() is None
        assert (self.run.outcome, self.run.remark) == ("ok", "rank 1 was lost")
        return said

    def end(self) -> BaseException | None:
        """Wait for the end of the cell; the error that it raised."""
        self._thread.join(90)
        assert not self._thread.is_alive()
        return self.raised

    @property
    def joined(self) -> Run:
        """The run that joined."""
        return self.run.joined[-1] if self.run.joined else self.run


def test_a_plain_manager_trains_and_is_quiet(three):
    """Each rank is a replica group of its own, without an argument that says so; the cell can run again."""
    for until_step in (10, 20):
        made = run(three, MAKE)
        found = values(run(three, TRAIN.format(until_step)))
        assert [one[0] for one in found.values()] == [until_step] * 3
        assert len({str(one[2]) for one in found.values()}) == 1
        assert "INFO" not in made.text(0)


def test_a_manager_between_cells_keeps_no_other_rank_waiting(three):
    """It would wait for a minute; then the others take the state of the rank that has trained alone."""
    run(three, MAKE)
    run(three, TRAIN.format(10))
    began = time.monotonic()
    alone = values(run(three, TRAIN.format(15), 0))[0]
    assert time.monotonic() - began < 8 + slack()
    assert alone[0] == 15
    found = values(run(three, TRAIN.format(20)))
    assert [one[0] for one in found.values()] == [20] * 3
    assert len({str(one[2]) for one in found.values()}) == 1


def test_ranks_that_begin_a_cell_late_train_with_the_first(three):
    """It would end before they begin: it has trained alone, so the lighthouse gives it each step at once."""
    run(three, MAKE)
    run(three, TRAIN.format(5))
    run(three, TRAIN.format(10), 0)
    found = values(run(three, "time.sleep(0.6 * (os.environ['RANK'] != '0'))\n" + TRAIN.format(20)))
    assert [one[0] for one in found.values()] == [20] * 3
    assert len({str(one[2]) for one in found.values()}) == 1


def test_a_slow_rank_is_waited_for(three):
    """It would miss steps, and the last one for good."""
    run(three, MAKE)
    run(three, TRAIN.format(5))
    slow = """
before = manager.batches_committed()
def goes_on():
    if manager.current_step() == 10 and os.environ["RANK"] == "0":
        time.sleep(0.5)
    return manager.current_step() < 15
found = train(goes_on)
manager.batches_committed() - before, found[2]
"""
    found = values(run(three, slow))
    assert len({str(one[1]) for one in found.values()}) == 1
    assert [one[0] for one in found.values()] == [30] * 3


def test_a_cell_that_cannot_be_elastic_is_refused(three):
    """Whatever waits for all ranks would keep the new one waiting."""
    group = run(three, "import torch.distributed as dist\ndef later(): dist.init_process_group()")
    before = three.last_run
    for code, replay, words in (
        ("import jupyter_dtrain\njupyter_dtrain.comm.barrier()", [], "This cell calls barrier, which waits for all"),
        ("later()", [group.number], "This cell calls init_process_group"),
        ("1", [99999], "has no cell of a run 99999"),
    ):
        with pytest.raises(BadRequest, match=words):
            three.run(code, view=None, elastic=True, replay=replay)
    with pytest.raises(BadRequest, match="--replay needs --elastic"):
        three.run("1", view=None, replay=[group.number])
    assert three.last_run is before


@pytest.mark.slow
def test_the_others_go_on_when_a_rank_dies(three, goal):
    """Without ``elastic``, too: their pause is short. A heal and the cell again bring the rank back."""
    made = run(three, MAKE)
    cell = three.run(goal.cell, wait=False, view=None)
    until(lambda: step_of(cell, 2) > 20, 60)
    kill(three, 1)
    until(lambda: three.world.dead)
    goal.set(step_of(cell, 2) + 60)
    assert cell.wait(60)
    found = values(cell)
    print("longest pauses:", {rank: one[1] for rank, one in found.items()})
    assert cell.errors == {}
    assert sorted(found) == [0, 2]
    assert found[0][0] == found[2][0] == int(goal._path.read_text())
    assert found[0][2] == found[2][2]
    assert max(one[1] for one in found.values()) < 5
    three.replace(replay=[made.number])
    again = values(run(three, TRAIN.format(found[0][0] + 20)))
    assert len({str(one[2]) for one in again.values()}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("victims", [(1,), (0,), (0, 1)])
def test_new_ranks_join_the_training_by_themselves(three, goal, victims):
    """The cell goes on meanwhile and ends well; all ranks have the same weights, and the world is whole."""
    made = run(three, MAKE)
    before = pids(three)
    cell = Elastic(three, goal.cell, made)
    cell.trains()
    kill(three, *victims)
    said = cell.said("this cell as run")
    until(lambda: {rank for join in [cell.joined] for rank in join.ranks if step_of(join, rank) > 0} == {*victims}, 60)
    cell.trains()
    goal.set(step_of(cell.run, 2) + 40)
    assert cell.end() is None
    assert values(cell.run)[2][1] < 20
    print("longest pause:", values(cell.run)[2][1], "s;", said)
    assert "has a new process after" in said or "have new processes after" in said
    assert f"ran the cell of run {made.number} again and join" in said
    assert cell.joined.ranks == [*victims]
    became = "rank {0} was" if len(victims) == 1 else "ranks 0-1 were"
    assert (cell.run.outcome, cell.run.remark) == ("ok", f"{became.format(*victims)} replaced")
    found = values(cell.run) | values(cell.joined)
    assert {one[0] for one in found.values()} == {int(goal._path.read_text())}
    assert len({str(one[2]) for one in found.values()}) == 1
    assert values(run(three, WHOLE)) == same((3, found[2][2]))
    after = pids(three)
    assert {rank for rank in after if after[rank] != before[rank]} == {*victims}


@pytest.mark.slow
def test_a_new_rank_that_dies_too_is_replaced_too(three, goal, tmp_path):
    """First in its set-up cell, then in the training that it has joined."""
    trap = tmp_path / "trap"
    made = run(
        three, f"{MAKE}\nif os.path.exists({str(trap)!r}):\n    os.remove({str(trap)!r})\n    os.kill(os.getpid(), 9)"
    )
    cell = Elastic(three, goal.cell, made)
    cell.trains()
    trap.touch()
    kill(three, 1)
    first = cell.said("this cell as run")
    assert not trap.exists()
    until(lambda: step_of(cell.joined, 1) > 0, 60)
    kill(three, 1)
    until(lambda: sum("this cell as run" in one for one in cell.notes.words) == 2, 60)
    until(lambda: step_of(cell.joined, 1) > 0, 60)
    goal.set(step_of(cell.run, 2) + 40)
    assert cell.end() is None
    assert first in cell.notes.words
    found = values(cell.run) | values(cell.joined)
    assert values(run(three, WHOLE)) == same((3, found[2][2]))


@pytest.mark.slow
def test_stop_during_the_heal_ends_the_cell(three, goal):
    """At once; the heal ends by itself, and the next cell runs on all ranks."""
    made = run(three, MAKE)
    cell = Elastic(three, goal.cell, made)
    cell.trains()
    kill(three, 1)
    assert cell.said("Rank 1 will be replaced while the others go on.").startswith("Rank 1 was killed (SIGKILL)")
    began = time.monotonic()
    three.interrupt()
    assert isinstance(cell.end(), DistributedInterrupt)
    assert time.monotonic() - began < 8 + slack()
    until(lambda: not three.world.dead)
    until(
        lambda: threading.active_count() and not [one for one in threading.enumerate() if one.name == "dtrain-elastic"]
    )
    assert cell.joined is cell.run
    assert values(run(three, "from mpi4py import MPI\nMPI.COMM_WORLD.allreduce(1)")) == same(3)


@pytest.mark.slow
def test_a_training_that_ends_before_the_new_rank_joins_is_not_begun_again(three, goal, capsys, tmp_path):
    """The rank would train alone, from the beginning. The cell says so; the others' training has ended well."""
    held = tmp_path / "held"
    made = run(three, f"import os, time\nwhile os.path.exists({str(held)!r}): time.sleep(0.02)\n{MAKE}")
    cell = Elastic(three, goal.cell, made)
    cell.trains()
    held.touch()
    kill(three, 1)
    cell.said("Rank 1 will be replaced")
    goal.set(step_of(cell.run, 2) + 5)
    assert cell.run.wait(60)
    held.unlink()
    assert cell.end() is None
    assert (cell.run.outcome, cell.run.remark) == ("ok", "rank 1 was lost")
    assert "Rank 1 has a new process, but this cell had ended on the others" in capsys.readouterr().err
    assert three.world.dead == []
    assert values(run(three, "from mpi4py import MPI\nMPI.COMM_WORLD.allreduce(1)")) == same(3)


def test_a_new_rank_that_finds_no_training_does_not_begin_one(three):
    """The news that the others have ended may come too late for the session; torchft finds nobody there."""
    made = run(three, MAKE)
    late = three._cells.run(
        TRAIN.format(5),
        [1],
        lambda _: None,
        wait=False,
        timeout=None,
        inputs={},
        watch=Watching(),
        cell=None,
        joins=made.number,
    )
    assert late.wait(30)
    assert late.outcome == "interrupted"  # so the elastic run, whose other ranks have ended well, ends well, too
    assert late.errors[1].ename == "TrainingOver"
    assert "%distributed broadcast NAMES copies it" in late.errors[1].evalue
    assert values(run(three, "manager.current_step()", 1)) == {1: 0}


@pytest.mark.slow
def test_a_rank_that_dies_again_and_again_is_left_out(three, goal, tmp_path):
    """Too little memory, say, would kill each new process."""
    trap = tmp_path / "trap"
    made = run(three, f"{MAKE}\nif os.path.exists({str(trap)!r}):\n    os.kill(os.getpid(), 9)")
    cell = Elastic(three, goal.cell, made)
    said = cell.loses_rank_1(trap, goal, "Rank 1 has died 3 times")
    assert said.endswith("This cell goes on without it.")
    assert len([one for one in cell.notes.words if "will be replaced" in one]) == 3
    three.replace()
    assert values(run(three, "from mpi4py import MPI\nMPI.COMM_WORLD.allreduce(1)")) == same(3)


@pytest.mark.slow
def test_where_a_set_up_cell_fails_the_others_go_on(three, goal, tmp_path):
    """It says why, and the cell goes on without that rank."""
    trap = tmp_path / "trap"
    made = run(three, f"{MAKE}\nassert not os.path.exists({str(trap)!r}), 'trapped'")
    cell = Elastic(three, goal.cell, made)
    assert "trapped" in cell.loses_rank_1(trap, goal, "cannot join")
    assert cell.run.errors == {}
    assert values(run(three, "from mpi4py import MPI\nMPI.COMM_WORLD.allreduce(1)")) == same(3)


@pytest.mark.slow
def test_where_nobody_can_be_replaced_the_others_go_on(launch, goal):
    """MPI cannot reach a new rank here. The cell says so once. Nothing of the world is left after its stop."""
    with launch(n=2, env={"OMPI_MCA_btl": "self,sm", "OMPI_MCA_pml": "ob1"}) as session:
        made = run(session, MAKE)
        cell = Elastic(session, goal.cell, made)
        cell.trains(rank=0)
        kill(session, 1)
        assert "This cell goes on without rank 1." in cell.said("OMPI_MCA_btl leaves out tcp")
        cell.trains(rank=0)
        goal.set(step_of(cell.run, 0) + 20)
        assert cell.end() is None
        assert (cell.run.outcome, cell.run.remark) == ("ok", "rank 1 was lost")
        assert len([one for one in cell.notes.words if "OMPI_MCA_btl" in one]) == 1
        with contextlib.suppress(ReplaceFailed):
            session.replace()
        assert child_named(session, "elastic.lighthouse")
        everything = family(session)
    assert running(everything) == []

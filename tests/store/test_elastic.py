"""Real elastic cells, of a loop that waits for nobody: session, observer and store come to the same end of a run."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from jupyter_dtrain import DistributedError, Run, Session, Store
from jupyter_dtrain.view.labels import ending_of
from tests.session.cells import Notes, until

pytestmark = pytest.mark.here("it kills processes of ranks")

CELL = """
import os, time
print("begun", flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.02)
assert not os.path.exists({bad!r}) or os.environ["RANK"] != "1"
"""


class Elastic:
    """An elastic run on a thread of its own, as a notebook's cell is while a test acts."""

    def __init__(self, session: Session, folder: Path) -> None:
        self.notes, self.session, self.raised = Notes(), session, []
        self.go, self.bad = folder / "go", folder / "bad"
        before = 0 if session.last_run is None else session.last_run.number
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        until(lambda: session.last_run is not None and session.last_run.number > before)
        self.run: Run = session.last_run
        self.began(self.run)

    def _run(self) -> None:
        try:
            code = CELL.format(go=str(self.go), bad=str(self.bad))
            self.session.run(code, view=self.notes, elastic=True)
        except BaseException as error:  # noqa: BLE001 — looked at later
            self.raised.append(error)

    def began(self, run: Run) -> None:
        """Wait until all ranks of ``run`` have said so."""
        until(lambda: all("begun" in run.text(rank) for rank in run.ranks), 60)

    def loses_rank_1(self) -> Run:
        """Kill it; the run with which its successor has joined."""
        os.kill(self.session.world.ranks[1].pid, signal.SIGKILL)
        until(lambda: any("this cell as run" in words for words in self.notes.words), 60)
        join = self.run.joined[-1]
        assert self.session.last_run is self.run  # the cell's own, to which -o gives a name
        assert join.joins == self.run.number or until(lambda: join.joins) == self.run.number
        self.began(join)
        return join

    def ends(self) -> list[BaseException]:
        """Let the cell end; what it raised."""
        self.go.touch()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.raised


@pytest.fixture
def world(launch, own_data):
    """Two ranks."""
    with launch(n=2) as session:
        yield session


def test_a_cell_whose_rank_was_replaced_is_ok_for_everybody(world, tmp_path):
    """The cell raises nothing, and all lists say what became of the rank: session, observer and store."""
    cell = Elastic(world, tmp_path)
    join = cell.loses_rank_1()
    observer = Session.attach(world.name)
    seen = {run.number: run for run in observer.running}
    assert cell.ends() == []
    stored = Store.open().run_of(cell.run)
    until(lambda: Store.open().run_of(join).outcome == "ok")
    until(lambda: seen[cell.run.number].done)
    words = [ending_of(run) for run in (cell.run, Store.open().run_of(cell.run), seen[cell.run.number])]
    observer.leave()

    assert words == ["ok, rank 1 was replaced"] * 3
    assert stored.outcomes == {0: "ok", 1: "lost"}
    assert (cell.run.outcome, join.outcome) == ("ok", "ok")
    assert world.run("1", view=None).outcome == "ok"


@pytest.mark.slow
def test_a_cell_whose_new_rank_fails_has_failed(world, tmp_path):
    """It raises the new rank's error, and every list says so."""
    cell = Elastic(world, tmp_path)
    join = cell.loses_rank_1()
    cell.bad.touch()
    (raised,) = cell.ends()
    until(lambda: Store.open().run_of(cell.run).outcome != "ok")

    assert isinstance(raised, DistributedError)
    assert raised.run is join
    assert str(raised) == "AssertionError (rank 1)"
    assert (cell.run.outcome, Store.open().run_of(cell.run).outcome) == ("error", "error")


@pytest.mark.slow
def test_a_cell_that_goes_on_without_a_client_is_ok_too(world, tmp_path):
    """Nobody replaces the rank: the steward's store says that it was lost, and so does the next client."""
    cell = Elastic(world, tmp_path)
    pid, name = world.world.ranks[1].pid, world.name
    world.leave()
    os.kill(pid, signal.SIGKILL)
    cell.ends()
    ended = until(lambda: (runs := Store.open().runs(1)) and runs[0].outcome != "running" and runs[0])
    again = Session.attach(name, control=True)
    words, dead = [ending_of(run) for run in (ended, again.last_run)], [rank.rank for rank in again.world.dead]
    again.stop()

    assert words == ["ok, rank 1 was lost"] * 2
    assert dead == [1]

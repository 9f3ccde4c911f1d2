"""A view that blocks, as a terminal under Ctrl-S does, delays nothing but what it shows."""

from __future__ import annotations

import threading
import time

import pytest

from jupyter_dtrain import DistributedError
from jupyter_dtrain.client.painting import PRESSED, STUCK
from tests.pace import slack
from tests.session.cells import Notes, run, same, until, values

TALK = "import time\nwhile True:\n    print('more', flush=True)\n    time.sleep(0.05)"

TALK_AND_END = "import time\nfor _ in range(40):\n    print('more', flush=True)\n    time.sleep(0.1)"


class Blocking(Notes):
    """Takes nothing while its gate is closed; then all."""

    def __init__(self):
        super().__init__()
        self.gate, self.inside, self.over = threading.Event(), threading.Event(), threading.Event()
        self.text = {}

    def feed(self, batch, now):  # noqa: ARG002 — the protocol's shape
        """Keep its text, by rank."""
        self.inside.set()
        self.gate.wait()
        said = "".join(getattr(event.body, "text", "") for event in batch.events)
        self.text[batch.rank] = self.text.get(batch.rank, "") + said

    def close(self, run, now):  # noqa: ARG002 — the protocol's shape
        """All was shown."""
        self.over.set()


@pytest.fixture
def view():
    """Its gate is closed, and opens at the test's end."""
    view = Blocking()
    yield view
    view.gate.set()


def seconds(call):
    """How long ``call()`` takes."""
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_stop_ends_a_cell_whose_view_blocks(world, view):
    """The ranks end at once, and the waiting cell soon after; its output is shown once the view takes it."""
    cell = world.run(TALK, wait=False, view=view)
    assert view.inside.wait(20)
    pressed = time.monotonic()
    world.interrupt()
    until(lambda: not cell.unfinished)
    took = time.monotonic() - pressed
    world.interrupt()

    assert took < STUCK + slack(), "the ranks waited for the view"
    assert cell.wait(STUCK + 2 * slack())
    assert cell.outcome == "interrupted"
    assert not view.over.is_set()
    assert same(2) == values(run(world, "1 + 1"))
    view.gate.set()
    assert view.over.wait(20)
    assert view.text == {rank: cell.text(rank) for rank in cell.ranks}


def test_a_press_of_stop_ends_the_wait_for_a_view(world, view):
    """The ranks have ended the cell already."""
    cell = world.run("print('all')", wait=False, view=view)
    until(lambda: not cell.unfinished)
    until(lambda: cell.outcome == "ok")
    assert not cell.wait(0.2)
    world.interrupt()

    assert cell.wait(PRESSED + 2 * slack())
    assert cell.outcome == "ok"


@pytest.mark.slow
def test_a_death_is_noticed_while_a_view_blocks(launch, view, process_at):
    """The world knows it; who waits for the cell learns it within the deadline for views."""
    session = launch(n=2)
    raised = []

    def waiting():
        with pytest.raises(DistributedError) as caught:
            session.run(TALK_AND_END, view=view)
        raised.append(caught.value)

    thread = threading.Thread(target=waiting)
    thread.start()
    assert view.inside.wait(20)
    until(lambda: session.last_run.text(1))
    began = time.monotonic()
    process_at(session, 1).kill()
    until(lambda: session.world.ranks[1].state == "dead", 10)
    until(lambda: not session.last_run.unfinished)
    assert session.last_run.outcomes[1] == "lost"
    thread.join(STUCK + 60)

    assert not thread.is_alive()
    assert time.monotonic() - began < STUCK + 8 + slack()
    assert "rank 1 was killed (SIGKILL)" in str(raised[0])
    view.gate.set()
    assert view.over.wait(20)
    assert view.text == {rank: session.last_run.text(rank) for rank in (0, 1)}
    session.stop()


def test_stop_of_the_world_waits_for_no_view(launch, view):
    """It takes as long as without one; a thread that waits for the cell goes on as well."""
    usual = launch(n=2)
    usual.run(TALK, wait=False, view=None)
    usually = seconds(usual.stop)
    session = launch(n=2)
    cell = session.run(TALK, wait=False, view=view)
    assert view.inside.wait(20)

    assert seconds(session.stop) < usually + slack()
    assert cell.outcome == "lost"
    assert cell.wait(STUCK + 2 * slack())
    view.gate.set()
    assert view.over.wait(20)

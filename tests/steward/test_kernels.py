"""A notebook's kernel starts a world, and ends in one of the ways in which kernels end."""

from __future__ import annotations

from jupyter_dtrain.launch import worlds
from jupyter_dtrain.wire.steward_messages import ReadState, Stop
from tests.processes import wait_until_gone
from tests.steward.until import runs, until

START = """
from jupyter_dtrain import Session
session = Session.start(n=2)
session.run("x = 1", view=None)
print(session.name)
"""


def find(name: str) -> worlds.Listing:
    """The world of that name, which must be there."""
    return next(listing for listing in worlds.list_worlds() if listing.name == name)


def test_a_world_whose_kernel_was_killed_ends_with_its_lease(open_notebook, mark) -> None:
    """SIGKILL to the kernel, and a lease of three seconds."""
    notebook = open_notebook(JUPYTER_DTRAIN_KEEP_ALIVE="3")
    world = find(notebook.run(START).strip())
    notebook.kill()

    assert runs(world.steward)
    assert wait_until_gone(mark) == []


def test_a_world_whose_kernel_was_killed_can_be_stopped_by_another_client(open_notebook, mark) -> None:
    """SIGKILL to the kernel, and the usual lease: the world is listed, answers, and ends when it is asked to."""
    notebook = open_notebook()
    world = find(notebook.run(START).strip())
    kernel = notebook.manager.provisioner.pid
    notebook.kill()
    until(lambda: not runs(kernel))
    steward = worlds.open_channel(find(world.name), 10)
    try:
        state = steward.ask(ReadState())
        steward.ask(Stop())
    finally:
        steward.close()

    assert (state.phase, state.size) == ("running", 2)
    assert state.lease_left > 60
    assert wait_until_gone(mark) == []
    assert world.name not in [listing.name for listing in worlds.list_worlds()]


def test_a_kernel_that_exits_by_itself_takes_its_world_along(open_notebook, mark) -> None:
    """exit() in a cell, as a notebook user leaves a console."""
    notebook = open_notebook()
    notebook.run(START)
    notebook.client.execute("exit()")

    assert wait_until_gone(mark) == []

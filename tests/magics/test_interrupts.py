"""The notebook's stop button."""

from __future__ import annotations

import pytest

FOREVER = "import time\nprint('in', flush=True)\ntime.sleep(600)"
DEAF = """import os, pathlib, time
print('in', flush=True)
released = False
while not released:
    try:
        time.sleep(0.02)
        if os.environ['RANK'] != '1':
            time.sleep(600)
        released = pathlib.Path('release').exists()
    except BaseException:
        if os.environ['RANK'] != '1':
            raise
        print('no', flush=True)
"""

PRESS = """import jupyter_dtrain, os, signal, sys, threading, time
sys.setswitchinterval(1e-6)
session = jupyter_dtrain.current()
before = session.last_run
def press():
    while session.last_run is before:
        pass
    time.sleep({delay})
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press).start()
"""
"""Presses the stop button once there is a new run, from within: ipykernel loses a press that comes before the cell."""

UNTIL_IDLE = """import jupyter_dtrain, time
while any(rank.state != "idle" for rank in jupyter_dtrain.current().world.ranks):
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def patient(open_notebook):
    """A notebook with two ranks in which an interrupt waits longer for them than any test."""
    notebook = open_notebook(JUPYTER_DTRAIN_INTERRUPT_TIMEOUT="600")
    notebook.ok("%load_ext jupyter_dtrain\n%distributed start -n 2")
    return notebook


@pytest.fixture(scope="module")
def hasty(open_notebook):
    """The same where it gives up soon."""
    notebook = open_notebook(JUPYTER_DTRAIN_INTERRUPT_TIMEOUT="1")
    notebook.ok("%load_ext jupyter_dtrain\n%distributed start -n 2")
    return notebook


def test_the_stop_button_ends_the_cell_as_interrupted_and_variables_stay(patient):
    """It is no success: Run All stops there."""
    cell = patient.send(f"%%distributed\nstage = 'kept'\n{FOREVER}").wait_for(lambda cell: "[0-1] in" in cell.out)
    patient.interrupt()
    cell.wait()

    assert cell.ename == "DistributedInterrupt"
    assert cell.error["evalue"] == "Interrupted"
    assert "KeyboardInterrupt on ranks 0-1" in cell.traceback
    assert "----> 5 time.sleep(600)" in cell.traceback
    assert "jupyter_dtrain" not in cell.traceback
    assert "File " not in cell.traceback
    assert patient.ok("%%distributed\nstage").display_texts == ["[0-1] 'kept'"]


def test_the_stop_button_can_be_caught_in_the_notebook_as_any_keyboard_interrupt(patient):
    """A plain cell that runs code through the session."""
    code = (
        f"import jupyter_dtrain\ntry:\n    jupyter_dtrain.current().run({FOREVER!r})\n"
        "except KeyboardInterrupt as stop:\n    print('caught', stop.busy)"
    )
    cell = patient.send(code).wait_for(lambda cell: "[0-1] in" in cell.out)
    patient.interrupt()
    cell.wait()

    assert cell.ename is None
    assert cell.lines == ["[0-1] in", "caught []"]


def test_an_interrupt_reaches_the_ranks_whenever_it_comes(patient):
    """Stop works from the moment at which the run exists: no abandoned cell goes on unseen on the ranks."""
    outcomes = []
    for number in range(24):
        cell = patient.run(f"{PRESS.format(delay=number * 0.0002)}session.run({FOREVER!r})")
        outcomes.append(cell.ename)

        assert patient.ok("%%distributed\n1").display_texts == ["[0-1] 1"]
    assert set(outcomes) == {"DistributedInterrupt"}


def test_a_loop_of_questions_can_be_interrupted(patient):
    """It is almost always in one of them.

    The answer tells, not the traceback: Python 3.11 has jumps without a line, and IPython cannot show an error there.
    """
    patient.ok("%%distributed\nx = 1")
    first = "import jupyter_dtrain\nsession, told = jupyter_dtrain.current(), False\n"
    # A press before the loop would end the cell too, but in no question.
    loop = f"{first}while True:\n    session['x']\n    told = told or print('in', flush=True) or True"
    for _ in range(5):
        cell = patient.send(loop).wait_for(lambda cell: "in" in cell.out)
        patient.interrupt()
        cell.wait()

        assert (cell.reply["status"], cell.reply.get("ename")) == ("error", "KeyboardInterrupt"), cell.said
    assert patient.ok("%%distributed\nx").display_texts == ["[0-1] 1"]


def test_where_other_code_handles_the_signal_an_abandoned_cell_does_not_go_on(patient):
    own_handler = """import jupyter_dtrain, signal
def own(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, own)
"""
    cell = patient.send(f"{own_handler}jupyter_dtrain.current().run({FOREVER!r})").wait_for(
        lambda cell: "[0-1] in" in cell.out
    )
    patient.interrupt()
    cell.wait()
    patient.ok(UNTIL_IDLE)

    assert cell.ename == "KeyboardInterrupt"
    assert patient.ok("%%distributed\n1").display_texts == ["[0-1] 1"]


def test_a_second_press_ends_the_cell_soon_and_names_the_busy_ranks(patient):
    """The first press waits for them (here: for ever); the second shows where they are, and waits no more.

    Cells are refused while they work, and run once they have ended.
    """
    cell = patient.send(f"%%distributed\nstage = 'deaf'\n{DEAF}").wait_for(lambda cell: "[0-1] in" in cell.out)
    patient.interrupt()
    cell.wait_for(lambda cell: "[1] no" in cell.out)
    still_running = cell.reply is None
    patient.interrupt()
    cell.wait()
    refused = patient.run("%%distributed\n1")
    free = patient.ok("%%rank 0\nstage")
    stacks = patient.ok("%distributed stacks").out
    (patient.folder / "release").touch()
    patient.ok(UNTIL_IDLE)
    (patient.folder / "release").unlink()

    assert still_running
    assert "Rank 1 is still running" in cell.err
    assert "An exception is raised in the cell, which was here:\nRank 1: running" in cell.err
    assert cell.ename == "DistributedInterrupt"
    assert "Still busy: rank 1." in cell.traceback
    assert "%distributed kill 1 ends it" in cell.traceback
    assert "still busy: rank 1" in cell.error["evalue"]
    assert refused.ename == "RanksBusy"
    assert "Rank 1 is still working" in refused.traceback
    assert free.display_texts == ["[0] 'deaf'"]
    assert "Rank 0: idle\nRank 1: running" in stacks
    assert patient.ok("%%distributed\nstage").display_texts == ["[0-1] 'deaf'"]


def test_ranks_that_do_not_end_in_time_are_named_without_a_second_press(hasty):
    """The names come after the deadline, which is a setting."""
    cell = hasty.send(f"%%distributed\n{DEAF}").wait_for(lambda cell: "[0-1] in" in cell.out)
    hasty.interrupt()
    cell.wait()
    refused = hasty.run("%%distributed\n1")
    (hasty.folder / "release").touch()
    hasty.ok(UNTIL_IDLE)

    assert cell.ename == "DistributedInterrupt"
    assert "Still busy: rank 1." in cell.traceback
    assert refused.ename == "RanksBusy"
    assert hasty.ok("%%distributed\n1").display_texts == ["[0-1] 1"]


@pytest.mark.slow
def test_a_restart_ends_a_rank_that_does_not_listen(hasty):
    """The way that the message names."""
    (hasty.folder / "release").unlink(missing_ok=True)
    cell = hasty.send(f"%%distributed\n{DEAF}").wait_for(lambda cell: "[0-1] in" in cell.out)
    hasty.interrupt()
    cell.wait()
    hasty.ok("%distributed restart")

    assert hasty.ok("%%distributed\n1").display_texts == ["[0-1] 1"]


def test_the_stop_button_ends_what_is_queued_as_well(patient):
    """Cells in the background, in front of the one that is stopped."""
    first = patient.ok(f"%%distributed --no-wait\n{FOREVER}")
    first.wait_for(lambda cell: "[0-1] in" in cell.out)
    second = patient.run(f"{PRESS.format(delay=0.05)}session.run('queued_ran = True')")
    first.wait_for(lambda cell: "KeyboardInterrupt" in cell.err)

    assert second.ename == "DistributedInterrupt"
    assert "interrupted while it was queued" in second.traceback
    assert patient.ok("%%distributed\n'queued_ran' in globals()").display_texts == ["[0-1] False"]


def count(listing):
    """How many worlds a list names."""
    return max(0, len(listing.strip().splitlines()) - 2)


@pytest.mark.slow
def test_a_start_that_is_interrupted_leaves_nothing(open_notebook):
    """The button works while the world comes up, too."""
    notebook = open_notebook()
    notebook.ok("%load_ext jupyter_dtrain")
    before = notebook.ok("%distributed worlds").said
    cell = notebook.send("%distributed start -n 2").wait_for(lambda cell: cell.displays)
    notebook.interrupt()
    cell.wait()

    assert cell.ename == "StartInterrupted"
    assert cell.traceback.strip() == "The start was interrupted. Nothing of it is left."
    assert "No world is running here" in notebook.ok("%distributed").out
    assert notebook.ok("%distributed start -n 1 --name again").display_texts[0].startswith("World 'again' is up")
    assert count(notebook.ok("%distributed worlds").said) == count(before) + 1

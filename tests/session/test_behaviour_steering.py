"""A loop is steered between two of its steps: on all ranks after the same one, or on none."""

from __future__ import annotations

import threading
import time

import psutil
import pytest

from jupyter_dtrain import BadRequest, DistributedError, NotSteered, ReadOnly, Session, Settings
from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.core.steering import LoopAct
from jupyter_dtrain.wire.steering_messages import ReadSteer, Steer, WithdrawSteer
from tests.session.cells import Notes, begin, run, same, texts
from tests.steward.until import PATIENCE, stays, until

LOOP = """
import os, time
import jupyter_dtrain as dtrain
rank, lr, seen, go = int(os.environ["RANK"]), {"x": 1.0}, [], True
while go:
    time.sleep(0.002 * (rank + 1))
    seen.append(lr["x"])
    dtrain.step()
print("over")
"""
"""A loop whose ranks have paces of their own, until ``go`` is false."""


def begun(world, code):
    """Begin an act with ``code``; a thread, and what will have become of it."""
    said = []

    def act():
        try:
            said.append(world.loop.between(code).words)
        except NotSteered as error:
            said.append(str(error))

    thread = threading.Thread(target=act)
    thread.start()
    return thread, said


def changes(world):
    """The steps after which the value was another, by rank."""
    cell = run(world, "print([k for k in range(1, len(seen)) if seen[k] != seen[k - 1]])")
    return {rank: eval(text) for rank, text in texts(cell).items()}


def end(world, cell):
    """End the loop, between two of its steps."""
    world.loop.between("go = False")
    assert cell.wait(PATIENCE)


def phases(cell, rank):
    """What the fold says of each act: its step, and whether it went well on the rank."""
    return [(act.words, act.step, act.found[rank].ok) for act in cell.fold.acts.values()]


def test_code_runs_between_the_same_two_steps_on_all_ranks(world):
    """With the names of the loop, and what it prints is its outcome."""
    cell = begin(world, LOOP)
    found = world.loop.between("lr['x'] /= 2\nprint('halved')\nlr['x']")
    end(world, cell)

    assert cell.outcome == "ok"
    assert changes(world) == same([found.step])
    assert {rank: (one.ok, one.text) for rank, one in found.ranks.items()} == same((True, "halved\n0.5\n"))
    assert "halved\n0.5" in repr(found)
    assert all(text.startswith("begun\nhalved\n") for text in texts(cell).values())
    [act, _] = cell.acts
    assert (act.step, act.failed, act.words[:7]) == (found.step, False, "between")


def test_what_it_raises_on_a_rank_does_not_end_the_loop(world):
    """The outcome names the rank, and the others have run it."""
    cell = begin(world, LOOP)
    found = world.loop.between("if rank == 2: 1 / 0\nlr['x'] = 7.0")
    assert found.failed == [2]
    assert found.ranks[2].error.ename == "ZeroDivisionError"
    assert "raised on rank 2: ZeroDivisionError: division by zero. It ran on ranks 0-1" in found.words
    assert found.words.endswith("The loop goes on.")
    end(world, cell)

    assert changes(world) == {0: [found.step], 1: [found.step], 2: []}


def test_a_strict_one_ends_the_cell_on_all_ranks(world):
    """The rank that raised has its own error, and the others say why they ended."""
    cell = begin(world, LOOP)
    found = world.loop.between("if rank == 2: 1 / 0", strict=True)
    assert "The loop has ended on all ranks" in found.words
    assert cell.wait(PATIENCE)

    assert {rank: error.ename for rank, error in cell.errors.items()} == {
        0: "RuntimeError",
        1: "RuntimeError",
        2: "ZeroDivisionError",
    }
    assert "has raised on rank 2" in cell.errors[0].evalue
    with pytest.raises(DistributedError):
        cell.result()


@pytest.mark.parametrize("seconds", [9.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_a_pause_is_no_hang_and_no_time_of_the_limit(launch, seconds):
    """Longer than both of them; then some steps, and on."""
    notes = Notes()
    with launch(n=2, settings=Settings(hang_notice=1.0)) as session:
        cell = session.run(LOOP, wait=False, timeout=8.0, view=notes)
        paused = session.loop.pause()
        assert cell.fold.paused == paused.step
        threading.Event().wait(seconds)
        assert not cell.done
        counted = session.loop.step(5)
        assert counted.step == paused.step + 5
        assert session.loop.pause().words == f"The loop is paused already, after step {counted.step}."
        between = session.loop.between("print(len(seen))")
        assert {one.text for one in between.ranks.values()} == {f"{counted.step}\n"}
        assert cell.fold.paused == counted.step
        session.loop.resume()
        until(lambda: cell.fold.paused is None)
        end(session, cell)

    assert cell.outcome == "ok"
    assert not cell.timed_out
    assert notes.words == []


def test_stop_ends_a_loop_that_is_paused(world):
    """As any other; the next cell can be steered."""
    cell = begin(world, LOOP)
    world.loop.pause()
    world.interrupt()
    assert cell.wait(PATIENCE)
    assert cell.outcome == "interrupted"
    with pytest.raises(Refused, match="no cell is running"):
        world.loop.resume()
    cell = begin(world, LOOP)
    world.loop.between("lr['x'] = 2.0")
    end(world, cell)

    assert cell.outcome == "ok"


def test_stop_ends_an_act(world):
    """The act is said to be stopped, not to have run."""
    cell = begin(world, LOOP)
    thread, said = begun(world, "print('acts')\ntime.sleep(600)")
    until(lambda: all(text.endswith("acts\n") for text in texts(cell).values()))
    world.interrupt()
    assert cell.wait(PATIENCE)
    thread.join(PATIENCE)

    assert "stopped. It may have been done on some ranks." in said[0]
    [act] = cell.acts
    assert act.said == f"It was stopped after step {act.step}. It may have been done on some ranks."


def test_loops_of_an_act_are_no_steps_of_the_loop(world):
    """A bar, or calls of step(): the loop pauses after as many steps of its own as were asked for."""
    cell = begin(world, LOOP)
    paused = world.loop.pause()
    world.loop.between("for _ in dtrain.progress(range(50 + rank)): dtrain.step()")
    counted = world.loop.step(5)
    found = world.loop.between("len(seen)")
    world.loop.resume()
    end(world, cell)

    assert {one.text for one in found.ranks.values()} == {f"{paused.step + 5}\n"}
    assert counted.step == paused.step + 5


def test_the_second_loop_of_a_cell_is_steered_where_its_steps_are_slow(world):
    """It is counted by less than the first loop was, which is over."""
    code = """
import time, jupyter_dtrain as dtrain
seen, x = [], 1
for _ in range(20): dtrain.step()
for _ in dtrain.progress(range(1000)):
    time.sleep(0.8)
    seen.append(x)
    if x > 1: break
"""
    cell = begin(world, code)
    found = world.loop.between("x = 2", timeout=6.0)
    assert cell.wait(PATIENCE)

    assert changes(world) == same([found.step])


def test_runs_beside_each_other_are_steered_one_by_one(world):
    """The act names the run; a pause of one lets the other go on."""
    first, second = begin(world, LOOP, [0, 1]), begin(world, LOOP, [2])
    with pytest.raises(Refused, match=r"several cells are running.*--run"):
        world.loop.pause()
    paused = world.loop.pause(run=first.number)
    found = world.loop.between("go = False", run=second.number)
    assert sorted(found.ranks) == [2]
    assert second.wait(PATIENCE)
    assert first.fold.paused == paused.step
    world.loop.resume()
    found = world.loop.between("go = False")
    assert sorted(found.ranks) == [0, 1]
    assert first.wait(PATIENCE)

    assert (first.outcome, second.outcome) == ("ok", "ok")


def test_a_pause_outlasts_a_rank_that_was_stopped(world):
    """For longer than a rank waits that hears nothing: it could not hear while it was stopped (SIGSTOP)."""
    forget = "import jupyter_dtrain.rank.steering as gate\ngate.FORGOTTEN, forgotten = 6.0, gate.FORGOTTEN\n"
    cell = begin(world, forget + LOOP)
    paused = world.loop.pause()
    process = psutil.Process(world.world.ranks[1].pid)
    process.suspend()
    threading.Event().wait(7.0)
    process.resume()
    stays(lambda: cell.fold.paused == paused.step, 1.5)
    world.loop.resume()
    end(world, cell)

    assert "was not told" not in cell.text(1)
    run(world, "gate.FORGOTTEN = forgotten")


def test_a_process_that_the_cell_has_started_is_not_held(world):
    """It was forked when the loop was yet to come to the step; only the rank's own loop is held there."""
    code = """
import os, time, jupyter_dtrain as dtrain
from jupyter_dtrain.rank.rank_context import rank_home
dtrain.step()
while rank_home().step_work.gate._armed is None: time.sleep(0.01)
began, child = time.monotonic(), os.fork()
if not child:
    for _ in range(100): dtrain.step()
    os._exit(0)
os.waitpid(child, 0)
soon = time.monotonic() - began < 10
dtrain.step()
"""
    cell = begin(world, code)
    assert world.loop.between("print(soon)").step == 2
    assert cell.wait(PATIENCE)

    assert {text.splitlines()[1] for text in texts(cell).values()} == {"True"}


def test_nothing_happens_where_a_rank_makes_no_step(world):
    """It is named; the others go on."""
    cell = begin(world, LOOP.replace("dtrain.step()", "dtrain.step() if rank != 1 else None"))
    with pytest.raises(NotSteered, match=r"Rank 1 has made no step within 1 s.*Nothing was changed"):
        world.loop.between("lr['x'] = 2.0", timeout=1.0)
    assert not cell.acts
    world.interrupt()
    assert cell.wait(PATIENCE)

    assert changes(world) == same([])


def test_nothing_happens_where_no_step_is_counted(world):
    """It says what counts as one."""
    cell = begin(world, "import time\nwhile True: time.sleep(0.01)")
    with pytest.raises(NotSteered, match=r"No step was seen within 1 s.*jupyter_dtrain\.step\(\)"):
        world.loop.pause(timeout=1.0)
    world.interrupt()

    assert cell.wait(PATIENCE)


def test_nothing_happens_where_a_rank_ends_its_loop_first(world):
    """It is named, and the others come to their own end."""
    code = LOOP.replace("while go", "last = -1\nwhile go and not (rank == 1 and len(seen) == last)")
    cell = begin(world, code)
    world.loop.pause()
    world.loop.between("last = len(seen) + 50")
    with pytest.raises(NotSteered, match="Rank 1 has ended the cell"):
        world.loop.step(500)
    until(lambda: cell.states[1] == "ok")
    assert cell.fold.paused is None
    world.interrupt()

    assert cell.wait(PATIENCE)


def test_bars_count_steps(world):
    """Of progress() and of tqdm; an item with a bar inside is no step."""
    code = """
import time, jupyter_dtrain as dtrain
from tqdm import tqdm
seen, x = [], 1
for epoch in dtrain.progress(range(1000)):
    for batch in BAR(range(10)):
        time.sleep(0.01)
        seen.append(x)
    if seen[-1] > 2: break
"""
    by_hand = code.replace("for batch in BAR(range(10)):", "bar = tqdm(total=10)\n    for batch in range(10):")
    by_hand = by_hand.replace("seen.append(x)", "seen.append(x)\n        bar.update()")
    for loop in (code.replace("BAR", "dtrain.progress"), code.replace("BAR", "tqdm"), by_hand):
        cell = begin(world, loop)
        first, second = world.loop.between("x = 2"), world.loop.between("x = 3")
        assert cell.wait(PATIENCE)
        assert changes(world) == same([first.step, second.step])


def test_a_pause_takes_the_place_of_steps_that_go_on(world):
    """As they may last for a whole training."""
    cell = begin(world, LOOP)
    world.loop.pause()
    failed = []

    def step():
        with pytest.raises(NotSteered, match="Another act takes its place"):
            world.loop.step(1_000_000)
        failed.append(True)

    thread = threading.Thread(target=step)
    thread.start()
    until(lambda: cell.fold.paused is None)
    paused = world.loop.pause()
    thread.join(PATIENCE)

    assert failed
    assert cell.fold.paused == paused.step
    world.loop.resume()
    end(world, cell)


def test_acts_take_turns(world):
    """Two that come at once are done one after the other."""
    cell = begin(world, LOOP)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(world.loop.between("lr['x'] += 1; time.sleep(0.1)")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    end(world, cell)

    assert changes(world) == same(sorted(one.step for one in found))


def test_an_act_that_a_person_gives_up_is_withdrawn(world):
    """While it waits for a step that does not come."""
    cell = begin(world, "import time\nwhile True: time.sleep(0.01)")
    number = world._link.ask(Steer(world._link.me.id, "a test", LoopAct("pause"), 60.0)).number
    world._link.ask(WithdrawSteer("another client", number))
    assert world._link.ask(ReadSteer(number)).phase == "going on"
    world._link.ask(WithdrawSteer(world._link.me.id, number))
    until(lambda: world._link.ask(ReadSteer(number)).phase == "failed")
    assert "withdrawn" in world._link.ask(ReadSteer(number)).words
    world.interrupt()

    assert cell.wait(PATIENCE)


def test_a_client_that_only_looks_steers_nothing(world):
    """The steward refuses it, whatever the client believes of itself."""
    cell = begin(world, LOOP)
    other = Session.attach(world.name)
    try:
        with pytest.raises(ReadOnly):
            other.loop.pause()
        with pytest.raises(Refused, match="is controlled by"):
            other._link.ask(Steer(other._link.me.id, "theirs", LoopAct("pause"), 1.0))
    finally:
        other.leave()
    assert not cell.acts
    end(world, cell)


def test_what_is_wrong_with_a_line_is_said_before_a_rank_hears_of_it(world):
    """A syntax error, a value that is none, and no loop at all."""
    with pytest.raises(BadRequest, match="cannot be read"):
        world.loop.between("if")
    with pytest.raises(BadRequest, match="no PATH=VALUE"):
        world.loop.set("opt.lr")
    with pytest.raises(BadRequest, match="no value that set takes"):
        world.loop.set("opt.lr=fast")
    with pytest.raises(BadRequest, match="no value that set takes"):
        world.loop.set({"opt.lr": float("nan")})
    with pytest.raises(BadRequest, match="no path"):
        world.loop.set({"opt.lr = 3": 1})
    with pytest.raises(BadRequest, match="no number of steps"):
        world.loop.step(0)
    with pytest.raises(Refused, match="no cell is running in this world"):
        world.loop.pause()


def test_an_act_ends_with_the_cell_whose_rank_does_not_end(launch):
    """Stop gives up a rank that was stopped (SIGSTOP) in it; a restart ends acts that wait for their turn, too."""
    with launch(n=2, settings=Settings(interrupt_raise=1.0, interrupt_timeout=2.0)) as session:
        cell = begin(session, LOOP)
        thread, said = begun(session, "import signal\nif rank == 1: os.kill(os.getpid(), signal.SIGSTOP)")
        until(lambda: session.world.ranks[1].state == "stopped")
        session.interrupt()
        assert cell.wait(PATIENCE)
        thread.join(PATIENCE)
        assert said[0].endswith("It may have been done on some ranks.")
        session.restart()

        cell = begin(session, LOOP)
        acts = [begun(session, "print('acts')\ntime.sleep(600)") for _ in range(3)]
        until(lambda: all(text.endswith("acts\n") for text in texts(cell).values()))
        session.restart()
        for thread, _ in acts:
            thread.join(PATIENCE)

    assert sorted(words for _, said in acts for words in said) == [
        "The ranks have ended. It may have been done on some ranks.",
        *["The ranks have ended. Nothing was changed."] * 2,
    ]


FRESH_WORLD = True


def test_a_loop_ends_after_a_step_as_if_it_had_finished(world):
    """What stands below it in the cell runs; a step that is over is refused."""
    cell = begin(world, LOOP)
    last = world.loop.pause().step + 50
    with pytest.raises(NotSteered, match=r"step 1 is over.*Nothing was changed"):
        world.loop.stop_after(1)
    assert f"The loop ends after step {last}" in world.loop.stop_after(last).words
    world.loop.resume()
    assert cell.wait(PATIENCE)

    assert cell.outcome == "ok"
    assert {text.endswith("over\n") for text in texts(cell).values()} == {True}
    lengths = run(world, "print(len(seen))")
    assert texts(lengths) == same(f"{last}\n")


def test_ranks_stop_where_a_value_differs_between_them(world):
    """At its step, in the frame of the loop, all of them."""
    code = LOOP.replace(
        "seen.append", "x = float(len(seen)) + (0.5 if rank == 2 and len(seen) == planted else 0)\n    seen.append"
    ).replace("while go:", "planted = -1\nwhile go:")
    cell = begin(world, code, ask=True)
    with pytest.raises(NotSteered, match="nothing is no number here"):
        world.loop.until_differs("nothing")
    world.loop.until_differs("x", 1e-3)
    step = world.loop.between("planted = len(seen) + 50").step + 50
    until(lambda: len(world.prompts) == 3)
    prompts = world.prompts

    assert {one.kind for one in prompts.values()} == {"debugger"}
    words = f"x differs after step {step + 1}: {step} on ranks 0-1; {step}.5 on rank 2 (more than 0.001).\n> "
    assert {one.said.startswith(words) for one in prompts.values()} == {True}
    assert {one.said.split("\n")[2] for one in prompts.values()} <= {"-> while go:", "-> dtrain.step()"}
    world.answer("!go = False")
    until(lambda: [one.number for one in world.prompts.values()] == [2] * 3)
    world.answer("c")
    assert cell.wait(PATIENCE)
    assert cell.outcome == "ok"


def test_ranks_that_part_leave_the_messages_of_the_cell_alone(world):
    """One makes a step more than the others, while a value is compared; then they talk to each other."""
    code = (
        LOOP
        + """
from mpi4py import MPI
if rank == 0: dtrain.step()
print(MPI.COMM_WORLD.allreduce(rank))
"""
    )
    cell = begin(world, code)
    world.loop.until_differs("1.0")
    world.loop.between("go = False")
    until(lambda: all("over" in text for text in texts(cell).values()))
    world.interrupt()
    assert cell.wait(PATIENCE)

    assert texts(run(world, "from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))")) == same("3\n")


def test_where_nobody_can_answer_a_difference_is_said(world):
    """The loop goes on, however often that is."""
    cell = begin(world, LOOP)
    for times in (1, 2, 3, 4):
        world.loop.until_differs("float(rank)")
        until(lambda: all(text.count("differs after step") == times for text in texts(cell).values()))  # noqa: B023
    end(world, cell)

    assert cell.outcome == "ok"
    assert {text.count("The loop goes on") for text in texts(cell).values()} == {4}
    assert {"asks again" in text for text in texts(cell).values()} == {False}


def test_a_snapshot_of_the_loop_is_saved_while_it_goes_on(world):
    """With the names of the loop; a name that is not there saves nothing."""
    cell = begin(world, LOOP)
    with pytest.raises(NotSteered, match="it has no nothing"):
        world.save("mid", ["nothing"], now=True)
    [note] = world.save("mid", ["lr", "seen"], now=True).notes
    assert "saved as 'mid'" in note
    step = int(note.split("after step ")[1].rstrip(")."))
    end(world, cell)
    run(world, "lr = seen = None")
    world.load("mid")

    assert texts(run(world, "print(len(seen), lr['x'])")) == same(f"{step} 1.0\n")


def test_a_rank_that_dies_in_an_act_ends_it_and_the_pause(world):
    """The others go on until they need it; the words name the rank."""
    cell = begin(world, LOOP)
    world.loop.pause()
    began = time.monotonic()
    with pytest.raises(NotSteered, match=r"Rank 1 has died meanwhile\. It may have been done on some ranks\.$"):
        world.loop.between("import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(NotSteered, match=r"No loop is paused any more: rank 1 has died\."):
        world.loop.resume()
    with pytest.raises(NotSteered, match=r"Rank 1 has died: not all ranks of the cell come to a step"):
        world.loop.pause()
    assert time.monotonic() - began < PATIENCE
    until(lambda: not any(part.held for part in cell.fold.ranks.values()))
    world.interrupt()
    assert cell.wait(PATIENCE)

    assert cell.outcomes[1] == "lost"

"""Prompts of ranks in a notebook: one box for all that ask the same, and a debugger beside ranks that wait."""

from __future__ import annotations

import time

import pytest

from tests.magics.notebook import Notebook

RANK = "import os; rank = int(os.environ['RANK'])\n"
TRAIN = """%%distributed
def train():
    loss = 0.0
    for step in range(8):
        part = torch.tensor([rank + step + 0.0])
        if step == STEP and rank in STOPS: breakpoint()
        dist.all_reduce(part)
        loss = 0.5 * loss + part.item()
    return loss
train()
"""
DIVIDES = """%%distributed
def work(by):
    part = torch.tensor([1.0 * by])
    if by == 1: 1 / 0
    dist.all_reduce(part)
work(rank)
"""
UNDISTURBED = "[0-2] 42.0234375"


@pytest.fixture(scope="module")
def trained(ranks: Notebook) -> Notebook:
    """Three ranks with a process group."""
    pytest.importorskip("torch")
    ranks.ok(f"%%distributed\n{RANK}import torch, torch.distributed as dist\ndist.init_process_group('gloo')")
    return ranks


def training(step: int, stops: str) -> str:
    """A loop of 8 steps, in which the ranks ``stops`` stop at a step."""
    return TRAIN.replace("STEP", str(step)).replace("STOPS", stops)


def test_a_loop_without_a_stop(trained):
    """What the others are compared with."""
    assert trained.ok(training(9, "()")).display_texts == [UNDISTURBED]


def test_ranks_that_ask_the_same_are_asked_once(ranks):
    """In the notebook's own box; a password is hidden there."""
    cell = ranks.send(f"%%distributed\n{RANK}print(input('name? '))", answers=["Ada"]).wait()
    assert (cell.asked, cell.lines) == ([("ranks 0-2: name? ", False)], ["[0-2] Ada"])
    cell = ranks.send("%%distributed\nimport getpass\nprint(len(getpass.getpass('key: ')))", answers=["secret"]).wait()
    assert (cell.asked, cell.lines) == ([("ranks 0-2: key: ", True)], ["[0-2] 6"])
    cell = ranks.send("%%distributed\nprint(input() if rank == 1 else 'none')", answers=["one"]).wait()
    assert cell.asked == [("rank 1: ", False)]


def test_a_rank_stops_while_the_others_wait_and_all_are_asked(trained):
    """The ranks that wait in a collective answer, too; nothing is different afterwards."""
    typed = ["@all p part, step", "@all w", "@0 n", "@0 p nothing_such", "@7 w", "@2", "c"]
    cell = trained.send(training(3, "(1,)"), answers=typed).wait()
    lines = cell.lines

    assert {asked for asked, _ in cell.asked} == {"rank 1 (Pdb) "}
    for row in (
        "rank 0 (waits in all_reduce) | (tensor([3.]), 3)",
        "rank 1                       | (tensor([4.]), 3)",
        "rank 2 (waits in all_reduce) | (tensor([5.]), 3)",
        "No debugger is open on rank 0: rank 1 stopped.",
        "rank 0 (waits in all_reduce) | *** NameError: name 'nothing_such' is not defined",
        "At a debugger's prompt: rank 1. @RANK changes to one of them.",
    ):
        assert row in lines, cell.out
    assert [line for line in lines if line.startswith("ranks 0,2 (wait in all_reduce) |")]
    assert [line for line in lines if "rank 7" in line]
    assert cell.display_texts == [UNDISTURBED]


def test_a_rank_outside_the_cell_is_told_as_such(ranks):
    """Where it is named; all are those of the cell."""
    typed = ["@2 p rank", "@0-2 p rank", "@all p rank", "@2 n", "@all c"]
    cell = ranks.send(f"%%distributed -r 0-1\n{RANK}breakpoint()\npass", answers=typed).wait()

    rows = [line for line in cell.lines if " | " in line or line.startswith("No debugger")]
    assert rows[:7] == [
        "rank 2 | is not in this cell",
        *(both := ["rank 0 | 0", "rank 1 | 1"]),
        "rank 2 | is not in this cell",
        *both,
        "No debugger is open on rank 2: ranks 0-1 stopped.",
    ], cell.out


def test_ranks_that_all_stop_are_led_together_or_one_by_one(trained):
    """Equal answers come once; a value that a person changes stays."""
    typed = ["@all p step", "@2", "p rank", "!part = part * 0 + 5.0", "@0-1 p part", "@all c"]
    cell = trained.send(training(3, "(0, 1, 2)"), answers=typed).wait()

    assert [asked for asked, _ in cell.asked[:3]] == ["ranks 0-2, at 0 (Pdb) "] * 2 + ["ranks 0-2, at 2 (Pdb) "]
    assert "ranks 0-2 | 3" in cell.lines
    assert "2" in cell.lines
    assert cell.display_texts == [UNDISTURBED]


def test_next_goes_from_statement_to_statement_of_a_cell(ranks):
    """Not into IPython, which runs them one by one."""
    typed = ["@all n", "@all n", "@all whatis rank", "@all c"]
    cell = ranks.send(f"%%distributed\n{RANK}breakpoint()\ntwice = rank * 2\nprint(twice)", answers=typed).wait()

    assert "-> twice = rank * 2" in cell.out
    assert "-packages" not in cell.out
    assert {"ranks 0-2 | <class 'int'>", "[0] 0", "[1] 2", "[2] 4"} <= {*cell.lines}


def test_a_line_that_cannot_be_done_is_asked_again(trained):
    """The cell says why, and goes on waiting for its ranks."""
    typed = ["until differs part 1.2.3", "@all p step", "c"]
    cell = trained.send(training(3, "(1,)"), answers=typed).wait()

    assert "1.2.3 is no distance, such as 1e-3: until differs EXPRESSION DISTANCE." in cell.lines, cell.said
    assert [asked for asked, _ in cell.asked] == ["rank 1 (Pdb) "] * 3
    assert cell.display_texts == [UNDISTURBED]


def test_quitting_ends_the_cell_and_the_next_one_trains(trained):
    """The ranks that wait are freed at once."""
    cell = trained.send(training(3, "(1,)"), answers=[])
    cell.wait_for(lambda cell: cell.asked)
    began = time.monotonic()
    trained.type("q")
    cell.wait()

    assert time.monotonic() - began < 10
    assert "Rank 1 quit at a debugger's prompt, in cell [" in cell.traceback
    assert "Because of that: ranks 0,2 waited in all_reduce and were released" in cell.traceback
    assert trained.ok(training(9, "()")).display_texts == [UNDISTURBED]


def test_stop_ends_a_debugger(trained):
    """As any other call."""
    cell = trained.send(training(3, "(1,)"), answers=[])
    cell.wait_for(lambda cell: cell.asked)
    trained.interrupt()
    cell.wait()

    assert "Interrupted" in cell.said or "KeyboardInterrupt" in cell.said
    assert trained.ok(training(9, "()")).display_texts == [UNDISTURBED]


def test_a_condition_names_the_rank_and_the_step_of_the_loop(trained):
    """A cell is named by its number."""
    line = TRAIN.splitlines().index("        dist.all_reduce(part)") + 1
    typed = [f"b {line}, rank == 1 and step > 5", "c", "p step", "c", "c"]
    cell = trained.send(training(2, "(0, 1)"), answers=["@all " + typed[0], "@all c", *typed[2:4], "c"]).wait()

    assert "6" in cell.lines, cell.out
    assert cell.display_texts == [UNDISTURBED]


def test_the_last_error_is_looked_at_where_it_was_raised(trained):
    """On each rank that has one, until the next failure."""
    trained.run("%%distributed\ndef divide(by):\n    return 1 / by\ndivide(rank)")
    cell = trained.send("%%distributed -r 0\n%debug", answers=["p by", "u", "q"]).wait()

    assert "0" in cell.lines, cell.out
    assert cell.reply["status"] == "ok"


def test_the_last_errors_of_all_ranks_are_looked_at_side_by_side(trained):
    """First the one that has brought the others down; q leaves all of them, and nothing is interrupted."""
    trained.run(DIVIDES)
    cell = trained.send("%distributed debug", answers=["@all p by", "u", "p rank", "q"]).wait()
    table = [[part.strip() for part in line.split(" | ")] for line in cell.lines if " | " in line]

    assert cell.reply["status"] == "ok", cell.said
    assert [row[:2] for row in table[:2]] == [
        ["ranks 0,2", "waited for a rank that failed"],
        ["rank 1", "ZeroDivisionError: division by zero"],
    ], cell.out
    assert [row[2].partition(", ")[2] for row in table[:2]] == [
        "line 5: dist.all_reduce(part)",
        "line 4: if by == 1: 1 / 0",
    ]
    assert {asked for asked, _ in cell.asked} == {"ranks 0-2, at 1 (Pdb) "}
    assert table[2:] == [[f"rank {rank}", str(rank)] for rank in range(3)], cell.out
    assert "1" in cell.lines
    assert trained.ok(training(9, "()")).display_texts == [UNDISTURBED]


def test_ranks_without_an_error_say_so(trained):
    """And where nobody can answer, or no rank has one, the reason is said at once."""
    trained.ok("%distributed free")
    assert "There is no error to look at on ranks 0-2." in trained.send("%distributed debug", answers=[]).wait().said
    trained.run("%%distributed -r 2\n1 / 0")
    cell = trained.send("%distributed debug", answers=["q"]).wait()
    assert [line.split(" | ")[1].strip() for line in cell.lines if " | " in line] == [
        "no error",
        "ZeroDivisionError: division by zero",
    ]
    assert [asked for asked, _ in cell.asked] == ["rank 2 (Pdb) "]
    assert "There is no error to look at on rank 0." in trained.send("%distributed debug 0", answers=[]).wait().said
    assert "takes no questions" in trained.run("%distributed debug").said


def test_a_box_is_withdrawn_when_its_rank_dies(open_notebook):
    """Nothing is left to answer; the next cell has its own box."""
    notebook = open_notebook()
    notebook.ok("%load_ext jupyter_dtrain\n%distributed start -n 2")
    code = """import signal, threading
if rank == 1:
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()
    input("dying? ")
"""
    cell = notebook.send(f"%%distributed\n{RANK}{code}", answers=[])
    cell.wait_for(lambda cell: cell.asked)
    cell.wait()

    assert "SIGKILL" in cell.traceback
    cell = notebook.send("%%distributed -r 0\nprint(input('next? '))", answers=["yes"]).wait()
    assert cell.lines == ["[0] yes"]


def test_all_ranks_go_on_until_a_value_differs_between_them(trained):
    """From the prompt of one; they stop in the loop, after the step at which it does."""
    code = """%%distributed
import time, jupyter_dtrain as dtrain
for step in range(170):
    if step == 2 and rank == 1: breakpoint()
    part = torch.ones(1)
    dist.all_reduce(part)
    mine = part.item() + (0.5 if rank == 0 and step >= 150 else 0.0)
    time.sleep(0.03)
    dtrain.step()
print("over", step)
"""
    typed = ["until differs mine 1e-3", "@all p step, mine", "@all c"]
    cell = trained.send(code, answers=typed).wait()

    assert [asked for asked, _ in cell.asked] == ["rank 1 (Pdb) ", *["ranks 0-2, at 1 (Pdb) "] * 2]
    assert "The ranks stop where mine differs (ranks 0-2, after step" in cell.out
    assert "mine differs after step 151: 3.5 on rank 0; 3 on ranks 1-2 (more than 0.001)." in cell.lines
    assert [line for line in cell.lines if line.endswith("(150, 3.5)")]
    assert [line for line in cell.lines if line.endswith("(150, 3.0)")]
    assert "[0-2] over 169" in cell.lines

"""A notebook's kernel is gone, and the next one joins its world: %load_ext says so, %distributed attach goes on."""

from __future__ import annotations

import os
import re

import pytest

from tests.steward.until import until

LONG = """
%%distributed
for step in range(120):
    print("line", step, flush=True)
    time.sleep(0.05)
rank * 10
"""


@pytest.fixture
def left(open_notebook):
    """A notebook whose kernel was killed in the middle of a cell that runs on three ranks."""
    notebook = open_notebook()
    notebook.ok("%load_ext jupyter_dtrain")
    notebook.ok("%distributed start -n 3 --name left")
    notebook.ok("%%distributed\nimport os, time\nrank = int(os.environ['RANK'])\nkept = object(); kept_id = id(kept)")
    notebook.send(LONG.strip()).wait_for(lambda cell: "line 3\n" in cell.out)
    notebook.manager.provisioner.process.kill()
    until(lambda: not notebook.manager.is_alive())
    return notebook


def test_the_next_kernel_goes_on(left, open_notebook):
    """It hears of the world, and has the cell from its first line on, live, with its result; and every variable."""
    notebook = open_notebook()
    said = notebook.ok("%load_ext jupyter_dtrain").out
    assert re.search(r"World 'left' is running, 3 ranks, \d+ s old: %distributed attach left joins it", said)
    listed = notebook.ok("%distributed worlds").display_texts[0]
    assert re.search(r"left +3 .*process \d+|left +3 .*the notebook", listed)

    cell = notebook.ok("%distributed attach")
    assert "Attached to world 'left': 3 ranks." in cell.out
    assert re.search(r"Run \d+ began .* ago\. All of its output so far is shown here\.", cell.out)
    cell.wait_for(lambda cell: any("20" in text for text in cell.display_texts), patience=60)
    assert all(cell.out.index(words) < cell.out.index("line 0") for words in ("Attached to", "All of its output"))
    assert [line for line in cell.lines if "line" in line] == [f"[0-2] line {step}" for step in range(120)]
    assert "id(kept)" not in cell.said
    after = notebook.ok("%%distributed -o after\nid(kept) == kept_id")
    assert "True" in after.said
    assert "this notebook" in notebook.ok("%distributed worlds").display_texts[0]
    assert "This notebook already controls world" in notebook.ok("%distributed attach").out
    notebook.ok("%distributed stop")


def test_a_cell_that_attaches_is_not_told_to_attach(left, open_notebook):
    """It loads the extension as well, as the first cell of a notebook does."""
    notebook = open_notebook()
    said = notebook.ok("%load_ext jupyter_dtrain\n%distributed attach left").out
    notebook.ok("%distributed stop")

    assert "Attached to world 'left'" in said
    assert "joins it" not in said


@pytest.mark.slow
def test_two_notebooks(open_notebook):
    """The second is read-only, then takes control, and the first hears of it."""
    first, second = open_notebook(), open_notebook(JPY_SESSION_NAME=f"{os.sep}second.ipynb")
    first.ok("%load_ext jupyter_dtrain")
    first.ok("%distributed start -n 2 --name shared")
    second.ok("%load_ext jupyter_dtrain")
    looking = second.ok("%distributed attach shared").out
    assert "Attached to world 'shared', read-only: 2 ranks." in looking
    assert "%distributed attach shared --control takes control" in looking
    refused = second.run("%%distributed\n1")
    assert refused.ename == "ReadOnly"
    assert "%distributed attach shared --control" in refused.traceback

    assert "Attached to world 'shared'" in second.ok("%distributed attach shared --control").out
    second.ok("%%distributed\nmine = 1")
    refused = first.run("%%distributed\n1")
    assert refused.ename == "ReadOnly"
    assert "World 'shared' is now controlled by second.ipynb" in refused.said
    assert "second.ipynb" in first.ok("%distributed worlds").display_texts[0]
    first.close()
    assert "1" in second.ok("%%distributed\nmine").said  # the first has started it, but drives it no more
    assert "World 'shared' has ended." in second.ok("%distributed stop --all").out
    assert "No world of yours is running" in second.ok("%distributed stop --all").out
    assert "not allowed with" in second.run("%distributed stop shared --all").said


ASKED = """
%%distributed
import os
rank = int(os.environ['RANK'])
x = rank + 40
if rank == 1: breakpoint()
print("went on", x, input("and? "))
"""


AT_PROMPTS = "Ranks 0-1 of run 1 are at a prompt"


def test_a_cell_waits_on_when_another_kernel_takes_control_at_its_prompt(open_notebook):
    """Only the other one can answer then; the box of the first is taken back, and its cell ends with the run."""
    first, second = open_notebook(), open_notebook()
    first.ok("%load_ext jupyter_dtrain\n%distributed start -n 2 --name taken")
    cell = first.send("%%distributed\nprint('said', input('what? '))", answers=[])
    cell.wait_for(lambda cell: cell.asked)
    second.ok("%load_ext jupyter_dtrain\n%distributed attach taken --control")
    first.type("late")
    asked = second.send("%distributed prompt", answers=["in time"]).wait()
    cell.wait()

    assert asked.asked == [("ranks 0-1: what? ", False)]
    assert cell.reply["status"] == "ok", cell.said
    assert "[0-1] said in time" in cell.lines
    second.ok("%distributed stop")


def test_a_cell_that_waits_for_an_earlier_run_attends_to_its_prompts(open_notebook):
    """This kernel is busy with the cell: nothing else could answer, and Stop would end both."""
    first, second = open_notebook(), open_notebook()
    first.ok("%load_ext jupyter_dtrain\n%distributed start -n 2 --name queued")
    cell = first.send(ASKED.strip(), answers=[])
    cell.wait_for(lambda cell: cell.asked)
    second.ok("%load_ext jupyter_dtrain\n%distributed attach queued --control")
    typed = ["one", "p x", "c", "two", "three"]
    queued = second.send("%%distributed\nprint('mine', input('mine? '))", answers=typed).wait()
    cell.wait()

    assert [asked for asked, _ in queued.asked] == [
        "rank 0: and? ",
        *["rank 1 (Pdb) "] * 2,
        "rank 1: and? ",
        "ranks 0-1: mine? ",
    ]
    assert "[0-1] mine three" in queued.lines, queued.said
    assert {"[0] went on 40 one", "[1] went on 41 two"} <= {*cell.lines}, cell.said
    second.ok("%distributed stop")


def test_the_next_kernel_answers_what_a_rank_asks(open_notebook):
    """It hears of it as it attaches; nobody else's box is needed, and Stop leaves the prompt open."""
    notebook = open_notebook()
    notebook.ok("%load_ext jupyter_dtrain\n%distributed start -n 2 --name asked")
    notebook.send(ASKED.strip(), answers=[]).wait_for(lambda cell: cell.asked)
    notebook.manager.provisioner.process.kill()
    until(lambda: not notebook.manager.is_alive())

    notebook = open_notebook()
    notebook.ok("%load_ext jupyter_dtrain")
    attached = notebook.ok("%distributed attach asked")
    told = f"{AT_PROMPTS}: %distributed prompt answers it, %distributed interrupt ends the cell."
    attached.wait_for(lambda cell: told in cell.said)
    assert "takes no questions" in notebook.run("%distributed prompt").said

    left = notebook.send("%distributed prompt", answers=[])
    left.wait_for(lambda cell: cell.asked)
    notebook.interrupt()
    left.wait()
    assert left.reply["status"] == "ok", left.said
    assert AT_PROMPTS in left.out

    cell = notebook.send("%distributed prompt", answers=["one", "p x", "c", "two"]).wait()
    assert [asked for asked, _ in cell.asked] == ["rank 0: and? ", "rank 1 (Pdb) ", "rank 1 (Pdb) ", "rank 1: and? "]
    assert "41" in cell.lines
    attached.wait_for(lambda cell: "went on 41 two" in cell.out)
    assert "went on 40 one" in attached.out
    assert "No rank is at a prompt." in notebook.send("%distributed prompt", answers=[]).wait().said
    notebook.ok("%distributed stop")

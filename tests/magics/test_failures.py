"""Cells that fail: what stands below them, and what becomes of the notebook."""

from __future__ import annotations

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.magics.notebook import ThisPython, plain

RANK = "import os\nrank = int(os.environ['RANK'])\n"


def test_a_cell_that_fails_on_a_rank_fails_in_the_notebook(ranks):
    """The error has the cause, the ranks that share it, and the output from before."""
    cell = ranks.run(f"%%distributed\n{RANK}print('before')\nif rank > 0:\n    raise ValueError('bad shape')")

    assert cell.ename == "DistributedError"
    assert cell.error["evalue"] == "ValueError: bad shape (ranks 1-2)"
    assert cell.traceback.startswith("ValueError on ranks 1-2\n")
    assert cell.lines == ["[0-2] before"]


def test_a_traceback_shows_the_frames_of_the_cell_and_folds_the_others(ranks):
    """No frame of IPython, ipyparallel or this package is between them."""
    cell = ranks.run(
        "%%distributed\nimport json\ndef parse(text):\n    return json.loads(text)\n\nvalues = [1]\nparse('{')"
    )
    text = cell.traceback

    assert "line 7" in text
    assert "----> 7 parse('{')" in text
    assert "line 4, in parse" in text
    assert "----> 4     return json.loads(text)" in text
    assert "… 3 library frames" in text
    assert "JSONDecodeError: " in text
    assert len(text.splitlines()) < 25
    assert "jupyter_dtrain" not in text
    assert "IPython" not in text
    assert "ipyparallel" not in text


def test_frames_of_earlier_cells_are_shown_by_their_own_lines(ranks):
    """The line numbers of one cell mean nothing in another."""
    ranks.ok("%%distributed\n# a helper\ndef helper(n):\n    return 1 / n")
    text = ranks.run("%%distributed\nhelper(0)").traceback

    assert "----> 2 helper(0)" in text
    assert "----> 4 return 1 / n" in text
    assert "ZeroDivisionError: division by zero" in text


def test_a_module_beside_the_notebook_is_the_users_own_code(ranks):
    """Its frames are shown, not folded."""
    (ranks.folder / "my_model.py").write_text("def forward(x):\n    return x['weights']\n", encoding="utf-8")
    text = ranks.run("%%distributed\nimport my_model\nmy_model.forward({})").traceback

    assert "return x['weights']" in text
    assert "KeyError: 'weights'" in text
    assert "library frame" not in text


def test_distinct_errors_come_one_by_one(ranks):
    """They have the order of their ranks."""
    text = ranks.run(f"%%distributed\n{RANK}raise [ValueError, KeyError, OSError][rank](f'on {{rank}}')").traceback
    positions = [text.index(words) for words in ("ValueError on rank 0", "KeyError on rank 1", "OSError on rank 2")]

    assert positions == sorted(positions)


def test_errors_of_cells_in_the_background_are_painted(ranks):
    """Each is on standard error of its own cell."""
    cell = ranks.ok("%%distributed --no-wait\nx = 1\nraise RuntimeError('later')")
    cell.wait_for(lambda cell: "RuntimeError: later" in cell.err)

    assert "RuntimeError on ranks 0-2" in cell.err
    assert "----> 3 raise RuntimeError('later')" in cell.err


def test_the_session_goes_on_after_an_error(ranks):
    """Variables of before the error are there."""
    ranks.run("%%distributed\nkept = 5\n1 / 0\nkept = 6")

    assert ranks.ok("%%distributed\nkept").display_texts == ["[0-2] 5"]


def test_a_syntax_error_shows_the_place_and_goes_to_no_rank(ranks):
    """The caret stands below the place; lines are counted as the editor counts them, from the magic on."""
    cell = ranks.run("%%distributed\nsent = True\nfor x in range(3)\n    print(x)")
    shown = cell.traceback.splitlines()
    code = next(index for index, line in enumerate(shown) if "for x in range(3)" in line)

    assert cell.ename == "BadSyntax"
    assert "line 3: expected ':'" in cell.traceback
    assert shown[code + 1].index("^") == shown[code].index("range(3)") + len("range(3)")
    assert "not sent to any rank" in cell.traceback
    assert ranks.ok("%%distributed\n'sent' in globals()").display_texts == ["[0-2] False"]


def test_a_syntax_error_that_only_a_rank_can_meet_shows_its_place(ranks):
    """It may be in ``eval``."""
    text = ranks.run("%%distributed\neval('x = = 1')").traceback
    lines = text.splitlines()
    code = next(index for index, line in enumerate(lines) if line.endswith("x = = 1"))

    assert lines[0] == "SyntaxError on ranks 0-2"
    assert lines[code + 1].strip() == "^"
    assert len([line for line in lines if line.startswith("SyntaxError: ")]) == 1


@pytest.mark.parametrize("call", ["input()", "breakpoint()"])
def test_a_cell_that_asks_where_nobody_is_ends_at_once_and_says_so(ranks, call):
    """No person could answer, so the cell must not hang."""
    cell = ranks.run(f"%%distributed\n{call}")

    assert "nobody can answer: the program that runs this notebook takes no questions" in cell.said
    assert "jupyter_dtrain" not in cell.traceback


def test_a_name_that_lives_on_ranks_is_found_for_the_user(ranks):
    """The message names the ranks and two fixes; both work as they are written."""
    ranks.ok("%%rank 0,2\nfaraway = 7")
    cell = ranks.run("print(faraway)")
    told = cell.err.splitlines()
    fix = "\n".join(line.strip() for line in told if line.startswith("    "))

    assert cell.ename == "NameError"
    assert "'faraway' is not defined in the notebook, but it is on ranks 0,2" in cell.err
    assert "%%distributed -r 0,2 on its first line" in cell.err
    assert fix == "%%distributed -r 0,2 --pull faraway\nfaraway"
    assert ranks.ok(fix).said.strip()
    assert ranks.value("faraway") == {0: 7, 2: 7}


def test_a_name_of_which_each_rank_has_a_part_is_not_offered_to_the_notebook(ranks):
    """No rank could send all of it."""
    pytest.importorskip("torch")
    ranks.ok(
        "%%distributed\nimport torch, torch.distributed as dist\n"
        "from torch.distributed.tensor import distribute_tensor, init_device_mesh, Shard\ndist.init_process_group()\n"
        "spread = distribute_tensor(torch.ones(4), init_device_mesh('cpu', (dist.get_world_size(),)), [Shard(0)])"
    )
    cell = ranks.run("spread")
    ranks.ok("%%distributed\ndist.destroy_process_group()\ndel spread")
    assert "each with a part of it. Run this cell there with %%distributed on its first line." in cell.err
    assert "--pull" not in cell.err


def test_a_name_that_lives_on_all_ranks_needs_no_choice_of_ranks(ranks):
    """The common case, in the shortest words."""
    ranks.ok("%%distributed\nbroad = 7")
    cell = ranks.run("broad + 1")

    assert "but it is on ranks 0-2. Run this cell there with %%distributed on its first line" in cell.err
    assert "\n    %%distributed --pull broad\n    broad\n" in cell.err


def test_a_name_that_is_nowhere_gets_no_hint(ranks):
    """No other error does either."""
    nowhere = ranks.run("nowhere_at_all")
    ranks.ok("%%distributed\nlocal_name = 1")
    unbound = ranks.run("def f():\n    local_name += 1\nf()")

    assert nowhere.ename == "NameError"
    assert "rank" not in nowhere.said
    assert unbound.ename == "UnboundLocalError"
    assert "rank" not in unbound.said


def test_a_hint_does_not_wait_for_busy_ranks(ranks):
    """The plain cell ends although the ranks work."""
    running = ranks.ok("%%distributed --no-wait\nimport time\nprint('in', flush=True)\ntime.sleep(600)")
    running.wait_for(lambda cell: "[0-2] in" in cell.out)
    cell = ranks.run("nowhere_at_all")
    ranks.ok("%distributed interrupt")
    running.wait_for(lambda cell: "KeyboardInterrupt" in cell.err)

    assert cell.ename == "NameError"


def test_a_run_whose_loss_is_no_number_is_not_ok_in_the_status_either(ranks):
    """In the words of its panel and of the list of runs; a learning rate says nothing about it."""
    ranks.ok("%%distributed\nimport jupyter_dtrain\njupyter_dtrain.log(loss=1.0, **{'lr/0': float('inf')})")
    well = ranks.ok("%distributed").display_texts[0]
    ranks.ok("%%distributed\njupyter_dtrain.log(loss=1.0)\njupyter_dtrain.log(loss=float('nan'))")
    status = ranks.ok("%distributed").display_texts[0]

    assert ": ok, " in well
    assert "NaN" not in well
    assert "∞" not in well
    assert ": ok, but NaN, " in status


def test_a_dead_rank_is_named_in_words_with_the_ways_on(ranks):
    """The cell ends, the next one is refused at once, the living ranks can be used, and a restart makes it whole."""
    cell = ranks.run(f"%%distributed\n{RANK}kept = rank\nif rank == 1:\n    os.kill(os.getpid(), 9)")
    refused = ranks.run("%%distributed\n1")
    status = ranks.ok("%distributed").display_texts[0]
    stacks = ranks.ok("%distributed stacks").out
    living = ranks.ok("%%distributed -r 0,2\nkept")
    ranks.ok("%distributed restart")

    assert cell.ename == "DistributedError"
    assert "Rank 1 was killed (SIGKILL), often out of memory" in cell.traceback
    assert refused.ename == "RanksDead"
    assert "%distributed restart" in refused.traceback
    assert "-r 0,2" in refused.traceback
    assert "dead" in status
    assert "rank 1 was killed (SIGKILL)" in status
    assert "Rank 1: no answer" in stacks
    assert living.display_texts == ["[0] 0", "[2] 2"]
    assert ranks.ok("%%distributed\n1").display_texts == ["[0-2] 1"]


def test_an_exit_code_is_shown(ranks):
    """``os._exit`` in a rank ends the rank."""
    cell = ranks.run("%%rank -1\nimport os\nos._exit(3)")
    ranks.ok("%distributed restart")

    assert "Rank 2 ended with exit code 3" in cell.traceback


def test_the_kill_of_all_ranks_promises_nothing_of_others(ranks):
    """There are none that could keep their variables."""
    some = ranks.ok("%distributed kill 0,1").out
    rest = ranks.ok("%distributed kill 2").out
    ranks.ok("%distributed restart")

    assert some == "Dead: ranks 0-1. The others keep their variables; %distributed replace replaces the dead ones.\n"
    assert rest == "Dead: ranks 0-2. %distributed restart replaces all ranks.\n"


def test_run_all_stops_at_the_cell_that_failed(home, tmp_path):
    """It stops as at any other cell; the later cells do not run. The saved notebook can be shown again."""
    cells = [
        "%load_ext jupyter_dtrain\n%distributed start -n 2",
        "%%distributed\nprint('good')",
        "%%distributed\n1 / 0",
        "after = 1",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])

    class Client(NotebookClient):
        def create_kernel_manager(self):
            self.km = AsyncKernelManager(kernel_spec_manager=ThisPython())
            return self.km

    with pytest.raises(CellExecutionError) as failure:
        Client(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()

    assert failure.value.ename == "DistributedError"
    assert "ZeroDivisionError: division by zero (ranks 0-1)" in failure.value.evalue
    assert [output.text for output in notebook.cells[1].outputs if output.output_type == "stream"] == ["[0-1] good\n"]
    assert "ZeroDivisionError on ranks 0-1" in plain("\n".join(notebook.cells[2].outputs[-1].traceback))
    assert notebook.cells[3].execution_count is None
    nbformat.validate(notebook)


def test_lines_have_the_numbers_that_the_editor_shows(ranks):
    """The magic is line 1, blank lines above it count; in auto mode and in nested code there is no magic to count."""
    above = ranks.run("\n\n%%distributed\nx = 1\n1 / 0").traceback
    ranks.ok("%distributed auto on")
    plain = ranks.run("x = 1\n1 / 0").traceback
    ranks.ok("%distributed auto off")
    nested = ranks.run("%%distributed\nexec(compile('x = 1\\n1 / 0', 'made.py', 'exec'))").traceback

    assert "----> 5 1 / 0" in above
    assert "\n         4 x = 1" in above
    assert "----> 2 1 / 0" in plain
    assert "----> 2 exec(compile(" in nested


def test_an_error_is_shown_while_other_ranks_go_on_and_once_in_the_end(ranks):
    """Rank 0 works until the file is there; the place of the early report is empty afterwards."""
    code = """%%distributed
import os, pathlib, time
if os.environ["RANK"] == "1":
    raise ValueError("cause")
while not pathlib.Path("release").exists():
    time.sleep(0.02)
"""
    cell = ranks.send(code).wait_for(lambda cell: cell.display_texts)
    assert cell.display_texts[0].startswith("ValueError on rank 1\n")
    assert cell.display_texts[0].endswith("ValueError: cause\n\nThe cell goes on until ranks 0,2 have ended.")
    assert cell.error is None
    (ranks.folder / "release").touch()
    cell.wait()

    assert cell.display_texts == []
    assert cell.traceback.startswith("ValueError on rank 1\n")

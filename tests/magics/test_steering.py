"""The running loop is steered from the notebook that has sent it with --no-wait."""

from __future__ import annotations

import re

import pytest
from IPython.core.error import UsageError

from jupyter_dtrain.magics.table import verb_parser

LOOP = """%%distributed --no-wait --name steered
import os, time
import jupyter_dtrain as dtrain
rank, rates, lr, go = int(os.environ["RANK"]), {"lr": 0.1}, 1.0, True
other = None
while go:
    time.sleep(0.005)
    dtrain.log(rate=rates["lr"])
    dtrain.step()
"""


@pytest.fixture(scope="module")
def steered(ranks):
    """A notebook whose ranks are in a loop."""
    ranks.ok(LOOP)
    return ranks


def test_code_is_taken_as_it_was_typed(steered):
    """With or without quotes around it, and as a cell of its own."""
    typed = steered.ok("%distributed between print('a' + \"b\", rates['lr'])")
    assert typed.lines[-2:] == ["ranks 0-2:", "ab 0.1"]
    quoted = steered.ok("%distributed between --timeout 30 \"rates['lr'] = 0.2; print(rank == 5)\"")
    assert quoted.lines[-2:] == ["ranks 0-2:", "False"]
    cell = steered.ok("%%between\nif rank == 1:\n    other = {'a': f'{rank}'}\nother")
    assert [line for line in cell.lines if line.startswith("It ran after step ")]
    assert "{'a': '1'}" in cell.out


def test_values_are_set_and_put_back(steered):
    """On all ranks, and the words say what was there before."""
    cell = steered.ok("%distributed set rates['lr']=0.05 lr=2.5")
    assert "rates['lr']: 0.2 -> 0.05" in cell.out
    steered.ok("%distributed set lr=3.5")
    cell = steered.ok("%distributed undo")
    assert "lr: 3.5 -> 2.5" in cell.out
    refused = steered.run("%distributed set nothing.lr=1")
    assert refused.ename == "NotSteered"
    assert "Nothing was changed." in refused.traceback


def test_a_loop_is_paused_stepped_and_resumed(steered):
    """The status says so meanwhile."""
    paused = steered.ok("%distributed pause")
    assert "All ranks are paused after step" in paused.out
    assert "paused" in steered.ok("%distributed status").said
    assert "All ranks are paused after step" in steered.ok("%distributed step 3").out
    assert "The loop goes on" in steered.ok("%distributed resume").out
    assert steered.run("%distributed resume").ename == "NotSteered"


def test_what_was_done_is_kept(steered):
    """The run's acts are in its record and shown with it."""
    steered.ok("%distributed between go = False")
    steered.ok("import jupyter_dtrain as d; over = d.current().last_run; over.wait(20)")
    shown = steered.ok("%distributed show {over.number}")

    assert "What was asked of its loop" in shown.said
    assert "set rates['lr']=0.05 lr=2.5" in shown.said
    steered.ok("%distributed export torchrun --with-local job.py")
    script = (steered.folder / "job.py").read_text()
    assert re.search(r"^# Steered after step \d+: set rates\['lr'\]=0.05 lr=2.5$", script, re.MULTILINE)
    assert "between" not in re.sub(r"^#.*$", "", script, flags=re.MULTILINE)


def test_what_is_wrong_with_a_line_is_said(ranks):
    """No code, no values, no loop."""
    assert "CODE" in ranks.run("%distributed between").said
    assert "PATH=VALUE" in ranks.run("%distributed set").said
    assert "no cell is running" in ranks.run("%distributed pause").traceback


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("between -x.sum()", "-x.sum()"),
        ('between "loss: " + str(x)', '"loss: " + str(x)'),
        ("between it's", "it's"),
        ("between --strict \"a = 'x'\"", "a = 'x'"),
        ("between 'x = 1' --strict", "x = 1"),
    ],
)
def test_code_at_the_end_of_a_line_is_one_word(line, code):
    """Quoted or not."""
    assert verb_parser().parse_line(line).code == code


def test_an_option_behind_the_code_is_none_of_it():
    with pytest.raises(UsageError, match="--strict stands before the code"):
        verb_parser().parse_line("between loss.item() --strict")

"""Variables across ranks, without any framework: what they hold, where ranks differ, and data in parts."""

from __future__ import annotations

import re

import pytest

from jupyter_dtrain import BadRequest, DistributedError, TransferFailed
from tests.session.cells import begin, run
from tests.steward.until import PATIENCE

PREPARE = """
import os
rank = int(os.environ["RANK"])
same = {"x": [1, 2.5], "y": "text"}
apart = [0.0, 1.0, 2.0 if rank != 2 else 2.25]
def function():
    pass
"""


@pytest.fixture(scope="module")
def held(world):
    """The shared world with some variables."""
    run(world, PREPARE)
    return world


def test_an_inventory_tells_what_each_rank_holds_and_marks_what_differs(held):
    """No function, no module and no name of IPython's is in it."""
    found = held.vars()

    assert set(found.names) >= {"rank", "same", "apart"}
    assert not set(found.names) & {"function", "os", "In", "Out", "get_ipython"}
    assert [found["rank"][rank].words for rank in range(3)] == ["0", "1", "2"]
    lines = str(found).splitlines()
    assert any(line.startswith("≠") and "apart" in line and line.endswith("0-1") for line in lines)
    assert any("same" in line and line.endswith("all") and not line.startswith("≠") for line in lines)
    assert re.search(r": \d+ with a rank's own values$", lines[0])


def test_an_inventory_comes_while_a_cell_runs(held, meeting):
    """The agents answer, not the main threads."""
    wait = f"import time, pathlib\nwhile not pathlib.Path({str(meeting / 'go')!r}).exists(): time.sleep(0.01)"
    going = begin(held, wait)
    found = held.vars(["same"])
    (meeting / "go").touch()
    assert going.wait(PATIENCE)
    assert found["same"][0].digest == found["same"][2].digest != ""


def test_a_comparison_names_the_part_the_rank_and_the_amount(held):
    """It says plain values themselves."""
    found = held.diff("apart")

    assert not found.identical
    assert (found.first.name, found.first.ranks, found.first.reference) == ("apart[2]", [2], 0)
    assert found.first.words[2] == "2.25"
    assert held.diff("same").identical
    assert "is the same on ranks 0-2" in str(held.diff("same"))


def test_parts_that_only_some_ranks_have_are_a_difference_of_form(held):
    """A longer list, and another type."""
    run(held, "shape = [1, 2] if rank else [1]\nkind = 1 if rank else 1.0")
    assert [(one.name, one.what, one.ranks) for one in held.diff("shape").differences] == [("shape[1]", "missing", [0])]
    assert held.diff("kind").first.what == "type"


def test_a_name_that_is_missing_is_named_with_its_ranks(held):
    """Before anything is read."""
    run(held, "if rank == 1: here = 1")
    with pytest.raises(DistributedError, match=r"Nothing was compared\. Ranks 0,2: 'here' is not defined\."):
        held.diff("here")
    with pytest.raises(TransferFailed, match=r"No rank has 'nowhere'\."):
        held.vars(["nowhere"])
    with pytest.raises(BadRequest, match="is not the name of a variable"):
        held.diff("a b")


def test_a_sequence_is_cut_into_consecutive_parts_and_put_together_again(held):
    """Lengths differ by at most one; a value that has no parts is refused before anything is sent."""
    held.scatter("part", list(range(10)))
    assert held.pull("part") == {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7, 8, 9]}
    assert held.gather("part") == list(range(10))
    assert held.gather("part", [2, 0]) == [0, 1, 2, 6, 7, 8, 9]
    held.scatter("letters", "ab", ranks=[0, 1])
    assert held.pull("letters", [0, 1]) == {0: "a", 1: "b"}
    assert held.gather("rank") == [0, 1, 2]
    with pytest.raises(BadRequest, match="cannot be scattered: int objects have no length"):
        held.scatter("part", 5)
    assert held.pull("part", 0) == {0: [0, 1, 2]}

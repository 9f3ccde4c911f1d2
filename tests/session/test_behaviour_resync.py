"""``resync`` makes the values of some names alike on all ranks again."""

from __future__ import annotations

import pytest

from jupyter_dtrain import BadRequest, DistributedError
from tests.session.cells import run, same, values

PREPARE = """
import os
rank = int(os.environ["RANK"])

class Model:
    def __init__(self, weight):
        self.weight = weight

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight = state["weight"]

model = Model([float(rank)] * 3)
model_id = id(model)
"""


@pytest.fixture(scope="module")
def apart(launch):
    """Three ranks whose models differ."""
    session = launch(n=3)
    run(session, PREPARE)
    yield session
    session.stop()


def test_an_object_with_a_state_gets_it_and_stays_the_same_object(apart):
    """Its methods decide, not its framework."""
    said = apart.broadcast(["model"], source=1).text(1)

    assert same(([1.0] * 3, True)) == values(run(apart, "(model.weight, id(model) == model_id)"))
    assert said == "model was not the same on ranks 0,2, and has the values of rank 1 now.\n"
    assert apart.broadcast(["model"], source=1).text(1) == ""


@pytest.mark.slow
def test_anything_else_is_replaced(apart):
    """The source may be any rank, and the value larger than a piece."""
    run(apart, "found = {'rank': rank, 'x': [float(rank)] * 3}\nbig = bytes([rank]) * (300 << 20)")
    apart.broadcast(["found", "big"], source=2)
    assert same(True) == values(run(apart, "found['rank'] == 2 and found['x'] == [2.0] * 3"))
    assert same(True) == values(run(apart, "big == bytes([2]) * (300 << 20)"))
    run(apart, "del big")


def test_a_rank_that_lacks_a_name_gets_the_whole_object(apart):
    """Objects that belong together still do: two names of one object, and an object that holds another."""
    run(apart, "class Holder: pass\nif rank == 2: whole = Model([2.0]); held = Holder(); held.it = whole")
    apart.broadcast(["whole", "held"], source=2)
    assert same((True, [2.0])) == values(run(apart, "(held.it is whole, whole.weight)"))
    run(apart, "del whole, held")


def test_states_of_different_shapes_are_refused(apart):
    """Ranks that hold different parts of a model are no replicas of each other."""
    run(
        apart,
        """
class Tensor:
    def __init__(self, n):
        self.shape = (n,)
parts = Model(Tensor(3 + rank))
""",
    )
    with pytest.raises(DistributedError, match=r"Rank 1: weight of 'parts' is \(4,\), and rank 0 has \(3,\)"):
        apart.broadcast(["parts"])


def test_an_impossible_resync_raises_and_changes_nothing(apart):
    """A name that is missing on some rank, one that is no name, what cannot be pickled, a rank that is not there."""
    run(apart, "mine = rank\nif rank == 2: here = 1")
    with pytest.raises(DistributedError, match=r"Nothing was changed\. Rank 0: 'here' is not defined"):
        apart.broadcast(["mine", "here"])
    run(apart, "import threading; lock = threading.Lock()")
    with pytest.raises(DistributedError, match=r"Nothing was changed\. Rank 0: mine, lock cannot be pickled"):
        apart.broadcast(["mine", "lock"])
    assert {0: 0, 1: 1, 2: 2} == values(run(apart, "mine"))
    with pytest.raises(BadRequest):
        apart.broadcast(["model", "1x"])
    with pytest.raises(BadRequest):
        apart.broadcast(["model"], source=3)

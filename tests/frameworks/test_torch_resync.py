"""Ranks whose optimizers have made different numbers of steps are reported, and made alike again."""

from __future__ import annotations

import pytest

from jupyter_dtrain import DistributedError
from tests.frameworks.torch_cells import SET_UP_DDP
from tests.session.cells import fail, run, same, values

TRAIN = (
    SET_UP_DDP
    + """
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

def train(steps, trip=None):
    for step in range(steps):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        if step == trip and rank == 1:
            raise ValueError("between backward and step")
        optimizer.step()

def held():
    state = optimizer.state_dict()["state"]
    return [round(float(x.sum()), 6) for x in (*model.parameters(), *(v for s in state.values() for v in s.values()))]

train(3)
"""
)


@pytest.fixture(scope="module")
def training(torch_three):
    """Three ranks that have trained a little."""
    run(torch_three, TRAIN)
    yield torch_three
    run(torch_three, "dist.is_initialized() and dist.destroy_process_group()")


def alike(session):
    """Whether all ranks hold the same."""
    return len({str(held) for held in values(run(session, "held()")).values()}) == 1


@pytest.mark.slow
def test_ranks_that_are_apart_are_reported_and_made_alike(training):
    """One raises after backward, the others make their step; then all have what rank 0 has, in the same objects."""
    assert alike(training)
    run(training, "ids = id(model), id(optimizer)")
    cell = fail(training, "train(10, trip=4)")
    assert {0: {"optimizer": 5}, 1: {"optimizer": 4}, 2: {"optimizer": 5}} == cell.steps
    said = "\n".join(DistributedError(cell)._render_traceback_())
    assert "Steps of optimizer in this cell: ranks 0,2 5, rank 1 4. The states of these ranks may differ now" in said
    assert "%distributed broadcast --from 0 optimizer MODEL" in said
    assert not alike(training)

    before = values(run(training, "held()"))
    training.broadcast(["model", "optimizer"])
    after = values(run(training, "held()"))
    assert after == same(before[0])
    assert same(True) == values(run(training, "(id(model), id(optimizer)) == ids"))
    run(training, "train(3)")
    assert alike(training)


def test_no_line_is_shown_where_all_are_at_one_step(training):
    """A run that ended well shows none either."""
    cell = fail(training, "train(2); 1 / 0")
    assert "Steps of" not in "\n".join(DistributedError(cell)._render_traceback_())


def test_an_optimizer_without_a_variable_is_not_named_by_its_type(training):
    """Libraries make such optimizers."""
    made = "def of_library(kept=[torch.optim.SGD(model.parameters(), lr=0.0)]): return kept[0]"
    cell = fail(training, f"{made}\nfor _ in range(2 - rank // 2): of_library().step()\n1 / 0")
    said = "\n".join(DistributedError(cell)._render_traceback_())
    assert "Steps of a SGD in this cell: ranks 0-1 2, rank 2 1." in said
    assert "%distributed broadcast --from 0 OPTIMIZER MODEL" in said


def test_only_variables_of_the_notebook_are_named_for_a_resync(training):
    """They have the notebook's name, not a function's; a function's own ones stay distinct."""
    step = "for _ in range(2 - rank // 2): {}.step()\n    1 / 0\n"
    cell = fail(training, f"def under(opt):\n    {step.format('opt')}under(optimizer)")
    assert "%distributed broadcast --from 0 optimizer MODEL" in "\n".join(DistributedError(cell)._render_traceback_())

    own = "optimizer = torch.optim.SGD(model.parameters(), lr=0.0)"
    cell = fail(training, f"def main():\n    {own}\n    {step.format('optimizer')}main()")
    said = "\n".join(DistributedError(cell)._render_traceback_())
    assert "Steps of the local optimizer in this cell: ranks 0-1 2, rank 2 1." in said
    assert "broadcast reaches only top-level variables of cells" in said
    assert "--from" not in said

"""Values into ranks and back."""

from __future__ import annotations

import pytest

from jupyter_dtrain import Session, TransferFailed


def test_what_is_pushed_comes_back_from_every_rank(world: Session) -> None:
    """push, then pull."""
    world.push({"numbers": [1, 2, 3]})

    assert {0: [1, 2, 3], 1: [1, 2, 3], 2: [1, 2, 3]} == world["numbers"]


def test_a_missing_name_is_told_with_the_ranks_that_miss_it(world: Session) -> None:
    """pull of a name that only rank 1 has."""
    world.run("only_here = 1", ranks=1, view=None)

    with pytest.raises(TransferFailed, match="'only_here' is not defined on ranks 0,2"):
        world.pull("only_here")

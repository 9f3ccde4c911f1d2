"""Values into ranks and back."""

from __future__ import annotations

import numpy as np
import pytest

from jupyter_dtrain import BadRequest, DistributedError, RanksBusy, TransferFailed
from jupyter_dtrain.wire.values import LARGE
from tests.session.cells import begin, run, same, values


class Broken:
    """Pickles well, and fails when it is rebuilt."""

    def __reduce__(self):
        return (int, ("not a number",))


def test_pushed_values_come_back_from_every_rank(world):
    """push, then pull."""
    world.push({"numbers": [1, 2, 3]})

    assert same([1, 2, 3]) == world["numbers"]


def test_values_of_a_subset_stay_with_it(world):
    """push to two ranks, pull from one."""
    world.push({"where": "here"}, ranks="0,2")

    assert {2: "here"} == world.pull("where", ranks=-1)
    assert {0: "here", 2: "here"} == world.pull("where", ranks=[0, 2])


def test_functions_of_the_notebook_travel(world):
    """Only cloudpickle can send a lambda that knows a variable."""
    factor = 3
    world.push({"triple": lambda x: factor * x})

    assert same(21) == values(run(world, "triple(7)"))


def test_large_values_travel(world):
    """20 MB there and back."""
    world.push({"large": b"x" * 20_000_000}, ranks=0)

    assert {0: 20_000_000} == {rank: len(value) for rank, value in world.pull("large", ranks=0).items()}


def test_large_arrays_travel_and_can_be_written(world):
    """By memory to ranks on this machine, and in messages to those on other hosts."""
    array = np.arange(LARGE, dtype=float)
    world.push({"large": array})
    run(world, "large += more", inputs={"more": np.ones(LARGE)})

    for large in world.pull("large").values():
        np.testing.assert_array_equal(large, array + 1)
        large[0] = 0


def test_inputs_are_there_before_the_cell(world):
    """run(inputs=...)."""
    assert same(5) == values(run(world, "a + b", inputs={"a": 2, "b": 3}))


def test_a_value_that_cannot_be_pickled_changes_nothing(world):
    """All values or none, and the culprit is named."""
    world.push({"good": "old"})

    with pytest.raises(TransferFailed, match="'bad' cannot be sent"):
        world.push({"good": "new", "bad": (k for k in ())})

    assert same("old") == world["good"]


def test_inputs_that_cannot_be_pickled_send_nothing(world):
    """The cell does not run, and no number is used."""
    before = world.last_run

    with pytest.raises(TransferFailed, match="'bad' cannot be sent"):
        run(world, "ran = 1", inputs={"bad": (k for k in ())})

    assert before is world.last_run


def test_a_value_that_cannot_be_rebuilt_in_a_rank_gets_an_error(world):
    """The name and the reason; nothing of it turns up in the next cell's output."""
    with pytest.raises(TransferFailed, match="'odd' cannot be rebuilt here: ValueError: invalid literal"):
        world.push({"odd": Broken()})

    assert run(world, "pass").text(0) == ""


def test_inputs_that_cannot_be_rebuilt_fail_the_cell(world):
    """It must not run with what the name meant before."""
    world.push({"rate": 1})

    with pytest.raises(DistributedError, match="'rate' cannot be rebuilt here"):
        run(world, "ran_with = rate", inputs={"rate": Broken()})

    with pytest.raises(TransferFailed, match="'ran_with' is not defined on ranks 0-2"):
        world.pull("ran_with")


def test_a_missing_name_is_reported_with_the_ranks_that_miss_it(world):
    """pull of a name that only rank 1 has."""
    run(world, "only_here = 1", ranks=1)

    with pytest.raises(TransferFailed, match="'only_here' is not defined on ranks 0,2"):
        world.pull("only_here")


def test_a_value_that_cannot_leave_its_rank_gets_an_error(world):
    """pull of a generator."""
    run(world, "stuck = (k for k in ())", ranks=2)

    with pytest.raises(TransferFailed, match="'stuck' cannot be pickled on rank 2"):
        world.pull("stuck", ranks=2)


def test_a_value_whose_class_is_not_here_gets_an_error(world):
    """It left its rank well, and cannot be rebuilt in the notebook."""
    code = "class Far:\n    def __reduce__(self): return (__import__, ('no_such_module',))\nfar = Far()"
    run(world, code, ranks=0)

    with pytest.raises(TransferFailed, match="'far' of rank 0 cannot be rebuilt here: ModuleNotFoundError"):
        world.pull("far", ranks=0)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "1a"])
def test_an_invalid_name_is_refused(world, name):
    """Both directions refuse it."""
    with pytest.raises(BadRequest, match="is not the name of a variable"):
        world.push({name: 1})
    with pytest.raises(BadRequest, match="is not the name of a variable"):
        world.pull(name)


def test_a_busy_rank_refuses_values_at_once(world, meeting):
    """Nothing queues behind a cell; the other ranks answer."""
    world.push({"free": 1})
    cell = begin(world, wait_for(meeting / "go"), ranks=1)

    with pytest.raises(RanksBusy, match=f"Cannot push free: rank 1 is still working on run {cell.number}"):
        world.push({"free": 2})
    with pytest.raises(RanksBusy, match=f"Cannot pull free: rank 1 is still working on run {cell.number}"):
        world.pull("free")
    others = world.pull("free", ranks="0,2")
    (meeting / "go").touch()

    assert cell.wait(20)
    assert {0: 1, 2: 1} == others
    assert same(1) == world["free"]


def test_the_ranks_that_know_a_name_are_found(world):
    """The hint for a NameError asks this."""
    run(world, "known_to_two = 1", ranks="1-2")

    assert world.names.defined_on("known_to_two") == [1, 2]


def wait_for(path) -> str:
    return f"import pathlib, time\nwhile not pathlib.Path({str(path)!r}).exists(): time.sleep(0.01)"

"""``call`` and ``map`` run functions on the ranks; ``result``, ``exception`` and ``await`` tell how a run ended."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import pytest

from jupyter_dtrain import BadRequest, DistributedError, DistributedInterrupt, RunTimeout, TransferFailed
from tests.session.cells import run, same, values

WAIT = "import time\nwhile True: time.sleep(0.05)"


@pytest.fixture(scope="module")
def called(launch):
    """Three ranks."""
    with launch(n=3) as session:
        yield session


def test_a_function_is_called_with_its_closure_and_its_values_come_back(called):
    base = 10

    def place(factor, *, more=0):
        from mpi4py import MPI

        return base + factor * MPI.COMM_WORLD.rank + more

    assert called.call(place, 2) == {0: 10, 1: 12, 2: 14}
    assert called.call(functools.partial(place, more=1), 2, ranks="1-2") == {1: 13, 2: 15}
    assert called.call(os.getpid, ranks=0) == {0: called.world.ranks[0].pid}


def test_a_call_leaves_no_name_on_the_ranks(called):
    called.call(len, [1, 2])

    assert values(run(called, "[name for name in globals() if name.startswith('_dtrain')]")) == same([])


def test_a_call_that_failed_leaves_no_value_after_the_next(called):
    def on_some():
        if os.environ["RANK"] == "1":
            raise ValueError
        return [0] * 1000

    with pytest.raises(DistributedError):
        called.call(on_some)
    called.call(len, [])

    assert values(run(called, "[name for name in globals() if name.startswith('_dtrain')]")) == same([])


def test_threads_may_call_at_once_also_a_function_of_a_module_that_no_import_finds(called, tmp_path):
    """As those of pytest's importlib mode. What the user has registered stays so."""
    file = tmp_path / "unfound.py"
    file.write_text("def twice(x):\n    return helper(x)\ndef helper(x):\n    return 2 * x\n")
    spec = importlib.util.spec_from_file_location("unfound", file)
    module = sys.modules["unfound"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        with ThreadPoolExecutor() as pool:
            found = list(pool.map(lambda x: called.call(module.twice, x, ranks=0), range(4)))
        cloudpickle.register_pickle_by_value(module)
        called.call(module.twice, 1)
        kept = "unfound" in cloudpickle.list_registry_pickle_by_value()
        cloudpickle.unregister_pickle_by_value(module)
    finally:
        del sys.modules["unfound"]

    assert found == [{0: 0}, {0: 2}, {0: 4}, {0: 6}]
    assert kept


def test_items_are_shared_among_ranks_and_come_back_in_order(called):
    def square(x):
        return x * x, os.getpid()

    found = called.map(square, range(7))
    assert [value for value, _ in found] == [x * x for x in range(7)]
    assert len({pid for _, pid in found}) == 3
    assert called.map(square, []) == []


def test_what_cannot_be_pickled_is_named_before_anything_is_sent(called):
    before = called.last_run
    lock = threading.Lock()

    def held():
        return lock

    with pytest.raises(TransferFailed, match=r"^held cannot be called on the ranks: .*lock"):
        called.call(held)
    assert called.last_run is before


def test_a_value_that_cannot_come_back_is_named_with_its_ranks(called):
    def lock():
        return threading.Lock()

    with pytest.raises(TransferFailed, match=r"The value of lock cannot be pickled on ranks 0-2: .*lock"):
        called.call(lock)
    assert called.call(int) == {0: 0, 1: 0, 2: 0}


def test_an_exception_of_the_function_is_that_of_a_cell_with_its_lines(called):
    def fails(rank):
        from mpi4py import MPI

        assert rank != MPI.COMM_WORLD.rank, "this one"

    with pytest.raises(DistributedError, match="this one") as caught:
        called.call(fails, 1)
    assert caught.value.ranks == [1]


def test_a_timeout_is_an_error_and_no_keyboard_interrupt(called):
    """One slow cell would end a whole pytest session."""
    with pytest.raises(RunTimeout) as caught:
        called.run(WAIT, timeout=0.5, view=None)

    assert isinstance(caught.value, DistributedError)
    assert isinstance(caught.value, TimeoutError)
    assert not isinstance(caught.value, KeyboardInterrupt)
    assert "timeout" in str(caught.value)


def test_the_result_of_a_run_raises_what_the_run_would_have(called):
    good = called.run("1", wait=False, view=None)
    bad = called.run("1 / 0", wait=False, view=None)

    assert good.result(60) is good
    assert good.exception(60) is None
    assert isinstance(bad.exception(60), DistributedError)
    with pytest.raises(DistributedError, match="ZeroDivisionError"):
        bad.result()


def test_a_result_is_waited_for_as_long_as_its_timeout_and_the_run_goes_on(called):
    slow = called.run(WAIT, wait=False, view=None)
    with pytest.raises(RunTimeout, match=rf"Run {slow.number} goes on"):
        slow.result(0.2)
    assert not slow.done
    called.interrupt()
    with pytest.raises(DistributedInterrupt):
        slow.result(60)


def test_a_run_can_be_awaited(called):
    async def both():
        first = called.run("import time; time.sleep(0.2)", wait=False, view=None)
        ticks = 0

        async def tick():
            nonlocal ticks
            while not first.done:
                ticks += 1
                await asyncio.sleep(0.01)

        done, _ = await asyncio.gather(_await(first), tick())
        return done is first, ticks

    assert asyncio.run(both())[0]
    assert asyncio.run(both())[1] > 1


async def _await(one):
    return await one


def test_former_names_work_and_say_the_new_ones(called):
    run(called, "shared = 1")
    for former, now, given in (("resync", "broadcast", (["shared"],)), ("surroundings", "info", ())):
        with pytest.warns(DeprecationWarning, match=f"Session.{former} is called Session.{now} now"):
            getattr(called, former)(*given)
    assert not {"heal", "resync", "sync", "surroundings", "check"} & set(dir(called))
    with pytest.raises(BadRequest, match="leave out the ranks"):
        called.restart(1, load="any")

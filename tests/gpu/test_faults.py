"""Faults of a device: the rank is named, the others go on, and the words say the way back."""

from __future__ import annotations

import re

import pytest

from tests import devices
from tests.frameworks.torch_curves import curve, points
from tests.gpu.cells import GIB, ILLEGAL, PATIENCE, SLEEP, START, SUM, told, when_idle
from tests.session.cells import begin, fail, run, same, texts, until, values

pytestmark = pytest.mark.gpu


def test_a_rank_that_runs_out_of_device_memory_frees_what_the_call_held(grouped):
    """The others are released, and the next cell trains on all ranks."""
    code = """
def grow():
    held = torch.ones(1 << 29, device=device)
    return torch.empty(1 << 43, dtype=torch.uint8, device=device)
if rank == 1:
    grow()
dist.barrier()
"""
    cell = fail(grouped, code, timeout=PATIENCE)
    assert cell.errors[1].ename == "OutOfMemoryError"
    assert cell.errors[0].waited == "barrier"
    freed = re.search(r"Out of memory. The rank dropped .* freed (\d+.\d\d) GB of the GPU's memory", texts(cell)[1])
    assert freed is not None, texts(cell)[1]
    assert float(freed[1]) == pytest.approx(2 * GIB / 1e9, abs=0.1)
    assert "lost the GPU" not in told(cell)
    again = run(grouped, "model, optimizer = make()\ntrain(model, optimizer, batches(4))")
    for rank, losses in values(again).items():
        assert points(again, "loss", rank) == curve(losses)
    assert values(run(grouped, SUM)) == same(2.0, 2)


def test_a_call_that_asks_for_too_much_blames_no_variable(single):
    """The words say how little the rank keeps. The first failure empties the cache of what came before."""
    for _ in range(2):
        cell = fail(single, "torch.empty(1 << 43, dtype=torch.uint8, device=device)", timeout=PATIENCE)

    assert cell.errors[0].ename == "OutOfMemoryError"
    assert "Out of memory. Nothing could be freed: the rank keeps " in texts(cell)[0]


def test_stop_ends_a_cell_whose_kernel_runs_on(single):
    """Only the end of its process ends a kernel: the rank is named with that line, and takes cells when it is done."""
    run(single, SLEEP, timeout=PATIENCE)
    cell = begin(single, "busy(30)\ntorch.cuda.synchronize()")
    single.interrupt()

    assert cell.wait(15)
    assert (cell.outcome, cell.busy) == ("interrupted", [0])
    assert "%distributed kill 0" in told(cell)
    assert values(when_idle(single, "1 + 1")) == {0: 2}
    assert values(run(single, "torch.ones(2, device=device).sum().item()")) == {0: 2.0}


def test_a_rank_after_an_illegal_memory_access_is_named_and_can_be_replaced(begun):
    """Its context on the device is lost, and it alone; the fix that is named works."""
    session = begun(2)
    run(session, f"{ILLEGAL}\nkept = torch.ones(8, device=device) * 3\ndist.init_process_group('gloo')")
    cell = fail(session, "if rank == 1:\n    poke()\ndist.barrier()", timeout=PATIENCE)

    assert "an illegal memory access was encountered" in cell.errors[1].evalue
    assert cell.errors[0].waited == "barrier"
    said = told(cell)
    assert "Rank 1 has lost the GPU (an illegal memory access was encountered)" in said
    assert "%distributed restart -r 1 replaces it" in said
    assert values(run(session, "kept.sum().item()", ranks=0)) == {0: 24.0}
    assert "lost the GPU" in told(fail(session, "torch.ones(2, device=device).sum().item()", ranks=1))

    session.restart(1)
    run(session, START, ranks=1, timeout=PATIENCE)
    assert values(run(session, SUM, timeout=PATIENCE)) == same(2.0, 2)
    assert values(run(session, "kept.sum().item()", ranks=0)) == {0: 24.0}
    session.stop()


ASSERT = "values = torch.zeros(4, device=device)\nindex = torch.tensor([10], device=device)\nvalues[index] = 1.0\n"


def test_a_device_side_assert_says_how_to_find_its_line_and_a_restart_brings_the_device_back(begun):
    session = begun(1)
    cell = fail(session, f"{ASSERT}torch.cuda.synchronize()")

    assert "device-side assert triggered" in cell.errors[0].evalue
    assert "a world that is started with --env CUDA_LAUNCH_BLOCKING=1 stops at the right one." in told(cell)
    session.restart()
    run(session, START, timeout=PATIENCE)
    assert values(run(session, "torch.ones(2, device=device).sum().item()")) == {0: 2.0}
    session.stop()


def test_a_world_with_launch_blocking_stops_at_the_line_of_the_assert(begun):
    """The advice is right: the frame is that of the index, three lines before the wait."""
    session = begun(1, env={"CUDA_LAUNCH_BLOCKING": "1"})
    cell = fail(session, f"{ASSERT}other = 1 + 1\ntorch.cuda.synchronize()")
    own = [frame for frame in cell.errors[0].frames if frame.cell]
    session.stop()

    assert own[-1].source == "values[index] = 1.0"


def test_a_rank_that_waits_for_its_device_alone_does_not_wait_for_others(single):
    """Its processor polls meanwhile; no collective is pending."""
    run(single, SLEEP, timeout=PATIENCE)
    cell = begin(single, "busy(3)\ntorch.cuda.synchronize()")
    stack = until(lambda: (found := single.stacks()[0]) and found.frames and found)
    assert cell.wait(PATIENCE)

    assert stack.waits is None


@pytest.mark.skipif(len(devices.look().names) > 1, reason="needs ranks that share one device, and here are several")
def test_a_fault_of_one_rank_leaves_the_others_on_the_same_device_alone(begun):
    """Each process has a context of its own there."""
    session = begun(2)
    run(session, ILLEGAL)
    fail(session, "poke()", ranks=1)

    assert values(
        run(session, "(torch.ones(64, 64, device=device) @ torch.ones(64, device=device)).sum().item()", 0)
    ) == {0: 4096.0}
    session.stop()

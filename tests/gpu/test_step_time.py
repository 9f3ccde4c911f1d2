"""Where the time of a CUDA loop's steps goes: the host's clock, and what waits for the device."""

from __future__ import annotations

import re

import pytest

from tests.gpu.cells import PATIENCE
from tests.session.cells import run

pytestmark = pytest.mark.gpu

LOOP = """
side = torch.randn(4096, 4096, device=device)
def many(count):
    for _ in range(count):
        product = side @ side
    return product.sum()
many(1).item()
began = time.monotonic()
many(20).item()
count = max(1, round(0.06 * 20 / (time.monotonic() - began)))
model, optimizer = make()
data = batches(1)[0]
for step in range(60):
    time.sleep(0.05)
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    READ
torch.cuda.synchronize()
"""
"""Steps of 0.05 s on the host and 0.06 s on any device."""


def test_a_value_that_each_step_reads_is_named_with_its_line(single):
    """Host and device take turns, so each is idle half of the time."""
    source = LOOP.replace("READ", "total = many(count)\n    read = total.item()  # read")
    cell = run(single, source, timeout=PATIENCE)
    print(cell.step_time, *cell.slow, sep="\n")
    found = cell.slow[0]
    line = int(re.findall(r", line (\d+)\)", found.words)[0])

    assert cell.step_time[0]["device"] > 0.25
    assert (found.kind, found.ranks) == ("reading", [0])
    assert source.splitlines()[line - 1].endswith("# read")


def test_a_loop_that_reads_nothing_waits_for_no_device(single):
    """The same work, which the device does while the host goes on."""
    cell = run(single, LOOP.replace("READ", "total = many(max(1, count // 4))"), timeout=PATIENCE)
    print(cell.step_time, *cell.slow, sep="\n")

    assert cell.step_time[0].get("device", 0.0) < 0.1
    assert "reading" not in [one.kind for one in cell.slow]

"""JupyterLab shows how ranks read their data, and how a cell scales."""

from __future__ import annotations

import importlib.util
import json

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.lab import run_all, save, shoot, wait_idle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

TRAIN = """%%distributed
import time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(256, 8)), batch_size=16)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for count, (batch,) in enumerate(loader, 1):
    loss = model(batch).square().mean()
    loss.backward()
    time.sleep(0.1)
    if count % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
SPEEDUP = """%%speedup 1 2 3 --repeats 2 --warmup 0
import os, time
size = int(os.environ["WORLD_SIZE"])
assert size < 3, "three are too many"
time.sleep(2 / size)
"""


def test_the_batch_a_fault_and_a_scaling_report_are_seen_and_saved(lab, browser):
    lab.write("scaling.ipynb", "%load_ext jupyter_dtrain\n%distributed start -n 2", TRAIN, SPEEDUP)
    page = lab.open(browser, "scaling.ipynb", height=1500)
    run_all(page)

    reading = page.locator(".jp-Notebook .dtrain-reading")
    expect(reading).to_have_count(2)
    expect(reading.first).to_have_text(
        "Global batch 64 = 2 replicas x 16 samples x 2 accumulated; 16 iterations (8 steps) an epoch"
    )
    expect(reading.last).to_contain_text("Ranks 0-1 read the same data")
    expect(reading.last).to_have_class("dtrain-reading dtrain-fault")
    report = page.locator(".dtrain-scaling")
    expect(report.locator("tbody tr")).to_have_count(3)
    expect(report.locator(".dtrain-scaling-words li").first).to_contain_text("3 ranks: the cell failed: AssertionError")
    expect(report.locator("canvas")).to_be_visible()
    wait_idle(page)
    report.scroll_into_view_if_needed()
    shoot(page, "scaling")
    save(page)

    notebook = nbformat.read(lab.folder / "scaling.ipynb", as_version=4)
    trained, measured = notebook.cells[1].outputs, notebook.cells[2].outputs
    assert any("Global batch 64 = 2 replicas" in output.get("data", {}).get("text/plain", "") for output in trained)
    (data,) = [
        output.data for output in measured if "application/vnd.jupyter-dtrain.scaling+json" in output.get("data", {})
    ]
    assert {"image/svg+xml", "text/html", "text/plain"} < set(data)
    assert "widget-view" not in json.dumps(measured)
    lab.leave(page)

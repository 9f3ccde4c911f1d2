"""JupyterLab shows where the time of a step goes, and why steps are slow: in the cell, saved, and of stored runs."""

from __future__ import annotations

import importlib.util

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.lab import execute, run_all, save, shoot, wait_idle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

TRAIN = """%%distributed
import time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.set_num_threads(1)
class Slow(Dataset):
    def __len__(self):
        return 100000
    def __getitem__(self, index):
        time.sleep(0.004 if dist.get_rank() == SLOW else 0)
        return torch.randn(64)
class Block(torch.nn.Linear):
    def forward(self, batch):
        time.sleep(0.03)
        return super().forward(batch)
model = DistributedDataParallel(Block(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for count, batch in zip(range(60), DataLoader(Slow(), batch_size=16)):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_slow_rank_is_named_and_its_bar_is_marked(lab, browser):
    """Live in the cell, in the saved notebook, and in the Runs tab beside a run whose ranks are alike."""
    slow = TRAIN.replace("SLOW", "1")
    healthy = TRAIN.replace("SLOW", "-1").replace('dist.init_process_group("gloo")\n', "")
    lab.write("step_time.ipynb", "%load_ext jupyter_dtrain\n%distributed start -n 2 --name timed", slow, healthy)
    page = lab.open(browser, "step_time.ipynb", height=1300)
    run_all(page)

    panel = page.locator(".jp-Notebook .dtrain-run").first
    sentence = panel.locator(".dtrain-why li")
    expect(sentence).to_contain_text("Rank 1 spends")
    expect(sentence).to_contain_text("of a step in loading data without worker processes")
    expect(sentence).to_contain_text("num_workers=2")
    labels = panel.locator(".dtrain-spent-label")
    expect(labels).to_have_text(["rank 0", "▲ rank 1"])
    expect(panel.locator(".dtrain-course canvas")).to_be_visible()
    wait_idle(page)
    bars = panel.locator(".dtrain-spent-row")
    bars.nth(1).locator(".dtrain-spent-piece").first.hover()
    expect(panel.locator(".dtrain-spent .dtrain-readout")).to_contain_text("loading data")
    sentence.scroll_into_view_if_needed()
    shoot(page, "step-time")
    save(page)
    notebook = nbformat.read(lab.folder / "step_time.ipynb", as_version=4)
    texts = [output.get("data", {}).get("text/plain", "") for output in notebook.cells[1].outputs]
    assert any("Rank 1 spends" in text and "Time of a step:" in text for text in texts)
    assert any(
        "Time of a step" in output.get("data", {}).get("image/svg+xml", "") for output in notebook.cells[1].outputs
    )

    execute(page, "dtrain:show")
    page.get_by_role("button", name="Open the Runs tab").click()
    tab = page.get_by_role("region", name="Runs", exact=True)
    group = tab.locator(".dtrain-runs-spent")
    expect(group.locator(".dtrain-spent-row")).to_have_count(2)
    expect(group.locator(".dtrain-why li")).to_contain_text("Rank 1 spends")
    expect(group.locator(".dtrain-course canvas")).to_have_count(2)
    tab.get_by_role("button", name="Each rank").click()
    expect(group.locator(".dtrain-spent-row")).to_have_count(4)
    expect(group.locator(".dtrain-spent-slow")).to_have_count(1)
    group.scroll_into_view_if_needed()
    shoot(page, "step-time-runs")
    lab.leave(page)

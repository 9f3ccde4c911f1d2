"""JupyterLab shows where replicas part, what ranks hold, and replaces a rank that died."""

from __future__ import annotations

import importlib.util
import os
import re
import signal

import pytest
from playwright.sync_api import expect

from tests.browser.lab import execute, run_all, run_cell, shoot, wait_idle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

TRAIN = """%%distributed --check model --check-every 5
import torch, torch.distributed as dist, time
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rank = dist.get_rank()
for step in range(40):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 20 and rank == 1:
        with torch.no_grad():
            model.module.weight[0, 3] += 0.5
    time.sleep(0.05)
"""
CHECK = "%distributed diff model"
WHOLE = "%%distributed\nimport torch.distributed as dist, torch\nx = torch.ones(1); dist.all_reduce(x); x.item()"


def test_replicas_that_part_are_marked_and_a_dead_rank_is_replaced_by_a_button(lab, browser):
    lab.write("replicas.ipynb", "%load_ext jupyter_dtrain\n%distributed start -n 2", TRAIN, CHECK, WHOLE)
    page = lab.open(browser, "replicas.ipynb", width=1500, height=1300)
    run_all(page)
    wait_idle(page)
    notebook = page.locator(".jp-Notebook")
    expect(notebook).to_contain_text("model differs in weight: rank 1 by up to 0.5")
    shoot(page, "replicas-checked")

    execute(page, "dtrain:show")
    panel = page.get_by_role("region", name="Distributed Training")
    section = panel.get_by_role("region", name="Variables")
    section.get_by_role("button", name="Compare across ranks").click()
    expect(section).to_contain_text("rank")
    expect(section.get_by_role("status")).to_contain_text(
        re.compile(r"^model.* differs?; \d+ more with a rank's own values")
    )
    section.scroll_into_view_if_needed()
    name = section.get_by_role("rowheader", name="optimizer")
    assert name.bounding_box()["height"] < 24, "the name does not stay on one line"
    shoot(page, "replicas-variables")

    victim = panel.locator("li[data-rank='1']")
    victim.locator(".dtrain-rank").click()
    expect(victim).to_contain_text(re.compile(r"pid \d+"))
    os.kill(int(re.search(r"pid (\d+)", victim.inner_text())[1]), signal.SIGKILL)
    attention = panel.get_by_role("region", name="Attention")
    button = attention.get_by_role("button", name="Replace dead ranks…")
    expect(button).to_be_visible()
    shoot(page, "replicas-dead")
    # It is where a person looks for it, and says what the new rank lacks.
    expect(panel.locator(".dtrain-world").get_by_role("button", name="Replace the dead rank…")).to_be_visible()
    expect(victim.get_by_role("button", name="Replace…")).to_be_visible()
    button.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("The new ranks are empty until cells define variables and imports on them again.")
    dialog.get_by_role("button", name="Replace").click()
    expect(button).to_be_hidden(timeout=60_000)
    expect(panel.locator("li[data-rank='1']")).to_contain_text("idle")
    # The old process' values are gone from the section.
    expect(section.get_by_role("button", name="Compare across ranks")).to_be_visible()
    run_cell(page, 3)
    expect(notebook.locator(".jp-CodeCell").last).to_contain_text("2.0")
    shoot(page, "replicas-healed")
    lab.leave(page)

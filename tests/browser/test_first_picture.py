"""README's first picture: the magic, four ranks that train, a rank that fails, and what is left. ``make pictures``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab import READY, SHOTS, execute, run_cell, theme, wait_idle

pytestmark = pytest.mark.slow

WIDTH = 880
"""The page's width in pixels: about what GitHub and PyPI give a picture, which shows the text in its own size."""
WAIT = 60_000  # four ranks import torch on a machine that has much else to do
CELLS = (
    "%load_ext jupyter_dtrain",
    """%%distributed -n 4
import torch, torch.distributed as dist
dist.init_process_group()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.005)""",
    """%%distributed
for step in range(1000):
    x = torch.randn(32, 10)
    if step == 300 and dist.get_rank() == 2:
        raise ValueError(f"sample {step} is damaged")
    loss = ((model(x) - x.sum(dim=1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()""",
    """%%distributed
dist.barrier()
print("all ranks go on from step", step)""",
)
LOAD, SET_UP, TRAIN, AFTER = range(len(CELLS))
BARE = """
#jp-top-panel, #jp-menu-panel, #jp-bottom-panel, .jp-SideBar, .jp-Toolbar, .jp-cell-toolbar { visibility: hidden; }
.jp-Notebook-footer { display: none; }
.jp-Collapser { visibility: hidden; }
.jp-Notebook .jp-Cell { border-color: transparent !important; box-shadow: none !important; }
.jp-Notebook .jp-Cell::before, .jp-Notebook .jp-Cell::after { display: none !important; }
"""
"""Without what surrounds the notebook, and without the mark of the active cell."""


def test_the_first_picture(lab, browser):
    """``DTRAIN_PICTURES`` names the folder for it."""
    lab.write("first.ipynb", *CELLS)
    page = browser.new_page(viewport={"width": WIDTH, "height": 1400}, device_scale_factor=2)
    page.set_default_timeout(WAIT)
    expect.set_options(timeout=WAIT)
    page.goto(lab.address("first.ipynb"))
    page.wait_for_selector(".jp-Notebook")
    page.evaluate(READY)
    theme(page, "JupyterLab Light")
    execute(page, "application:toggle-left-area")
    for cell in range(len(CELLS)):
        run_cell(page, cell)
        wait_idle(page)
    outputs = page.locator(".jp-Notebook .jp-CodeCell .jp-Cell-outputArea")
    expect(outputs.nth(TRAIN)).to_contain_text("ValueError on rank 2")
    expect(outputs.nth(TRAIN)).to_contain_text("Because of that: ranks 0-1,3 waited in backward and were released")
    expect(outputs.nth(AFTER)).to_contain_text("[0-3] all ranks go on from step 300")
    take(page)
    lab.leave(page)


def take(page: Page) -> None:
    """From the cell that trains to the last output; README has the code before these."""
    page.add_style_tag(content=BARE)
    page.wait_for_timeout(700)
    cells = page.locator(".jp-Notebook .jp-CodeCell")
    first, last = cells.nth(TRAIN).bounding_box(), cells.last.bounding_box()
    assert first is not None
    assert last is not None
    height = last["y"] + last["height"] - first["y"]
    SHOTS.mkdir(parents=True, exist_ok=True)
    path = SHOTS / "first.png"
    page.screenshot(path=path, clip={"x": first["x"], "y": first["y"], "width": first["width"], "height": height})
    if folder := os.environ.get("DTRAIN_PICTURES"):
        shutil.copy(path, Path(folder) / path.name)

"""Frameworks in a notebook: the schedule of a pipeline, live and saved, and the ranks' surroundings."""

from __future__ import annotations

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.lab import run_all, save, shoot

pytest.importorskip("torch", reason="needs PyTorch")

pytestmark = pytest.mark.slow

START = "%load_ext jupyter_dtrain\n%distributed start -n 2 --name staged --env TOKEN=do-not-tell"
TRAIN = """%%distributed
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
part = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
schedule = Schedule1F1B(PipelineStage(part, rank, ranks, torch.device("cpu")), 8, nn.functional.mse_loss)
for step in range(150):
    x = torch.randn(512, 256)
    optimizer.zero_grad()
    schedule.step(x) if rank == 0 else schedule.step(target=x, losses=[])
    optimizer.step()
dist.destroy_process_group()
"""


def test_a_pipeline_is_drawn_and_frameworks_are_described(lab, browser):
    """Live and, once the page is opened anew, from what the notebook keeps; no value of ``--env`` is in it."""
    path = lab.write("staged.ipynb", START, TRAIN, "%distributed info", "%distributed stop")
    page = lab.open(browser, "staged.ipynb", width=1300, height=1100)
    run_all(page)
    drawn = page.locator(".jp-Notebook .dtrain-gantt")
    expect(drawn).to_be_visible(timeout=120_000)
    expect(drawn.locator("figcaption")).to_contain_text("8 micro-batches: bubble")
    page.wait_for_function("!document.querySelector('.jp-Notebook').textContent.includes('[*]')", timeout=120_000)
    expect(drawn).to_be_visible()
    drawn.scroll_into_view_if_needed()
    shoot(page, "pipeline")
    told = page.locator(".jp-Notebook .jp-OutputArea", has_text="TOKEN").last
    expect(told).to_contain_text("WORLD_SIZE")
    told.scroll_into_view_if_needed()
    shoot(page, "env")
    save(page)
    lab.leave(page)
    again = lab.open(browser, "staged.ipynb", kernel=False)
    expect(again.locator(".jp-Notebook .dtrain-gantt")).to_be_visible()
    again.close()
    outputs = [str(cell.get("outputs")) for cell in nbformat.read(path, as_version=4).cells]

    assert any("TOKEN" in output for output in outputs)
    assert not any("do-not-tell" in output for output in outputs)

"""The button of a panel that profiles the loop of its cell, for which the notebook's kernel waits."""

from __future__ import annotations

import gzip
import importlib.util
import json

import pytest
from playwright.sync_api import expect

from tests.browser.lab import READY, execute, run_all, shoot, wait_idle

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

TRAIN = """%%distributed
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
while True:
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
"""


def test_the_loop_of_a_cell_is_profiled_while_its_kernel_waits(lab, browser):
    """Tables below the charts, a link to the trace, and the next profile beside this one; they outlive the run."""
    (lab.folder / "my work").mkdir()
    lab.write("my work/profile.ipynb", "%load_ext jupyter_dtrain\n%distributed start -n 2 --name profiled", TRAIN)
    page = lab.open(browser, "my work/profile.ipynb", height=1200)
    run_all(page)

    panel = page.locator(".jp-Notebook .dtrain-run").first
    button = panel.get_by_role("button", name="Profile", exact=True)
    expect(panel.locator(".dtrain-summary")).to_contain_text("steps/s")
    button.click()
    expect(button).to_be_disabled()
    found = panel.get_by_role("region", name="Profile", exact=True)
    captions = found.locator("caption")
    expect(captions.first).to_contain_text("5 steps from step")
    expect(found.locator("table").first.locator("tbody tr")).to_have_count(2)
    expect(found).to_contain_text("100% of the ranks' collectives are matched")
    expect(panel.get_by_role("status")).to_have_text("The profile is below the charts.")
    expect(found).to_be_focused()
    with page.expect_download() as downloaded:
        found.get_by_role("link", name="profile-").click()
    (file,) = (lab.folder / "my work").glob("profile-*.json.gz")
    trace = downloaded.value.path().read_bytes()
    assert trace == file.read_bytes()
    assert json.loads(gzip.decompress(trace))["dtrain"]["ranks"] == [0, 1]
    shoot(page, "profile")

    panel.get_by_role("button", name="again").click()
    expect(captions.last).to_contain_text("Beside the last profile")
    execute(page, "notebook:interrupt-kernel")
    wait_idle(page)
    expect(button).to_be_hidden()
    expect(captions.last).to_contain_text("Beside the last profile")
    lab.leave(page)


@pytest.mark.slow
def test_without_the_server_the_kernel_profiles_its_own_cell(lab, browser):
    """Its panel is a widget then, whose questions the kernel answers beside the cell."""
    lab.write("alone.ipynb", "%load_ext jupyter_dtrain\n%distributed start -n 2 --name alone", TRAIN)
    page = lab.open(browser, "alone.ipynb")
    page.route_web_socket("**/dtrain/stream*", lambda stream: stream.close())
    page.reload()
    page.wait_for_selector(".jp-Notebook")
    page.evaluate(READY)
    run_all(page)

    panel = page.locator(".jp-Notebook .dtrain-run").first
    expect(panel.locator(".dtrain-summary")).to_contain_text("steps/s")
    panel.get_by_role("button", name="Profile", exact=True).click()
    found = panel.get_by_role("region", name="Profile", exact=True)
    expect(found.locator("caption").first).to_contain_text("5 steps from step")
    (file,) = lab.folder.glob("profile-*.json.gz")
    expect(found).to_contain_text(f"The trace of all steps is in {file}")
    execute(page, "notebook:interrupt-kernel")
    wait_idle(page)
    lab.leave(page)

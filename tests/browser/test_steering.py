"""A hand on the running loop in a page: the buttons of the cell's panel, and those of the sidebar."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab import execute, run_cell, shoot, wait_idle

START = "%load_ext jupyter_dtrain\n%distributed start -n 2 --name steered"
LOOP = """%%distributed
import os, time
import jupyter_dtrain as dtrain

class Optimizer:
    lr = 0.1

rank, optimizer, loss = int(os.environ["RANK"]), Optimizer(), 2.0
for batch in range(1_000_000):
    loss *= 1 - 0.01 * optimizer.lr
    time.sleep(0.02)
    dtrain.log(loss=loss, lr=optimizer.lr, step=batch)
    dtrain.step()
print("ended with", optimizer.lr)
"""


@pytest.fixture(scope="module")
def page(browser, lab):
    """A notebook with a world, and a cell with a loop that would take hours."""
    lab.write("steered.ipynb", START, LOOP)
    lab.write("other.ipynb", "%load_ext jupyter_dtrain\n%distributed attach steered")
    page = lab.open(browser, "steered.ipynb", width=1300, height=1100)
    run_cell(page, 0)
    wait_idle(page)
    yield page
    lab.leave(page)


def cell(page: Page, index: int):
    """A cell of the notebook."""
    return page.locator(".jp-Notebook-cell").nth(index)


def show(page: Page, path: str) -> None:
    """Bring a notebook to the front."""
    page.evaluate("(path) => void window.jupyterapp.commands.execute('docmanager:open', {path})", path)
    expect(page.locator(".lm-TabBar-tab.jp-mod-current").filter(has_text=path)).to_be_visible()


@pytest.fixture
def panel(page):
    """The panel of that cell, while it runs."""
    run_cell(page, 1)
    found = cell(page, 1).locator(".dtrain-run")
    expect(found.get_by_role("button", name="Pause")).to_be_visible()
    yield found
    show(page, "steered.ipynb")
    # An interrupt of a kernel that is idle may reach the next cell.
    if found.locator(".dtrain-badge").inner_text() in ("running", "paused"):
        execute(page, "notebook:interrupt-kernel")
    wait_idle(page)


def paused_at(panel) -> int:
    """The step after which the panel says that the loop is paused."""
    summary = panel.locator(".dtrain-summary")
    expect(summary).to_contain_text("Paused after step")
    return int(re.search(r"Paused after step ([\d,]+)", summary.inner_text())[1].replace(",", ""))


def test_the_panel_steers_the_loop_of_a_busy_kernel(page, panel):
    """Pause, step, a new rate and back, resume, and the end of the loop."""
    steering = panel.get_by_role("group", name="Steer the loop")
    told = panel.locator(".dtrain-steering-said")
    expect(steering.get_by_role("button")).to_have_text(["Pause", "Set", "Run between steps…", "End loop"])
    rate = steering.get_by_label("New learning rate")
    expect(rate).to_have_attribute("placeholder", "0.1")
    shoot(page, "steering-running")

    steering.get_by_role("button", name="Pause").press("Enter")
    first = paused_at(panel)
    resume = steering.get_by_role("button", name="Resume")
    expect(resume).to_be_focused()
    expect(told).to_contain_text(f"Paused after step {first}.")
    expect(panel.locator(".dtrain-tile").first).to_contain_text("paused")
    expect(panel.locator(".dtrain-badge")).to_have_text("paused")

    steering.get_by_role("button", name="Step", exact=True).click()
    expect(panel.locator(".dtrain-summary")).to_contain_text(f"Paused after step {first + 1}")

    rate.fill("fast")
    rate.press("Enter")
    expect(panel.get_by_role("alert").filter(has_text="as a number, such as 1e-4")).to_be_visible()
    rate.fill("0.05")
    rate.press("Enter")
    expect(told).to_contain_text(f"optimizer.lr: 0.1 -> 0.05 (ranks 0-1, after step {first + 1})")
    expect(told).to_contain_text("by the JupyterLab page of the notebook steered.ipynb")
    expect(panel.get_by_role("alert").filter(has_text="as a number")).to_have_count(0)
    steering.get_by_role("button", name="Undo").click()
    expect(told).to_contain_text("0.05 -> 0.1")
    expect(steering.get_by_role("button", name="Undo")).to_have_count(0)

    resume.click()
    expect(panel.locator(".dtrain-summary")).not_to_contain_text("Paused")
    expect(steering.get_by_role("button", name="Pause")).to_be_visible()
    expect(rate).to_have_attribute("placeholder", "0.1")
    steering.get_by_role("button", name="End loop").click()
    wait_idle(page)
    expect(cell(page, 1)).to_contain_text("[0-1] ended with 0.1")
    expect(panel.locator(".dtrain-badge")).to_have_text("ok")
    expect(steering).to_have_count(0)


def test_the_panel_runs_code_between_two_steps(page, panel):
    """It raises on one rank, and the loop goes on."""
    steering = panel.get_by_role("group", name="Steer the loop")
    told = panel.locator(".dtrain-steering-said")
    steering.get_by_role("button", name="Pause").click()
    first = paused_at(panel)
    opens = steering.get_by_role("button", name="Run between steps…")
    opens.click()
    code = panel.get_by_label("Code to run on all ranks between two steps")
    expect(code).to_be_focused()
    code.press("Escape")
    expect(code).to_be_hidden()
    expect(opens).to_be_focused()
    opens.press("Enter")
    code.fill("optimizer.lr = 0.025\nprint('set', batch + 1)\n1 / (1 - rank)")
    code.press("ControlOrMeta+Enter")
    expect(told).to_contain_text("it raised on rank 1: ZeroDivisionError")
    expect(told).to_contain_text("It ran on rank 0: what they hold may differ now.")
    output = panel.get_by_role("log", name="Output of the ranks")
    expect(output).to_contain_text(f"set {first}")
    shoot(page, "steering-paused")
    page.set_viewport_size({"width": 640, "height": 1100})
    shoot(page, "steering-narrow")
    page.set_viewport_size({"width": 1300, "height": 1100})
    code.fill("print('same on all')")
    panel.get_by_role("button", name="Run", exact=True).click()
    expect(output.locator("pre")).to_have_text(["same on all"])
    expect(output).to_contain_text("ranks 0-1:")
    panel.get_by_role("button", name="Close").click()
    steering.get_by_role("button", name="Resume").click()
    expect(steering.get_by_label("New learning rate")).to_have_attribute("placeholder", "0.025")
    steering.get_by_role("button", name="End loop").click()
    wait_idle(page)
    expect(cell(page, 1)).to_contain_text("[0-1] ended with 0.025")


def test_the_sidebar_pauses_and_runs_code_where_the_driver_s_notebook_is_open(page, panel):
    """Another notebook's panel says who can."""
    show(page, "other.ipynb")
    execute(page, "dtrain:show")
    sidebar = page.get_by_role("region", name="Distributed Training")
    world = sidebar.locator(".dtrain-world")
    world.get_by_role("button", name="Pause the loop of steered").click()
    expect(world.locator(".dtrain-state")).to_have_text(re.compile(r"run \d+ paused"))
    expect(sidebar.locator("[data-rank='1']").first).to_contain_text("paused")
    opens = world.get_by_role("button", name="Run code between two steps of the loop of steered")
    opens.click()
    code = world.get_by_label("Code to run on all ranks between two steps")
    expect(code).to_be_focused()
    code.fill("print('from the sidebar', optimizer.lr)")
    code.press("ControlOrMeta+Enter")
    expect(world.get_by_role("log", name="Output of the ranks")).to_contain_text("from the sidebar 0.1")
    shoot(page, "steering-sidebar")
    code.press("Escape")
    expect(code).to_have_count(0)
    expect(opens).to_be_focused()
    world.get_by_role("button", name="Let the loop of steered go on").click()
    expect(world.get_by_role("button", name="Pause the loop of steered")).to_be_visible()
    show(page, "steered.ipynb")
    panel.get_by_role("button", name="End loop").click()
    wait_idle(page)
    expect(cell(page, 1)).to_contain_text("[0-1] ended with 0.1")


@pytest.mark.usefixtures("panel")
def test_a_page_without_the_driver_s_notebook_does_not_steer(browser, lab):
    """Its sidebar says which notebook to open, and so does a notebook's panel that is attached read-only."""
    other = lab.open(browser, "other.ipynb", width=900, height=900)
    execute(other, "dtrain:show")
    world = other.get_by_role("region", name="Distributed Training").locator(".dtrain-world")
    expect(world.get_by_role("button", name="Open steered.ipynb to steer this loop.").first).to_be_disabled()
    other.close()

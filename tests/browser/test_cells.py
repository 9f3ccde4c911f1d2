"""A cell for the ranks in the browser: pills, completion, inspection, the status bar."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab import run_cell, shoot, wait_idle

START = "%load_ext jupyter_dtrain\n%distributed start -n 2 --name cells"
TRAIN = """%%distributed
import jupyter_dtrain, time
def warm_up(steps, *, rate=0.1):
    "Go slowly first."
for step in range(5000):
    jupyter_dtrain.log(loss=1 / (step + 1), step=step)
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def written(browser, lab):
    """A notebook whose world has "warm_up", and other cells for the ranks."""
    lab.write("cells.ipynb", START, TRAIN, "%%rank 1\nprint('one')", "x = 1", "%distributed auto on", "pass")
    page = lab.open(browser, "cells.ipynb", width=1300, height=900)
    yield page
    lab.leave(page)


def pill(page: Page, index: int):
    """The pill of a cell."""
    return page.locator(".jp-Notebook-cell").nth(index).locator(".dtrain-pill")


def write(page: Page, index: int, text: str) -> None:
    """Type ``text`` into a cell, in place of what it holds."""
    editor = page.locator(".jp-Notebook-cell").nth(index).locator(".cm-content")
    editor.click()
    editor.press("ControlOrMeta+a")
    editor.press("Delete")
    page.keyboard.insert_text(text)


def test_a_pill_shows_where_a_cell_goes_and_how_it_goes_there(written):
    """The status bar too, while the kernel is busy."""
    expect(pill(written, 1)).to_have_text("all ranks")
    expect(pill(written, 2)).to_have_text("rank 1")
    expect(written.locator(".dtrain-pill")).to_have_count(2)
    run_cell(written, 0)
    wait_idle(written)
    status = written.locator(".dtrain-status")
    expect(status).to_have_text("cells · idle")
    run_cell(written, 1)
    expect(pill(written, 1)).to_contain_text("all ranks · running · step ")
    expect(pill(written, 1)).to_have_attribute("data-look", "running")
    expect(status).to_contain_text("cells · run 1 · step ")
    expect(pill(written, 2)).to_have_text("rank 1")
    status.click()
    panel = written.get_by_role("region", name="Distributed Training")
    expect(panel).to_be_visible()
    hint = panel.get_by_text("jupyter labextension disable ipyparallel-labextension")
    expect(hint).to_be_visible()
    shoot(written, "cells-running")
    panel.get_by_role("button", name="Do not show this again").click()
    expect(hint).to_have_count(0)
    panel.get_by_role("button", name="Interrupt the cell on all ranks of cells").click()
    wait_idle(written)
    expect(pill(written, 1)).to_have_text("all ranks")
    expect(status).to_have_text("cells · idle")


def test_options_and_names_of_the_ranks_are_completed(written):
    """The table of -h and the ranks provide the names; Shift-Tab describes them."""
    write(written, 3, "%%distributed --no-")
    written.keyboard.press("Tab")
    offered = written.locator(".jp-Completer")
    expect(offered).to_contain_text("--no-wait")
    expect(offered).to_contain_text("--no-metrics")
    written.keyboard.press("Escape")
    write(written, 3, "%%distributed\nwarm_u")
    editor = written.locator(".jp-Notebook-cell").nth(3).locator(".cm-content")
    written.keyboard.press("Tab")
    expect(offered).to_contain_text("warm_up")
    written.keyboard.press("Enter")
    expect(editor).to_contain_text("warm_up")
    written.keyboard.insert_text("(")
    written.keyboard.press("Shift+Tab")
    told = written.locator(".jp-Tooltip")
    expect(told).to_contain_text("warm_up lives on all ranks, not in the notebook.")
    expect(told).to_contain_text("warm_up(steps, *, rate=0.1)")
    expect(told).to_contain_text("Go slowly first.")
    shoot(written, "cells-inspected")
    written.keyboard.press("Escape")


def test_every_plain_cell_has_a_pill_in_auto_mode(written):
    """They have it as long as the mode lasts; cells that stay have none."""
    write(written, 3, "x = 1")
    expect(pill(written, 3)).to_have_count(0)
    run_cell(written, 4)
    wait_idle(written)
    expect(pill(written, 3)).to_have_text("all ranks")
    expect(pill(written, 5)).to_have_text("all ranks")
    expect(pill(written, 4)).to_have_count(0)
    write(written, 3, "%%local\nx = 1")
    expect(pill(written, 3)).to_have_count(0)
    write(written, 4, "%distributed auto off")
    run_cell(written, 4)
    wait_idle(written)
    expect(pill(written, 5)).to_have_count(0)

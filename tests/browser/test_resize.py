"""A world that gets more ranks and then fewer, as a person sees it: the cells, the panel, the status bar."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.lab import run_cell, shoot, wait_idle
from tests.browser.test_sidebar import show

pytestmark = pytest.mark.slow

CELLS = (
    "%load_ext jupyter_dtrain\n%distributed start -n 2 --name grown",
    "%%distributed\nimport os\nprint('one of', os.environ['WORLD_SIZE'])",
    "%distributed resize 4",
    "%%distributed\nimport os\nprint('now of', os.environ['WORLD_SIZE'])",
    "%distributed resize 3",
    "%distributed",
    "%distributed stop",
)


def test_a_person_sees_the_ranks_that_there_are(browser, lab):
    """Nothing needs attention: the person asked for it."""
    lab.write("grown.ipynb", *CELLS)
    page = lab.open(browser, "grown.ipynb", width=1300, height=1000)
    panel = show(page)
    ranks = panel.locator("li[data-rank]")
    for index in (0, 1):
        run_cell(page, index)
        wait_idle(page)
    expect(ranks).to_have_count(2)
    for index in (2, 3):
        run_cell(page, index)
        wait_idle(page)
    expect(page.get_by_text("The world has 4 ranks instead of 2.")).to_be_visible()
    expect(page.get_by_text("now of 4")).to_be_visible()
    expect(ranks).to_have_count(4)
    shoot(page, "resize-4")
    for index in (4, 5):
        run_cell(page, index)
        wait_idle(page)
    expect(ranks).to_have_count(3)
    expect(page.get_by_text(re.compile("The world has 3 ranks instead of 4 after"))).to_be_visible()
    expect(panel.get_by_role("region", name="Attention")).to_have_count(0)
    shoot(page, "resize-3")
    run_cell(page, 6)
    wait_idle(page)
    page.close()

"""The panel, the dialog, the Runs tab and a cell for everybody: axe-core, the Tab key, widths, zoom, high contrast.

A test fails for each problem that axe-core calls serious or critical.
Pictures go to ``build/screenshots``, to be looked at.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.lab import SHOTS, execute, run_all, shoot, theme, wait_idle

AXE = Path(__file__).resolve().parents[2] / "labextension" / "node_modules" / "axe-core" / "axe.min.js"
pytestmark = pytest.mark.slow

THEMES = ("JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast")
CELL = """%%distributed
import os
rank = int(os.environ["RANK"])
from jupyter_dtrain import log
for step in range(60): log(loss=1 / (step + 1) + rank, step=step)
for step in range(40): print("step", step, "of", rank)
"""
CHECK = """async (selector) => {
    const { violations } = await axe.run(
        { include: [[selector]] },
        { resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'] },
    );
    return violations
        .filter((one) => ['serious', 'critical'].includes(one.impact))
        .flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html.slice(0, 200)} ${node.failureSummary}`));
}"""
FOCUSED = "() => document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()"


@pytest.fixture(scope="module")
def page(browser, lab):
    """A notebook with a run, its panel, and the sidebar."""
    if not AXE.exists():
        pytest.skip("needs axe-core: run `npm ci` in labextension")
    lab.write("access.ipynb", "%load_ext jupyter_dtrain\n%distributed start -n 2 --name open", CELL)
    page = lab.open(browser, "access.ipynb", width=1500, height=1000)
    page.add_script_tag(path=AXE)
    run_all(page)
    wait_idle(page)
    execute(page, "dtrain:show")
    expect(page.get_by_role("region", name="Distributed Training").locator(".dtrain-world")).to_have_count(1)
    yield page
    lab.leave(page)


def check(page: Page, selector: str) -> None:
    """Nothing serious, in any theme."""
    for name in THEMES:
        theme(page, name)
        page.wait_for_timeout(700)  # its style sheets come one after the other
        assert page.evaluate(CHECK, selector) == [], name


def stops(page: Page, key: str, count: int) -> list[str]:
    """The names of the elements that a key goes to."""
    found = []
    for _ in range(count):
        page.keyboard.press(key)
        found.append(page.evaluate(FOCUSED))
    return found


def test_the_panel_is_for_everybody(page):
    """Its ranks, losses, runs and buttons."""
    panel = page.get_by_role("region", name="Distributed Training")
    panel.locator("li[data-rank='1'] .dtrain-rank").click()
    check(page, "#jupyter-dtrain-panel")


def test_a_cell_is_for_everybody(page):
    """Its panel with a chart, and its output with the bar."""
    cell = page.locator(".jp-CodeCell").nth(1)
    expect(cell.locator(".dtrain-chart canvas").first).to_be_visible()
    expect(cell.get_by_role("toolbar", name="Output")).to_be_visible()
    check(page, ".jp-CodeCell:nth-of-type(2) .jp-OutputArea")


def test_the_dialog_is_for_everybody_and_the_tab_key_goes_round_in_it(page):
    """From the ranks to the buttons, in the order of the eye, and back to the ranks."""
    execute(page, "dtrain:start")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Ranks", exact=True)).to_be_focused()
    forward = stops(page, "Tab", 8)
    assert forward.index("Cancel") < forward.index("Start")
    assert "More options" in forward
    check(page, ".jp-Dialog-content")
    dialog.get_by_role("button", name="Cancel").click()


def test_the_runs_tab_is_for_everybody(page):
    """Its table, filters and charts."""
    page.get_by_role("button", name="Open the Runs tab").click()
    tab = page.get_by_role("region", name="Runs", exact=True)
    expect(tab.locator("canvas").first).to_be_visible()
    check(page, ".dtrain-runs-page")


def width(page: Page, panel: Locator, pixels: int) -> None:
    """Drag the sidebar's edge until it is so wide."""
    box = panel.bounding_box()
    edge = box["x"] + box["width"] + 1
    page.mouse.move(edge, 500)
    page.mouse.down()
    page.mouse.move(edge + pixels - box["width"], 500, steps=5)
    page.mouse.up()


def test_narrow_wide_and_zoomed_panels_are_whole(page):
    """Nothing is cut off at the side."""
    panel = page.get_by_role("region", name="Distributed Training")
    for pixels in (250, 600):
        width(page, panel, pixels)
        page.wait_for_timeout(500)
        assert panel.evaluate("(one) => one.scrollWidth - one.clientWidth") <= 0
        shoot(page, f"access-{pixels}")
    page.evaluate("() => { document.body.style.zoom = 1.5; }")
    page.wait_for_timeout(500)
    assert panel.evaluate("(one) => one.scrollWidth - one.clientWidth") <= 0
    shoot(page, "access-zoomed")
    page.evaluate("() => { document.body.style.zoom = 1; }")
    theme(page, THEMES[-1])
    page.wait_for_timeout(700)
    page.screenshot(path=SHOTS / "access-high-contrast.png")

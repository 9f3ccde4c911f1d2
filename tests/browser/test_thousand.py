"""1,024 ranks on 128 hosts in JupyterLab: a saved notebook, and the sidebar over a stream that the test plays."""

from __future__ import annotations

import nbformat
import pytest
from playwright.sync_api import expect

from jupyter_dtrain.view.saved import bundle
from tests.browser.lab import shoot
from tests.browser.stream import PlayedStream
from tests.browser.test_stage import picture

SIZE, NODES = 1024, 128


@pytest.fixture(scope="module")
def shown():
    """A run in which a few ranks are odd."""
    return picture(SIZE, nodes=NODES, points=60)


@pytest.mark.slow
def test_a_saved_run_is_readable(shown, browser, lab):
    """In light and dark, without a kernel: the odd ranks above, hosts below, and the curves on the same screen."""
    cell = nbformat.v4.new_code_cell("%%distributed\ntrain()")
    shown.outcome = "error"
    cell.outputs = [nbformat.v4.new_output("display_data", data=bundle(shown, with_svg=False))]
    path = lab.write("thousand.ipynb", cell)
    shown.outcome = "running"
    page = lab.open(browser, "thousand.ipynb", kernel=False)
    expect(page.locator(".dtrain-chart canvas").first).to_be_visible()
    assert page.locator(".dtrain-name").first.text_content() == "node-0 4"
    assert page.locator(".dtrain-tile").count() < 200
    box = page.locator(".dtrain-chart").first.bounding_box()
    assert box["y"] + box["height"] < 900
    print(f"the notebook has {path.stat().st_size / 1000:.0f} kB")
    shoot(page, "thousand-saved")


@pytest.mark.slow
def test_the_sidebar_has_the_odd_ranks_first_and_unfolds_hosts(shown, browser, lab):
    """Each host is one row; with its ranks it is nine."""
    states = {rank: shown.states[rank] if rank < 6 else "idle" for rank in range(SIZE)} | {4: "dead"}
    stream = PlayedStream(lab, browser, shown, states)
    page, panel = stream.page, stream.panel
    odd = panel.get_by_role("list", name="Ranks to look at")
    expect(odd.locator("li").first).to_contain_text("rank 4")
    expect(odd.locator("li").first).to_contain_text("node-0")
    assert odd.locator("li").count() < 10
    hosts = panel.locator(".dtrain-host-row")
    expect(hosts).to_have_count(NODES)
    expect(hosts.nth(3)).to_contain_text("ranks 24-31 · 8 idle")
    hosts.nth(3).click()
    expect(panel.get_by_role("list", name="Ranks on node-3").locator("li")).to_have_count(8)
    shoot(page, "thousand-sidebar")
    page.close()

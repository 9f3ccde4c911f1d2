"""A cell's output by rank, as a person reads it: folded, searched, compared, side by side; live and saved."""

from __future__ import annotations

import json
import re

import nbformat
import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Locator, Page, expect

from tests.browser.lab import run_cell, save, shoot, wait_idle

START = "%load_ext jupyter_dtrain\n%distributed start -n 2 --name printed"
LONG = """%%distributed
import os, sys, time
rank = int(os.environ["RANK"])
print("a log line", file=sys.stderr)
if rank == 0:
    print("half", end="", flush=True)
    time.sleep(0.5)  # it is shown, and redrawn with the other half
    print(" and half", flush=True)
for step in range(400):
    print(f"step {step}", flush=True)
    if step % 100 == 50:
        print(f"\\x1b[31mbatch of rank {rank} at {step}\\x1b[0m", flush=True)
"""
PICTURES = """%%distributed
from IPython.display import HTML, SVG, display
colour = ["teal", "orange"][rank]
area = 'width="240" height="120"'
display(SVG(f'<svg xmlns="http://www.w3.org/2000/svg" {area}><rect {area} fill="{colour}"/></svg>'))
display(HTML(f"<table><tr><th>rank</th><th>loss</th></tr><tr><td>{rank}</td><td>{rank / 10}</td></tr></table>"))
"""


@pytest.fixture(scope="module")
def printed(browser, lab):
    """A page with a world of two ranks, on which the tests below go on."""
    lab.write("printed.ipynb", START, LONG, PICTURES, "%distributed stop")
    page = lab.open(browser, "printed.ipynb", width=1200, height=1000)
    yield page
    lab.leave(page)


def output_of(page: Page, cell: int) -> Locator:
    """The output of a cell."""
    return page.locator(".jp-CodeCell").nth(cell).locator(".jp-OutputArea").first


def look(output: Locator) -> None:
    """Each rank by itself, and what differs; what is found is counted."""
    bar = output.get_by_role("toolbar", name="Output")
    text = output.locator(".dtrain-output-text")
    choice = bar.get_by_role("combobox", name="Output of")
    expect(text).to_contain_text("a log line")
    expect(text).to_contain_text("step 399")
    # On a busy machine a rank is late now and then, and has a line of its own.
    lines = int(re.fullmatch(r"(\d+) lines", bar.get_by_role("status").inner_text())[1])
    assert 410 <= lines < 450
    expect(text).to_contain_text(f"{lines - 200} more lines")
    expect(text).to_contain_text("step 399")
    expect(output.locator("[data-dtrain='text']").first).to_be_hidden()
    choice.select_option("Rank 1")
    bar.get_by_role("searchbox").fill("BATCH")
    expect(text.locator("pre")).to_have_text("\n".join(f"batch of rank 1 at {step}" for step in (50, 150, 250, 350)))
    expect(bar.get_by_role("status")).to_have_text(f"4 of {lines} lines")
    assert text.locator("pre .ansi-red-fg").count() == 4
    bar.get_by_role("searchbox").fill("")
    choice.select_option("Differences only")
    expect(bar.get_by_role("status")).to_have_text(f"9 of {lines} lines")
    expect(text).to_contain_text("[0] half and half")
    expect(text).to_contain_text("[0] batch of rank 0 at 50")


def test_long_output_is_folded_and_read_by_rank(printed):
    """The text that JupyterLab holds is as it was printed; stderr is not red."""
    page = printed
    run_cell(page, 0)
    wait_idle(page)
    run_cell(page, 1)
    wait_idle(page)
    output = output_of(page, 1)
    look(output)
    shoot(page, "output-differences")
    output.get_by_role("combobox", name="Output of").select_option("As printed")
    output.get_by_role("button", name="Show all").click()
    text = output.locator("[data-dtrain='text']")
    expect(text.first).to_be_visible()
    expect(text.first).to_contain_text("a log line")
    red = text.first.locator(".jp-OutputArea-output").evaluate("(one) => getComputedStyle(one).backgroundColor")
    assert red == "rgba(0, 0, 0, 0)"
    output.get_by_role("button", name="Collapse").click()
    expect(text.first).to_be_hidden()
    shoot(page, "output-folded")


def test_pictures_and_tables_of_ranks_are_side_by_side(printed):
    """Each is below its rank. Other programs show the ranks in a line above it."""
    page = printed
    run_cell(page, 2)
    wait_idle(page)
    output = output_of(page, 2)
    expect(output.locator("[data-dtrain='side']")).to_have_count(4)
    output.scroll_into_view_if_needed()
    shoot(page, "output-side-by-side")
    for kind in ("img", "table"):
        shown = output.locator("[data-dtrain='side']").filter(has=page.locator(kind))
        places = {one.get_attribute("data-dtrain-ranks"): one.bounding_box() for one in shown.all()}
        assert places["Rank 0"]["y"] == places["Rank 1"]["y"]
        assert places["Rank 0"]["x"] + 200 < places["Rank 1"]["x"]
    caption = "(one) => getComputedStyle(one, '::before').content"
    captions = [one.evaluate(caption) for one in output.locator("[data-dtrain='side']").all()]
    assert sorted(captions) == ['"Rank 0"', '"Rank 0"', '"Rank 1"', '"Rank 1"']


@pytest.mark.slow
def test_a_saved_notebook_is_read_the_same_way(printed, lab, browser):
    """Without its kernel. Converted to HTML, it has all lines as they were printed, and the ranks of the pictures."""
    save(printed)
    path = lab.folder / "printed.ipynb"
    again = lab.open(browser, "printed.ipynb", kernel=False, width=1200, height=1000)
    output = output_of(again, 1)
    output.scroll_into_view_if_needed()
    look(output)
    again.close()
    page, _ = HTMLExporter().from_notebook_node(nbformat.read(path, as_version=4))

    assert "[0-1] step 200" in page
    assert "dtrain-output" not in page
    outputs = json.loads(path.read_text())["cells"][2]["outputs"]
    assert ["".join(one["data"]["text/plain"]) for one in outputs if one["metadata"].get("dtrain", {}).get("caption")]

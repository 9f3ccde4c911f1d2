"""The "Runs" tab, as a person uses it, on runs that the test writes as ranks and their steward do."""

from __future__ import annotations

import csv
import io
import math
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from jupyter_dtrain.core.events import Configured, Gpu, Metrics, Sample
from jupyter_dtrain.core.metrics import Columns, pack
from jupyter_dtrain.store import Store
from jupyter_dtrain.store.schema import open_for_writing
from tests.browser.lab import SHOTS, Lab, execute, shoot
from tests.steward.until import until
from tests.store.conftest import FakeWorld, drain

STEPS = 300
WORLD = "shown"
LOADED = "performance.getEntriesByType('resource').map((entry) => entry.name)"
"""The addresses of all that the page has loaded."""
DASHES = "(all) => all.map((path) => path.getAttribute('stroke-dasharray'))"
SAVED = "async () => JSON.stringify((await window.jupyterapp.serviceManager.workspaces.list()).values)"
"""The layout as JupyterLab has saved it, which it does after a pause of its own."""


def curve(scale: float, noise: float) -> list[float]:
    """A loss that falls, with waves on it."""
    return [scale / (1 + step / 20) + noise * math.sin(step * 1.7) for step in range(STEPS)]


def series(name: str, values: list[float], began: float) -> Metrics:
    """Points of one metric, a fifth of a second apart."""
    columns = Columns.empty()
    for step, value in enumerate(values):
        columns.steps.append(step)
        columns.times.append(began + step / 5)
        columns.values.append(value)
    return Metrics([pack(name, columns)])


@pytest.fixture(scope="module", autouse=True)
def alone(own_store: None) -> None:
    """These tests see no runs but their own."""


@pytest.fixture(scope="module")
def stored(home: Path, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """The ids of three runs of two ranks, oldest first; the last one met a NaN and failed."""
    world = FakeWorld(tmp_path_factory.mktemp("stored"), name=WORLD)
    for run, scale in enumerate((1.0, 2.0, 4.0), 1):
        began = time.time() - 1000 + 100 * run
        world.begin(run, source=f"train(lr={scale})", when=began)
        world.say(run, 0, Configured({"lr": scale}, "cell"), when=began)
        for rank in range(2):
            losses = curve(scale + rank / 10, scale / 10)
            if run == 3:
                losses[200] = math.nan
            world.say(run, rank, series("loss", losses, began), series("accuracy", [1 - x / 9 for x in losses], began))
            for second in range(60):
                wave = 10 * math.sin(second / 5 + rank)
                gpu = Gpu(rank, 70 + wave, 6_000_000_000 + second * 10_000_000, 8_000_000_000)
                used = Sample(90 + wave, 500_000_000 + 5_000_000 * second * (rank + 1), 5 * second, gpu)
                world.say(run, rank, used, when=began + second)
        world.finish(run, outcome="error" if run == 3 else "ok", when=began + 60)
    store = Store.open()
    with closing(open_for_writing(store.path)) as db:
        drain(world.writer, db)
    world.close()
    return sorted(run.id for run in store.runs(10, WORLD))


def downloaded(page: Page, button) -> Path:
    """The file that a button saves."""
    with page.expect_download() as waiting:
        button.click()
    return Path(waiting.value.path())


@pytest.fixture(scope="module")
def tab(browser: Browser, lab: Lab, stored: list[int]) -> Iterator[Locator]:
    """The tab, opened from the sidebar, beside a notebook. The tests below go on in it, one after the other."""
    assert len(stored) == 3
    lab.write("tab.ipynb", "1 + 1")
    page = lab.open(browser, "tab.ipynb", kernel=False, width=1700, height=1000)
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.evaluate("() => window.jupyterapp.restored")
    assert not [url for url in page.evaluate(LOADED) if "/static/runs." in url]
    execute(page, "dtrain:show")
    page.get_by_role("button", name="Open the Runs tab").click()
    yield page.get_by_role("region", name="Runs", exact=True)
    assert failures == []
    lab.leave(page)


def chart_of(tab: Locator, metric: str) -> Locator:
    """A chart, scrolled to."""
    chart = tab.get_by_role("figure").filter(has_text=metric).first
    chart.locator(".u-over").scroll_into_view_if_needed()
    return chart


def test_stored_runs_are_filtered_sorted_and_named(tab, stored):
    """The tab's script comes when the tab opens. Edits in the table are in the store."""
    table = tab.get_by_role("table", name="Stored runs")
    expect(table).to_be_visible()
    assert [url for url in tab.page.evaluate(LOADED) if "/static/runs." in url]
    tab.get_by_role("searchbox", name="Filter runs").fill(f"world:{WORLD}")
    rows = table.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("shown/3")
    table.get_by_role("button", name="last loss").click()
    expect(table.locator("th[data-key='last loss']")).to_have_attribute("aria-sort", "ascending")
    expect(rows).to_contain_text(["shown/1", "shown/2", "shown/3"])
    for kind, run, text in (("Name of", 1, "small rate"), ("Tags of", 2, "best, lr")):
        table.get_by_role("button", name=f"{kind} run shown/{run}").click()
        field = table.get_by_role("textbox", name=f"{kind} run shown/{run}")
        field.fill(text)
        field.press("Enter")
    expect(rows.first).to_contain_text("small rate")
    expect(rows.nth(1).locator(".dtrain-runs-tag")).to_have_text(["best", "lr"])
    assert Store.open().run_with_id(stored[0]).name == "small rate"
    assert Store.open().run_with_id(stored[1]).tags == ["best", "lr"]
    # The sidebar's list, and one in another page, learn of it by themselves.
    expect(tab.page.locator(".dtrain-history")).to_contain_text("small rate")
    Store.open().run_with_id(stored[2]).edit(note="from elsewhere")
    expect(rows.nth(2)).to_contain_text("from elsewhere")


def test_columns_are_chosen_and_a_view_is_saved(tab):
    """A metric in a way that a person chooses; runs in groups; a filter that cannot be read says where."""
    table = tab.get_by_role("table", name="Stored runs")
    expect(table.locator("th[data-key='config:lr']")).to_have_count(1)
    tab.get_by_role("button", name="Choose columns").click()
    panel = tab.get_by_role("dialog", name="Choose columns")
    panel.get_by_role("searchbox", name="Find a column").fill("acc")
    panel.get_by_role("button", name="lowest accuracy").click()
    panel.get_by_role("combobox", name="accuracy at the best step of another metric", exact=True).select_option(
        "metric:accuracy:at:loss:min"
    )
    panel.get_by_role("searchbox").press("Escape")
    expect(panel).to_have_count(0)
    heads = table.locator("th[data-key='metric:accuracy:at:loss:min']")
    expect(heads).to_contain_text("at lowest loss")
    heads.get_by_role("button").click()
    expect(heads).to_have_attribute("aria-sort", "descending")
    tab.get_by_role("combobox", name="Group by").select_option("config:lr")
    groups = table.locator(".dtrain-runs-group-row")
    expect(groups).to_have_count(3)
    expect(groups.first).to_contain_text("lr: ")
    search = tab.get_by_role("searchbox", name="Filter runs")
    wanted = f"world:{WORLD} lr>=2"
    search.fill(wanted)
    expect(groups).to_have_count(2)
    search.fill(f"{wanted} loss>")
    expect(tab.get_by_role("alert")).to_be_visible()
    expect(groups).to_have_count(2)
    search.fill(wanted)
    expect(tab.get_by_role("alert")).to_have_count(0)
    shoot(tab.page, "runs-tab-groups")
    views = tab.get_by_role("button", name="Saved views")
    views.click()
    field = tab.get_by_role("textbox", name="Name of this view")
    field.fill("by rate")
    field.press("Enter")
    expect(views).to_contain_text("by rate")
    assert [view.where for view in Store.open().views()] == [wanted]
    views.click()
    tab.get_by_role("button", name="Back to the usual view").click()
    expect(groups).to_have_count(0)
    views.click()
    tab.get_by_role("list", name="Saved views").get_by_role("button", name="by rate", exact=True).click()
    expect(groups).to_have_count(2)
    views.click()
    tab.get_by_role("button", name="Back to the usual view").click()
    search.fill(f"world:{WORLD}")
    expect(table.locator("tbody tr")).to_have_count(3)


def test_actions_and_losses_stay_in_a_narrow_tab(tab):
    """Names, losses and actions are seen at once beside a notebook, and panels stay within the tab."""
    page = tab.page
    wide = page.viewport_size
    page.set_viewport_size({"width": 1300, "height": 900})
    table = tab.get_by_role("table", name="Stored runs")
    tab.locator(".dtrain-runs-list").evaluate("(list) => { list.scrollLeft = 0; }")
    box = tab.bounding_box()
    for found in (table.locator("th[data-key='last loss']"), tab.get_by_role("button", name="Delete run shown/1")):
        place = found.bounding_box()
        assert box["x"] <= place["x"]
        assert place["x"] + place["width"] <= box["x"] + box["width"] + 1
    tab.get_by_role("button", name="Choose columns").click()
    place = tab.get_by_role("dialog", name="Choose columns").bounding_box()
    assert box["x"] <= place["x"]
    assert place["x"] + place["width"] <= box["x"] + box["width"]
    page.keyboard.press("Escape")
    page.set_viewport_size(wide)


def test_charts_of_runs_tell_values_are_smoothed_and_zoomed(tab):
    """Means and each rank, over steps and over time; lines differ in more than their colour."""
    page = tab.page
    for run in (1, 2, 3):
        tab.get_by_role("checkbox", name=f"shown/{run}").check()
    expect(tab.get_by_role("figure").locator("canvas")).to_have_count(6)
    legend = tab.get_by_role("list", name="Legend").get_by_role("button")
    expect(legend).to_have_count(3)
    assert len(set(tab.locator(".dtrain-runs-legend path").evaluate_all(DASHES))) == 3

    chart = chart_of(tab, "loss")
    over, readout = chart.locator(".u-over"), chart.locator(".dtrain-readout")
    tab.get_by_role("slider", name="Smoothing").fill("0.9")
    over.hover(position={"x": 150, "y": 60})
    expect(readout).to_contain_text("small rate")
    expect(readout).to_contain_text(re.compile(r"step \d+.*\(0\.\d+\)"))
    expect(readout.locator("b")).to_have_count(3)
    shoot(page, "runs-tab")
    tab.get_by_role("button", name="Each rank").click()
    tab.get_by_role("button", name="Time", exact=True).click()
    expect(legend).to_have_count(6)
    chart.get_by_role("button", name="Logarithmic axis").click()
    box = over.bounding_box()
    page.mouse.move(box["x"] + 40, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 50, steps=4)
    page.mouse.up()
    expect(tab.get_by_role("button", name="Show all")).to_be_visible()
    shoot(page, "runs-tab-ranks")
    over.dblclick()
    expect(tab.get_by_role("button", name="Show all")).to_have_count(0)
    chart.get_by_text("Values", exact=True).click()
    expect(chart.get_by_role("row").filter(has_text="shown/3")).to_have_count(2)
    expect(chart.get_by_role("row").filter(has_text="1 point")).to_have_count(2)


def test_charts_and_points_are_saved_as_files(tab):
    """A picture has curves, axes and legend; a table has every point."""
    chart = chart_of(tab, "loss")
    picture = downloaded(tab.page, chart.get_by_role("button", name="as SVG")).read_text()
    assert picture.startswith("<svg")
    assert "small rate" in picture
    assert picture.count('stroke-width="1.6"') == 6
    image = downloaded(tab.page, chart.get_by_role("button", name="as PNG"))
    assert image.read_bytes().startswith(b"\x89PNG")
    SHOTS.mkdir(parents=True, exist_ok=True)
    shutil.copy(image, SHOTS / "runs-tab-chart.png")
    points = downloaded(tab.page, tab.get_by_role("button", name="Save the points of run shown/1 as CSV")).read_text()
    assert len([row for row in csv.DictReader(io.StringIO(points)) if row["name"] == "loss"]) == 2 * STEPS


@pytest.mark.slow
def test_a_run_is_deleted_and_the_tab_comes_back_with_the_page(tab, stored):
    """A deleted run leaves the charts; a reloaded page shows those that were chosen."""
    page = tab.page
    legend = tab.get_by_role("list", name="Legend").get_by_role("button")
    tab.get_by_role("button", name="Delete run shown/2").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(legend).to_have_count(4)
    assert {run.id for run in Store.open().runs(10, WORLD)} == {stored[0], stored[2]}
    tab.get_by_role("checkbox", name="shown/3").uncheck()
    expect(legend).to_have_count(2)
    until(lambda: f'"chosen":[{stored[0]}]' in page.evaluate(SAVED))
    page.goto(page.url.replace("?reset", ""))
    expect(legend).to_have_count(1)
    expect(legend.first).to_contain_text("small rate")

"""The page of a run, as a person uses it: what is in it, and that nothing that a run has logged runs in it."""

from __future__ import annotations

import io
import json
import math
import time
import wave
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from jupyter_dtrain.core.events import (
    Configured,
    Environment,
    Error,
    Frame,
    MediaLogged,
    Output,
    RunContext,
    Sample,
    Started,
)
from jupyter_dtrain.store import Store
from jupyter_dtrain.store.schema import open_for_writing
from jupyter_dtrain.wire.spool import spool_path
from tests.browser.lab import Lab, execute, shoot
from tests.store.conftest import FakeWorld, drain, points

WORLD = "paged"
HOSTILE = "<img src=x onerror=window.ran=1><script>window.ran=1</script>"
EVERY = 30
"""Steps between evaluations."""
DIFF = """diff --git a/model.py b/model.py
index 1111111..2222222 100644
--- a/model.py
+++ b/model.py
@@ -1,3 +1,3 @@
 import torch
-width = 32
+width = 64
 depth = 2
"""
PACKAGES = {"jupyter-dtrain": "0.1.0", "numpy": "2.2.1", "torch": "2.9.0", "torchvision": "0.24.0"}


def picture(step: int, number: int) -> bytes:
    """A small picture that is another one at each step."""
    np = pytest.importorskip("numpy", reason="needs NumPy: pip install numpy")
    image = pytest.importorskip("PIL.Image", reason="needs Pillow: pip install pillow")
    ys, xs = np.mgrid[0:28, 0:28]
    found = 127 + 120 * np.sin(xs / (2 + number) + step / 9) * np.cos(ys / (3 + number / 2))
    data = io.BytesIO()
    image.fromarray(found.astype(np.uint8)).save(data, format="PNG")
    return data.getvalue()


def sound() -> bytes:
    """A tenth of a second."""
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((1, 1, 8000, 0, "NONE", ""))
        file.writeframes(bytes(int(128 + 100 * math.sin(place / 3)) for place in range(800)))
    return data.getvalue()


def histogram(step: int) -> bytes:
    """A bell that moves."""
    edges = [place / 10 - 2 for place in range(41)]
    counts = [int(900 * math.exp(-((edge - step / 100) ** 2) * 2)) for edge in edges[:-1]]
    return json.dumps({"edges": edges, "counts": counts, "mean": step / 100, "deviation": 0.5}).encode()


def media(step: int) -> Iterator[MediaLogged]:
    """What a rank logs beside numbers after an evaluation."""
    for number in range(16):
        caption = f"{'cat' if number % 3 else 'dog'} {number / 16:.2f}"
        yield MediaLogged("predictions", "image", step, number, "image/png", picture(step, number), caption)
    yield MediaLogged("weights/conv1", "histogram", step, 0, "application/json", histogram(step), note="a sample")
    rows = {"columns": ["label", HOSTILE], "rows": [["cat", 0.91], [HOSTILE, step]]}
    yield MediaLogged("errors", "table", step, 0, "application/json", json.dumps(rows).encode())
    yield MediaLogged("sample text", "text", step, 0, "text/plain", f"step {step}: {HOSTILE}".encode())
    yield MediaLogged("clip", "audio", step, 0, "audio/wav", sound())
    # Whatever its kind says, a page is no picture.
    yield MediaLogged("page", "image", step, 0, "text/html", HOSTILE.encode())


def train(world: FakeWorld, run: int, rate: float, resumes: str = "", failure: str = "") -> None:
    """A run of 90 steps on two ranks, with an evaluation after each epoch of 30."""
    began = time.time() - 2000 + 300 * run
    first = 90 if resumes else 0
    source = f"lr = {rate}\nfor epoch in range(3):\n    train(model, lr)\n    evaluate(model)"
    for rank in range(2):
        context = RunContext("/home/me/shapes_cnn.ipynb", "Shapes CNN", "sweep", resumes, first_step=first)
        started = Started(
            *(100 + rank, f"node{rank}", str(spool_path(world.folder, run, rank))),
            source=source if rank == 0 else "",
            ranks=[0, 1] if rank == 0 else [],
            cell=4 + run,
            together="0-1",
            context=context if rank == 0 else RunContext(),
        )
        world.say(run, rank, started, when=began)
        values = {"lr": rate, "width": 32 * run, "optimizer": "SGD", "augment": run > 1, "layers": [16, 32]}
        world.say(run, rank, Configured(values, "cell"), Configured({"note": HOSTILE}, "set"), when=began)
        environment = Environment("3.11.9", PACKAGES, ["NVIDIA H200 (139 GiB)"], [], "/home/me", "Linux", 16, 128 << 30)
        world.say(run, rank, environment, when=began)
        losses = [(1 + rank / 10) / (1 + step * rate) for step in range(first, first + 90)]
        world.say(run, rank, points("loss", losses, first), points("lr", [rate] * 90, first), when=began)
        for epoch in range(3):
            step = first + EVERY * epoch + EVERY - 1
            evaluated = {"val_loss": 1.1 / (1 + step * rate), "val_accuracy": 1 - 1 / (2 + step * rate), "epoch": epoch}
            world.say(run, rank, *(points(name, [value], step) for name, value in evaluated.items()), when=began + step)
            if run == 2:
                world.say(run, rank, *media(step), when=began + step)
            world.say(run, rank, Output("stdout", f"epoch {epoch} of rank {rank} {HOSTILE}\n"), when=began + step)
        for second in range(0, 90, 3):
            used = Sample(80 + 10 * math.sin(second / 5), 500_000_000 + second * 1_000_000, first + second)
            world.say(run, rank, used, when=began + second)
        if failure and rank == 1:
            frames = [Frame("/home/me/model.py", 12, "forward", "return x / 0", False)]
            world.say(run, rank, Error("ZeroDivisionError", failure, frames), when=began + 90)
        outcome = "error" if failure and rank == 1 else "ok"
        world.finish(run, [rank], outcome=outcome, when=began + 91)


@pytest.fixture(scope="module", autouse=True)
def alone(own_store: None) -> None:
    """These tests see no runs but their own."""


@pytest.fixture(scope="module")
def stored(home: Path, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """The ids of four runs, oldest first: three settings, of which one fails, and one that goes on with the second."""
    world = FakeWorld(tmp_path_factory.mktemp("paged"), name=WORLD)
    train(world, 1, 0.01)
    train(world, 2, 0.1)
    train(world, 3, 0.03, failure=HOSTILE)
    train(world, 4, 0.1, resumes=f"{world.owner.id}/2")
    store = Store.open()
    with closing(open_for_writing(store.path)) as db:
        drain(world.writer, db)
        ids = [number for (number,) in db.execute("SELECT id FROM runs ORDER BY number")]
        commit = {"hash": "1a2b3c4d5e" * 4, "branch": "main", "remote": "https://git.test/shapes", "message": HOSTILE}
        commit |= {"dirty": True, "diff": DIFF, "notes": ["`.env` is left out: it may hold secrets."]}
        db.execute("INSERT INTO commits VALUES (?, ?)", (ids[1], json.dumps(commit).encode()))
        row = (ids[1], time.time() - 1300, "Rank 1 was replaced.")
        db.execute("INSERT INTO happenings (run, time, words) VALUES (?, ?, ?)", row)
        db.commit()
    world.close()
    return ids


@pytest.fixture(scope="module")
def tab(browser: Browser, lab: Lab, stored: list[int]) -> Iterator[Locator]:
    """The Runs tab over the whole width, with the page of the second run. The tests below go on in it."""
    lab.write("page.ipynb", "1 + 1")
    page = lab.open(browser, "page.ipynb", kernel=False, width=1600, height=1000)
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.evaluate("() => window.jupyterapp.restored")
    command = "(page) => window.jupyterapp.commands.execute('dtrain:runs', {page, chosen: [page]})"
    page.evaluate(command, stored[1])
    execute(page, "application:toggle-left-area")
    page.evaluate("window.jupyterapp.commands.execute('application:set-mode', {mode: 'single-document'})")
    yield page.get_by_role("region", name="Runs", exact=True)
    assert not page.evaluate("window.ran")
    assert failures == []
    lab.leave(page)


def part(tab: Locator, name: str) -> Locator:
    """A part of the page, scrolled to."""
    tab.get_by_role("navigation").get_by_role("button", name=name, exact=True).click()
    return tab.locator("details.dtrain-page-section").filter(has=tab.page.locator("summary", has_text=name)).first


def test_a_page_has_all_that_made_a_run_and_what_it_logged(tab):
    """Configuration with its sources, code, charts with evaluations over training, media by step, commit and more."""
    page = tab.page
    head = tab.get_by_role("banner").or_(tab.locator(".dtrain-page-head")).first
    expect(head).to_contain_text("Shapes CNN [6]")
    expect(head).to_contain_text("sweep")
    expect(head.get_by_role("button", name=f"{WORLD}/4")).to_be_visible()
    rows = part(tab, "Configuration").get_by_role("row")
    expect(rows.filter(has_text="lr").first).to_contain_text("0.1")
    expect(rows.filter(has_text="note")).to_contain_text("config()")
    expect(part(tab, "Code")).to_contain_text("shapes_cnn.ipynb · Shapes CNN · [6]")
    charts = part(tab, "Charts")
    loss = charts.get_by_role("figure").filter(has_text="val_loss").first
    expect(loss.locator("canvas")).to_be_visible()
    assert charts.get_by_role("figure").filter(has_text="epoch").count() == 0
    charts.get_by_role("button", name="Epoch", exact=True).click()
    loss.locator(".u-over").hover(position={"x": 150, "y": 60})
    expect(loss.locator(".dtrain-readout")).to_contain_text("val_loss")
    shoot(page, "run-page")
    pictures = part(tab, "Media").get_by_role("figure", name="predictions")
    expect(pictures.locator("img")).to_have_count(16)
    newest = pictures.locator("img").first.get_attribute("src")
    pictures.get_by_role("slider").fill("0")
    expect(pictures).to_contain_text("step 29")
    expect(pictures.locator("img").first).not_to_have_attribute("src", newest)
    expect(tab.get_by_role("figure", name="weights/conv1").locator("rect")).to_have_count(40)
    expect(tab.get_by_role("figure", name="errors").get_by_role("cell", name="0.91")).to_be_visible()
    expect(tab.get_by_role("figure", name="sample text")).to_contain_text("step 29: <img")
    expect(tab.get_by_role("figure", name="page").get_by_role("button", name="Save")).to_be_visible()
    shoot(page, "run-page-media")
    commit = part(tab, "Commit")
    commit.get_by_text("Changes that were not committed").click()
    expect(commit.locator("[data-kind='added']")).to_have_text("+width = 64")
    expect(part(tab, "Events")).to_contain_text("Rank 1 was replaced.")
    shoot(page, "run-page-end")
    page.set_viewport_size({"width": 1000, "height": 900})
    tab.locator(".dtrain-page-head").scroll_into_view_if_needed()
    shoot(page, "run-page-narrow")


def test_a_page_leads_to_the_run_that_goes_on_with_it_and_to_what_differs(tab):
    """One curve of both; a failure with its traceback; differences and parallel coordinates beside the charts."""
    page = tab.page
    page.set_viewport_size({"width": 1600, "height": 1000})
    tab.get_by_role("button", name=f"{WORLD}/4").click()
    expect(tab.locator(".dtrain-page-head")).to_contain_text("Continues")
    chart = part(tab, "Charts").get_by_role("figure").filter(has_text="val_loss").first
    chart.locator(".u-over").hover(position={"x": 40, "y": 60})
    expect(chart.locator(".dtrain-readout")).to_contain_text("step")
    shoot(page, "run-page-resumed")
    tab.get_by_role("button", name="All runs").click()
    tab.get_by_role("button", name="Open the page of run paged/3").or_(
        tab.get_by_role("row").filter(has_text="paged/3").get_by_role("button", name="Shapes CNN")
    ).first.click()
    failure = part(tab, "Failure")
    expect(failure).to_contain_text("ZeroDivisionError")
    expect(failure).to_contain_text("model.py")
    shoot(page, "run-page-failure")
    tab.get_by_role("button", name="All runs").click()
    for run in (1, 2, 3, 4):
        tab.get_by_role("checkbox", name=f"{WORLD}/{run}").check()
    tab.get_by_role("button", name="What differs").click()
    differences = tab.get_by_role("region", name="What differs between these runs")
    expect(differences.get_by_role("row").filter(has_text="width")).to_contain_text("128")
    expect(differences.locator("[data-kind='removed']").first).to_contain_text("lr = 0.1")
    differences.scroll_into_view_if_needed()
    shoot(page, "run-differences")
    tab.get_by_role("button", name="Parallel coordinates").click()
    parallel = tab.get_by_role("region", name="Parallel coordinates")
    expect(parallel.locator("path[data-run]")).to_have_count(4)
    parallel.get_by_role("slider", name="width").focus()
    page.keyboard.press("ArrowUp")
    expect(parallel.locator("path[data-out='true']")).not_to_have_count(0)
    parallel.scroll_into_view_if_needed()
    shoot(page, "run-parallel")
    parallel.get_by_role("button", name="Show only").click()
    expect(parallel.locator("path[data-run]")).to_have_count(2)

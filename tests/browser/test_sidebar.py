"""The "Distributed Training" panel, as a person uses it; screenshots go to ``build/screenshots``."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab import PATIENCE, execute, run_all, run_cell, shoot, wait_idle
from tests.processes import wait_until_gone

TRAIN = """%%distributed
import os, time, jupyter_dtrain
rank = int(os.environ['RANK'])
kept = 100 + rank
for step in range(2000):
    jupyter_dtrain.log(loss=1 / (step + 1) + rank * 0.01, step=step)
    time.sleep(0.02)
"""
UNTIL = """%%distributed
import os, time
from jupyter_dtrain import log
print("first", "words")
for step in range(10_000):
    log(loss=1 / (step + 1), step=step)
    time.sleep(0.02)
    if os.path.exists({go!r}): break
print("last", "words")
"""
LOSSES = """%%distributed
import os
from jupyter_dtrain import log  # {scale}
steps = 50 + int(os.environ["RANK"])
for step in range(steps): log(loss={scale} / (step + 1), step=step)
"""
BUSY = "() => [...document.querySelectorAll('.jp-InputPrompt')].some((one) => one.textContent.includes('*'))"
"""The prompt shows it. The kernel's status does not: it is idle whenever another of its threads gets a request."""


def show(page: Page):
    """The panel, opened."""
    execute(page, "dtrain:show")
    panel = page.get_by_role("region", name="Distributed Training")
    expect(panel.get_by_role("region", name="Worlds")).to_be_visible()
    return panel


def steps(panel) -> list[int]:
    """The step that each rank is at."""
    texts = panel.locator(".dtrain-does").all_inner_texts()
    return [int(found[1].replace(",", "")) for text in texts if (found := re.search(r"step ([\d,]+)", text))]


@pytest.fixture(scope="module")
def steered(browser, lab):
    """A page on which the tests below go on, one after the other: its notebook, and the world "steered"."""
    lab.write(
        "steered.ipynb", "1 + 1", TRAIN, UNTIL.format(go=str(lab.folder / "go")), "%%distributed\nprint('kept', kept)"
    )
    page = lab.open(browser, "steered.ipynb", width=1300, height=1000)
    yield page
    page.close()


def test_a_world_is_started_from_the_dialog_and_attached(steered):
    """It has no driver at first; then the open notebook drives it. Its ranks have the requested roles."""
    panel = show(steered)
    expect(panel.get_by_role("button", name="Start a world…")).to_be_visible()
    panel.get_by_role("button", name="Start a world…").click()
    dialog = steered.get_by_role("dialog")
    dialog.get_by_label("Ranks", exact=True).fill("4")
    dialog.get_by_label("Name", exact=True).fill("steered")
    dialog.get_by_text("More options").click()
    dialog.get_by_label("Chief", exact=True).check()
    dialog.get_by_label("Parameter servers", exact=True).fill("1")
    dialog.get_by_role("button", name="Start", exact=True).click()
    world = panel.locator(".dtrain-world")
    expect(world.locator(".dtrain-state")).to_have_text("idle")
    expect(world).to_contain_text("4 ranks")
    expect(world).to_contain_text("not attached: stops in")
    ranks = panel.locator(".dtrain-ranks li")
    expect(ranks).to_contain_text(["chief · cpu", "worker · cpu", "worker · cpu", "ps · cpu"])
    attach(panel)


def attach(panel) -> None:
    """Make the open notebook the world's driver."""
    panel.get_by_role("button", name="Attach this notebook to steered").click()
    expect(panel.locator(".dtrain-world")).to_contain_text("used by steered.ipynb")
    wait_idle(panel.page)


def test_the_panel_moves_while_the_kernel_is_busy_and_interrupts(steered):
    """Curves and ranks; the panel's interrupt button ends the cell, which names the panel as the cause."""
    panel = show(steered)
    world = panel.locator(".dtrain-world")
    run_cell(steered, 2)
    expect(world.locator(".dtrain-state")).to_have_text(re.compile(r"run \d+"))
    expect(panel.locator(".dtrain-chart canvas").first).to_be_visible()
    steered.wait_for_function(BUSY)
    first = steps(panel)
    deadline = time.monotonic() + PATIENCE
    while len(now := steps(panel)) < 4 or min(now) <= max(first, default=0) + 20:
        assert time.monotonic() < deadline, (first, now)
        steered.wait_for_timeout(100)
    expect(panel.get_by_role("meter", name="Memory of rank 3")).to_contain_text("MB")
    shoot(steered, "sidebar-training")

    asked = time.monotonic()
    panel.get_by_role("button", name="Interrupt the cell on all ranks of steered").click()
    expect(world.locator(".dtrain-state")).to_have_text("idle")
    print(f"panel shows idle ranks after {time.monotonic() - asked:.2f} s")
    expect(steered.get_by_text("Interrupted by the JupyterLab sidebar.")).to_be_visible()
    wait_idle(steered)


def test_a_kernel_that_restarts_in_mid_run_leaves_run_and_panel_alone(steered, lab):
    """The run goes on and ends well, under an orphaned world; a notebook that attaches is shown the whole of it."""
    panel = show(steered)
    world = panel.locator(".dtrain-world")
    run_cell(steered, 3)
    expect(world.locator(".dtrain-state")).to_have_text(re.compile(r"run \d+"))
    steered.wait_for_function(BUSY)
    steered.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
    expect(world).to_contain_text("its notebook is gone: attach, or it stops in")
    expect(world.locator(".dtrain-state")).to_have_text(re.compile(r"run \d+"))
    (lab.folder / "go").touch()
    expect(world.locator(".dtrain-state")).to_have_text("idle")
    expect(panel.locator(".dtrain-chart canvas").first).to_be_visible()
    attach(panel)
    for words in ("first words", "last words"):
        expect(steered.get_by_text(words).last).to_be_visible()
    shoot(steered, "restart-attached")
    run_cell(steered, steered.locator(".jp-CodeCell").count() - 1)
    for rank in range(4):
        expect(steered.get_by_text(f"[{rank}] kept {100 + rank}")).to_be_visible()


def test_a_rank_that_dies_needs_attention_and_a_stop_leaves_nothing(steered):
    """The panel names the rank and its signal; no process is left after the world was stopped."""
    panel = show(steered)
    world = panel.locator(".dtrain-world")
    victim = panel.locator("li[data-rank='2']")
    victim.locator(".dtrain-rank").click()
    expect(victim).to_contain_text(re.compile(r"pid \d+"))
    pid = int(re.search(r"pid (\d+)", victim.inner_text())[1])
    asked = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    expect(panel.get_by_role("region", name="Attention")).to_contain_text("Rank 2 was killed (SIGKILL)")
    print(f"panel shows the dead rank after {time.monotonic() - asked:.2f} s")
    expect(world.locator(".dtrain-state")).to_have_text("1 rank dead")
    expect(victim).to_contain_text("dead")
    shoot(steered, "sidebar-dead-rank")

    panel.get_by_role("button", name="Stop steered").click()
    steered.get_by_role("dialog").get_by_role("button", name="Stop", exact=True).click()
    expect(world).to_have_count(0)
    assert wait_until_gone("/steered-") == []


def test_a_rank_is_looked_at_and_what_it_says_stays_text(browser, lab):
    """Its stack and the end of its output, also with markup in it; then the runs that are kept, side by side."""
    lab.write(
        "looked.ipynb",
        "%load_ext jupyter_dtrain\n%distributed start -n 2 --name looked",
        LOSSES.format(scale=1),
        LOSSES.format(scale=2),
        "%%distributed\nimport time\nprint('<script>window.hacked = 1</script><b>bold</b>')\ntime.sleep(1000)",
    )
    page = lab.open(browser, "looked.ipynb", width=1300, height=1000)
    panel = show(page)
    run_all(page)
    world = panel.locator(".dtrain-world")
    expect(world.locator(".dtrain-state")).to_have_text("run 3")
    rank = panel.locator("li[data-rank='1']")
    rank.locator(".dtrain-rank").click()
    rank.get_by_role("button", name="Output").click()
    expect(rank.locator("pre")).to_contain_text("<script>window.hacked = 1</script><b>bold</b>")
    rank.get_by_role("button", name="Stack").click()
    expect(rank.locator("pre")).to_contain_text("time.sleep(1000)")
    assert page.evaluate("window.hacked") is None
    rank.get_by_role("button", name="Interrupt").click()
    expect(rank.locator(".dtrain-does").first).to_contain_text("interrupted")
    panel.get_by_role("button", name="Interrupt the cell on all ranks of looked").click()
    expect(world.locator(".dtrain-state")).to_have_text("idle")

    look_at_stored_runs(page, panel)
    lab.leave(page)


def look_at_stored_runs(page: Page, panel) -> None:
    """Trainings of the world: the list says how they ended, finds one, and shows those that are clicked in the tab."""
    history = panel.get_by_role("list", name="Earlier runs")
    search = panel.get_by_role("searchbox", name="Search runs")
    # The third one is no training, unless a slow machine took some seconds for it.
    search.fill("world:looked loss>0")
    expect(history.locator("[data-outcome]")).to_have_text(["ok", "ok"])
    # Rank 1 made a step more: the chart in the cell and the list have its value alone.
    expect(page.locator(".jp-OutputArea .dtrain-chart .dtrain-value")).to_have_text([f"{n / 51:.4g}" for n in (1, 2)])
    for scale in (1, 2):
        last = f"{scale / 51:.4g}"
        expect(history.get_by_role("button").filter(has_text=f"log(loss={scale} /")).to_contain_text(f"loss {last}")
    tab = page.get_by_role("region", name="Runs", exact=True)
    shown = tab.get_by_role("list", name="Legend").get_by_role("button")
    for scale in (1, 2):
        history.get_by_text(f"log(loss={scale} /").click()
        expect(shown).to_have_count(scale)
    expect(shown).to_contain_text(["looked/1", "looked/2"])
    shoot(page, "sidebar-runs")
    search.fill('"loss=2"')  # as text: without the quotes it is a condition
    expect(history.get_by_role("button")).to_have_count(1)
    search.fill("no such run")
    expect(panel.get_by_text("No run matches.")).to_be_visible()


@pytest.mark.slow
def test_a_server_that_is_killed_in_mid_run_is_found_again(browser, lab):
    """The page reports it, and has all points afterwards; the run is not affected."""
    lab.write("crashed.ipynb", "%load_ext jupyter_dtrain\n%distributed start -n 2 --name crashed", TRAIN)
    page = lab.open(browser, "crashed.ipynb", width=1300, height=1000)
    panel = show(page)
    run_all(page)
    world = panel.locator(".dtrain-world")
    expect(world.locator(".dtrain-state")).to_have_text(re.compile(r"run \d+"))
    expect(panel.locator(".dtrain-chart canvas").first).to_be_visible()
    lab.crash()
    banner = panel.get_by_text("Connection lost")
    expect(banner).to_be_visible()
    before = max(steps(panel))
    lab.come_back()
    expect(banner).to_have_count(0)
    expect(world).to_contain_text("its notebook is gone")
    deadline = time.monotonic() + PATIENCE
    while min(steps(panel), default=0) < before + 50:
        assert time.monotonic() < deadline
        page.wait_for_timeout(100)
    # The curve of the widget's own component shows where it begins and ends.
    loss = panel.locator(".dtrain-chart:not(.dtrain-course) .dtrain-plot").first
    expect(loss).to_have_attribute("aria-label", re.compile("loss over steps 0 to"))
    page.reload()
    panel.get_by_role("button", name="Stop crashed").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop", exact=True).click()
    expect(world).to_have_count(0)
    assert wait_until_gone("/crashed-") == []
    page.close()

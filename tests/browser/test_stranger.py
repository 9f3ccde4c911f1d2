"""A stranger's first session, from JupyterLab's Launcher to the charts of stored runs, with a picture of each step.

Pictures of the documentation come from here, too: ``make pictures``. Times are printed, not asserted.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.lab import SHOTS, execute, run_cell, save, shoot, theme, wait_idle

pytestmark = pytest.mark.slow

WORLD = "digits"
WAIT = 120_000  # two ranks import torch on a machine that has much else to do
TRAIN = """%%distributed --name "rate RATE"
import torch
import torch.distributed as dist
from jupyter_dtrain import progress
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

if not dist.is_initialized():
    dist.init_process_group()
images, digits = load_digits(return_X_y=True)
own = slice(dist.get_rank(), None, dist.get_world_size())
images = torch.tensor(images[own], dtype=torch.float32) / 16
digits = torch.tensor(digits[own])
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

for step in progress(range(STEPS), name="train"):
    batch = torch.randint(len(images), (32,))
    loss = torch.nn.functional.cross_entropy(model(images[batch]), digits[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step}: loss {loss.item():.2f}")
"""
DIVERGES = """%%distributed --name "too fast"
from jupyter_dtrain import log
for step in range(60):
    log(loss=1.5 ** step if step < 40 else float("nan"), step=step)
"""
PICTURES = """%%distributed
import matplotlib.pyplot as plt
with torch.no_grad():
    guesses = model(images[:4]).argmax(dim=1)
fig, axes = plt.subplots(1, 4, figsize=(4, 1.4))
for axis, image, guess in zip(axes, images, guesses):
    axis.imshow(image.reshape(8, 8), cmap="gray")
    axis.set_title(f"a {guess}")
    axis.axis("off")
"""
LONG = """%%distributed
for line in range(20_000):
    print(f"line {line}")
print(f"rank {dist.get_rank()} has {len(images)} images")
"""
NATIVE = """%%distributed
import ctypes
if dist.get_rank() == 0:
    ctypes.PyDLL(None).sleep(20)  # native code that keeps the interpreter
"""
EXITS = """%%distributed
import os
if dist.get_rank() == 1:
    os._exit(3)
dist.barrier()
"""
CELLS = (
    "%load_ext jupyter_dtrain",
    TRAIN.replace("RATE", "0.05").replace("STEPS", "100_000"),
    TRAIN.replace("RATE", "0.5").replace("STEPS", "400"),
    DIVERGES,
    PICTURES,
    LONG,
    NATIVE,
    EXITS,
)
LOAD, FIRST, SECOND, NAN, FIGURES, LINES, STUCK, EXIT = range(len(CELLS))
CARD = """async (button) => {
    const began = performance.now();
    const panel = document.querySelector('#jupyter-dtrain-panel');
    const seen = new Promise((done) => {
        const look = () => panel.querySelector('.dtrain-world [role=status]') !== null && done(performance.now());
        new MutationObserver(look).observe(panel, {childList: true, subtree: true, characterData: true});
    });
    button.click();
    return await seen - began;
}"""
"""Milliseconds from the click until the card of the starting world has a line of progress."""
STATES = """() => ({
    cell: document.querySelector('.jp-Notebook .dtrain-badge')?.textContent,
    pill: document.querySelector('.dtrain-pill')?.textContent,
    sidebar: document.querySelector('#jupyter-dtrain-panel .dtrain-state')?.textContent,
    status: document.querySelector('#jp-main-statusbar .dtrain-status')?.textContent,
})"""


def output_of(page: Page, cell: int) -> Locator:
    """The output of a cell."""
    return page.locator(".jp-Notebook .jp-CodeCell").nth(cell).locator(".jp-OutputArea").first


def keep(page: Page, name: str, part: Locator | None = None) -> None:
    """Take a picture for the documentation, in light, of the page or a part, into the folder ``DTRAIN_PICTURES``."""
    theme(page, "JupyterLab Light")
    page.wait_for_timeout(700)
    path = SHOTS / f"{name}.png"
    box = None if part is None else part.bounding_box()
    if box is not None:  # as far as it is in sight, above the status bar
        box["height"] = min(box["height"], page.viewport_size["height"] - 26 - box["y"])
    page.screenshot(path=path, clip=box)
    if folder := os.environ.get("DTRAIN_PICTURES"):
        shutil.copy(path, Path(folder) / path.name)


def show(page: Page, cell: int) -> Locator:
    """Scroll to the output of a cell, and give it."""
    output = output_of(page, cell)
    page.evaluate("(at) => window.jupyterapp.shell.currentWidget.content.scrollToItem(at, 'start')", cell)
    output.scroll_into_view_if_needed()
    return output


def test_a_strangers_first_session(lab, browser, tmp_path):
    """From the Launcher to the charts. The steps go on from one another, as a session does."""
    lab.write("digits.ipynb", *CELLS)
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(WAIT)
    expect.set_options(timeout=WAIT)
    page.goto(lab.address("digits.ipynb").replace("/tree/digits.ipynb", ""))
    page.wait_for_selector(".jp-LauncherCard")
    look_at_the_launcher(page)
    panel = page.get_by_role("region", name="Distributed Training")
    fail_to_start(page, panel, tmp_path)
    start(page, panel)

    page.goto(lab.address("digits.ipynb"))
    page.wait_for_selector(".jp-Notebook")
    execute(page, "dtrain:show")
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.ready")
    run_cell(page, LOAD)
    wait_idle(page)
    expect(panel.locator(".dtrain-world")).to_have_count(1)
    panel.get_by_role("button", name=f"Attach this notebook to {WORLD}").click()
    expect(panel.locator(".dtrain-world")).to_contain_text("used by digits.ipynb")
    # Attaching has put a cell of its own in front.
    cells = page.locator(".jp-Notebook .jp-CodeCell")
    moved = cells.count() - len(CELLS)
    attached = output_of(page, LOAD + moved)
    expect(attached).to_contain_text(f"Attached to world '{WORLD}': 2 ranks.")
    expect(attached).not_to_contain_text("already loaded")

    save(page)
    train(page, panel, moved)
    look_at_outputs(page, moved)
    meet_failures(page, panel, moved)
    look_at_runs(page, panel)
    save(page)
    panel.get_by_role("button", name=f"Stop {WORLD}").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop", exact=True).click()
    expect(panel.locator(".dtrain-world")).to_have_count(0)
    print("left in attention:", panel.locator(".dtrain-items li").all_inner_texts())
    lab.leave(page)


def look_at_the_launcher(page: Page) -> None:
    """It has a card; the panel says what a world is."""
    expect(page.locator(".jp-LauncherCard", has_text="Distributed Training")).to_be_visible()
    shoot(page, "stranger-01-launcher")
    execute(page, "dtrain:show")
    panel = page.get_by_role("region", name="Distributed Training")
    expect(panel.get_by_text("A world is a set of processes")).to_be_visible()
    expect(panel.get_by_text("begins with %%distributed runs on all of them")).to_be_visible()
    shoot(page, "stranger-02-first-time")


def fail_to_start(page: Page, panel: Locator, folder: Path) -> None:
    """Errors stand beside their fields; the failed start has its reason, its fix and its log."""
    (folder / "mpi4py").mkdir()
    (folder / "mpi4py" / "__init__.py").write_text(
        "raise ImportError('libfabric.so.1: cannot open shared object file')\n"
    )
    page.locator(".jp-LauncherCard", has_text="Distributed Training").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Ranks", exact=True)).to_be_focused()
    shoot(page, "stranger-03-dialog")
    look_at_hosts(dialog)
    dialog.get_by_label("Name", exact=True).fill(WORLD)
    dialog.get_by_text("More options").click()
    dialog.get_by_label("Profile", exact=True).fill("small")  # it may say how many ranks
    expect(dialog.get_by_label("Ranks", exact=True)).to_have_value("")
    dialog.get_by_label("Profile", exact=True).fill("")
    dialog.get_by_label("Ranks", exact=True).fill("2")
    variables = dialog.get_by_label(re.compile("^Environment variables"))
    variables.fill("FOO")
    dialog.get_by_role("button", name="Start", exact=True).click()
    expect(dialog.get_by_role("alert").filter(has_text="Write NAME=value.").first).to_be_visible()
    assert dialog.get_by_label("Name", exact=True).input_value() == WORLD
    shoot(page, "stranger-04-errors-beside-fields")
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    variables.fill(f"PYTHONPATH={path}")
    dialog.get_by_role("button", name="Start", exact=True).click()
    world = panel.locator(".dtrain-world")
    expect(world.locator(".dtrain-trouble").first).to_contain_text("libfabric.so.1")
    world.get_by_text("Details").click()
    shoot(page, "stranger-05-failed-start")
    print("failed start:", world.locator("p").all_inner_texts())


def look_at_hosts(dialog: Locator) -> None:
    """Another launcher has fields of its own, and leaves the number of ranks open."""
    place, ranks = dialog.get_by_label("Run on"), dialog.get_by_label("Ranks", exact=True)
    place.select_option("Hosts over ssh")
    assert ranks.input_value() == ""
    dialog.get_by_role("button", name="Start", exact=True).click()
    expect(dialog.get_by_role("alert").filter(has_text="Name the hosts and their ranks")).to_be_visible()
    expect(dialog.get_by_label("Hosts", exact=True)).to_be_focused()
    shoot(dialog.page, "stranger-03-hosts")
    place.select_option("Slurm")
    expect(dialog.get_by_label("Nodes", exact=True)).to_be_visible()
    expect(dialog.get_by_role("checkbox")).to_have_count(0)
    shoot(dialog.page, "stranger-03-slurm")
    place.select_option("This machine")
    expect(dialog.get_by_label("Hosts", exact=True)).to_have_count(0)
    assert ranks.input_value() != ""


def start(page: Page, panel: Locator) -> None:
    """The failed card offers another try, which knows all that was typed."""
    panel.get_by_role("list", name="Worlds").get_by_role("button", name="Try again…").click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_label("Name", exact=True).input_value() == WORLD
    more = dialog.get_by_text("More options")
    variables = dialog.get_by_label(re.compile("^Environment variables"))
    if not variables.is_visible():
        more.click()
    variables.fill("")
    waited = page.evaluate(CARD, dialog.get_by_role("button", name="Start", exact=True).element_handle())
    print(f"the card has its line of progress after {waited:.0f} ms")
    shoot(page, "stranger-06-starting")
    expect(panel.locator(".dtrain-world .dtrain-state")).to_have_text("idle")


def train(page: Page, panel: Locator, moved: int) -> None:
    """Live, reloaded in mid-run, and stopped; then once more to the end."""
    run_cell(page, FIRST + moved)
    page.wait_for_selector(".jp-Notebook .dtrain-chart canvas")
    expect(panel.locator(".dtrain-chart canvas").first).to_be_visible()
    expect(output_of(page, FIRST + moved)).to_contain_text(re.compile(r"step 400: loss"))
    show(page, FIRST + moved)
    states = page.evaluate(STATES)
    print("states:", states)
    assert (states["cell"], states["sidebar"]) == ("running", "run 1")
    assert states["pill"].startswith("all ranks · running · step")
    assert states["status"].startswith(f"{WORLD} · run 1 · step")
    shoot(page, "stranger-07-training")
    keep(page, "training")
    page.reload()
    page.wait_for_selector(".jp-Notebook .dtrain-chart canvas")
    output = output_of(page, FIRST + moved)
    expect(output).to_contain_text("step 0: loss")
    expect(page.locator(".jp-Notebook .dtrain-badge").first).to_have_text("running")
    shoot(page, "stranger-08-reloaded")
    page.locator(".jp-Notebook .dtrain-run").get_by_role("button", name="Interrupt").click()
    wait_idle(page)
    expect(page.locator(".jp-Notebook .dtrain-badge").first).to_have_text("interrupted")
    expect(panel.locator(".dtrain-world .dtrain-state")).to_have_text("idle")
    print("stopped:", page.evaluate(STATES))
    shoot(page, "stranger-09-stopped")
    run_cell(page, SECOND + moved)
    wait_idle(page)
    run_cell(page, NAN + moved)
    wait_idle(page)
    show(page, NAN + moved)
    badges = page.locator(".jp-Notebook .dtrain-badge")
    expect(badges).to_have_text(["interrupted", "ok", "ok, but NaN"])
    print("diverged:", badges.all_inner_texts())
    shoot(page, "stranger-10-nan")


def look_at_outputs(page: Page, moved: int) -> None:
    """Figures of ranks are side by side, and 40,000 lines are folded."""
    run_cell(page, FIGURES + moved)
    wait_idle(page)
    output = show(page, FIGURES + moved)
    expect(output.locator("[data-dtrain='side'] img")).to_have_count(2)
    shoot(page, "stranger-11-figures")
    keep(page, "figures")
    run_cell(page, LINES + moved)
    wait_idle(page)
    output = show(page, LINES + moved)
    expect(output.get_by_role("toolbar", name="Output").get_by_role("status")).to_contain_text("lines")
    shoot(page, "stranger-12-many-lines")
    output.get_by_role("combobox", name="Output of").select_option("Differences only")
    expect(output.locator(".dtrain-output-text")).to_contain_text("rank 1 has")
    lines = output.locator(".dtrain-output-text").inner_text().splitlines()
    print("differences:", lines)
    assert sorted(lines) == ["[0] rank 0 has 899 images", "[1] rank 1 has 898 images"]
    shoot(page, "stranger-13-differences")


def meet_failures(page: Page, panel: Locator, moved: int) -> None:
    """Native code that keeps the interpreter, and a rank that exits: one state everywhere, and the next step."""
    run_cell(page, STUCK + moved)
    page.wait_for_timeout(6000)  # for what is shown of a rank that says nothing
    show(page, STUCK + moved)
    cell = page.locator(".jp-Notebook .dtrain-run").last.inner_text().splitlines()
    print("native code:", cell, page.evaluate(STATES))
    assert cell[-4:] == ["rank 0", "running", "rank 1", "done"]
    assert panel.locator(".dtrain-does").all_inner_texts() == ["running", "done"]
    shoot(page, "stranger-14-native-code")
    wait_idle(page)
    run_cell(page, EXIT + moved)
    wait_idle(page)
    output = show(page, EXIT + moved)
    expect(output).to_contain_text("exit code 3")
    attention = panel.get_by_role("region", name="Attention")
    expect(attention).to_contain_text("Rank 1 ended with exit code 3")
    expect(attention.get_by_role("button", name=re.compile("Restart"))).to_be_visible()
    print("attention:", attention.inner_text().splitlines())
    shoot(page, "stranger-15-exit")
    keep(page, "failure")
    attention.get_by_role("button", name=re.compile("Restart")).first.click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("Restart")).click()
    expect(panel.locator(".dtrain-world .dtrain-state")).to_have_text("idle")
    shoot(page, "stranger-16-restarted")


def look_at_runs(page: Page, panel: Locator) -> None:
    """Runs have names, last losses and outcomes; the charts of two are side by side."""
    page.get_by_role("button", name="Open the Runs tab").click()
    tab = page.get_by_role("region", name="Runs", exact=True)
    rows = tab.get_by_role("table", name="Stored runs").locator("tbody tr")
    expect(rows.first).to_be_visible()
    for name, wanted in (("rate 0.05", True), ("rate 0.5", True), ("too fast", False)):
        rows.filter(has_text=name).get_by_role("checkbox").set_checked(wanted)
    expect(tab.get_by_role("figure").locator("canvas").first).to_be_visible()
    print("runs:", *(row.inner_text().replace("\n", " ") for row in rows.all()), sep="\n  ")
    shoot(page, "stranger-17-runs")
    tab.get_by_role("slider", name="Smoothing").fill("0.8")
    page.set_viewport_size({"width": 2100, "height": 880})
    page.add_style_tag(content="#react-toastify-container { display: none; }")
    keep(page, "runs", tab)
    print("panel:", panel.get_by_role("list", name="Earlier runs").inner_text().splitlines())

"""A run in JupyterLab: while it goes on, when it has ended, and in the notebook that was saved."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import expect

from tests.browser.lab import Lab, execute, run_all, save, shoot, theme, wait_idle

START = "%load_ext jupyter_dtrain\n%distributed start -n 2"
TRAIN = """%%distributed
import time
import jupyter_dtrain
print("begun")
for step in jupyter_dtrain.progress(range(STEPS), name="train"):
    time.sleep(0.02)
    jupyter_dtrain.log(loss=100 / (step + 1), acc=step / STEPS, lr=0.1)
print("ended")
"""
HELD = """%%distributed
import os, time, jupyter_dtrain
from IPython.display import display
said = print if os.environ["RANK"] == "0" else lambda *_: None
step = 0
while step < 100 or not os.path.exists("GO"):
    said("line", step)
    jupyter_dtrain.log(loss=100 / (step + 1), step=step)
    if step == 5 and os.environ["RANK"] == "0":
        display({"image/svg+xml": '<svg xmlns="http://www.w3.org/2000/svg" width="60" height="20"/>'}, raw=True)
    step += 1
    time.sleep(0.02)
said("ended")
"""
STANDS = """import ctypes, os, threading, time
def stand():
    while not os.path.exists("BEGIN"):
        time.sleep(0.05)
    while not os.path.exists("END"):
        ctypes.PyDLL(None).usleep(1_000_000)  # it keeps the interpreter meanwhile
        time.sleep(0.005)
threading.Thread(target=stand, daemon=True).start()
"""
WATCH = r"""async () => {
    const seconds = (text) => text.split(':').reduce((sum, part) => 60 * sum + Number.parseFloat(part), 0);
    const step = (text) => Number((/step ([\d,]+)/.exec(text)?.[1] ?? '0').replaceAll(',', ''));
    const seen = [];
    const began = performance.now();
    while (performance.now() - began < 7000) {
        const cell = document.querySelector('.jp-Notebook .dtrain-summary').textContent;
        const title = document.querySelector('.dtrain-run-title').textContent;
        const ranks = [...document.querySelectorAll('.dtrain-does')].map((one) => step(one.textContent));
        seen.push({
            at: performance.now(),
            cell: {step: step(cell), seconds: seconds(cell.split(' · ')[2])},
            sidebar: {step: Math.max(...ranks), seconds: seconds(title.split(' · ').at(-1))},
        });
        await new Promise((done) => setTimeout(done, 100));
    }
    return seen;
}"""
"""The panel in the cell and the sidebar at the same moments."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "07_losses_compared.ipynb"
WIDGET = "application/vnd.jupyter.widget-view+json"
OURS = "application/vnd.jupyter-dtrain.run+json"


def train(steps):
    """A cell that takes about ``steps`` times 20 ms."""
    return TRAIN.replace("STEPS", str(steps))


def step_of(page):
    """The newest step that the panel shows."""
    found = re.search(r"step ([\d,]+)", page.locator(".dtrain-summary").first.text_content() or "")
    return int(found[1].replace(",", "")) if found else -1


def wait_for_step(page, step):
    """Wait until the panel has come to ``step``; the step that it shows then."""
    page.wait_for_function(
        """(step) => {
            const found = /step ([\\d,]+)/.exec(document.querySelector('.dtrain-summary')?.textContent ?? '');
            return found !== null && Number(found[1].replaceAll(',', '')) >= step;
        }""",
        arg=step,
    )
    return step_of(page)


def outputs_of(path, cell=1):
    """The outputs of a cell in a notebook file."""
    return json.loads(path.read_text())["cells"][cell]["outputs"]


def test_a_curve_grows_while_the_cell_runs_and_stays_in_the_notebook(lab, browser):
    """Live, saved, in both themes, opened again without a kernel and without trust, and as a web page."""
    path = lab.write("grows.ipynb", START, train(200))
    page = lab.open(browser, path.name)
    run_all(page)
    page.wait_for_selector(".dtrain-chart canvas")
    first = wait_for_step(page, 20)
    expect(page.locator(".dtrain-value").first).to_have_text(re.compile(r"\d"))
    value = page.locator(".dtrain-value").first.text_content()
    assert wait_for_step(page, first + 20) > first
    expect(page.locator(".dtrain-value").first).not_to_have_text(value)
    expect(page.locator(".dtrain-badge")).to_have_text("running")
    expect(page.locator(".dtrain-tile")).to_have_count(2)
    # The panel stands above what the ranks print.
    panel, text = page.locator(".dtrain-run").bounding_box(), page.locator("text=[0-1] begun").bounding_box()
    assert panel["y"] < text["y"]

    wait_idle(page)
    expect(page.locator(".dtrain-badge")).to_have_text("ok")
    expect(page.locator(".dtrain-button:visible")).to_have_count(0)
    expect(page.locator(".dtrain-metric:visible")).to_have_text(["loss", "acc"])
    assert step_of(page) == 199
    theme(page, "JupyterLab Dark")
    page.wait_for_function("getComputedStyle(document.querySelector('.dtrain-run')).color.match(/\\d+/g)[0] > 128")
    theme(page, "JupyterLab Light")
    save(page)
    lab.leave(page)

    outputs = outputs_of(path)
    kept = outputs[0]["data"]
    assert set(kept) == {OURS, "image/svg+xml", "text/plain"}
    assert re.search(r"Run \d+ on ranks 0-1: ok", "".join(kept["text/plain"]))
    assert [output["output_type"] for output in outputs[1:]] == ["stream"]
    assert WIDGET not in path.read_text()

    notebook = nbformat.read(path, as_version=4)
    html, _ = HTMLExporter().from_notebook_node(notebook)
    assert "data:image/svg+xml" in html
    # A rank that is more than 30 ms behind the other has a line of its own.
    assert "[0-1] ended" in html or ("[0] ended" in html and "[1] ended" in html)
    assert "widget-view" not in html

    # As if another person had sent it: its signature is unknown, and so is its kernel.
    notebook.cells[0].source = "# not signed"
    notebook.metadata["kernelspec"] = {"name": "absent", "display_name": "absent"}
    nbformat.write(notebook, lab.folder / "received.ipynb")
    page = lab.open(browser, "received.ipynb", kernel=False)
    page.wait_for_selector(".dtrain-chart canvas", state="attached")
    expect(page.locator(".dtrain-badge")).to_have_text("ok")
    page.close()


def test_the_buttons_work_in_mid_cell(lab, browser):
    """Stacks, a rank's own output, and interrupt: each answers while the kernel is busy with the cell."""
    path = lab.write("buttons.ipynb", START, train(6000))
    page = lab.open(browser, path.name)
    run_all(page)
    wait_for_step(page, 5)
    panel = page.locator(".dtrain-run")
    panel.get_by_role("button", name="Stacks").click()
    expect(panel.locator(".dtrain-drawer pre")).to_contain_text("time.sleep(0.02)")
    panel.locator(".dtrain-tile[data-rank='1']").click()
    expect(panel.locator(".dtrain-drawer-head")).to_contain_text("Output of rank 1")
    expect(panel.locator(".dtrain-drawer pre")).to_have_text("begun\n")
    panel.get_by_role("button", name="Interrupt").click()
    wait_idle(page)
    expect(page.locator(".dtrain-badge")).to_have_text("interrupted")
    error = page.locator("[data-mime-type='application/vnd.jupyter.stderr']", has_text="KeyboardInterrupt")
    expect(error).to_have_count(1)
    save(page)
    assert re.search(r"Run \d+ on ranks 0-1: interrupted", "".join(outputs_of(path)[0]["data"]["text/plain"]))
    lab.leave(page)


@pytest.mark.slow
def test_the_second_example_is_seen_learning_and_can_be_interrupted(lab, browser):
    """A small GPT: its loss grows a curve without a line of code, and the panel's button ends the cell."""
    pytest.importorskip("torch")
    notebook = nbformat.read(EXAMPLE, as_version=4)
    last = next(index for index, cell in enumerate(notebook.cells) if "learning_rate=3e-4" in cell.source)
    # Long enough for every machine: the test ends it.
    notebook.cells = [cell for cell in notebook.cells[: last + 1] if cell.cell_type == "code"]
    notebook.cells[-1].source = notebook.cells[-1].source.replace("3e-4)", "3e-4, steps=100_000)")
    path = lab.folder / "example.ipynb"
    nbformat.write(notebook, path)
    page = lab.open(browser, path.name, width=1300)
    run_all(page)
    first = wait_for_step(page, 3)
    assert wait_for_step(page, first + 5) > first
    expect(page.locator(".jp-Notebook .dtrain-metric:visible")).to_have_text(["loss"])
    # The sidebar's panel moves as well, and knows what trains.
    execute(page, "dtrain:show")
    panel = page.get_by_role("region", name="Distributed Training")
    expect(panel.locator(".dtrain-chart canvas").first).to_be_visible()
    expect(panel.locator(".dtrain-world[data-selected='true']")).to_contain_text("PyTorch")
    rank = panel.locator(".dtrain-does").first
    before = rank.inner_text()
    expect(rank).not_to_have_text(before)
    expect(rank).to_contain_text("step")
    shoot(page, "sidebar-example")
    page.locator(".jp-Notebook .dtrain-run").get_by_role("button", name="Interrupt").click()
    wait_idle(page)
    expect(page.locator(".jp-Notebook .dtrain-badge")).to_have_text("interrupted")
    save(page)
    (kept,) = [output["data"] for output in outputs_of(path, -1) if OURS in output.get("data", {})]
    assert "loss" in "".join(kept["text/plain"])
    lab.leave(page)


def test_a_page_that_is_reloaded_in_mid_cell_misses_nothing(lab, browser):
    """The kernel is busy: lines, figure, chart and buttons come back from the server, and go on to the end."""
    go = lab.folder / "go"
    path = lab.write("reloaded.ipynb", START, HELD.replace("GO", str(go)))
    page = lab.open(browser, path.name)
    run_all(page)
    wait_for_step(page, 30)
    save(page)
    # A notebook saved in mid-run draws without a kernel.
    assert set(outputs_of(path)[0]["data"]) == {OURS, "text/plain"}
    assert outputs_of(path)[0]["data"][OURS]["outcome"] == "running"
    page.reload()
    cell = page.locator(".jp-CodeCell").nth(1)
    expect(cell.locator(".jp-InputPrompt")).to_contain_text("*")
    expect(cell.locator(".dtrain-badge")).to_have_text("running")
    # The chart writes its words when it first draws, which can be after the badge stands.
    loss = cell.locator(".dtrain-chart:not(.dtrain-course) .dtrain-plot").first
    expect(loss).to_have_attribute("aria-label", re.compile("loss over steps 0 to"))
    wait_for_step(page, step_of(page) + 20)
    # Past 200 lines our view shows them, and JupyterLab's is hidden.
    expect(cell.get_by_text("[0] line 0", exact=False).locator("visible=true")).to_have_count(1)
    expect(cell.locator("img[src^='data:image/svg']")).to_have_count(1)
    cell.get_by_role("button", name="Stacks").click()
    expect(cell.locator(".dtrain-drawer pre")).to_contain_text("time.sleep(0.02)")
    cell.get_by_role("button", name="close").click()
    shoot(page, "reloaded")
    go.touch()
    wait_idle(page)
    expect(cell.locator(".dtrain-badge")).to_have_text("ok")
    expect(cell.locator(".jp-InputPrompt")).to_have_text("[2]:")
    save(page)
    outputs = outputs_of(path)
    assert set(outputs[0]["data"]) == {OURS, "image/svg+xml", "text/plain"}
    lines = "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream").splitlines()
    numbers = [int(line.split()[-1]) for line in lines if line.startswith("[0] line")]
    assert numbers == list(range(len(numbers)))
    assert lines[-1] == "[0] ended"
    assert WIDGET not in path.read_text()
    lab.leave(page)


@pytest.mark.slow
def test_the_panel_keeps_up_with_the_sidebar_while_the_kernel_stands_still(lab, browser):
    """A thread of the kernel holds the interpreter nearly all the time; both show the same clock, and the same step."""
    begin, end = lab.folder / "begin", lab.folder / "end"
    path = lab.write("stands.ipynb", START, STANDS.replace("BEGIN", str(begin)).replace("END", str(end)), train(6000))
    page = lab.open(browser, path.name, width=1400)
    execute(page, "dtrain:show")
    run_all(page)
    page.wait_for_selector(".jp-Notebook .dtrain-chart canvas")
    page.wait_for_selector("#jupyter-dtrain-panel .dtrain-chart canvas")
    page.wait_for_function("() => document.querySelector('.jp-Notebook .dtrain-summary').textContent.includes('step')")
    begin.touch()
    seen = page.evaluate(WATCH)
    end.touch()
    assert len(seen) > 20
    assert seen[-1]["sidebar"]["step"] > seen[0]["sidebar"]["step"]
    for place, now in enumerate(seen):
        earlier = [one for one in seen[:place] if now["at"] - one["at"] >= 1000]
        if earlier:
            assert now["cell"]["step"] >= earlier[-1]["sidebar"]["step"], (earlier[-1], now)
            assert now["cell"]["seconds"] >= earlier[-1]["sidebar"]["seconds"], (earlier[-1], now)
    assert all(one["cell"]["step"] >= before["cell"]["step"] for before, one in itertools.pairwise(seen))
    shoot(page, "same-clock")
    page.locator(".jp-Notebook .dtrain-run").get_by_role("button", name="Interrupt").click()
    wait_idle(page)
    lab.leave(page)


@pytest.mark.slow
def test_cells_without_metrics_show_no_panel(lab, browser):
    """Nothing for a cell that only prints; for one that takes long a strip of ranks, until it has ended."""
    path = lab.write(
        "plain.ipynb", START, "%%distributed\nprint('here')", "%%distributed\nimport time\ntime.sleep(4)\nprint('late')"
    )
    page = lab.open(browser, path.name)
    run_all(page)
    page.wait_for_selector(".dtrain-tile[data-state='running']")
    expect(page.locator(".dtrain-chart")).to_have_count(0)
    assert page.locator(".dtrain-run").count() == 1
    wait_idle(page)
    expect(page.locator(".dtrain-run")).to_have_count(0)
    save(page)
    for cell in (1, 2):
        displays = [output["data"] for output in outputs_of(path, cell) if output["output_type"] == "display_data"]
        assert all(set(data) == {"text/plain"} and "".join(data["text/plain"]) == "" for data in displays)
    lab.leave(page)


@pytest.mark.slow
def test_notebook_7_shows_the_same(browser, tmp_path_factory):
    """Its pages have another shell, and the same extensions."""
    pytest.importorskip("notebook", reason="needs Notebook 7: pip install notebook")
    server = Lab(tmp_path_factory.mktemp("notebook"), "notebook")
    try:
        path = server.write("seven.ipynb", START, train(3000))
        page = server.open(browser, path.name)
        expect(page.locator(".dtrain-pill")).to_have_text("all ranks")
        run_all(page)
        wait_for_step(page, 20)
        execute(page, "dtrain:show")
        panel = page.get_by_role("region", name="Distributed Training")
        expect(panel.locator(".dtrain-state")).to_have_text(re.compile(r"run \d+"))
        expect(page.locator(".dtrain-pill")).to_contain_text("all ranks · running")
        page.locator(".dtrain-run").get_by_role("button", name="Interrupt").click()
        wait_idle(page)
        expect(page.locator(".dtrain-badge")).to_have_text("interrupted")
        with page.expect_popup() as opened:
            panel.get_by_role("button", name="Open the Runs tab").click()
        expect(opened.value.locator(".dtrain-runs-legend li")).to_have_count(1)
        server.leave(page)
    finally:
        server.close()

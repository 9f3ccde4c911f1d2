"""The output of 8 and of 64 ranks in a saved notebook, as the package's own view writes it and JupyterLab shows it."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Page, expect

from jupyter_dtrain.core.events import Display, Output
from jupyter_dtrain.view.panel import metadata_of_panel
from tests.browser.lab import shoot
from tests.view.conftest import Recorder, Scene

pytestmark = pytest.mark.slow

LINES = 50
WIDTH, HEIGHT = 240, 120
ODD = 5
"""A rank that prints a line of its own."""
FIRST = 50
"""Outputs of a cell that JupyterLab shows at first; a caption is one."""
WIDER = "(one) => one.scrollWidth - one.clientWidth"

PLACES = """(all) => all.map((one) => {
    const { y, right } = one.getBoundingClientRect();
    return { y: Math.round(y), right, ranks: one.dataset.dtrainRanks };
})"""


class Written(Recorder):
    """Makes the outputs of a notebook of what is painted, as a kernel and JupyterLab do."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Any] = [
            nbformat.v4.new_output("display_data", data={"text/plain": ""}, metadata=metadata_of_panel("p", "", 1))
        ]

    def stream(self, name, text):
        last = self.outputs[-1]
        if last.output_type == "stream" and last.name == name:
            last.text += text
        else:
            self.outputs.append(nbformat.v4.new_output("stream", name=name, text=text))

    def display(self, data, metadata, display_id=None, *, moving=False):
        super().display(data, metadata, display_id, moving=moving)
        self.outputs.append(nbformat.v4.new_output("display_data", data=data, metadata=metadata))


def figure(rank: int) -> Display:
    """A picture that differs from rank to rank: bars, as a PNG, which needs no trust."""
    row = bytes(255 if (x // 20 + rank) % 3 else 20 + 3 * rank for x in range(WIDTH))
    image = zlib.compress(b"".join(b"\0" + row for _ in range(HEIGHT)))
    parts = (b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 0, 0, 0, 0)), (b"IDAT", image), (b"IEND", b"")
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()
    return Display({"image/png": png, "text/plain": "<Figure>"})


def table(rank: int) -> Display:
    """A table that differs from rank to rank."""
    rows = "".join(f"<tr><th>layer {row}</th><td>{rank + row / 10}</td></tr>" for row in range(3))
    return Display({"text/html": f"<table>{rows}</table>", "text/plain": "table"})


def written(size: int) -> list[Any]:
    """The outputs of a cell in which ranks print the same, one of them a line more, and each shows a figure."""
    painter = Written()
    scene = Scene(size, painter=painter)
    for step in range(LINES):
        for rank in range(size):
            scene.say(rank, f"step {step}\n")
    for rank in range(size):
        scene.say(rank, Output("stderr", "a log line\n"), f"rank {rank} is on its shard\n")
    scene.say(ODD, "overflow: the scale is halved\n")
    scene.wait(0.1)
    for rank in range(size):
        scene.say(rank, figure(rank), table(rank))
    scene.wait(0.1)
    scene.close()
    return painter.outputs


@pytest.fixture(params=[8, 64])
def shown(request, lab, browser) -> Any:
    """The size of the world, and the page of its notebook."""
    cell = nbformat.v4.new_code_cell("%%distributed\ntrain()")
    cell.outputs = written(request.param)
    path = lab.write(f"ranks-{request.param}.ipynb", cell)
    print(f"{request.param} ranks: the notebook has {path.stat().st_size / 1000:.0f} kB")
    page = lab.open(browser, path.name, kernel=False, width=1300, height=1000)
    yield request.param, page
    page.close()


def choose(page: Page, look: str) -> str:
    """Select a look; the text that is shown then."""
    output = page.locator(".jp-OutputArea").first
    output.get_by_role("combobox", name="Output of").select_option(look)
    return output.locator(".dtrain-output-text").inner_text()


def test_many_ranks_are_told_apart(shown):
    """One line for all that is equal, a rank's own, what differs; figures and tables below their ranks, in rows."""
    size, page = shown
    output = page.locator(".jp-OutputArea").first
    bar = output.get_by_role("toolbar", name="Output")
    expect(bar.get_by_role("status")).to_have_text(f"{LINES + 1 + size + 1} lines")
    expect(output.get_by_text(f"[0-{size - 1}] step {LINES - 1}", exact=False).locator("visible=true")).to_have_count(1)
    assert output.evaluate(WIDER) <= 0
    shoot(page, f"output-{size}-ranks")

    assert bar.get_by_role("combobox", name="Output of").locator("option").count() == 3 + size
    differs = choose(page, "Differences only").splitlines()
    assert f"[{ODD}] overflow: the scale is halved" in differs
    assert len(differs) == size + 1
    own = choose(page, f"Rank {size - 1}").splitlines()
    assert own[-1] == f"rank {size - 1} is on its shard"
    assert len(own) == LINES + 2
    choose(page, "Differences only")
    side = output.locator("[data-dtrain='side']")
    if size <= FIRST // 4:
        expect(side).to_have_count(2 * size)
    else:
        expect(output.get_by_text("Show more outputs")).to_be_attached()
    places = side.evaluate_all(PLACES)
    assert len({place["y"] for place in places}) <= size, "at least two ranks are side by side"
    assert all(place["right"] <= 1300 for place in places)
    assert [place["ranks"] for place in places[:2]] == ["Rank 0", "Rank 0"]
    side.first.scroll_into_view_if_needed()
    expect(side.first.locator("img")).to_be_visible()
    shoot(page, f"output-{size}-ranks-side")
    # The browser draws what is out of sight when it comes into it.
    assert side.last.evaluate("(one) => getComputedStyle(one).contentVisibility") == "auto"

"""The panel with as many ranks and worlds as one machine carries: what an update costs the page, and the stream.

Times are printed, not asserted: they are this machine's, and of this hour.
"""

from __future__ import annotations

import contextlib
import time

import pytest
from playwright.sync_api import expect

from jupyter_dtrain import Session
from jupyter_dtrain.core.settings import Settings
from tests.browser.lab import execute, shoot

pytestmark = pytest.mark.slow

RANKS = 64
WORLDS = 8
LOG = """
import time, jupyter_dtrain
for step in range(100_000):
    jupyter_dtrain.log(loss=1 / (step + 1), step=step)
    time.sleep(0.5)
"""
FRAMES = """async (scroll) => {
    const panel = document.querySelector('.dtrain-panel');
    const gaps = [];
    let last = performance.now();
    for (let frame = 0; frame < 120; frame += 1) {
        await new Promise(requestAnimationFrame);
        const now = performance.now();
        gaps.push(now - last);
        last = now;
        if (scroll) panel.scrollTop = (panel.scrollHeight - panel.clientHeight) * (frame % 60) / 60;
    }
    return gaps;
}"""


@pytest.fixture(scope="module")
def many(lab, monkeypatch_module):
    """One world of many ranks that all log, and as many small ones as make eight."""
    monkeypatch_module.setenv("JUPYTER_RUNTIME_DIR", str(lab.folder.parent / "runtime"))
    settings = Settings(start_timeout=600.0)
    with contextlib.ExitStack() as worlds:
        session = worlds.enter_context(Session.start(RANKS, name="many", settings=settings))
        for number in range(1, WORLDS):
            worlds.enter_context(Session.start(1, name=f"small-{number}", settings=settings))
        yield session


@pytest.fixture(scope="module")
def monkeypatch_module():
    """A monkeypatch that lasts as long as the file's tests."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def script(devtools) -> float:
    """Seconds that the page has spent in scripts."""
    metrics = devtools.send("Performance.getMetrics")["metrics"]
    return {metric["name"]: metric["value"] for metric in metrics}["ScriptDuration"]


def test_many_ranks_and_worlds_stay_light(many, browser, lab):
    """All are there; what the stream carries is bounded."""
    lab.write("empty.ipynb", "1")
    page = browser.new_page(viewport={"width": 1300, "height": 1000})
    page.set_default_timeout(120_000)
    received: list[tuple[float, int]] = []

    def listen(socket):
        if "/dtrain/stream" in socket.url:
            socket.on("framereceived", lambda data: received.append((time.monotonic(), len(data))))

    page.on("websocket", listen)
    page.goto(lab.address("empty.ipynb"))
    page.wait_for_selector(".jp-Notebook")
    execute(page, "dtrain:show")
    panel = page.get_by_role("region", name="Distributed Training")
    expect(panel.locator(".dtrain-world")).to_have_count(WORLDS)
    panel.get_by_role("button", name="many", exact=True).click()
    expect(panel.locator(".dtrain-ranks li")).to_have_count(RANKS)
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})  # not what others take of the processor

    def measure(seconds: float) -> str:
        received.clear()
        began, used = time.monotonic(), script(devtools)
        page.wait_for_timeout(1000 * seconds)
        seconds, used = time.monotonic() - began, script(devtools) - used
        carried, count = sum(size for _, size in received) / seconds, len(received)
        assert carried < 50_000
        each = f", {1000 * used / count:.1f} ms of script for each" if count else f", {1000 * used:.0f} ms of script"
        return f"{carried / 1000:.1f} kB/s in {count / seconds:.1f} messages/s{each}"

    page.wait_for_timeout(5000)
    print(f"{RANKS} ranks and {WORLDS} worlds, idle: {measure(15)}")
    # In turns with a page that stands still: what that loses, the machine takes.
    gaps = {scroll: [] for scroll in (False, True)}
    for turn in range(8):
        gaps[turn % 2 == 1] += page.evaluate(FRAMES, turn % 2 == 1)
    for scroll, found in gaps.items():
        found.sort()
        half, most = found[len(found) // 2], found[int(0.95 * len(found))]
        print(f"{'scrolling' if scroll else 'standing'}: half of the frames in {half:.1f} ms, 95 % in {most:.1f} ms")
    many.run(LOG, wait=False, view=None)
    expect(panel.locator(".dtrain-world", has_text="many").locator(".dtrain-state")).to_have_text("run 1")
    expect(panel.locator(".dtrain-chart canvas").first).to_be_visible()
    page.wait_for_timeout(5000)

    print(f"all {RANKS} log: {measure(20)}")
    shoot(page, "sidebar-many")
    page.close()

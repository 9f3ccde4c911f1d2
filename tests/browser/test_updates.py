"""The cost of a second of 64 ranks to the sidebar: the test plays the stream, so that no rank takes the processor.

Times are printed, not asserted: they are this machine's, and of this hour. Messages come as often as a server sends
them, each with new states and resources of all ranks and new points of each.
"""

from __future__ import annotations

import base64
import math
from array import array

import msgspec
import pytest
from playwright.sync_api import expect

from jupyter_dtrain.server.messages import NewsMessage
from jupyter_dtrain.view.document import little, status
from tests.browser.lab import shoot
from tests.browser.stream import WORLD, PlayedStream
from tests.browser.test_many import FRAMES, script
from tests.browser.test_stage import picture

pytestmark = pytest.mark.slow

RANKS = 64
POINTS = 300
"""Points of each rank before the first update."""
UPDATES = 80
PAUSE = 0.25
"""Seconds between two messages; a server sends as many."""
FRESH = 5
"""New points of each rank in a message."""


def update(shown, number):
    """The message after ``number`` others: every rank has moved on."""
    first = POINTS + number * FRESH
    series = [[0, rank, FRESH, first, 1] for rank in range(RANKS)]
    values = array("f", [math.exp(-(first + at) / 200) + rank / 500 for rank in range(RANKS) for at in range(FRESH)])
    shown.elapsed += PAUSE
    shown.samples = {
        rank: msgspec.structs.replace(sample, cpu=50.0 + (number * 7 + rank) % 50)
        for rank, sample in shown.samples.items()
    }
    packed = base64.b64encode(little("f", values)).decode()
    return NewsMessage(world=WORLD, seq=number, status=status(shown), names=["loss"], series=series, values=packed)


def test_an_update_of_many_ranks_and_scrolling_among_them_are_light(browser, lab):
    """Every message is shown; the figures of both are printed."""
    shown = picture(RANKS, nodes=8, points=POINTS)
    stream = PlayedStream(lab, browser, shown, dict.fromkeys(range(RANKS), "running"))
    page, panel = stream.page, stream.panel
    panel.get_by_role("region", name="Losses").scroll_into_view_if_needed()  # charts are drawn where they are seen
    expect(panel.locator(".dtrain-chart canvas").first).to_be_visible()
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})  # not what others take of the processor
    page.wait_for_timeout(3000)
    idle = script(devtools)
    page.wait_for_timeout(1000 * PAUSE * UPDATES / 4)
    idle = 4 * (script(devtools) - idle)

    used = script(devtools)
    for number in range(UPDATES):
        stream.send(update(shown, number))
        page.wait_for_timeout(1000 * PAUSE)
    used = script(devtools) - used
    each = 1000 * (used - idle) / UPDATES
    print(f"{RANKS} ranks: {each:.1f} ms of script for each of {UPDATES} updates; JupyterLab alone {idle:.2f} s")
    shoot(page, "updates")

    # In turns with a page that stands still: what that loses, the machine takes.
    gaps = {scroll: [] for scroll in (False, True)}
    for turn in range(8):
        stream.send(update(shown, UPDATES + turn))
        gaps[turn % 2 == 1] += page.evaluate(FRAMES, turn % 2 == 1)
    for scroll, found in gaps.items():
        found.sort()
        half, most = found[len(found) // 2], found[int(0.95 * len(found))]
        print(f"{'scrolling' if scroll else 'standing'}: half of the frames in {half:.1f} ms, 95 % in {most:.1f} ms")
    page.close()

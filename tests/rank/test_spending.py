"""How a rank's main thread spends its time: the clocks, and the frameworks' words for its frames."""

from __future__ import annotations

import time

import pytest

from jupyter_dtrain.plugins.framework import Framework
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.rank.spending import Spending

LONG = 0.6
"""Seconds of each activity."""
MOST = 0.7 * LONG
"""A busy machine delays looks; most of the time is seen all the same."""


class Made(Framework):
    """Waits in functions of these names; one of them uses a processor, as MPI does."""

    name = "made"

    def waits(self, frame, *, idle):
        name = frame.f_code.co_name
        return name if name == "spins" or (name == "idles" and idle) else ""

    def fetches(self, frame):
        return frame.f_code.co_name == "loads"


def idles():
    time.sleep(LONG)


def loads():
    time.sleep(LONG)


def sleeps():
    time.sleep(LONG)


def spins():
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        pass


def spent(activity, *, on=True, plugin=Made):
    spending = Spending(Plugins([("made", plugin())], print))
    spending.begin(on=on)
    activity()
    return spending.end()


def test_a_blocked_wait_for_ranks_is_communication():
    found = spent(idles)

    assert LONG <= found.seconds < 10 * LONG
    assert found.communication > MOST
    assert found.data == 0


def test_a_wait_that_uses_a_processor_is_communication_too():
    found = spent(spins)

    assert found.communication + found.processor > MOST
    assert found.communication > 0


def test_a_batch_that_is_fetched_is_data():
    found = spent(loads)

    assert found.data > MOST
    assert found.communication == 0


def test_any_other_sleep_is_work():
    found = spent(sleeps)

    assert found.communication == found.data == 0


def test_nothing_is_observed_unless_it_is_asked_for():
    assert spent(sleeps, on=False) is None


def test_a_second_cell_begins_from_nothing():
    spending = Spending(Plugins([("made", Made())], print))
    spending.begin(on=True)
    idles()
    spending.end()
    spending.begin(on=True)

    assert spending.end().communication == 0


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_a_plugin_that_raises_counts_as_work(error):
    class Bad(Made):
        def waits(self, *_, **__):
            raise error

    assert spent(idles, plugin=Bad).communication == 0

"""The pace stays below what Jupyter Server drops."""

from __future__ import annotations

import random

from jupyter_dtrain.view.pace import BURST, RATE, Pace

WINDOW = 3.0
LIMIT = 3_000_000


def test_a_quiet_pace_grants_a_burst():
    """After a quiet time a burst may go at once."""
    pace = Pace()
    assert pace.grant(10.0) == BURST
    assert pace.when(BURST, 10.0) == 10.0


def test_spent_budget_comes_back_at_the_rate():
    """The bucket refills with time, up to the burst."""
    pace = Pace()
    pace.spend(BURST, 0.0)
    assert pace.grant(0.0) == 0
    assert pace.grant(0.5) == RATE // 2
    assert pace.grant(1000.0) == BURST


def test_it_predicts_when_there_will_be_enough():
    """The bytes are granted at the time that it names, and not before."""
    pace = Pace()
    pace.spend(BURST, 0.0)
    when = pace.when(70_000, 0.0)
    assert abs(when - 0.1) < 1e-9
    assert pace.grant(when - 0.01) < 70_000
    assert pace.grant(when + 1e-6) >= 70_000


def test_a_debt_is_paid_back_first():
    """Something larger than the burst goes when the bucket is full, and is not forgiven."""
    pace = Pace()
    assert pace.when(10 * BURST, 0.0) == 0.0
    pace.spend(10 * BURST, 0.0)
    assert pace.grant(0.0) < 0
    assert abs(pace.when(1, 0.0) - (9 * BURST + 1) / RATE) < 1e-6


def test_an_older_clock_reading_takes_nothing_away():
    """Threads may read the clock in one order and ask in another."""
    pace = Pace()
    pace.spend(BURST, 5.0)
    pace.grant(6.0)
    assert pace.grant(5.5) == pace.grant(6.0)


def test_no_window_of_the_server_ever_sees_more_than_it_lets_through():
    """In any 3 s at most 3 MB go, with a tenth to spare, even under constant load."""
    chance = random.Random(1)  # noqa: S311 - chance, not secrets
    pace = Pace()
    sent: list[tuple[float, int]] = []
    now = 0.0
    while now < 20.0:
        size = chance.choice([700, 5_000, 64_700])
        now = max(now + chance.choice([0.0, 0.0, 0.001, 1.0 if chance.random() < 0.01 else 0.0]), pace.when(size, now))
        pace.spend(size, now)
        sent.append((now, size))
    for start, _ in sent[::20]:
        assert sum(size for time, size in sent if start <= time < start + WINDOW) < 0.92 * LIMIT

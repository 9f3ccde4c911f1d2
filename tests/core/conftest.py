"""Runs made of events, for the tests of the shared words."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jupyter_dtrain.core.events import Batch, Error, Event, Finished, Outcome, Started
from jupyter_dtrain.core.run import Run


@pytest.fixture
def ended_run() -> Callable[..., Run]:
    """Makes a run that has ended: on each rank with an error (and ``outcome``) or, without one, well.

    ``times``: when ranks failed or died; without it, nobody saw when a rank died.
    """

    def make(
        size: int,
        errors: dict[int, Error] | None = None,
        *,
        source: str = "",
        lost: dict[int, str] | None = None,
        busy: tuple[int, ...] = (),
        outcome: Outcome | None = None,
        pids: dict[int, int] | None = None,
        times: dict[int, float] | None = None,
    ) -> Run:
        run = Run(1, source, list(range(size)), size, lambda *_: [])
        for rank in range(size):
            if rank in busy or (rank in (lost or {}) and rank not in (times or {})):
                continue
            error = (errors or {}).get(rank)
            ended: Outcome = "ok"
            if error is not None:
                ended = outcome or ("interrupted" if error.ename == "KeyboardInterrupt" else "error")
            words = (lost or {}).get(rank, "")
            bodies = [
                Started((pids or {}).get(rank, 1), "host", f"/spool/{rank}"),
                *([error] if error else []),
                Finished("lost" if words else ended, 0.1, words),
            ]
            events = [Event(1, rank, seq, (times or {}).get(rank, 0.0), body) for seq, body in enumerate(bodies)]
            run.apply(Batch(1, rank, 0, len(events) - 1, events))
        for rank, words in (lost or {}).items():
            run.mark_lost(rank, words)
        run.end()
        return run

    return make

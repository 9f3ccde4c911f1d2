"""The end of an elastic run is that of the ranks that went on, and of those that joined."""

from __future__ import annotations

import pytest

from jupyter_dtrain import Run
from jupyter_dtrain.core.events import Batch, Event, Finished, Started
from jupyter_dtrain.core.fold import elastic_end
from jupyter_dtrain.view.labels import ending_of

OTHERS = {0: "ok", 2: "ok", 3: "ok"}


@pytest.mark.parametrize(
    ("own", "joined", "end"),
    [
        (OTHERS | {1: "ok"}, [], ("ok", "")),
        (OTHERS | {1: "lost"}, [], ("ok", "rank 1 was lost")),
        (OTHERS | {1: "lost"}, [{1: "ok"}], ("ok", "rank 1 was replaced")),
        (OTHERS | {1: "lost"}, [{1: None}], ("ok", "rank 1 was replaced")),
        (OTHERS | {1: "lost"}, [{1: "running"}], ("ok", "rank 1 was replaced")),
        (OTHERS | {1: "lost"}, [{1: "lost"}], ("ok", "rank 1 was lost")),
        (OTHERS | {1: "lost"}, [{1: "lost"}, {1: "ok"}], ("ok", "rank 1 was replaced")),
        (OTHERS | {0: "lost", 1: "lost"}, [{0: "ok", 1: "ok"}], ("ok", "ranks 0-1 were replaced")),
        (OTHERS | {0: "lost", 1: "lost"}, [{1: "ok"}], ("ok", "rank 1 was replaced, rank 0 was lost")),
        (OTHERS | {1: "lost"}, [{1: "error"}], ("error", "")),
        (OTHERS | {1: "lost"}, [{1: "interrupted"}], ("ok", "rank 1 was lost")),
        (OTHERS | {1: "lost"}, [{1: "lost"}, {1: "interrupted"}], ("ok", "rank 1 was lost")),
        (OTHERS | {1: "lost", 2: "error"}, [{1: "ok"}], ("error", "")),
        (OTHERS | {1: "lost", 2: "interrupted"}, [{1: "interrupted"}], ("interrupted", "")),
        ({0: "lost", 1: "lost"}, [], ("lost", "")),
        ({0: "lost", 1: "error"}, [], ("lost", "")),  # as of any run: no rank has ended well
        ({0: "lost", 1: "lost"}, [{0: "ok"}], ("ok", "rank 0 was replaced, rank 1 was lost")),
    ],
)
def test_an_elastic_run_ends_as_the_ranks_that_went_on_and_those_that_joined(own, joined, end):
    """A rank that joined and has not ended works in the place of the lost one."""
    assert elastic_end(own, joined) == end


def made(number: int, rank: int, **begun) -> Run:
    run = Run(number, "cell", [0, 1] if number == 1 else [1], 2, lambda *_: iter([]))
    start(run, rank, **begun)
    return run


def start(run: Run, rank: int, **begun) -> None:
    run.apply(Batch(run.number, rank, 0, 0, [Event(run.number, rank, 0, 0.0, Started(1, "host", "", **begun))]))


def finish(run: Run, rank: int) -> None:
    run.apply(Batch(run.number, rank, 1, 1, [Event(run.number, rank, 1, 1.0, Finished("ok", 1.0))]))


@pytest.mark.parametrize(("elastic", "abandoned"), [(True, False), (False, False), (True, True)])
def test_a_run_knows_from_its_beginning_that_it_is_elastic(elastic, abandoned):
    """Without that, and where the whole world went away under it, a lost rank makes the run a lost one."""
    run = made(1, 0, elastic=elastic)
    run.mark_lost(1, "rank 1 was killed")
    finish(run, 0)
    run.abandoned = abandoned
    assert (run.outcome, run.remark) == ("running", "")
    run.end()
    well = elastic and not abandoned
    assert ending_of(run) == ("ok, rank 1 was lost" if well else "died")
    join = made(2, 1, joins=1)
    for _ in range(2):
        run.joined_by(join)
    assert run.joined == [join]
    assert join.joins == 1
    assert ending_of(run) == ("ok, rank 1 was replaced" if well else "died")

"""Whoever follows a run comes to the same: the session's run, a panel, the server and the store."""

from __future__ import annotations

import random
import tempfile
from contextlib import closing
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from jupyter_dtrain import Run
from jupyter_dtrain.core.events import (
    Batch,
    Dropped,
    Error,
    Finished,
    Output,
    Progress,
    PromptClosed,
    PromptOpened,
    Reading,
    Sample,
    Steered,
    StepParts,
)
from jupyter_dtrain.server.follower import SKIPPED as UNFOLLOWED
from jupyter_dtrain.server.follower import Follower
from jupyter_dtrain.store import Store
from jupyter_dtrain.store.schema import open_for_writing
from jupyter_dtrain.store.source import SpoolFolder
from jupyter_dtrain.view.run_state import RunState

from .conftest import FakeWorld, drain, points

WORDS = "rank was killed (SIGKILL)"

said = st.one_of(
    st.builds(
        points,
        st.sampled_from(["loss", "accuracy", "lr", "steps/s"]),
        # Without -0.0, which SQLite keeps as 0.0.
        st.lists(st.floats(-10, 10).map(lambda x: x + 0.0) | st.just(float("nan")), min_size=1, max_size=4),
        st.integers(0, 50),
    ),
    st.builds(Output, st.sampled_from(["stdout", "stderr"]), st.text(max_size=20)),
    st.just(Sample(100.0, 1 << 20)),
    st.builds(lambda done: Progress(0, "epoch", done, 10.0, 1.0, ""), st.floats(0, 10)),
    st.builds(lambda batch: Reading(0, batch, 10), st.integers(1, 64)),
    st.builds(lambda step: StepParts(1.0, {"data": 0.6}, step=step, looks=40), st.none() | st.integers(0, 50)),
    st.builds(
        lambda number, kind: PromptOpened(number, kind, "token? "),
        st.integers(1, 3),
        st.sampled_from(["input", "debugger"]),
    ),
    st.builds(PromptClosed, st.integers(1, 3)),
    st.builds(
        lambda number, phase: Steered(number, phase, 4, 3, "between", "between x = 1", "a.ipynb"),
        st.integers(1, 3),
        st.sampled_from(["held", "begun", "done", "left"]),
    ),
    st.just(Dropped(1, 10, "its log is full")),
)
end = st.one_of(
    st.tuples(st.just(Finished("ok", 2.5))),
    st.builds(lambda seconds: (Finished("ok", seconds),), st.floats(0, 100)),
    st.just((Error("ValueError", "no", []), Finished("error", 1.0))),
    st.just((Finished("interrupted", 4.0),)),
    st.just((Finished("lost", 3.0, WORDS),)),
    st.just(()),  # it dies without a word
)
rank = st.tuples(st.lists(said, max_size=8), end)


def batches_of(events, chance):
    """The events of a rank in batches, some of which come twice."""
    found, at = [], 0
    while at < len(events):
        size = chance.randint(1, 4)
        part = events[at : at + size]
        found += [Batch(1, part[0].rank, part[0].seq, part[-1].seq, part)] * chance.randint(1, 2)
        at += size
    return found


def apply_all(run, batches, chance):
    """Apply batches in any order; one that comes too early comes again, as when it is requested again."""
    waiting = list(batches)
    chance.shuffle(waiting)
    while waiting:
        batch = waiting.pop(0)
        if batch.first > run.next_seq(batch.rank):
            waiting.append(batch)
        else:
            run.apply(batch)


def acts_of(fold):
    """What the fold of a run that is over knows of acts on its loop."""
    assert (fold.stands, fold.paused) == (False, None)
    return {number: (act.words, act.found) for number, act in fold.acts.items()}


@given(ranks=st.lists(rank, min_size=1, max_size=3), seed=st.integers(0, 1 << 16))
def test_all_readers_of_a_run_come_to_the_same(ranks, seed):
    """In any order of batches, in any parts, with or without the events that they have no use for."""
    chance = random.Random(seed)  # noqa: S311 — the order of batches
    numbers = list(range(len(ranks)))
    dead = [number for number in numbers if not ranks[number][1]]
    with tempfile.TemporaryDirectory() as folder:
        world = FakeWorld(Path(folder), size=len(ranks))
        store = Store(Path(folder) / "runs.sqlite")
        follower = Follower(SpoolFolder(world.folder, UNFOLLOWED), len(ranks))
        with closing(open_for_writing(store.path)) as db, closing(world):
            world.begin(1, when=1000.0)
            for number, (bodies, last) in enumerate(ranks):
                for body in (*bodies, *last):
                    world.say(1, number, body, when=1001.0 + number)
                    if chance.random() < 0.2:
                        world.writer.poll(db)
                        follower.poll([1])
            for number in dead:
                world.writer.rank_died(number, WORDS)
            drain(world.writer, db)
            while follower.poll([1]) or not follower.runs:
                pass
            followed = follower.runs[1]
            for number in dead:
                followed.lose(number, WORDS)
            outcome, elapsed = db.execute("SELECT outcome, elapsed FROM runs").fetchone()
            parts = db.execute("SELECT rank, outcome, words, heard, host, pid FROM parts ORDER BY rank").fetchall()
        stored = store.runs()[0]
        stored_names = stored.metrics
        spools = SpoolFolder(world.folder, ())
        events = {number: spools.read(1, number, 0).events for number in numbers}
    run = Run(1, "x = 1", numbers, len(ranks), lambda *_: iter(()))
    panel = RunState(1, numbers, len(ranks))
    apply_all(run, [batch for number in numbers for batch in batches_of(events[number], chance)], chance)
    mixed = [event for number in numbers for event in events[number]]
    mixed.sort(key=lambda event: (event.seq, chance.random()))
    for event in mixed:
        panel.take(event)
    for number in dead:
        run.mark_lost(number, WORDS)
        panel.fold.lose(number, WORDS)
    run.end()

    folds = [run.fold, panel.fold, followed.fold]
    assert {one.outcome for one in folds} == {run.outcome, followed.fold.outcome, outcome}
    assert [one.outcomes for one in folds] == [{number: of for number, of, *_ in parts}] * 3
    assert [one.lost for one in folds] == [{number: words for number, of, words, *_ in parts if of == "lost"}] * 3
    assert [one.started for one in folds] == [1000.0] * 3
    assert [{number: part.heard for number, part in one.ranks.items()} for one in folds[:2]] == [
        {number: max(event.time for event in events[number]) for number in numbers}
    ] * 2
    if len(dead) < len(ranks):
        assert {run.elapsed, panel.elapsed, followed.run_state.elapsed} == {elapsed}
    assert run.fold.step == panel.fold.step == followed.fold.step
    newest = [sorted((name, *map(repr, sorted(one.newest[name].items()))) for name in one.newest) for one in folds]
    assert newest == [newest[0]] * 3
    assert [one.names for one in folds] == [list(stored_names)] * 3
    assert sorted(map(repr, run.last_values)) == sorted(map(repr, stored.last_values))
    lines = [(one.errors.keys(), one.readings.lines(), one.prompts, acts_of(one)) for one in folds]
    assert lines == [lines[0]] * 3

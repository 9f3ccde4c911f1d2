"""What happened to a run: sentences that are kept once, with the time."""

from __future__ import annotations

from jupyter_dtrain.core.events import Acted, Finished, RunContext, Started, Steered
from jupyter_dtrain.store.happenings import MOST, WIDTH, write
from jupyter_dtrain.wire.steward_messages import Followed
from tests.store.conftest import drain, points


def words(run):
    """The sentences, oldest first."""
    return [one.words for one in run.happenings]


def test_interrupts_lost_ranks_and_acts_are_kept_with_a_run(store, db, fake):
    """Whoever tells them, and however often; also where a new writer reads everything again."""
    fake.writer.happened(1, "Interrupted by the panel.")
    fake.begin(1, when=100.0)
    drain(fake.writer, db)
    act = Steered(1, "begun", 5, 4, "set", "set opt.lr=1e-4", "the notebook a")
    fake.say(1, 0, act, Steered(1, "done", 5, found=Acted(text="opt.lr: 0.1 → 0.0001")), when=104.0)
    drain(fake.writer, db)
    assert words(store.runs()[0]) == ["Interrupted by the panel."]
    fake.say(1, 1, act, Steered(1, "done", 5, found=Acted(text="opt.lr: 0.1 → 0.0001")), when=104.0)
    fake.say(1, 1, Finished("lost", 2.0, "rank 1 was killed by SIGKILL"), when=105.0)
    drain(fake.writer, db)
    fake.writer.forget()
    fake.writer.take_followed(Followed(1, interrupted=True, why="its timeout"))
    fake.finish(1, [0], "interrupted", when=106.0)
    drain(fake.writer, db)
    (run,) = store.runs()

    assert sorted(words(run)) == [
        "Interrupted by its timeout.",
        "Interrupted by the panel.",
        "Rank 1 was killed by SIGKILL.",
        "Set opt.lr=1e-4, by the notebook a: opt.lr: 0.1 → 0.0001 (ranks 0-1, after step 5).",
    ]
    assert [one.time for one in run.happenings if one.words.startswith(("Rank", "Set"))] == [104.0, 105.0]


def test_a_rank_that_its_world_has_lost_is_told_and_so_is_the_one_that_joins_in_its_place(store, db, fake):
    """In the elastic run itself: the run that joins has a number of its own."""
    fake.begin(1, elastic=True)
    drain(fake.writer, db)
    fake.writer.rank_died(1, "rank 1 was killed")
    drain(fake.writer, db)
    fake.writer.ranks_replaced([1])
    fake.begin(2, ranks=[1], joins=1)
    fake.finish(2, [1])
    fake.finish(1, [0])
    drain(fake.writer, db)
    later, first = store.runs()

    assert words(first) == ["Rank 1 was killed.", "Rank 1 has a new process, which joins the run."]
    assert words(later) == []


def test_a_run_says_that_it_goes_on_with_another_one_only_if_it_trains(store, db, fake):
    """A cell that comes between a load and the training continues nothing."""
    fake.begin(1)
    fake.say(1, 0, points("loss", [1.0]))
    fake.finish(1)
    for number in (2, 3):
        context = RunContext(resumes=f"{fake.owner.id}/1", resumed="world/1", first_step=1)
        fake.say(number, 0, Started(1, "h", "s", source="x", ranks=[0], context=context))
    fake.say(3, 0, points("loss", [1.0], 1))
    fake.finish(2, [0])
    fake.finish(3, [0])
    drain(fake.writer, db)
    third, second, first = store.runs()

    assert (second.resumes, second.first_step, words(second)) == (None, 0, [])
    assert (third.resumes, third.first_step) == (first.id, 1)
    assert words(third) == ["It goes on with run world/1, from step 1 on."]


def test_sentences_are_bounded_in_number_and_length(store, db, fake):
    """A loop that is steered for ever does not fill the disk."""
    fake.begin(1)
    drain(fake.writer, db)
    (run,) = store.runs()
    for number in range(MOST + 5):
        write(db, run.id, 1.0, f"{number} " + "x" * 2 * WIDTH)

    assert len(run.happenings) == MOST
    assert max(map(len, words(run))) == WIDTH

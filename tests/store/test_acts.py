"""What persons ask of a running loop is stored with its run, shown, and compared."""

from __future__ import annotations

from jupyter_dtrain.core.events import Acted, Error, Steered
from jupyter_dtrain.view import stored as view
from tests.store.conftest import drain, points


def steer(world, run, rank, number, words, found):
    """Have a rank do an act."""
    kind = words.partition(" ")[0]
    for event in (
        Steered(number, "held", 4, 3, kind, words, "a.ipynb"),
        Steered(number, "begun", 4, 3, kind, words, "a.ipynb"),
        Steered(number, "done", 4, found=found),
        Steered(number, "left", 4),
    ):
        world.say(run, rank, event)


def test_acts_are_stored_shown_and_compared(store, db, fake):
    """One that failed on a rank, too; a writer that goes on after a failure keeps what is there."""
    failed = Acted(ok=False, error=Error("ZeroDivisionError", "division by zero", []))
    for run in (1, 2):
        fake.begin(run)
        for rank in (0, 1):
            fake.say(run, rank, points("loss", [0.5, 0.25]))
            steer(fake, run, rank, 1, "set opt.lr=0.05", Acted(text="opt.lr: 0.1 -> 0.05"))
        drain(fake.writer, db)
        fake.writer.forget()
        for rank in (0, 1) if run == 2 else ():
            steer(fake, run, rank, 2, "between 1 / (rank - 1)", failed if rank else Acted())
        fake.finish(run)
    drain(fake.writer, db)
    second, first = store.runs()

    assert [(act.words, act.step, act.at, act.by, act.said, act.failed) for act in first.acts] == [
        ("set opt.lr=0.05", 4, 3, "a.ipynb", "opt.lr: 0.1 -> 0.05 (ranks 0-1, after step 4)", False)
    ]
    assert [(act.words, act.failed) for act in second.acts][1:] == [("between 1 / (rank - 1)", True)]
    shown = view.bundle(second)
    assert "raised on rank 1: ZeroDivisionError: division by zero. It ran on rank 0" in shown["text/plain"]
    assert "What was asked of its loop" in shown["text/html"]
    assert [mark.step for mark in view.picture(second).marks] == [3, 3]
    told = "Steered in world/2: set opt.lr=0.05 after step 4; between 1 / (rank - 1) after step 4"
    assert told in view.comparison([second, first])["text/plain"]
    second.delete()
    assert db.execute("SELECT count(*) FROM acts").fetchone() == (1,)

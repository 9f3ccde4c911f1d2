"""Text is stored in few rows, and long text without its middle."""

from __future__ import annotations

from jupyter_dtrain.core.events import Output
from jupyter_dtrain.store import text_storage
from jupyter_dtrain.wire.spool import spool_path
from tests.store.conftest import drain


def test_the_beginning_and_the_end_of_long_text_are_stored(store, db, fake):
    """They take a few rows. The text is whole as long as the spool is there; later a line says how much is missing."""
    lines = [f"line {index:06d} ä\n" for index in range(100_000)]
    fake.begin(1)
    for start in range(0, 100_000, 500):
        fake.say(1, 0, Output("stderr" if start % 1000 else "stdout", "".join(lines[start : start + 500])))
    fake.finish(1)
    drain(fake.writer, db)
    (run,) = store.runs()
    whole, errors = run.text(0), run.text(0, "stderr")
    spool_path(fake.folder, 1, 0).unlink()
    head, note, tail = run.text(0).partition("\n[… ")
    stored = db.execute("SELECT sum(length(pieces)), count(*) FROM texts").fetchone()

    assert whole == "".join(lines)
    assert errors == "".join(line for start in range(500, 100_000, 1000) for line in lines[start : start + 500])
    assert whole.startswith(head)
    assert text_storage.HEAD - 4 < len(head.encode()) <= text_storage.HEAD
    rest = tail.partition("…]\n")[2]
    assert whole.endswith(rest)
    assert text_storage.TAIL - 4 < len(rest.encode()) <= text_storage.TAIL
    assert note + tail.split()[0] == f"\n[… {len(whole.encode()) - len(head.encode()) - len(rest.encode())}"
    assert stored[0] < 1.2 * (text_storage.HEAD + text_storage.TAIL)
    assert stored[1] < 100
    assert run.tail(0, 3) == [line.rstrip() for line in lines[-3:]]


def test_text_that_trickles_is_stored_in_few_rows(store, db, fake):
    """A short line a poll, from both streams in turn."""
    fake.begin(1)
    for index in range(1000):
        fake.say(1, 0, Output("stderr" if index % 2 else "stdout", f"{index}\n"))
        fake.writer.poll(db)

    assert db.execute("SELECT count(*) FROM texts").fetchone()[0] < 20
    assert store.runs()[0].text(0) == "".join(f"{index}\n" for index in range(1000))
    assert store.runs()[0].text(0, "stderr") == "".join(f"{index}\n" for index in range(1, 1000, 2))

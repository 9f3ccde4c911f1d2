"""The store reads the spools' files: each event once, lines that it cannot read left out."""

from __future__ import annotations

from jupyter_dtrain.core.events import Display, Dropped, Output, encode
from jupyter_dtrain.store.source import LIMIT, SpoolFolder
from jupyter_dtrain.store.writer import SKIPPED, StoreWriter
from jupyter_dtrain.wire.spool import spool_path
from tests.store.conftest import drain, points


def test_a_line_that_cannot_be_read_is_passed_over(store, db, fake):
    """It may be of a newer vocabulary. The store keeps the lines that follow it."""
    fake.begin(1)
    path = spool_path(fake.folder, 1, 0)
    with open(path, "ab") as file:
        file.write(b'{"run":1,"rank":0,"seq":1,"time":1.0,"body":{"type":"telepathy"}}\nrubbish\n')
    fake.say(1, 0, Output("stdout", "after\n"))
    drain(fake.writer, db)

    assert store.runs()[0].text(0) == "after\n"


def test_an_event_that_is_larger_than_what_is_read_at_once_is_stored(store, db, fake):
    """The events that follow it are stored, too."""
    fake.begin(1)
    fake.say(1, 0, Output("stdout", "x" * (LIMIT + 5)), Output("stdout", "end\n"), Dropped(1, 1, "reason"))
    drain(fake.writer, db)

    assert store.runs()[0].text(0) == "x" * (LIMIT + 5) + "end\n"


def test_events_that_come_twice_count_once(store, db, fake):
    """The source starts over, and the events' numbers show it."""

    class Again(SpoolFolder):
        def read(self, run, rank, _position):
            return super().read(run, rank, 0)._replace(more=False)

    fake.writer = StoreWriter(fake.owner, Again(fake.folder, SKIPPED))
    fake.begin(1)
    for index in range(3):
        fake.say(1, 0, points("loss", [float(index)], index), Output("stdout", f"{index}\n"))
        fake.writer.poll(db)

    assert list(store.runs()[0].metrics["loss"][0].values) == [0.0, 1.0, 2.0]
    assert store.runs()[0].text(0) == "0\n1\n2\n"


def test_encoding_has_the_form_by_which_unwanted_events_are_passed_over(fake):
    """The source looks for the type at the beginning of a line."""
    fake.begin(1)
    fake.say(1, 0, Display({"text/plain": "x"}))
    path = spool_path(fake.folder, 1, 0)
    from jupyter_dtrain.wire.spool import read_file

    lines = [encode(event) for event in read_file(path)]
    kept = SpoolFolder(fake.folder, SKIPPED).read(1, 0, 0).events
    everything = SpoolFolder(fake.folder).read(1, 0, 0).events

    assert len(lines) == len(everything) == 2
    assert kept == everything[:1]

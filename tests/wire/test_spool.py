"""A spool keeps numbered events, whatever the disk does."""

from __future__ import annotations

import pytest

from jupyter_dtrain.core.events import Event, Finished, Output, Started, encode
from jupyter_dtrain.watch.rank_process import _said
from jupyter_dtrain.wire.spool import READ_BYTES, RING_BYTES, Spool, last_outputs, read_file, spool_path


def text(seq: int, words: str = "text\n") -> Event:
    return Event(1, 0, seq, 1000.0 + seq, Output("stdout", words))


@pytest.fixture
def spool(tmp_path):
    """An empty spool."""
    made = Spool(tmp_path / "run-1" / "rank-0.jsonl")
    yield made
    made.close()


def test_a_spool_lies_in_the_folder_of_its_run(tmp_path):
    """One file per rank."""
    assert tmp_path / "run-12" / "rank-3.jsonl" == spool_path(tmp_path, 12, 3)


def test_an_appended_event_is_in_the_file_at_once(spool):
    """It needs no flush: the process may die in the next moment."""
    events = [text(k) for k in range(3)]
    for event in events:
        spool.append(event)

    assert events == list(read_file(spool.path))
    assert events[1:] == list(read_file(spool.path, 1))


def test_the_last_words_are_as_they_were_written(spool):
    """Each stream has its own: a line in several events, with the other stream's between them, goes on in the rest."""
    pieces = [("stderr", "what(): op.pre"), ("stdout", "7\n"), ("stderr", "amble\n"), ("stdout", "8\n")]
    for seq, (stream, words) in enumerate(pieces):
        spool.append(Event(1, 0, seq, 1000.0, Output(stream, words)))
    with open(spool.path, "ab") as file:
        file.write(encode(text(9))[:-10])

    outputs = last_outputs(spool.path)

    assert [(output.stream, output.text) for output in outputs] == pieces
    assert _said(outputs, [("stderr", "8 "), ("stdout", "9"), ("stderr", "vs 4")]) == (
        "what(): op.preamble\n8 vs 4\n7\n8\n9"
    )


def test_append_returns_how_many_bytes_it_took(spool):
    """The cap counts these bytes."""
    assert len(encode(text(0))) == spool.append(text(0))


def test_only_the_user_can_read_a_spool(spool):
    """The file is 0600, its folder 0700."""
    assert spool.path.stat().st_mode & 0o777 == 0o600
    assert spool.path.parent.stat().st_mode & 0o777 == 0o700


def test_events_are_read_from_any_number_on(spool):
    """A read may begin in the middle of the index's steps."""
    events = [text(k) for k in range(1000)]
    for event in events:
        spool.append(event)

    for seq in (0, 1, 127, 128, 129, 640, 999):
        assert events[seq:] == spool.read(seq)
    assert [] == spool.read(1000)


def test_a_long_spool_is_read_in_pieces(spool):
    """Each about a megabyte; together they are all."""
    events = [text(k, "x" * 50_000) for k in range(100)]
    for event in events:
        spool.append(event)
    pieces = []
    while piece := spool.read(pieces[-1][-1].seq + 1 if pieces else 0):
        pieces.append(piece)

    assert events == [event for piece in pieces for event in piece]
    assert len(pieces) == 5
    assert all(sum(len(encode(event)) for event in piece) < READ_BYTES + 60_000 for piece in pieces)


def test_an_event_larger_than_a_piece_is_read_all_the_same(spool):
    """Each read gives at least one event."""
    event = text(0, "x" * 3 * READ_BYTES)
    spool.append(event)

    assert [event] == spool.read(0)


def test_a_line_that_is_cut_short_is_left_out(spool):
    """A rank that died in the middle of a write."""
    spool.append(text(0))
    with open(spool.path, "ab") as file:
        file.write(encode(text(1))[:20])

    assert [text(0)] == list(read_file(spool.path))


def test_a_line_that_is_no_event_ends_the_reading(spool):
    """The lines after it cannot be trusted."""
    spool.append(text(0))
    with open(spool.path, "ab") as file:
        file.write(b"garbage\n" + encode(text(1)))

    assert [text(0)] == list(read_file(spool.path))


def test_a_full_disk_turns_the_rest_into_memory(spool, file_limit):
    """Nothing raises; the file ends with a whole line; read() gives both parts in order."""
    events = [text(k, "x" * 100) for k in range(200)]
    with file_limit(10_000):
        for event in events:
            spool.append(event)
    in_file = list(read_file(spool.path))

    assert "File too large" in spool.failure
    assert 0 < len(in_file) < 200
    assert events[: len(in_file)] == in_file
    assert spool.path.read_bytes().endswith(b"\n")
    assert events == spool.read(0)
    assert events[150:] == spool.read(150)


def test_a_disk_with_room_again_is_not_written_to(spool, file_limit):
    """The file would have a hole."""
    with file_limit(100):
        spool.append(text(0, "x" * 200))
    spool.append(text(1))

    assert [] == list(read_file(spool.path))
    assert [0, 1] == [event.seq for event in spool.read(0)]


def test_memory_keeps_the_last_text_and_everything_else(spool, file_limit):
    """The ring is bounded; only text is given up."""
    started = Event(1, 0, 0, 0.0, Started(1, "host", "path"))
    finished = Event(1, 0, 200, 0.0, Finished("ok", 1.0))
    with file_limit(1):
        spool.append(started)
        for k in range(1, 200):
            spool.append(text(k, "x" * 50_000))
        spool.append(finished)
    kept, seq = [], 0
    while piece := spool.read(seq):
        kept += piece
        seq = piece[-1].seq + 1

    assert (started, finished) == (kept[0], kept[-1])
    assert RING_BYTES // 2 < sum(len(encode(event)) for event in kept) <= RING_BYTES
    assert list(range(kept[1].seq, 201)) == [event.seq for event in kept[1:]]


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path):
    """Everything is kept in memory then, with the reason."""
    (tmp_path / "file").write_text("not a folder")
    spool = Spool(tmp_path / "file" / "run-1" / "rank-0.jsonl")
    spool.append(text(0))

    assert "Not a directory" in spool.failure
    assert [text(0)] == spool.read(0)
    spool.close()


def test_a_spool_that_is_closed_can_still_be_asked(spool):
    """It answers with nothing; its file has all."""
    spool.append(text(0))
    spool.close()
    spool.close()

    assert [] == spool.read(0)
    assert [text(0)] == list(read_file(spool.path))

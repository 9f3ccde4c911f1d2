"""The copier sends each whole line of the spools once, in order, however often it is interrupted."""

from __future__ import annotations

import itertools
import os

import pytest

from jupyter_dtrain.watch import report_pipe
from jupyter_dtrain.watch.report_pipe import NEWEST, SpoolCopier


@pytest.fixture
def spool(tmp_path):
    """Writes to the file of a rank in a run."""

    def write(run, rank, text):
        path = tmp_path / f"run-{run}" / f"rank-{rank}.jsonl"
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(text)
        return path

    return write


def copied(pieces):
    """The pieces' text by run and rank, as a mirror has it."""
    found = {}
    for piece in pieces:
        before = found.get((piece.run, piece.rank), b"")
        found[piece.run, piece.rank] = before + piece.data
    return found


def test_a_reader_that_stops_after_each_piece_gets_all_once(tmp_path, spool, monkeypatch):
    """The pipe is full after each; pieces are no larger than they must be for whole lines."""
    monkeypatch.setattr(report_pipe, "PIECE", 100)
    text = "".join(f"line {number}\n" for number in range(100)) + "x" * 500 + "\n"
    spool(1, 0, text)
    spool(1, 1, "other\n")
    copier, pieces = SpoolCopier(str(tmp_path)), []
    while found := list(itertools.islice(copier.pieces(), 1)):
        pieces += found

    assert copied(pieces) == {(1, 0): text.encode(), (1, 1): b"other\n"}
    first = [piece for piece in pieces if piece.rank == 0]
    assert [piece.at for piece in first] == [0, *itertools.accumulate(len(piece.data) for piece in first[:-1])]
    assert len(first) > 8


def test_half_a_line_is_not_sent(tmp_path, spool):
    """The watch cuts it off where its writer has died, and writes on from there."""
    path = spool(1, 0, "whole\nhalf")
    copier = SpoolCopier(str(tmp_path))
    before = copied(copier.pieces())
    os.truncate(path, len("whole\n"))
    spool(1, 0, "the end\n")

    assert before == {(1, 0): b"whole\n"}
    assert copied(copier.pieces()) == {(1, 0): b"the end\n"}


def test_one_rank_can_be_asked_for_alone(tmp_path, spool):
    spool(1, 0, "a\n")
    spool(1, 1, "b\n")
    copier = SpoolCopier(str(tmp_path))

    assert copied(copier.pieces(1)) == {(1, 1): b"b\n"}
    assert copied(copier.pieces()) == {(1, 0): b"a\n"}


def test_an_early_run_that_goes_on_is_still_read(tmp_path, spool):
    """One rank is busy with it while others have run many; a run that has finished there is not looked at."""
    spool(1, 0, "begun\n")
    spool(1, 1, '{"body": {"type":"finished"}}\n')
    for run in range(2, NEWEST + 3):
        spool(run, 1, "x\n")
    copier = SpoolCopier(str(tmp_path))
    list(copier.pieces())
    spool(1, 0, "more\n")
    spool(1, 1, "late\n")

    assert copied(copier.pieces()) == {(1, 0): b"more\n"}


def test_the_backlog_of_a_rank_counts_what_was_not_given(tmp_path, spool):
    """In all its runs; those of other ranks do not count."""
    spool(1, 0, "12345678\n")
    spool(2, 0, "123\n")
    spool(2, 1, "other\n")
    copier = SpoolCopier(str(tmp_path))
    before = copier.backlog(0)
    next(copier.pieces(0))
    half = copier.backlog(0)
    list(copier.pieces(0))

    assert (before, half, copier.backlog(0), copier.backlog(7)) == (13, 9, 0, 0)

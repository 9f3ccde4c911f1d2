"""A cell shows lines of its ranks with their labels, in each rank's order, whatever happens to the painter."""

from __future__ import annotations

import logging
import re

import pytest

from jupyter_dtrain.core.events import Batch, Display, Dropped, Error, Event, Finished, Frame, Output, Result, Started
from jupyter_dtrain.core.notices import ADDRESS
from jupyter_dtrain.view.cell import LINE, SETTLING, SILENT
from jupyter_dtrain.view.lines import HOLD
from jupyter_dtrain.view.pace import Pace
from tests.view.conftest import png

KINDS = ("rank-killed", "replaced-while-others-go-on", "not-logged")


def test_a_line_that_all_ranks_print_comes_once_with_their_numbers(scene):
    """Equal lines are merged, others keep their own label."""
    s = scene(4)
    for rank in range(4):
        s.say(rank, "epoch 1\n", f"rank {rank}\n")
    assert s.painter.text().startswith("[0-3] epoch 1\n[0] rank 0\n")
    s.wait(0.05)
    assert sorted(s.painter.text().splitlines()[1:]) == [f"[{rank}] rank {rank}" for rank in range(4)]


def test_a_world_of_one_rank_has_no_labels(scene):
    """A single rank's cell looks like an ordinary one."""
    s = scene(1)
    s.say(0, "hello\n\nworld\n")
    assert s.painter.text() == "hello\n\nworld\n"


def test_one_rank_of_a_larger_world_keeps_its_label(scene):
    """A cell that runs on one rank of four says which."""
    s = scene(4, ranks=[2])
    s.say(2, "hello\n")
    assert s.painter.text() == "[2] hello\n"


def test_a_line_reaches_the_painter_within_the_hold(scene):
    """A line that no other rank joins is out after 30 ms, and the view asks for the tick that it needs."""
    s = scene(2)
    s.say(0, "hello\n")
    assert s.painter.calls == []
    assert s.view.tick(s.now) == pytest.approx(s.now + HOLD)
    s.wait(HOLD)
    assert s.painter.text() == "[0] hello\n"


def test_a_late_copy_is_shown_as_it_was_printed(scene):
    """Any word in its place would read as if the rank had printed that word."""
    s = scene(2)
    s.say(0, "hello\n")
    s.wait(1.0)
    s.say(1, "hello\n")
    assert s.painter.text() == "[0] hello\n[1] hello\n"


def test_errors_keep_their_stream(scene):
    """Standard error is painted as standard error, in its place."""
    s = scene(1)
    s.say(0, "a\n", Output("stderr", "b\n"), "c\n")
    s.wait(0.1)
    assert s.painter.calls == [("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c\n")]


def test_text_is_cut_into_lines_wherever_its_pieces_end(scene):
    """Boundaries between events mean nothing, also within a line end."""
    s = scene(1)
    s.say(0, "he", "llo\r", "\nwor")
    s.say(0, "ld\r\n", "a\rb\n", "\x1b[31mred\x1b[0m\n")
    s.wait(0.1)
    assert s.painter.text() == "hello\nworld\nb\n\x1b[31mred\x1b[0m\n"
    assert set(s.painter.kinds()) == {"stdout"}


def test_errors_are_painted_only_for_runs_without_a_waiting_cell(scene):
    """Otherwise the exception in the notebook carries them."""
    error = Error("ValueError", "bad shape", [Frame("cell", 1, "<module>", "x = 1", cell=True)])
    for flag in (False, True):
        s = scene(2, paint_errors=flag)
        s.say(0, error)
        s.say(1, Result({"text/plain": "42"}))
        s.close()
        assert ("ValueError" in s.painter.text("stderr")) == flag
        assert ("display", "[1] 42") in [call[:2] for call in s.painter.calls]


FAILED = Error("ValueError", "cause", [Frame("cell [3]", 1, "", "x = 1", cell=True)])


def test_the_error_of_a_rank_is_shown_while_others_go_on_and_is_taken_back_at_the_end(scene):
    """The report of the run has it then, once. A rank that fails later joins those that share its error."""
    s = scene(4)
    s.say(1, Started(1, "host", "/spool"), FAILED, Finished("error", 0.1))
    assert s.painter.shown == {}
    s.wait(SETTLING)
    (place,) = s.painter.shown
    text = plain(s.painter.shown[place]["text/plain"])
    assert text.startswith("ValueError on rank 1\n")
    assert text.endswith("ValueError: cause\n\nThe cell goes on until ranks 0,2-3 have ended.")

    s.say(2, FAILED, Finished("error", 0.1))
    s.wait(SETTLING)
    assert plain(s.painter.shown[place]["text/plain"]).startswith("ValueError on ranks 1-2\n")
    s.close()

    assert s.painter.shown == {place: {"text/plain": ""}}
    assert s.painter.text() == ""


def test_where_nothing_can_be_taken_back_a_failed_rank_has_one_line(scene, recorder):
    """The report at the end shows the lines of the cell."""
    s = scene(2, painter=recorder(erases=False))
    s.say(1, FAILED, Finished("error", 0.1))
    s.wait(10)
    s.close()

    assert s.painter.text("stderr") == (
        "Rank 1 has failed: ValueError: cause, in cell [3], line 1. The cell goes on until rank 0 has ended.\n"
    )


def test_errors_of_all_ranks_are_left_to_the_report(scene):
    """Mostly the run is over before the first one is shown."""
    s = scene(2)
    s.say(0, FAILED, Finished("error", 0.1))
    s.say(1, FAILED, Finished("error", 0.1))
    s.wait(SETTLING)
    s.close()

    assert s.painter.calls == []


def test_words_stand_for_as_long_as_they_are_true(scene, recorder):
    """Where they cannot be taken back, other words say so."""
    s, terminal = scene(2), scene(2, painter=recorder(erases=False))
    for one in (s, terminal):
        one.view.stand("hang", "No rank has moved.", one.now)
        one.view.stand("hang", "Rank 0 has not moved.", one.now)
        one.view.stand("hang", "", one.now, "The cell moves again.")
        one.wait(1)

    assert [call[:2] for call in s.painter.calls] == [
        ("display", "No rank has moved."),
        ("update", "Rank 0 has not moved."),
        ("update", ""),
    ]
    assert terminal.painter.text() == "No rank has moved.\nRank 0 has not moved.\nThe cell moves again.\n"


def test_a_run_that_prints_nothing_says_how_it_goes_where_there_is_no_panel(scene, recorder):
    """In one line, which other lines that are redrawn take the place of, and which is gone in the end."""
    s = scene(2, painter=recorder(erases=False), line=lambda: f"Run 1: {s.now - 100:.0f} s")
    s.wait(SILENT + 2 * LINE)
    assert [call[1] for call in s.painter.calls] == ["Run 1: 2 s", "Run 1: 3 s", "Run 1: 4 s"]

    s.say(0, "epoch 1: 10 %\r")
    s.wait(1)
    assert [call[1] for call in s.painter.calls[3:5]] == ["", "[0] epoch 1: 10 %"]
    s.say(0, "\n")
    s.wait(SILENT + 1)
    s.close()
    assert s.painter.calls[-2][1].startswith("Run 1: ")
    assert s.painter.calls[-1][1] == ""


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_text_that_was_not_kept_is_mentioned(scene):
    """A line says how much the rank's log dropped, in the place where that happened."""
    s = scene(1)
    s.say(0, Dropped(3, 2_000_000, "the disk is full"))
    assert s.painter.calls == [("stderr", "2 MB of output were not kept: the disk is full\n")]


def test_a_painter_that_fails_makes_the_view_quiet_and_is_logged_once(scene, caplog):
    """A closed terminal does not stop the run from being folded."""
    s = scene(1)
    s.painter.fails = True
    with caplog.at_level(logging.WARNING, "jupyter_dtrain"):
        for n in range(3):
            s.say(0, f"{n}\n", png("a"), Display({"text/plain": "x"}, {}, "id"))
            s.wait(1.0)
        s.close()
    assert len(caplog.records) == 1
    assert "can no longer be shown" in caplog.text


def test_text_that_no_message_can_carry_is_replaced(scene):
    """Lone surrogates, as from file names that are no UTF-8, do not break anything."""
    s = scene(1)
    s.view.feed(Batch(1, 0, 0, 0, [Event(1, 0, 0, 0.0, Output("stdout", "caf\udce9\n"))]), s.now)
    assert s.painter.text() == "caf�\n"


def test_the_order_of_a_rank_is_kept_through_everything(scene):
    """Lines, displays and lines again: each rank's own order survives merging, pace and gathering."""
    s = scene(3, pace=Pace(rate=20_000, burst=3000))
    for n in range(60):
        for rank in range(3):
            if (n + rank) % 4:
                s.say(rank, f"line {n}\n", Display({"text/plain": f"display {n}"}))
        s.wait(0.004 * (n % 7))
    s.close()
    texts = [line for call in s.painter.calls for line in call[1].splitlines()]
    for rank in range(3):
        seen = []
        for text in texts:
            ranks, kind, *n = re.fullmatch(r"\[(.*)\] (\w+|\(the same .*\)) ?(\d*)", text).groups()
            numbers = {int(part) for span in ranks.split(",") for part in range(int(span[0]), int(span[-1]) + 1)}
            if rank in numbers and not kind.startswith("(the same "):
                seen.append((int(n[0]), ["line", "display"].index(kind)))
        assert seen == sorted(seen)
        assert len(seen) > 70


def test_a_notice_says_once_where_to_read_on(scene, recorder):
    """In a notebook by a small link; where nothing can be redrawn, by the address below it."""
    page, file = scene(2), scene(2, painter=recorder(live=False, erases=False))
    for one in (page, file):
        one.view.note("Rank 1 was killed (SIGKILL). This cell goes on without it.", one.now)
        one.view.note("Rank 0 was killed (SIGKILL). This cell goes on without it.", one.now)
        one.say(0, Output("stderr", "[jupyter-dtrain] log(): 'a' is left out: it is no number\n"))
        one.say(0, Output("stderr", "log(): mine\n"))
        one.wait(2 * HOLD)
        one.close()
    pointers = [call[1] for call in page.painter.calls if call[0] == "display"]

    assert [1, 1, 1] == [file.painter.text().count(f"{ADDRESS}#{one}\n") for one in KINDS]
    assert ADDRESS not in page.painter.text()
    assert [[one in words for one in KINDS] for words in pointers] == [[True, True, False], [False, False, True]]

"""A cell shows what its ranks print, in order, at once, and in bounded bytes."""

from __future__ import annotations

import logging
import re

import pytest

from jupyter_dtrain.core.events import (
    Batch,
    ClearOutput,
    Display,
    Dropped,
    Error,
    Event,
    Frame,
    Output,
    Result,
    Started,
    Totals,
)
from jupyter_dtrain.view.lines import HOLD
from jupyter_dtrain.view.pace import ENVELOPE, Pace

WIDGET = "application/vnd.jupyter.widget-view+json"


def png(data: str) -> Display:
    return Display({"image/png": data, "text/plain": "<Figure>"})


def test_what_all_ranks_print_comes_once_with_their_numbers(scene):
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
    """A line that nobody joins is out after 30 ms, and the view asks for the tick that it needs."""
    s = scene(2)
    s.say(0, "hello\n")
    assert s.painter.calls == []
    assert s.view.tick(s.now) == pytest.approx(s.now + HOLD)
    s.wait(HOLD)
    assert s.painter.text() == "[0] hello\n"


def test_a_late_copy_is_called_the_same(scene):
    """The text is not repeated for a rank that prints it later."""
    s = scene(2)
    s.say(0, "hello\n")
    s.wait(1.0)
    s.say(1, "hello\n")
    assert s.painter.text() == "[0] hello\n[1] same\n"


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


def test_an_unfinished_line_is_shown_after_a_while_and_finished_in_place(scene):
    """A prompt without a line end is seen while the cell runs."""
    s = scene(2)
    s.say(0, "loading ...")
    s.wait(0.1)
    assert s.painter.calls == []
    s.wait(0.2)
    (display_id,) = s.painter.shown
    assert s.painter.shown[display_id] == {"text/plain": "[0] loading ..."}
    s.say(0, " done\nnext\n")
    s.wait(HOLD)
    assert s.painter.shown[display_id] == {"text/plain": "[0] loading ... done"}
    assert s.painter.settled == [display_id]
    assert s.painter.text() == "[0] next\n"


def test_an_unfinished_line_of_another_rank_comes_when_it_is_complete(scene):
    """Only one line is watched; the others are not lost."""
    s = scene(2)
    s.say(0, "loading")
    s.say(1, "loading")
    s.wait(0.5)
    assert len(s.painter.shown) == 1
    s.say(1, " one\n")
    s.wait(HOLD)
    assert s.painter.text() == "[1] loading one\n"


def test_a_progress_bar_is_one_display_updated_four_times_a_second(scene):
    """The bar shows at once, moves at most 4 times a second and ends in its last state."""
    s = scene(2)
    for percent in range(100):
        for rank in range(2):
            s.say(rank, Output("stderr", f"\r{percent}% of {rank}"))
        if percent == 0:
            assert s.painter.calls[0][:2] == ("display", "[0] 0% of 0")
        s.wait(0.02)
    moves = s.painter.kinds().count("update")
    assert 6 <= moves <= 9
    for rank in range(2):
        s.say(rank, Output("stderr", f"\r100% of {rank}\n"))
    s.wait(HOLD)
    assert list(s.painter.shown.values()) == [{"text/plain": "[0] 100% of 0"}]
    assert s.painter.text() == ""


def test_bars_that_end_with_a_carriage_return_show_their_text(scene):
    """print(..., end="\\r") leaves the cursor at the beginning of a line that is still there."""
    s = scene(1)
    s.say(0, "10%\r")
    s.say(0, "20%\r")
    s.wait(0.3)
    assert list(s.painter.shown.values()) == [{"text/plain": "20%"}]


def test_a_bar_stays_below_the_lines_that_its_rank_printed_before(scene):
    """Held lines go first."""
    s = scene(2)
    s.say(0, "epoch 1\n", Output("stderr", "\r0%"))
    s.wait(HOLD)
    assert [call[1] for call in s.painter.calls] == ["[0] epoch 1\n", "[0] 0%"]


def test_the_bar_of_the_lowest_rank_takes_the_place_of_another(scene):
    """Whoever comes first, in the end it is the lowest rank's."""
    s = scene(2)
    s.say(1, Output("stderr", "\r0% of 1"))
    s.wait(0.3)
    s.say(0, Output("stderr", "\r0% of 0"))
    assert list(s.painter.shown.values()) == [{"text/plain": "[0] 0% of 0"}]
    s.say(1, Output("stderr", "\r100% of 1\n"))
    s.wait(0.1)
    assert s.painter.text() == ""


def test_nested_bars_do_not_make_a_display_each_time(scene):
    """Two tqdm bars step up and down between lines: that is one live line, not hundreds."""
    s = scene(1)
    s.say(0, Output("stderr", "\router: 0%"))
    for n in range(50):
        s.say(0, Output("stderr", f"\n\rinner: {n}%\x1b[A"))
        s.wait(0.1)
    assert len(s.painter.shown) == 2


def test_the_line_after_nested_bars_is_a_line_of_its_own(scene):
    """The outer bar's end is left, and what follows does not overwrite it."""
    s = scene(1)
    s.say(0, Output("stderr", "\router: 0%\n\rinner: 0%\x1b[A"))
    s.say(0, Output("stderr", "\n\r        \r\x1b[A\router: 100%\n"))
    s.say(0, Output("stderr", "done\n"))
    s.close()
    assert [data["text/plain"] for data in s.painter.shown.values()] == ["outer: 100%"]
    assert s.painter.text() == "outer: 0%\ndone\n"


def test_a_line_printed_through_a_bar_is_a_line_on_all_ranks(scene):
    """tqdm.write erases the bar, prints, and draws the bar again."""
    s = scene(2)
    for rank in range(2):
        s.say(rank, f"\r50% of {rank}")
    for rank in range(2):
        s.say(rank, f"\r           \rmessage\n\r60% of {rank}")
    s.wait(0.3)
    assert s.painter.text() == "[0-1] message\n"
    assert list(s.painter.shown.values()) == [{"text/plain": "[0] 60% of 0"}]


def test_bars_that_erase_themselves_use_one_display(scene):
    """tqdm(leave=False) in a loop does not add an output for each round."""
    s = scene(2)
    for n in range(20):
        for rank in range(2):
            s.say(rank, f"\r{n}: 100%\r       \r")
            s.say(rank, f"\r{n}: 50%")
        s.wait(0.3)
        for rank in range(2):
            s.say(rank, "\r       \r")
    s.close()
    assert [data["text/plain"] for data in s.painter.shown.values()] == ["[0] 19: 50%"]
    assert s.painter.text() == ""


def test_the_bar_of_a_higher_rank_shows_once_the_lower_rank_has_none(scene):
    """A bar that only rank 1 has is not hidden for good by one that rank 0 had."""
    for end in ("\n", "\r          \r"):
        s = scene(2)
        s.say(0, Output("stderr", "\r50%"))
        s.say(0, Output("stderr", f"\r100%{end}"))
        s.say(1, Output("stderr", "\rmine: 1%"))
        s.wait(1.0)
        assert len(s.painter.shown) == 1
        s.wait(2.0)
        assert list(s.painter.shown.values())[1] == {"text/plain": "[1] mine: 1%"}


def test_where_nothing_can_be_redrawn_a_bar_is_its_last_line(scene, recorder):
    """A file gets the final state of the lowest rank's bar, and no passing ones."""
    s = scene(2, painter=recorder(live=False))
    for percent in (0, 50, 100):
        for rank in range(2):
            s.say(rank, Output("stderr", f"\r{percent}% of {rank}"))
        s.wait(1.0)
    for rank in range(2):
        s.say(rank, Output("stderr", "\n"))
    s.wait(HOLD)
    assert s.painter.calls == [("stderr", "[0] 100% of 0\n")]


def test_unfinished_lines_are_shown_when_the_run_ends(scene):
    """Text without a last line end is not lost, and merged like any other."""
    s = scene(3)
    for rank in range(3):
        s.say(rank, "bye")
    s.close()
    assert s.painter.text() == "[0-2] bye\n"


def test_a_rank_that_ends_has_its_unfinished_line_shown(scene):
    """Nobody has to wait for the end of the whole run."""
    s = scene(2)
    s.say(1, "bye")
    s.view.idle(1, s.now)
    s.wait(HOLD)
    assert s.painter.text() == "[1] bye\n"


def test_beyond_the_limit_one_display_tells_of_the_rest(scene):
    """Text stops at the limit; one display says how much there is, where, and the last lines."""
    s = scene(2, shown_bytes=1000)
    for rank in range(2):
        s.say(rank, Started(1, "host", f"/spool/r{rank}"))
    for n in range(500):
        for rank in range(2):
            s.say(rank, f"line {n} of {rank} " + "x" * (1000 if n == 499 else 10) + "\n")
        s.wait(0.01)
    s.close()
    assert 900 < len(s.painter.text()) <= 1000
    (notice,) = s.painter.shown.values()
    words = notice["text/plain"]
    assert words.startswith("Ranks 0-1 printed 26.8 kB ")
    assert " in 1,000 lines; 9" in words
    assert "so far" not in words
    assert "rank 0: /spool/r0\nrank 1: /spool/r1\n" in words
    assert "Run.text(0)" in words
    assert "[0] line 498 of 0 xxxxxxxxxx\n" in words
    assert max(map(len, words.splitlines())) <= 404
    assert len(words.splitlines()) < 26
    kinds = s.painter.kinds()
    assert kinds.count("display") == 1
    assert kinds.count("update") <= 12


def test_where_nothing_can_be_redrawn_the_notice_comes_once_at_the_end(scene, recorder):
    """A file is not filled with passing states."""
    s = scene(1, painter=recorder(live=False), shown_bytes=100)
    for _ in range(50):
        s.say(0, "a line of text\n")
        s.wait(0.3)
    assert "display" not in s.painter.kinds()
    s.close()
    assert s.painter.kinds().count("display") == 1


def test_totals_stand_for_text_that_was_left_out(scene):
    """Past the wire's budget the rank's own counts and last lines are shown."""
    s = scene(2)
    s.say(0, "begin\nhalf a li")
    s.say(0, omitted=50, totals=Totals(5_000_000, 70_000, ["almost", "last"]))
    s.wait(HOLD)
    assert s.painter.text() == "[0] begin\n[0] half a li\n"
    (notice,) = s.painter.shown.values()
    assert notice["text/plain"].startswith("Rank 0 printed 5 MB in 70,000 lines so far; ")
    assert notice["text/plain"].endswith("[0] almost\n[0] last")
    s.say(0, "after\n")
    s.say(1, "I go on\n")
    s.wait(0.6)
    assert s.painter.text() == "[0] begin\n[0] half a li\n[1] I go on\n"
    (notice,) = s.painter.shown.values()
    assert "[0] last\n[0] after\n[1] I go on" in notice["text/plain"]


def test_totals_of_a_batch_that_left_nothing_out_change_nothing(scene):
    """Counts alone do not stop the text."""
    s = scene(1)
    s.say(0, "a\n", totals=Totals(2, 1, ["a"]))
    s.say(0, "b\n", totals=Totals(4, 2, ["a", "b"]))
    s.wait(0.1)
    assert s.painter.calls == [("stdout", "a\n"), ("stdout", "b\n")]


def test_a_monstrous_line_is_cut_and_its_rest_is_not_kept(scene):
    """10 MB without a line end cost no more memory than any text."""
    s = scene(1, shown_bytes=200_000)
    for _ in range(160):
        s.say(0, "é" * 31_250)
        assert sum(len(part) for part in s.view._splitters[0, "stdout"]._parts) < 64_000
    s.close()
    assert max(len(line.encode()) for line in s.painter.text().splitlines()) <= 65_536
    assert set(s.painter.text()) == {"é", "\n"}
    assert 100_000 < len(s.painter.text().encode()) <= 200_000


def test_a_monstrous_line_that_comes_in_one_piece_is_cut_as_well(scene):
    """Whether a line end is in front of it or behind it."""
    for text in ("a\n" + "x" * 1_000_000, "x" * 1_000_000 + "\n"):
        s = scene(1, shown_bytes=5_000_000)
        s.say(0, text)
        assert sum(len(part) for part in s.view._splitters[0, "stdout"]._parts) < 64_000
        s.close()
        assert s.painter.text().count("x") == 1_000_000
        assert max(map(len, s.painter.text().splitlines())) <= 64_000


def test_many_lines_cost_at_most_twice_their_bytes(scene):
    """2 ranks x 400 lines x 60 characters, with the envelopes of the messages."""
    s = scene(2)
    payload = 0
    for n in range(0, 400, 10):
        for rank in range(2):
            lines = "".join(f"{rank} {n + k} ".ljust(59, ".") + "\n" for k in range(10))
            payload += len(lines)
            s.say(rank, lines)
        s.wait(0.01)
    s.close()
    cost = sum(len(text) + ENVELOPE for _, text in s.painter.calls)
    assert len(s.painter.text().splitlines()) == 800
    assert cost <= 2 * payload
    print(f"{payload} bytes printed, {cost} sent in {len(s.painter.calls)} messages")


def test_text_after_a_quiet_time_goes_at_once_and_then_together(scene):
    """The first line does not wait to be gathered; the next ones do, up to 50 ms."""
    s = scene(1)
    s.say(0, "first\n")
    assert s.painter.calls == [("stdout", "first\n")]
    s.say(0, "second\n")
    s.now += 0.02
    s.say(0, "third\n")
    assert len(s.painter.calls) == 1
    s.wait(0.031)
    assert s.painter.calls[1:] == [("stdout", "second\nthird\n")]


def test_messages_are_of_bounded_size(scene):
    """No stream message is larger than 64 kB."""
    s = scene(1)
    s.say(0, "".join(f"line {n}\n" for n in range(30_000)))
    s.close()
    assert max(len(text) for _, text in s.painter.calls) <= 65_536
    assert s.painter.text() == "".join(f"line {n}\n" for n in range(30_000))


def test_what_the_pace_does_not_let_through_waits_and_is_not_dropped(scene):
    """Text is late rather than lost; the end waits for the pace, in small steps and not for long."""
    s = scene(1, pace=Pace(rate=100_000, burst=100_000))
    text = "".join(f"line {n}\n" for n in range(40_000))
    s.say(0, text)
    early = len(s.painter.text())
    assert early < 101_000
    s.wait(1.0)
    assert early < len(s.painter.text()) < 220_000
    s.close()
    assert s.painter.text() == text
    assert 1.0 < s.slept <= 3.05


def test_a_terminal_does_not_wait(scene, recorder):
    """There is no server that drops output."""
    s = scene(1, painter=recorder(paced=False), pace=Pace(rate=1, burst=1))
    s.say(0, "a\n" * 10_000)
    s.close()
    assert s.slept == 0.0


def test_equal_displays_come_once_below_their_label(scene):
    """A picture that all ranks show is one picture, and its metadata says whose."""
    s = scene(3)
    for rank in range(3):
        s.say(rank, "before\n", png("AA"), "after\n")
    s.wait(0.1)
    assert [call[1] for call in s.painter.calls] == ["[0-2] before\n[0-2]\n", "<Figure>", "[0-2] after\n"]
    assert s.painter.metadata == [{"dtrain": {"ranks": [0, 1, 2]}}]


def test_a_display_of_one_rank_says_whose_it_is(scene):
    """Rich outputs get a label line, a line of text gets its label inline."""
    s = scene(2)
    s.say(1, png("AA"), Display({"text/plain": "42"}), Display({"text/plain": "a\nb"}))
    s.wait(0.1)
    assert [call[1] for call in s.painter.calls] == ["[1]\n", "<Figure>", "[1] 42", "[1]\n", "a\nb"]
    assert s.painter.metadata[0] == {"dtrain": {"rank": 1}}


def test_display_ids_of_different_ranks_do_not_collide(scene):
    """Each rank updates its own display."""
    s = scene(2)
    for rank in range(2):
        s.say(rank, Display({"text/plain": f"begin {rank}"}, {}, "same-id"))
    s.say(1, Display({"text/plain": "end 1"}, {}, "same-id", update=True))
    assert [data["text/plain"] for data in s.painter.shown.values()] == ["[0] begin 0", "[1] end 1"]


def test_an_update_of_something_never_displayed_is_displayed(scene):
    """A handle from an earlier cell still shows what it is given."""
    s = scene(1)
    s.say(0, Display({"text/plain": "x"}, {}, "old", update=True))
    s.say(0, Display({"text/plain": "y"}, {}, "old", update=True))
    assert [call[:2] for call in s.painter.calls] == [("display", "x"), ("update", "y")]


def test_a_plot_that_is_drawn_anew_stays_one_output(scene):
    """clear_output(wait=True) and display, in a loop on two ranks, make two outputs."""
    s = scene(2)
    for n in range(5):
        for rank in range(2):
            s.say(rank, ClearOutput(wait=True), png(f"plot {n} of {rank}"))
        s.wait(0.1)
    assert [data["image/png"] for data in s.painter.shown.values()] == ["plot 4 of 0", "plot 4 of 1"]
    assert s.painter.text() == "[0]\n[1]\n"


def test_clearing_without_wait_empties_the_displays_at_once(scene):
    """What was cleared is gone before anything new comes."""
    s = scene(1)
    s.say(0, png("a"), png("b"), ClearOutput())
    assert list(s.painter.shown.values()) == [{"text/plain": ""}] * 2
    s.say(0, png("c"))
    assert [data.get("image/png") for data in s.painter.shown.values()] == ["c", None]


def test_what_a_clearing_with_wait_leaves_unused_is_emptied(scene):
    """Two pictures, then one: the second is gone once the new one is there, and not before."""
    s = scene(1)
    s.say(0, png("a"), png("b"), ClearOutput(wait=True))
    assert [data.get("image/png") for data in s.painter.shown.values()] == ["a", "b"]
    s.say(0, png("c"))
    assert [data.get("image/png") for data in s.painter.shown.values()] == ["c", None]


def test_a_shared_picture_goes_when_the_last_of_its_ranks_has_cleared(scene):
    """One rank cannot take away what others still show."""
    s = scene(2)
    for rank in range(2):
        s.say(rank, png("shared"))
    s.say(0, ClearOutput(), png("new of 0"))
    assert [data.get("image/png") for data in s.painter.shown.values()] == ["shared", "new of 0"]
    s.say(1, ClearOutput())
    assert [data.get("image/png") for data in s.painter.shown.values()] == [None, "new of 0"]


def test_widgets_of_ranks_show_as_their_text(scene):
    """A widget that nobody can answer for is left out; what is left is shown."""
    s = scene(1)
    s.say(0, Display({WIDGET: {"model_id": "x"}, "text/plain": "IntSlider()"}), Display({WIDGET: {}}))
    assert [call[:2] for call in s.painter.calls] == [("display", "IntSlider()")]


def test_equal_results_come_once_at_the_end(scene):
    """Results are grouped by their value, in the order of the lowest ranks."""
    s = scene(4)
    for rank in range(4):
        s.say(rank, Result({"text/plain": "7" if rank == 1 else "42"}))
    assert s.painter.calls == []
    s.close()
    assert [call[:2] for call in s.painter.calls] == [("display", "[0,2-3] 42"), ("display", "[1] 7")]


def test_results_of_several_lines_and_rich_results_have_their_label_above(scene):
    """A table is not torn by a label."""
    s = scene(2)
    s.say(0, Result({"text/plain": "a\nb"}))
    s.say(1, Result({"text/plain": "t", "text/html": "<table>"}))
    s.close()
    assert [call[:2] for call in s.painter.calls] == [("display", "[0]\na\nb"), ("stdout", "[1]\n"), ("display", "t")]


def test_errors_are_painted_only_for_runs_that_nobody_waits_for(scene):
    """Otherwise the exception in the notebook carries them."""
    error = Error("ValueError", "bad shape", [Frame("cell", 1, "<module>", "x = 1", cell=True)])
    for flag in (False, True):
        s = scene(2, paint_errors=flag)
        s.say(0, error)
        s.say(1, Result({"text/plain": "42"}))
        s.close()
        assert ("ValueError" in s.painter.text("stderr")) == flag
        assert ("display", "[1] 42") in [call[:2] for call in s.painter.calls]


def test_text_that_was_not_kept_is_spoken_of(scene):
    """What the rank's log dropped is said where it happened."""
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
            ranks, kind, *n = re.fullmatch(r"\[(.*)\] (\w+) ?(\d*)", text).groups()
            numbers = {int(part) for span in ranks.split(",") for part in range(int(span[0]), int(span[-1]) + 1)}
            if rank in numbers and kind != "same":
                seen.append((int(n[0]), ["line", "display"].index(kind)))
        assert seen == sorted(seen)
        assert len(seen) > 70

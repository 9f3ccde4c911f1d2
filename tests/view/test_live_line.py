"""An unfinished line and a progress bar are one display, updated in place."""

from __future__ import annotations

from jupyter_dtrain.core.events import Output
from jupyter_dtrain.view.lines import HOLD


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
    """Any rank may come first; in the end the bar is the lowest rank's."""
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
    """The line does not wait for the end of the whole run."""
    s = scene(2)
    s.say(1, "bye")
    s.view.idle(1, s.now)
    s.wait(HOLD)
    assert s.painter.text() == "[1] bye\n"

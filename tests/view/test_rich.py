"""Displays and results of the ranks: equal ones once, each below its label, updated and cleared in place."""

from __future__ import annotations

from jupyter_dtrain.core.events import ClearOutput, Display, Result
from tests.view.conftest import Recorder, png

WIDGET = "application/vnd.jupyter.widget-view+json"


def test_equal_displays_come_once_below_their_label(scene):
    """A picture that all ranks show is one picture, and its metadata says whose."""
    s = scene(3)
    for rank in range(3):
        s.say(rank, "before\n", png("AA"), "after\n")
    s.wait(0.1)
    assert [call[1] for call in s.painter.calls] == ["[0-2] before\n", "[0-2]", "<Figure>", "[0-2] after\n"]
    assert s.painter.metadata == [
        {"dtrain": {"ranks": [0, 1, 2], "caption": True}},
        {"dtrain": {"ranks": [0, 1, 2]}},
    ]


def test_a_label_above_a_display_is_text_where_displays_cannot_be_redrawn(scene):
    """A file or a capture of text has the label; no display of its own goes to a publisher."""
    s = scene(2, painter=Recorder(live=False))
    s.say(1, png("AA"))
    s.say(0, Result({"text/plain": "t", "text/html": "<table>"}))
    s.close()
    assert [call[:2] for call in s.painter.calls] == [
        *(("stdout", "[1]\n"), ("display", "<Figure>")),
        *(("stdout", "[0]\n"), ("display", "t")),
    ]


def test_a_display_of_one_rank_says_whose_it_is(scene):
    """Rich outputs get a label line, a line of text gets its label inline."""
    s = scene(2)
    s.say(1, png("AA"), Display({"text/plain": "42"}), Display({"text/plain": "a\nb"}))
    s.wait(0.1)
    assert [call[1] for call in s.painter.calls] == ["[1]", "<Figure>", "[1] 42", "[1]", "a\nb"]
    assert s.painter.metadata[:2] == [{"dtrain": {"rank": 1, "caption": True}}, {"dtrain": {"rank": 1}}]


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
    assert [call[1] for call in s.painter.calls if call[0] == "display"] == ["[0]", "<Figure>", "[1]", "<Figure>"]


def test_clearing_without_wait_empties_the_displays_at_once(scene):
    """A cleared display is gone before anything new comes."""
    s = scene(1)
    s.say(0, png("a"), png("b"), ClearOutput())
    assert list(s.painter.shown.values()) == [{"text/plain": ""}] * 2
    s.say(0, png("c"))
    assert [data.get("image/png") for data in s.painter.shown.values()] == ["c", None]


def test_displays_that_a_clearing_with_wait_leaves_unused_are_emptied(scene):
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
    """A widget that no kernel can answer for is left out; the rest is shown."""
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
    assert [call[:2] for call in s.painter.calls] == [("display", "[0]\na\nb"), ("display", "[1]"), ("display", "t")]

"""Displays and results of the ranks: equal ones once, each below its label, updated and cleared in place."""

from __future__ import annotations

import pytest

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


def test_a_label_names_the_ranks_that_still_show_the_output(scene):
    """Ranks leave a shared output one by one, and it is never labelled with one that has left."""
    s = scene(3)
    for rank in range(3):
        s.say(rank, png("shared"), Display({"text/plain": "a line"}))
    seen = [[*s.painter.captions.values(), *s.painter.text_of_shown()]]
    for rank in range(2):
        s.say(rank, ClearOutput(wait=True))
        seen.append([*s.painter.captions.values(), *s.painter.text_of_shown()])
    assert seen == [
        ["[0-2]", "<Figure>", "[0-2] a line"],
        ["[1-2]", "<Figure>", "[1-2] a line"],
        ["[2]", "<Figure>", "[2] a line"],
    ]
    for rank in range(3):
        s.say(rank, ClearOutput(wait=True), png(f"of {rank}"))
    s.close()
    assert sorted(s.painter.captions.values()) == ["[0]", "[1]", "[2]"]
    assert sorted(data.get("image/png", "") for data in s.painter.shown.values()) == ["", "of 0", "of 1", "of 2"]


@pytest.mark.parametrize(
    "data",
    [
        {"text/plain": ""},
        {"text/html": "", "text/plain": "<HTML object>"},
        {"text/html": '<pre style="white-space:pre"></pre>\n', "text/plain": ""},
        {"text/html": "<style>p {}</style><script>go()</script>", "text/plain": "<HTML object>"},
        {"text/plain": "\x1b[0m\n"},
    ],
)
def test_an_output_without_visible_content_has_no_label_until_it_has_some(scene, data):
    """Nothing to see is nobody's; once a rank fills it, the label is above."""
    s = scene(2)
    s.say(1, Display(data), Display(data, {}, "later"))
    s.wait(0.1)
    assert [text for text in [*s.painter.captions.values(), *s.painter.text_of_shown()] if "[1]" in text] == []
    assert list(s.painter.shown.values()) == [data] * 2
    s.say(1, Display({"text/html": "<b>2</b>", "text/plain": "2"}, {}, "later", update=True))
    assert "[1]" in [*s.painter.captions.values()] or "[1] 2" in s.painter.text_of_shown()


def test_an_update_reaches_the_output_of_an_earlier_cell(scene):
    """Its rank's label stays, and the later cell gets no output for it."""
    known, kernel = {}, Recorder()
    first = scene(2, painter=kernel, known=known)
    for rank in range(2):
        first.say(rank, Display({"text/plain": f"begun {rank}"}, {}, "progress"))
    first.close()
    before = kernel.kinds().count("display")
    later = scene(2, painter=kernel, known=known)
    for rank in range(2):
        later.say(rank, Display({"text/plain": f"done {rank}"}, {}, "progress", update=True))
    later.close()
    assert kernel.text_of_shown() == ["[0] done 0", "[1] done 1"]
    assert kernel.kinds().count("display") == before


def test_an_update_of_a_cleared_output_is_displayed(scene):
    """Also in a later cell."""
    known = {}
    first = scene(1, known=known)
    first.say(0, Display({"text/plain": "x"}, {}, "progress"), ClearOutput())
    first.close()
    later = scene(1, known=known)
    later.say(0, Display({"text/plain": "y"}, {}, "progress", update=True))
    assert [call[:2] for call in later.painter.calls] == [("display", "y")]


def test_lines_printed_after_clearing_are_cleared_again(scene):
    """A loop that clears and prints shows its newest lines: once those that ranks print alike."""
    s = scene(2)
    for rank in range(2):
        s.say(rank, "above\n")
    for n in range(5):
        for rank in range(2):
            s.say(rank, ClearOutput(wait=True), f"step {n}\n", f"rank {rank}\n")
            s.wait(0.05)
        s.wait(0.5)
        (page,) = s.painter.text_of_shown()
        assert sorted(page.splitlines()) == sorted([f"[0-1] step {n}", "[0] rank 0", "[1] rank 1"])
    s.close()
    assert s.painter.text() == "[0-1] above\n"


def test_lines_of_a_cell_that_clears_are_cleared_from_the_first_on(scene):
    """Where the source of the cell says that it clears, its first lines can go, too."""
    s = scene(1, clears=True)
    s.say(0, "first\n", ClearOutput(wait=True))
    s.wait(0.2)
    assert s.painter.text_of_shown() == ["first"]
    s.say(0, png("a"))
    s.close()
    assert s.painter.text_of_shown() == ["", "<Figure>"]


def test_a_rank_that_clears_once_and_prints_much_prints_to_the_stream(scene):
    """What is redrawn is bounded, so bytes grow with what is printed; nothing is lost."""
    s = scene(1)
    s.say(0, ClearOutput())
    lines = [f"line {n}" for n in range(5000)]
    for line in lines:
        s.say(0, line + "\n")
        s.wait(0.2)
    s.close()
    sent = sum(len(call[1]) for call in s.painter.calls)
    assert [*s.painter.text_of_shown()[0].splitlines(), *s.painter.text().splitlines()] == lines
    assert sent < 10 * len("\n".join(lines))


def test_a_line_takes_the_place_of_a_cleared_picture(scene):
    """The picture is gone once the cell has ended, or the next clearing has come."""
    s = scene(1)
    s.say(0, png("a"), ClearOutput(wait=True), "no picture\n")
    s.close()
    assert [data.get("image/png") for data in s.painter.shown.values()] == [None, None]


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

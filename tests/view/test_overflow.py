"""Text beyond the limit is counted, and one display describes it."""

from __future__ import annotations

from jupyter_dtrain.core.events import Started, Totals
from jupyter_dtrain.view.lines import HOLD


def test_beyond_the_limit_one_display_describes_the_rest(scene):
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

"""Stored runs are found by number and by name, and shown in bounded tables."""

from __future__ import annotations

import json
import math
import re
import sqlite3
import sys
import time
from html.parser import HTMLParser

import pytest

from jupyter_dtrain import BadRequest, Store, compare
from jupyter_dtrain.core.events import Error, Output
from jupyter_dtrain.core.processes import own_process
from jupyter_dtrain.view import stored as view
from tests.store.conftest import drain, gone_process, points


@pytest.fixture
def filled(store, db, make_world):
    """By id: 1 is world/1, 2 world/2, 3 run 1 of a later world of that name, 4 is other/1."""
    for name, numbers in (("world", (1, 2)), ("world", (1,)), ("other", (1,))):
        world = make_world(name=name)
        for number in numbers:
            world.begin(number, f"# a comment\ncell = {name!r}, {number}\n")
            world.finish(number)
            drain(world.writer, db)
    return store


@pytest.mark.parametrize(
    ("name", "run"),
    [(1, 4), ("1", 4), (2, 2), (" 02 ", 2), ("world/2", 2), ("world/1", 3), ("other/1", 4)],
)
def test_a_run_is_found_by_number_and_by_name(filled, name, run):
    """Where several runs have the number, the newest counts, or that of the world where the person is."""
    assert filled.run(name).id == filled[name].id == run
    assert filled.run("1", filled.run_with_id(1).world_id).id == 1
    assert filled.run("2", filled.run_with_id(4).world_id).id == 2


def test_a_run_is_found_by_its_worlds_id(filled):
    """The id is unique."""
    first = filled.run_with_id(1)

    assert filled.run(f"{first.world_id}/1").id == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("5", "There is no run 5 in the store. The newest is other/1."),
        (0, "There is no run 0"),
        ("#1", "'#1' names no run"),
        ("world/9", "There is no run world/9 in the store. World 'world' has the runs 1-2: world/1 is the newest"),
        ("nobody/1", "There is no run nobody/1 in the store."),
        ("world", r"'world' names no run. .*WORLD/RUN.*\(world/3\).* World 'world' has the runs 1-2"),
        ("", "'' names no run"),
        ("-1", "'-1' names no run"),
        ("1.5", "'1.5' names no run"),
        ("1/2/3", "'1/2/3' names no run"),
        ("a b/1", "'a b/1' names no run"),
        ("#" + "9" * 30, "names no run"),
        (None, "None.* names no run"),
        (True, "True.* names no run"),
    ],
)
def test_a_name_of_no_run_is_refused_with_the_runs_that_exist(filled, name, words):
    """Numbers that are too large, worlds without a run, nonsense."""
    with pytest.raises(BadRequest, match=words):
        filled.run(name)


def test_an_empty_store_says_so(store, db):
    """A store that is not there at all does so, too."""
    with pytest.raises(BadRequest, match="no run 1 in the store, which is empty"):
        store.run(1)
    with pytest.raises(BadRequest, match="which is empty"):
        Store(store.path.with_name("other")).run(1)


def test_runs_are_listed_newest_first(filled):
    """The caller may limit their number, and choose a world's name."""
    assert [run.id for run in filled.runs()] == [4, 3, 2, 1]
    assert [run.id for run in filled.runs(2)] == [4, 3]
    assert [run.id for run in filled.runs(world="world")] == [3, 2, 1]
    assert filled.runs(world="nobody") == []
    assert [run.id for run in filled.runs(10**30)] == [4, 3, 2, 1]
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(BadRequest, match="whole number above 0"):
            filled.runs(wrong)


def test_the_ranks_that_a_cell_did_not_run_on_are_no_keys(filled):
    """The attributes are those of a Run."""
    with pytest.raises(KeyError):
        filled.run(1).text(7)
    with pytest.raises(KeyError):
        filled.run(1).tail(7)


class Checker(HTMLParser):
    """Notes the tags that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag, _attrs) -> None:
        self.open.append(tag)
        self.wrong += [tag] if tag in ("script", "img") else []

    def handle_endtag(self, tag) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def check(html: str) -> None:
    """``html`` is well formed, and nothing in it came from a rank."""
    checker = Checker()
    checker.feed(html)
    assert (checker.open, checker.wrong) == ([], [])


def test_a_run_shows_its_cell_outcome_metrics_and_the_end_of_its_output(store, db, fake):
    """It is text, and HTML in which no text of the user's is markup."""
    fake.begin(3, "print('<script>')\n" + "line\n" * 20)
    for rank in (0, 1):
        fake.say(3, rank, Output("stdout", "".join(f"\x1b[31mline {n}\x1b[0m <img>\n" for n in range(30))))
        fake.say(
            3,
            rank,
            points("<b>loss</b>", [2.0, 0.5 + rank]),
            points("only", [1.0]) if rank else points("nan", [math.nan]),
        )
        fake.say(3, rank, Error("ValueError", "<bad>", []))
    fake.finish(3, outcome="error")
    drain(fake.writer, db)
    data = store.run("world/3")._repr_mimebundle_()
    text = data["text/plain"]

    assert text.startswith("Run world/3 (print('<script>')): error, 1.5 s on ranks 0-1, started ")
    assert "    print('<script>')\n" in text
    assert "… 9 more lines" in text
    assert "Ranks 0-1: ValueError: <bad>" in text
    assert re.search(r"^<b>loss</b> +4 +0\.5 +1\.5$", text, re.MULTILINE)
    assert re.search(r"^only +1 +- +1$", text, re.MULTILINE)
    assert re.search(r"^nan +1 +NaN +-$", text, re.MULTILINE)
    assert text.endswith("".join(f"\n[0-1] line {n} <img>" for n in range(20, 30)))
    check(data["text/html"])


def test_the_text_of_a_run_is_bounded_whatever_was_logged(store, db, make_world):
    """64 ranks, 500 metrics, long names, lines and messages."""
    world = make_world(size=64)
    world.begin(1, "x" * 5000)
    for rank in range(64):
        for index in range(500 if rank == 0 else 3):
            world.say(1, rank, points(f"{index:04d}" + "n" * 190, [float(rank)]))
        world.say(1, rank, Output("stdout", f"{rank}" + "y" * 100_000), Error("E", f"{rank}" + "z" * 10_000, []))
    world.finish(1, outcome="error")
    drain(world.writer, db)
    run = store.run(1)
    data = run._repr_mimebundle_()

    assert len(data["text/plain"]) < 30_000
    assert len(data["text/html"]) < 60_000
    assert "440 more: .metrics has them" in data["text/plain"]
    assert "… and 60 more ranks" in data["text/plain"]
    assert re.search(r"^0000n+…  +64  +31\.5  +0  +63$", data["text/plain"], re.MULTILINE)
    assert len(json.dumps(view.listing([run]))) < 3000


def test_two_runs_are_compared_by_last_lowest_and_highest(store, db, fake):
    """Means over ranks; what is not finite counts in the last value alone; what only one has shows a dash."""
    for number, scale in ((1, 1.0), (2, 10.0)):
        fake.begin(number)
        for rank in (0, 1):
            fake.say(number, rank, points("loss", [5 * scale, math.inf, scale + rank]))
        fake.finish(number)
    fake.begin(3)
    fake.say(3, 0, points("other", [math.nan]))
    fake.finish(3)
    drain(fake.writer, db)
    one, two, three = (store.run(number) for number in (1, 2, 3))
    text = view.comparison([one, two])["text/plain"]
    apart = view.comparison([one, three])["text/plain"]
    three_runs = view.comparison([one, two, three])["text/plain"]

    heads = " +".join(f"{what} world/{number}" for what in ("last", "lowest", "highest") for number in (1, 2))
    assert re.search(rf"^metric +{heads}$", text, re.MULTILINE)
    assert re.search(r"^loss +1\.5 +10\.5 +1 +10 +5 +50$", text, re.MULTILINE)
    assert re.search(r"^loss +1\.5 +- +1 +- +5 +-$", apart, re.MULTILINE)
    assert re.search(r"^other +- +NaN +- +- +- +-$", apart, re.MULTILINE)
    assert re.search(r"^loss +world/2 +10.5 +10 +50$", three_runs, re.MULTILINE)
    assert re.search(r"^other +world/3 +NaN +- +-$", three_runs, re.MULTILINE)
    assert view.overlay([one, three]) is None


@pytest.mark.parametrize(
    ("name", "last", "words"),
    [
        ("loss", math.nan, "ok, but NaN"),
        ("loss", 1.0, "ok"),
        ("accuracy", math.inf, "ok, but ∞"),
        ("lr", math.nan, "ok"),
    ],
)
def test_a_run_whose_last_value_is_no_number_has_not_ended_well(store, db, fake, name, last, words):
    """The front end says the same, see outcome.ts."""
    fake.begin(1)
    fake.say(1, 0, points(name, [1.0, last]))
    fake.finish(1)
    drain(fake.writer, db)
    run = store.run(1)

    assert f": {words}, 1.5 s on rank" in view.bundle(run)["text/plain"]
    assert f": {words}, 1.5 s on rank" in view.comparison([run])["text/plain"]
    assert f" {words}  " in view.listing([run])["text/plain"]
    assert (": ok, but ∞" in view.chart(run)["text/plain"]) == (last == math.inf)


def test_the_curves_of_two_runs_are_drawn_over_each_other(store, db, fake):
    """An SVG of bounded size with both runs' marks, names of every kind, and NaN where a curve has a gap."""
    for number in (1, 2, 3):
        fake.begin(number)
        for rank in (0, 1):
            fake.say(number, rank, points("$loss_1$ <&>", [math.sin(step / 1000) for step in range(50_000)]))
            fake.say(number, rank, points("nan", [math.nan]), points("one", [1.0]))
        fake.finish(number)
    drain(fake.writer, db)
    shown = compare(*(store.run(number) for number in (1, 2, 3)))
    svg = view.overlay(shown.runs)

    assert svg is not None
    assert all(f">world/{number}<" in svg for number in (1, 2, 3))
    assert "<svg" in shown._repr_html_()
    assert "$loss_1$" in repr(shown)
    assert set(shown.frame()["run"]) == {"world/1", "world/2", "world/3"}
    assert "&lt;&amp;&gt;" in svg
    assert len(svg) < 200_000


def test_a_run_has_the_colour_that_it_has_in_the_runs_tab():
    """That of its id, whatever runs are beside it; labextension/tests/runs.test.ts wants the same."""
    assert [view.style_of(run) for run in (17, 9, 42)] == [(1, 2), (1, 4), (2, 2)]
    assert len({view.style_of(run) for run in range(40)}) == 40


def test_without_matplotlib_there_are_no_curves(store, db, fake, monkeypatch):
    """The error is an ImportError, which the verb shows."""
    for number in (1, 2):
        fake.begin(number)
        fake.say(number, 0, points("loss", [1.0]))
        fake.finish(number)
    drain(fake.writer, db)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError):
        view.overlay([store.run(1), store.run(2)])


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (12.34, "12.3 s"),
        (59.96, "59.9 s"),
        (60, "1:00 min"),
        (3599.7, "59:59 min"),
        (90061, "25:01:01 h"),
    ],
)
def test_durations_are_written_in_words(seconds, words):
    """They are rounded down, as on a clock."""
    assert view.took(seconds) == words


def test_runs_that_ended_unseen_are_known_once_their_driver_is_gone(store, db, make_world, monkeypatch):
    """Runs of a living driver, runs that a client followed, and runs that go on do not count. One look finds all."""
    drivers = {"living": own_process(), "gone": gone_process(), "recent": None, "old": None}
    for name, driver in drivers.items():
        world = make_world(name=name)
        if driver is not None:
            world.writer.set_driver(*driver)
        when = time.time() - (3600 if name == "old" else 0)
        for number in (1, 2, 3):
            world.begin(number, when=when, ranks=[number % 2])
            if number < 3:
                world.finish(number, [number % 2], when=when + 1)
        from jupyter_dtrain.wire.steward_messages import Followed

        world.writer.take_followed(Followed(2))
        drain(world.writer, db)
    opened, connect = [], sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **more: opened.append(1) or connect(*args, **more))
    away = store.finished_away()
    monkeypatch.undo()
    store.mark_seen(away)

    assert [(run.world, run.number) for run in away] == [("gone", 1), ("old", 1)]
    assert len(opened) == 1
    assert store.finished_away() == []

"""The race's report, from made-up figures: no peer is needed, and nothing is measured."""

from __future__ import annotations

import json
import re
import time
import xml.dom.minidom

import pytest

from benchmarks.race import docs, page, players, speed
from benchmarks.race.answers import QUESTIONS, Question, _points
from benchmarks.race.result import REASONS, Entry, Race, Row, exponent
from benchmarks.race.tools import TOOLS, US, Notebook

MACHINE = {"cores": 2, "memory, GiB": 24, "python": "3.11", "system": "Linux"}


@pytest.fixture
def race() -> Race:
    """One row that we win, one that we lose, one where a tool never arrives, one where more is better."""
    made = Race(machine=MACHINE, versions=dict.fromkeys(TOOLS, "1.0"))
    won = Row("cell-empty-4", "an empty cell", "s", {US: Entry([0.01, 0.02, 0.03]), "ipyparallel": Entry([0.04])})
    lost = Row("start-4-cold", "a start", "s", {US: Entry([1.2]), "jupyter-distributed": Entry([0.9])})
    never = Row("failure-raise", "a rank raises", "s", {US: Entry([2.5]), "ipyparallel": Entry(never="it hangs")})
    training = Row("training-1ms", "training", "steps/s", {US: Entry([97.0]), "torchrun": Entry([100.0])})
    training.more_is_better, training.baseline = True, "torchrun"
    for row in (won, lost, never, training):
        section = row.name.split("-")[0]
        made.sections[section] = [row.fill(section)]
        made.seconds[section] = 1.0
    return made


def test_every_row_names_every_tool_or_says_why_it_is_missing(race):
    for row in race.rows:
        assert set(TOOLS) <= set(row.entries)
        for entry in row.entries.values():
            assert bool(entry.values) + bool(entry.missing) + bool(entry.never) == 1


def test_a_race_is_the_same_when_it_is_read_again(race, tmp_path):
    race.write(tmp_path / "race.json")

    assert Race.read(tmp_path / "race.json") == race
    kept = json.loads((tmp_path / "race.json").read_text())
    assert kept["sections"]["cell"][0]["entries"][US]["values"] == [0.01, 0.02, 0.03]
    assert kept["tools"]["ipyparallel"] == {"version": "1.0", "docs": TOOLS["ipyparallel"].docs}


def test_who_is_first_and_why_it_is_not_us(race):
    won, lost, never, training = race.rows

    assert [row.first for row in race.rows] == [US, "jupyter-distributed", US, US]
    assert won.ratio("ipyparallel") == pytest.approx(2.0)
    assert lost.why() == REASONS["start"]
    lost.entries["notebook_launcher"] = Entry([0.1])
    assert "nothing is kept" in lost.why()
    assert won.why() == never.why() == training.why() == ""
    assert training.ratio(US) == pytest.approx(0.97)
    assert never.ratio("ipyparallel") == float("inf")


def test_the_page_has_each_row_and_no_address_but_those_of_the_documentation(race):
    made = page.page(race)

    for row in race.rows:
        assert row.title in made
    for plot in re.findall(r"<svg.*?</svg>", made, re.DOTALL):
        xml.dom.minidom.parseString(plot)  # noqa: S318 — our own
    assert set(re.findall(r'(?:href|src)="([^#].*?)"', made)) == {tool.docs for tool in TOOLS.values()}
    assert set(re.findall(r'href="#(.*?)"', made)) == set(re.findall(r'id="(.*?)"', made)) == set(race.sections)
    assert "it hangs" in made
    assert REASONS["start"] in made


def test_the_documentation_gets_its_table_between_the_markers(race, tmp_path):
    path = tmp_path / "comparison.md"
    path.write_text(f"before\n\n{docs.BEGIN}\nold\n{docs.END}\n\nafter\n")

    docs.write(race, path)
    docs.write(race, path)

    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert text.count("| an empty cell | **20.0 ms** | 40.0 ms |") == 1
    assert "| a start | 1.20 s | - | **900 ms** |" in text


@pytest.mark.parametrize(
    ("value", "unit", "told"),
    [(0.0123, "s", "12.3 ms"), (1.234, "s", "1.23 s"), (15, "", "15"), (316.2, "MiB", "316 MiB"), (0.0, "%", "0%")],
)
def test_figures_are_short(value, unit, told):
    assert page.figure(value, unit) == told


def test_growth_is_the_slope_in_logarithms():
    assert exponent([2, 4, 8], [1.0, 2.0, 4.0]) == pytest.approx(1.0)
    rows = [Row(f"cell-empty-{n}", "", "s", {US: Entry([0.01])}) for n in (2, 4, 8)]
    assert speed.growth(rows)[1].entries[US].values == [pytest.approx(0.0)]


def test_the_quick_get_more_turns_and_one_that_fails_ends_nothing():
    def broken() -> float:
        raise players.DidNotEnd("it hung")

    def slow() -> float:
        time.sleep(0.2)
        return 1.0

    found = speed.in_turns({"quick": lambda: 0.5, "slow": slow, "broken": broken}, 0.3, most=7)

    assert len(found["quick"].values) == 7
    assert len(found["slow"].values) == 1
    assert "it hung" in found["broken"].missing


def test_there_are_24_questions_with_names_of_their_own():
    assert len({question.name for question in QUESTIONS}) == 24


@pytest.fixture
def plain(monkeypatch):
    """A notebook whose one rank is its kernel."""
    monkeypatch.setitem(TOOLS, US, TOOLS[US].__class__("", "", "", Notebook(cell="{code}", start="x = 40")))
    with players.Player(US, 1) as player:
        player.start()
        yield player


def test_answers_are_right_half_or_wrong_and_nothing_is_left_behind(plain):
    def asked(code: str, **more) -> tuple[float, bool]:
        return _points(plain, Question("", code, then="print(f'x {x}')", then_expects=("x 40",), **more))

    assert asked("print('yes')", expects=("yes",)) == (1.0, True)
    assert asked("1 / 0", expects=("ZeroDivisionError",), fails=True) == (1.0, True)
    assert asked("print('no')", expects=("yes",)) == (0.5, True)
    assert asked("import time\ntime.sleep(60)", fails=True, stop_after=0.2) == (1.0, True)
    plain.local("import subprocess\nleft = subprocess.Popen(['sleep', '60'], start_new_session=True)")
    mark = plain.mark
    assert len(players.carrying(mark)) == 2

    plain.__exit__()

    assert players.carrying(mark) == []

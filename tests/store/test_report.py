"""Reports on stored runs: what they say, that nothing in them runs, and what they leave out."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import msgspec
import pytest

import jupyter_dtrain
from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.events import Configured, Environment, Error, Frame, MediaLogged, Output, Sample
from jupyter_dtrain.store import Comparison
from jupyter_dtrain.store.report import written
from jupyter_dtrain.store.report_data import RunsReport, part_of
from jupyter_dtrain.store.report_page import POLICY, STYLE
from jupyter_dtrain.view import report_chart
from jupyter_dtrain.view.report_chart import DARK, LIGHT, DrawnCurve, chart, ticks
from tests.store.conftest import drain, points

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'`|"
KEY = "sk-abcdefghijklmnop1234567"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def runs(store, db, fake, monkeypatch):
    """Three runs, the oldest first: 1 is fine, 2 has a NaN and other settings, 3 failed and is full of markup."""
    monkeypatch.setenv("JUPYTER_DTRAIN_STORE", str(store.path))
    for number, rate in ((1, 0.1), (2, 0.2), (3, EVIL)):
        fake.begin(number, f"lr = {rate!r}\ntrain(lr)\nkey = '{KEY}'")
        fake.say(number, 0, Configured({"lr": rate, "width": 8, **({EVIL: [EVIL]} if number == 3 else {})}, "cell"))
        fake.say(number, 0, Environment("3.11.9", {"torch": f"2.{number}"}, ["a device"]))
        for rank in (0, 1):
            fake.say(number, rank, points("loss", [3.0, 2.0, math.nan if number == 2 else 1.0 / number]))
            fake.say(number, rank, points("val_loss", [2.5]), points("epoch", [0.0, 1.0]), points(EVIL, [1.0]))
            fake.say(number, rank, Sample(50.0, 10**9))
            fake.say(number, rank, Output("stdout", f"{EVIL} {KEY}\n"))
        if number == 3:
            fake.say(3, 0, Error("ValueError", EVIL, [Frame("cell [3]", 2, "<module>", "train(lr)", cell=True)]))
            fake.say(3, 0, MediaLogged(EVIL, "image", 5, mime="image/png", data=PNG, caption=EVIL))
            fake.say(3, 0, MediaLogged("text", "text", 5, mime="text/plain", data=f"{EVIL} {KEY}".encode()))
            table = {"columns": [EVIL], "rows": [[EVIL]], "total": 9}
            for kind, told in (("table", table), ("histogram", {"edges": [0, 1, 3], "counts": [2, 1]})):
                data = msgspec.json.encode(told)
                fake.say(3, 0, MediaLogged(kind, kind, 5, mime="application/json", data=data))
            fake.say(3, 0, MediaLogged("odd", "table", 5, mime="application/json", data=b"{"))
        fake.finish(number, outcome="error" if number == 3 else "ok")
    drain(fake.writer, db)
    found = [store.run(f"world/{number}") for number in (1, 2, 3)]
    found[0].edit(name="small rate", note=f"note {EVIL}", tags=["best"])
    found[2].edit(name="=SUM(A1)")
    return found


class Seen(HTMLParser):
    """The tags, the attributes and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        """One tag."""
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data):
        """Some text."""
        self.text += data


def test_a_page_has_all_that_a_colleague_asks_for(runs, tmp_path):
    file = jupyter_dtrain.report(runs, tmp_path / "report.html", notes="# Three rates\nThe first one wins.")
    text = Seen(file.read_text()).text

    assert file == tmp_path / "report.html"
    for words in (
        *("Three rates", "The first one wins.", "small rate", "best", f"note {EVIL}", "world/1", "ok, but NaN"),
        *("2 of 3 values differ between the runs", "0.1", "0.2", "width", "torch", "2.1", "3.11.9", "a device"),
        *("What differs", "-lr = 0.1", "+lr = 0.2", f"ValueError: {EVIL}", "train(lr)", "The end of its output"),
        *("step 5 · rank 0", "8 more rows", "Memory of a rank", "and, with dots, val_loss"),
        "A triangle marks a step at which a value was NaN or infinite.",
    ):
        assert words in text, words
    assert "odd: 1, which this page has no room for or cannot show" in text


def test_nothing_in_a_page_runs_or_comes_from_elsewhere(runs):
    """Markup in names, notes, values, output, errors and media is text."""
    page = written(RunsReport(runs, notes=EVIL), "html")
    seen = Seen(page)

    assert {"script", "iframe", "object", "form", "link", "base", "a"} & set(seen.tags) == set()
    assert seen.tags.count("style") == 1
    assert [name for _, name, _ in seen.attributes if name.startswith("on") or name in ("style", "href")] == []
    assert all(value.startswith("data:image/png;base64,") for _, name, value in seen.attributes if name == "src")
    assert ("meta", "content", POLICY) in seen.attributes
    assert "default-src 'none'" in POLICY
    assert "unsafe" not in POLICY
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in POLICY
    assert f"<style>{STYLE}</style>" in page
    assert "url(" not in STYLE


@pytest.mark.parametrize("form", ["html", "md", "csv"])
def test_a_key_in_a_cell_its_output_or_its_texts_is_left_out(runs, form):
    assert KEY in runs[0].source

    assert KEY not in written(RunsReport(runs), form)


def test_charts_have_the_colours_that_belong_to_the_runs(runs):
    """Those of the Runs tab and of ``compare``: by the run's id, on a light and on a dark page."""
    page = written(RunsReport(runs), "html")
    [drawn] = [part for part in page.split("<figure>")[1:] if part.startswith("<figcaption>loss")]
    [colours] = {tuple(dict.fromkeys(re.findall(r'class="line (c\d) d\d"', drawn)))}
    light, dark = report_chart.STYLE.split("@media screen and (prefers-color-scheme:dark)")

    assert colours == tuple(f"c{run.id % 8}" for run in runs)
    assert all(f".c{place}{{--c:{colour}}}" in light for place, colour in enumerate(LIGHT))
    assert all(f".c{place}{{--c:{colour}}}" in dark for place, colour in enumerate(DARK))


def test_a_table_has_a_row_for_each_run_and_no_formula(runs, tmp_path):
    file = jupyter_dtrain.report(Comparison(runs), tmp_path / "runs.csv")
    rows = list(csv.DictReader(io.StringIO(file.read_text())))

    assert [row["run"] for row in rows] == ["world/1", "world/2", "world/3"]
    assert [row["config:lr"] for row in rows] == ["0.1", "0.2", EVIL]
    assert [float(row["last loss"]) for row in rows][::2] == [1.0, 1 / 3]
    assert rows[1]["last loss"] == "nan"
    assert rows[0]["note"] == f"note {EVIL}"
    assert rows[2]["name"] == "'=SUM(A1)"


def test_a_text_shows_markup_as_it_is(runs, tmp_path):
    """Neither HTML nor Markdown in a name has an effect, and a bar ends no cell of a table."""
    text = jupyter_dtrain.report(["world/3"], tmp_path / "report.md").read_text()

    code = "".join(text.split("```")[1::2])
    assert "<script" not in text.replace(code, "")
    assert r"\|" in text
    lines = [line for line in text.splitlines() if line.startswith("| loss")]
    assert lines == ["| loss | =SUM(A1) | █▅▁ | 0.3333 | 0.3333 | 3 |"]


def test_a_file_that_is_no_report_stays_as_it_is(runs, tmp_path):
    """A report of before is replaced."""
    for name in ("a.html", "a.md", "a.csv"):
        (tmp_path / name).write_text("my own words")
        with pytest.raises(BadRequest, match="exists and is no report"):
            jupyter_dtrain.report(runs, tmp_path / name)
        assert (tmp_path / name).read_text() == "my own words"
        (tmp_path / name).unlink()
        first = jupyter_dtrain.report(runs, tmp_path / name).read_text()
        second = jupyter_dtrain.report(runs[:2], tmp_path / name).read_text()
        assert first != second
    assert len(list(tmp_path.glob("a.*"))) == 3
    assert list(tmp_path.glob(".a*")) == []


@pytest.mark.parametrize(
    ("chosen", "file", "words"),
    [
        (["world/1"], "report.pdf", "A report is a .html, .md or .csv file"),
        (["world/1"], "missing/report.html", "does not exist: make it first"),
        ([], "report.html", "A report needs a run"),
        ("world/9", "report.html", "There is no run world/9 in the store"),
        (None, "report.html", "None names no run"),
    ],
)
def test_what_cannot_be_a_report_is_said(runs, tmp_path, chosen, file, words):
    with pytest.raises(BadRequest, match=re.escape(words)):
        jupyter_dtrain.report(chosen, tmp_path / file)
    assert not (tmp_path / file).exists()


def test_pictures_are_bounded_and_those_left_out_are_counted(store, db, fake):
    """Few steps of each name, the newest one among them, in 20 MB."""
    fake.begin(1)
    noise = PNG + bytes(900_000)
    for step in range(60):
        fake.say(1, 0, MediaLogged("large", "image", step, mime="image/png", data=noise))
    for number in range(30):
        fake.say(1, 0, MediaLogged("many", "image", 7, number, mime="image/png", data=PNG, left_out=2))
    fake.finish(1)
    drain(fake.writer, db)
    page = written(RunsReport([store.run(1)]), "html")
    text = Seen(page).text

    assert len(page) < 20_000_000
    assert "large 6 of 60" in text
    assert "step 59" in text
    assert "many 8 of 90" in text


def test_a_run_that_goes_on_has_one_curve(store, db, fake):
    """The points of the run before it are in its chart."""
    for number in (1, 2):
        fake.begin(number)
        fake.say(number, 0, points("loss", [4.0 / number] * 3, 3 * (number - 1)))
        fake.finish(number)
    drain(fake.writer, db)
    first, second = store.run(1), store.run(2)
    db.execute("UPDATE runs SET resumes = ?, first_step = 3 WHERE id = ?", (first.id, second.id))
    report = RunsReport([store.run(2)])

    assert list(report.runs[0].metrics["loss"][0].steps) == [0, 1, 2, 3, 4, 5]
    assert "goes on withworld/1, from step 3 on" in Seen(written(report, "html")).text
    assert report.runs[0].figures["loss"] == (2.0, 2.0, 2.0)
    # Beside the run before it, each has its own part of the curve.
    both = RunsReport([store.run(1), store.run(2)])
    assert [list(one.metrics["loss"][0].steps) for one in both.runs] == [[0, 1, 2], [3, 4, 5]]


def test_evaluations_lie_over_training():
    assert [part_of(name) for name in ("loss", "val_loss", "eval/loss", "train_loss", "validation", "testing")] == [
        ("loss", -1),
        ("loss", 1),
        ("loss", 2),
        ("loss", 0),
        ("validation", -1),
        ("testing", -1),
    ]


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [0.0, 0.0],
        [1e-300, 1e300],
        [-1.7e308, 1.7e308],
        [math.nan, 1.0, math.inf, 2.0],
        [1e-9, 2e-9],
        [5e-324, 1.0],
    ],
)
def test_a_chart_of_any_values_is_a_picture(values):
    """It is well-formed, and all of its numbers are numbers."""
    svg = chart(EVIL, "step", [DrawnCurve(0, 0, list(range(len(values))), values, [1.0])])

    assert ET.fromstring(svg).tag == "svg"  # noqa: S314 — our own text
    assert "nan" not in svg
    assert "inf" not in svg.replace(EVIL, "")


def test_ticks_are_round():
    assert ticks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(3, 3, 5) == [3]
    assert len(ticks(-1e308, 1e308, 5)) < 20

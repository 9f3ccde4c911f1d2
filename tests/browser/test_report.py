"""A report in a browser: it asks for nothing, nothing in it runs, and it is readable on light and dark pages."""

from __future__ import annotations

import base64
from contextlib import closing

import pytest

from jupyter_dtrain.core.events import Configured, MediaLogged, Output
from jupyter_dtrain.store import Store
from jupyter_dtrain.store.report import written
from jupyter_dtrain.store.report_data import RunsReport
from jupyter_dtrain.store.schema import open_for_writing
from jupyter_dtrain.view.report_chart import DARK, LIGHT
from tests.store.conftest import FakeWorld, drain, points

EVIL = "<script>window.ran = 1</script><img src=x onerror='window.ran = 2'>"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The file of a report on two runs, and their ids."""
    folder = tmp_path_factory.mktemp("report")
    world = FakeWorld(folder)
    for number in (1, 2):
        world.begin(number, f"lr = 0.{number}\n{EVIL}")
        world.say(number, 0, Configured({"lr": number / 10, EVIL: EVIL, "long": "x" * 5000}, "cell"))
        world.say(number, 0, points("loss", [3.0, 2.0, 1.0 / number]), points("val_loss", [2.5, 1.5]))
        world.say(number, 0, points("a_metric_with_a_name_without_any_place_to_break" * 3, [1.0]))
        world.say(number, 0, MediaLogged("pictures", "image", 3, mime="image/png", data=PNG, caption=EVIL))
        world.say(number, 0, Output("stdout", EVIL))
        world.finish(number)
    store = Store(folder / "runs.sqlite")
    with closing(open_for_writing(store.path)) as db:
        drain(world.writer, db)
    world.close()
    runs = [store.run(f"world/{number}") for number in (1, 2)]
    runs[0].edit(name=EVIL[:60], note=EVIL)
    file = folder / "report.html"
    file.write_text(written(RunsReport(runs, EVIL), "html"))
    return file, [run.id for run in runs]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1600, 1000, 400])
def test_a_report_is_readable_and_runs_nothing(browser, report, scheme, width):
    file, ids = report
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    asked, said = [], []
    page.on("request", lambda request: asked.append(request.url) if not request.url.startswith("data:") else None)
    page.on("console", lambda message: said.append(message.text))
    page.goto(file.as_uri())
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    lines = page.evaluate(
        "[...document.querySelector('svg.chart').querySelectorAll('.line')].map((one) => getComputedStyle(one).stroke)"
    )
    palette = LIGHT if scheme == "light" else DARK
    expected = [tuple(int(palette[one % 8][at : at + 2], 16) for at in (1, 3, 5)) for one in ids]
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")

    assert list(dict.fromkeys(lines)) == [f"rgb({red}, {green}, {blue})" for red, green, blue in expected]
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    assert page.evaluate("[...document.images].every((one) => one.complete && one.naturalWidth === 1)")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    assert asked == [file.as_uri()]
    assert said == []

    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: 'ran = 3'}))")
    assert page.evaluate("typeof ran") == "undefined"
    assert any("Content Security Policy" in words for words in said)
    context.close()

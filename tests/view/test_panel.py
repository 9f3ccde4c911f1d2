"""The panel above a cell: when there is one, what it sends, and what is left of it."""

from __future__ import annotations

import json
import math
import sys
import threading
from array import array

import pytest

from jupyter_dtrain.core import pipelines
from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.events import Batch, Event, Finished, Metrics, Output, PipelineStep, Progress, Sample, Started
from jupyter_dtrain.core.metrics import Columns, pack
from jupyter_dtrain.core.run import Run
from jupyter_dtrain.view import widget
from jupyter_dtrain.view.document import MIME
from jupyter_dtrain.view.pace import Pace
from jupyter_dtrain.view.panel import BYTES_PER_SECOND, CALM_PERIOD, KEPT_BYTES, LIVELY, PER_SECOND, Panel
from jupyter_dtrain.view.run_state import MOST_NAMES
from jupyter_dtrain.view.widget import VIEW, Actions
from tests.steward.until import until

ID = "the-panel"


def series(values, name="loss", first=0):
    """Points of one metric."""
    steps = array("q", range(first, first + len(values)))
    times = array("d", [0.02 * step for step in steps])
    return pack(name, Columns(steps, times, array("d", values)))


class FrontEnd:
    """The browser's half: an ipywidgets comm that goes nowhere, and what was sent over it."""

    def __init__(self) -> None:
        self.custom: list[tuple[dict, list]] = []
        self.documents: list[dict] = []

    def make(self, monkeypatch) -> None:
        """Listen to every widget that is made from now on."""
        make = widget.load()
        if make is None:
            pytest.skip("needs the front end: install the package where there is Node, or run `make front-end`")
        front_end = self

        def listened(actions, document):
            link = make(actions, document)
            inner = link._widget
            front_end.widget = inner
            front_end.documents.append(json.loads(document))
            monkeypatch.setattr(
                inner, "send", lambda content, buffers=None: front_end.custom.append((content, buffers))
            )
            inner.observe(lambda change: front_end.documents.append(json.loads(change["new"])), "document")
            return link

        monkeypatch.setattr(widget, "load", lambda: listened)

    def points(self) -> int:
        """How many points have come."""
        return sum(row[2] for content, _ in self.custom for row in content.get("series", []))


class Stage:
    """A panel with its own clock, and ranks whose events a test chooses."""

    def __init__(self, recorder, size=2, *, live=True) -> None:
        self.painter = recorder()
        self.asked: list[str] = []
        self.go_on = threading.Event()
        self.run = Run(3, "", list(range(size)), size, lambda *_: [])
        actions = Actions(
            lambda: self.asked.append("interrupt"),
            lambda: "stacks of all",
            lambda rank: f"output of {rank}" + "x" * 300_000,
            lambda: self.run.outcome != "running",
            self.profile,
            lambda prompts, text: self.asked.append(f"{prompts} {text}"),
        )
        self.panel = Panel(
            self.painter,
            3,
            range(size),
            size,
            display_id=ID,
            actions=actions if live else None,
            pace=Pace(rate=1e12, burst=1e12),
        )
        self.now = 100.0
        self.seq = dict.fromkeys(range(size), 0)

    def profile(self):
        """The first is made, once a test has it go on; the next is refused."""
        self.asked.append("profile")
        if self.asked.count("profile") > 1:
            raise BadRequest("No step was seen.")
        assert self.go_on.wait(30)
        return {"path": "/w/p.json.gz", "file": "", "tables": [], "remarks": []}

    def say(self, rank, *bodies) -> None:
        """Feed a batch."""
        first = self.seq[rank]
        events = [Event(3, rank, first + index, 0.0, body) for index, body in enumerate(bodies)]
        self.seq[rank] += len(events)
        batch = Batch(3, rank, first, self.seq[rank] - 1, events)
        self.run.apply(batch)
        self.panel.feed(batch, self.now)

    def wait(self, seconds) -> None:
        """Let time pass, with a tick whenever one is wanted."""
        end = self.now + seconds
        while (wanted := self.panel.tick(self.now)) is not None and wanted <= end:
            if self.panel._loading is not None:
                self.panel._loading.join(30)
            self.now = max(wanted, self.now + 0.001)
        self.now = end
        self.panel.tick(self.now)

    def end(self, outcome="ok") -> None:
        """End the run on all ranks."""
        for rank in self.run.unfinished:
            self.say(rank, Finished(outcome, 1.0))
        self.run.end()
        self.panel.close(self.run, self.now)


@pytest.fixture
def stage(recorder):
    """Makes a stage."""
    return lambda *args, **options: Stage(recorder, *args, **options)


@pytest.fixture
def front_end(monkeypatch):
    """A browser's side of the widgets of this test."""
    found = FrontEnd()
    found.make(monkeypatch)
    return found


def test_a_run_that_only_prints_has_no_panel(stage):
    """Nothing is displayed."""
    scene = stage()
    scene.say(0, Started(1, "host", ""), Output("stdout", "hello\n"))
    scene.wait(1.5)
    scene.end()
    assert scene.painter.calls == []


def test_a_run_that_takes_long_has_one_until_it_ends(stage, front_end):
    """A strip of ranks after two seconds, and nothing of it in the notebook."""
    scene = stage()
    scene.say(0, Started(1, "host", ""))
    scene.wait(3)
    assert VIEW in scene.painter.shown[ID]
    scene.end()
    assert scene.painter.shown[ID] == {"text/plain": ""}


def test_a_metric_shows_the_panel_at_once_and_the_notebook_keeps_the_run(stage, front_end):
    """The widget first, then our type, a picture and a text in its place, under the same display id."""
    scene = stage()
    scene.say(0, Started(1, "host", ""), Metrics([series([3.0, 2.0])]))
    scene.wait(0.5)
    assert set(scene.painter.shown[ID]) == {VIEW, MIME, "text/plain"}
    scene.say(1, Started(1, "host", ""), Metrics([series([1.0, 4.0])]))
    scene.wait(0.5)
    scene.end()
    assert set(scene.painter.shown[ID]) == {MIME, "image/svg+xml", "text/plain"}
    assert [call[0] for call in scene.painter.calls] == ["display", "update"]
    assert scene.painter.metadata[0] == {"dtrain": {"panel": ID, "world": "", "run": 3}}
    assert front_end.documents[-1]["outcome"] == "ok"
    assert front_end.widget.live is False


@pytest.mark.parametrize("outcome", ["error", "interrupted", "lost"])
def test_a_run_that_ends_badly_is_kept_as_well(stage, front_end, outcome):
    """It keeps its outcome; a run is lost, and its ranks are dead."""
    scene = stage()
    scene.say(0, Started(1, "host", ""), Metrics([series([3.0])]))
    scene.wait(0.5)
    scene.end(outcome)
    assert scene.painter.shown[ID][MIME]["outcome"] == outcome
    state = "dead" if outcome == "lost" else outcome
    assert [row[2] for row in scene.painter.shown[ID][MIME]["ranks"]] == [state] * 2


def test_a_step_of_a_pipeline_is_sent_once_and_kept(stage, front_end):
    """It is in the panel's first document, in a message when there is a newer one, and in the saved form."""
    scene = stage()

    def tell(step):
        for rank in (0, 1):
            actions = pipelines.pack([pipelines.Action("F", rank, 0, rank * 0.1, 0.1)])
            scene.say(
                rank, PipelineStep(0, "1F1B", step, [0, 1], rank, 2, 1, 10.0, actions, 0.5 if rank == 0 else None)
            )

    tell(0)
    scene.wait(3)
    tell(8)
    scene.wait(3)
    scene.say(0, Sample(1.0, 1000))
    scene.wait(3)
    told = [content["pipelines"] for content, _ in front_end.custom if "pipelines" in content]
    assert [part["step"] for part in front_end.documents[0]["pipelines"]] == [0]
    assert [[part["step"] for part in parts] for parts in told] == [[8]]
    assert len(front_end.custom) > len(told)
    assert [part["step"] for part in front_end.documents[-1]["pipelines"]] == [8]
    scene.end()
    (kept,) = scene.painter.shown[ID][MIME]["pipelines"]
    assert "bubble 50 % (in theory 50 %), step 8" in kept["words"]


def test_a_short_run_is_kept_without_having_been_shown(stage):
    """The cell looks as it does where no widget can be."""
    scene = stage(live=False)
    scene.say(0, Started(1, "host", ""), Progress(1, "train", 5, 10, 2.0, ""), Finished("ok", 0.1))
    scene.end()
    assert [call[0] for call in scene.painter.calls] == ["display"]
    assert scene.painter.shown[ID][MIME]["bars"] == [[1, "train", [[0, 5.0, 10.0, 2.0, 0]]]]


def test_the_place_is_kept_for_a_panel_that_comes_later(stage, front_end):
    """Text painted before the panel comes stands below it."""
    scene = stage()
    scene.panel.reserve()
    scene.panel.reserve()
    scene.say(0, Started(1, "host", ""), Metrics([series([1.0])]))
    scene.wait(0.5)
    assert [call[0] for call in scene.painter.calls] == ["display", "update"]


def test_every_point_arrives_once_and_in_few_messages(stage, front_end):
    """A rank flushes four times a second for ten seconds: the panel is lively at first, calm after that."""
    scene = stage(1)
    scene.say(0, Started(1, "host", ""), Metrics([series([0.0] * 10)]))
    scene.wait(0.25)
    for part in range(1, 40):
        scene.say(0, Metrics([series([float(part)] * 10, first=part * 10)]))
        scene.wait(0.25)
    scene.wait(CALM_PERIOD)
    assert front_end.points() + 10 == 400
    with_points = [content for content, _ in front_end.custom if "series" in content]
    assert [content["series"][0][2] for content in with_points[:4]] == [10] * 4
    assert len(with_points) <= LIVELY * PER_SECOND + (10 - LIVELY) / CALM_PERIOD + 1
    last, buffers = front_end.custom[-1]
    assert list(memoryview(buffers[0]).cast("f"))[-10:] == [39.0] * 10
    (_, _, count, first, step) = last["series"][0]
    assert first + count * step == 400
    assert [content["seq"] for content in with_points] == list(range(len(with_points)))


def test_a_flood_of_points_is_thinned_to_what_the_wire_takes(stage, front_end):
    """Three million points in ten seconds; the extremes are among those that go out."""
    scene = stage(1)
    scene.say(0, Started(1, "host", ""), Metrics([series([0.0])]))
    scene.wait(0.25)
    for part in range(40):
        values = [0.5] * 75_000
        values[part] = 100.0 + part
        scene.say(0, Metrics([series(values, first=1 + part * 75_000)]))
        scene.wait(0.25)
    sent = sum(len(buffer) for _, buffers in front_end.custom for buffer in buffers or [])
    assert 100_000 < sent < 10 * BYTES_PER_SECOND * 2
    seen = {value for _, buffers in front_end.custom for value in memoryview(buffers[0]).cast("f")}
    assert {100.0 + part for part in range(40)} <= seen


def test_points_that_a_rank_left_out_on_the_wire_are_mentioned(stage):
    """Beside the curves, and in the text: Run.metrics has all points."""
    scene = stage(1, live=False)
    part = pack("loss", Columns(array("q", [0, 9]), array("d", [0.0, 1.0]), array("d", [1.0, 2.0])), left_out=8)
    scene.say(0, Started(1, "host", ""), Metrics([part]), Finished("ok", 0.1))
    scene.end()
    kept = scene.painter.shown[ID]
    assert kept[MIME]["thinned"] is True
    assert "Run.metrics has all of them" in kept["text/plain"]


def test_a_page_that_comes_late_finds_a_copy_of_bounded_size(stage, front_end):
    """It is not older than about two seconds, and says how far it reaches."""
    scene = stage(1)
    scene.say(0, Started(1, "host", ""), Metrics([series([0.0])]))
    for part in range(20):
        scene.wait(0.25)
        scene.say(0, Metrics([series([math.sin(n) for n in range(5000)], first=1 + part * 5000)]))
    scene.wait(2.5)
    last = front_end.documents[-1]
    assert len(json.dumps(last)) < KEPT_BYTES * 1.2
    assert last["seq"] == len([content for content, _ in front_end.custom if "series" in content]) > 10
    (loss,) = last["metrics"]
    assert loss["series"][0][0] == 0
    assert 3 <= len(front_end.documents) <= 8


def test_a_request_of_the_person_gets_an_answer(stage, front_end):
    """A rank's output from its end; and nothing is interrupted once the run is over."""
    scene = stage()
    scene.say(0, Started(1, "host", ""), Metrics([series([1.0])]))
    scene.wait(0.5)
    front_end.custom.clear()
    ask = front_end.widget._handle_custom_msg
    ask({"type": "output", "id": 1, "rank": 1}, [])
    ask({"type": "stacks", "id": 2}, [])
    ask({"type": "interrupt", "id": 3}, [])
    ask({"type": "nonsense", "id": 4}, [])
    ask("nonsense", [])
    ask({"type": "prompt", "id": 6, "prompts": {"1": 2}, "text": "yes"}, [])
    ask({"type": "prompt", "id": 7, "prompts": {"1": 3}, "text": None}, [])
    answers = {content["id"]: content for content, _ in front_end.custom if content["type"] == "answer"}
    heard = [content["id"] for content, _ in front_end.custom if content["type"] == "heard"]
    assert heard == [1, 2, 3, 4, 6, 7]
    assert (answers[6]["text"], answers[7]["text"]) == ("", "")
    assert len(answers[1]["text"]) == 200_000
    assert answers[1]["cut"] == 100_011
    assert answers[2]["text"] == "stacks of all"
    assert scene.asked == ["interrupt", "{1: 2} yes", "{1: 3} None"]
    assert "does not know" in answers[4]["problem"]
    scene.end()
    ask({"type": "interrupt", "id": 5}, [])
    assert scene.asked == ["interrupt", "{1: 2} yes", "{1: 3} None"]
    assert front_end.custom[-1][0]["problem"] == "The run has ended."


def test_a_profile_takes_its_time_and_the_other_buttons_work_meanwhile(stage, front_end):
    """A refusal comes as it is, without the name of its class."""
    scene = stage()
    scene.say(0, Started(1, "host", ""), Metrics([series([1.0])]))
    scene.wait(0.5)
    ask = front_end.widget._handle_custom_msg

    def answer(number):
        found = [content for content, _ in front_end.custom if content["type"] == "answer"]
        return next((content for content in found if content["id"] == number), None)

    ask({"type": "profile", "id": 1}, [])
    ask({"type": "stacks", "id": 2}, [])
    assert (answer(1), answer(2)["text"]) == (None, "stacks of all")
    scene.go_on.set()
    assert until(lambda: answer(1))["profile"]["path"] == "/w/p.json.gz"
    ask({"type": "profile", "id": 3}, [])
    assert until(lambda: answer(3))["problem"] == "No step was seen."
    scene.end()


def test_ten_thousand_names_do_not_fill_the_kernel(stage, front_end):
    """Some are followed, the others counted."""
    scene = stage(1)
    scene.say(0, Started(1, "host", ""), Metrics([series([1.0], f"name {n}") for n in range(10_000)]))
    scene.wait(2)
    scene.end()
    kept = scene.painter.shown[ID][MIME]
    assert len(kept["metrics"]) + kept["left_out"] == 10_000
    assert len({row[0] for content, _ in front_end.custom for row in content.get("series", [])}) <= MOST_NAMES
    assert "more metrics: Run.metrics has them" in scene.painter.shown[ID]["text/plain"]


def test_resources_of_a_rank_are_shown(stage, front_end):
    """Memory, processor and pace, which come with status messages."""
    scene = stage(1)
    scene.say(0, Started(1, "host", ""), Metrics([series([1.0] * 10)]))
    scene.wait(0.5)
    scene.say(0, Sample(50.0, 10**9, 9), Metrics([series([1.0] * 10, first=10)]))
    scene.wait(1)
    (row,) = front_end.custom[-1][0]["status"]["ranks"]
    assert row[:6] == [0, 0, "running", 19, 10**9, 50.0]
    assert row[9] == pytest.approx(0.02)


def test_without_the_bundle_a_run_is_still_kept(stage, monkeypatch):
    """Installed where there was no Node: no widget, but the saved form."""
    monkeypatch.setattr(widget, "STATIC", widget.STATIC / "absent")
    monkeypatch.setattr(widget, "_made", [])
    scene = stage()
    scene.say(0, Started(1, "host", ""), Metrics([series([1.0])]))
    scene.wait(1)
    assert scene.painter.calls == []
    assert not scene.panel.is_live
    scene.end()
    assert MIME in scene.painter.shown[ID]


def test_without_matplotlib_there_is_no_picture(stage, monkeypatch):
    """Everything else is kept."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    scene = stage(live=False)
    scene.say(0, Started(1, "host", ""), Metrics([series([1.0])]))
    scene.end()
    assert set(scene.painter.shown[ID]) == {MIME, "text/plain"}

"""The list of runs as a person wants to see it: filters, columns, order, groups, and what it keeps in memory."""

from __future__ import annotations

import json
import time
from contextlib import closing

import pytest

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.events import Configured, RunContext, Started
from jupyter_dtrain.store import Store, facts
from jupyter_dtrain.store.filters import BadFilter
from jupyter_dtrain.store.schema import open_for_writing
from jupyter_dtrain.store.views import MOST, TableView
from tests.store.conftest import drain, points

LONG = "<img src=x onerror=alert(1)>" + "x" * 10_000


@pytest.fixture
def sweep(store, db, make_world):
    """Four trainings of a sweep, one set-up cell, one verb of ours, and a training that logs nothing but takes long."""
    world = make_world(name="cnn")
    for number, (lr, opt, losses, accuracies) in enumerate(
        [
            (0.1, "sgd", [3.0, 1.0, 2.0], [0.2, 0.9, 0.5]),
            (0.01, "adam", [2.5, 1.5, 0.5], [0.1, 0.4, 0.8]),
            (0.001, "adam", [2.9, 2.8, 2.7], [0.1, 0.2, 0.15]),
            (0.01, "sgd", [float("nan"), 4.0, 5.0], []),
        ],
        1,
    ):
        world.begin(number, f"lr = {lr}\ntrain({number})", when=1000.0 * number)
        for rank in (0, 1):
            world.say(number, rank, points("loss", [value + rank for value in losses]))
        if accuracies:
            world.say(number, 0, points("val_acc", accuracies))
        world.say(number, 0, Configured({"lr": lr, "opt": opt, "layers": [8, 16], "amp": lr > 0.05}, "cell"))
        world.finish(number, when=1000.0 * number + 2)
    world.begin(5, "import this", when=5000.0)
    world.finish(5, when=5000.5)
    world.say(6, 0, Started(1, "h", "", source="resize()", ranks=[0], context=RunContext(aside=True)), when=6000.0)
    world.finish(6, [0], when=6000.5)
    world.begin(7, "work()", when=7000.0)
    drain(world.writer, db)
    db.execute("UPDATE runs SET batch = 'grid' WHERE number IN (1, 2)")
    db.execute("UPDATE runs SET heading = 'A CNN', cell = 4, notebook = '/home/a/shapes.ipynb' WHERE number = 3")
    db.execute("UPDATE runs SET elapsed = 60, outcome = 'ok', ended = 7060 WHERE number = 7")
    return store


def numbers(store, where="", **how):
    """The numbers of the runs that a filter lets through, in order."""
    return [run.number for run in store.select(where, **how).runs]


def test_a_list_has_trainings_and_never_our_own_verbs(sweep):
    """Those that log metrics, or take long; `everything` adds the other cells."""
    found = sweep.select()

    assert [run.number for run in found.runs] == [7, 4, 3, 2, 1]
    assert numbers(sweep, everything=True) == [7, 5, 4, 3, 2, 1]
    assert (found.total, found.trainings, found.all) == (5, 5, 6)
    assert [run.number for run in sweep.runs()] == [7, 5, 4, 3, 2, 1]
    assert [(one.name, one.runs, one.distinct, one.numeric) for one in found.configs] == [
        ("amp", 4, 2, False),
        ("layers", 4, 1, False),
        ("lr", 4, 3, True),
        ("opt", 4, 2, False),
    ]
    assert [(one.name, one.runs) for one in found.metrics] == [("loss", 4), ("val_acc", 3)]


def test_runs_whose_losses_have_other_names_stand_in_one_column(sweep, db, make_world):
    """That of training, whatever it is called; runs without one come last."""
    other = make_world(name="other")
    other.begin(1, "fit()", when=9000.0)
    other.say(1, 0, points("eval_loss", [0.01]), points("train_loss", [0.9, 0.7]))
    other.finish(1, when=9002.0)
    drain(other.writer, db)

    found = sweep.select(sort="last loss", columns=["last loss", "lowest loss"])

    assert [run.label for run in found.runs] == ["other/1", "cnn/2", "cnn/1", "cnn/3", "cnn/4", "cnn/7"]
    assert found.values[0] == [0.7, 0.7]
    assert found.values[-1] == [None, None]
    assert all(head.numeric for head in found.columns)


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("lr>0.005", [4, 2, 1]),
        ("lr:0.01 opt:adam", [2]),
        ("lr:0.1|0.001", [3, 1]),
        ("-lr:0.01", [7, 3, 1]),
        ("lr!=0.01", [3, 1]),
        ("opt:AD*", [3, 2]),
        ('opt="AD*"', []),
        ("opt~^s", [4, 1]),
        ("opt!~^s", [3, 2]),
        ("amp:true", [1]),
        ("layers:[8,16]", [4, 3, 2, 1]),
        ("lr:*", [4, 3, 2, 1]),
        ("-lr:*", [7]),
        ("loss<2", [2]),
        ("loss.min<=1", [2, 1]),
        ("loss.max>5", [4]),
        ("val_acc.max>0.7", [2, 1]),
        ("metric:val_acc.max>0.85", [1]),
        ("config:loss:*", []),
        ("group:grid", [2, 1]),
        ("group:*", [2, 1]),
        ("world:cnn number>=4", [7, 4]),
        ("run:cnn/3", [3]),
        ("id:1|2", [2, 1]),
        ("name:A*", [3]),
        ("heading:*", [3]),
        ("notebook:shapes.ipynb", [3]),
        ("outcome:ok", [7, 4, 3, 2, 1]),
        ("outcome:died", []),
        ("elapsed>30s", [7]),
        ("elapsed<0.5m", [4, 3, 2, 1]),
        ("started<1970-01-02", [7, 4, 3, 2, 1]),
        ("age<1d", []),
        ("ranks:2", [7, 4, 3, 2, 1]),
        ("kept:yes", []),
        ("adam", [3, 2]),
        ("train(2)", [2]),
        ('"A CNN"', [3]),
        ("-train", [7]),
        ("%", []),
        ("nobody:3", []),
    ],
)
def test_filters_choose_runs(sweep, where, found):
    """By fields, configuration, metrics and words."""
    assert numbers(sweep, where) == found


@pytest.mark.parametrize(
    ("where", "position", "words"),
    [
        ("lr:1 lr>x", 5, "'x' is no number"),
        ("outcome:done", 0, "choose ok, error, interrupted, lost or running"),
        ("started>yesterday", 0, "no date"),
        ("elapsed>long", 0, "is a duration"),
        ("kept:maybe", 0, "is yes or no"),
        ("name>3", 0, "is text"),
        ("number:a", 0, "no number"),
        ("tag<3", 0, "a tag is text"),
        ("text:a", 0, "its words alone"),
    ],
)
def test_a_condition_that_cannot_hold_says_where(sweep, where, position, words):
    with pytest.raises(BadFilter) as caught:
        sweep.select(where)

    assert words in str(caught.value)
    assert caught.value.position == position


def test_a_name_that_no_run_has_is_told(sweep):
    """A filter is no error for that: the next run may have it."""
    assert "named 'lrr'. Do you mean lr?" in sweep.select("lrr>1").hint
    assert "metric named 'val'" in sweep.select("metric:val>1").hint
    assert sweep.select("lr>1").hint == ""


def test_runs_are_sorted_by_any_column(sweep):
    """Those without a value come last in both directions; of equal ones the newest first."""
    assert numbers(sweep, sort="lr") == [3, 4, 2, 1, 7]
    assert numbers(sweep, sort="-config:lr") == [1, 4, 2, 3, 7]
    assert numbers(sweep, sort=["opt", "-loss.min"]) == [3, 2, 4, 1, 7]
    assert numbers(sweep, sort="-metric:val_acc:max") == [1, 2, 3, 7, 4]
    assert numbers(sweep, sort="metric:loss:at:val_acc:max") == [2, 1, 3, 7, 4]
    assert numbers(sweep, sort="run", limit=2, offset=1) == [2, 3]
    assert numbers(sweep, sort="-elapsed")[0] == 7
    assert numbers(sweep, sort="amp")[-1] == 7


def test_columns_have_values_of_each_run(sweep):
    """The loss at the best accuracy is the mean over the ranks, at the step of that."""
    found = sweep.select(columns=["lr", "val_acc.max", "metric:loss:at:val_acc:max", "layers", "group", "config:none"])

    assert [(head.key, head.title, head.numeric) for head in found.columns] == [
        ("config:lr", "lr", True),
        ("metric:val_acc:max", "highest val_acc", True),
        ("metric:loss:at:val_acc:max", "loss at highest val_acc", True),
        ("config:layers", "layers", False),
        ("group", "group", False),
        ("config:none", "none", False),
    ]
    assert found.values == [
        [None] * 6,
        [0.01, None, None, "[8,16]", None, None],
        [0.001, 0.2, 3.3, "[8,16]", None, None],
        [0.01, 0.8, 1.0, "[8,16]", "grid", None],
        [0.1, 0.9, 1.5, "[8,16]", "grid", None],
    ]
    assert "highest val_acc" in str(found)
    for wrong in (["nobody"], ["metric:loss"], ["metric:loss:mean"], ["config:"], ["lr"] * 61):
        with pytest.raises(BadFilter) as caught:
            sweep.select(columns=wrong)
        assert caught.value.option == "columns"
    with pytest.raises(BadFilter) as caught:
        sweep.select(sort="-nobody")
    assert caught.value.option == "sort"


def test_groups_stand_together_with_their_means(sweep):
    """In the order of their first runs; those without a value come last."""
    found = sweep.select(group="config:lr", sort="-val_acc.max", columns=["val_acc.max", "opt"])

    assert [run.number for run in found.runs] == [1, 2, 4, 3, 7]
    assert [(one.value, one.words, one.runs) for one in found.groups] == [
        (0.1, "lr: 0.1", 1),
        (0.01, "lr: 0.01", 2),
        (0.001, "lr: 0.001", 1),
        (None, "no lr", 1),
    ]
    assert found.groups[1].means == [0.8, None]
    assert found.places == [0, 1, 1, 2, 3]
    assert "no lr" in found.bundle()["text/html"]
    with pytest.raises(BadFilter, match="not by a metric"):
        sweep.select(group="metric:loss:last")


def test_words_in_a_name_come_before_words_in_a_cell(sweep):
    """A person who gave a run a name looks for that."""
    (run,) = sweep.select("number:1").runs
    run.name = "train with care"
    assert numbers(sweep, "train") == [1, 4, 3, 2]
    assert numbers(sweep, "cnn") == [3, 7, 4, 2, 1]
    assert numbers(sweep, "train", sort="-run") == [4, 3, 2, 1]


def test_a_changed_store_is_read_again(sweep, db, make_world):
    """Edits, deleted runs and new points are in the next list, and equal versions mean equal lists."""
    first = sweep.select()
    known = sweep.version
    run = first.runs[-1]
    run.edit(note="a better one", tags=["best"])
    assert sweep.version != known
    assert numbers(sweep, "tag:best") == [1]
    assert numbers(sweep, "better") == [1]
    run.delete()
    assert numbers(sweep) == [7, 4, 3, 2]
    world = make_world(name="later")
    world.begin(1)
    world.say(1, 0, points("loss", [9.0]))
    drain(world.writer, db)
    assert numbers(sweep, "loss>8.5 outcome:running") == [1]
    world.say(1, 0, points("loss", [0.25], first=1))
    drain(world.writer, db)
    assert sweep.select("loss<0.3").values == [[]]
    db.execute("UPDATE worlds SET ended = 8000 WHERE name = 'later'")
    assert numbers(sweep, "outcome:lost") == [1]


def test_what_does_not_change_is_read_once(sweep, monkeypatch):
    """A second list asks the file for the shown runs alone."""
    late = time.monotonic() + 60
    while "~" in sweep.version and time.monotonic() < late:
        time.sleep(0.02)
    sweep.select()
    monkeypatch.setattr(facts, "_read", lambda _: pytest.fail("the rows are read again"))
    assert numbers(sweep, "lr>0.005", sort="-loss.min") == [4, 1, 2]


def test_long_and_active_names_are_data(store, db, make_world):
    """Names of 10,000 characters, markup, quotes, and SQL: all are found, and none does anything."""
    world = make_world()
    world.begin(1, LONG)
    world.say(1, 0, points("loss", [1.0]), points(LONG[:200], [2.0]))
    drain(world.writer, db)
    wild = {LONG: LONG, "'; DROP TABLE runs; --": "x' OR '1'='1", "large": 1e300, "deep": {"a": [None, {"b": "<b>"}]}}
    db.execute("UPDATE runs SET config = ?, batch = ?, trains = 1", (json.dumps(wild), LONG))

    found = store.select(columns=[f"config:{LONG}", "group", "config:large", "deep"], group=f"config:{LONG}")
    assert found.total == 1
    assert len(found.values[0][0]) == 300
    assert found.values[0][2:] == [1e300, '{"a":[null,{"b":"<b>"}]}']
    html = found.bundle()["text/html"]
    assert "<img" not in html
    assert "<b>" not in html
    assert numbers(store, '"\'; DROP TABLE runs; --":*') == [1]
    assert numbers(store, "\"'; DROP TABLE runs; --\"=\"x' OR '1'='1\"") == [1]
    assert numbers(store, "\"x' OR '1'='1\"") == [1]
    assert numbers(store, "group:<img*") == [1]
    with pytest.raises(BadFilter, match="4,000 characters"):
        store.select(LONG)
    assert db.execute("SELECT count(*) FROM runs").fetchone() == (1,)


def test_a_damaged_row_does_not_hide_the_others(sweep, db):
    """It has no configuration and no tags."""
    db.execute("UPDATE runs SET config = '{\"lr', tags = '7' WHERE number = 2")
    assert numbers(sweep, "lr>0") == [4, 3, 1]
    assert 2 in [one.number for one in facts.read_facts(sweep).runs]


def test_views_are_saved_and_deleted(sweep):
    """Under a name, once; what cannot be read is refused."""
    view = TableView(" best first ", "lr>0.005", ["-val_acc.max"], ["lr"], "opt", everything=True)
    saved = sweep.save_view(view)

    assert sweep.views() == [saved]
    assert (saved.name, saved.columns) == ("best first", ["lr"])
    sweep.save_view(TableView("best first", "lr>1"))
    assert [one.where for one in sweep.views()] == ["lr>1"]
    for wrong, words in (
        (TableView("", "a"), "1 to 60 characters"),
        (TableView("x" * 61), "1 to 60 characters"),
        (TableView("a\nb"), "1 to 60 characters"),
        (TableView("a", "lr>"), "A value is missing"),
        (TableView("a", columns=["x" * 40_000]), "32,768 bytes"),
    ):
        with pytest.raises(BadRequest, match=words):
            sweep.save_view(wrong)
    with closing(open_for_writing(sweep.path)) as db:
        db.executemany("INSERT INTO views VALUES (?, '{\"')", [(f"v{number}",) for number in range(MOST)])
    assert [one.name for one in sweep.views()] == ["best first"]
    with pytest.raises(BadRequest, match="delete one first"):
        sweep.save_view(TableView("new"))
    sweep.delete_view("best first")
    with pytest.raises(BadRequest, match="no view 'best first'"):
        sweep.delete_view("best first")


def test_a_store_that_is_not_there_has_no_runs(store):
    found = store.select("lr>1", sort="started")
    assert (found.total, found.runs, found.version) == (0, [], "none+0")
    assert "No listed run has" in str(found)
    for wrong in ({"limit": 0}, {"limit": True}, {"offset": -1}):
        with pytest.raises(BadRequest):
            store.select(**wrong)
    assert Store(store.path).views() == []

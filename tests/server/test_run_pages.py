"""The list of runs, the page of a run, what it logged beside numbers, differences and views, as a page gets them."""

from __future__ import annotations

import json
import time
from contextlib import closing

import msgspec
import pytest
from tornado.httpclient import HTTPClientError

from jupyter_dtrain.core.events import (
    Acted,
    Configured,
    Environment,
    Error,
    Frame,
    MediaLogged,
    Output,
    RunContext,
    Started,
    Steered,
)
from jupyter_dtrain.store import Store
from jupyter_dtrain.store.provenance import RunCommit
from jupyter_dtrain.store.schema import open_for_writing
from tests.store.conftest import FakeWorld, drain, points

BEGAN = 1000.0
"""As the points of the tests have it."""
WILD = "<script>alert(1)</script>" + "x" * 10_000


@pytest.fixture
def jp_server_config(jp_server_config):
    """A server with our extension."""
    return {**jp_server_config, "ServerApp": {"jpserver_extensions": {"jupyter_dtrain.server": True}}}


@pytest.fixture
def runs(jp_environ, tmp_path):
    """The ids of a training, and of one that goes on with it and fails on rank 1."""
    world = FakeWorld(tmp_path)
    world.begin(1, "lr = 0.1\ntrain()", when=BEGAN)
    world.say(
        1, 0, Configured({"lr": 0.1, "seed": 1, "deep": {"a": [1, None]}}, "cell"), points("loss", [3.0, 2.0, 1.0])
    )
    world.say(1, 0, points("epoch", [0.0, 1.0, 2.0]))
    world.finish(1, when=BEGAN + 10)
    context = RunContext("/home/a/my notes.ipynb", "Shapes CNN", "grid", f"{world.owner.id}/1", first_step=2)
    for rank in (0, 1):
        started = Started(
            5, world.host, "", source="lr = 0.2\nfit()" if not rank else "", ranks=[] if rank else [0, 1], cell=4
        )
        world.say(2, rank, msgspec.structs.replace(started, context=context) if not rank else started, when=BEGAN + 1)
        world.say(2, rank, Environment("3.11.9", {"torch": "2.9"}, ["cpu"], folder="/home/a", cpus=2, memory=8))
        world.say(2, rank, Output("stdout", "".join(f"line {number}\n" for number in range(300))))
    world.say(2, 0, Configured({"lr": 0.2, "seed": 1}, "sent"), points("loss", [0.5, 0.25], first=2))
    error = Error("ValueError", "bad <b>", [Frame("cell", 2, "", "fit()", cell=True)])
    world.say(2, 1, error)
    for event in (
        Steered(1, "begun", 4, 3, "set", "set opt.lr=0.05", "a.ipynb"),
        Steered(1, "done", 4, found=Acted(text="0.1 -> 0.05")),
        Steered(1, "left", 4),
    ):
        world.say(2, 0, event)
    for number in range(3):
        world.say(2, 0, MediaLogged("samples", "image", 5, number, "image/png", b"PNG%d" % number, WILD))
    world.say(2, 1, MediaLogged("samples", "image", 6, 0, "image/svg+xml", b"<svg onload='alert(1)'/>"))
    world.say(2, 0, MediaLogged("words", "text", 5, 0, "text/plain", "<b>é</b>".encode(), left_out=4))
    world.say(2, 0, MediaLogged("page", "text", 5, 0, "text/html; charset=x", b"<script>1</script>"))
    world.finish(2, [0], when=BEGAN + 40)
    world.finish(2, [1], "error", when=BEGAN + 40)
    store = Store.open()
    with closing(open_for_writing(store.path)) as db:
        drain(world.writer, db)
        commit = RunCommit("1a2b", "main", message="Add", dirty=True, diff="+x", notes=["`.env` is left out."])
        db.execute("INSERT INTO commits VALUES (2, ?)", (msgspec.json.encode(commit),))
        db.execute("INSERT INTO happenings (run, time, words) VALUES (2, ?, 'Rank 1 was replaced.')", (BEGAN + 25,))
        db.execute("INSERT INTO tracked (run, tracker, target, words) VALUES (2, 'mlflow', 'http://x', 'It is down.')")
    world.close()
    return [run.id for run in reversed(store.runs())]


@pytest.fixture
def ask(jp_fetch):
    """Asks for an address below `dtrain`; returns status and answer."""

    async def fetch(*address, method="GET", body=None, **query):
        params = [
            (name, one) for name, value in query.items() for one in (value if isinstance(value, list) else [value])
        ]
        try:
            answer = await jp_fetch("dtrain", *address, method=method, body=body, params=params)
        except HTTPClientError as error:
            return error.code, json.loads(error.response.body)
        return answer.code, json.loads(answer.body)

    return fetch


async def test_the_list_has_chosen_columns_groups_and_what_may_be_chosen(ask, runs):
    """And the names of what a page may choose."""
    code, found = await ask(
        "runs", where="lr>0", sort=["-lr"], columns=["lr", "metric:loss:min", "config:deep"], group="group"
    )

    assert code == 200
    assert [run["id"] for run in found["runs"]] == [runs[1], runs[0]]
    first = found["runs"][0]
    assert (first["values"], first["place"], first["group"], first["resumes"]) == (
        [0.2, 0.25, None],
        0,
        "grid",
        runs[0],
    )
    assert (first["name"], first["code"], first["notebook"]) == ("Shapes CNN [4]", "fit()", "/home/a/my notes.ipynb")
    assert found["runs"][1]["values"] == [0.1, 1.0, '{"a":[1,null]}']
    assert [(group["value"], group["runs"], group["means"][0]) for group in found["groups"]] == [
        ("grid", 1, 0.2),
        (None, 1, 0.1),
    ]
    assert [head["title"] for head in found["columns"]] == ["lr", "lowest loss", "deep"]
    assert [one["name"] for one in found["configs"]] == ["lr", "deep", "seed"]
    assert [one["name"] for one in found["metrics"]] == ["loss", "epoch"]
    assert (found["total"], found["trainings"], found["all"], found["hint"]) == (2, 2, 2, "")


@pytest.mark.parametrize(
    ("query", "option", "position"),
    [
        ({"where": "a:b lr>"}, "where", 7),
        ({"where": "a:b lr>'; DROP TABLE runs"}, "where", 7),
        ({"where": "name~(a+)+"}, "where", 5),
        ({"where": WILD}, "where", 0),
        ({"columns": ["nobody"]}, "columns", 0),
        ({"sort": ["-" + WILD]}, "sort", 0),
        ({"group": "metric:loss:min"}, "group", 0),
    ],
)
async def test_what_cannot_be_read_has_its_place(ask, runs, query, option, position):
    """A page marks it in its field; the message is short, whatever was asked."""
    code, found = await ask("runs", **query)

    assert (code, found["option"], found["position"]) == (400, option, position)
    assert 10 < len(found["message"]) < 500
    assert (await ask("runs"))[1]["total"] == 2


async def test_a_page_asks_again_only_for_what_changed(ask, runs):
    """The version of an answer stands for it, until an edit."""
    late = time.monotonic() + 60
    version = "~"
    while "~" in version and time.monotonic() < late:  # a change in this tick of the clock has the same version
        version = (await ask("runs"))[1]["version"]
    code, found = await ask("runs", unless=version)
    assert (code, found["same"], found["runs"]) == (200, True, [])
    Store.open().run_with_id(runs[0]).edit(note="<b>new</b>")
    code, found = await ask("runs", unless=version)
    assert (found["same"], found["runs"][1]["note"]) == (False, "<b>new</b>")


async def test_the_page_of_a_run_has_all_that_is_known(ask, runs):
    """Cause and traceback, environment once for all ranks, what happened in order, and lines that run it again."""
    code, page = await ask("runs", str(runs[1]), "page")

    assert code == 200
    assert page["config"] == [
        {"name": "lr", "value": 0.2, "origin": "sent"},
        {"name": "seed", "value": 1, "origin": "sent"},
    ]
    (failure,) = page["failures"]
    assert (failure["ranks"], failure["words"], failure["echo"]) == ([1], "ValueError: bad <b>", False)
    assert "fit()" in failure["traceback"]
    assert [(one["rank"], one["outcome"]) for one in page["ranks"]] == [(0, "ok"), (1, "error")]
    (environment,) = page["environments"]
    assert (environment["ranks"], environment["packages"], environment["cpus"]) == ([0, 1], {"torch": "2.9"}, 2)
    assert (page["commit"]["hash"], page["commit"]["notes"]) == ("1a2b", ["`.env` is left out."])
    assert page["happenings"][0] == {"seconds": 24.0, "step": None, "words": "Rank 1 was replaced."}
    assert "opt.lr=0.05, by a.ipynb" in page["happenings"][1]["words"]
    before = page["lineage"][0]["label"]
    assert page["cells"] == (
        f"%%distributed -n 2 --group grid --resume {before}\nlr = 0.2  # the notebook had sent it\n"
        "seed = 1  # the notebook had sent it\nlr = 0.2\nfit()"
    )
    assert page["job"] == "jupyter dtrain export '/home/a/my notes.ipynb' --to torchrun -n 2"
    (tail,) = page["tails"]
    assert (tail["ranks"], tail["lines"][-1], len(tail["lines"]), tail["more"]) == ([0, 1], "line 299", 100, True)
    assert [one["id"] for one in page["lineage"]] == runs
    assert page["trackers"] == [{"tracker": "mlflow", "target": "http://x", "done": False, "words": "It is down."}]
    assert [(one["name"], one["kept"], one["logged"]) for one in page["media"]] == [
        ("samples", 4, 4),
        ("words", 1, 5),
        ("page", 1, 1),
    ]
    assert [file["title"] for file in page["files"]][-1] == "Notebook"
    first = (await ask("runs", str(runs[0]), "page"))[1]
    assert [one["id"] for one in first["continued"]] == [runs[1]]
    assert (first["lineage"], first["commit"], first["job"]) == ([], None, "")
    assert (await ask("runs", "999", "page"))[0] == 404


async def test_metrics_of_a_chain_and_the_epoch_as_an_axis(ask, runs):
    """The step from which the later run went on is its own."""
    code, alone = await ask("runs", str(runs[1]), "metrics")
    assert (code, alone["resumes"], alone["first_step"], alone["lineage"], alone["epochs"]) == (200, runs[0], 2, [], [])
    assert alone["metrics"][0]["steps"] == [2, 3]
    whole = (await ask("runs", str(runs[1]), "metrics", lineage=1))[1]
    (loss,) = whole["metrics"]
    assert (loss["steps"], loss["values"]) == ([0, 1, 2, 3], [3.0, 2.0, 0.5, 0.25])
    assert loss["times"] == sorted(loss["times"])
    assert [(part["id"], part["first_step"]) for part in whole["lineage"]] == [(runs[0], 0), (runs[1], 2)]
    first = (await ask("runs", str(runs[0]), "metrics"))[1]
    assert [column["name"] for column in first["metrics"]] == ["loss"]
    assert first["epochs"][0]["values"] == [0.0, 1.0, 2.0]


async def test_media_are_listed_by_name(ask, runs):
    """Each with its step and rank, and without its data."""
    code, found = await ask("runs", str(runs[1]), "media", name="samples")
    assert code == 200
    assert found["names"][0]["steps"] == [5, 6]
    assert [(one["step"], one["rank"], one["number"], one["bytes"]) for one in found["media"]] == [
        (5, 0, 0, 4),
        (5, 0, 1, 4),
        (5, 0, 2, 4),
        (6, 1, 0, 24),
    ]
    assert found["media"][0]["caption"] == WILD
    assert len((await ask("runs", str(runs[1]), "media", name="samples", rank=1))[1]["media"]) == 1
    assert (await ask("runs", str(runs[1]), "media"))[1]["media"] == []
    assert (await ask("runs", str(runs[1]), "media", name="nobody' OR 1=1"))[1]["media"] == []


async def test_media_never_run_anything_in_a_browser(jp_fetch, ask, runs):
    """Types that are safe are sent as they are; all others to be saved, and none is guessed."""
    kinds = {}
    for name in ("samples", "words", "page"):
        for one in (await ask("runs", str(runs[1]), "media", name=name))[1]["media"]:
            answer = await jp_fetch("dtrain", "media", str(one["id"]))
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
            assert len(answer.body) == one["bytes"]
            kinds[one["mime"]] = (answer.headers["Content-Type"], "Content-Disposition" in answer.headers)
    assert kinds == {
        "image/png": ("image/png", False),
        "image/svg+xml": ("application/octet-stream", True),
        "text/plain": ("text/plain; charset=utf-8", False),
        "text/html; charset=x": ("application/octet-stream", True),
    }
    for wrong, code in (("999", 404), ("5" * 40, 400)):
        assert (await ask("media", wrong))[0] == code
    Store.open().run_with_id(runs[1]).delete()
    assert (await ask("media", "1"))[0] == 404


async def test_what_differs_between_runs(ask, runs):
    """The order of the ids is that of the values."""
    code, found = await ask("runs", "differences", ids=f"{runs[1]},{runs[0]}")
    assert code == 200
    assert {"name": "lr", "values": [0.2, 0.1]} in found["config"]
    assert (found["same"], [one["label"] for one in found["runs"]]) == (1, ["world/2", "world/1"])
    assert "+train()" in found["code"][0]["diff"]
    for wrong in ("", "1", f"{runs[0]},{runs[0]}", "a,b", ",".join(map(str, range(1, 60)))):
        assert (await ask("runs", "differences", ids=wrong))[0] == 400
    assert (await ask("runs", "differences", ids=f"{runs[0]},999"))[0] == 404


async def test_views_are_saved_under_names_with_any_character(ask, runs):
    """And are part of the list's answer."""
    name = "best of <b> ü"
    body = json.dumps({"where": "lr>0.1", "columns": ["lr"], "sort": ["-lr"]})
    code, saved = await ask("views", name, method="PUT", body=body)
    assert (code, saved["name"], saved["where"]) == (200, name, "lr>0.1")
    assert (await ask("views"))[1] == {"views": [saved]}
    assert (await ask("runs"))[1]["views"] == [saved]
    for wrong in ('{"where": "lr>"}', '{"where": 3}', '{"other": 1}', "[]", "{"):
        assert (await ask("views", "a", method="PUT", body=wrong))[0] == 400
    assert (await ask("views", "x" * 61, method="PUT", body="{}"))[0] == 400
    assert await ask("views", name, method="DELETE") == (200, {})
    assert (await ask("views", name, method="DELETE"))[0] == 404

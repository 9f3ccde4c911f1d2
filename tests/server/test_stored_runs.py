"""The points of stored runs, as charts and files get them. A test writes the spools, and needs no world."""

from __future__ import annotations

import csv
import io
import json
import math
from contextlib import closing

import pytest
from tornado.httpclient import HTTPClientError

from jupyter_dtrain.core.events import Gpu, Metrics, Sample
from jupyter_dtrain.core.metrics import Columns, pack
from jupyter_dtrain.store import Store
from jupyter_dtrain.store.schema import open_for_writing
from tests.store.conftest import FakeWorld, drain

BEGAN = 1_000_000.0
"""Seconds since the epoch at which the run starts."""
POINTS = 5000


def series(name, values):
    """Points of one metric, a tenth of a second apart."""
    columns = Columns.empty()
    for step, value in enumerate(values):
        columns.steps.append(step)
        columns.times.append(BEGAN + 0.1 * step)
        columns.values.append(value)
    return Metrics([pack(name, columns)])


@pytest.fixture
def jp_server_config(jp_server_config):
    """A server with our extension."""
    return {**jp_server_config, "ServerApp": {"jpserver_extensions": {"jupyter_dtrain.server": True}}}


@pytest.fixture
def run(jp_environ, tmp_path):
    """The number of a stored run of two ranks: a loss with a spike and a NaN, a rate on one rank, and a GPU."""
    world = FakeWorld(tmp_path)
    world.begin(1, source="train()", when=BEGAN)
    losses = [1 / (step + 1) for step in range(POINTS)]
    losses[3333], losses[4001] = 99.0, -99.0
    world.say(1, 0, series("loss", losses), series("rate, in %", [0.5]))
    world.say(1, 1, series("loss", [math.nan, 2.0, math.inf, 1.0]))
    gpu = Gpu(0, 80.0, 10, 100)
    world.say(1, 0, Sample(150.0, 1000), Sample(50.0, 2000, 7, gpu), when=BEGAN + 2)
    world.finish(1, when=BEGAN + 600)
    store = Store.open()
    with closing(open_for_writing(store.path)) as db:
        drain(world.writer, db)
    world.close()
    return store.runs(1)[0].id


async def test_a_run_comes_as_columns_that_keep_its_extremes(jp_fetch, run):
    """Few points are all there, times count from the run's start, and what is not finite is null."""
    answer = json.loads((await jp_fetch("dtrain", "runs", str(run), "metrics", params={"points": 100})).body)
    columns = {(column["name"], column["rank"]): column for column in answer["metrics"]}
    used = {column["name"]: column for column in answer["resources"]}
    long = columns["loss", 0]

    assert answer["id"] == run
    assert set(columns) == {("loss", 0), ("loss", 1), ("rate, in %", 0)}
    assert 50 < len(long["values"]) <= 102
    assert (max(long["values"]), min(long["values"])) == (99.0, -99.0)
    assert (long["steps"][0], long["steps"][-1], long["times"][0], long["times"][-1]) == (0, 4999, 0.0, 499.9)
    assert long["steps"][long["values"].index(99.0)] == 3333
    assert columns["loss", 1] == {
        "name": "loss",
        "rank": 1,
        "steps": [0, 1, 2, 3],
        "times": [0, 0.1, 0.2, 0.3],
        "values": [None, 2.0, None, 1.0],
    }
    assert used["cpu"] == {"name": "cpu", "rank": 0, "steps": [None, 7], "times": [2, 2], "values": [150, 50]}
    assert used["gpu utilisation"]["values"] == [80]


async def test_a_run_comes_as_a_table_with_all_its_points(jp_fetch, run):
    """Each row says what it is; a name with a comma stays one field."""
    answer = await jp_fetch("dtrain", "runs", str(run), "csv")
    rows = list(csv.DictReader(io.StringIO(answer.body.decode())))
    losses = [row for row in rows if (row["kind"], row["name"], row["rank"]) == ("metric", "loss", "0")]

    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="run-{run}.csv"'
    assert [int(row["step"]) for row in losses] == list(range(POINTS))
    assert float(losses[3333]["value"]) == 99
    assert {"kind": "metric", "name": "rate, in %", "rank": "0", "step": "0", "seconds": "0.0", "value": "0.5"} in rows
    assert [row["value"] for row in rows if row["name"] == "loss" and row["rank"] == "1"] == [
        "nan",
        "2.0",
        "inf",
        "1.0",
    ]
    assert [row["step"] for row in rows if row["name"] == "rss"] == ["", "7"]


@pytest.mark.parametrize("part", ["metrics", "csv"])
async def test_the_points_of_a_run_that_is_not_there(jp_fetch, run, part):
    """The answer says so; a number that is none is refused."""
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch("dtrain", "runs", str(run + 1), part)
    assert (caught.value.code, json.loads(caught.value.response.body)["message"]) == (
        404,
        "This run is no longer kept.",
    )
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch("dtrain", "runs", "5" * 5000, part)
    assert caught.value.code == 400


async def test_a_strange_number_of_points(jp_fetch, run):
    """None at all is refused; too few and too many become the nearest that is possible."""
    sizes = []
    for points in ("-5", "99999999"):
        answer = await jp_fetch("dtrain", "runs", str(run), "metrics", params={"points": points})
        sizes.append(len(json.loads(answer.body)["metrics"][0]["values"]))
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch("dtrain", "runs", str(run), "metrics", params={"points": "many"})

    assert sizes[0] <= 18
    assert sizes[1] == POINTS
    assert caught.value.code == 400

"""The points of a stored run: as columns for charts, and as a table in a file.

The store is read in a thread, so that a long run keeps no other request waiting. A file is written in pieces, each as
the client takes it. A run that is deleted meanwhile ends the file early; a page's request for it fails with 404.
"""

from __future__ import annotations

import asyncio
import csv
import io
import math
from collections.abc import Iterator
from http import HTTPStatus
from itertools import islice

import msgspec
from jupyter_server.auth.decorator import authorized
from tornado import web
from tornado.iostream import StreamClosedError

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.metrics import Columns, RunMetrics
from jupyter_dtrain.store import Store, StoredRun

from .messages import Column, RunColumns
from .requests import ApiHandler, number, reports_errors

POINTS = 2000
"""Points of a column, unless the page names another number."""
FEWEST, MOST = 16, 20_000
"""The range of that number."""
BUDGET = 400_000
"""Points of an answer: where many ranks have many metrics, each column gets fewer."""
CSV = "text/csv; charset=utf-8"
PIECE = 5000
"""Rows that are written at once."""
FIELDS = ("kind", "name", "rank", "step", "seconds", "value")


class RunPoints(ApiHandler):
    """``/dtrain/runs/ID/metrics``."""

    @web.authenticated
    @authorized
    @reports_errors
    async def get(self, text: str) -> None:
        """The run's columns, each with about ``points`` points at most: the lowest and highest of every stretch."""
        run = number(text, "The id of a run")
        points = min(MOST, max(FEWEST, number(self.get_query_argument("points", str(POINTS)), "points")))
        found = await asyncio.to_thread(_encoded_columns, run, points)
        if found is None:
            self.fail(HTTPStatus.NOT_FOUND, "This run is no longer kept.")
        else:
            self.finish(found)


class RunCsv(ApiHandler):
    """``/dtrain/runs/ID/csv``."""

    @web.authenticated
    @authorized
    @reports_errors
    async def get(self, text: str) -> None:
        """All points of the run, one a row; what is not finite is ``nan``, ``inf`` or ``-inf``."""
        run = number(text, "The id of a run")
        found = await asyncio.to_thread(find_run, run)
        if found is None:
            self.fail(HTTPStatus.NOT_FOUND, "This run is no longer kept.")
            return
        pieces = _csv(found)
        piece = await asyncio.to_thread(next, pieces)
        self.set_header("Content-Type", CSV)
        self.set_header("Content-Disposition", f'attachment; filename="run-{run}.csv"')
        while piece:
            self.write(piece)
            try:
                await self.flush()
            except StreamClosedError:
                return
            piece = await asyncio.to_thread(next, pieces, "")
        self.finish(set_content_type=CSV)


def find_run(run: int) -> StoredRun | None:
    """The stored run with this id; None where it was deleted."""
    try:
        return Store.open().run_with_id(run)
    except BadRequest:
        return None


def _encoded_columns(run: int, points: int) -> bytes | None:
    found = find_run(run)
    if found is None:
        return None
    metrics, resources = found.metrics, found.resources
    columns = sum(len(ranks) for part in (metrics, resources) for ranks in part.values())
    points = max(FEWEST, min(points, BUDGET // max(1, columns)))
    answer = RunColumns(found.id, _columns(metrics, found.started, points), _columns(resources, found.started, points))
    return msgspec.json.encode(answer)  # which writes null for what is not finite


def _columns(metrics: RunMetrics, started: float, points: int) -> list[Column]:
    return [
        _column(name, rank, columns.thinned(points), started)
        for name, ranks in metrics.items()
        for rank, columns in sorted(ranks.items())
    ]


def _column(name: str, rank: int, columns: Columns, started: float) -> Column:
    steps = [step if step >= 0 else None for step in columns.steps]
    times = [round(time - started, 4) for time in columns.times]
    return Column(name, rank, steps, times, list(columns.values))


def _csv(run: StoredRun) -> Iterator[str]:
    rows = _rows(run)
    piece: list[tuple[str | int | float, ...]] = [FIELDS]
    while piece:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(piece)
        yield text.getvalue()
        piece = list(islice(rows, PIECE))


def _rows(run: StoredRun) -> Iterator[tuple[str | int | float, ...]]:
    for kind, metrics in (("metric", run.metrics), ("resource", run.resources)):
        for name, ranks in metrics.items():
            for rank, columns in sorted(ranks.items()):
                for step, time, value in zip(*columns, strict=True):
                    seconds = round(time - run.started, 6) if math.isfinite(time) else time
                    yield kind, name, rank, step if step >= 0 else "", seconds, value

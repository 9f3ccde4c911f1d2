"""Requests about stored runs: the list of them, one run and its edits; its points as columns for charts and as a file.

The store is read in a thread, so that a long run keeps no other request waiting. A file is written in pieces, each as
the client takes it. A run that is deleted meanwhile ends the file early; a page's request for it fails with 404.
"""

from __future__ import annotations

import asyncio
import csv
import io
import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from tornado.iostream import StreamClosedError

from jupyter_dtrain.core.errors import BadRequest, Refused
from jupyter_dtrain.core.metrics import Columns, RunMetrics
from jupyter_dtrain.core.run_names import telling_line
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.store import Store, StoredRun
from jupyter_dtrain.store.filters import together
from jupyter_dtrain.store.lineage import joined
from jupyter_dtrain.store.run_columns import CellValue
from jupyter_dtrain.view.document import document
from jupyter_dtrain.view.labels import ending_of
from jupyter_dtrain.view.step_time import packed
from jupyter_dtrain.view.stored import picture

from .messages import Column, LineagePart, RunColumns, RunListing
from .messages import StoredRun as StoredRunSummary
from .requests import MOST, ApiHandler, NotFound, guarded, number

POINTS = 2000
"""Points of a column, unless the page names another number."""
FEWEST_POINTS, MOST_POINTS = 16, 20_000
"""The range of that number."""
BUDGET = 400_000
"""Points of an answer: where many ranks have many metrics, each column gets fewer."""
CSV = "text/csv; charset=utf-8"
PIECE = 5000
"""Rows that are written at once."""
MOST_RUNS = 2000
"""The most stored runs in one answer."""
SOURCE, SOURCES = 4000, 1_000_000
"""Characters of a cell in an answer, and of all cells in it together."""
EPOCH = "epoch"
"""The metric that is an axis of the others, and has no chart."""
DOCUMENT_BYTES = 190_000
"""The size of a stored run's document."""
FIELDS = ("kind", "name", "rank", "step", "seconds", "value")


class RunsHandler(ApiHandler):
    """``/dtrain/runs``: the store."""

    @guarded
    async def get(self) -> None:
        """The newest trainings, or ``everything``: ``limit`` of them after ``offset``, with the chosen ``columns``.

        ``where`` is a filter, ``sort`` an order, ``group`` what groups of them have in common. ``unless`` is the
        version of an earlier answer: nothing comes where it is still true.
        """
        limit = min(MOST_RUNS, max(1, number(self.get_query_argument("limit", "50"), "limit")))
        offset = min(MOST, max(0, number(self.get_query_argument("offset", "0"), "offset")))
        wanted = ListWanted(
            self._filter(),
            self.get_query_arguments("sort", strip=False),
            self.get_query_arguments("columns", strip=False),
            self.get_query_argument("group", "", strip=False),
            self.get_query_argument("everything", "") not in ("", "0", "false"),
            limit,
            offset,
            self.get_query_argument("unless", ""),
        )
        self.finish(await asyncio.to_thread(encoded_list, wanted))

    def _filter(self) -> str:
        """The filter, with what older pages ask for in arguments of its own."""
        fields = {name: self.get_query_argument(name, "") or None for name in ("world", "outcome", "tag")}
        search = self.get_query_argument("search", "")
        found = together(self.get_query_argument("where", "", strip=False), search=search, **fields)
        before = self.get_query_argument("before", "")
        return f"{found} id<{number(before, 'before')}" if before else found


class ListWanted(NamedTuple):
    """A request for the list of runs; see :meth:`Store.select`."""

    where: str
    sort: list[str]
    columns: list[str]
    group: str
    everything: bool
    limit: int
    offset: int
    unless: str


class StoredRunHandler(ApiHandler):
    """``/dtrain/runs/ID``."""

    @guarded
    async def get(self, text: str) -> None:
        """One stored run, as a document that draws it."""
        await self._answer_with(
            text, lambda run: {"document": document(picture(run), DOCUMENT_BYTES), "source": run.source}
        )

    @guarded
    async def patch(self, text: str) -> None:
        """Change its ``name``, ``note``, ``tags`` or ``kept``; the answer is the run."""
        changes = msgspec.convert(self.body(), readable(Changes))

        def change(run: StoredRun) -> StoredRunSummary:
            run.edit(**msgspec.structs.asdict(changes))
            return summary(run)

        await self._answer_with(text, change)

    @guarded
    async def delete(self, text: str) -> None:
        """Remove it, unless it runs or is kept."""

        def remove(run: StoredRun) -> dict[str, Any]:
            try:
                run.delete()
            except BadRequest as error:
                raise Refused(str(error)) from None
            return {}

        await self._answer_with(text, remove)

    async def _answer_with(self, text: str, act: Callable[[StoredRun], dict[str, Any] | StoredRunSummary]) -> None:
        """Answer with what ``act`` makes of the run whose id is ``text``."""
        run = await asyncio.to_thread(find_run, number(text, "The id of a run"))
        self.answer(await asyncio.to_thread(act, run))


class Changes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A page's changes of a stored run; null leaves a part as it is."""

    name: str | None = None
    note: str | None = None
    tags: list[str] | None = None
    kept: bool | None = None


class RunPoints(ApiHandler):
    """``/dtrain/runs/ID/metrics``."""

    @guarded
    async def get(self, text: str) -> None:
        """The run's columns, each with about ``points`` points at most: the lowest and highest of every stretch.

        ``lineage``: the metrics of the runs that it goes on with, too, as those of one.
        """
        run = number(text, "The id of a run")
        points = min(MOST_POINTS, max(FEWEST_POINTS, number(self.get_query_argument("points", str(POINTS)), "points")))
        whole = self.get_query_argument("lineage", "") not in ("", "0", "false")
        self.finish(await asyncio.to_thread(_encoded_columns, run, points, whole=whole))


class RunCsv(ApiHandler):
    """``/dtrain/runs/ID/csv``."""

    @guarded
    async def get(self, text: str) -> None:
        """All points of the run, one a row; what is not finite is ``nan``, ``inf`` or ``-inf``."""
        run = number(text, "The id of a run")
        pieces = _csv(await asyncio.to_thread(find_run, run))
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


def find_run(run: int) -> StoredRun:
    """The stored run with this id. Raises :class:`NotFound` where it was deleted."""
    try:
        return Store.open().run_with_id(run)
    except BadRequest:
        raise NotFound("This run is no longer kept.") from None


def encoded_list(wanted: ListWanted) -> bytes:
    """The list that a page has asked for, as JSON. Raises :class:`BadRequest` and :class:`StoreFailed`."""
    store = Store.open()
    if wanted.unless and wanted.unless == store.version:
        return msgspec.json.encode(RunListing(wanted.unless, same=True))
    found = store.select(
        wanted.where,
        sort=wanted.sort,
        columns=wanted.columns,
        group=wanted.group,
        everything=wanted.everything,
        limit=wanted.limit,
        offset=wanted.offset,
    )
    room = min(SOURCE, SOURCES // max(1, len(found.runs)))
    answer = RunListing(
        version=found.version,
        runs=[
            summary(run, room, values, found.places[place] if found.places else None)
            for place, (run, values) in enumerate(zip(found.runs, found.values, strict=True))
        ],
        total=found.total,
        trainings=found.trainings,
        all=found.all,
        columns=found.columns,
        groups=found.groups,
        configs=found.configs,
        metrics=found.metrics,
        views=store.views(),
        hint=found.hint,
    )
    return msgspec.json.encode(answer)  # which writes null for what is not finite


def summary(
    run: StoredRun, room: int = SOURCE, values: list[CellValue] | None = None, place: int | None = None
) -> StoredRunSummary:
    """A stored run as a page lists it, with ``room`` characters of its cell."""
    return StoredRunSummary(
        id=run.id,
        name=run.name,
        note=run.note,
        tags=run.tags,
        kept=run.kept,
        world=run.world,
        number=run.number,
        ranks=len(run.ranks),
        size=run.size,
        outcome=run.outcome,
        remark=run.remark,
        ending=ending_of(run),
        started=run.started,
        elapsed=run.elapsed,
        source=run.source[:room],
        losses=run.losses,
        code=telling_line(run.source),
        group=run.group,
        heading=run.heading,
        notebook=run.notebook,
        cell=run.cell,
        resumes=run.resumes,
        training=run.training,
        values=values or [],
        place=place,
    )


def _encoded_columns(run: int, points: int, *, whole: bool) -> bytes:
    found = find_run(run)
    chain = found.lineage if whole and found.resumes is not None else []
    metrics, segments = joined(chain) if chain[1:] else (found.metrics, [])
    started = chain[0].started if segments else found.started
    resources = found.resources
    columns = sum(len(ranks) for part in (metrics, resources) for ranks in part.values())
    points = max(FEWEST_POINTS, min(points, BUDGET // max(1, columns)))
    spent = found.step_summary
    drawn = _columns(metrics, started, points)
    answer = RunColumns(
        found.id,
        [one for one in drawn if one.name != EPOCH],
        _columns(resources, found.started, points),
        None if spent is None else packed(spent),
        epochs=[one for one in drawn if one.name == EPOCH],
        resumes=found.resumes,
        first_step=found.first_step,
        lineage=[
            LineagePart(one.id, one.label, one.name, part.first_step, part.since)
            for one, part in zip(chain, segments, strict=False)
        ],
    )
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

"""Requests for the page of a stored run: all that is known of it, what it has logged beside numbers, and differences.

What was logged is data of cells: it is sent with a type that runs nothing in a browser, or to be saved as a file.
The store is read in a thread. A run that is deleted meanwhile ends a request with 404.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from jupyter_dtrain.core.causes import distinct, is_echo, told_below
from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.events import Environment
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.store import Comparison, Store, StoredRun
from jupyter_dtrain.store.run_page import (
    commit_of,
    happenings_of,
    lines_again,
    media_heads,
    media_names,
    medium,
    trackers_of,
)
from jupyter_dtrain.store.views import TableView

from .messages import (
    ConfigValue,
    MediaIndex,
    PageEnvironment,
    PageFailure,
    PageFile,
    PageHappening,
    PageRank,
    PageTail,
    RunDifferences,
    RunLink,
    RunPage,
)
from .requests import ApiHandler, NotFound, guarded, number
from .stored_runs import find_run, summary

SAFE: Final = {
    **{one: one for one in ("image/png", "image/jpeg", "image/gif", "image/webp")},
    **{one: one for one in ("audio/wav", "audio/mpeg", "audio/ogg")},
    "text/plain": "text/plain; charset=utf-8",
    "application/json": "application/json",
    "application/vnd.plotly.v1+json": "application/json",
}
"""The types that what a run has logged is sent with, by its own: none of them runs anything."""
OTHER: Final = "application/octet-stream"
MOST_COMPARED: Final = 50
"""Runs whose differences one answer has."""
TAIL: Final = 100
"""Last lines of a rank."""
WIDE: Final = 2000
"""Characters of one of them."""
TAILS: Final = 64
"""Different ends of output on a page."""
FAILURES: Final = 64


class RunPageHandler(ApiHandler):
    """``/dtrain/runs/ID/page``."""

    @guarded
    async def get(self, text: str) -> None:
        """All of a stored run but its curves and its picture."""
        run = number(text, "The id of a run")
        self.finish(await asyncio.to_thread(lambda: msgspec.json.encode(_page(find_run(run)))))


class RunMediaHandler(ApiHandler):
    """``/dtrain/runs/ID/media``."""

    @guarded
    async def get(self, text: str) -> None:
        """What the run has logged beside numbers: all names, and each thing of ``name``, on all ranks or ``rank``."""
        run = number(text, "The id of a run")
        name = self.get_query_argument("name", None, strip=False)
        given = self.get_query_argument("rank", "")
        rank = number(given, "rank") if given else None
        self.finish(await asyncio.to_thread(_encoded_media, run, name, rank))


class MediumHandler(ApiHandler):
    """``/dtrain/media/ID``."""

    @guarded
    async def get(self, text: str) -> None:
        """The data of one thing that a run has logged."""
        found = await asyncio.to_thread(medium, Store.open(), number(text, "The id of a medium"))
        if found is None:
            raise NotFound("What was logged is no longer kept.")
        mime, data = found
        kind = SAFE.get(mime.partition(";")[0].strip().lower(), OTHER)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", "default-src 'none'; sandbox")
        # Numbers are given again once a run is deleted: a browser asks each time, and gets 304 for what it has.
        self.set_header("Cache-Control", "private, no-cache")
        if kind == OTHER:
            self.set_header("Content-Disposition", f'attachment; filename="medium-{int(text)}.bin"')
        self.write(data)
        self.finish(set_content_type=kind)


class RunDifferencesHandler(ApiHandler):
    """``/dtrain/runs/differences``."""

    @guarded
    async def get(self) -> None:
        """What differs between the runs ``ids``, such as ``7,9``; code is compared with that of the first."""
        given = [one for one in self.get_query_argument("ids", "").split(",") if one]
        ids = list(dict.fromkeys(number(one, "The id of a run") for one in given))
        if not 0 < len(ids) <= MOST_COMPARED:
            raise BadRequest(f"Name the runs to compare, 2 to {MOST_COMPARED}: ids=7,9.", option="ids")
        self.finish(await asyncio.to_thread(_encoded_differences, ids))


class ViewsHandler(ApiHandler):
    """``/dtrain/views``."""

    @guarded
    async def get(self) -> None:
        """The saved views of the list of runs."""
        self.answer({"views": await asyncio.to_thread(lambda: Store.open().views())})


class ViewHandler(ApiHandler):
    """``/dtrain/views/NAME``."""

    @guarded
    async def put(self, name: str) -> None:
        """Save a view under this name."""
        view = msgspec.convert(self.body(), readable(TableView))
        named = msgspec.structs.replace(view, name=name)
        self.answer(await asyncio.to_thread(lambda: Store.open().save_view(named)))

    @guarded
    async def delete(self, name: str) -> None:
        """Remove it."""
        try:
            await asyncio.to_thread(lambda: Store.open().delete_view(name))
        except BadRequest as error:
            raise NotFound(str(error)) from None
        self.answer({})


def _page(run: StoredRun) -> RunPage:
    store = Store.open()
    environments = run.environments
    first = environments.get(min(environments, default=-1))
    cells, job = lines_again(run, [] if first is None else first.command)
    origins, chain = run.origins, run.lineage
    return RunPage(
        run=summary(run),
        source=run.source,
        config=[ConfigValue(name, value, origins.get(name, "")) for name, value in run.config.items()],
        failures=_failures(run),
        ranks=_ranks(run),
        environments=_environments(environments.items()),
        commit=commit_of(store, run.id),
        happenings=_happenings(run, happenings_of(store, run.id)),
        files=_files(run),
        cells=cells,
        job=job,
        tails=_tails(run),
        media=media_names(store, run.id),
        lineage=_links(chain) if chain[1:] else [],
        continued=_links(run.continued),
        trackers=trackers_of(store, run.id),
    )


def _links(runs: Iterable[StoredRun]) -> list[RunLink]:
    return [RunLink(run.id, run.label, run.name) for run in runs]


def _failures(run: StoredRun) -> list[PageFailure]:
    """Why it failed, the cause first, once for all ranks that share it."""
    parts = run.parts
    pids = {rank: part.pid for rank, part in parts.items()}
    found = [
        PageFailure(
            ranks,
            f"{error.ename}: {error.evalue}" if error.evalue else error.ename,
            told_below("", error, run.source).strip("\n"),
            is_echo(error),
        )
        for error, ranks in distinct(run.errors, pids)
    ]
    words: dict[str, list[int]] = {}
    for rank, part in parts.items():
        if part.words:
            words.setdefault(part.words, []).append(rank)
    found += [PageFailure(ranks, said, "", echo=False) for said, ranks in words.items()]
    return sorted(found, key=lambda one: one.echo)[:FAILURES]


def _ranks(run: StoredRun) -> list[PageRank]:
    outcomes = run.outcomes
    parts = run.parts
    return [
        PageRank(
            rank,
            part.host if part is not None else "",
            part.pid if part is not None else 0,
            outcomes.get(rank, "running"),
            part.words if part is not None else "",
            part.elapsed if part is not None else None,
            part.bytes if part is not None else 0,
        )
        for rank in sorted({*run.ranks, *parts})
        for part in (parts.get(rank),)
    ]


def _environments(told: Iterable[tuple[int, Environment]]) -> list[PageEnvironment]:
    """Each environment once, with its ranks."""
    found: list[tuple[Environment, list[int]]] = []
    for rank, one in told:
        ranks = next((ranks for known, ranks in found if known == one), None)
        if ranks is None:
            found.append((one, [rank]))
        else:
            ranks.append(rank)
    return [PageEnvironment(ranks, **msgspec.structs.asdict(one)) for one, ranks in found]


def _happenings(run: StoredRun, told: list[tuple[float, str]]) -> list[PageHappening]:
    """What happened to it, in order, with what persons asked of its loop where no sentence tells of that."""
    found: list[tuple[float, int | None, str]] = [(time, None, words) for time, words in told]
    for act in run.acts:
        # Sentences begin with a capital letter, what was asked for need not.
        if not any(words.lower().startswith(act.words[:40].lower()) for _, _, words in found):
            by = f", by {act.by}" if act.by else ""
            found.append((act.time, act.at, f"{act.words}{by}: {act.said}"))
    found.sort(key=lambda one: one[0])
    return [PageHappening(round(time - run.started, 3), step, words) for time, step, words in found]


def _files(run: StoredRun) -> list[PageFile]:
    here = socket.gethostname()
    found: list[PageFile] = []
    for rank, part in run.parts.items():
        if part.spool:
            there = part.host != here or _exists(part.spool)
            found.append(PageFile(f"Events of rank {rank}", part.spool, part.host, there))
    if run.notebook:
        found.append(PageFile("Notebook", run.notebook, here, _exists(run.notebook)))
    return found


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def _tails(run: StoredRun) -> list[PageTail]:
    """The end of what each rank printed; the same end stands once for all its ranks."""
    groups: dict[tuple[str, ...], list[int]] = {}
    parts = run.parts
    for rank in parts:
        if lines := run.tail(rank, TAIL):
            groups.setdefault(tuple(line[:WIDE] for line in lines), []).append(rank)
    return [
        PageTail(ranks, list(lines), any(parts[rank].bytes > sum(map(_size, lines)) for rank in ranks))
        for lines, ranks in list(groups.items())[:TAILS]
    ]


def _size(line: str) -> int:
    return len(line.encode("utf-8", "replace")) + 1


def _encoded_media(run: int, name: str | None, rank: int | None) -> bytes:
    found = find_run(run)
    store = Store.open()
    heads, left_out = ([], 0) if name is None else media_heads(store, found, name, rank)
    return msgspec.json.encode(MediaIndex(media_names(store, run), heads, left_out))


def _encoded_differences(ids: list[int]) -> bytes:
    runs = [find_run(one) for one in ids]
    if not runs[1:]:
        raise BadRequest(f"Name the runs to compare, 2 to {MOST_COMPARED}: ids=7,9.", option="ids")
    found = Comparison(runs).differences
    told: dict[str, Any] = {**msgspec.structs.asdict(found), "runs": _links(runs)}
    return msgspec.json.encode(RunDifferences(**told))

"""The HTTP requests that the extension answers, and its stream. All addresses are below ``/dtrain``.

Every handler authenticates and authorises (the resource is ``dtrain``; to read is ``read``, to act is ``write``), and a
test checks each of them. A request that fails has a status of 400 or above and a message that says what to do.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from jupyter_dtrain.core.errors import BadRequest, Refused
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.launch.options import describe_launchers
from jupyter_dtrain.store import Store
from jupyter_dtrain.store import StoredRun as Stored
from jupyter_dtrain.view.contents import inventory_rows, inventory_words
from jupyter_dtrain.view.document import document
from jupyter_dtrain.view.labels import ending_of
from jupyter_dtrain.view.stored import picture
from jupyter_dtrain.wire.steward_messages import InterruptRun, KillRanks, Restart, Stop

from .messages import HeldVariables
from .messages import StoredRun as StoredRunSummary
from .requests import MOST, RESOURCE, ApiHandler, number, reports_errors
from .starting import start
from .stored_runs import RunCsv, RunPoints, find_run

if TYPE_CHECKING:
    from .messages import Message, NewsMessage
    from .monitor import Monitor
    from .observatory import Observatory

BY = "the JupyterLab sidebar"
"""The name of these clients in messages that other clients read."""
BY_CELL = "the button in its panel"
MOST_WAITING = 400
"""The most messages that wait for a slow page; beyond that the page gets the whole state again."""
DOCUMENT_BYTES = 190_000
"""The size of a stored run's document."""
MOST_ROWS = 400
"""The most rows of variables in one answer."""
MOST_RUNS = 200
"""The most stored runs in one answer."""


class WorldsHandler(ApiHandler):
    """``/dtrain/worlds``."""

    @web.authenticated
    @authorized
    @reports_errors
    async def get(self) -> None:
        """All worlds of this user."""
        self.answer({"worlds": msgspec.to_builtins(await self.observatory.listing())})

    @web.authenticated
    @authorized
    @reports_errors
    async def post(self) -> None:
        """Start a world. The body has ``launcher``, ``options`` and ``cwd``, a folder below the server's root."""
        content = self.body()
        root = self.settings["server_root_dir"]
        if isinstance(options := content.get("options", {}), dict) and options.get("name"):
            await self.observatory.make_way(str(options["name"]))
        launcher, folder = str(content.get("launcher", "local")), content.get("cwd", "")
        listing = await asyncio.to_thread(start, launcher, options, root, folder)
        found = await self.observatory.find(listing.id)
        if found is not None:
            found.expect()
        self.answer({"id": listing.id, "name": listing.name}, HTTPStatus.ACCEPTED)


class WorldHandler(ApiHandler):
    """``/dtrain/worlds/ID``."""

    @web.authenticated
    @authorized
    @reports_errors
    async def delete(self, key: str) -> None:
        """Stop the world, which takes some seconds; one that did not start is listed no longer."""
        if self.observatory.forget_failure(key):
            self.answer({})
            return
        observer = await self.world(key)
        await observer.steward().ask(Stop())
        self.answer({}, HTTPStatus.ACCEPTED)


class ActionHandler(ApiHandler):
    """``/dtrain/worlds/ID/ACTION``."""

    @web.authenticated
    @authorized
    @reports_errors
    async def post(self, key: str, action: str) -> None:
        """Do the action; the body may name ``ranks``."""
        observer = await self.world(key)
        act = {
            "interrupt": self._interrupt,
            "heal": self._heal,
            "restart": self._restart,
            "kill": self._kill,
            "stacks": self._stacks,
            "variables": self._variables,
        }[action]
        await act(observer)

    async def _interrupt(self, observer: Monitor) -> None:
        ranks, body = self.ranks(observer), self.body()
        force = body.get("force") is True
        by = BY
        if body.get("place") == "cell":
            by = BY_CELL
            world = observer.summary
            if world.driver and world.driver.there and body.get("kernel", world.driver.kernel) != world.driver.kernel:
                raise BadRequest(
                    f"World {world.name!r} is driven by {world.driver.words}; here you can only observe it. "
                    f"%distributed attach {world.name} --take-over drives it from here."
                )
        begun = await observer.steward().ask(InterruptRun(by, ranks, force))
        self.answer({"run": begun.run}, HTTPStatus.ACCEPTED)

    async def _heal(self, observer: Monitor) -> None:
        observer.check_protocol()
        await observer.steward().heal(BY)
        observer.wake()
        self.answer({})

    async def _restart(self, observer: Monitor) -> None:
        observer.check_protocol()
        try:
            await observer.steward().ask(Restart(BY, BY))
        except Refused as refused:
            raise BadRequest(f"The world cannot be restarted: {refused}") from None
        observer.expect()
        self.answer({}, HTTPStatus.ACCEPTED)

    async def _kill(self, observer: Monitor) -> None:
        if not (ranks := self.ranks(observer)):
            raise BadRequest("Name the ranks to kill, as a list of numbers in `ranks`.")
        observer.check_protocol()
        await observer.steward().ask(KillRanks(ranks, f"from {BY}"))
        self.answer({}, HTTPStatus.ACCEPTED)

    async def _stacks(self, observer: Monitor) -> None:
        self.answer({"text": await observer.stacks(self.ranks(observer))})

    async def _variables(self, observer: Monitor) -> None:
        observer.check_protocol()
        size = observer.size
        asked = self.ranks(observer) or list(range(size))
        found = (await observer.steward().relay("variables", asked)).variables or {}
        held = {rank: None if answer is None else answer.found for rank, answer in found.items()}
        rows = inventory_rows(size, held)
        self.answer(
            msgspec.to_builtins(
                HeldVariables(
                    inventory_words(held),
                    rows[:MOST_ROWS],
                    len(rows) - len(rows[:MOST_ROWS]) + max((one.left_out for one in found.values() if one), default=0),
                    [rank for rank, answer in found.items() if answer is None],
                )
            )
        )


class OutputHandler(ApiHandler):
    """``/dtrain/worlds/ID/runs/RUN/ranks/RANK/output``."""

    @web.authenticated
    @authorized
    @reports_errors
    async def get(self, key: str, run: str, rank: str) -> None:
        """The end of a rank's output, as text."""
        observer = await self.world(key)
        try:
            self.answer(await observer.output(number(run, "The number of a run"), number(rank, "A rank")))
        except OSError:
            self.fail(HTTPStatus.NOT_FOUND, f"The output of rank {rank} in run {run} is no longer kept.")


class CellHandler(ApiHandler):
    """``/dtrain/worlds/ID/runs/RUN/cell``."""

    @web.authenticated
    @authorized
    @reports_errors
    async def get(self, key: str, run: str) -> None:
        """The output of the run's cell, as in a notebook; ``replay`` and ``since`` are those of the last answer."""
        observer = await self.world(key)
        since = number(self.get_query_argument("since", "0"), "since")
        found = await observer.cell(number(run, "The number of a run"), self.get_query_argument("replay", ""), since)
        if found is None:
            self.fail(HTTPStatus.NOT_FOUND, f"The output of run {run} is no longer kept.")
        else:
            self.answer(msgspec.to_builtins(found))


class LaunchersHandler(ApiHandler):
    """``/dtrain/launchers``."""

    @web.authenticated
    @authorized
    @reports_errors
    async def get(self) -> None:
        """The launchers, each with its start options."""
        found = await asyncio.to_thread(describe_launchers)
        self.answer({"launchers": found})


class RunsHandler(ApiHandler):
    """``/dtrain/runs``: the store."""

    @web.authenticated
    @authorized
    @reports_errors
    async def get(self) -> None:
        """The newest runs: ``limit`` of them, ``before`` one; of a ``world``, ``outcome`` or ``tag``; or ``search``."""
        limit = min(MOST_RUNS, max(1, number(self.get_query_argument("limit", "50"), "limit")))
        chosen = {name: self.get_query_argument(name, None) or None for name in ("world", "outcome", "search", "tag")}
        before = number(self.get_query_argument("before", str(MOST)), "before")
        self.answer(await asyncio.to_thread(_stored_runs, limit, before, chosen))


class StoredRunHandler(ApiHandler):
    """``/dtrain/runs/ID``."""

    @web.authenticated
    @authorized
    @reports_errors
    async def get(self, text: str) -> None:
        """One stored run, as a document that draws it."""
        await self._answer_with(text, lambda run: {"document": _document(run), "source": run.source})

    @web.authenticated
    @authorized
    @reports_errors
    async def patch(self, text: str) -> None:
        """Change its ``name``, ``note``, ``tags`` or ``kept``; the answer is the run."""
        changes = msgspec.convert(self.body(), readable(Changes))

        def change(run: Stored) -> dict[str, Any]:
            run.edit(**msgspec.structs.asdict(changes))
            return _summary(run)

        await self._answer_with(text, change)

    @web.authenticated
    @authorized
    @reports_errors
    async def delete(self, text: str) -> None:
        """Remove it, unless it runs or is kept."""

        def remove(run: Stored) -> dict[str, Any]:
            try:
                run.delete()
            except BadRequest as error:
                raise Refused(str(error)) from None
            return {}

        await self._answer_with(text, remove)

    async def _answer_with(self, text: str, act: Callable[[Stored], dict[str, Any]]) -> None:
        """Answer with what ``act`` makes of the run whose id is ``text``."""
        key = number(text, "The id of a run")
        run = await asyncio.to_thread(find_run, key)
        if run is None:
            self.fail(HTTPStatus.NOT_FOUND, "This run is no longer kept.")
        else:
            self.answer(await asyncio.to_thread(act, run))


class Changes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A page's changes of a stored run; null leaves a part as it is."""

    name: str | None = None
    note: str | None = None
    tags: list[str] | None = None
    kept: bool | None = None


def _stored_runs(limit: int, before: int, chosen: dict[str, str | None]) -> dict[str, Any]:
    store = Store.open()
    runs = store.runs(limit, before=before, **chosen)
    return {"runs": [_summary(run) for run in runs], "total": store.count(**chosen)}


def _summary(run: Stored) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(
        StoredRunSummary(
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
            source=run.source[:4000],
            losses=run.losses,
        )
    )
    return found


def _document(run: Stored) -> dict[str, Any]:
    return document(picture(run), DOCUMENT_BYTES)


class Stream(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """``/dtrain/stream``: events as JSON messages; see docs/architecture.md. A page may name the worlds it watches."""

    auth_resource = RESOURCE

    def set_default_headers(self) -> None:
        """Set no headers: a stream is not a page."""

    @ws_authenticated
    @authorized
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Open the stream."""
        opened = super().get(*args, **kwargs)
        if opened is not None:
            await opened

    def open(self, *args: Any, **kwargs: Any) -> None:
        """A page has connected."""
        super().open(*args, **kwargs)
        self.watching: set[str] = set()
        self._queue: asyncio.Queue[Message | NewsMessage] = asyncio.Queue()
        self._sender = asyncio.ensure_future(self._send_queued())
        self._observatory: Observatory = self.settings["dtrain_observatory"]
        self._observatory.enter(self)

    def send(self, message: Message | NewsMessage) -> None:
        """Send each message when the page can take it."""
        if self._queue.qsize() < MOST_WAITING:
            self._queue.put_nowait(message)
            return
        # The page has missed too much: it gets the state as it is now instead of single messages.
        while not self._queue.empty():
            self._queue.get_nowait()
        watched, self.watching = self.watching, set()
        self._observatory.enter(self)
        self._observatory.look_closely(self, watched)

    async def _send_queued(self) -> None:
        while True:
            message = await self._queue.get()
            try:
                await self.write_message(msgspec.json.encode(message).decode())
            except WebSocketClosedError:
                return

    def on_message(self, message: str | bytes) -> None:
        """``watch``: ids of worlds to follow closely; ``dismiss``: an item of attention, or null for all."""
        try:
            content = json.loads(message)
            if "watch" in content:
                self._observatory.look_closely(self, set(msgspec.convert(content["watch"], readable(list[str]))))
            if "dismiss" in content:
                self._observatory.attention.dismiss(msgspec.convert(content["dismiss"], readable(str | None)))
        except (ValueError, TypeError, RecursionError) as error:
            self.log.warning("jupyter_dtrain: a page sent a message that cannot be read: %s", error)

    def on_close(self) -> None:
        """The page has disconnected."""
        self._observatory.leave(self)
        self._sender.cancel()


def handlers(base_url: str) -> list[tuple[str, type[JupyterHandler]]]:
    """All handlers, by address. An id is any text without a slash, percent-encoded."""
    key = r"([^/]+)"
    found: list[tuple[str, type[JupyterHandler]]] = [
        (r"worlds", WorldsHandler),
        (rf"worlds/{key}", WorldHandler),
        (rf"worlds/{key}/(interrupt|heal|restart|kill|stacks|variables)", ActionHandler),
        (rf"worlds/{key}/runs/(\d+)/ranks/(\d+)/output", OutputHandler),
        (rf"worlds/{key}/runs/(\d+)/cell", CellHandler),
        (r"launchers", LaunchersHandler),
        (r"runs", RunsHandler),
        (r"runs/(\d+)", StoredRunHandler),
        (r"runs/(\d+)/metrics", RunPoints),
        (r"runs/(\d+)/csv", RunCsv),
        (r"stream", Stream),
    ]
    return [(url_path_join(base_url, RESOURCE, address), handler) for address, handler in found]

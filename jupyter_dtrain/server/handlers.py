"""The HTTP requests that the extension answers, and its stream. All addresses are below ``/dtrain``.

Every handler authenticates and authorises (the resource is ``dtrain``; to read is ``read``, to act is ``write``), and a
test checks each of them. A request that fails has a status of 400 or above and a message that says what to do.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from jupyter_dtrain.core.errors import BadRequest, DtrainError, Refused
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.launch import LAUNCHERS
from jupyter_dtrain.store import Store
from jupyter_dtrain.view.document import document
from jupyter_dtrain.view.stored import picture
from jupyter_dtrain.wire.steward_messages import InterruptRun, KillRanks, Restart, Stop

from .messages import StoredRun as StoredRunSummary
from .starting import start
from .steward import Silent

if TYPE_CHECKING:
    from .messages import Message, NewsMessage
    from .monitor import Monitor
    from .observatory import Observatory

RESOURCE = "dtrain"
BY = "the JupyterLab sidebar"
"""The name of these clients in messages that other clients read."""
MOST_WAITING = 400
"""The most messages that wait for a slow page; beyond that the page gets the whole state again."""
DOCUMENT_BYTES = 190_000
"""The size of a stored run's document."""

MOST = 10**18 - 1
"""The largest number that a page can name: all are in reach of the store's 64 bits."""

Method = Callable[..., Awaitable[None]]


def reports_errors(method: Method) -> Method:
    """A decorator for handlers: sends an error to the page with the fitting status."""

    @functools.wraps(method)
    async def inner(self: Handler, *args: str) -> None:
        try:
            await method(self, *args)
        except (BadRequest, msgspec.ValidationError) as error:
            self.fail(HTTPStatus.BAD_REQUEST, str(error))
        except Silent as error:
            self.fail(HTTPStatus.GATEWAY_TIMEOUT, f"The world cannot be reached: {error}.")
        except DtrainError as error:
            self.fail(HTTPStatus.CONFLICT, str(error))

    return inner


def number(text: str, label: str) -> int:
    """The whole number that ``text`` is. Raises :class:`BadRequest`, which calls it ``label``."""
    try:
        found = int(text)
    except ValueError:  # also for more digits than Python reads
        found = MOST + 1
    if abs(found) > MOST:
        raise BadRequest(f"{label} must be a whole number of at most 18 digits.")
    return found


class Handler(APIHandler):
    """The base of the handlers."""

    auth_resource = RESOURCE

    @property
    def observatory(self) -> Observatory:
        """The server's observatory."""
        found: Observatory = self.settings["dtrain_observatory"]
        return found

    def body(self) -> dict[str, Any]:
        """The request's JSON object; an empty body is an empty object."""
        try:
            content = self.get_json_body() if self.request.body else {}
        except UnicodeDecodeError:
            raise BadRequest("The body must be JSON in UTF-8.") from None
        if not isinstance(content, dict):
            raise BadRequest("The body must be a JSON object.")
        return content

    def fail(self, status: HTTPStatus, words: str) -> None:
        """Answer with an error."""
        self.set_status(int(status))
        self.finish(json.dumps({"message": words}))

    def answer(self, content: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        """Answer with a JSON object."""
        self.set_status(int(status))
        self.finish(json.dumps(content))

    async def world(self, key: str) -> Monitor:
        """The world with this id. Raises a 404 error where there is none."""
        found = await self.observatory.find(key)
        if found is None:
            raise web.HTTPError(HTTPStatus.NOT_FOUND, reason="This world no longer exists.")
        return found

    def ranks(self, observer: Monitor) -> list[int] | None:
        """The ranks that the body names, or None for all of them. Raises :class:`BadRequest`."""
        ranks = msgspec.convert(self.body().get("ranks"), readable(list[int] | None))
        if ranks is not None and not all(0 <= rank < observer.listing.size for rank in ranks):
            raise BadRequest(f"The world only has ranks 0 to {observer.listing.size - 1}.")
        return ranks


class Worlds(Handler):
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
        listing = await asyncio.to_thread(
            start, str(content.get("launcher", "local")), content.get("options", {}), root, content.get("cwd") or ""
        )
        await self.observatory.look()
        self.answer({"id": listing.id, "name": listing.name}, HTTPStatus.ACCEPTED)


class World(Handler):
    """``/dtrain/worlds/ID``."""

    @web.authenticated
    @authorized
    @reports_errors
    async def delete(self, key: str) -> None:
        """Stop the world, which takes some seconds."""
        observer = await self.world(key)
        await observer.steward().ask(Stop())
        self.answer({}, HTTPStatus.ACCEPTED)


class Action(Handler):
    """``/dtrain/worlds/ID/ACTION``."""

    @web.authenticated
    @authorized
    @reports_errors
    async def post(self, key: str, action: str) -> None:
        """Do the action; the body may name ``ranks``."""
        observer = await self.world(key)
        act = {
            "interrupt": self._interrupt,
            "restart": self._restart,
            "kill": self._kill,
            "stacks": self._stacks,
        }[action]
        await act(observer)

    async def _interrupt(self, observer: Monitor) -> None:
        ranks, force = self.ranks(observer), bool(self.body().get("force"))
        begun = await observer.steward().ask(InterruptRun(BY, ranks, force))
        self.answer({"run": begun.run}, HTTPStatus.ACCEPTED)

    async def _restart(self, observer: Monitor) -> None:
        observer.check_protocol()
        try:
            await observer.steward().ask(Restart(BY, BY))
        except Refused as refused:
            raise BadRequest(f"The world cannot be restarted: {refused}") from None
        observer.wake()
        self.answer({}, HTTPStatus.ACCEPTED)

    async def _kill(self, observer: Monitor) -> None:
        if not (ranks := self.ranks(observer)):
            raise BadRequest("Name the ranks to kill, as a list of numbers in `ranks`.")
        observer.check_protocol()
        await observer.steward().ask(KillRanks(ranks, f"from {BY}"))
        self.answer({}, HTTPStatus.ACCEPTED)

    async def _stacks(self, observer: Monitor) -> None:
        self.answer({"text": await observer.stacks(self.ranks(observer))})


class Output(Handler):
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


class Launchers(Handler):
    """``/dtrain/launchers``."""

    @web.authenticated
    @authorized
    @reports_errors
    async def get(self) -> None:
        """The launchers, each with its start options."""
        found = await asyncio.to_thread(lambda: [describe() for describe in LAUNCHERS.values()])
        self.answer({"launchers": found})


class Runs(Handler):
    """``/dtrain/runs``: the store."""

    @web.authenticated
    @authorized
    @reports_errors
    async def get(self) -> None:
        """The newest runs."""
        limit = min(200, max(1, number(self.get_query_argument("limit", "30"), "limit")))
        self.answer({"runs": msgspec.to_builtins(await asyncio.to_thread(_stored_runs, limit))})


class StoredRun(Handler):
    """``/dtrain/runs/NUMBER``."""

    @web.authenticated
    @authorized
    @reports_errors
    async def get(self, text: str) -> None:
        """One stored run, as a document that draws it."""
        run = number(text, "The number of a run")
        found = await asyncio.to_thread(_stored_run, run)
        if found is None:
            self.fail(HTTPStatus.NOT_FOUND, f"Run #{run} is no longer kept.")
        else:
            self.answer(found)


def _stored_runs(limit: int) -> list[StoredRunSummary]:
    return [
        StoredRunSummary(
            id=run.id,
            world=run.world,
            number=run.number,
            ranks=len(run.ranks),
            size=run.size,
            outcome=run.outcome,
            started=run.started,
            elapsed=run.elapsed,
            source=run.source[:4000],
        )
        for run in Store.open().runs(limit)
    ]


def _stored_run(number: int) -> dict[str, Any] | None:
    try:
        run = Store.open().run(number)
    except BadRequest:
        return None
    return {"document": document(picture(run), DOCUMENT_BYTES), "source": run.source}


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
        self._sender = asyncio.ensure_future(self._send())
        self._observatory: Observatory = self.settings["dtrain_observatory"]
        self._observatory.enter(self)

    def tell(self, message: Message | NewsMessage) -> None:
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

    async def _send(self) -> None:
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
        except (ValueError, TypeError) as error:
            self.log.warning("jupyter_dtrain: a page sent a message that cannot be read: %s", error)

    def on_close(self) -> None:
        """The page has disconnected."""
        self._observatory.leave(self)
        self._sender.cancel()


def handlers(base_url: str) -> list[tuple[str, type[JupyterHandler]]]:
    """All handlers, by address. An id is any text without a slash, percent-encoded."""
    key = r"([^/]+)"
    found: list[tuple[str, type[JupyterHandler]]] = [
        (r"worlds", Worlds),
        (rf"worlds/{key}", World),
        (rf"worlds/{key}/(interrupt|restart|kill|stacks)", Action),
        (rf"worlds/{key}/runs/(\d+)/ranks/(\d+)/output", Output),
        (r"launchers", Launchers),
        (r"runs", Runs),
        (r"runs/(\d+)", StoredRun),
        (r"stream", Stream),
    ]
    return [(url_path_join(base_url, RESOURCE, address), handler) for address, handler in found]

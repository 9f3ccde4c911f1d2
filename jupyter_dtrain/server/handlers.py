"""The HTTP requests that the extension answers, and its stream. All addresses are below ``/dtrain``.

Every handler authenticates and authorises, most by :func:`~.requests.guarded` (the resource is ``dtrain``; to read is
``read``, to act is ``write``), and a test checks each of them. A request that fails has a status of 400 or above and a
message that says what to do.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import url_path_join
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from jupyter_dtrain.core.errors import BadRequest, ReadOnly, Refused
from jupyter_dtrain.core.settings import Settings
from jupyter_dtrain.core.steering import LoopAct, check_act
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.launch import starting, worlds
from jupyter_dtrain.launch.options import describe_launchers
from jupyter_dtrain.launch.options import options as known_options
from jupyter_dtrain.view.contents import inventory_rows, inventory_words
from jupyter_dtrain.wire.profiling import STEPS, check_request
from jupyter_dtrain.wire.prompt_messages import AnswerPrompts
from jupyter_dtrain.wire.steward_messages import InterruptRun, KillRanks, Restart, Stop, explain_read_only

from .exports import ExportHandler
from .messages import HeldVariables
from .report import ReportHandler, ReportPage
from .requests import RESOURCE, ApiHandler, NotFound, guarded, number
from .run_pages import MediumHandler, RunDifferencesHandler, RunMediaHandler, RunPageHandler, ViewHandler, ViewsHandler
from .steward import Silent
from .stored_runs import RunCsv, RunPoints, RunsHandler, StoredRunHandler

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import Client

    from .messages import Message, NewsMessage
    from .monitor import Monitor
    from .observatory import Observatory

BY = "the JupyterLab sidebar"
"""The name of these clients in messages that other clients read."""
BY_CELL = "the button in its panel"
BY_PAGE = "the JupyterLab page"
"""Where a prompt was answered that was not answered in the box below its cell."""
PAGE_ACTS = ("between", "set", "undo", "pause", "resume", "step", "stop-after")
"""What a page may ask of a loop."""
LONGEST_LINE = 100_000
"""The most characters that a person may answer to a prompt."""
MOST_WAITING = 400
"""The most messages that wait for a slow page; beyond that the page gets the whole state again."""
MOST_ROWS = 400
"""The most rows of variables in one answer."""


class WorldsHandler(ApiHandler):
    """``/dtrain/worlds``."""

    @guarded
    async def get(self) -> None:
        """All worlds of this user."""
        self.answer({"worlds": await self.observatory.listing()})

    @guarded
    async def post(self) -> None:
        """Start a world. The body has ``launcher``, ``options`` and ``cwd``, a folder below the server's root."""
        content = self.body()
        root = self.settings["server_root_dir"]
        if isinstance(options := content.get("options", {}), dict) and options.get("name"):
            await self.observatory.make_way(str(options["name"]))
        launcher, folder = str(content.get("launcher", "local")), content.get("cwd", "")
        listing = await asyncio.to_thread(_start, launcher, options, root, folder)
        found = await self.observatory.find(listing.id)
        if found is not None:
            found.expect()
        self.answer({"id": listing.id, "name": listing.name}, HTTPStatus.ACCEPTED)


class WorldHandler(ApiHandler):
    """``/dtrain/worlds/ID``."""

    @guarded
    async def delete(self, key: str) -> None:
        """Stop the world, which takes some seconds; one that did not start is listed no longer."""
        if self.observatory.forget_failure(key):
            self.answer({})
            return
        monitor = await self.world(key)
        try:
            await monitor.steward().ask(Stop())
        except Silent:
            if worlds.is_alive(monitor.listing):  # else it has ended by itself meanwhile
                raise
        self.answer({}, HTTPStatus.ACCEPTED)


class Answer(msgspec.Struct, frozen=True):
    """A page's answer to prompts of ranks."""

    run: int
    prompts: dict[int, int]
    """The number of the prompt, by rank."""
    text: str | None
    """A line without its end; null for the end of the input."""
    kernel: str
    """The id of the kernel of a notebook that is open in the page."""


class ActAsked(msgspec.Struct, frozen=True):
    """What a page asks of the loop of a run."""

    run: int
    act: LoopAct
    kernel: str
    """The id of the kernel of a notebook that is open in the page."""


class ActionHandler(ApiHandler):
    """``/dtrain/worlds/ID/ACTION``."""

    @guarded
    async def post(self, key: str, action: str) -> None:
        """Do the action; the body may name ``ranks``.

        ``profile`` only begins; the body may have ``steps``, and ``folder`` for the trace, below the server's root.
        ``answer`` is for the page that has the driver's notebook, whose ``kernel`` the body names:
        see :class:`Answer`. So is ``steer``, which waits for what becomes of the act: see :class:`ActAsked`.
        """
        monitor = await self.world(key)
        act = {
            "interrupt": self._interrupt,
            "heal": self._heal,
            "restart": self._restart,
            "kill": self._kill,
            "stacks": self._stacks,
            "variables": self._variables,
            "profile": self._profile,
            "answer": self._answer,
            "steer": self._steer,
        }[action]
        await act(monitor)

    async def _interrupt(self, monitor: Monitor) -> None:
        ranks, body = self.ranks(monitor), self.body()
        force = body.get("force") is True
        by = BY
        if body.get("place") == "cell":
            by = BY_CELL
            world = monitor.summary
            if world.driver and world.driver.there and body.get("kernel", world.driver.kernel) != world.driver.kernel:
                raise BadRequest(explain_read_only(world.name, world.driver.words))
        begun = await monitor.steward().ask(InterruptRun(by, ranks, force))
        self.answer({"run": begun.run}, HTTPStatus.ACCEPTED)

    async def _answer(self, monitor: Monitor) -> None:
        # Neither the line nor what is wrong with it is in any message: it may be a password.
        given = msgspec.convert(self.body(), readable(Answer), str_keys=True)
        if given.text and (len(given.text) > LONGEST_LINE or given.text.splitlines() != [given.text]):
            raise BadRequest(f"An answer is one line of at most {LONGEST_LINE:,} characters.")
        if not given.prompts:
            raise BadRequest("Name the prompts to answer: in `prompts`, the number of each rank's prompt.")
        driver = self._driver(monitor, given.kernel, "Prompts are answered in the notebook that controls the world.")
        await monitor.peer().ask(AnswerPrompts(driver.id, given.run, given.prompts, given.text, BY_PAGE))
        self.answer({}, HTTPStatus.ACCEPTED)

    async def _steer(self, monitor: Monitor) -> None:
        given = msgspec.convert(self.body(), readable(ActAsked))
        if given.act.kind not in PAGE_ACTS:
            raise BadRequest(f"A page asks for {', '.join(PAGE_ACTS)}, and not for {given.act.kind}.")
        check_act(given.act)
        driver = self._driver(monitor, given.kernel, "A loop is steered by the notebook that controls the world.")
        found = await monitor.peer().steer(given.act, driver.id, f"{BY_PAGE} of {driver.words}", given.run)
        ranks = {str(rank): one.text for rank, one in found.ranks.items()}
        self.answer({"words": found.words, "step": found.step, "ranks": ranks})

    def _driver(self, monitor: Monitor, kernel: str, what: str) -> Client:
        """The client that drives the world, if ``kernel`` is its own. Raises :class:`ReadOnly`, with ``what``."""
        monitor.peer()
        driver = monitor.driver
        if driver is None or not driver.kernel or driver.kernel != kernel:
            told = explain_read_only(monitor.summary.name, "" if driver is None else driver.words)
            raise ReadOnly(f"{what} {told}")
        return driver

    async def _heal(self, monitor: Monitor) -> None:
        await monitor.peer().heal(BY)
        monitor.wake()
        self.answer({})

    async def _restart(self, monitor: Monitor) -> None:
        steward = monitor.peer()
        try:
            await steward.ask(Restart(BY, BY))
        except Refused as refused:
            raise BadRequest(f"The world cannot be restarted: {refused}") from None
        monitor.expect()
        self.answer({}, HTTPStatus.ACCEPTED)

    async def _kill(self, monitor: Monitor) -> None:
        if not (ranks := self.ranks(monitor)):
            raise BadRequest("Name the ranks to kill, as a list of numbers in `ranks`.")
        await monitor.peer().ask(KillRanks(ranks, f"from {BY}"))
        self.answer({}, HTTPStatus.ACCEPTED)

    async def _stacks(self, monitor: Monitor) -> None:
        self.answer({"text": await monitor.stacks(self.ranks(monitor))})

    async def _variables(self, monitor: Monitor) -> None:
        steward, size = monitor.peer(), monitor.size
        asked = self.ranks(monitor) or list(range(size))
        found = (await steward.relay("variables", asked)).variables or {}
        held = {rank: None if answer is None else answer.found for rank, answer in found.items()}
        rows = inventory_rows(size, held)
        self.answer(
            HeldVariables(
                inventory_words(held),
                rows[:MOST_ROWS],
                len(rows) - len(rows[:MOST_ROWS]) + max((one.left_out for one in found.values() if one), default=0),
                [rank for rank, answer in found.items() if answer is None],
            )
        )

    async def _profile(self, monitor: Monitor) -> None:
        body = self.body()
        steps = msgspec.convert(body.get("steps", STEPS), readable(int))
        check_request(steps)
        if (ranks := self.ranks(monitor)) == []:
            raise BadRequest("Name the ranks to profile, as a list of numbers in `ranks`, or leave that out for all.")
        try:
            folder = _inside(self.settings["server_root_dir"], body.get("folder"))
        except BadRequest:
            # The notebook is in no folder of the server's, as where other storage has the notebooks.
            folder = Path(monitor.listing.cwd)
        chosen = list(range(monitor.size)) if ranks is None else ranks
        self.answer({"number": monitor.profiles().begin(chosen, steps, folder)}, HTTPStatus.ACCEPTED)


class ProfileHandler(ApiHandler):
    """``/dtrain/worlds/ID/profiles/NUMBER``."""

    @guarded
    async def get(self, key: str, number_: str) -> None:
        """How far a profile is that was begun by ``profile``, and the profile once it has been made."""
        monitor = await self.world(key)
        root = _resolved(self.settings["server_root_dir"])
        found = monitor.profiles().look(number(number_, "The number of a profile"), root)
        if found is None:
            raise NotFound(
                "This profile is no longer kept: the server was restarted, no page was open, or newer ones were begun. "
                "If it was finished, its trace is in the notebook's folder."
            )
        self.answer(found)


class OutputHandler(ApiHandler):
    """``/dtrain/worlds/ID/runs/RUN/ranks/RANK/output``."""

    @guarded
    async def get(self, key: str, run: str, rank: str) -> None:
        """The end of a rank's output, as text."""
        monitor = await self.world(key)
        try:
            self.answer(await monitor.output(number(run, "The number of a run"), number(rank, "A rank")))
        except OSError:
            raise NotFound(f"The output of rank {rank} in run {run} is no longer kept.") from None


class CellHandler(ApiHandler):
    """``/dtrain/worlds/ID/runs/RUN/cell``."""

    @guarded
    async def get(self, key: str, run: str) -> None:
        """The output of the run's cell, as in a notebook; ``replay`` and ``since`` are those of the last answer."""
        monitor = await self.world(key)
        since = number(self.get_query_argument("since", "0"), "since")
        found = await monitor.cell(number(run, "The number of a run"), self.get_query_argument("replay", ""), since)
        if found is None:
            raise NotFound(f"The output of run {run} is no longer kept.")
        self.answer(found)


class LaunchersHandler(ApiHandler):
    """``/dtrain/launchers``."""

    @guarded
    async def get(self) -> None:
        """The launchers, each with its start options."""
        found = await asyncio.to_thread(describe_launchers)
        self.answer({"launchers": found})


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
                self._observatory.pages.attention.dismiss(msgspec.convert(content["dismiss"], readable(str | None)))
        except (ValueError, TypeError, RecursionError) as error:
            self.log.warning("jupyter_dtrain: a page sent a message that cannot be read: %s", error)

    def on_close(self) -> None:
        """The page has disconnected."""
        self._observatory.pages.connected.discard(self)
        self._sender.cancel()


def _start(launcher: str, options: Any, root: str, folder: Any) -> worlds.Listing:
    """Start the steward of a world without a driver: the first client that attaches becomes the driver.

    The steward starts the ranks, and shows its observers how they start, or why they do not. ``folder``: the ranks'
    folder, below ``root``.

    Raises :class:`BadRequest` before anything is made, and :class:`~jupyter_dtrain.core.errors.StartFailed` for a
    steward that does not start, which leaves nothing behind.
    """
    if not isinstance(options, dict):
        raise BadRequest("The options must be a JSON object.")
    # The dialog sends a field that a person has emptied as empty text, or as an empty object where it holds one.
    objects = {one.name for one in known_options() if one.schema["type"] == "object"}
    given = {name: value for name, value in options.items() if value != "" and not (value == {} and name in objects)}
    place = _inside(root, folder)
    listing, _ = starting.launch(given, launcher, settings=Settings.from_environment(), cwd=place, titled=True)
    return listing


def _inside(root: str, folder: Any) -> Path:
    """The folder that a page names. Raises :class:`BadRequest` unless it is a folder below ``root``."""
    if not isinstance(folder, str):
        raise BadRequest(f"cwd must be the path of a folder, as text, not {folder!r}.")
    top = _resolved(root)
    try:
        found = (top / folder.lstrip("/")).resolve()
        there = found.is_relative_to(top) and found.is_dir()
    except (OSError, ValueError):
        there = False  # a name that no folder can have: too long, or with a NUL character
    if not there:
        raise BadRequest(f"There is no folder {folder[:200]!r}.")
    return found


def _resolved(root: str) -> Path:
    return Path(root).expanduser().resolve()


def handlers(base_url: str) -> list[tuple[str, type[JupyterHandler]]]:
    """All handlers, by address. An id is any text without a slash, percent-encoded."""
    key = r"([^/]+)"
    found: list[tuple[str, type[JupyterHandler]]] = [
        (r"worlds", WorldsHandler),
        (rf"worlds/{key}", WorldHandler),
        (rf"worlds/{key}/(interrupt|heal|restart|kill|stacks|variables|profile|answer|steer)", ActionHandler),
        (rf"worlds/{key}/runs/(\d+)/ranks/(\d+)/output", OutputHandler),
        (rf"worlds/{key}/runs/(\d+)/cell", CellHandler),
        (rf"worlds/{key}/profiles/(\d+)", ProfileHandler),
        (r"launchers", LaunchersHandler),
        (r"export", ExportHandler),
        (r"runs", RunsHandler),
        (r"runs/(\d+)", StoredRunHandler),
        (r"runs/differences", RunDifferencesHandler),
        (r"runs/(\d+)/page", RunPageHandler),
        (r"runs/(\d+)/media", RunMediaHandler),
        (r"runs/(\d+)/metrics", RunPoints),
        (r"runs/(\d+)/csv", RunCsv),
        (r"media/(\d+)", MediumHandler),
        (r"views", ViewsHandler),
        (rf"views/{key}", ViewHandler),
        (r"report", ReportHandler),
        (r"report/view", ReportPage),
        (r"stream", Stream),
    ]
    return [(url_path_join(base_url, RESOURCE, address), handler) for address, handler in found]

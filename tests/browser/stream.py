"""The sidebar over a stream that the test plays: a world of any number of ranks, none of which takes the processor."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import msgspec
from playwright.sync_api import Browser, Locator, Page

from jupyter_dtrain.server.messages import RanksMessage, RunMessage, RunSummary, World, WorldRank, WorldsMessage
from jupyter_dtrain.view.document import Picture, document
from tests.browser.lab import Lab, execute

WORLD = "w"
PER_HOST = 8


def plain(message: Any) -> str:
    """A message as the server sends it."""
    return json.dumps(msgspec.to_builtins(message))


class PlayedStream:
    """The page of a notebook with the sidebar, and the stream behind it: a world that runs ``shown``."""

    def __init__(self, lab: Lab, browser: Browser, shown: Picture, states: dict[int, Any]) -> None:
        """``states``: of all ranks, in the world's own words."""
        size = len(states)
        run = RunSummary(
            number=shown.run,
            cell="",
            step=None,
            ranks=list(states),
            outcome="running",
            started=time.time(),
            ended=None,
            elapsed=None,
            states=dict(Counter(shown.states.values())),
        )
        world = World(
            id=WORLD, name="many", cwd="/", state="running", words="", progress="", failure=None, size=size, ready=size,
            nodes=size // PER_HOST, dead=sum(state == "dead" for state in states.values()), frameworks=[],
            started=time.time(), lease_end=None, left="", driver=None, run=run, runs=[run],
        )  # fmt: skip
        ranks = [
            WorldRank(rank, rank // PER_HOST, f"node-{rank // PER_HOST}", rank % PER_HOST, f"cuda:{rank % PER_HOST}",
                      1000 + rank, state, "", "", "", fresh=False)
            for rank, state in states.items()
        ]  # fmt: skip
        begin = [
            WorldsMessage(worlds=[world]),
            RanksMessage(world=WORLD, ranks=ranks),
            RunMessage(world=WORLD, source="train()", document={**document(shown, 60_000), "seq": 0}),
        ]
        self._sockets: list[Any] = []

        def play(socket: Any) -> None:
            for message in begin:
                socket.send(plain(message))
            self._sockets.append(socket)

        lab.write("empty.ipynb", "1")
        self.page: Page = browser.new_page(viewport={"width": 1300, "height": 900})
        self.page.route_web_socket("**/dtrain/stream*", play)
        self.page.goto(lab.address("empty.ipynb"))
        self.page.wait_for_selector(".jp-Notebook")
        execute(self.page, "dtrain:show")
        self.panel: Locator = self.page.get_by_role("region", name="Distributed Training")

    def send(self, message: Any) -> None:
        """Send the page one more message."""
        self._sockets[-1].send(plain(message))

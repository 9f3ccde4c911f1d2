"""The pages that are connected to the stream: what each of them watches, and what all of them get.

For the server's event loop. Nothing here waits or fails.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from .attention import Attention
from .messages import AttentionMessage

if TYPE_CHECKING:
    from .messages import Message, NewsMessage


class Page(Protocol):
    """A page that is connected to the stream."""

    watching: set[str]
    """The ids of the worlds that it watches."""

    def send(self, message: Message | NewsMessage) -> None:
        """Take a message; never waits."""


class Pages:
    """The pages of one server."""

    def __init__(self) -> None:
        self.connected: set[Page] = set()
        """Those that are connected: the observatory adds a page, and its stream removes it at its end."""
        self.worlds_changed = asyncio.Event()
        """Set by whoever changes the list of worlds; the observatory then sends it to all pages."""
        self.attention = Attention(lambda: self.send_to_all(self.attention_message()))

    def attention_message(self) -> AttentionMessage:
        """The items of attention, for a page."""
        return AttentionMessage(items=self.attention.items)

    def send_to_all(self, message: Message) -> None:
        """Send a message to all pages."""
        for page in self.connected:
            page.send(message)

    def send_about(self, world: str, message: Message | NewsMessage) -> None:
        """Send a message to the pages that watch the world with this id."""
        for page in self.connected:
            if world in page.watching:
                page.send(message)

    def is_watched(self, world: str) -> bool:
        """Whether a page watches the world with this id."""
        return any(world in page.watching for page in self.connected)

"""The way to one world's steward, for a server's event loop.

Under failure: every answer is waited for with a deadline; a steward that is silent, or whose connection file cannot be
read, raises :class:`Silent`.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from typing import TYPE_CHECKING, Any

from jupyter_client.asynchronous.client import AsyncKernelClient

from jupyter_dtrain.wire.messages import STEWARD_EVENT, STEWARD_REQUEST

if TYPE_CHECKING:
    from jupyter_dtrain.launch.worlds import Listing

PATIENCE = 3.0
"""Seconds that a steward may take to answer."""


class Silent(Exception):
    """A steward does not answer."""


class Steward:
    """Asks one world's steward, and hears what it broadcasts. One event loop."""

    def __init__(self, listing: Listing) -> None:
        """Raises :class:`Silent` where the connection file cannot be read."""
        self._client = AsyncKernelClient(connection_file=listing.connection_file)
        try:
            self._client.load_connection_file()
        except (OSError, ValueError, KeyError) as error:
            raise Silent(f"its connection file cannot be read ({error})") from error
        self._client.start_channels(shell=False, stdin=False, hb=False)
        self._lock = asyncio.Lock()

    async def ask(self, op: str, timeout: float = PATIENCE, **arguments: Any) -> dict[str, Any]:
        """The answer. Raises :class:`Silent` when none comes within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        async with self._lock:
            channel = self._client.control_channel
            message = self._client.session.msg(STEWARD_REQUEST, {"op": op, **arguments})
            channel.send(message)
            while (patience := deadline - time.monotonic()) > 0:
                try:
                    reply = await channel.get_msg(timeout=patience)
                except queue.Empty:
                    break
                if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                    content: dict[str, Any] = reply["content"]
                    return content
        raise Silent("its steward does not answer")

    async def hear(self, timeout: float) -> dict[str, Any] | None:
        """The next broadcast, or None after ``timeout`` seconds. One task only.

        What else a kernel publishes is passed over: each of our own questions makes it say that it is busy, then idle.
        """
        deadline = time.monotonic() + timeout
        while (patience := deadline - time.monotonic()) > 0:
            try:
                message = await self._client.iopub_channel.get_msg(timeout=patience)
            except queue.Empty:
                return None
            if message["msg_type"] == STEWARD_EVENT:
                content: dict[str, Any] = message["content"]
                return content
        return None

    def close(self) -> None:
        """Close the sockets."""
        with contextlib.suppress(Exception):
            self._client.stop_channels()

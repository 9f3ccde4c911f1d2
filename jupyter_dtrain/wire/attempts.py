"""A request to a steward, sent again until its answer comes: either of the two may be lost.

The steward does nothing twice: it repeats its answer to a request that it has answered.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .messages import STEWARD_REQUEST, to_content

if TYPE_CHECKING:
    import msgspec
    from jupyter_client.client import KernelClient

AGAIN = 0.4
"""Seconds after which a request is sent again; each further wait is twice as long."""


class Attempts:
    """Sends one request until its answer comes. Nothing here waits: the caller asks when to send again."""

    def __init__(self, client: KernelClient, request: msgspec.Struct) -> None:
        self._client = client
        self._message = client.session.msg(STEWARD_REQUEST, to_content(request))
        self._made = 0
        self._due = 0.0

    def send_when_due(self) -> float:
        """Send the request if it is time to; returns the seconds until the next time."""
        now = time.monotonic()
        if now >= self._due:
            # The number changes the signature: a kernel does not read two messages with the same one.
            self._client.control_channel.send(self._message | {"metadata": {"tries": self._made}})
            self._due = now + AGAIN * 2**self._made
            self._made += 1
        return self._due - now

    def is_answer(self, reply: dict[str, Any]) -> bool:
        """Whether ``reply`` answers this request, and not an earlier one."""
        return bool(reply["parent_header"].get("msg_id") == self._message["header"]["msg_id"])

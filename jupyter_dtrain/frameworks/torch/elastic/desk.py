"""A rank's question to the steward's :mod:`.lighthouse`: where the lighthouse is, and which store is the rank's own.

Under failure: the wait for the answer is in Python and has a deadline, so Stop ends it. The rank gets the server's
reason where it could not start.
"""

from __future__ import annotations

import socket
from typing import Final

import msgspec

from jupyter_dtrain.core.structs import UNREADABLE, readable
from jupyter_dtrain.plugins.patches import raises_on_purpose
from jupyter_dtrain.wire.requests import Desk

PATIENCE: Final = 60.0
"""Seconds to wait for the answer: the server imports torch before it gives the first one."""
LONGEST: Final = 4096
"""Bytes that a line may have."""


class Question(msgspec.Struct, frozen=True):
    """A rank's question, as a line of JSON."""

    secret: str
    rank: int


class Directions(msgspec.Struct, frozen=True):
    """The answer, as a line of JSON."""

    lighthouse: str = ""
    """The URL of the lighthouse."""
    store: int = 0
    """The port of a store that no other rank uses, on the host of the desk."""
    problem: str = ""
    """Why there is neither a lighthouse nor a store; empty where there are both."""


@raises_on_purpose
def ask(desk: Desk, rank: int) -> Directions:
    """The directions for ``rank``. Raises :class:`RuntimeError` with the reason where there are none."""
    try:
        with socket.create_connection((desk.host, desk.port), PATIENCE) as connection:
            connection.settimeout(PATIENCE)
            connection.sendall(msgspec.json.encode(Question(desk.secret, rank)) + b"\n")
            line = b""
            while not line.endswith(b"\n") and len(line) < LONGEST and (part := connection.recv(LONGEST)):
                line += part
        found = msgspec.json.decode(line, type=readable(Directions))
    except (OSError, *UNREADABLE) as error:
        raise RuntimeError(
            f"The world's lighthouse for torchft does not answer ({error}): torchft.log in the world's logs says why. "
            f"Manager(lighthouse_addr=..., store_addr=..., store_port=...) takes others."
        ) from error
    if found.problem:
        raise RuntimeError(f"The world's lighthouse for torchft could not start: {found.problem}.")
    return found

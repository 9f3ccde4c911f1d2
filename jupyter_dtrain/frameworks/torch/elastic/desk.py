"""What a rank asks of the steward's :mod:`.lighthouse`: for its directions, and to meet the other ranks of its cell.

The directions say where the lighthouse is, and which store is the rank's own.

Under failure: the wait for an answer is in Python and has a deadline, so Stop ends it. The rank gets the server's
reason where it could not start. A rank that cannot meet the others begins without them.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Final

import msgspec

from jupyter_dtrain.core.structs import UNREADABLE, readable
from jupyter_dtrain.plugins.patches import raises_on_purpose
from jupyter_dtrain.wire.requests import Desk

PATIENCE: Final = 60.0
"""Seconds to wait for the answer: the server imports torch before it gives the first one."""
MEETING: Final = 3.0
"""Seconds for which a rank waits for the others before the first step of a cell. Only a cell that makes no step on some
of its ranks takes them all."""
LONGEST: Final = 1 << 16
"""Bytes that a line may have, which names up to :data:`~jupyter_dtrain.core.world.MAX_RANKS` ranks."""


class Question(msgspec.Struct, frozen=True):
    """What a rank asks, as a line of JSON: for its directions, or to meet the other ranks of a cell."""

    secret: str
    rank: int
    run: int | None = None
    """The run whose ranks are to meet; None to ask for the directions."""
    ranks: list[int] = []
    """The ranks of the run."""


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
        found = msgspec.json.decode(_answer(desk, Question(desk.secret, rank), PATIENCE), type=readable(Directions))
    except (OSError, *UNREADABLE) as error:
        raise RuntimeError(
            f"The world's lighthouse for torchft does not answer ({error}): torchft.log in the world's logs says why. "
            f"Manager(lighthouse_addr=..., store_addr=..., store_port=...) takes others."
        ) from error
    if found.problem:
        raise RuntimeError(f"The world's lighthouse for torchft could not start: {found.problem}.")
    return found


def meet(desk: Desk, rank: int, run: int, ranks: Sequence[int]) -> None:
    """Return once all ``ranks`` of ``run`` have called this function, or after :data:`MEETING` seconds."""
    with contextlib.suppress(OSError):
        _answer(desk, Question(desk.secret, rank, run, list(ranks)), 2 * MEETING)


def _answer(desk: Desk, question: Question, patience: float) -> bytes:
    """The line that the server answers. Raises :class:`OSError` where none comes within ``patience`` seconds."""
    with socket.create_connection((desk.host, desk.port), patience) as connection:
        connection.settimeout(patience)
        connection.sendall(msgspec.json.encode(question) + b"\n")
        line = b""
        while not line.endswith(b"\n") and len(line) < LONGEST and (part := connection.recv(LONGEST)):
            line += part
    return line

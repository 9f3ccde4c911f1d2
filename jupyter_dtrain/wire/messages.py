"""The message types that a rank understands, and the addresses on its channels."""

from __future__ import annotations

from typing import Final

import msgspec

RUN_MESSAGE: Final = "dtrain_run"
"""Shell message: run a cell. Content: ``run``, ``code``, ``generation``, and the values that it needs as ``names`` and
``digests`` of the pickles in the buffers."""
VALUES_MESSAGE: Final = "dtrain_values"
"""Shell message: ``op`` is ``store``, ``fetch`` or ``comm``; ``names`` and, with pickles, ``digests`` as above."""
HELLO_MESSAGE: Final = "dtrain_hello"
"""Shell message: answered when the rank is idle. Shows that the road to the rank is open."""
REQUEST_MESSAGE: Final = "dtrain_request"
"""Control message to an agent or a watch. Content: ``op`` and its arguments; the reply: ``status`` and the answer."""


def watch_identity(engine: str) -> str:
    """The routing identity, on the control channel, of the watch of ``engine``."""
    return f"{engine}-watch"


STEWARD_REQUEST: Final = "dtrain_world_request"
"""Control message. Content: ``op`` and its arguments."""
STEWARD_REPLY: Final = "dtrain_world_reply"
"""The answer: ``status`` and what was asked for."""
STEWARD_EVENT: Final = "dtrain_world_event"
"""What is broadcast. Content: ``kind``, the ``incarnation`` of the ranks, and what belongs to the kind."""

ASKED_FOR: Final = "a client asked for it"
"""Why a world ends that is stopped."""


class Cell(msgspec.Struct, frozen=True):
    """One cell, as its notebook knows it."""

    number: int | None = None
    """As the notebook shows it: ``In [3]``; None outside IPython."""
    id: str = ""
    """As the notebook file has it; empty where the front end does not tell: a terminal, an old front end."""


class Watching(msgspec.Struct, frozen=True):
    """What a cell wants to see without a line of code."""

    metrics: bool = True
    grad_norm: bool = False

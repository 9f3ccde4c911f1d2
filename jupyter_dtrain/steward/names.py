"""The message types of a steward's channels, and the words that others know a stopped world by."""

from __future__ import annotations

from typing import Final

STEWARD_REQUEST: Final = "dtrain_world_request"
"""Control message. Content: ``op`` and its arguments."""
STEWARD_REPLY: Final = "dtrain_world_reply"
"""The answer: ``status`` and what was asked for."""
STEWARD_EVENT: Final = "dtrain_world_event"
"""What is broadcast. Content: ``kind``, the ``incarnation`` of the ranks, and what belongs to the kind."""

ASKED_FOR: Final = "a client asked for it"
"""Why a world ends that is stopped."""

"""Requests about the prompts of ranks: the answers of a person on their way to the code that asks.

:mod:`.messages` says how these travel. A prompt itself is an event of its run,
:class:`~jupyter_dtrain.core.events.PromptOpened`. What a person types is in these requests and nowhere else, since it
may be a password.
"""

from __future__ import annotations

import msgspec

from .messages import AgentRequest, Done, StewardRequest


class AnswerPrompts(StewardRequest[Done], frozen=True, tag="answer"):
    """Answer the same to prompts of several ranks. The steward refuses it from any client but the driver."""

    client: str
    """The id of the client."""
    run: int
    prompts: dict[int, int]
    """The number of the prompt, by rank."""
    text: str | None
    """A line without its end; None for the end of the input, as Ctrl-D gives it."""
    by: str = ""
    """Where a person has answered, in words; empty for the notebook whose cell it is."""


class Evaluated(msgspec.Struct, frozen=True):
    """What a rank that waits for others has to say to a debugger's command."""

    waits: str
    """The call in which it waits; empty where it does not wait, and has not looked."""
    text: str


class Evaluate(AgentRequest[Evaluated], frozen=True, tag="evaluate"):
    """Carry out a debugger's command that only looks, where the rank waits for others.

    ``p``, ``pp`` and ``whatis`` with an expression, ``w`` and ``args``.
    """

    run: int
    command: str


class LastError(msgspec.Struct, frozen=True):
    """The error that Python keeps as the last one of a rank."""

    error: str
    """Its type and text; empty where there is none."""
    line: str = ""
    """The innermost line of the user's own code; empty where none of it is left."""
    echo: bool = False
    """Whether it only says that another rank has failed."""


class ReadLastError(AgentRequest[LastError], frozen=True, tag="last_error"):
    """Ask for the last error of a rank."""


class NotePrompts(AgentRequest[Done], frozen=True, tag="note_prompts"):
    """Note whether ranks of the run ask a person: what waits for them here with a deadline then has none."""

    run: int
    open: bool


class AnswerPrompt(AgentRequest[Done], frozen=True, tag="prompt"):
    """Answer a prompt of this rank. One that was answered before, or has ended, changes nothing."""

    run: int
    number: int
    text: str | None
    by: str = ""

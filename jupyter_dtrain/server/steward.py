"""The way to one world's steward, for a server's event loop.

Under failure: every wait has a deadline. A request that gets no answer is sent again. A silent steward, or one whose
connection file cannot be read, raises :class:`Silent`; one that refuses raises
:class:`~jupyter_dtrain.core.errors.Refused`.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from jupyter_client.asynchronous.client import AsyncKernelClient

from jupyter_dtrain.core.errors import NotSteered, Refused, ReplaceFailed
from jupyter_dtrain.wire.attempts import Attempts
from jupyter_dtrain.wire.healing_messages import Heal, HealState, ReadHeal
from jupyter_dtrain.wire.messages import STEWARD_EVENT, StewardRequest, from_content, read_answer
from jupyter_dtrain.wire.steering_messages import ReadSteer, Steer, SteerState
from jupyter_dtrain.wire.steward_messages import (
    AnyBroadcast,
    FetchAnswers,
    Relayed,
    RelayQuestion,
)

if TYPE_CHECKING:
    from jupyter_dtrain.core.steering import LoopAct
    from jupyter_dtrain.launch.worlds import Listing

A = TypeVar("A", bound=msgspec.Struct)

STEPS = 60.0
"""Seconds in which the ranks of a loop that is steered must make a step."""
PATIENCE = 3.0
"""Seconds that a steward may take to answer."""


ANSWER = 8.0
"""Seconds in which ranks, or their watches from outside, report where they are."""


class Silent(Exception):
    """A steward does not answer."""


class Steward:
    """Asks one world's steward, and receives its broadcasts. For one event loop."""

    def __init__(self, listing: Listing) -> None:
        """Raises :class:`Silent` where the connection file cannot be read."""
        self._client = AsyncKernelClient(connection_file=listing.connection_file)
        try:
            self._client.load_connection_file()
        except (OSError, ValueError, KeyError) as error:
            raise Silent(f"its connection file cannot be read ({error})") from error
        self._client.start_channels(shell=False, stdin=False, hb=False)
        self._lock = asyncio.Lock()

    async def ask(self, request: StewardRequest[A]) -> A:
        """The answer. Raises :class:`Silent` when none comes within :data:`PATIENCE` seconds, and :class:`Refused`."""
        deadline = time.monotonic() + PATIENCE
        async with self._lock:
            if time.monotonic() >= deadline:
                # Other questions took the time. The caller gives this request up, so it must not be sent later.
                raise Silent("its main process does not answer")
            attempts = Attempts(self._client, request)
            while (patience := deadline - time.monotonic()) > 0:
                patience = min(patience, attempts.send_when_due())
                with contextlib.suppress(queue.Empty):
                    reply = await self._client.control_channel.get_msg(timeout=patience)
                    if attempts.is_answer(reply):
                        return read_answer(reply["content"], request)
        raise Silent("its main process does not answer")

    async def relay(self, kind: Literal["state", "stacks", "variables"], ranks: list[int]) -> Relayed:
        """Have the steward ask ``ranks``, and return their answers. Raises :class:`Silent` and :class:`Refused`."""
        ticket = (await self.ask(RelayQuestion(kind, ranks))).ticket
        deadline = time.monotonic() + ANSWER
        while time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            found = await self.ask(FetchAnswers(ticket))
            if found != Relayed():
                return found
        raise Silent("its ranks do not answer")

    async def heal(self, by: str) -> HealState:
        """Have dead ranks replaced, and wait for that, which the steward bounds.

        Raises :class:`Silent`, and :class:`ReplaceFailed` with the reason.
        """
        try:
            number = (await self.ask(Heal(by))).number
            while True:
                await asyncio.sleep(0.1)
                if (state := await self.ask(ReadHeal(number))).phase != "going on":
                    break
        except Refused as refused:
            raise ReplaceFailed(f"The dead ranks cannot be replaced: {refused}.") from None
        if state.phase == "failed":
            raise ReplaceFailed(f"The dead ranks could not be replaced: {state.words}.")
        return state

    async def steer(self, act: LoopAct, client: str, by: str, run: int, patience: float = STEPS) -> SteerState:
        """Have an act done on the loop of ``run``, and wait for what becomes of it.

        ``client``: the id of the client that controls the world; ``patience``: seconds in which the ranks must make a
        step. Raises :class:`Silent` and :class:`Refused`, and :class:`NotSteered` with the reason.
        """
        number = (await self.ask(Steer(client, by, act, patience, run))).number
        while True:
            await asyncio.sleep(0.1)
            if (state := await self.ask(ReadSteer(number))).phase != "going on":
                break
        if state.phase == "failed":
            raise NotSteered(state.words)
        return state

    async def hear(self, timeout: float) -> AnyBroadcast | None:
        """The next broadcast, or None after ``timeout`` seconds. One task only.

        It skips a kernel's other messages: ``busy`` and ``idle`` around each of our own questions. Raises
        :class:`Refused` for a broadcast that cannot be read.
        """
        deadline = time.monotonic() + timeout
        while (patience := deadline - time.monotonic()) > 0:
            try:
                message = await self._client.iopub_channel.get_msg(timeout=patience)
            except queue.Empty:
                return None
            if message["msg_type"] == STEWARD_EVENT:
                event: AnyBroadcast = from_content(message["content"], AnyBroadcast)
                return event
        return None

    def close(self) -> None:
        """Close the sockets."""
        with contextlib.suppress(Exception):
            self._client.stop_channels()
            self._client.context.destroy(linger=100)

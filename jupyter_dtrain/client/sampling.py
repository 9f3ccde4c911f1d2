"""The question to the ranks' parents where their ranks are over the next seconds.

It is repeated while it waits, so a lost message is made good, and the ranks' parents know that somebody waits.

Under failure: the wait has a deadline, and ends at once when all ranks have answered or are gone. A rank without
samples has words that say why. Stop ends the sampling, too.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from jupyter_dtrain.core.flames import Sampled
from jupyter_dtrain.core.stop_button import StopButton
from jupyter_dtrain.wire.agent_messages import SampleRank
from jupyter_dtrain.wire.questions import ASK_AGAIN

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jupyter_dtrain.core.world import AddressedRank, AddressedWorld
    from jupyter_dtrain.wire.channels import RanksChannel

    Bound = Callable[[], tuple[AddressedWorld, RanksChannel]]

LATE: Final = 13.0
"""Seconds beyond the time of sampling in which the samples must come; see :mod:`jupyter_dtrain.watch.sampling`."""
DEAD: Final = 2.0
"""Seconds in which the samples of a rank come that has died."""
LOOK: Final = 0.05
"""Seconds between two looks at the answers."""


def sample_ranks(bound: Bound, ranks: list[int], seconds: float) -> dict[int, Sampled]:
    """The stacks of ``ranks`` over so many ``seconds``.

    ``bound``: the world and the way to it as they are now; raises when they are gone. Stop raises
    ``KeyboardInterrupt``, once the ranks' parents were told.
    """
    world, channel = bound()
    number = secrets.token_hex(8)
    asked = [_AskedRank(world.rank(rank), number, seconds) for rank in ranks]
    now = ask_at = time.monotonic()
    deadline = now + seconds + LATE
    with StopButton() as stop_button:
        while any(one.found is None for one in asked) and now < deadline and not stop_button.fell:
            world, channel = bound()
            for one in asked:
                if now >= ask_at:
                    one.ask(channel)
                one.look(world, now)
            if now >= ask_at:
                ask_at = now + ASK_AGAIN
            time.sleep(LOOK)
            now = time.monotonic()
        found = {one.rank: one.end(channel) for one in asked}
    stop_button.check()
    return found


class _AskedRank:
    """The question to one rank's parent, and the answer."""

    def __init__(self, place: AddressedRank, number: str, seconds: float) -> None:
        self.rank = place.rank
        self.found: Sampled | None = None
        """The answer; where there will be none, words that say why."""
        self._place = place
        self._request = SampleRank(place.rank, place.pid, number, seconds)
        self._futures: list[Future[Sampled]] = []
        self._gone: float | None = None
        """When the process was found gone (monotonic)."""
        if place.has_ended:
            self.found = Sampled(words=place.words or "it is dead")

    def ask(self, channel: RanksChannel) -> None:
        """Ask once more, where there is no answer yet."""
        if self.found is None:
            self._futures.append(channel.ask(self._place.watch, self._request))

    def look(self, world: AddressedWorld, now: float) -> None:
        """Take an answer that has come."""
        if self.found is not None:
            return
        done = [future for future in self._futures if future.done()]
        errors = [error for future in done if (error := future.exception()) is not None]
        self.found = next((future.result() for future in done if future.exception() is None), None)
        here = world.rank(self.rank)
        # An earlier question may still get the samples of a process that is gone.
        if errors or here.has_ended or here.pid != self._place.pid:
            self._gone = self._gone or now
            if self.found is None and now > self._gone + DEAD:
                self.found = Sampled(words=here.words or str(next(iter(errors), "its process has ended")))

    def end(self, channel: RanksChannel) -> Sampled:
        """Ask no more; have the sampling end where it goes on."""
        for future in self._futures:
            future.cancel()
        if self.found is not None:
            return self.found
        channel.ask(self._place.watch, SampleRank(self.rank, self._place.pid, self._request.number, 0)).cancel()
        return Sampled(words="no answer")

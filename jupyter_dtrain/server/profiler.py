"""The program that makes one profile for a page: ``python -m jupyter_dtrain.server.profiler``.

It asks the ranks' agents, as a notebook does, and joins the world as no client: it changes nothing there. What it is to
do comes as JSON on its input (:class:`~.profiles.Wanted`); its output is lines of JSON (:data:`~.profiles.Line`).

Under failure: it has the deadlines of :mod:`jupyter_dtrain.wire.profiling`, and it ends when nobody reads its output,
or when the server that has started it is gone. Ranks that hear no more of it drop their profile by themselves.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from jupyter_dtrain.core.errors import BadRequest, DtrainError
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.launch.worlds import Listing, open_channel
from jupyter_dtrain.view.profiles import profile_for_panel
from jupyter_dtrain.wire.channels import RanksChannel
from jupyter_dtrain.wire.profiling import Profiling
from jupyter_dtrain.wire.questions import Answers, ask_agents, await_answers, take_answers
from jupyter_dtrain.wire.steward_messages import ReadState

from .profiles import Failed, LastProfile, Line, ProfileMade, Told, Wanted

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import AddressedWorld

_PATIENCE: Final = 5.0
"""Seconds that the steward may take to answer."""
_FRESH: Final = 0.5
"""Seconds for which the steward's last word on the world counts."""


class _Way:
    """The way to the agents of one world."""

    def __init__(self, listing: Listing, server: int) -> None:
        """``server``: the process for which it is used, which is this one's parent.

        Raises :class:`WorldLost`, and :class:`OSError` where the files of the world are gone.
        """
        self._server = server
        self.ending = False
        """Whether the server may be gone: the ranks must hear of the end all the same."""
        self._steward = open_channel(listing, _PATIENCE)
        state = self._steward.ask(ReadState())
        self._known, self._asked = state.world, time.monotonic()
        self._ranks = RanksChannel(state.client_file)

    def world(self) -> AddressedWorld:
        """The world as it is now. Raises :class:`WorldLost`, and :class:`BrokenPipeError` where the server is gone."""
        if not self.ending and os.getppid() != self._server:
            raise BrokenPipeError
        if time.monotonic() > self._asked + _FRESH:
            self._known, self._asked = self._steward.ask(ReadState()).world, time.monotonic()
        return self._known

    def ask(self, ranks: list[int], timeout: float, question: Any) -> Answers[Any]:
        """The agents' answers within ``timeout`` seconds. Raises as :meth:`world`."""
        futures = ask_agents(self.world(), self._ranks, ranks, question)
        await_answers(futures, timeout)
        return take_answers(ranks, futures)

    def close(self) -> None:
        """Close the sockets."""
        self._ranks.close()
        self._steward.close()


def main() -> int:
    """Make the profile that is wanted."""
    server = os.getppid()
    # What a plug-in prints must not come between the lines.
    lines = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=readable(Wanted))
    told = ""

    def tell(words: str) -> None:
        nonlocal told
        if words != told:
            told = words
            _say(lines, Told(words))

    try:
        try:
            _say(lines, _make(wanted, server, tell))
        except BrokenPipeError:
            raise
        except BadRequest as error:
            _say(lines, Failed(str(error), bad=True))
        except DtrainError as error:
            _say(lines, Failed(str(error)))
        except OSError as error:
            _say(lines, Failed(f"There is no profile: {error}."))
    except BrokenPipeError:  # nobody wants it any more
        return 1
    return 0


def _make(wanted: Wanted, server: int, tell: Callable[[str], None]) -> ProfileMade:
    folder = Path(wanted.folder)
    if not os.access(folder, os.W_OK):
        why = "where you may not write" if os.access(folder, os.F_OK) else "which is no longer there"
        raise BadRequest(
            f"The trace cannot be written to {folder}, {why}: profile from another notebook that is attached to this "
            f"world, with %distributed profile -o FILE."
        )
    tell("Asking the ranks how far they are.")
    with contextlib.closing(_Way(wanted.listing, server)) as way:
        one = Profiling(way.ask, way.world, wanted.ranks, wanted.steps, tell=tell)
        try:
            traces = one.take()
        finally:
            way.ending = True
            one.end()
    path, analysis = one.save(traces, folder / f"profile-{one.run}-{one.after}.json.gz", wanted.listing.name)
    before = msgspec.msgpack.decode(wanted.last, type=readable(LastProfile)) if wanted.last else None
    last = None if before is None else (before.run, before.step, before.analysis)
    found = profile_for_panel(path, one.run, one.after, analysis, one.notes, last)
    return ProfileMade(found, msgspec.msgpack.encode(LastProfile(one.run, one.after, analysis)))


def _say(lines: IO[bytes], line: Line) -> None:
    lines.write(msgspec.json.encode(line) + b"\n")
    lines.flush()


if __name__ == "__main__":
    sys.exit(main())

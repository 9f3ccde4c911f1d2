"""The profiles of running loops that pages ask for: a kernel that waits for the cell that trains can make none.

Each is made by a process of its own (:mod:`.profiler`). Traces may have hundreds of MB, and to read them would hold up
all that the server does for its other pages; whatever happens in that process does not touch the server.

Under failure: a profile has a deadline. A process that ends without a last word, or takes too long, becomes an error in
words. It is killed when nobody observes the world any more, and ends by itself when the server has died. The numbers of
profiles do not come again after that, so a page that still waits for one hears that it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from jupyter_dtrain.core.errors import BadRequest, DtrainError, ProfileFailed
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.core.traces import Analysis
from jupyter_dtrain.launch.worlds import Listing
from jupyter_dtrain.view.profiles import PanelProfile

from .messages import ProfileProgress

if TYPE_CHECKING:
    from asyncio.subprocess import Process

_PROGRAM: Final = "jupyter_dtrain.server.profiler"
_LIMIT: Final = 900.0
"""Seconds that a profile may take, with all that it waits for."""
_KEPT: Final = 4
"""The most profiles that are kept: a page may look for its own while other pages have begun the next ones."""
_FEWER: Final = (
    "Profile fewer steps, or fewer ranks, with %distributed profile -n STEPS -r RANKS in another notebook that is "
    "attached to this world."
)
_MOST: Final = 1 << 26
"""Bytes of a line of the program's output."""


class LastProfile(msgspec.Struct, frozen=True):
    """What the next profile is compared with."""

    run: int
    step: int
    analysis: Analysis


class Wanted(msgspec.Struct, frozen=True):
    """The profile that the program is to make."""

    listing: Listing
    ranks: list[int]
    steps: int
    folder: str
    """Where the trace goes."""
    last: bytes
    """The :class:`LastProfile` of the profile before, in MessagePack; empty for the first."""


class Told(msgspec.Struct, frozen=True, tag="told"):
    """What the program does now, as a sentence."""

    words: str


class ProfileMade(msgspec.Struct, frozen=True, tag="made"):
    """The profile: its last line."""

    profile: PanelProfile
    kept: bytes
    """A :class:`LastProfile`, in MessagePack: JSON has no NaN."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Why there is no profile: the last line in place of that."""

    words: str
    bad: bool = False
    """Whether the request could not be carried out as it was: a :class:`.BadRequest`."""


Line = Told | ProfileMade | Failed
"""A line of the program's output."""


class Profiles:
    """The profiles of one world, of which one at a time is made. All methods are for the server's event loop."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._kept: dict[int, _Profile] = {}
        """The last profiles by number, the newest last."""
        self._last = b""

    def begin(self, ranks: list[int], steps: int, folder: Path) -> int:
        """Begin to profile the next ``steps`` steps of ``ranks``; the number of the profile, by which to :meth:`look`.

        ``folder`` gets the trace. Raises :class:`BadRequest` while another one is made.
        """
        newest = max(self._kept, default=0)
        before = self._kept.get(newest)
        if before is not None and before.made is None and before.error is None:
            raise BadRequest("Another profile of this world is being made: wait until that has ended.")
        if before is not None and before.made is not None:
            self._last = before.made.kept
        wanted = Wanted(self._listing, ranks, steps, str(folder), self._last)
        # Milliseconds: one server's profiles have other numbers than those of the server before it.
        number = max(newest + 1, time.time_ns() // 1_000_000)
        self._kept[number] = _Profile(wanted)
        if len(self._kept) > _KEPT:
            self._kept.pop(min(self._kept)).task.cancel()
        return number

    def look(self, number: int, root: Path) -> ProfileProgress | None:
        """How far a profile is; None where it is not kept. Raises the error that it has ended with.

        ``root``: the folder whose files pages can download.
        """
        one = self._kept.get(number)
        if one is None:
            return None
        if one.error is not None:
            raise one.error
        if one.made is None:
            return ProfileProgress(one.words, None)
        path = Path(one.made.profile.path)
        file = path.relative_to(root).as_posix() if path.is_relative_to(root) else ""
        return ProfileProgress("", msgspec.structs.replace(one.made.profile, file=file))

    def close(self) -> None:
        """End what is being made."""
        for one in self._kept.values():
            one.task.cancel()


class _Profile:
    """One profile, and the program that makes it."""

    def __init__(self, wanted: Wanted) -> None:
        self.words = ""
        self.made: ProfileMade | None = None
        self.error: DtrainError | None = None
        self.task = asyncio.ensure_future(self._make(wanted))

    async def _make(self, wanted: Wanted) -> None:
        process = None
        try:
            # Not in a folder of the user's: its modules would come before the installed ones.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", _PROGRAM),
                stdin=PIPE,
                stdout=PIPE,
                cwd=Path(wanted.listing.connection_file).parent,
                limit=_MOST,
                start_new_session=True,
            )
            await asyncio.wait_for(self._follow(process, msgspec.json.encode(wanted)), _LIMIT)
        except (asyncio.TimeoutError, TimeoutError):
            self.error = ProfileFailed(f"There is no profile: it was not made within {_LIMIT / 60:g} minutes. {_FEWER}")
        except Exception as error:  # noqa: BLE001 — a page waits for the end, whatever it is
            self.error = ProfileFailed(f"There is no profile: the program that makes it cannot be run ({error}).")
        finally:
            if process is not None:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                await process.wait()

    async def _follow(self, process: Process, wanted: bytes) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(wanted)
            await process.stdin.drain()
        process.stdin.close()
        while line := await process.stdout.readline():
            match msgspec.json.decode(line, type=readable(Line)):
                case Told(words):
                    self.words = words
                case ProfileMade() as made:
                    self.made = made
                case Failed(words, bad):
                    self.error = BadRequest(words) if bad else ProfileFailed(words)
        code = await process.wait()
        if self.made is None and self.error is None:
            self.error = ProfileFailed(f"There is no profile: the program that makes it {_ended(code)}")


def _ended(code: int) -> str:
    """How a program has ended that has left no last word."""
    if code == -signal.SIGKILL:
        return f"was killed, as where memory is short. {_FEWER}"
    how = f"was killed by signal {-code}" if code < 0 else f"has ended with code {code}"
    return f"{how}; the log of the Jupyter server may say why."

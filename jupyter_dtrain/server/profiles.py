"""The profiles of running loops that pages ask for: a kernel that waits for the cell that trains can make none.

Each is made by a process of its own (:mod:`.profiler`). Traces may have hundreds of MB, and to read them would hold up
all that the server does for its other pages; whatever happens in that process does not touch the server.

Under failure: a profile has a deadline. A process that ends without a last word, or takes too long, becomes an error in
words. It is killed when nobody observes the world any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
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
        self._newest: _Profile | None = None
        self._last = b""

    def begin(self, ranks: list[int], steps: int, folder: Path) -> int:
        """Begin to profile the next ``steps`` steps of ``ranks``; the number of the profile, by which to :meth:`look`.

        ``folder`` gets the trace. Raises :class:`BadRequest` while another one is made.
        """
        before = self._newest
        if before is not None and before.made is None and before.error is None:
            raise BadRequest("Another profile of this world is being made: wait until that has ended.")
        if before is not None and before.made is not None:
            self._last = before.made.kept
        wanted = Wanted(self._listing, ranks, steps, str(folder), self._last)
        self._newest = _Profile(1 if before is None else before.number + 1, wanted)
        return self._newest.number

    def look(self, number: int, root: Path) -> ProfileProgress | None:
        """How far a profile is; None where it is not the newest. Raises the error that it has ended with.

        ``root``: the folder whose files pages can download.
        """
        one = self._newest
        if one is None or one.number != number:
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
        if self._newest is not None:
            self._newest.task.cancel()


class _Profile:
    """One profile, and the program that makes it."""

    def __init__(self, number: int, wanted: Wanted) -> None:
        self.number = number
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
            self.error = ProfileFailed(f"There is no profile: it was not made within {_LIMIT / 60:g} minutes.")
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
            self.error = ProfileFailed(
                f"There is no profile: the program that makes it has ended with code {code}; the log of the Jupyter "
                f"server may say why."
            )

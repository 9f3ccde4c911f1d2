"""The errors that a user can meet, in words that say what to do.

Each message names the cause and what to do about it. Three roots are enough to catch: :class:`WorldError` where there
is no world to work in, :class:`RequestError` where something was refused and nothing has changed, and
:class:`RanksError` where the ranks have begun what was asked, and failed.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import Any

from .notices import anchor_of_error, pointer

_PACKAGE = Path(__file__).parents[1]


def package_gone() -> str:
    """Why parts of this package cannot be loaded, with the fix; empty while its files are where they were."""
    if Path(__file__).exists():
        return ""
    return (
        f"{_PACKAGE.name} is not in {_PACKAGE.parent} any more: it was uninstalled or moved, and parts of it that were "
        "not in use by then cannot be loaded. Install it there again, then repeat this. The ranks keep their variables "
        "meanwhile and run cells, and %distributed stop ends them."
    )


class DtrainError(Exception):
    """Base of all errors that jupyter-dtrain raises by itself.

    In a notebook it shows as its message alone: the frames between the cell and the cause are ours, not the user's.
    """

    def __init__(self, *words: object, option: str = "") -> None:
        """``option``: the start option that is wrong, by its name, so that a dialog can show the error beside it."""
        super().__init__(*words)
        self.option = option

    def _render_traceback_(self) -> list[str]:
        where = pointer([anchor_of_error(type(self))])
        said = f"\x1b[31m{type(self).__name__}\x1b[0m: {self}"
        return [said, f"\x1b[2m{where}\x1b[0m"] if where else [said]


class WorldError(DtrainError):
    """There is no world to work in: it has not started, is gone, or speaks another version's protocol."""


class RequestError(DtrainError):
    """What was asked was refused or cannot be done; nothing was changed."""


class RanksError(DtrainError):
    """Ranks, or their hosts, have begun what was asked, and failed."""


class BadRequest(RequestError, ValueError):
    """The request cannot be carried out as written; nothing was changed."""


class BadSyntax(BadRequest):
    """The cell does not parse. ``lineno`` and ``offset`` count from 1, as in :class:`SyntaxError`."""

    def __init__(self, error: SyntaxError) -> None:
        self.lineno = error.lineno
        self.offset = error.offset
        where = f"line {error.lineno}: " if error.lineno else ""
        text = (error.text or "").rstrip()
        caret = "\n    " + " " * (max(error.offset or 1, 1) - 1) + "^" if text else ""
        shown = f"\n    {text}{caret}" if text else ""
        super().__init__(f"{where}{error.msg}, so the cell was not sent to any rank.{shown}")


class NoWorld(WorldError):
    """There is no running world to do this with."""


class StartFailed(WorldError):
    """A world could not be started; nothing of it is left. The message has the reason, the fix, and then a log."""

    def __init__(self, reason: str, fix: str = "", log: str = "", *, option: str = "") -> None:
        self.reason = reason
        self.fix = fix
        self.log = log
        """The lines of a log that show the reason; empty if no log says more."""
        words = " ".join(filter(None, (reason, fix)))
        super().__init__(f"{words}\n{indent(log, '    ')}" if log else words, option=option)


class StartInterrupted(KeyboardInterrupt):
    """Stop has ended a start; nothing of it is left. A notebook shows these words alone."""

    def __init__(self) -> None:
        super().__init__("The start was interrupted. Nothing of it is left.")

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class WorldLost(WorldError):
    """The world's main process or the connection to it is gone."""


class Refused(RequestError):
    """The world's main process, or a rank, refused a request or could not read it; nothing was changed."""


class OtherVersion(WorldError):
    """Another version of jupyter-dtrain started the world: it can be listed, interrupted and stopped, not joined."""


class ReadOnly(RequestError):
    """Another client controls the world, and this session is read-only; nothing was sent to it."""


class RanksBusy(RequestError):
    """Some ranks still work on an earlier cell, so this one was not sent."""


class RanksDead(RequestError):
    """Some of the wanted ranks have died, so the cell was not sent."""


class ReplaceFailed(RanksError):
    """Dead ranks could not be replaced, or a resize failed, for the reason in the message. The others stay."""


class NotSteered(RequestError):
    """An act on the running loop was not done, for the reason in the message, which says whether anything changed."""


class StoreFailed(RequestError):
    """The store of runs cannot be used; nothing in it was changed."""


class TransferFailed(RequestError):
    """A value could not be sent to, or brought back from, the ranks; nothing was changed."""


class TrackFailed(RequestError):
    """A tracker does not take a stored run, for the reason in the message. What it has of the run stays there."""


class ProfileFailed(RanksError):
    """No rank has recorded the steps that were asked for, or their trace cannot be written; the message says why."""


class UploadFailed(RanksError):
    """Some hosts have not got all files; the message says why and what to do. Files that are complete stay."""

    def __init__(self, words: str, uploaded: Any = None) -> None:
        super().__init__(words)
        self.uploaded = uploaded
        """What became of the files on each host, as :meth:`.Session.upload` returns it; None where it did not begin."""

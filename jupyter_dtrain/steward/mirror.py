"""The steward's copy of the spools of other hosts, byte for byte, where the spools of local ranks are.

So the store, the sidebar and a client that attaches read the spools of all ranks in the same way.

Under failure: the rest of a file whose piece the disk does not take is lost for the store; clients that are attached
have it by other ways. The first such failure is logged.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from jupyter_dtrain.wire.reports import Spooled
from jupyter_dtrain.wire.spool import spool_path

_log = logging.getLogger(__name__)


class Mirror:
    """Writes pieces of spools. The pieces of one rank come from one thread, in order."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._failed = False

    def keep(self, piece: Spooled) -> None:
        """Write ``piece`` at its place in the copy of its spool, whose end it becomes."""
        path = spool_path(self._folder, piece.run, piece.rank)
        try:
            if piece.at == 0:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(path, piece)
        except OSError as error:
            if not self._failed:
                self._failed = True
                _log.error("Spools of other hosts cannot be kept: %s", error)

    def _write(self, path: Path, piece: Spooled) -> None:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
            if os.fstat(file.fileno()).st_size < piece.at:
                raise OSError(errno.ENODATA, "An earlier piece is missing", str(path))
            file.truncate(piece.at)
            file.seek(piece.at)
            file.write(piece.data)

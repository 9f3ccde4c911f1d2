"""A file for a moment, by which a host shows whether it shares a folder of this machine.

Under failure: in a folder that cannot be written there is none, and hosts count as those that share nothing.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def shared_file(folder: Path) -> Iterator[dict[str, str] | None]:
    """The ``path`` and the text (``nonce``) of a file in ``folder``, which goes with the block; None if there is none.

    Hosts look for it where the same folder would be there.
    """
    nonce = secrets.token_hex(8)
    path: Path | None = None
    written: dict[str, str] | None = None
    try:
        with contextlib.suppress(OSError):
            path = folder.absolute() / f".dtrain-preflight-{nonce}"
            path.write_text(nonce)
            written = {"path": str(path), "nonce": nonce}
        yield written
    finally:
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()


def sees(path: str, nonce: str) -> bool:
    """Whether the file ``path`` is here and holds ``nonce``: then both machines see one file system."""
    try:
        return Path(path).read_text(errors="replace") == nonce
    except OSError:
        return False

"""Writes the files of an export: all of them, or none."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from jupyter_dtrain.core.errors import BadRequest

from .notebook import listed


def check_places(paths: list[Path], *, force: bool) -> None:
    """Raise :class:`BadRequest` where a file cannot be written, or is there and ``force`` is False."""
    for path in paths:
        if path.is_dir():
            raise BadRequest(f"{path} is a folder: name another file.")
        if not path.parent.is_dir():
            raise BadRequest(f"The folder {path.parent} does not exist: make it first, or name another file.")
    there = [path for path in paths if path.exists()]
    if there and not force:
        these = "it" if len(there) == 1 else "them"
        raise BadRequest(
            f"{listed(there)} exist{'s' if len(there) == 1 else ''} already: add --force to replace {these}, or name "
            f"another file."
        )


def write_files(texts: Mapping[Path, str]) -> None:
    """Write each file; one that begins with ``#!`` is a program. Raises :class:`BadRequest`; none is half written.

    Every text is written beside its place first, and only then put there.
    """
    ready: dict[Path, Path] = {}
    try:
        for path, text in texts.items():
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
            ready[path] = Path(name)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            ready[path].chmod((0o777 if text.startswith("#!") else 0o666) & ~_umask())
        for path, written in ready.items():
            written.replace(path)
    except OSError as error:
        raise BadRequest(
            f"The export cannot be written to {error.filename or next(iter(texts)).parent} ({error.strerror}): name a "
            f"file in another folder."
        ) from None
    finally:
        for written in ready.values():
            with contextlib.suppress(OSError):
                written.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""The folders of a world on a host whose files the steward cannot read.

Each such host has the world's scratch folder in its memory, under the same path as on the steward's machine, and the
spools of its ranks among its temporary files. Both are for this user alone, and both end with the watch. The watch
holds a lock on both as long as it lives, and labels them with their world (:mod:`jupyter_dtrain.core.processes`): by
that the doctor knows what a watch has left that was killed.

Under failure: :func:`make` raises :class:`OSError`, which names the folder. A folder that cannot be removed stays,
with the world's id in its name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from jupyter_dtrain.core.processes import LABEL, label
from jupyter_dtrain.wire.requests import RankSpec

PATIENCE: Final = 12.0
"""Seconds in which a watch of an earlier launch has ended."""
FAREWELL: Final = 2.0
PAUSE: Final = 0.05


def make(spec: RankSpec) -> RankSpec:
    """Make the folders; returns the specification with their paths.

    This process holds a lock on the scratch folder until it ends: a watch that a restart has left may still remove the
    folder. It waits for that, for at most :data:`PATIENCE` seconds.
    """
    scratch = _lock(Path(spec.scratch))
    try:
        for part in ("logs", "profile", "ipython"):
            (scratch / part).mkdir(mode=0o700)
        prefix = f"dtrain-{spec.world_id}-"
        for path in Path(tempfile.gettempdir()).glob(f"{glob.escape(prefix)}*"):
            if path.lstat().st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)  # of a watch that was killed; the steward has its copy
        spool = tempfile.mkdtemp(prefix=prefix)
        fcntl.flock(os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_EX)
        for folder in (scratch, Path(spool)):
            _label(folder, spec.world_id)
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return msgspec.structs.replace(
        spec, folder=str(scratch), spool=spool, mirror=spec.spool, engine_file=str(scratch / "profile" / "engine.json")
    )


def _lock(scratch: Path) -> Path:
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(FileExistsError):
            scratch.mkdir(mode=0o700)
        folder = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(folder).st_uid != os.getuid():
                raise PermissionError(errno.EPERM, "It belongs to another user", str(scratch))
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if scratch.stat().st_ino == os.fstat(folder).st_ino:
                _clear(scratch)
                scratch.chmod(0o700)
                return scratch
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(folder)
        if time.monotonic() > deadline:
            raise FileExistsError(errno.EEXIST, "Another process of this world uses it", str(scratch))
        time.sleep(PAUSE)


def _clear(scratch: Path) -> None:
    """Remove what a watch has left that was killed: one that lives holds the lock."""
    for path in scratch.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _label(folder: Path, world: str) -> None:
    put_private(str(folder / LABEL), label(folder, world))


def put_private(path: str, text: str) -> None:
    """Write a file for this user alone; whoever waits for it sees all of it or nothing."""
    new = f"{path}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    Path(new).rename(path)


def remove(spec: RankSpec) -> None:
    """Remove the folders that :func:`make` made.

    MPI's daemon may still write into one of them, at its own end: it tries again for :data:`FAREWELL` seconds.
    """
    shutil.rmtree(spec.spool, ignore_errors=True)
    deadline = time.monotonic() + FAREWELL
    while True:
        shutil.rmtree(spec.scratch, ignore_errors=True)
        if not Path(spec.scratch).exists() or time.monotonic() > deadline:
            return
        time.sleep(PAUSE)

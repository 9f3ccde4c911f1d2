"""The folders of a world on a host whose files the steward cannot read.

Each such host has the world's scratch folder in its memory, under the same path as on the steward's machine, and the
spools of its ranks among its temporary files. Both are for this user alone, and both end with the watch.

Under failure: :func:`make` raises :class:`OSError`, which names the folder. A folder that cannot be removed stays,
with the world's id in its name.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import msgspec

from jupyter_dtrain.wire.requests import RankSpec


def make(spec: RankSpec) -> RankSpec:
    """Make the folders; returns the specification with their paths."""
    scratch = Path(spec.scratch)
    scratch.mkdir(mode=0o700, exist_ok=True)
    if scratch.lstat().st_uid != os.getuid() or scratch.is_symlink():
        raise PermissionError(13, "It belongs to another user", str(scratch))
    scratch.chmod(0o700)
    for part in ("logs", "profile", "ipython"):
        (scratch / part).mkdir(mode=0o700, exist_ok=True)
    spool = tempfile.mkdtemp(prefix=f"dtrain-{spec.world_id}-")
    return msgspec.structs.replace(
        spec, folder=str(scratch), spool=spool, mirror=spec.spool, engine_file=str(scratch / "profile" / "engine.json")
    )


def put_private(path: str, text: str) -> None:
    """Write a file for this user alone; whoever waits for it sees all of it or nothing."""
    new = f"{path}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    Path(new).rename(path)


def remove(spec: RankSpec) -> None:
    """Remove the folders that :func:`make` made."""
    shutil.rmtree(spec.spool, ignore_errors=True)
    shutil.rmtree(spec.scratch, ignore_errors=True)

"""Starts the processes that send, and checks what a world's option ``track`` asks for.

A sender may outlive the world by some minutes. So it has no part in the world's processes: it gets no signal when its
parent ends, and its environment does not name the world. It has a session of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from jupyter_dtrain.core.errors import BadRequest

from .sender import SendJob
from .target import TrackerTarget, check_target, read_target

MODULE: Final = "jupyter_dtrain.trackers"
"""What Python runs."""
TENSORBOARD: Final = "tensorboard"
"""The tracker that a world has an option of its own for."""


def check_targets(text: str | None, tensorboard: str | None) -> tuple[str | None, str | None]:
    """The targets of a world, complete, and its TensorBoard folder, which one of them may be.

    Raises :class:`BadRequest` for a target that cannot be used.
    """
    targets: dict[str, None] = {}
    for word in (text or "").split():
        if read_target(word).tracker == TENSORBOARD:
            folder = read_target(word).where
            if not folder or tensorboard not in (None, folder):
                raise BadRequest("Give TensorBoard one folder, such as tensorboard:runs.", option="track")
            tensorboard = folder
        else:
            targets[check_target(word).text] = None
    return " ".join(targets) or None, tensorboard


def targets_of(text: str | None) -> list[TrackerTarget]:
    """The targets of a world, which were checked."""
    return [read_target(word) for word in (text or "").split()]


def start_sender(
    job: SendJob, log: Path | None = None, folder: str | None = None, without: Iterable[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a process that does ``job``. ``log``: the file for its messages. Raises :class:`OSError`.

    ``folder``: where it works (default: where this process does); trackers put their files there. ``without``:
    variables that its environment lacks.
    """
    environ = {name: value for name, value in os.environ.items() if name not in set(without)}
    # Where this process finds the package, however it was started.
    environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    descriptor = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            cwd=folder if folder is not None and os.path.isdir(folder) else None,  # noqa: PTH112
            stdin=subprocess.PIPE,
            stdout=descriptor,
            stderr=descriptor,
            env=environ,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    assert process.stdin is not None
    # Less than a pipe holds: this never waits.
    process.stdin.write(msgspec.json.encode(job))
    process.stdin.close()
    return process

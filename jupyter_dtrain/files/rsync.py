"""One copy to one host by rsync, over ssh or srun: see :mod:`.transports`.

No file name passes through a shell, but for the folder there, which is quoted. No option lets rsync delete a file.

Under failure: a copy ends by its deadline, or when it is asked to, with rsync and its connection. The programs there
end when the connection closes, or after :data:`SILENCE` seconds. Files that are complete stay; rsync removes an
incomplete one.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from jupyter_dtrain.launch.programs import NOT_RUN, ProgramAnswer, Unreached, end, start

from .transports import Way

SILENCE: Final = 60
"""Seconds without a byte after which rsync gives up, here and there."""
GLANCE: Final = 0.2
"""Seconds between two looks at the deadline."""
_KEPT: Final = 100_000
"""How many bytes of rsync's output are kept."""
_VANISHED: Final = 24
"""The exit code of rsync where files went while it copied: they have no copy to make."""
_NOT_WRITTEN: Final = 11
"""The exit code of rsync where a disk takes no more."""
_BROKEN: Final = (10, 12, 20, 30, 35)
"""Exit codes of rsync whose reason is the connection's; 20: its other end was told to stop."""
_OTHERS: Final = 128
"""Higher codes are its connection's: 255 where ssh or a gate failed, else a signal that killed the program there."""
_UNANSWERED: Final = "(0 bytes received so far)"
"""The words of rsync where its other end has ended without an answer, and its connection stood."""
INSTALL: Final = "Install it, so that `rsync --version` works there (Debian: apt install rsync)."

_OPTIONS: Final = (
    "--recursive",
    "--links",
    "--perms",
    "--times",
    # The folder may belong to somebody else, who alone can set its times.
    "--omit-dir-times",
    # A link to a folder there, to a larger disk perhaps, would be replaced by a folder.
    "--keep-dirlinks",
    "--no-human-readable",
    "--no-inc-recursive",
    "--info=progress2,stats2",
    f"--timeout={SILENCE}",
)
_CAUSES: Final = (
    (
        r"is your shell clean|protocol version mismatch|protocol incompatibility",
        "{host} prints other text before the answer of rsync, or its rsync is too old: {said}",
        "No start file of the shell there, nor a program in front of rsync, may print in a shell without a terminal.",
    ),
    (
        r"No space left on device|[Qq]uota exceeded",
        "The disk of {host} is full: {said}",
        "Free space there, or choose another disk with --to. Files that are complete stay, and are not copied again.",
    ),
    (
        r"\[sender\].*denied|send_files failed to open|opendir .*denied",
        "A file here cannot be read: {said}",
        "Make it readable, or leave it out with --exclude. All other files were copied.",
    ),
    (
        r"Permission denied|Operation not permitted",
        "This user may not write there: {said}",
        "Change the owner or the rights of that folder there, or choose another one with --to.",
    ),
    (
        r"Read-only file system",
        "The disk of {host} is mounted read-only: {said}",
        "Choose a folder that can be written with --to.",
    ),
    (
        r"Too many levels of symbolic links",
        "A folder of that name is a link there: {said}",
        "Sync that folder by itself: rsync follows a link only there.",
    ),
    (
        r"File exists|Not a directory|Is a directory|not make way for|non-empty directory",
        "A file has the name of a folder on the other machine: {said}",
        "Rename one of them: a copy deletes neither.",
    ),
)
"""The words of rsync and Linux, and their meaning. The first row that matches counts."""


class Copied(msgspec.Struct, frozen=True):
    """The end of a copy that succeeded."""

    files: int
    """The files that were new or had changed."""
    size: int
    """Their bytes."""


def copy(
    source: str,
    host: str,
    folder: str,
    *,
    way: Way,
    exclude: Sequence[str],
    deadline: float,
    stop: threading.Event,
    progress: Callable[[int], None],
) -> Copied | Unreached:
    """Copy ``source`` into ``folder`` of ``host``; a folder's name with ``/`` at its end stands for its content.

    ``deadline``: by the monotonic clock. ``stop``: ends it at once. ``progress`` gets the per cent that are done.
    """
    command = ["rsync", *_OPTIONS, *(f"--exclude={pattern}" for pattern in exclude)]
    if not source.endswith("/"):
        command.append("--copy-links")
    command += [f"--rsh={_quote(way.call())}", f"--rsync-path=cd {shlex.quote(folder)} && exec rsync"]
    process = start([*command, "--", source, f"{host}:./"])
    try:
        output, errors = _read(process, deadline, stop, progress)
        if stop.is_set():
            return Unreached("failed", "The copy was interrupted.", "Sync again: complete files are not copied twice.")
        if process.poll() is None:
            fix = "Sync again, with a larger --timeout: files that are complete are not copied again."
            return Unreached("timed out", "The copy was not complete at its deadline.", fix)
    finally:
        _leave(process, way.farewell)
    if process.returncode in {0, _VANISHED}:
        return Copied(_number(output, "Number of regular files transferred"), _number(output, "transferred file size"))
    return _why(ProgramAnswer(output, errors, process.returncode), host, way)


def reason(said: str, host: str) -> tuple[str, str]:
    """Reason and fix in what rsync or Linux ``said``."""
    # The last line of rsync names its source file; the first one names ours.
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for pattern, why, fix in _CAUSES:
        if line := next((line for line in lines if re.search(pattern, line)), ""):
            return why.format(host=host, said=line), fix
    return f"rsync failed: {_first(said)}", "Mend that, then sync again."


def _read(
    process: subprocess.Popen[str], deadline: float, stop: threading.Event, progress: Callable[[int], None]
) -> tuple[str, str]:
    """Read the output and the errors of ``process`` until it ends, the deadline passes or ``stop`` is set."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.close()
    said = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
    with selectors.DefaultSelector() as pipes:
        for pipe in said:
            pipes.register(pipe, selectors.EVENT_READ)
        while pipes.get_map() and not stop.is_set() and time.monotonic() < deadline:
            for key, _ in pipes.select(GLANCE):
                piece = os.read(key.fd, 1 << 16)
                if not piece:
                    pipes.unregister(key.fd)
                said[key.fd] = (said[key.fd] + piece)[-_KEPT:]
                if key.fd == process.stdout.fileno() and (done := re.findall(rb" (\d{1,3})% ", piece)):
                    progress(int(done[-1]))
    while process.poll() is None and not stop.is_set() and time.monotonic() < deadline:
        stop.wait(0.01)  # its pipes are closed, so it ends now
    output, errors = (text.decode(errors="replace") for text in said.values())
    return output, errors


def _leave(process: subprocess.Popen[str], farewell: float) -> None:
    """End rsync and its connection, which gets ``farewell`` seconds to end the program on the host."""
    if farewell:
        process.terminate()
        # The connection shares the pipe for errors, so the pipe's end is the end of both.
        deadline = time.monotonic() + farewell
        _read(process, deadline, threading.Event(), lambda _: None)
        if time.monotonic() >= deadline:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
    end(process)


def _why(answer: ProgramAnswer, host: str, way: Way) -> Unreached:
    if answer.code in NOT_RUN:
        return Unreached("no program", f"{host} cannot run rsync: {_first(answer.errors)}", INSTALL, answer.errors)
    why, fix = reason(answer.errors, host)
    if answer.code == _NOT_WRITTEN and not answer.errors.strip():
        # rsync kills its ssh as soon as it knows this code, often before the words arrive.
        why, fix = f"The disk of {host} is full or broken: rsync could not write a file there.", _CAUSES[0][2]
    if (answer.code in _BROKEN or answer.code > _OTHERS) and why.startswith("rsync failed"):
        if found := way.broken(host, answer):
            return found
        what = f"rsync on {host} ended" if _UNANSWERED in answer.errors else f"The connection to {host} broke"
        why = f"{what}: {why.removeprefix('rsync failed: ')}"
        fix = f"{way.check(host)}, then sync again."
    return Unreached("failed", why, fix, answer.errors)


def _first(said: str) -> str:
    """The first line of ``said`` that rsync wrote, or else the first line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("rsync")), lines[0] if lines else "it said nothing.")


def _quote(words: Sequence[str]) -> str:
    """A command as rsync reads it, which is no shell: a doubled quote stands for one."""
    return " ".join("'" + word.replace("'", "''") + "'" for word in words)


def _number(output: str, name: str) -> int:
    found = re.search(rf"{name}: (\d+)", output)
    return int(found[1]) if found else 0

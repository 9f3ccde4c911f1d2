"""The commit of a run: the state of its code under git when it began, and how the working folder differed from it.

git answers, in processes of their own and on a thread of its own: it runs no hook, no pager and no program that shows
differences in another way, asks nobody, and leaves the repository's index as it is. Files that git ignores, and what
stands in files that it does not know, are never part of it. Secrets in text are redacted; files that commonly hold
some are left out, also those that git knows, and named.

Under failure: without git, without a repository or without a commit in it there is none. Each question to git has a
deadline; what was not answered by then is left out, with a note. Nothing here raises.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from jupyter_dtrain.core.secrets import environment_secrets, is_secret_file, redact

DEADLINE: Final = 5.0
"""Seconds for each question to git."""
LARGEST: Final = 256 << 10
"""Bytes of a difference that are kept."""
LINE: Final = 2000
"""Characters of one of its lines; a notebook has pictures in single ones."""
NAMES: Final = 100
"""Files that git does not know, and that are named; and files that are named in a note."""
WAITING: Final = 64
"""Runs that may wait for their commits."""
_READ: Final = 1 << 20  # bytes of an answer
_TEXT: Final = 500  # characters of a branch, an address or a message
_USER: Final = re.compile(r"(?<=://)[^/@\s]+@")
_OPTIONS: Final = (
    *("--no-pager", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-c", "color.ui=false"),
    *("-c", "core.quotePath=false", "-c", "diff.submodule=short"),
)
_DIFF: Final = ("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=dirty")
_NOTEBOOKS: Final = "**/*.ipynb"


class RunCommit(msgspec.Struct, frozen=True):
    """A commit, and the difference between it and the working folder."""

    hash: str = ""
    branch: str = ""
    """Empty where HEAD is on none."""
    remote: str = ""
    """The address of the repository that it is from, without who may go there; empty for none."""
    message: str = ""
    """The first line."""
    dirty: bool = False
    """Whether files that git knows differed from it, or there were files that git neither knows nor ignores."""
    diff: str = ""
    """The differences of the files that git knows; at most :data:`LARGEST` bytes."""
    notes: list[str] = []
    """Sentences on what :attr:`diff` leaves out."""
    untracked: list[str] = []
    """Files and folders that git neither knows nor ignores: names, at most :data:`NAMES`."""
    folder: str = ""
    """The folder of the repository."""


class Commits:
    """Asks git for the commits of runs, one after the other, on a thread that starts with the first. Never raises."""

    def __init__(self) -> None:
        self._wanted: queue.Queue[tuple[int, str]] = queue.Queue(WAITING)
        self._found: queue.SimpleQueue[tuple[int, RunCommit]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._open = 0
        """Runs whose commits are neither found nor taken."""
        self._lock = threading.Lock()

    def ask(self, run: int, folder: str) -> None:
        """Find the commit of ``folder`` for the run in row ``run``; one of too many runs at once gets none."""
        with contextlib.suppress(queue.Full, RuntimeError):  # no thread can be started
            if self._thread is None:
                self._thread = threading.Thread(target=self._answer, name="dtrain-commits", daemon=True)
                self._thread.start()
            self._wanted.put_nowait((run, folder))
            with self._lock:
                self._open += 1

    def found(self, patience: float = 0.0) -> list[tuple[int, RunCommit]]:
        """What was found since the last call, by run. ``patience``: seconds to wait for what is still looked for."""
        deadline = time.monotonic() + patience
        while self._open and time.monotonic() < deadline:
            time.sleep(0.02)
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._found.get_nowait())
        return found

    def _answer(self) -> None:
        while True:
            run, folder = self._wanted.get()
            try:
                with contextlib.suppress(Exception):
                    if (commit := read_commit(folder)) is not None:
                        self._found.put((run, commit))
            finally:
                with self._lock:
                    self._open -= 1


def read_commit(folder: str | Path) -> RunCommit | None:
    """The commit of the repository in which ``folder`` lies; None without git, a repository, or a commit."""
    place = Path(folder)
    if not place.is_dir():
        return None
    head = _ask(place, "rev-parse", "--show-toplevel", "--verify", "HEAD")
    top, _, commit = (head or "").strip().rpartition("\n")
    if not top or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        return None
    secrets = environment_secrets()

    def clean(text: str | None) -> str:
        return redact(" ".join((text or "").split())[:_TEXT], secrets)

    root, notes = Path(top), list[str]()
    told = _ask(root, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=normal", _DIFF[-1])
    changed = (told or "").split("\0")
    if told is None:
        notes.append(f"git has not said within {DEADLINE:g} s which files have changed.")
    untracked = [one[3:] for one in changed if one.startswith("?? ")]
    known = [one[3:] for one in changed if one and not one.startswith("?? ")]
    return RunCommit(
        commit,
        clean(_ask(root, "symbolic-ref", "--quiet", "--short", "HEAD")),
        _USER.sub("", clean(_remote(root))),
        clean(_ask(root, "log", "-1", "--no-show-signature", "--format=%s")),
        bool(untracked or known),
        _difference(root, known, secrets, notes) if known else "",
        [*notes, *_more(untracked)],
        [clean(one) for one in untracked[:NAMES]],
        clean(top),
    )


def _more(untracked: list[str]) -> list[str]:
    more = len(untracked) - NAMES
    return [f"{more} more files that git does not know are not named."] if more > 0 else []


def _remote(root: Path) -> str:
    """The address of the branch's own remote, else of the usual one; empty without any."""
    told = _ask(root, "remote", "-v") or ""
    found = dict(reversed([(words[0], words[1]) for line in told.splitlines() if len(words := line.split()) > 1]))
    return found.get("origin") or next(iter(found.values()), "")


def _difference(root: Path, changed: list[str], secrets: Iterable[str], notes: list[str]) -> str:
    """How the files ``changed`` differ from the commit: code first, notebooks last. Adds to ``notes``."""
    # What was added in spite of the patterns is known to git, and yet not meant to be shown.
    ignored = {*(_ask(root, "ls-files", "-z", "--cached", "--ignored", "--exclude-standard") or "").split("\0")}
    hidden = [path for path in changed if path in ignored or is_secret_file(path)]
    if hidden:
        names = ", ".join(redact(path, frozenset(secrets)) for path in hidden[:NAMES])
        more = ", …" if len(hidden) > NAMES else ""
        notes.append(f"Files that may hold secrets, or that git is told to ignore, are left out: {names}{more}.")
    without = [f":(top,exclude,literal){path}" for path in hidden]
    found, size = list[str](), 0
    for which in ([":(top)", f":(top,exclude,glob){_NOTEBOOKS}"], [f":(top,glob){_NOTEBOOKS}"]):
        asked = _ask(root, *_DIFF, "--", *which, *without)
        if asked is None:
            notes.append(f"git has not shown within {DEADLINE:g} s how files have changed.")
            continue
        cut = len(asked.encode()) >= _READ
        for line in asked.splitlines(keepends=True):
            short = line if len(line) <= LINE else f"{line[:LINE]}… ({len(line) - LINE} more characters)\n"
            size += len(short.encode())
            if size > LARGEST:
                cut = True
                break
            found.append(short)
        if cut:
            notes.append(f"It is longer: the first {LARGEST >> 10} kB are kept, code before notebooks.")
            break
    # One file at a time: other threads wait while a long text is searched.
    files = re.split(r"(?m)^(?=diff --git )", "".join(found))
    return "".join(redact(one, frozenset(secrets)) for one in files)[:LARGEST]


def _ask(folder: Path, *words: str) -> str | None:
    """What git says to ``words``, at most :data:`_READ` bytes; None where it fails or takes too long."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat", "LC_ALL": "C.UTF-8"}
    env |= {"GIT_LITERAL_PATHSPECS": "0", "GIT_NO_LAZY_FETCH": "1"}
    try:
        git = subprocess.Popen(
            ["git", *_OPTIONS, *words],  # noqa: S607 — the user's own git
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None
    assert git.stdout is not None
    with git.stdout:
        said, whole = _read(git.stdout.fileno(), time.monotonic() + DEADLINE)
    if not whole:
        with contextlib.suppress(OSError):
            os.killpg(git.pid, signal.SIGKILL)
    try:
        code = git.wait(1.0)
    except subprocess.TimeoutExpired:  # it waits for a disk: the system ends it later
        return None
    if said is None or (whole and code):
        return None
    return said.decode("utf-8", "replace")


def _read(file: int, deadline: float) -> tuple[bytes | None, bool]:
    """What comes from ``file``, None where it does not end by ``deadline``; and whether that is all of it."""
    poll, said = select.poll(), bytearray()
    poll.register(file, select.POLLIN)
    while len(said) < _READ:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(1000 * left):
            return None, False
        piece = os.read(file, 1 << 16)
        if not piece:
            return bytes(said), True
        said += piece
    return bytes(said), False

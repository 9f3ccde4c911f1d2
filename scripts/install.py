"""Run ``pip install`` and print a line every few seconds: ``python scripts/install.py ARGUMENTS-OF-PIP``.

The Makefile calls it before anything is installed, so it needs the standard library alone. When pip fails, it prints
all that pip wrote. The exit status is pip's.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path

EVERY = 3.0
"""Seconds between two lines."""
SITE = Path(sysconfig.get_path("purelib"))
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off"]
OURS = "jupyter-dtrain" if os.environ.get("DTRAIN_SKIP_FRONT_END") else "jupyter-dtrain, and its front end with npm"
PIP_PRINTS = {
    re.compile(r"^Obtaining file:"): f"building {OURS}",
    re.compile(r"^(?:Collecting|Processing) ([\w./-]+)"): "looking up {}",
    re.compile(r"^ +Downloading (.+)"): "downloading {}",
    re.compile(r"^ +Building editable"): f"building {OURS}",
    re.compile(r"^ +Building wheel for ([\w.-]+)"): "building {}",
}
"""A line of pip's, and the plain words for it."""
INSTALLING = "Installing collected packages: "
"""From here pip is silent; the packages' folders show how far it is."""


def plain(name: str) -> str:
    """A package's name as all its spellings have it in common."""
    return re.sub(r"[-_.]+", "-", name).lower()


class Progress:
    """How far pip is, from the lines that it printed and from the folder that it fills."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._doing = "starting pip"
        self._packages: list[str] = []
        self._began = time.time()

    def feed(self, line: str) -> None:
        """Take a line of pip's."""
        self.lines.append(line)
        if line.startswith(INSTALLING):
            self._packages = [plain(name) for name in line.removeprefix(INSTALLING).split(", ")]
        for pattern, words in PIP_PRINTS.items():
            if found := pattern.match(line):
                self._doing = words.format(*(Path(group).name for group in found.groups()))

    def words(self) -> str:
        """The current activity of pip."""
        if not self._packages:
            return self._doing
        done = set(self._installed()) & set(self._packages)
        now = next((name for name in self._packages if name not in done), self._packages[-1])
        return f"installing package {min(len(done) + 1, len(self._packages))} of {len(self._packages)}: {now}"

    def _installed(self) -> Iterator[str]:
        for record in SITE.glob("*.dist-info/RECORD"):
            try:
                if record.stat().st_mtime >= self._began - 1:
                    yield plain(record.parent.name.removesuffix(".dist-info").rpartition("-")[0])
            except OSError:
                continue  # pip has just replaced it


def megabytes(folder: Path) -> int:
    """The size of all files below ``folder``."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) // 2**20


def main() -> int:
    """Run pip to its end."""
    began = time.monotonic()
    progress = Progress()
    heard: queue.Queue[str | None] = queue.Queue()
    process = subprocess.Popen(
        [*PIP, *sys.argv[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            heard.put(line.rstrip())
        heard.put(None)

    threading.Thread(target=listen, daemon=True).start()
    due = began
    over = False
    while not over:
        try:
            line = heard.get(timeout=max(0.0, due - time.monotonic()))
        except queue.Empty:
            print(f"{time.monotonic() - began:4.0f} s  {progress.words()}", flush=True)
            due = time.monotonic() + EVERY
            continue
        if line is None:
            over = True
        else:
            progress.feed(line)
    status = process.wait()
    if status:
        print("\n".join(progress.lines), file=sys.stderr)
        return status
    print(
        f"{time.monotonic() - began:4.0f} s  installed; {sys.prefix} has {megabytes(Path(sys.prefix)):,} MB", flush=True
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

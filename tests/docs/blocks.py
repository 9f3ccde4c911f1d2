"""The fenced blocks of code in the pages of the project."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"^(?P<before>[^\n]*)\n+```(?P<language>[\w{}-]*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Block(msgspec.Struct, frozen=True):
    """One block."""

    page: str
    """The page's path in the repository."""
    language: str
    text: str
    alone: bool
    """Whether a comment above it says that it cannot run in a test: it needs hosts, or runs of the reader's."""
    varies: bool = False
    """Whether a comment above it says that the numbers in this output differ from run to run."""
    meanwhile: bool = False
    """Whether a comment above it says that a cell shows this while it runs; a cell with ``--no-wait``, later."""
    fails: bool = False
    """Whether a comment above this cell says that it fails, as it is meant to."""
    runs: bool = False
    """Whether a comment above this block of a shell says that it runs in a test."""


def pages() -> list[Path]:
    """The pages for people, under version control."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [ROOT / name for name in listed.stdout.splitlines()]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    name = str(page.relative_to(ROOT))
    return [
        Block(
            name,
            found["language"],
            found["text"],
            alone=found["before"].startswith("<!-- not run"),
            varies=found["before"].startswith(("<!-- numbers vary", "<!-- shown meanwhile")),
            meanwhile=found["before"].startswith("<!-- shown meanwhile"),
            fails=found["before"].startswith("<!-- fails"),
            runs=found["before"].startswith("<!-- run"),
        )
        for found in FENCE.finditer(page.read_text())
    ]

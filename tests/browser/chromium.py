"""Sees to it that the browser tests have a Chromium: ``python -m tests.browser.chromium``, which ``make test`` calls.

The one that is present; else Debian's package, for root where there is apt-get; else Playwright's own. Where none can
be had the tests are skipped, by name, and this says why; it never fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
PATIENCE = 600
"""Seconds that an installation may take."""


def find() -> str | None:
    """The path of one that is present."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is not None:
        return found
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


def installers() -> list[list[list[str]]]:
    """Ways to install it, to try one after the other; all commands of a way must succeed."""
    ways = []
    if os.geteuid() == 0 and shutil.which("apt-get"):
        ways.append([["apt-get", "update", "-q"], ["apt-get", "install", "-q", "-y", "chromium"]])
    ways.append([[sys.executable, "-m", "playwright", "install", "chromium"]])
    return ways


def main() -> None:
    """Find one, or install one."""
    if find() is not None:
        return
    for way in installers():
        for command in way:
            print(f"No Chromium for the browser tests: {' '.join(command)}", flush=True)
            try:
                done = subprocess.run(
                    command,
                    env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                    capture_output=True,
                    text=True,
                    timeout=PATIENCE,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                print(f"  {error}")
                break
            if done.returncode:
                print(f"  failed: {(done.stderr or done.stdout).strip()[-400:]}")
                break
        if find() is not None:
            return
    print("There is no Chromium: the browser tests will be skipped.")


if __name__ == "__main__":
    main()

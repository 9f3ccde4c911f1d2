"""Starts a world without a driver: the first client that attaches becomes the driver.

Under failure: a bad request raises before anything is made; a steward that fails to start leaves nothing behind. The
steward shows its observers how the ranks start, or why they do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.settings import Settings
from jupyter_dtrain.launch import starting, worlds
from jupyter_dtrain.launch.options import options as known_options


def start(launcher: str, options: Any, root: str, folder: Any) -> worlds.Listing:
    """Start a world's steward, which starts the ranks. ``folder``: the ranks' folder, below ``root``.

    Raises :class:`BadRequest` and :class:`~jupyter_dtrain.core.errors.StartFailed`.
    """
    if not isinstance(options, dict):
        raise BadRequest("The options must be a JSON object.")
    # The dialog sends a field that a person has emptied as empty text, or as an empty object where it holds one.
    objects = {one.name for one in known_options() if one.schema["type"] == "object"}
    given = {name: value for name, value in options.items() if value != "" and not (value == {} and name in objects)}
    place = _inside(root, folder)
    listing, _ = starting.launch(given, launcher, settings=Settings.from_environment(), cwd=place, titled=True)
    return listing


def _inside(root: str, folder: Any) -> Path:
    """The folder that a page names. Raises :class:`BadRequest` unless it is a folder below ``root``."""
    if not isinstance(folder, str):
        raise BadRequest(f"cwd must be the path of a folder, as text, not {folder!r}.")
    top = Path(root).expanduser().resolve()
    try:
        found = (top / folder.lstrip("/")).resolve()
        there = found.is_relative_to(top) and found.is_dir()
    except (OSError, ValueError):
        there = False  # a name that no folder can have: too long, or with a NUL character
    if not there:
        raise BadRequest(f"There is no folder {folder[:200]!r}.")
    return found

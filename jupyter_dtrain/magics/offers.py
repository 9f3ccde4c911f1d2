"""Completers: the values that an argument may have, for a person who is typing it.

Each raises a ``DtrainError`` where it cannot know them.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from IPython.core.getipython import get_ipython

from jupyter_dtrain.launch.profiles import profile_names
from jupyter_dtrain.launch.worlds import list_worlds
from jupyter_dtrain.session import current

MOST_RANKS: Final = 16
"""The most ranks that completion offers one by one."""
MOST_RUNS: Final = 20


def some_ranks(_start: str) -> list[str]:
    """Ranks of the current world, in the ways that they can be named."""
    size = current().world.size
    numbers = [str(rank) for rank in range(min(size, MOST_RANKS))]
    return ["all", *numbers, *([f"0-{size - 1}"] if size > 1 else []), "-1"]


def rank_names(start: str) -> list[str]:
    """Variables that live on the ranks."""
    return list(current().names.complete(start))


def notebook_names(_start: str) -> list[str]:
    """Variables of the notebook."""
    shell = get_ipython()
    if shell is None:
        return []
    return sorted(name for name in shell.user_ns if name[:1] != "_" and name not in shell.user_ns_hidden)


def profiles(_start: str) -> list[str]:
    """The profiles of dtrain.toml."""
    return profile_names()


def scripts(start: str) -> list[str]:
    """Python files, and folders, where ``start`` points to."""
    return [one for one in paths(start) if one.endswith((".py", "/"))]


def paths(start: str) -> list[str]:
    """Files and folders where ``start`` points to."""
    folder, _, name = start.rpartition("/")
    with contextlib.suppress(OSError):
        place = Path(f"{folder}/" if folder else ".").expanduser()
        found = [one for one in place.iterdir() if one.name.startswith(name)]
        files = [f"{one.name}/" if one.is_dir() else one.name for one in found]
        return sorted(f"{folder}/{one}" if folder else one for one in files if one[:1] != "." or name)
    return []


def world_names(_start: str) -> list[str]:
    """Worlds of this user on this machine."""
    return [world.name for world in list_worlds()]


def stored_runs(_start: str) -> list[str]:
    """The newest runs of the store."""
    from jupyter_dtrain.store import Store

    return [run.label for run in Store.open().runs(MOST_RUNS)]


def stored_worlds(_start: str) -> list[str]:
    """Worlds that have runs in the store."""
    from jupyter_dtrain.store import Store

    return Store.open().worlds()


def ssh_hosts(_start: str) -> list[str]:
    """Aliases in this user's configuration of ssh; patterns are none."""
    found: dict[str, None] = {}
    with contextlib.suppress(OSError):
        for line in Path("~/.ssh/config").expanduser().read_text(errors="replace").splitlines():
            key, *names = line.replace("=", " ", 1).split()[:MOST_RANKS] or [""]
            if key.lower() == "host":
                found.update(dict.fromkeys(name for name in names if not set(name) & set('*?!"')))
    return list(found)


def interfaces(_start: str) -> list[str]:
    """Network interfaces of this machine that have an address."""
    from jupyter_dtrain.preflight.doctor import own_interfaces

    return [one.name for one in own_interfaces() if one.up and one.addresses]

"""The label of a folder that a world has on a host: by it the doctor knows the folder after its world is dead.

The watch that makes the folder writes the label, see :mod:`jupyter_dtrain.watch.own_folders`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from .clients import this_place

LABEL: Final = ".dtrain-folder"
"""The name of the label in a folder."""


def label(folder: Path, world: str) -> str:
    """The text that says whose ``folder`` is: the world, the boot and process ids that count, the folder's own number.

    A copy of the label is none: it lies in a folder with another number. Where this place is not known, the label
    counts nowhere, and the folder stays.
    """
    status = folder.stat()
    return json.dumps({"world": world, "place": this_place(), "folder": [status.st_dev, status.st_ino]})


def labelled_world(folder: int) -> str:
    """The world in the label of the open ``folder``; empty if the label is not of this folder, place and user.

    Raises :class:`OSError`, :class:`ValueError`, :class:`KeyError` and :class:`TypeError` where there is none.
    """
    own = os.fstat(folder)
    with open(os.open(LABEL, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)) as file:
        owner, told = os.fstat(file.fileno()).st_uid, json.load(file)
    here = [os.getuid(), os.getuid(), [own.st_dev, own.st_ino], this_place() or None]
    return str(told["world"]) if [own.st_uid, owner, told["folder"], told["place"]] == here else ""

"""Where the data of a job on a platform lies: its inputs and outputs, by the arguments of its script."""

from __future__ import annotations

import re
from typing import NamedTuple

from jupyter_dtrain.core.errors import BadRequest

from .arguments import arguments_of
from .job import Job, Setting


class DataPlace(NamedTuple):
    """Where data comes from or goes to, and the argument of the script that gets its path."""

    name: str
    """The argument, which is a variable of the cells."""
    flag: str
    address: str
    """Empty: the platform chooses."""

    @property
    def file(self) -> str:
        """The name of the file at the address; empty for a folder."""
        found = re.search(r"/([^/]+\.\w+)$", self.address)
        return found[1] if found else ""


def places_of(job: Job, setting: str, example: str = "") -> list[DataPlace]:
    """The places in a setting, such as ``data=s3://bucket/digits,labels=…``. Raises :class:`BadRequest`.

    ``example``: an address, where each name needs one.
    """
    known = {one.name: one for one in arguments_of(job.codes)}
    found = []
    for part in filter(None, map(str.strip, job.settings[setting].split(","))):
        name, _, address = part.partition("=")
        if (one := known.get(name.replace("-", "_"))) is None:
            has = f"It has {', '.join(known)}." if known else "It has none."
            raise BadRequest(
                f"--{setting} gives {name!r} to the script, which has no such argument. {has} Bind it once in a cell, "
                f'outside of functions: {name} = "…"'
            )
        if example and not address:
            raise BadRequest(f"--{setting} names no place for {name}: write {name}={example}.")
        found.append(DataPlace(one.name, one.flag, address))
    return found


def inputs_like(example: str) -> Setting:
    """The setting of a target that names data as ``example`` does."""
    words = f"data for arguments of the script, such as data={example},labels=…; each gets its path (default: none)"
    return Setting("inputs", "", words)

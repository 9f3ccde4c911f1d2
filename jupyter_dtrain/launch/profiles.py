"""Profiles: start options under a name, so that no notebook repeats those of its cluster.

A profile is a table of the file ``dtrain.toml``, of which there may be two: beside the notebook, and in Jupyter's
configuration folder for all notebooks. The one beside the notebook wins::

    [a100]
    slurm = true
    nodes = 2
    gpus_per_node = "a100:8"

    [a100.cells]
    timeout = 3600

Under failure: a file that cannot be read, and a profile with a key that does not exist, raise
:class:`~jupyter_dtrain.core.errors.BadRequest` with the file, the profile and the key; nothing has started then. A save
keeps comments and other profiles, and replaces the file at once or not at all.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from jupyter_core.paths import jupyter_config_dir

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.wire.requests import CellDefaults

if TYPE_CHECKING:
    import tomlkit

FILE: Final = "dtrain.toml"
CELLS: Final = "cells"
"""The table of a profile with the defaults of its cells."""


class Profile(NamedTuple):
    """One profile of a file."""

    name: str
    file: Path
    options: dict[str, Any]
    """Start options, not checked yet."""
    cells: CellDefaults

    @property
    def words(self) -> str:
        """How messages call it."""
        return f"the profile {self.name!r} of {self.file}"


def profile_files(folder: Path | None = None) -> list[Path]:
    """Where profiles may be: beside the notebook, then in Jupyter's configuration folder.

    ``folder``: where the notebook is, default this process's.
    """
    folders = [Path(jupyter_config_dir())]
    with contextlib.suppress(OSError):  # the folder of the notebook is gone
        folders.insert(0, folder or Path.cwd())
    return [folder / FILE for folder in folders]


def profile_names() -> list[str]:
    """The names of all profiles that can be read."""
    found: dict[str, None] = {}
    for file in profile_files():
        with contextlib.suppress(BadRequest):
            found |= dict.fromkeys(name for name, table in _read(file).items() if isinstance(table, dict))
    return list(found)


def find_profile(name: str, folder: Path | None = None) -> Profile:
    """The profile ``name``; ``folder`` as for :func:`profile_files`. Raises :class:`BadRequest`."""
    tables = {file: _read(file) for file in profile_files(folder)}
    for file, found in tables.items():
        if name in found:
            return _profile(name, file, found[name])
    there = [f"{file} has {', '.join(found)}" for file, found in tables.items() if found]
    if not there:
        words = f"there is no file {FILE} beside the notebook or in {profile_files()[-1].parent}"
        raise BadRequest(
            f"There is no profile {name!r}: {words}. %distributed start … --save-profile {name} makes it.",
            option="profile",
        )
    raise BadRequest(f"There is no profile {name!r}: {'; '.join(there)}.", option="profile")


def write_profile(name: str, options: Mapping[str, Any]) -> Path:
    """Write ``options``, which were checked, as the profile ``name`` into Jupyter's configuration folder; its file.

    The defaults of cells that the profile has stay. Raises :class:`BadRequest`.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise BadRequest(f"{name!r} cannot name a profile: use letters, digits, dashes and underscores, such as a100.")
    import tomlkit

    file = profile_files()[-1]
    document = _document(file)
    table, before = tomlkit.table(), document.get(name)
    for key, value in options.items():
        table[key] = dict(value) if isinstance(value, Mapping) else value
    if isinstance(before, dict) and CELLS in before:
        table[CELLS] = before[CELLS]
    document[name] = table
    new = file.with_name(f".{FILE}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            out.write(tomlkit.dumps(document))
        new.replace(file)
    except OSError as error:
        raise BadRequest(f"{file} cannot be written: {error.strerror or error}.") from None
    return file


def _document(file: Path) -> tomlkit.TOMLDocument:
    """The file, or an empty one where there is none. Raises :class:`BadRequest`."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return tomlkit.document()
    except (OSError, UnicodeError, TOMLKitError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadRequest(f"{file} cannot be read: {why}.", option="profile") from None


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = _document(file).unwrap()
    return found


def _profile(name: str, file: Path, table: Any) -> Profile:
    """Raises :class:`BadRequest` where it is no table, or where its defaults of cells cannot be."""
    if not isinstance(table, dict):
        raise BadRequest(f"{file}: {name} must be a table of start options, as in [{name}].", option="profile")
    options = {key.replace("-", "_"): value for key, value in table.items()}
    cells = options.pop(CELLS, {})
    if not isinstance(cells, dict):
        raise BadRequest(
            f"{file}: {CELLS} of the profile {name!r} must be a table, [{name}.{CELLS}].", option="profile"
        )
    cells = {key.replace("-", "_"): value for key, value in cells.items()}
    known = CellDefaults.__struct_fields__
    for key, value in cells.items():
        if key not in known:
            raise BadRequest(
                f"{file}: [{name}.{CELLS}] has the key {key!r}, which is no option of cells{near(key, known)}. The "
                f"options are {', '.join(known)}.",
                option="profile",
            )
        try:
            msgspec.convert({key: value}, readable(CellDefaults))
        except msgspec.ValidationError:
            raise BadRequest(f"{file}: [{name}.{CELLS}]: {key} cannot be {value!r}.", option="profile") from None
    return Profile(name, file, options, msgspec.convert(cells, readable(CellDefaults)))


def near(key: str, known: Any) -> str:
    """A hint at the key that was meant, with a comma before it; empty where none is like it."""
    found = difflib.get_close_matches(key, known, 1)
    return f" (did you mean {found[0]}?)" if found else ""

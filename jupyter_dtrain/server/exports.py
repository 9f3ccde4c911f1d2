"""Makes a job of a notebook for a page: what ``jupyter dtrain export`` does, in a process of its own.

That process parses the notebook and asks the scheduler of packages, which may take seconds, and a library that fails in
it harms no other page. It is ended after :data:`PATIENCE` seconds; it writes all files or none.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.jobs import TARGETS, Target
from jupyter_dtrain.jobs.exporting import find_target

from .requests import ApiHandler, guarded

PATIENCE: Final = 60.0
"""Seconds that an export may take."""
_PROGRAM: Final = "import sys; from jupyter_dtrain.cli import main; sys.exit(main())"


class ExportSetting(msgspec.Struct, frozen=True):
    """Something about a place that no notebook knows."""

    name: str
    help: str
    default: str


class ExportTarget(msgspec.Struct, frozen=True):
    """A place that a job can go to."""

    name: str
    help: str
    suffix: str
    """How the name of its file ends."""
    settings: list[ExportSetting]


class ExportTargets(msgspec.Struct, frozen=True):
    """All places."""

    targets: list[ExportTarget]


class WrittenJob(msgspec.Struct, frozen=True):
    """What an export has said."""

    words: str
    file: str
    """The file that was asked for, below the server's root."""


class ExportAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The export that a page asks for."""

    notebook: str
    """Its file, below the server's root."""
    target: str
    file: str = ""
    """The file to write, in the notebook's folder; empty: the notebook's name."""
    ranks: int | None = None
    nodes: int | None = None
    cells: str = ""
    with_local: bool = False
    force: bool = False
    settings: dict[str, str] = {}


class ExportHandler(ApiHandler):
    """``/dtrain/export``."""

    @guarded
    async def get(self) -> None:
        """The places that a job can go to."""
        self.answer(ExportTargets([_described(target) for target in TARGETS]))

    @guarded
    async def post(self) -> None:
        """Write a job of a notebook into the notebook's folder; the body is an :class:`ExportAsked`."""
        asked = msgspec.convert(self.body(), readable(ExportAsked))
        target = find_target(asked.target)
        notebook, file, shown = await asyncio.to_thread(_places, self.settings["server_root_dir"], asked, target)
        words = await _export(notebook, file, asked, target)
        self.answer(WrittenJob(words, shown), HTTPStatus.CREATED)


def _described(target: Target) -> ExportTarget:
    settings = [ExportSetting(one.name, one.help, one.default) for one in target.settings]
    return ExportTarget(target.name, target.help, target.suffix, settings)


def _places(top: str, asked: ExportAsked, target: Target) -> tuple[Path, Path, str]:
    """The notebook, the file to write, and that below ``top``. Raises :class:`BadRequest`."""
    root = Path(top).expanduser().resolve()
    notebook = _inside(root, asked.notebook, "notebook")
    if not notebook.is_file():
        raise BadRequest(f"There is no notebook {asked.notebook[:200]!r}: save it first.")
    name = asked.file.strip() or f"{notebook.stem}{target.suffix}"
    file = _inside(root, f"{notebook.parent.relative_to(root)}/{name}", "file")
    return notebook, file, str(file.relative_to(root))


def _inside(root: Path, path: str, what: str) -> Path:
    """The path that a page names. Raises :class:`BadRequest` unless it is below ``root``."""
    with contextlib.suppress(OSError, ValueError):  # a name that no file can have
        found = (root / path.lstrip("/")).resolve()
        if found.is_relative_to(root) and found != root:
            return found
    raise BadRequest(f"The {what} {path[:200]!r} is not below the server's folder.")


async def _export(notebook: Path, file: Path, asked: ExportAsked, target: Target) -> str:
    words = ["export", str(notebook), "--to", target.name, "-o", str(file)]
    words += [f"-n={asked.ranks}"] if asked.ranks is not None else []
    words += [f"--nodes={asked.nodes}"] if asked.nodes is not None else []
    words += [f"--cells={asked.cells}"] if asked.cells.strip() else []
    words += ["--with-local"] if asked.with_local else []
    words += ["--force"] if asked.force else []
    known = {one.name: one.flag for one in target.settings}
    target.settings_of(asked.settings, {})  # refuses one that it does not have
    words += [f"{known[name]}={value}" for name, value in asked.settings.items() if value.strip() and name in known]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PROGRAM, *words), stdout=pipe, stderr=pipe, cwd=notebook.parent
    )
    try:
        said, problem = await asyncio.wait_for(process.communicate(), PATIENCE)
    except asyncio.TimeoutError:
        raise BadRequest(
            f"The export took longer than {PATIENCE:.0f} s, so it was ended: nothing was written."
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise BadRequest(_without_program(problem.decode("utf-8", "replace")))
    return said.decode("utf-8", "replace").strip()


def _without_program(text: str) -> str:
    """The words of an error without the name of the program before them."""
    found: Any = text.strip().removeprefix("jupyter dtrain: ")
    return str(found) or "The export failed without a word: see the server's log."

"""One export, from a notebook to its files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from jupyter_dtrain.core.errors import BadRequest

from .dependencies import needed_cells
from .files import check_places, write_files
from .job import Job
from .notebook import Notebook, choose, listed
from .packages import packages_of
from .script import translate_cells, write_script
from .targets import find_target


class Exported(msgspec.Struct, frozen=True):
    """The files of an export, and what a person should know about it."""

    target: str
    files: list[str]
    """The first is the one to read: the script, or what launches it."""
    cells: list[int]
    """The numbers of the cells in it."""
    command: str
    """The line that starts the job."""
    notes: list[str]

    def __str__(self) -> str:
        lines = [
            f"{listed(self.files)}: {len(self.cells)} cell{'' if len(self.cells) == 1 else 's'} for {self.target}.",
            *self.notes,
            f"Start it with: {self.command}",
        ]
        return "\n".join(lines)


def export_notebook(
    notebook: Notebook,
    target: str,
    file: str | os.PathLike[str],
    *,
    cells: str | None = None,
    tag: str | None = None,
    with_local: bool = False,
    ranks: int | None = None,
    nodes: int | None = None,
    settings: Mapping[str, str] | None = None,
    force: bool = False,
) -> Exported:
    """Write the cells of ``notebook`` as a job for ``target``: as :func:`jupyter_dtrain.export` says."""
    kind = find_target(target)
    chosen = kind.settings_of(settings or {})
    place = Path(file).expanduser()
    if place.is_dir():
        raise BadRequest(f"{file} is a folder: name a file in it, such as {place / 'train'}{kind.suffix}.")
    if not place.stem or place.name.startswith("."):
        raise BadRequest(f"{file} names no file for the export: give it a name such as train{kind.suffix}.")
    script_place = place.with_suffix(".py")
    if place.suffix == ".py":
        place = place.with_name(f"{place.stem}{kind.suffix}")
    world = notebook.world.resized(ranks, nodes)
    try:
        needed = needed_cells(notebook, choose(notebook, cells, tag), with_local=with_local)
        codes = translate_cells(needed)
    except RecursionError:
        raise BadRequest(
            "The code of a cell is nested too deeply to be exported, such as a sum of hundreds of terms: take such "
            "terms from a list, or leave the cell out with --cells."
        ) from None
    packages = packages_of(code.code for code in codes)
    if script_place.stem in {*packages.roots, kind.package}:
        raise BadRequest(
            f"A file {script_place.name} would hide the package {script_place.stem}, which the job imports: name it "
            f"otherwise, such as train{kind.suffix}."
        )
    script = write_script(notebook, world, needed, codes, packages, script_place.name)
    job = Job(script_place.stem, place, script.text, script.codes, world, packages, chosen)
    made = kind.make(job)
    texts = {place.parent / name: text for name, text in made.texts.items()} | {script_place: script.text}
    check_places(list(texts), force=force)
    write_files(texts)
    notes = [*notebook.left_out, *needed.notes, *made.notes]
    if packages.own:
        notes.append(f"The job needs these modules beside it: {listed(packages.own)}.")
    if world.env:
        notes.append(
            f"Set {listed(world.env)} where the job runs: --env gave the world a value, and exports have none."
        )
    if missing := [name for name, version in packages.versions.items() if not version]:
        notes.append(f"Not installed here, so without a version: {listed(missing)}.")
    return Exported(
        target,
        [str(path) for path in texts],
        [cell.number for cell in needed.cells],
        made.command,
        notes,
    )

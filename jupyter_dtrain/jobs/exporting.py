"""One export, from a notebook to its files: all of them are written, or none.

The table of the places to which a job can be exported alone names the targets that frameworks bring.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.world import quantity

from . import deepspeed, launchers, platforms, sagemaker
from .dependencies import needed_cells, packages_of
from .job import Job, Target
from .notebook import Notebook, choose, listed
from .script import EXPORTED, trains, write_script
from .syntax import translate

TARGETS: tuple[Target, ...] = (*launchers.TARGETS, *platforms.TARGETS, *sagemaker.TARGETS, *deepspeed.TARGETS)


def find_target(name: str) -> Target:
    """The target of this name. Raises :class:`BadRequest` where there is none."""
    for target in TARGETS:
        if target.name == name:
            return target
    raise BadRequest(f"There is no target {name!r}. There is: {', '.join(target.name for target in TARGETS)}.")


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
            f"{listed(self.files)}: {quantity(len(self.cells), 'cell')} for {self.target}.",
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
    world = notebook.world.resized(ranks, nodes)
    chosen = kind.settings_of(settings or {}, world.asked)
    place = Path(file).expanduser()
    if place.is_dir():
        raise BadRequest(f"{file} is a folder: name a file in it, such as {place / 'train'}{kind.suffix}.")
    if not place.stem or place.name.startswith("."):
        raise BadRequest(f"{file} names no file for the export: give it a name such as train{kind.suffix}.")
    script_place = place.with_suffix(".py")
    if place.suffix == ".py":
        place = place.with_name(f"{place.stem}{kind.suffix}")
    try:
        needed = needed_cells(notebook, choose(notebook, cells, tag), with_local=with_local)
        codes = [translate(cell, needed.known) for cell in needed.cells]
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
    script_place, script = _choose_script(
        script_place,
        place,
        target,
        lambda name: write_script(notebook, world, needed, codes, packages, name, script_place.stem),
        force=force,
    )
    job = Job(script_place.stem, place, script, [code.code for code in codes], world, packages, chosen)
    made = kind.make(job)
    texts = {place.parent / name: text for name, text in made.texts.items()} | {script_place: script}
    # Another target may share the script.
    _check_places([path for path, text in texts.items() if _text_of(path) != text], force=force)
    _write_files(texts)
    notes = [*notebook.left_out, *needed.notes, *made.notes]
    if packages.own:
        notes.append(f"The job needs these modules beside it: {listed(packages.own)}.")
    trained = [cell for cell in needed.cells if cell.on_ranks and trains(cell.source)]
    if trained and not any("log(" in cell.source for cell in needed.cells):
        notes.append(
            "A job records what jupyter_dtrain.log() gets; the losses that the notebook's cells record by themselves "
            "need a line in the loop: jupyter_dtrain.log(loss=loss)."
        )
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


def _choose_script(
    first: Path, named: Path, target: str, write: Callable[[str], str], *, force: bool
) -> tuple[Path, str]:
    """Where the script goes, and its text. Where another export has its own there, this one gets a name of its target.

    ``named``: the file that the person named, which stays what it is; ``write`` makes the text from the file's name.
    """
    text = write(first.name)
    there = _text_of(first)
    if force or first == named or there is None or there == text or EXPORTED not in there:
        return first, text
    other = first.with_stem(f"{first.stem}_{target}")
    return other, write(other.name)


def _text_of(path: Path) -> str | None:
    """The text of a file; None where there is none that can be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return None


def _check_places(paths: list[Path], *, force: bool) -> None:
    """Raise :class:`BadRequest` where a file cannot be written, or is there and ``force`` is False."""
    for path in paths:
        if path.is_dir():
            raise BadRequest(f"{path} is a folder: name another file.")
        if not path.parent.is_dir():
            raise BadRequest(f"The folder {path.parent} does not exist: make it first, or name another file.")
    there = [path for path in paths if path.exists()]
    if there and not force:
        these = "it" if len(there) == 1 else "them"
        raise BadRequest(
            f"{listed(there)} exist{'s' if len(there) == 1 else ''} already: add --force to replace {these}, or name "
            f"another file."
        )


def _write_files(texts: Mapping[Path, str]) -> None:
    """Write each file; one that begins with ``#!`` is a program. Raises :class:`BadRequest`; none is half written.

    Every text is written beside its place first, and only then put there.
    """
    ready: dict[Path, Path] = {}
    try:
        for path, text in texts.items():
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
            ready[path] = Path(name)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            ready[path].chmod((0o777 if text.startswith("#!") else 0o666) & ~_umask())
        for path, written in ready.items():
            written.replace(path)
    except OSError as error:
        raise BadRequest(
            f"The export cannot be written to {error.filename or next(iter(texts)).parent} ({error.strerror}): name a "
            f"file in another folder."
        ) from None
    finally:
        for written in ready.values():
            with contextlib.suppress(OSError):
                written.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

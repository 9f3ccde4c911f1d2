"""All that a job needs besides the chosen cells: local cells, and the packages that cells import.

A local cell, which has no ``%%distributed``, is needed where it defines what exported cells use. A name comes from the
last cell before that binds it, exported cells first; what a function reads may come from any cell. Local cells that
change what a needed name holds go along. Local cells have needs of their own.

Every refusal lists all cells that have the problem, not only the first.

Packages have the versions that are installed here. A module of the person's own, beside the notebook, is no package:
the job needs its file.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from jupyter_dtrain.core.errors import BadRequest

from .names import Names, names_of
from .notebook import Notebook, NotebookCell, listed
from .syntax import SHOW, translate

WITH_LOCAL = "--with-local"
OWN: Final = "jupyter-dtrain"
_OF_IMAGES: Final = frozenset({"smdistributed"})
"""Modules that no index has: they come with the image of a platform."""


class Needed(NamedTuple):
    """The parts of a job."""

    cells: list[NotebookCell]
    """The cells, in order."""
    known: frozenset[str]
    """The names that they bind."""
    notes: list[str]


class _Use(NamedTuple):
    cell: NotebookCell
    name: str


def needed_cells(notebook: Notebook, chosen: Sequence[NotebookCell], *, with_local: bool) -> Needed:
    """``chosen``, and with ``with_local`` the local cells that they need. Raises :class:`BadRequest`."""
    search = _Search(notebook, chosen)
    search.run()
    search.refuse_undefined()
    if search.local and not with_local:
        search.refuse_local()
    cells = [cell for place, cell in enumerate(notebook.cells) if place in search.included]
    known = frozenset().union(*(search.names[place].bound for place in search.included))
    return Needed(cells, known, search.notes())


class _Search:
    def __init__(self, notebook: Notebook, chosen: Sequence[NotebookCell]) -> None:
        self._notebook = notebook
        self._cells = notebook.cells
        self._places = [place for place, cell in enumerate(notebook.cells) if cell in chosen]
        self.included = set(self._places)
        self.names: dict[int, Names] = {}
        self.local: dict[_Use, list[int]] = {}
        """The names that local cells define, with the places of these cells."""
        self._undefined: list[_Use] = []
        self._unchosen: list[tuple[_Use, NotebookCell]] = []
        self._brought: list[tuple[_Use, NotebookCell]] = []
        for place, cell in enumerate(notebook.cells):
            self.names[place] = self._names(cell, frozenset())
        # A line for the shell reads a name if a cell binds it.
        known = frozenset().union(*(names.bound for names in self.names.values()))
        for place, cell in enumerate(notebook.cells):
            self.names[place] = self._names(cell, known)

    @staticmethod
    def _names(cell: NotebookCell, known: frozenset[str]) -> Names:
        try:
            python = translate(cell, known)
            names = names_of(python.code)
        except BadRequest:
            # The translation refuses it later, if the job needs it.
            return Names(frozenset(), frozenset(), frozenset(), frozenset(), star=False)
        # The script brings along what the translation uses.
        own = python.modules | {SHOW, "display"} - names.bound
        return names._replace(at_once=names.at_once - own, later=names.later - own)

    def run(self) -> None:
        """Find all needed cells. The search ends, since every round includes one more cell."""
        waiting = list(self._places)
        looked: set[int] = set()
        while waiting:
            place = waiting.pop(0)
            if place in looked:
                continue
            looked.add(place)
            cell, names = self._cells[place], self.names[place]
            for name in sorted(set(cell.inputs) | names.at_once | names.later):
                later = name in names.later and name not in names.at_once and name not in cell.inputs
                waiting += self._find(place, name, later=later, pushed=name in cell.inputs)

    def _find(self, place: int, name: str, *, later: bool, pushed: bool) -> list[int]:
        """The places of the local cells that define ``name`` for the cell at ``place``."""
        use = _Use(self._cells[place], name)
        before = range(len(self._cells)) if later else range(place)
        binders = [one for one in before if name in self.names[one].bound]
        own = [one for one in binders if one in self._places]
        if own and not pushed and self._cells[place].on_ranks:
            return []
        local = [one for one in binders if not self._cells[one].on_ranks]
        brought = [one for one in before if name in self._cells[one].brought]
        if not self._cells[place].on_ranks and brought and max(brought) > max(local, default=-1):
            self._brought.append((use, self._cells[max(brought)]))
            return []
        if local:
            changed = [one for one in before if one > local[-1] and self._changes(one, name)]
            found = [local[-1], *changed]
            self.local[use] = found
            self.included.update(found)
            return found
        if own or self._starred([*before, place]):
            return []
        others = [one for one in binders if self._cells[one].on_ranks]
        if others:
            self._unchosen.append((use, self._cells[others[-1]]))
        else:
            self._undefined.append(use)
        return []

    def _changes(self, place: int, name: str) -> bool:
        return not self._cells[place].on_ranks and name in self.names[place].changed

    def _starred(self, before: Iterable[int]) -> bool:
        return any(self.names[one].star for one in before if one in self.included)

    def refuse_undefined(self) -> None:
        """Refuse names that no exported cell can have."""
        if self._brought:
            words = [f"{use.cell.name} uses {use.name}, which {by.name} brings back" for use, by in self._brought]
            raise BadRequest(
                f"{'; '.join(words)}. In a job there is no notebook to bring values back to (--pull, -o): compute them "
                f"in a %%distributed cell."
            )
        if self._unchosen:
            words = [f"{use.cell.name} uses {use.name} ({by.name})" for use, by in self._unchosen]
            raise BadRequest(
                f"The chosen cells use names that other %%distributed cells define: {'; '.join(words)}. Choose those "
                f"cells as well."
            )
        if self._undefined:
            words = [f"{use.cell.name} uses {use.name}" for use in self._undefined]
            raise BadRequest(
                f"No cell of {self._notebook.name} before it defines a name: {'; '.join(words)}. Define it in a "
                f"%%distributed cell; values that Session.push() sent are in no cell."
            )

    def refuse_local(self) -> None:
        """Refuse to leave out local cells that are needed, and list them."""
        uses = [
            f"{use.cell.name} uses {use.name} (from {listed(self._cells[one].name for one in places)})"
            for use, places in self.local.items()
        ]
        cells = sorted({self._cells[one].number for places in self.local.values() for one in places})
        raise BadRequest(
            f"Cells without %%distributed define names that the job needs: {'; '.join(uses)}. Add {WITH_LOCAL} to "
            f"export cell{'s' if len(cells) > 1 else ''} {listed(cells)} as well, for every rank; or define the names "
            f"in a %%distributed cell."
        )

    def notes(self) -> list[str]:
        """Sentences about what differs from the notebook."""
        local = [one for one in sorted(self.included) if not self._cells[one].on_ranks]
        ranks = frozenset().union(*(self.names[one].bound for one in self._places))
        both = sorted(ranks.intersection(*[frozenset().union(*(self.names[one].bound for one in local))]))
        found = []
        if local:
            numbers = [self._cells[one].number for one in local]
            one = len(numbers) == 1
            found.append(
                f"Local cell{'' if one else 's'} {listed(numbers)} {'goes' if one else 'go'} along, and "
                f"{'runs' if one else 'run'} on every rank."
            )
        if both:
            found.append(
                f"Local cells and cells on ranks both define {listed(both)}: in the notebook these are two variables, "
                f"in the job they are one."
            )
        return found


class Packages(NamedTuple):
    """All that a job imports beyond Python itself."""

    versions: dict[str, str]
    """The installed version of each package, by its name; empty where it is not installed here."""
    roots: frozenset[str]
    """The first parts of the modules' names, such as ``numpy``."""
    own: tuple[str, ...]
    """Modules of the person's own."""

    def requirements(self) -> list[str]:
        """Lines for pip. The part of a version that names a build, such as ``+cpu``, is on no index: it is left out."""
        return [f"{name}=={version.partition('+')[0]}" if version else name for name, version in self.versions.items()]


def packages_of(codes: Iterable[str]) -> Packages:
    """All that the codes import. They parse."""
    roots = {root for code in codes for root in _roots(ast.parse(code))} - sys.stdlib_module_names - _OF_IMAGES
    versions: dict[str, str] = {}
    own: list[str] = []
    for root in sorted(roots):
        found = _distributions().get(root)
        if found:
            versions |= {_plain(name): metadata.version(name) for name in found[:1]}
        elif root == "jupyter_dtrain":
            versions[OWN] = metadata.version(OWN)
        elif Path(f"{root}.py").exists() or Path(root).is_dir():
            own.append(root)
        else:
            versions[root] = ""
    return Packages(dict(sorted(versions.items())), frozenset(roots), tuple(own))


def _roots(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {one.name.partition(".")[0] for one in names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.partition(".")[0])
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@lru_cache(1)
def _distributions() -> Mapping[str, list[str]]:
    """The packages of each module. Where several have a module, one of the same name comes first."""
    found = metadata.packages_distributions()
    return {root: sorted(set(names), key=lambda name: _plain(name) != _plain(root)) for root, names in found.items()}

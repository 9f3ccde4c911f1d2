"""``%distributed``, ``%%distributed``, ``%%rank``, ``%%speedup`` and ``%%local``.

Each verb of ``%distributed`` stands with its arguments in one table (:mod:`.table`); ``-h`` and the reference read it.
The verbs are grouped by family: :mod:`.worlds` (start, stop, status …), :mod:`.joining` (attach, list), :mod:`.running`
(interrupt, stacks), :mod:`.steering` (pause, set), :mod:`.stored` (runs, show, compare) and :mod:`.export`;
:mod:`.cells` has the cell magics. They parse, call :class:`~jupyter_dtrain.session.Session` or
:class:`~jupyter_dtrain.store.Store`, and show.
:class:`CellMagics` is what IPython registers.

The extension leaves alone the names that another extension owns, and its message shows how to choose.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from IPython.core.magic import Magics, magics_class

from jupyter_dtrain.core.errors import BadRequest, Refused, package_gone
from jupyter_dtrain.core.settings import Settings
from jupyter_dtrain.launch import prepared

from .completion import Inspections, RankCompletions
from .hints import Hints
from .joining import show_worlds_after_cell
from .notebooks import SessionCells
from .parsing import HelpShown
from .stored import show_finished
from .table import CELL_MAGICS, cell_magic, renamed, verb_parser, verbs
from .transform import VERB_NAMES, CellTransform

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

OUR_OWN: Final = ("distributed", "rank", "speedup")
"""The names without which the extension adds nothing; it adds the others where no other extension has them."""


@magics_class
class CellMagics(Magics):
    """The magics that the extension registers."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._namespace: dict[str, Any] = shell.user_ns

    def distributed(self, line: str, cell: str | None = None) -> None:
        """``%distributed VERB`` steers a world; ``%%distributed`` runs a cell on its ranks. -h lists the options."""
        if cell is not None:
            self._run("distributed", line, cell)
            return
        with _for_people():
            args = verb_parser().parse_line(renamed(line or "status"))
            args.run(args)

    def rank(self, line: str, cell: str) -> None:
        """``%%rank RANKS`` runs a cell on some ranks. -h lists the options."""
        self._run("rank", line, cell)

    def between(self, line: str, cell: str) -> None:
        """``%%between`` runs a cell on all ranks between two steps of the loop that runs now. -h lists the options."""
        self._run("between", line, cell)

    def local(self, line: str, cell: str) -> None:
        """``%%local`` keeps a cell in the notebook in auto mode."""
        self._run("local", line, cell)

    def speedup(self, line: str, cell: str) -> None:
        """``%%speedup 1 2 4`` measures how a cell scales with the number of ranks. -h lists the options."""
        self._run("speedup", line, cell)

    def functions(self) -> Iterator[tuple[str, str, Callable[..., None]]]:
        """All magics to register: name, kind and function."""
        for name in _names():
            yield name, "line_cell" if name in VERB_NAMES else "cell", getattr(self, cell_magic(name).names[0])

    def _run(self, name: str, line: str, cell: str) -> None:
        magic = cell_magic(name)
        with _for_people():
            magic.run(magic.parser().parse_line(line), cell, self._namespace)


@contextlib.contextmanager
def _for_people() -> Iterator[None]:
    """Turn the help that ``-h`` printed into no error, and a package that was removed into an error with its fix."""
    try:
        yield
    except HelpShown:
        pass
    except ModuleNotFoundError:
        if gone := package_gone():
            raise Refused(gone) from None
        raise


class ShellPart(Protocol):
    """A part that joins a shell."""

    def install(self, shell: Any) -> None:
        """Join ``shell``."""

    def uninstall(self, shell: Any) -> None:
        """Leave ``shell`` as it was before."""


P = TypeVar("P")

_loaded: dict[int, list[ShellPart]] = {}
"""The installed parts, by the id of the shell."""


def load(shell: InteractiveShell, *, replace: bool = False) -> None:
    """Register the magics in ``shell``. With ``replace`` also where another extension owns a name."""
    if id(shell) in _loaded:
        return
    magics = CellMagics(shell)
    taken = {} if replace else _owners(shell)
    for name in OUR_OWN:
        if name in taken:
            print(
                f"%%{name} already belongs to {taken[name]}, so jupyter-dtrain added none of its magics. To add them, "
                f"unload that extension and %reload_ext jupyter_dtrain, or run\n"
                f"    import jupyter_dtrain.magics; jupyter_dtrain.magics.load(get_ipython(), replace=True)"
            )
    if taken.keys() & set(OUR_OWN):
        return
    register: Any = shell.register_magic_function  # typed as if it were not bound
    for name, kind, function in magics.functions():
        if name not in taken:
            register(function, kind, name)
    transform = CellTransform()
    _loaded[id(shell)] = [
        transform,
        SessionCells(transform),
        Hints(),
        RankCompletions(transform),
        Inspections(),
    ]
    for part in _loaded[id(shell)]:
        part.install(shell)
    show_worlds_after_cell(shell)
    show_finished()
    with contextlib.suppress(BadRequest):  # a start says it
        prepared.prepare(Settings.from_environment().warm_start)


def part_of(shell: Any, kind: type[P]) -> P | None:
    """The part of ``shell`` that is a ``kind``; None where the extension is not loaded."""
    return next((part for part in _loaded.get(id(shell), ()) if isinstance(part, kind)), None)


def unload(shell: InteractiveShell) -> None:
    """Remove the magics and all parts from ``shell``."""
    found = _loaded.pop(id(shell), None)
    if found is None:
        return
    prepared.discard()
    for part in reversed(found):
        part.uninstall(shell)
    for name in _names():
        for kind in ("line", "cell"):
            if _owner(shell, kind, name).startswith("jupyter_dtrain"):
                del shell.magics_manager.magics[kind][name]


def _names() -> list[str]:
    """The names of all magics."""
    return [name for magic in CELL_MAGICS for name in magic.names]


def _owners(shell: InteractiveShell) -> dict[str, str]:
    """Our names that other extensions have registered, with their owners."""
    owners = {}
    for name in _names():
        for kind in ("cell", "line"):
            owner = _owner(shell, kind, name)
            if owner and not owner.startswith("jupyter_dtrain"):
                owners[name] = owner
    return owners


def _owner(shell: InteractiveShell, kind: str, name: str) -> str:
    """The module that owns the magic ``name``; empty if there is none."""
    function: Any = shell.magics_manager.magics[kind].get(name)
    if function is None:
        return ""
    owner = getattr(function, "__self__", None)
    return str(getattr(function, "__module__", None) if owner is None else type(owner).__module__)


__all__ = ["load", "unload", "verbs"]

"""One framework in one rank, as the engine calls it: its environment, set-up calls, process groups and losses.

The core names no framework. Each is a class that derives from :class:`Framework`, found by the entry point group
``jupyter_dtrain.frameworks``; importing one imports no framework, it only hooks into the import that the user's code
will do. A framework that is not installed costs nothing.
"""

from __future__ import annotations

import ast
import contextlib
import logging
import re
from importlib.metadata import entry_points
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from .libraries import is_library

if TYPE_CHECKING:
    from jupyter_dtrain.core.facts import Facts
    from jupyter_dtrain.core.stacks import Collective
    from jupyter_dtrain.core.variables import Variable
    from jupyter_dtrain.core.world import Placement
    from jupyter_dtrain.wire.messages import Watching
    from jupyter_dtrain.wire.requests import RankSpec

    from .metrics import MetricBuffer, Read


_OF_IPYTHON = re.compile(r"_+|_\d+|_i+\d*|_[iod]h")
"""``_``, ``_12``, ``_i12`` and the like."""


GROUP = "jupyter_dtrain.frameworks"


class CellEnds(BaseException):
    """Raised by a framework where a script would wait for ever: the cell ends well here, on this rank."""


class Framework:
    """One framework, in one rank. What a framework has nothing to say to is left as it is here."""

    name: str

    rendezvous: str | None = None
    """Module that serves as the world's rendezvous store when run with ``-m``, or None. It is given a listening
    socket: see :mod:`jupyter_dtrain.steward.rendezvous`."""

    server: str | None = None
    """Module that the steward runs like :attr:`rendezvous`, at an address of its own, for this framework alone.

    Ranks find the address in the options of their :class:`~jupyter_dtrain.wire.requests.RankSpec`, by :attr:`name`.
    """

    def introduce(self) -> str:
        """What the other ranks are to know of this one before user code, such as where it will listen; empty: nothing.

        Called once, before all else. All ranks wait for it: it does what takes no time.
        """
        return ""

    def meet(self, introductions: list[str]) -> None:
        """What each rank has introduced itself with to this framework, by rank. Called once, before what follows."""

    recovers_last: bool = False
    """Whether it stands on groups of another framework, which must be whole before it is :meth:`recover`-ed."""

    def environment(self, place: Placement, spec: RankSpec) -> dict[str, Variable]:  # noqa: ARG002
        """Variables to set before user code, where the user has not set them; each with its reason.

        What is set later, such as at an import, is offered to :data:`jupyter_dtrain.variables.given`.
        """
        return {}

    def prepare(self, place: Placement, spec: RankSpec, metrics: MetricBuffer) -> None:
        """Hook into the framework's import. Called once, before user code. ``metrics``: where losses go."""

    def before_cell(self, run: int, generation: int, watch: Watching) -> None:
        """A cell is about to run in the world's ``generation``; ``watch`` says what it wants to see.

        ``run``: its number, which all ranks have that it runs on, and no other cell of the world.
        """

    def after_cell(self, *, failed: bool) -> None:
        """The cell has ended: add what waits to be a point of its metrics. ``failed``: in this rank, or interrupted."""

    def describe(self) -> Facts | None:
        """What it sees in this rank; None where it has nothing to tell. Any thread, at any time, also in mid-cell.

        Imports nothing and waits for nobody. What it raises is told in its place.
        """
        return None

    def in_use(self) -> str:
        """What people call this framework, if user code has imported it; else empty. Any thread."""
        return ""

    def is_log(self, line: str) -> bool:  # noqa: ARG002
        """Whether ``line``, which native code or a child process has written, is a log that no cell should show.

        Such lines are kept in the spool and in ``Run.text``. Must not raise, and be quick.
        """
        return False

    def steps(self) -> dict[str, int]:
        """How many steps each optimizer has made in the cell that runs, by its variable; empty where none count."""
        return {}

    def on_host(self, value: Any) -> Any:
        """``value`` with this framework's tensors, however deep in it, as tensors on the host.

        Raises :class:`ValueError` for what is spread over ranks, so that no rank has all of it.
        """
        return value

    def number(self, value: Any) -> tuple[Any, Read] | None:  # noqa: ARG002
        """For a tensor of this framework with one element: what to add to the metrics, and what reads it later.

        None for values of any other kind. Raises :class:`ValueError` for a tensor that is no number.
        """
        return None

    def reserved(self) -> int | None:
        """Bytes of memory of the rank's GPU that this framework holds; None where it uses none. Any thread."""
        return None

    def is_out_of_memory(self, exception: BaseException) -> bool:  # noqa: ARG002
        """Whether this framework says with ``exception`` that there was not enough memory."""
        return False

    def free_memory(self) -> None:
        """Give back what is reserved and not in use."""

    def needs_regroup(self) -> bool:
        """Whether a set-up failed or groups were released, so that the next set-up must be in a new generation."""
        return False

    def is_apart(self) -> bool:
        """Whether this rank has begun something with others that does not come about: asked after a cell that failed.

        If so, the groups must be made anew: what ranks do next would meet what others had begun.
        """
        return False

    def waits(self, frame: FrameType, call: ast.Call | None, *, idle: bool) -> str:  # noqa: ARG002
        """What the main thread waits in for other ranks, such as ``all_reduce``; empty when it does not.

        Called on the control thread. ``frame`` is its innermost; ``call`` what is called there, where the user's source
        tells; ``idle`` whether it uses no processor.
        """
        return ""

    def worked(self) -> int:
        """Counts what others, or other threads, do for this rank's cell, which moves while this rises. Any thread."""
        return 0

    def collectives(self) -> list[Collective]:
        """The last few collectives that this rank has begun, of each group, where the framework records them."""
        return []

    def release(self) -> None:
        """Make whatever waits for other ranks raise: something that all ranks are told at once. Control thread."""

    def recover(self) -> list[str]:
        """Before a cell on all ranks in a new generation: make whole again what was released.

        Returns what could not be, in words with the line that does it. Raises what stands in its way.
        """
        return []


def called_in(place: FrameType | TracebackType) -> ast.Call | None:
    """The call that a frame is in the middle of; None in a library, or where its source says nothing clear."""
    from executing import Source

    frame = place.tb_frame if isinstance(place, TracebackType) else place
    if is_library(frame.f_code.co_filename):
        return None  # to read the source of a big module takes a second
    with contextlib.suppress(Exception):
        node = Source.executing(place).node
        return node if isinstance(node, ast.Call) else None
    return None


def value_of(frame: FrameType, node: ast.expr) -> Any:
    """The value of a name, or of plain attributes of one, found without running anybody's code; else None."""
    match node:
        case ast.Name(id=name):
            return frame.f_locals.get(name, frame.f_globals.get(name))
        case ast.Attribute(value=inner, attr=attr):
            with contextlib.suppress(AttributeError):
                return object.__getattribute__(value_of(frame, inner), "__dict__").get(attr)
    return None


def user_names() -> list[tuple[str, Any]]:
    """The names that user code has in this rank, with their values; without those that IPython keeps."""
    from IPython.core.interactiveshell import InteractiveShell

    if not InteractiveShell.initialized():
        return []
    names = list(InteractiveShell.instance().user_ns.items())
    return [(name, value) for name, value in names if not _OF_IPYTHON.fullmatch(name)]


def load_frameworks() -> list[Framework]:
    """One fresh object per framework that is known, by name. One that cannot be loaded is logged and left out."""
    found: list[Framework] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            found.append(entry.load()())
        except Exception:
            logging.getLogger(__name__).exception("The framework plug-in %s cannot be loaded", entry.name)
    return found

"""The verbs for worlds that another kernel started: list them and join them."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from IPython.core import display_functions

from jupyter_dtrain.core.errors import NoWorld, Refused, WorldLost
from jupyter_dtrain.core.world import count_ranks, quantity
from jupyter_dtrain.launch.worlds import Listing, list_worlds, open_channel
from jupyter_dtrain.session import Session, current, open_sessions
from jupyter_dtrain.view.labels import ending_of, took
from jupyter_dtrain.view.tables import table
from jupyter_dtrain.wire.messages import PROTOCOL
from jupyter_dtrain.wire.steward_messages import ReadStatus, name_of

from .offers import world_names
from .parsing import MagicParser, Parsed
from .transform import publish_auto

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.view import RunView

_told: set[str] = set()
"""The ids of the worlds that :func:`show_worlds` has named."""
PATIENCE = 1.0
"""Seconds in which a steward must answer before the list goes on without it."""


def attach_arguments(parser: MagicParser) -> None:
    """Arguments of ``attach``."""
    parser.add_argument(
        "name",
        nargs="?",
        help="name of the world, as in %%distributed worlds (default: the only one)",
        completer=world_names,
    )
    control = parser.add_argument(
        "--control",
        action="store_true",
        help="control the world from here; the notebook that controls it now can only read",
    )
    parser.formerly(control, "--take-over")


def attach(args: Parsed) -> None:
    """``%distributed attach [NAME] [--control]``."""
    here = _here(args.name)
    if here is not None and here.controls:
        print(f"This notebook already controls world {here.name!r}.")
        return
    if here is not None:
        here.leave()  # one that only reads does not follow runs that began after it joined
    joined: list[Session] = []

    def view(run: Run, session: Session) -> RunView:
        if not joined:
            joined.append(session)
            _show(session)  # before the output of its runs, which may be long
        on = "" if len(run.ranks) == session.world.size else f" on {count_ranks(run.ranks)}"
        print(f"Run {run.number} began{on} {took(run.elapsed)} ago. All of its output so far is shown here.")
        return session._view_in_cell(run, paint_errors=True)  # noqa: SLF001 — for the magics alone

    session = Session.attach(args.name, control=args.control, view=view)
    publish_auto(session)
    if not joined:
        _show(session)
    last = session.last_run
    if last is not None and last not in session.running:
        print(f"Run {last.number} ended: {ending_of(last)}.")


def _here(name: str | None) -> Session | None:
    """The session of this process for that world, if there is one."""
    for session in open_sessions:
        if not session.closed and session.name == (name or session.name):
            return session
    return None


def _show(session: Session) -> None:
    world = session.world
    living = f", {count_ranks([rank.rank for rank in world.dead])} dead" if world.dead else ""
    how = "" if session.controls else ", read-only"
    print(f"Attached to world {session.name!r}{how}: {quantity(world.size, 'rank')}{living}.")
    if not session.controls:
        print(f"{session.controller} controls it; %distributed attach {session.name} --control takes control.")


def listing(_args: Parsed) -> None:
    """``%distributed worlds``."""
    worlds = list_worlds()
    if not worlds:
        print("No world of yours is running on this machine.")
        return
    rows = [[world.name, world.size, _ago(world), world.cwd, _driver(world)] for world in worlds]
    data = table("Worlds on this machine", ["name", "ranks", "age", "folder", "used by"], rows)
    publish: Any = display_functions.publish_display_data
    publish(data)


def show_worlds() -> None:
    """Print the worlds besides those of this process, each once."""
    here = {session.id for session in open_sessions if not session.closed}
    for world in list_worlds():
        if world.id in here or world.id in _told:
            continue
        _told.add(world.id)
        print(
            f"World {world.name!r} is running, {quantity(world.size, 'rank')}, {_ago(world)} old: "
            f"%distributed attach {world.name} joins it, %distributed stop {world.name} ends it."
        )


def show_worlds_after_cell(shell: InteractiveShell) -> None:
    """Call :func:`show_worlds` once the cell that runs has ended: it may attach to one of them itself."""

    def show(*_: object) -> None:
        shell.events.unregister("post_run_cell", show)
        show_worlds()

    shell.events.register("post_run_cell", show)


def _driver(world: Listing) -> str:
    """The driver of a world, in words."""
    with contextlib.suppress(NoWorld):
        mine = current()
        if mine.id == world.id and mine.controls:
            return "this notebook"
    try:
        channel = open_channel(world, PATIENCE)
    except OSError:
        return ""
    try:
        status = channel.ask(ReadStatus())
    except (Refused, WorldLost):
        return "unknown: the world does not answer"
    finally:
        channel.close()
    words = name_of(status.driver.words) if status.driver else "no notebook yet"
    older = "" if status.protocol == PROTOCOL else ", another version of jupyter-dtrain"
    return f"{words}, {took(max(0.0, status.lease_left))} left{older}"


def _ago(world: Listing) -> str:
    seconds = time.time() - world.created
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"

"""The verbs that make, show and end worlds."""

from __future__ import annotations

import time
from typing import Any, get_args

from IPython.core import display_functions

from ..failures import BadRequest, NoWorld
from ..lifecycle import current
from ..session import Session
from ..store.tensorboard import check_folder
from ..view import painter_for_cell
from ..view.tables import table
from ..world import TorchBackend
from ..worlds import list_worlds, stop_world
from .parsing import MagicParser, Parsed, assignment


def start_arguments(parser: MagicParser) -> None:
    """Arguments of ``start``."""
    parser.add_argument("-n", type=int, metavar="N", help="how many ranks (default: one per visible GPU, else 2)")
    parser.add_argument("--name", help="the world's name (default: world, world-2, …)")
    parser.add_argument(
        "--env", type=assignment, nargs="+", action="extend", default=[], metavar="K=V", help="variables for the ranks"
    )
    parser.add_argument(
        "--torch-backend",
        choices=get_args(TorchBackend),
        default="auto",
        help="what init_process_group() takes when a cell names none (default: nccl with a GPU per rank, else gloo)",
    )
    parser.add_argument("--mpiexec", metavar="PATH", help="which mpiexec (default: this environment's own)")
    parser.add_argument("--tensorboard", metavar="DIR", help="write metrics as TensorBoard's event files as well")


def start(args: Parsed) -> None:
    """``%distributed start``."""
    try:
        running = current()
    except NoWorld:
        running = None
    if running is not None:
        _keep(running, args)
        return
    _mention_others(
        start_world(
            args.n,
            name=args.name,
            env=dict(args.env),
            torch_backend=args.torch_backend,
            mpiexec=args.mpiexec,
            tensorboard=args.tensorboard,
        )
    )


def _keep(session: Session, args: Parsed) -> None:
    """A start cell that is run again keeps the world, if that is what the cell asks for. Raises :class:`BadRequest`."""
    request = session.request
    wanted = {
        "size": args.n or request.size,
        "name": args.name or request.name,
        "env": dict(args.env),
        "torch_backend": args.torch_backend,
        "tensorboard": args.tensorboard and check_folder(args.tensorboard),
    }
    if any(getattr(request, field) != value for field, value in wanted.items()):
        raise BadRequest(
            f"World {session.name!r} is running in this notebook, and it is not the one asked for: "
            f"%distributed stop ends it, %distributed restart gives it fresh ranks."
        )
    ranks = f"{request.size} rank{'s' if request.size > 1 else ''}"
    print(f"World {session.name!r} with {ranks} is running already; %distributed restart gives it fresh ranks.")


def start_world(
    n: int | None = None,
    *,
    name: str | None = None,
    env: dict[str, str] | None = None,
    torch_backend: TorchBackend = "auto",
    mpiexec: str | None = None,
    tensorboard: str | None = None,
) -> Session:
    """Start a world with a progress line."""
    line = ProgressLine()
    try:
        return Session.start(
            n,
            name=name,
            env=env,
            torch_backend=torch_backend,
            mpiexec=mpiexec,
            tensorboard=tensorboard,
            progress=line.say,
        )
    finally:
        line.end()


class ProgressLine:
    """One line that changes while something starts."""

    def __init__(self) -> None:
        self._painter = painter_for_cell()
        self._id = f"dtrain-progress-{time.monotonic_ns()}"
        self._said = False

    def say(self, text: str) -> None:
        """Show ``text`` in place of what was said before."""
        data = {"text/plain": text}
        if self._said:
            self._painter.update(data, {}, self._id)
        else:
            self._painter.display(data, {}, self._id, moving=True)
        self._said = True

    def end(self) -> None:
        """The line stays as it is."""
        if self._said:
            self._painter.settle(self._id)


def stop_arguments(parser: MagicParser) -> None:
    """Arguments of ``stop``."""
    parser.add_argument(
        "name", nargs="?", help="another world of yours, as %%distributed list names it (default: this one)"
    )


def stop(args: Parsed) -> None:
    """``%distributed stop [NAME]``."""
    session: Session | None = None
    try:
        session = current()
    except NoWorld:
        if args.name is None:
            raise
    name = args.name or session.name  # type: ignore[union-attr]  # without a name there is a session
    if session is not None and name == session.name:
        session.stop()
    else:
        stop_world(name)
    print(f"World {name!r} has ended.")


def _mention_others(started: Session) -> None:
    """A world that an earlier kernel left behind holds memory, and perhaps GPUs, until its lease is over."""
    for world in list_worlds():
        if world.name != started.name:
            ranks = f"{world.size} rank{'s' if world.size > 1 else ''}"
            age = _ago(time.time() - world.created)
            print(
                f"Another world of yours runs: {world.name!r}, {ranks}, {age} old. "
                f"%distributed stop {world.name} ends it."
            )


def restart(_args: Parsed) -> None:
    """``%distributed restart``."""
    line = ProgressLine()
    try:
        current().restart(progress=line.say)
    finally:
        line.end()


def status(_args: Parsed) -> None:
    """``%distributed status``, and ``%distributed`` alone."""
    try:
        session = current()
    except NoWorld as nothing:
        others = len(list_worlds())
        print(nothing)
        if others:
            print(f"{others} world{'s' if others > 1 else ''} of yours run elsewhere: see %distributed list.")
        return
    world = session.world
    rows = [
        [rank.rank, rank.host, rank.local_rank, rank.device, rank.pid, rank.state, rank.words] for rank in world.ranks
    ]
    headers = ["rank", "node", "local rank", "device", "pid", "state", ""]
    if not world.dead:
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    last = session.last_run
    caption = f"World {world.name!r}: {world.size} rank{'s' if world.size > 1 else ''}"
    if last is not None:
        caption += f"; run {last.number}: {last.outcome}, {last.elapsed:.1f} s"
    _publish(table(caption, headers, rows))


def listing(_args: Parsed) -> None:
    """``%distributed list``."""
    worlds = list_worlds()
    if not worlds:
        print("No world of yours is running on this machine.")
        return
    try:
        here = current().name
    except NoWorld:
        here = None
    rows = [
        [
            world.name,
            world.size,
            _ago(time.time() - world.created),
            world.cwd,
            world.steward,
            "yes" if world.name == here else "",
        ]
        for world in worlds
    ]
    _publish(table("Worlds on this machine", ["name", "ranks", "age", "folder", "steward pid", "here"], rows))


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _publish(data: dict[str, str]) -> None:
    publish: Any = display_functions.publish_display_data
    publish(data)

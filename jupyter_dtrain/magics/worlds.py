"""The verbs that start, show and end worlds."""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from IPython.core import display_functions

from jupyter_dtrain.client.snapshots import find_snapshot
from jupyter_dtrain.core.causes import as_seen
from jupyter_dtrain.core.declarations import declarations
from jupyter_dtrain.core.errors import BadRequest, NoWorld, StartInterrupted
from jupyter_dtrain.core.run import Run
from jupyter_dtrain.core.world import Rank, World, count_ranks, format_ranks, quantity, time_left
from jupyter_dtrain.launch import launchers
from jupyter_dtrain.launch.options import Option, check, flag_of, flat_values, options
from jupyter_dtrain.launch.starting import find_paths
from jupyter_dtrain.launch.worlds import list_worlds, stop_world
from jupyter_dtrain.session import Session, current, save_profile
from jupyter_dtrain.view import painter_for_cell
from jupyter_dtrain.view.labels import ending_of, took
from jupyter_dtrain.view.rank_summary import MANY, counted, standing
from jupyter_dtrain.view.run_state import rank_state
from jupyter_dtrain.view.tables import table
from jupyter_dtrain.wire.requests import LOCAL

from .joining import show_worlds
from .offers import interfaces, paths, profiles, some_ranks, ssh_hosts, world_names
from .parsing import Completer, MagicParser, Parsed, assignment, run_numbers, say_renamed
from .snapshots import show_loaded, snapshot_names
from .transform import publish_auto

SHOWN = 4
"""Runs that the caption of the status names."""


FIRST: Final = "start_"
"""What the parsed line of a cell has before the name of a start option: a cell has options of its own."""

COMPLETERS: Final[dict[str, Completer]] = {
    "hosts": ssh_hosts,
    "hostfile": paths,
    "interface": interfaces,
    "mpiexec": paths,
    "profile": profiles,
    "python": paths,
}
"""What Tab offers for start options."""


def start_arguments(parser: MagicParser) -> None:
    """Arguments of ``start``: the start options. The parsed line lacks the options that it leaves out."""
    option_arguments(parser, options())
    parser.add_argument(
        "--save-profile",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="save these options, or without any those of the running world, as a profile in Jupyter's configuration "
        "folder",
        completer=profiles,
    )


def option_arguments(parser: MagicParser, wanted: Iterable[Option], words: Mapping[str, str] | None = None) -> None:
    """Arguments for the start options that are ``wanted``, by launchers and frameworks.

    ``words``: descriptions that suit the verb better, by option.
    """
    groups: dict[str, Any] = {"": parser}
    for option in wanted:
        title = _title(option)
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _option_argument(parser, groups[title], option, (words or {}).get(option.name, option.description))


def first_cell_arguments(parser: MagicParser, without: Sequence[str] = ()) -> None:
    """Arguments for a cell that may start a world: the start options, as far as the cell has no such option itself.

    ``without``: those that make no sense there. ``-h`` of the cell's magic points to that of ``start``.
    """
    taken = {name for action, _ in parser.known for name in action.option_strings}
    for option in options():
        if option.flag not in taken and option.name not in without:
            _option_argument(parser, parser, option, option.description, before=FIRST)


def _title(option: Option) -> str:
    """The heading of an option in ``-h``: its launchers, or its framework; empty for an option of every world."""
    if option.framework:
        return next(one.title for one in declarations() if one.name == option.framework)
    return " or ".join(launchers()[name].title for name in option.launchers)


def _option_argument(parser: MagicParser, group: Any, option: Option, description: str, *, before: str = "") -> None:
    more = {"help": description.replace("%", "%%"), "default": argparse.SUPPRESS, **_values_of(option)}
    short = [option.schema["short"]] if "short" in option.schema else []
    action = group.add_argument(*short, option.flag, dest=f"{before}{option.name}", **more)
    if more.get("metavar") == "ARGS":
        parser.takes_dashes(action)
    if before:
        parser.listed_elsewhere(action)
    if option.formerly:
        parser.formerly(action, flag_of(option.formerly))
    if option.name in COMPLETERS:
        parser.completes(action, COMPLETERS[option.name])


def _values_of(option: Option) -> dict[str, Any]:
    """The arguments of ``add_argument`` that say which values an option has."""
    more: dict[str, Any] = {}
    metavar = option.schema.get("metavar")
    match option.schema:
        case {"enum": choices}:
            more["choices"] = choices
        case {"type": "boolean"}:
            more["action"] = argparse.BooleanOptionalAction if option.default else "store_true"
        case {"type": "integer"}:
            more |= {"type": int, "metavar": metavar or "N"}
        case {"type": "number"}:
            more |= {"type": float, "metavar": metavar or "X"}
        case {"words": True}:
            more |= {"nargs": "+", "metavar": "WORD"}
        case {"type": "object"}:
            more |= {"type": assignment, "nargs": "+", "action": "extend", "metavar": metavar or "NAME=value"}
        case _:
            more["metavar"] = metavar
    return more


def start_options(args: Parsed, before: str = "") -> dict[str, Any]:
    """The options that a parsed line of ``start`` gives, as :meth:`.Session.start` takes them.

    ``before``: :data:`FIRST` for the line of a cell.
    """
    names = [option.name for option in options() if f"{before}{option.name}" in args]
    given = {name: getattr(args, f"{before}{name}") for name in names}
    return {name: _joined(value) if isinstance(value, list) else value for name, value in given.items()}


def start(args: Parsed) -> None:
    """``%distributed start``."""
    given = start_options(args)
    try:
        running = current()
    except NoWorld:
        running = None
    if "save_profile" in args:
        file = save_profile(args.save_profile, **given)
        print(f"Saved the profile {args.save_profile!r} in {file}: %distributed start --profile {args.save_profile}")
        if running is not None:
            return
    if running is not None:
        check_running(running, given)
        ranks = quantity(running.world.size, "rank")
        print(f"World {running.name!r} with {ranks} is already running; %distributed restart gives it fresh ranks.")
        return
    start_world(**given)
    # A world that an earlier kernel left behind holds memory, and perhaps GPUs, until its lease runs out.
    show_worlds()


def _joined(values: list[Any]) -> Any:
    """The value of an option that took several words, as one text."""
    return " ".join(values) if all(isinstance(value, str) for value in values) else dict(values)


def check_running(session: Session, given: Mapping[str, Any], *, only: bool = False) -> None:
    """Check that the running world is the one that the options ``given`` ask for. Raises :class:`BadRequest`.

    ``only``: compare the options that are given, not those that are left open.
    """
    asked, started = check(given), session.request
    with contextlib.suppress(BadRequest):  # they are compared with those of the world, which has its GPUs
        asked = asked.share_gpus()
    request = started.resized(session.world.size)  # the same cell again is harmless after a resize, too
    wanted = msgspec.structs.replace(
        asked.world,
        n=session.world.size if asked.world.n in (None, started.size) else asked.world.n,
        name=request.name if asked.world.name is None else asked.world.name,
        mpiexec=asked.world.mpiexec or request.options.mpiexec,
    )
    here = flat_values(find_paths(wanted), asked.framework_values, asked.launcher_values)
    there = flat_values(request.options, request.frameworks, request.launcher_options)
    # Of a profile, its options count: all of them are compared where a cell names one, too.
    others = [
        option.flag
        for option in options()
        if (option.name in given or "profile" in given or not only)
        and here.get(option.name) != there.get(option.name)
        and option.name != "profile"
    ]
    if asked.launcher.name != request.launcher and not (only and asked.launcher.name == LOCAL):
        others = others or [flag_of(asked.launcher.name)]
    if others:
        raise BadRequest(
            f"World {session.name!r} is running in this notebook, and its options differ from those asked for "
            f"({', '.join(others)}), so nothing ran: %distributed stop ends it, %distributed restart gives it fresh "
            "ranks."
        )


def start_world(**options: Any) -> Session:
    """Start a world with a progress line. ``options``: as for :meth:`.Session.start`."""
    line = ProgressLine()
    try:
        session = Session.start(**options, progress=line.say)
    except KeyboardInterrupt:
        raise StartInterrupted from None
    finally:
        line.end()
    publish_auto(session)
    return session


class ProgressLine:
    """One line that changes while something starts."""

    def __init__(self) -> None:
        self._painter = painter_for_cell()
        self._id = f"dtrain-progress-{time.monotonic_ns()}"
        self._said = False
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Show ``text`` in place of the text before."""
        self.show({"text/plain": text})

    def show(self, data: dict[str, str]) -> None:
        """Show a mimebundle in place of the one before. Any thread may call it."""
        with self._lock:
            if self._said:
                self._painter.update(data, {}, self._id)
            else:
                self._painter.display(data, {}, self._id, moving=True)
            self._said = True

    def end(self) -> None:
        """End the line: it stays as it is, and later output goes below it."""
        if self._said:
            self._painter.settle(self._id)


def show_lines(line: ProgressLine, words: str) -> None:
    """Show ``words``, the first of their lines in the place of the progress."""
    first, _, rest = words.partition("\n")
    line.say(first)
    line.end()
    if rest:
        print(rest)


def stop_arguments(parser: MagicParser) -> None:
    """Arguments of ``stop``."""
    one = parser.add_mutually_exclusive_group()
    name = one.add_argument(
        "name", nargs="?", help="name of another world, as in %%distributed worlds (default: this notebook's)"
    )
    parser.completes(name, world_names)
    one.add_argument("--all", action="store_true", help="stop all your worlds on this machine")


def stop(args: Parsed) -> None:
    """``%distributed stop [NAME]``."""
    names = [world.name for world in list_worlds()] if args.all else [args.name]
    if not names:
        print("No world of yours is running on this machine.")
    for name in names:
        _stop(name)


def _stop(name: str | None) -> None:
    session: Session | None = None
    try:
        session = current()
    except NoWorld:
        if name is None:
            raise
    name = name or session.name  # type: ignore[union-attr]  # without a name there is a session
    if session is not None and name == session.name:
        session.stop()
    else:
        stop_world(name)
    print(f"World {name!r} has ended.")


def restart_arguments(parser: MagicParser) -> None:
    """Arguments of ``restart``."""
    parser.add_argument(
        "-r",
        "--ranks",
        metavar="RANKS",
        help="only these ranks, living or dead; the others keep their processes and variables (default: all)",
        completer=some_ranks,
    )
    parser.add_argument(
        "--load", metavar="NAME", help="load this snapshot into the fresh ranks (not with -r)", completer=snapshot_names
    )
    parser.add_argument(
        "--replay",
        metavar="RUNS",
        nargs="+",
        default=[],
        help="run these runs' cells again first, such as 1,3-5 or variables of -o; with -r on the fresh ranks alone",
    )


def restart(args: Parsed) -> None:
    """``%distributed restart [-r RANKS] [--load NAME] [--replay RUNS]``."""
    if len(args.replay) > 1:
        say_renamed("--replay 1 2", "--replay 1,2")
    session, line = current(), ProgressLine()
    replay = run_numbers(",".join(args.replay))
    if args.load is not None and args.ranks is None:
        find_snapshot(args.load)  # before anything is lost
    try:
        load = None if args.ranks is None else args.load  # the session refuses it
        done = session.restart(args.ranks, load=load, replay=replay, progress=line.say)
        if done is not None:
            show_lines(line, str(done))
    finally:
        line.end()
    if args.load is not None:
        show_loaded(args.load, session.load(args.load, ready=True))


def status(_args: Parsed) -> None:
    """``%distributed status``, and ``%distributed`` alone."""
    try:
        session = current()
    except NoWorld as nothing:
        others = len(list_worlds())
        print(nothing)
        if others:
            print(f"You have {quantity(others, 'world')} elsewhere: see %distributed worlds.")
        return
    world = session.world
    runs = session.running or [run for run in [session.last_run] if run is not None]
    rows = _rows_by_host(world, runs) if world.size > MANY else [_row(rank, runs) for rank in world.ranks]
    headers = ["rank", "node", "local rank", "device", "pid", "state", ""]
    if not world.dead:
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    if any(rank.role for rank in world.ranks):
        headers.insert(1, "role")
        roles = {rank.rank: rank.role for rank in world.ranks}
        for row in rows:
            row.insert(1, roles.get(row[0], ""))
    caption = f"World {world.name!r}: {quantity(world.size, 'rank')}"
    if left := time_left(session.ends):
        caption += f", {left}"
    for run in runs[:SHOWN]:
        on = "" if len(run.ranks) == world.size else f" on {count_ranks(run.ranks)}"
        caption += f"; run {run.number}{on}: {ending_of(run)}, {took(run.elapsed)}"
    if len(runs) > SHOWN:
        caption += f"; {len(runs) - SHOWN} more runs"
    _publish(table(caption, headers, rows))


def _row(rank: Rank, runs: Sequence[Run]) -> list[Any]:
    return [rank.rank, rank.host, rank.local_rank, rank.device, rank.pid, _state(rank, runs), rank.words]


def _rows_by_host(world: World, runs: Sequence[Run]) -> list[list[Any]]:
    """Rows of a large world: the odd ranks one by one, then a row for each host with all its ranks."""
    states = {rank.rank: _state(rank, runs) for rank in world.ranks}
    found = standing(states, {rank.rank: rank.host for rank in world.ranks})
    rows = [_row(world.ranks[rank], runs) for rank in found.odd]
    for host, ranks in found.hosts:
        rows.append([format_ranks(ranks), host, "", "", "", counted([states[rank] for rank in ranks]), ""])
    return rows


def _state(rank: Rank, runs: Sequence[Run]) -> str:
    """The state of a rank, as the sidebar shows it."""
    run = next((run for run in reversed(runs) if rank.rank in run.ranks), None)
    in_run = None
    if run is not None:
        part = run.fold.rank(rank.rank)
        in_run = as_seen(part.state, part.error, asks=part.prompt is not None, held=part.held is not None)
    replaced = run is not None and run.pids.get(rank.rank, rank.pid) != rank.pid
    found = rank_state(rank.state, in_run, over=run is None or run.done, waits=False, replaced=replaced)
    return {"sent": "queued", "ok": "done", "asking": "at a prompt", "held": "paused"}.get(found, found)


def _publish(data: dict[str, str]) -> None:
    publish: Any = display_functions.publish_display_data
    publish(data)

"""The verbs that inspect and control running cells."""

from __future__ import annotations

from typing import Any

import msgspec
from IPython.core import display_functions
from IPython.core.getipython import get_ipython

from jupyter_dtrain.core.stacks import describe_stacks
from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.launch.worlds import interrupt_world
from jupyter_dtrain.session import Session, current, open_sessions
from jupyter_dtrain.view.surroundings import surroundings_tables

from .cells import ranks_argument
from .offers import paths, rank_names, some_ranks, world_names
from .parsing import MagicParser, Parsed, count, seconds
from .transform import transform_of


def interrupt_arguments(parser: MagicParser) -> None:
    """Arguments of ``interrupt``."""
    parser.add_argument(
        "name",
        nargs="?",
        help="world to interrupt, even one that this notebook cannot join (default: this notebook's)",
        completer=world_names,
    )
    parser.add_argument("--force", action="store_true", help="kill ranks that are still busy after 8 seconds")


def interrupt(args: Parsed) -> None:
    """``%distributed interrupt [NAME]``."""
    mine = next((one for one in open_sessions if one.name == args.name and one.controls), None)
    if args.name is None or mine is not None:
        (mine or current()).interrupt(force=args.force)
        return
    run = interrupt_world(args.name, force=args.force)
    print(
        f"World {args.name!r} has run nothing yet."
        if run is None
        else f"Run {run} of world {args.name!r} is being interrupted."
    )


def prompt(_args: Parsed) -> None:
    """``%distributed prompt``."""
    current().attend()


def debug_arguments(parser: MagicParser) -> None:
    """Arguments of ``debug``."""
    parser.add_argument(
        "ranks", nargs="?", metavar="RANKS", help="ranks, such as 2 or 0,3-5 (default: all)", completer=some_ranks
    )


def debug(args: Parsed) -> None:
    """``%distributed debug [RANKS]``."""
    current().debug(args.ranks)


def kill_arguments(parser: MagicParser) -> None:
    """Arguments of ``kill``."""
    parser.add_argument("ranks", metavar="RANKS", help="ranks to kill, such as 2 or 0,3-5", completer=some_ranks)


def kill(args: Parsed) -> None:
    """``%distributed kill RANKS``."""
    session = current()
    session.kill(args.ranks)
    killed = [rank.rank for rank in session.world.dead]
    if len(killed) < len(session.world.ranks):
        fix = "The others keep their variables; %distributed replace replaces the dead ones."
    else:
        fix = "%distributed restart replaces all ranks."
    print(f"Dead: {count_ranks(killed)}. {fix}")


def resync_arguments(parser: MagicParser) -> None:
    """Arguments of ``resync``."""
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="variables to copy: models, optimizers or anything else",
        completer=rank_names,
    )
    parser.add_argument(
        "--from", dest="source", type=int, default=0, metavar="RANK", help="rank that has the right values (default: 0)"
    )


def resync(args: Parsed) -> None:
    """``%distributed broadcast --from RANK NAME …``."""
    run = current().broadcast(args.names, args.source)
    print(run.text(args.source), end="")
    print(f"All ranks now have the values of rank {args.source}: {', '.join(args.names)}.")


def stacks_arguments(parser: MagicParser) -> None:
    """Arguments of ``stacks``."""
    ranks_argument(parser, "ranks to ask")
    parser.add_argument(
        "--native",
        action="store_true",
        help="show native frames as well, which py-spy reads where the system permits it",
    )


def stacks(args: Parsed) -> None:
    """``%distributed stacks``: shows ranks that are at the same place together."""
    print(describe_stacks(current().stacks(args.ranks, native=args.native)))


def flame_arguments(parser: MagicParser) -> None:
    """Arguments of ``flame``."""
    parser.add_argument(
        "-s", "--seconds", type=float, default=5.0, metavar="SECONDS", help="how long, 0.5 to 60 (default: 5)"
    )
    ranks_argument(parser, "ranks to sample")
    parser.add_argument(
        "-o",
        "--file",
        metavar="FILE",
        help="file for speedscope (default: flame-RUN.speedscope.json, beside the notebook)",
    )


def flame(args: Parsed) -> None:
    """``%distributed flame``: shows the picture and the table."""
    _publish(current().flame(args.seconds, args.ranks, args.file)._repr_mimebundle_())


def memory_arguments(parser: MagicParser) -> None:
    """Arguments of ``memory``."""
    ranks_argument(parser, "ranks to ask")
    parser.add_argument(
        "-n", "--most", metavar="N", type=count, default=20, help="tensors and arrays that are named (default: 20)"
    )
    parser.add_argument(
        "--timeout", metavar="S", type=seconds, default=10.0, help="seconds in which ranks look (default: 10)"
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="show the memory over the newest cell that ran with %%%%distributed --record-memory, or that runs now",
    )


def memory(args: Parsed) -> None:
    """``%distributed memory``: works also while a cell runs."""
    session = current()
    if args.record:
        _publish(session.memory_record(args.ranks, timeout=args.timeout)._repr_mimebundle_())
    else:
        _publish(session.memory(args.ranks, args.most, args.timeout)._repr_mimebundle_())


def free_arguments(parser: MagicParser) -> None:
    """Arguments of ``free``."""
    ranks_argument(parser, "ranks that let go")


def free(args: Parsed) -> None:
    """``%distributed free``."""
    print(current().free(args.ranks))


def profile_arguments(parser: MagicParser) -> None:
    """Arguments of ``profile``."""
    parser.add_argument(
        "-n", dest="steps", type=count, default=5, metavar="STEPS", help="steps to profile (default: 5)"
    )
    ranks_argument(parser, "ranks to profile")
    parser.add_argument(
        "-o",
        dest="path",
        metavar="FILE",
        help="file that gets the trace, for Perfetto (default: profile-RUN-STEP.json.gz in the notebook's folder)",
        completer=paths,
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds,
        default=60.0,
        help="seconds for the steps to be made; longer where the pace of the loop says so (default: 60)",
    )


def profile(args: Parsed) -> None:
    """``%distributed profile [-n STEPS] [-r RANKS] [-o FILE]``."""
    found = current().profile(args.steps, args.ranks, path=args.path, timeout=args.timeout)
    _publish(found._repr_mimebundle_())


def env_arguments(parser: MagicParser) -> None:
    """Arguments of ``env``."""
    ranks_argument(parser, "ranks to ask")


def env(args: Parsed) -> None:
    """``%distributed info``: shows a value once if it is the same on all ranks."""
    session = current()
    found = session.info(args.ranks)
    _publish(surroundings_tables(session.world, found, _profile(session)))


def _publish(bundle: dict[str, str]) -> None:
    publish: Any = display_functions.publish_display_data
    publish(bundle)


def _profile(session: Session) -> list[str]:
    """The profile that the world was started with, as a sentence."""
    request = session.request
    if request.options.profile is None:
        return []
    cells = {name: value for name, value in msgspec.structs.asdict(request.cells).items() if value is not None}
    usual = ", ".join(f"{name} = {value!r}" for name, value in cells.items())
    return [
        f"Started with the profile {request.options.profile!r} of {request.profile_file}"
        + (f"; its cells have {usual}." if usual else ".")
    ]


def auto_arguments(parser: MagicParser) -> None:
    """Arguments of ``auto``."""
    parser.add_argument(
        "switch",
        choices=("on", "off"),
        help="on or off (default: off); in auto mode, %%%%local keeps a cell in the notebook",
    )


def auto(args: Parsed) -> None:
    """``%distributed auto on|off``."""
    transform = transform_of(get_ipython())
    transform.auto = args.switch == "on"
    for session in open_sessions:
        session._tell_auto(auto=transform.auto)  # noqa: SLF001 — for the magics alone
    if transform.auto:
        print(
            "Every plain cell now runs on all ranks; %%local keeps a cell here, %distributed auto off ends auto mode."
        )
    else:
        print("Plain cells run in the notebook again; %%distributed sends one to the ranks.")

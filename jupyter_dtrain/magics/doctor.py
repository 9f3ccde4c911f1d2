"""The verb that examines the machines of a world before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jupyter_dtrain.launch.options import options
from jupyter_dtrain.launch.programs import Unreached

from .offers import interfaces, ssh_hosts
from .parsing import MagicParser, Parsed
from .worlds import ProgressLine, option_argument, start_options

if TYPE_CHECKING:
    from jupyter_dtrain.preflight.doctor import Examination, Removal

SLURM: Final = "slurm"
"""The launcher whose start options the verb has, too."""
IN_OTHER_WORDS: Final = {
    "slurm": "examine the nodes of this notebook's Slurm job, or of a new job if it has none (default: not in Slurm)",
    "ntasks_per_node": "ranks that each node would get (default: one per GPU of --gres, else 1; in a job, its tasks)",
    "time": "time limit of a new job, as in 90 (minutes), 2:00:00 or 1-0 (default: 5 minutes)",
}
"""The start options whose words would be wrong here."""


def doctor_arguments(parser: MagicParser) -> None:
    """Arguments of ``doctor``."""
    parser.add_argument(
        "--hosts",
        metavar="HOST:N,…",
        help="hosts with their numbers of ranks, such as gpu1:8,gpu2:8 (default: this machine alone)",
        completer=ssh_hosts,
    )
    parser.add_argument(
        "--hostfile", metavar="FILE", help="file with the hosts, in Open MPI's format; `job`: this batch job's"
    )
    parser.add_argument(
        "--ssh-args",
        metavar="ARGS",
        help="options for ssh, in quotes, such as --ssh-args='-p 2222' (default: none)",
    )
    parser.add_argument(
        "--python", metavar="PATH", help="Python interpreter on the hosts (default: the path of this notebook's)"
    )
    parser.add_argument(
        "--interface",
        metavar="NAME",
        help="network interface to use on all machines (default: the one that leads to the hosts)",
        completer=interfaces,
    )
    for option in options():
        if SLURM in option.launchers:
            option_argument(parser, option, IN_OTHER_WORDS.get(option.name, option.description))
    parser.add_argument("--quick", action="store_true", help="leave out all-reduces between the machines")
    parser.add_argument("--json", action="store_true", help="print facts and findings as JSON")
    parser.add_argument(
        "--remove-leftovers",
        metavar="WORLD",
        nargs="*",
        help="remove the processes and folders that dead worlds have left there, each verified (default: all worlds)",
    )


def doctor(args: Parsed) -> None:
    """``%distributed doctor``."""
    from jupyter_dtrain.preflight.doctor import BY_SSH, examine, named_machines, remove

    line = ProgressLine()
    say = (lambda _: None) if args.json else line.say
    given = {name: getattr(args, name) for name in BY_SSH} | start_options(args)
    try:
        with named_machines(given, say) as (hosts, reach):
            more = f" and {len(hosts)} host{'s' if len(hosts) > 1 else ''}" if hosts else ""
            say(f"Examining this machine{more} …")
            found = examine(hosts, reach, interface=args.interface, quick=args.quick)
            if args.json:
                print(found.to_json())
            else:
                line.show(found._repr_mimebundle_())
            wanted = args.remove_leftovers
            removed = None if wanted is None else remove(found, reach, worlds=wanted)
    finally:
        line.end()
    if removed is not None:
        tell_removed(found, removed)


def tell_removed(found: Examination, removed: dict[str, Removal | Unreached]) -> None:
    """Print what became of the leftovers, by machine."""
    if not removed:
        machines = "this machine" if len(found.machines) == 1 else "these machines"
        print(f"Dead worlds have left nothing on {machines}.")
    for name, one in removed.items():
        if isinstance(one, Unreached):
            print(f"{name}: {one.reason} {one.cure}")
            continue
        if one.ended:
            print(f"{name}: ended {', '.join(map(str, one.ended))}.")
        for pid, why in one.left.items():
            print(f"{name}: {pid} was left, since {why}.")
        for path in one.removed:
            print(f"{name}: removed {path}.")
        for path, why in one.kept.items():
            print(f"{name}: {path} was kept: {why}.")

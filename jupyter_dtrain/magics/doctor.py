"""The verb that examines the machines of a world before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_dtrain.launch.ssh import Unreached

from .offers import interfaces, ssh_hosts
from .parsing import MagicParser, Parsed
from .worlds import ProgressLine

if TYPE_CHECKING:
    from jupyter_dtrain.preflight.doctor import Examination, Removal


def doctor_arguments(parser: MagicParser) -> None:
    """Arguments of ``doctor``."""
    parser.add_argument(
        "--hosts",
        metavar="HOST:N,…",
        help="hosts with their numbers of ranks, such as gpu1:8,gpu2:8 (default: this machine alone)",
        completer=ssh_hosts,
    )
    parser.add_argument("--hostfile", metavar="FILE", help="file with the hosts, in Open MPI's format")
    parser.add_argument(
        "--ssh-args",
        metavar="ARGS",
        default="",
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
    parser.add_argument("--quick", action="store_true", help="leave out all-reduces between the machines")
    parser.add_argument("--json", action="store_true", help="print facts and findings as JSON")
    parser.add_argument(
        "--remove-leftovers",
        metavar="WORLD",
        nargs="*",
        help="end the processes that dead worlds have left there, each after it was verified (default: all worlds)",
    )


def doctor(args: Parsed) -> None:
    """``%distributed doctor``."""
    from jupyter_dtrain.launch.hostlist import named_hosts
    from jupyter_dtrain.preflight.doctor import examine, remove

    hosts = named_hosts(args.hosts, args.hostfile)
    line = ProgressLine()
    if not args.json:
        more = f" and {len(hosts)} host{'s' if len(hosts) > 1 else ''}" if hosts else ""
        line.say(f"Examining this machine{more} …")
    try:
        found = examine(hosts, ssh_args=args.ssh_args, python=args.python, interface=args.interface, quick=args.quick)
        if args.json:
            print(found.to_json())
        else:
            line.show(found._repr_mimebundle_())
    finally:
        line.end()
    if args.remove_leftovers is not None:
        worlds = args.remove_leftovers
        tell_removed(found, remove(found, worlds=worlds, ssh_args=args.ssh_args, python=args.python))


def tell_removed(found: Examination, removed: dict[str, Removal | Unreached]) -> None:
    """Print what became of the leftovers, by machine."""
    if not removed:
        machines = "this machine" if len(found.machines) == 1 else "these machines"
        print(f"Dead worlds have left no process on {machines}.")
    for name, one in removed.items():
        if isinstance(one, Unreached):
            print(f"{name}: {one.reason} {one.cure}")
            continue
        if one.ended:
            print(f"{name}: ended {', '.join(map(str, one.ended))}.")
        for pid, why in one.left.items():
            print(f"{name}: {pid} was left, since {why}.")

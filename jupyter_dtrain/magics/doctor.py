"""The verb that examines the machines of a world before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.world import quantity
from jupyter_dtrain.launch.options import options

from .parsing import MagicParser, Parsed
from .worlds import ProgressLine, option_arguments, start_options

if TYPE_CHECKING:
    from jupyter_dtrain.launch.leftovers import Removal

SLURM: Final = "slurm"
"""The launcher whose start options the verb has, too."""
BY_SSH: Final = ("hosts", "hostfile", "ssh_args", "python", "interface")
"""The start options for hosts that it has."""
IN_OTHER_WORDS: Final = {
    "hosts": "hosts over ssh and their ranks, as in gpu1:8,gpu2:8 (default: this machine alone)",
    "interface": "network interface to use on all machines (default: the one that leads to the hosts)",
    "slurm": "examine the nodes of this notebook's Slurm job, or of a new job if it has none (default: not in Slurm)",
    "ntasks_per_node": "ranks that each node would get (default: one per GPU of a node, else 1; in a job, its tasks)",
    "time": "time limit of a new job, as in 90 (minutes), 2:00:00 or 1-0 (default: 5 minutes)",
}
"""The start options whose words would be wrong here."""


def doctor_arguments(parser: MagicParser) -> None:
    """Arguments of ``doctor``."""
    wanted = [option for option in options() if SLURM in option.launchers or option.name in BY_SSH]
    option_arguments(parser, wanted, IN_OTHER_WORDS)
    parser.add_argument("--quick", action="store_true", help="leave out all-reduces between the machines")
    parser.add_argument("--json", action="store_true", help="print facts and findings as JSON")
    parser.add_argument(
        "--remove-leftovers",
        metavar="WORLD",
        nargs="*",
        help="remove what dead worlds have left on this machine, processes and folders, each verified (default: all "
        "worlds)",
    )


def doctor(args: Parsed) -> None:
    """``%distributed doctor``."""
    from jupyter_dtrain.launch.leftovers import remove_leftovers
    from jupyter_dtrain.preflight.doctor import examine, named_machines

    given = start_options(args)
    wanted = args.remove_leftovers
    if wanted is not None and any(given.get(name) for name in ("hosts", "hostfile", SLURM)):
        raise BadRequest(
            "--remove-leftovers is for this machine alone. For another one, run `jupyter dtrain doctor "
            "--remove-leftovers` in a terminal there."
        )
    line = ProgressLine()
    say = (lambda _: None) if args.json else line.say
    try:
        with named_machines(given, say) as (hosts, reach):
            more = f" and {quantity(len(hosts), 'host')}" if hosts else ""
            say(f"Examining this machine{more} …")
            found = examine(hosts, reach, interface=given.get("interface"), quick=args.quick)
            if args.json:
                print(found.to_json())
            else:
                line.show(found._repr_mimebundle_())
    finally:
        line.end()
    if wanted is not None:
        show_removed(remove_leftovers(wanted))


def show_removed(found: Removal) -> None:
    """Print what became of the leftovers."""
    if found == type(found)():
        print("Worlds that have ended left nothing on this machine.")
    if found.ended:
        print(f"this machine: ended process {', '.join(map(str, found.ended))}.")
    for pid, why in found.left.items():
        print(f"this machine: process {pid} is still there: {why}.")
    for path in found.removed:
        print(f"this machine: removed {path}.")
    for path, why in found.kept.items():
        print(f"this machine: {path} was kept: {why}.")

"""The verb that copies code and data to hosts and nodes without a shared file system."""

from __future__ import annotations

from jupyter_dtrain.core.errors import BadRequest, NoWorld
from jupyter_dtrain.session import Session, current

from .offers import paths, ssh_hosts
from .parsing import MagicParser, Parsed, seconds
from .worlds import ProgressLine


def sync_arguments(parser: MagicParser) -> None:
    """Arguments of ``sync``."""
    parser.add_argument(
        "path",
        metavar="PATH",
        help="file or folder to copy; it gets the same path on the hosts, where a file with other content is replaced",
        completer=paths,
    )
    parser.add_argument(
        "--to",
        metavar="DIR",
        help="folder on the hosts that gets it, relative to the ranks' folder, or ~/… in the home there",
    )
    parser.add_argument(
        "--exclude",
        metavar="PATTERN",
        action="append",
        default=[],
        help="names to leave out, as rsync reads them, such as '*.ckpt' or .git/; may be given several times",
    )
    parser.add_argument(
        "--hosts", metavar="HOST,…", help="hosts to copy to (default: those of the world)", completer=ssh_hosts
    )
    parser.add_argument(
        "--hostfile", metavar="FILE", help="file with the hosts, in Open MPI's format; `job`: this batch job's"
    )
    parser.add_argument(
        "--ssh-args",
        metavar="ARGS",
        help="with --hosts: options for ssh, in quotes, such as --ssh-args='-p 2222' (default: none)",
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="with --hosts: Python interpreter on the hosts (default: the path of this notebook's)",
    )
    parser.add_argument(
        "--timeout", metavar="S", type=seconds, default=600.0, help="seconds for all copies (default: 600)"
    )


def sync(args: Parsed) -> None:
    """``%distributed sync PATH``: shows a table, and raises where a host lacks files."""
    from jupyter_dtrain.files.sync import sync as sync_hosts
    from jupyter_dtrain.files.sync import sync_world
    from jupyter_dtrain.launch.hostlist import named_hosts

    hosts = named_hosts(args.hosts, args.hostfile)
    line = ProgressLine()
    options = {"to": args.to, "exclude": args.exclude, "timeout": args.timeout, "progress": line.say}
    try:
        if hosts:
            found = sync_hosts(args.path, list(hosts), ssh_args=args.ssh_args or "", python=args.python, **options)
        elif args.ssh_args is not None or args.python is not None:
            raise BadRequest("--ssh-args and --python go with --hosts: a world has its own.")
        else:
            session = _session()
            found = sync_world(session.request, session.lent, args.path, **options)
        line.show(found._repr_mimebundle_())
    finally:
        line.end()
    found.check()


def _session() -> Session:
    try:
        return current()
    except NoWorld as error:
        raise NoWorld(f"{error} Without a world, name the hosts: %distributed sync --hosts gpu1,gpu2 PATH.") from None

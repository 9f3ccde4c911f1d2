"""The verb that copies code and data to hosts and nodes without a shared file system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jupyter_dtrain.core.errors import BadRequest, NoWorld, UploadFailed
from jupyter_dtrain.launch.options import options
from jupyter_dtrain.session import current

from .offers import paths
from .parsing import MagicParser, Parsed, seconds
from .worlds import ProgressLine, option_arguments, start_options

if TYPE_CHECKING:
    from jupyter_dtrain.files.sync import Uploaded

IN_OTHER_WORDS: Final = {
    "hosts": "hosts to copy to, as in gpu1,gpu2 (default: those of the world)",
    "hostfile": "file with the hosts, in Open MPI's format; `job`: those of this batch job (default: none)",
    "ssh_args": "with --hosts: options for ssh, as in a shell (default: those of ~/.ssh/config)",
    "python": "with --hosts: path of the interpreter on the hosts (default: the path of this one)",
}
"""The start options that it has, in words that suit it."""


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
    option_arguments(parser, [option for option in options() if option.name in IN_OTHER_WORDS], IN_OTHER_WORDS)
    parser.add_argument(
        "--timeout", metavar="S", type=seconds, default=600.0, help="seconds for all copies (default: 600)"
    )


def sync(args: Parsed) -> None:
    """``%distributed upload PATH``: shows a table, and raises where a host lacks files."""
    line = ProgressLine()
    try:
        found = _upload(args, line)
        line.show(found._repr_mimebundle_())
    finally:
        line.end()
    found.check()


def _upload(args: Parsed, line: ProgressLine) -> Uploaded:
    """Copy to the hosts that the line names, or to those of the world; also where some copies are not complete."""
    from jupyter_dtrain.files.sync import upload

    given = start_options(args)
    options = {"to": args.to, "exclude": args.exclude, "timeout": args.timeout, "progress": line.say}
    try:
        if given.keys() & {"hosts", "hostfile"}:
            return upload(args.path, **given, **options)
        if given:
            raise BadRequest("--ssh-args and --python go with --hosts: a world has its own.")
        return current().upload(args.path, **options)
    except UploadFailed as failed:
        if failed.uploaded is None:
            raise
        uploaded: Uploaded = failed.uploaded
        return uploaded
    except NoWorld as error:
        raise NoWorld(f"{error} Without a world, name the hosts: %distributed upload --hosts gpu1,gpu2 PATH.") from None

"""The verb that makes a job of cells: ``%distributed export TARGET FILE``, and the function of the same name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.jobs import TARGETS, Exported, Setting, Target, export_notebook

from .notebooks import read_file, read_session
from .offers import paths
from .parsing import MagicParser, Parsed, assignment, count, say_renamed

SETTING: Final = "setting_"
"""What the parsed line has before the name of a target's setting."""


def no_target(_args: Parsed) -> None:
    """``%distributed export`` alone."""
    names = ", ".join(one.name for one in TARGETS)
    raise BadRequest(f"Name where the job goes, and a file: %distributed export slurm train.sbatch. There is: {names}.")


def target_arguments(target: Target, parser: MagicParser) -> None:
    """Arguments of ``export TARGET``: those of every export, and the settings of this target."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="file to write: the script, or what launches it; the script is beside it then, as NAME.py",
        completer=paths,
    )
    parser.add_argument(
        "--notebook", metavar="NOTEBOOK", help="export this file (default: this session's cells)", completer=paths
    )
    choice_arguments(parser)
    setting_arguments(parser, [target])


def choice_arguments(parser: MagicParser) -> None:
    """Arguments of an export that do not say from where and to where it goes."""
    parser.add_argument(
        "--cells", metavar="NUMBERS", help="only these cells, such as 3-7, 9: numbers as In [3] (default: all)"
    )
    parser.add_argument("--tag", metavar="TAG", help="only cells with this tag; a file has tags, a session has none")
    parser.add_argument(
        "--with-local", action="store_true", help="also the cells without %%%%distributed that the job needs"
    )
    parser.add_argument("-n", type=count, metavar="N", help="ranks of the job (default: as many as the world has)")
    parser.add_argument("--nodes", type=count, metavar="N", help="nodes of the job (default: as many as the world has)")
    parser.add_argument("--force", action="store_true", help="replace files that exist")


def setting_arguments(parser: MagicParser, targets: Sequence[Target]) -> None:
    """Arguments for the settings of ``targets``, those of each name together."""
    found: dict[str, dict[str, Setting]] = {}
    for target in targets:
        for one in target.settings:
            found.setdefault(one.name, {})[target.name] = one
    for name, by_target in found.items():
        helps = [_help(one) if len(targets) == 1 else f"{target}: {_help(one)}" for target, one in by_target.items()]
        first = next(iter(by_target.values()))
        action = parser.add_argument(
            first.flag,
            dest=f"{SETTING}{name}",
            metavar="VALUE",
            default=argparse.SUPPRESS,
            help="; ".join(helps).replace("%", "%%"),
        )
        parser.takes_dashes(action)
    present = {one.formerly: one.name for target in targets for one in target.settings if one.formerly}
    parser.add_argument("--set", action=_Set, nargs="+", type=assignment, present=present, help=argparse.SUPPRESS)


def _help(setting: Setting) -> str:
    if not setting.default:
        return setting.help
    asked = ", or the start's" if setting.asked else ""
    return f"{setting.help} (default: {setting.default}{asked})"


class _Set(argparse.Action):
    """``--set NAME=value``: the former way to give a setting. ``present``: by former name, the one of now."""

    def __init__(self, *args: Any, present: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.present = present

    def __call__(self, _parser: Any, namespace: Parsed, values: Any, _option: str | None = None) -> None:
        """Keep the settings; one that the target does not have is refused later."""
        for name, value in values:
            now = self.present.get(name, name)
            say_renamed(f"--set {name}=…", f"--{now.replace('_', '-')} …")
            setattr(namespace, f"{SETTING}{now}", value)


def export_cells(target: str, args: Parsed) -> None:
    """``%distributed export TARGET FILE``."""
    print(export_parsed(args, target, args.file, args.notebook))


def export_parsed(args: Parsed, target: str, file: str, notebook: str | None) -> Exported:
    """Make the export that a line of :func:`choice_arguments` and :func:`setting_arguments` asks for."""
    return export(
        target,
        file,
        notebook,
        cells=args.cells,
        tag=args.tag,
        with_local=args.with_local,
        n=args.n,
        nodes=args.nodes,
        settings={name.removeprefix(SETTING): value for name, value in vars(args).items() if name.startswith(SETTING)},
        force=args.force,
    )


def export(
    target: str,
    file: str | os.PathLike[str],
    notebook: str | os.PathLike[str] | None = None,
    *,
    cells: str | None = None,
    tag: str | None = None,
    with_local: bool = False,
    n: int | None = None,
    nodes: int | None = None,
    settings: Mapping[str, str] | None = None,
    force: bool = False,
) -> Exported:
    """Write the cells that run on ranks as a job: a script, and what launches it on ``target``.

    ``target``: one of :data:`jupyter_dtrain.jobs.TARGETS`, by its name. ``file``: the script, or what
    launches it; the script is beside it then. ``notebook``: a file; without it, the cells of this session that ended
    well, in the order of their first runs, each with its last text. ``cells``: only those with these numbers, such as
    ``"3-7,9"``; ``tag``: only those with this tag. ``with_local``: also the cells without ``%%distributed`` that define
    names which the job needs. ``n`` and ``nodes``: the size of the job; default that of the world. ``settings``: what
    the target must know besides. ``force``: replace files that exist.

    Raises :class:`BadRequest` for whatever cannot be exported, and then writes nothing.
    """
    if tag is not None and notebook is None:
        raise BadRequest(
            "A session does not know the tags of its cells: save the notebook, and name its file with --notebook."
        )
    found = read_session() if notebook is None else read_file(os.fspath(notebook))
    return export_notebook(
        found,
        target,
        file,
        cells=cells,
        tag=tag,
        with_local=with_local,
        ranks=n,
        nodes=nodes,
        settings=settings,
        force=force,
    )

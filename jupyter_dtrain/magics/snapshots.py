"""The verbs that save variables of all ranks, load them again, and list what was saved."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from IPython.core import display_functions

from jupyter_dtrain.client import snapshots as stored
from jupyter_dtrain.client.snapshots import find_snapshot, snapshot_folders, snapshots_folder
from jupyter_dtrain.core.snapshots import Snapshot, SnapshotAnswer, newest, remove
from jupyter_dtrain.core.world import quantity
from jupyter_dtrain.session import current
from jupyter_dtrain.view.labels import human
from jupyter_dtrain.view.tables import table

from .offers import paths, rank_names
from .parsing import MagicParser, Parsed, count, say_renamed, variable

KINDS: Final = {"state": "its state_dict, one for each rank", "value": "its value on each rank, pickled"}
"""What a snapshot keeps of a variable, by the part that saved it; another part is a framework, with full tensors."""
NAMED: Final = "name of the snapshot; NAME:NUMBER is an older one, DIR/NAME one in another folder"
"""What ``load`` and ``snapshots show`` take."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def save_arguments(parser: MagicParser) -> None:
    """Arguments of ``save``."""
    parser.add_argument("name", metavar="NAME", help="name of the snapshot", completer=snapshot_names)
    parser.add_argument(
        "names",
        nargs="*",
        type=variable,
        metavar="VAR",
        help="variables to save: models, optimizers or anything else",
        completer=rank_names,
    )
    parser.add_argument(
        "--every",
        metavar="N",
        help="save between two steps of the cells from now on: after every N steps, or every 30s, 10m, 2h; where no "
        "framework shows its steps, at the end of cells and by time",
    )
    parser.add_argument(
        "--keep",
        type=count,
        default=1,
        metavar="K",
        help="keep the newest K of this name, as NAME:1, NAME:2 … (default: 1)",
    )
    parser.add_argument(
        "--to",
        metavar="DIR",
        help="folder that gets it, which all hosts see; load it as DIR/NAME (default: $DTRAIN_SNAPSHOTS, or a folder "
        "of Jupyter's data)",
        completer=paths,
    )
    parser.add_argument(
        "--now",
        action="store_true",
        help="save between two steps of the loop that runs now, which goes on (default: after the cells sent before)",
    )
    parser.add_argument("--stop", action=_Stop, nargs=0, help=argparse.SUPPRESS)


class _Stop(argparse.Action):
    """``save NAME --stop``: the former name of ``snapshots stop NAME``."""

    def __call__(self, _parser: Any, namespace: Parsed, _values: Any, _option: str | None = None) -> None:
        """Have the verb stop that snapshot."""
        say_renamed("%distributed save NAME --stop", "%distributed snapshots stop NAME")
        namespace.run = stop


def save(args: Parsed) -> None:
    """``%distributed save NAME VAR … [--every N] [--keep K] [--to DIR] [--now]``."""
    session = current()
    answer = session.save(args.name, args.names, every=args.every, to=args.to, keep=args.keep, now=args.now)
    what = ", ".join(answer.names)
    name = args.name if args.to is None else str(Path(args.to) / args.name)
    if args.now:
        print(*answer.notes)
        return
    if args.every:
        end = f"%distributed snapshots stop {args.name}"
        print(f"Cells on all ranks save {what} as {name!r} from now on. {end} ends that.")
    else:
        print(f"Saved {what} as {name!r}: {human(answer.bytes)} in {answer.seconds:.1f} s.")
    for note in answer.notes:
        print(note)


def load_arguments(parser: MagicParser) -> None:
    """Arguments of ``load``."""
    parser.add_argument("name", metavar="NAME", help=NAMED, completer=snapshot_names)
    parser.add_argument(
        "names",
        nargs="*",
        type=variable,
        metavar="VAR",
        help="variables to load (default: all that were saved)",
        completer=rank_names,
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="load a snapshot that is not signed with your key, too: loading it can run its code",
    )


def load(args: Parsed) -> None:
    """``%distributed load NAME [VAR …]``."""
    show_loaded(args.name, current().load(args.name, args.names, trust=args.trust))


def show_loaded(name: str, answer: SnapshotAnswer) -> None:
    """Print what was loaded, and what waits for its object."""
    if answer.names:
        print(f"Loaded {', '.join(answer.names)} from {name!r}.")
    for note in answer.notes:
        print(note)
    if answer.waiting:
        them = ", ".join(answer.waiting)
        print(
            f"Not loaded yet, as the ranks have no such object: {them}. Make what is missing as before, then "
            f"%distributed load {name} {' '.join(answer.waiting)}"
        )


def snapshots_arguments(parser: MagicParser) -> None:
    """Arguments of ``snapshots``."""
    parser.add_argument(
        "--in",
        dest="folder",
        metavar="DIR",
        help="those in this folder (default: where they are saved without --to)",
        completer=paths,
    )


def snapshots(args: Parsed) -> None:
    """``%distributed snapshots [--in DIR]``."""
    found, folder = stored.snapshots(args.folder), args.folder or snapshots_folder()
    if not found:
        print(f"There is no snapshot in {folder}. %distributed save NAME VAR … makes one.")
        return
    headers = ["name", "size", "age", "ranks", "step", "variables", ""]
    rows = [_row(one) for one in found]
    kept = [place for place in range(len(headers)) if any(row[place] for row in rows)]
    publish: Any = display_functions.publish_display_data
    publish(
        table(
            f"Snapshots in {folder}",
            [headers[place] for place in kept],
            [[row[place] for place in kept] for row in rows],
        )
    )


def stop_arguments(parser: MagicParser) -> None:
    """Arguments of ``snapshots stop``."""
    parser.add_argument("name", metavar="NAME", help="name of the snapshot", completer=snapshot_names)


def stop(args: Parsed) -> None:
    """``%distributed snapshots stop NAME``."""
    gone = current().stop_saving(args.name)
    how = "is no longer saved" if gone else "was not being saved"
    print(f"Snapshot {args.name!r} {how} automatically.")


def delete_arguments(parser: MagicParser) -> None:
    """Arguments of ``snapshots delete``."""
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="names of the snapshots, with all that are kept of each; NAME:NUMBER is one of them",
        completer=snapshot_names,
    )


def delete(args: Parsed) -> None:
    """``%distributed snapshots delete NAME …``: all of them, or none where one does not exist."""
    folders = list(dict.fromkeys(folder for name in args.names for folder in snapshot_folders(name)))
    labels = [_label(folder) for folder in folders]
    freed = human(sum(file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file()))
    for folder in folders:
        remove(folder)
    print(f"Deleted {quantity(len(folders), 'snapshot')}: {', '.join(labels)} ({freed}).")


def _label(folder: Path) -> str:
    """The name of a snapshot, with its number where it is not the newest."""
    name, number = folder.parts[-2:]
    return name if folder == newest(folder.parents[1], name) else f"{name}:{number}"


def show_arguments(parser: MagicParser) -> None:
    """Arguments of ``snapshots show``."""
    parser.add_argument("name", metavar="NAME", help=NAMED, completer=snapshot_names)


def show(args: Parsed) -> None:
    """``%distributed snapshots show NAME``: reads the manifest alone."""
    one = find_snapshot(args.name)
    facts = [f"saved {age(one.age)} ago by world {one.world!r} with {quantity(one.ranks, 'rank')}"]
    if one.step is not None:
        facts.append(f"after step {one.step}")
    facts.append(f"{human(one.bytes)} in {one.folder}")
    if not one.ours:
        facts.append("not signed with your key")
    publish: Any = display_functions.publish_display_data
    rows = [[name, KINDS.get(part, part)] for name, part in one.held.items()]
    publish(table(f"Snapshot {one.reference!r}: {', '.join(facts)}", ["variable", "saved as"], rows))


def _row(one: Snapshot) -> list[str]:
    step = "" if one.step is None else str(one.step)
    trusted = "" if one.ours else "not signed with your key"
    return [one.reference, human(one.bytes), age(one.age), str(one.ranks), step, ", ".join(one.held), trusted]


def age(seconds: float) -> str:
    """A duration in its largest unit."""
    for unit, length in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def snapshot_names(_text: str) -> list[str]:
    """The names of the snapshots, for completion."""
    return [one.reference for one in stored.snapshots()]

"""The verbs that show stored runs: a list, one run, several side by side. They need no world."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from IPython.core import display_functions
from IPython.core.getipython import get_ipython

from jupyter_dtrain.core.errors import BadRequest, NoWorld, StoreFailed
from jupyter_dtrain.core.events import OUTCOMES, RUNNING
from jupyter_dtrain.core.run import Run
from jupyter_dtrain.core.world import quantity
from jupyter_dtrain.session import current

from .offers import stored_runs, stored_worlds
from .parsing import MagicParser, Parsed, count, run_numbers

KINDS = ("wandb", "mlflow", "tensorboard")
"""The tools whose runs can be imported."""

if TYPE_CHECKING:
    from jupyter_dtrain.store import Store, StoredRun

TOLD = 10
"""The most runs that one message names when they finished while no client followed them."""

_LOST, _DIED = "lost", "died"
"""An outcome, and what texts call it."""
_RUN_HELP = (
    "run: its number, such as 3 (of this notebook's world, or else the newest run 3); WORLD/RUN, such as world/3; or a "
    "variable that holds a Run (-o)"
)
_RUNS_HELP = f"{_RUN_HELP}; 1,3-5 names several"


def runs_arguments(parser: MagicParser) -> None:
    """Arguments of ``runs``."""
    parser.add_argument("-n", type=count, default=20, metavar="N", help="number of runs (default: 20)")
    parser.add_argument("--world", metavar="NAME", help="only runs of worlds with this name", completer=stored_worlds)
    parser.add_argument(
        "--outcome",
        type=lambda text: _DIED if text == _LOST else text,
        choices=[_DIED if one == _LOST else one for one in OUTCOMES],
        help="only runs that ended so, or that are running",
    )
    parser.add_argument("--search", metavar="WORDS", help="only runs whose name, note, tags or cell have these words")
    parser.add_argument("--tag", metavar="TAG", help="only runs with this tag")
    where = parser.add_argument(
        "--where",
        metavar="FILTER",
        default="",
        help="only runs that fit conditions on configuration, metrics and fields, such as "
        "'lr>1e-3 val_acc.max>0.9 group:sweep name~^cnn -word'",
    )
    parser.add_argument(
        "--columns",
        type=names,
        metavar="NAMES",
        default=[],
        help="further columns, such as lr,val_acc.max,metric:loss:at:val_acc:max",
    )
    sort = parser.add_argument(
        "--sort", type=names, metavar="NAMES", default=[], help="order, such as -val_acc.max,lr: - is descending"
    )
    for one in (where, sort):
        parser.takes_dashes(one)
    parser.add_argument("--group", metavar="NAME", default="", help="put runs together by group or a name such as lr")
    parser.add_argument("--all", action="store_true", help="all cells, not only those that train")


def names(text: str) -> list[str]:
    """The names in a list with commas."""
    return [one for one in (part.strip() for part in text.split(",")) if one]


def runs(args: Parsed) -> None:
    """``%distributed runs``."""
    from jupyter_dtrain.store import Store
    from jupyter_dtrain.store.filters import together

    outcome = _LOST if args.outcome == _DIED else args.outcome
    where = together(args.where, search=args.search, world=args.world, outcome=outcome, tag=args.tag)
    found = Store.open().select(
        where, sort=args.sort, columns=args.columns, group=args.group, everything=args.all, limit=args.n
    )
    if found.runs:
        _publish(found.bundle())
    elif any((args.outcome, args.search, args.tag, args.where)):
        print(f"No stored run matches these conditions. {found.hint}".strip())
    elif args.world is None and found.all:
        print("No training has been stored yet: %distributed runs --all lists all cells.")
    elif args.world is None:
        print("No run has been stored yet.")
    else:
        print(f"No run of a world named {args.world!r} is stored.")


def show_arguments(parser: MagicParser) -> None:
    """Arguments of ``show``."""
    parser.add_argument("run_name", metavar="RUN", help=_RUN_HELP, completer=stored_runs)


def show(args: Parsed) -> None:
    """``%distributed show RUN``: as the stored run shows itself."""
    from jupyter_dtrain.store import Store
    from jupyter_dtrain.store.run_page import about
    from jupyter_dtrain.view.stored import bundle, chart

    run = _find(Store.open(), args.run_name)
    picture = chart(run)
    if picture is not None:
        _publish(picture)
    _publish(bundle(run))
    told = about(run)
    if told is not None:
        _publish(told)


def compare_arguments(parser: MagicParser) -> None:
    """Arguments of ``compare``."""
    parser.add_argument("run_names", nargs="+", metavar="RUN", help=_RUNS_HELP, completer=stored_runs)


def compare(args: Parsed) -> None:
    """``%distributed compare RUN RUN ...``."""
    from jupyter_dtrain.store import Comparison, Store
    from jupyter_dtrain.view.made import differing

    store = Store.open()
    found = Comparison(_find_all(store, args.run_names))
    _publish(found.table)
    differences = found.differences
    shown = differing([run.label for run in found.runs], differences)
    if shown is not None:
        _publish(shown)
    try:
        curves = found.curves
    except ImportError:
        print("To see the curves, install matplotlib: pip install matplotlib")
        return
    if curves is not None:
        _publish(curves)
    elif sum(bool(run.metrics) for run in found.runs) > 1:
        print("These runs have no metric in common, so no curves are drawn.")


def report_arguments(parser: MagicParser) -> None:
    """Arguments of ``report``."""
    parser.add_argument("run_names", nargs="+", metavar="RUN", help=_RUNS_HELP, completer=stored_runs)
    parser.add_argument("file", metavar="FILE", help="the report: a .html, .md or .csv file")
    parser.add_argument("--notes", default="", metavar="WORDS", help="words that stand at its beginning")


def report(args: Parsed) -> None:
    """``%distributed report RUN … FILE``."""
    from jupyter_dtrain.store import Store
    from jupyter_dtrain.store.report import report as write_report
    from jupyter_dtrain.view.labels import human

    found = _find_all(Store.open(), args.run_names)
    place = write_report(found, args.file, notes=args.notes)
    print(f"Wrote a report on {quantity(len(found), 'run')} to {args.file} ({human(place.stat().st_size)}).")


def import_arguments(parser: MagicParser) -> None:
    """Arguments of ``runs import``."""
    parser.add_argument("path", metavar="PATH", help="a folder or file of W&B, MLflow or TensorBoard")
    parser.add_argument("--kind", choices=KINDS, help="of which tool, where the folder has runs of several")


def import_runs(args: Parsed) -> None:
    """``%distributed runs import PATH``."""
    from jupyter_dtrain.store.importing import bring_in
    from jupyter_dtrain.view.stored import listing

    found = bring_in(args.path, args.kind)
    for line in found.remarks:
        print(line)
    if found.runs:
        _publish(listing(found.runs))


def track_arguments(parser: MagicParser) -> None:
    """Arguments of ``track``."""
    parser.add_argument("run_name", metavar="RUN", help=_RUN_HELP, completer=stored_runs)
    parser.add_argument(
        "target",
        metavar="TRACKER[:TARGET]",
        help="such as wandb:PROJECT, mlflow:http://host:5000, trackio:PROJECT or tensorboard:DIR; with ?ranks behind "
        "it, also the points of each rank; ?offline behind W&B's project writes a folder for wandb sync",
    )


def track(args: Parsed) -> None:
    """``%distributed track RUN TARGET``."""
    from jupyter_dtrain.store import Store
    from jupyter_dtrain.trackers.target import read_target
    from jupyter_dtrain.trackers.tracking import track as send

    run = _find(Store.open(), args.run_name)
    send(run, args.target)
    title = read_target(args.target).kind.title
    if run.outcome == RUNNING:
        print(f"{title} has the points of run {run.label} so far; the rest follows until its end.")
    else:
        print(f"{title} has run {run.label}.")


def delete_arguments(parser: MagicParser) -> None:
    """Arguments of ``runs delete``."""
    parser.add_argument("run_names", nargs="+", metavar="RUN", help=_RUNS_HELP, completer=stored_runs)


def delete(args: Parsed) -> None:
    """``%distributed runs delete RUN …``: all of them, or none where one cannot be deleted.

    A number alone is one of this notebook's world: the newest run with that number, which ``show`` takes otherwise, may
    be another project's.
    """
    from jupyter_dtrain.store import Store

    store = Store.open()
    found = list({run.id: run for run in _find_all(store, args.run_names, here_only=True)}.values())
    for run in found:
        run.check_deletable()
    for run in found:
        run.delete()
    print(f"Deleted {quantity(len(found), 'run')}: {', '.join(run.label for run in found)}.")


def show_finished() -> None:
    """Print once which runs ended while their notebook was gone. Prints nothing where the store cannot be read."""
    from jupyter_dtrain.store import Store
    from jupyter_dtrain.view.labels import ending_of, took

    try:
        store = Store.open()
        away = store.finished_away()
        if not away:
            return
        for run in away[-TOLD:]:
            print(f"run {run.label} ended while you were away: {ending_of(run)}, {took(run.elapsed)}")
        if len(away) > TOLD:
            print(f"and {len(away) - TOLD} earlier runs: %distributed runs lists them")
        print(f"%distributed show {away[-1].label} shows what it printed and logged.")
        store.mark_seen(away)
    except StoreFailed:
        # The verbs above report it when a person asks for runs, and so does the next start of a world.
        return


def _find(store: Store, name: str, *, here_only: bool = False) -> StoredRun:
    """The stored run that ``name`` means: a name in the store, or a variable of the notebook that holds a Run.

    ``here_only``: refuse a number alone that no run of this notebook's world has.
    """
    shell = get_ipython()
    held = shell.user_ns.get(name) if shell is not None else None
    if isinstance(held, Run):
        return store.run_of(held)
    last, here = None, None
    with contextlib.suppress(NoWorld):
        session = current()
        last, here = session.last_run, session.id
    found = store.run(name, here)
    if here_only and name.isdecimal() and found.world_id != here:
        raise BadRequest(
            f"Nothing was deleted: no run {name} is of this notebook's world. Give the world, too, such as "
            f"{found.label}."
        )
    if last is not None and (last.world_id, last.number) == (found.world_id, found.number):
        # It may have ended a moment ago, and the store may not have its end yet.
        return store.run_of(last)
    return found


def _find_all(store: Store, names: list[str], *, here_only: bool = False) -> list[StoredRun]:
    """The stored runs that ``names`` mean, in their order; a list such as ``1,3-5`` is one of numbers."""
    found: list[StoredRun] = []
    for name in names:
        several = re.fullmatch(r"[\d,-]*[,-][\d,-]*", name)
        listed = [str(number) for number in run_numbers(name)] if several else [name]
        if not listed:
            raise BadRequest(f"{name!r} names no run. Use for example 3 or 1,3-5.")
        found += [_find(store, one, here_only=here_only) for one in listed]
    return found


def _publish(data: dict[str, Any]) -> None:
    publish: Any = display_functions.publish_display_data
    publish(data)

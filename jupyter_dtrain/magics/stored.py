"""The verbs that show stored runs: a list, one run, two runs side by side. They need no world."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from IPython.core import display_functions
from IPython.core.getipython import get_ipython

from jupyter_dtrain.core.errors import BadRequest, NoWorld, StoreFailed
from jupyter_dtrain.core.run import Run
from jupyter_dtrain.session import current

from .offers import stored_runs
from .parsing import MagicParser, Parsed, count

if TYPE_CHECKING:
    from jupyter_dtrain.store import Store, StoredRun

TOLD = 10
"""The most runs that one message names when they finished while no client followed them."""

_RUN_HELP = "run: 41 or #41, as in %%distributed runs; WORLD/RUN, such as world/3; or a variable that holds a Run (-o)"


def runs_arguments(parser: MagicParser) -> None:
    """Arguments of ``runs``."""
    parser.add_argument("-n", type=count, default=20, metavar="N", help="number of runs (default: 20)")
    parser.add_argument("--world", metavar="NAME", help="only runs of worlds with this name")


def runs(args: Parsed) -> None:
    """``%distributed runs``."""
    from jupyter_dtrain.store import Store
    from jupyter_dtrain.view.stored import listing

    found = Store.open().runs(args.n, args.world)
    if found:
        _publish(listing(found))
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
    from jupyter_dtrain.view.stored import bundle, chart

    run = _find(Store.open(), args.run_name)
    picture = chart(run)
    if picture is not None:
        _publish(picture)
    _publish(bundle(run))


def compare_arguments(parser: MagicParser) -> None:
    """Arguments of ``compare``."""
    parser.add_argument("first", metavar="A", help=_RUN_HELP, completer=stored_runs)
    parser.add_argument("second", metavar="B", help="run to compare it with", completer=stored_runs)


def compare(args: Parsed) -> None:
    """``%distributed compare A B``."""
    from jupyter_dtrain.store import Store
    from jupyter_dtrain.view.stored import comparison, overlay

    store = Store.open()
    first, second = _find(store, args.first), _find(store, args.second)
    if first.id == second.id:
        raise BadRequest(f"{args.first} and {args.second} are the same run: name two.")
    _publish(comparison(first, second))
    try:
        picture = overlay(first, second)
    except ImportError:
        print("To see the curves, install matplotlib: pip install matplotlib")
        return
    if picture is not None:
        _publish({"image/svg+xml": picture, "text/plain": f"<the metrics of #{first.id} and #{second.id}>"})
    elif first.metrics and second.metrics:
        print("They have no metric in common, so no curves are drawn.")


def tell_finished() -> None:
    """Print once which runs ended while their notebook was gone. Prints nothing where the store cannot be read."""
    from jupyter_dtrain.store import Store
    from jupyter_dtrain.view.labels import took

    try:
        store = Store.open()
        away = store.finished_away()
        if not away:
            return
        for run in away[-TOLD:]:
            print(
                f"run #{run.id} (world {run.world!r}) finished while you were away: {run.outcome}, {took(run.elapsed)}"
            )
        if len(away) > TOLD:
            print(f"and {len(away) - TOLD} earlier runs: %distributed runs lists them")
        print(f"%distributed show {away[-1].id} shows what it printed and logged.")
        store.mark_seen(away)
    except StoreFailed:
        # The verbs above report it when a person asks for runs, and so does the next start of a world.
        return


def _find(store: Store, name: str) -> StoredRun:
    """The stored run that ``name`` means: a name in the store, or a variable of the notebook that holds a Run."""
    shell = get_ipython()
    held = shell.user_ns.get(name) if shell is not None else None
    if isinstance(held, Run):
        return store.run_of(held)
    found = store.run(name)
    with contextlib.suppress(NoWorld):
        last = current().last_run
        if last is not None and (last.world_id, last.number) == (found.world_id, found.number):
            # It may have ended a moment ago, and the store may not have its end yet.
            return store.run_of(last)
    return found


def _publish(data: dict[str, Any]) -> None:
    publish: Any = display_functions.publish_display_data
    publish(data)

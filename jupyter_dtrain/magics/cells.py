"""Cells and scripts on the ranks: ``%%distributed``, ``%%rank``, ``%distributed run`` and ``%%speedup``."""

from __future__ import annotations

import argparse
from functools import lru_cache
from typing import Any

import msgspec
from IPython.core import display_functions
from IPython.core.getipython import get_ipython

from jupyter_dtrain.client.cells import check_syntax, current_cell, script_cell, script_name
from jupyter_dtrain.client.resuming import NONE
from jupyter_dtrain.core.errors import BadRequest, DtrainError, NoWorld
from jupyter_dtrain.core.gpus import count_gpus
from jupyter_dtrain.core.run import Run
from jupyter_dtrain.core.world import parse_ranks, quantity
from jupyter_dtrain.launch.options import check
from jupyter_dtrain.scaling import Speedup, speedup
from jupyter_dtrain.session import Session, current, open_sessions
from jupyter_dtrain.store import Store
from jupyter_dtrain.wire.values import pickle_values

from .offers import notebook_names, rank_names, scripts, some_ranks
from .parsing import MagicParser, Parsed, count, names, run_name, run_numbers, seconds, variable
from .worlds import (
    FIRST,
    ProgressLine,
    check_running,
    first_cell_arguments,
    start_arguments,
    start_options,
    start_world,
)


def run_cell(args: Parsed, cell: str, namespace: dict[str, Any]) -> None:
    """Run ``cell`` with ``args``, which :func:`cell_arguments` defines. ``namespace``: the notebook's."""
    if not cell.strip().strip("#"):
        raise BadRequest("The cell is empty: write the code for the ranks below the first line.")
    if args.pull and args.no_wait:
        raise BadRequest("--pull must wait for the end of the cell: leave out --no-wait, or pull in a later cell.")
    # The session checks as well, but a cell that cannot run must not start a world.
    check_syntax(cell, current_cell(cell).above)
    inputs = _inputs(args.inputs, namespace)
    held = namespace.get(args.resume)
    resume = f"{held.world_id}/{held.number}" if isinstance(held, Run) else args.resume
    if resume.strip().lower() not in ("", NONE):
        Store.open().run(resume)
    session = _session(args.ranks, inputs, start_options(args, FIRST))
    before = session.last_run
    usual = msgspec.structs.asdict(session.request.cells)
    said = {name: getattr(args, name) for name in usual if getattr(args, name) is not None}
    options = {name: value for name, value in (usual | said).items() if value is not None}
    try:
        session.run(
            cell,
            args.ranks,
            wait=not args.no_wait,
            inputs=inputs,
            **options,
            record_memory=args.record_memory,
            ring=args.ring,
            name=args.run_name,
            group=args.group,
            resume=resume,
            elastic=args.elastic,
            replay=run_numbers(args.replay),
        )
    finally:
        run = session.last_run
        if args.output and run is not before:
            namespace[args.output] = run
        if args.record_memory and not args.no_wait and run is not None and run is not before:
            _show_record(session, run)
    if args.pull:
        namespace.update(session.pull_many(args.pull, args.ranks))


def _show_record(session: Session, run: Run) -> None:
    """Show the memory of the ranks over ``run``; the cell ends as it does without that."""
    try:
        found = session.memory_record(run.ranks, run.number)
    except DtrainError as error:
        print(f"The record of its memory is missing. {error}")
    else:
        publish: Any = display_functions.publish_display_data
        publish(found._repr_mimebundle_())


def _inputs(wanted: list[str], namespace: dict[str, Any]) -> dict[str, Any]:
    missing = [name for name in wanted if name not in namespace]
    if missing:
        raise BadRequest(f"-i cannot send {', '.join(missing)}: the notebook has no such variable.")
    return {name: namespace[name] for name in wanted}


def _session(ranks: str | None, inputs: dict[str, Any], options: dict[str, Any]) -> Session:
    """The current session, or that of a new world with ``options``. A cell that no world would run starts none.

    A cell without options after a failed start, or after the loss of a world, starts none either: the user asked for
    another world than a default one, and perhaps on other machines. Raises :class:`BadRequest` where the world that
    runs has other options.
    """
    try:
        session = current()
    except NoWorld:
        if open_sessions.failure and not options:
            raise
        size = check(options).share_gpus().place().size
        parse_ranks(ranks, size)
        pickle_values(inputs)
        print(f"No world is running: starting one with {quantity(size, 'rank')}{'' if options else _how()}.")
        return start_world(**options)
    if options:
        check_running(session, options, only=True)
    return session


def _how() -> str:
    """Why a default world has its size, and how to choose another one."""
    why = "one for each GPU" if count_gpus() else "as there is no GPU"
    return f", {why} (to choose, begin the first cell with %%distributed -n 4, or other options of %distributed start)"


@lru_cache(1)
def cell_parser() -> MagicParser:
    """The parser of ``%%distributed``, made once: that takes most of a millisecond."""
    parser = MagicParser(
        prog="%%distributed",
        description="Run the cell on the ranks of the current world. If there is none, start one:\nwith the options of "
        "%distributed start, which the first cell takes beside these (%distributed start -h lists them;\n"
        "--name is the run's here), or by default one rank for each GPU, else two.",
        epilog="RANKS are numbers and ranges: 0   0,2   1-3   -1 (the last)   all",
    )
    ranks_argument(parser)
    cell_arguments(parser)
    first_cell_arguments(parser)
    return parser


@lru_cache(1)
def rank_parser() -> MagicParser:
    """The parser of ``%%rank``, made once, too."""
    parser = MagicParser(
        prog="%%rank",
        description="Run the cell on some ranks: the short form of %%distributed -r RANKS.",
        epilog="RANKS are numbers and ranges: 0   0,2   1-3   -1 (the last)   all",
    )
    parser.add_argument("ranks", metavar="RANKS", help="ranks that run the cell", completer=some_ranks)
    cell_arguments(parser)
    return parser


def local_parser() -> MagicParser:
    """The parser of ``%%local``."""
    return MagicParser(
        prog="%%local",
        description="Keep the cell in the notebook while auto mode (%distributed auto on) sends every plain cell to "
        "the ranks.",
    )


def run_locally(_args: Parsed, cell: str, _namespace: dict[str, Any]) -> None:
    """Run ``cell`` in the notebook. As a rule the line is gone before IPython looks for a magic of that name."""
    shell: Any = get_ipython()
    shell.run_cell(cell).raise_error()


def ranks_argument(parser: MagicParser, purpose: str = "ranks that run the code") -> None:
    """Add the argument ``-r RANKS``. ``purpose`` is the beginning of its help."""
    parser.add_argument("-r", "--ranks", metavar="RANKS", help=f"{purpose} (default: all)", completer=some_ranks)


def cell_arguments(parser: MagicParser) -> None:
    """Arguments that say how a cell runs."""
    parser.add_argument(
        "-i",
        "--inputs",
        type=names,
        default=[],
        metavar="NAMES",
        help="variables of the notebook to send to the ranks first, such as lr,cfg",
        completer=notebook_names,
    )
    parser.add_argument(
        "-o", "--output", type=variable, metavar="NAME", help="variable of the notebook that gets the Run"
    )
    parser.add_argument(
        "--pull",
        type=names,
        default=[],
        metavar="NAMES",
        help="variables of the ranks to bring back afterwards, as {rank: value}",
        completer=rank_names,
    )
    name = parser.add_argument(
        "--name",
        dest="run_name",
        type=run_name,
        default="",
        metavar="NAME",
        help="name of the run in lists and charts (default: the first telling line of the cell)",
    )
    parser.formerly(name, "--run")
    parser.add_argument(
        "--group",
        type=run_name,
        default="",
        metavar="NAME",
        help="name that this run has in common with others, such as those of a sweep",
    )
    parser.add_argument(
        "--resume",
        default="",
        metavar="RUN",
        help="go on with the training of this run, as WORLD/RUN, its number or a variable of -o: the metrics go on "
        "from its last step; none begins anew (default: the run that trained the snapshot that was loaded last, until "
        "a cell has trained)",
    )
    parser.add_argument("--no-wait", action="store_true", help="return at once; later cells wait for this one in order")
    parser.add_argument(
        "--metrics",
        action=argparse.BooleanOptionalAction,
        help="record metrics from the frameworks' calls, or do not (default: record)",
    )
    parser.add_argument(
        "--grad-norm",
        action=argparse.BooleanOptionalAction,
        help="also record the norm of the gradients at every step (default: do not)",
    )
    parser.add_argument(
        "--step-time",
        action=argparse.BooleanOptionalAction,
        help="measure where the time of a step goes, or do not (default: measure)",
    )
    parser.add_argument(
        "--check",
        type=variable,
        metavar="MODEL",
        help="compare this model over all ranks while the cell trains, and mark the first step at which ranks differ",
        completer=rank_names,
    )
    every = parser.add_argument(
        "--check-every", type=count, metavar="N", help="with --check: after every N steps (default: 10)"
    )
    parser.formerly(every, "--every")
    parser.add_argument(
        "--elastic",
        action="store_true",
        help="replace a rank that dies while the others go on, and have the new one run this cell too (torchft)",
    )
    parser.add_argument(
        "--replay",
        default="",
        metavar="RUNS",
        help="with --elastic: runs whose cells a new rank runs first, such as 1,3-5 or variables of -o",
    )
    parser.add_argument(
        "--record-memory",
        action="store_true",
        help="record the memory of each rank over the cell, and show its peak, by line of the cell, and its course",
    )
    parser.add_argument(
        "--ring",
        default="",
        metavar="K/STEPS",
        help="keep the last K states of the training in host memory, one every STEPS steps of the optimizer, for "
        "%%distributed rewind",
    )
    parser.add_argument("--timeout", type=seconds, metavar="S", help="interrupt the cell after S seconds")


def exec_arguments(parser: MagicParser) -> None:
    """Arguments of ``exec``."""
    ranks_argument(parser)
    cell_arguments(parser)
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="run in a fresh namespace and discard it (default: the script's names stay on the ranks)",
    )
    parser.add_argument(
        "-m", dest="module", action="store_true", help="run a module instead, such as package.train, as python -m does"
    )
    parser.add_argument(
        "script", metavar="SCRIPT", help="Python file to run, or with -m the name of a module", completer=scripts
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script: the rest of the line"
    )


def exec_script(args: Parsed) -> None:
    """``%distributed run SCRIPT …``."""
    shell = get_ipython()
    if shell is None:
        raise BadRequest(
            "%distributed run needs a notebook or IPython: in a Python program, call Session.run_script()."
        )
    # The parser put a space before numbers below 0, so that argparse did not take them for options.
    arguments = [word[1:] if word[:2] == " -" and word[2:3].isdigit() else word for word in args.arguments]
    args.run_name = args.run_name or script_name(args.script, arguments)
    run_cell(args, script_cell(args.script, arguments, module=args.module, fresh=args.fresh), shell.user_ns)


def speedup_parser() -> MagicParser:
    """The parser of ``%%speedup``."""
    parser = MagicParser(
        prog="%%speedup",
        description=(
            "Run the cell in a world of each size, which is started for it, and compare the times. "
            "The notebook's world and variables are left alone.\nThe line takes the options of %distributed start, too "
            "(%distributed start -h lists them)."
        ),
        epilog="The ranks get the variable batch_size where --global-batch or --per-rank-batch is given.",
    )
    parser.add_argument("sizes", nargs="+", type=count, metavar="N", help="numbers of ranks, such as 1 2 4")
    batch = parser.add_mutually_exclusive_group()
    batch.add_argument("--global-batch", type=count, metavar="N", help="samples of a step of all ranks together")
    batch.add_argument("--per-rank-batch", type=count, metavar="N", help="samples of a step of each rank")
    parser.add_argument("--repeats", type=count, default=3, metavar="N", help="measured runs at each size (default: 3)")
    parser.add_argument("--warmup", type=whole, default=1, metavar="N", help="runs before these (default: 1)")
    parser.add_argument("--timeout", type=seconds, metavar="S", help="interrupt a run after S seconds")
    parser.add_argument(
        "--start",
        default="",
        metavar="OPTIONS",
        help="options of %%distributed start in quotes, such as '--hosts a:4,b:4'; those beside it win",
    )
    parser.add_argument(
        "-o", "--output", type=variable, metavar="NAME", help="variable of the notebook that gets the measurements"
    )
    first_cell_arguments(parser, without=("n", "name"))
    return parser


def whole(text: str) -> int:
    """A whole number from 0 on."""
    return 0 if text.strip() == "0" else count(text)


def measure(args: Parsed, cell: str, namespace: dict[str, Any]) -> None:
    """Run ``%%speedup`` with ``args``. ``namespace``: the notebook's."""
    options = _start_options(args.start) | start_options(args, FIRST)
    line = ProgressLine()
    found: list[Speedup] = []

    def show(so_far: Speedup) -> None:
        found[:] = [so_far]
        line.show(so_far._repr_mimebundle_())

    try:
        speedup(
            cell,
            args.sizes,
            global_batch=args.global_batch,
            per_rank_batch=args.per_rank_batch,
            repeats=args.repeats,
            warmup=args.warmup,
            timeout=args.timeout,
            start=options,
            progress=show,
        )
    finally:
        line.end()
        if args.output and found:
            namespace[args.output] = found[0]
    if found[0].interrupted:
        raise KeyboardInterrupt
    if not found[0].measured:
        raise BadRequest("The cell could not be measured at any size.")


def _start_options(words: str) -> dict[str, Any]:
    parser = MagicParser(prog="--start")
    start_arguments(parser)
    return start_options(parser.parse_line(words))

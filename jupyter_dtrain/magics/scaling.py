"""``%%speedup``: the cell at several sizes of a world, as a chart and a table."""

from __future__ import annotations

from typing import Any

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.scaling import Speedup, speedup

from .parsing import MagicParser, Parsed, count, seconds, variable
from .worlds import ProgressLine, start_arguments


def speedup_parser() -> MagicParser:
    """The parser of ``%%speedup``."""
    parser = MagicParser(
        prog="%%speedup",
        description=(
            "Run the cell in a world of each size, which is started for it, and compare the times. "
            "The notebook's world and variables are left alone."
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
        "--start", default="", metavar="OPTIONS", help="options of %%%%distributed start, such as '--hosts a:4,b:4'"
    )
    parser.add_argument(
        "-o", "--output", type=variable, metavar="NAME", help="variable of the notebook that gets the measurements"
    )
    return parser


def whole(text: str) -> int:
    """A whole number from 0 on."""
    return 0 if text.strip() == "0" else count(text)


def measure(args: Parsed, cell: str, namespace: dict[str, Any]) -> None:
    """Run ``%%speedup`` with ``args``. ``namespace``: the notebook's."""
    options = _start_options(args.start)
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
    return vars(parser.parse_line(words))

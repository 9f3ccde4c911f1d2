"""The verbs that steer the loop of the cell that runs now, and ``%%between``."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jupyter_dtrain.client.steering import PATIENCE
from jupyter_dtrain.session import current

from .parsing import MagicParser, Parsed, count, seconds


def _run_argument(parser: MagicParser) -> None:
    parser.add_argument(
        "--run",
        dest="run_number",
        type=count,
        metavar="N",
        help="number of the run, where several go on (default: the one that goes on)",
    )


def _timeout_argument(parser: MagicParser) -> None:
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=PATIENCE,
        metavar="S",
        help=f"seconds in which all ranks must make a step (default: {PATIENCE:g})",
    )


def loop_arguments(parser: MagicParser) -> None:
    """Arguments of ``pause`` and ``undo``."""
    _run_argument(parser)
    _timeout_argument(parser)


def resume_arguments(parser: MagicParser) -> None:
    """Arguments of ``resume``."""
    _run_argument(parser)


def _strict_argument(parser: MagicParser) -> None:
    parser.add_argument(
        "--strict", action="store_true", help="end the cell on all ranks if the code raises on one (default: go on)"
    )


def between_arguments(parser: MagicParser) -> None:
    """Arguments of ``between``."""
    _strict_argument(parser)
    loop_arguments(parser)
    code = parser.add_argument("code", metavar="CODE", help="code to run, as one line; %%%%between takes a cell of it")
    parser.as_typed(code)


@lru_cache(1)
def between_parser() -> MagicParser:
    """The parser of ``%%between``."""
    parser = MagicParser(
        prog="%%between",
        description="Run the cell on all ranks between two steps of the loop that runs now, which goes on then. The "
        "cell has the\nnames of the loop's function, and what it changes there stays changed.",
    )
    _strict_argument(parser)
    loop_arguments(parser)
    return parser


def between(args: Parsed) -> None:
    """``%distributed between CODE``."""
    print(current().loop.between(args.code, strict=args.strict, run=args.run_number, timeout=args.timeout))


def between_cell(args: Parsed, cell: str, _namespace: dict[str, Any]) -> None:
    """Run ``%%between`` with ``args``."""
    args.code = cell
    between(args)


def set_arguments(parser: MagicParser) -> None:
    """Arguments of ``set``."""
    loop_arguments(parser)
    values = parser.add_argument(
        "values", metavar="PATH=VALUE", help="values to set, such as opt.lr=1e-4 model.dropout.p=0.1"
    )
    parser.as_typed(values)


def set_values(args: Parsed) -> None:
    """``%distributed set PATH=VALUE …``."""
    print(current().loop.set(args.values, run=args.run_number, timeout=args.timeout))


def undo(args: Parsed) -> None:
    """``%distributed undo``."""
    print(current().loop.undo(run=args.run_number, timeout=args.timeout))


def pause(args: Parsed) -> None:
    """``%distributed pause``."""
    print(current().loop.pause(run=args.run_number, timeout=args.timeout))


def resume(args: Parsed) -> None:
    """``%distributed resume``."""
    print(current().loop.resume(run=args.run_number))


def stop_arguments(parser: MagicParser) -> None:
    """Arguments of ``stop-after``."""
    loop_arguments(parser)
    parser.add_argument(
        "step",
        nargs="?",
        type=count,
        default=0,
        metavar="STEP",
        help="step after which the loop ends, counted from the beginning of the cell (default: its next one)",
    )


def stop_after(args: Parsed) -> None:
    """``%distributed stop-after [STEP]``."""
    print(current().loop.stop_after(args.step, run=args.run_number, timeout=args.timeout))


def until_arguments(parser: MagicParser) -> None:
    """Arguments of ``until-differs``."""
    loop_arguments(parser)
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.0,
        metavar="T",
        help="how far apart the numbers of the ranks may lie (default: 0)",
    )
    expression = parser.add_argument("expression", metavar="EXPRESSION", help="a number, such as loss.item()")
    parser.as_typed(expression)


def until_differs(args: Parsed) -> None:
    """``%distributed until-differs [--tolerance T] EXPRESSION``."""
    loop = current().loop
    print(loop.until_differs(args.expression, args.tolerance, run=args.run_number, timeout=args.timeout))


def rewind_arguments(parser: MagicParser) -> None:
    """Arguments of ``rewind``."""
    loop_arguments(parser)
    parser.add_argument(
        "number", nargs="?", type=count, default=1, metavar="N", help="which state, 1 for the newest (default: 1)"
    )


def rewind(args: Parsed) -> None:
    """``%distributed rewind [N]``."""
    print(current().loop.rewind(args.number, run=args.run_number, timeout=args.timeout))


def step_arguments(parser: MagicParser) -> None:
    """Arguments of ``step``."""
    loop_arguments(parser)
    parser.add_argument("steps", nargs="?", type=count, default=1, metavar="N", help="steps to make (default: 1)")


def step(args: Parsed) -> None:
    """``%distributed step [N]``."""
    print(current().loop.step(args.steps, run=args.run_number, timeout=args.timeout))

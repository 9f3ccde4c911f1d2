"""DeepSpeed's verb of the magics: ``%distributed deepspeed-tune`` looks for the fastest way to train."""

from __future__ import annotations

import argparse
import pprint
from typing import Any

from IPython.core.getipython import get_ipython

from jupyter_dtrain.core.causes import DistributedInterrupt
from jupyter_dtrain.magics.offers import rank_names
from jupyter_dtrain.magics.parsing import MagicParser, Parsed, count, variable
from jupyter_dtrain.magics.table import Verb
from jupyter_dtrain.magics.worlds import ProgressLine
from jupyter_dtrain.session import current

from . import sweep
from .sweep import MICRO_BATCHES, STAGES, Tuning


def tune_arguments(parser: MagicParser) -> None:
    """Declare the arguments of ``%distributed deepspeed-tune``."""
    named: dict[str, Any] = {"type": variable, "metavar": "NAME", "completer": rank_names}
    parser.add_argument(
        "--model",
        required=True,
        help="function on the ranks that returns a fresh module, whose forward returns the loss",
        **named,
    )
    parser.add_argument(
        "--batch",
        required=True,
        help="function on the ranks that takes a number of samples and returns the arguments of one forward",
        **named,
    )
    parser.add_argument(
        "--config", help="dictionary on the ranks: DeepSpeed's configuration without stage and micro-batch", **named
    )
    parser.add_argument(
        "--stages", type=numbers, default=STAGES, metavar="N,N", help="ZeRO stages to measure (default: 0,1,2,3)"
    )
    parser.add_argument(
        "--micro-batches",
        type=numbers,
        default=MICRO_BATCHES,
        metavar="N,N",
        help="micro-batches to measure, in samples per rank (default: 1,2,4,8,16)",
    )
    parser.add_argument("--steps", type=count, default=5, metavar="N", help="number of steps to measure (default: 5)")
    parser.add_argument(
        "--warmup", type=int, default=2, metavar="N", help="number of steps before the measured ones (default: 2)"
    )
    parser.add_argument(
        "-o", "--output", type=variable, metavar="NAME", help="variable of the notebook that gets the table"
    )


def numbers(text: str) -> tuple[int, ...]:
    """``1,2,4`` as numbers from 0 on."""
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers, such as 1,2,4")
    return tuple(map(int, words))


def tune(args: Parsed) -> None:
    """Run ``%distributed deepspeed-tune``: show a table that grows, and in the end the best configuration."""
    session, line, shell = current(), ProgressLine(), get_ipython()
    try:
        tuning = sweep.tune(
            session,
            args.model,
            args.batch,
            stages=args.stages,
            micro_batches=args.micro_batches,
            config=args.config,
            steps=args.steps,
            warmup=args.warmup,
            progress=lambda so_far: line.show(so_far._repr_mimebundle_()),
        )
    finally:
        line.end()
    if args.output and shell is not None:
        shell.user_ns[args.output] = tuning
    print("\n".join(_conclusion(tuning)))  # noqa: T201 — a magic answers by printing
    if tuning.interrupted:
        run = session.last_run
        if run is None or run.outcome != "interrupted":
            raise KeyboardInterrupt  # Stop was pressed between two combinations
        raise DistributedInterrupt(run)


def _conclusion(tuning: Tuning) -> list[str]:
    lines = [*tuning.notes, *([f"The sweep ended early: {tuning.lost}"] if tuning.lost else [])]
    best = tuning.best
    if best is None:
        return [*lines, "No combination could be measured."]
    lines.append(f"The fastest is ZeRO {best.stage} with micro-batches of {best.micro_batch}:")
    return [*lines, f"config = {pprint.pformat(best.config, sort_dicts=False)}"]


VERBS = (
    Verb(
        "deepspeed-tune",
        "runs and jobs",
        "measure DeepSpeed's ZeRO stages and micro-batches",
        tune_arguments,
        tune,
        "Session.tune",
        formerly="tune",
    ),
)

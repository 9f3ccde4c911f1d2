"""Write ``docs/failures.md`` from the failure table, ``jupyter_dtrain/core/failures.py``.

python scripts/failures_page.py            write it
python scripts/failures_page.py --check    exit with 1 if it is not what the table says
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from jupyter_dtrain.core.failures import AFTER, INTERRUPT, SITUATIONS, Situation, Step
from jupyter_dtrain.core.settings import Settings

PAGE = Path(__file__).resolve().parent.parent / "docs" / "failures.md"

HEAD = """<!-- Made by scripts/failures_page.py from jupyter_dtrain/core/failures.py: change that. -->

# What happens when something fails

The steward of a world and the watches of its ranks do all of this whether or not a notebook is there. Rank 0 is no
exception anywhere. Times are counted from when the situation comes about; names are settings (`JUPYTER_DTRAIN_…`), in
brackets with their defaults. `make faults` plays every row, see [CONTRIBUTING](../CONTRIBUTING.md).

"""

BESIDE = """
## Beside these

* **Where nobody waits nobody is freed**: a rank that computes goes on to its end when another one has failed.
* **A start that fails** leaves nothing, and says why, with what the logs say. One in which nothing moves for 6 s, or
  that loses a port to another program, is begun again, up to three times.
* **An announcement that is lost** is asked for: events are numbered, and kept by the rank before they are sent.
* **The store or TensorBoard's files cannot be written**: said once in a cell, tried again every 2 s; what the ranks'
  logs hold is stored then. A store that is damaged, or of a newer version, is left as it is; cells go on.
* **Jupyter's data folder is read-only**: the ranks' logs end with the world, and nothing is stored; both are said.
* **Libraries on PyTorch** wait in its groups, and are released with them: that a rank raises in the midst of a training
  is played in Lightning, Accelerate, Transformers, DeepSpeed (ZeRO 2 and 3) and FSDP2, too; the next cell trains.
* **What the framework cannot make again** after a release is named in the next cell, with the line that does it.
"""


def main() -> int:
    """Write the page, or compare it."""
    text = page()
    if sys.argv[1:] == ["--check"]:
        return int(PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


def page() -> str:
    """The whole page."""
    rows = "\n".join(line for row in SITUATIONS for line in situation(row))
    words = [
        "## Stop, `%distributed interrupt`, `--timeout`\n",
        "Until all ranks have ended the cell, counted from the interrupt:\n",
        *map(step, INTERRUPT),
        "\nA second press takes the steps up to the exception at once and ends the cell a second later; a third ends",
        "it. No cell outlasts 10 s of this, whatever it does. A rank that is left behind is still worked on.\n",
        "## The situations\n",
    ]
    return HEAD + "\n".join(words) + "\n" + rows + BESIDE


def situation(row: Situation) -> Iterator[str]:
    """One of them."""
    yield f"### {row.what.rstrip('.')}\n"
    yield f"* noticed{within(row.noticed)}: {who(row.noticed)} {row.noticed.does}"
    for one in row.steps:
        yield step(one)
    if row.ends is None:
        yield "* the cell goes on: it ends by Stop, or when what holds it ends"
    else:
        yield f"* the cell has ended after at most {row.ends}, as **{row.outcome}**"
    if row.words:
        yield f"* you read: {'; '.join(f'“{shown(words)}”' for words in row.words)}"
    yield f"* kept: {row.kept}"
    yield f"* then {AFTER[row.after]}"
    if row.interrupted != row.after:
        yield f"* after Stop {AFTER[row.interrupted]}"
    yield ""


def step(one: Step) -> str:
    """A step, as an item of a list."""
    return f"* {one.at}: {who(one)} {one.does}"


def who(one: Step) -> str:
    """Who does it, as the beginning of a sentence."""
    return one.who if one.who in ("Linux", "nobody", "every agent") else f"the {one.who}"


def within(one: Step) -> str:
    """Until when, unless that says nothing."""
    return f" within {one.at}" if one.at.of(Settings()) else ""


def shown(words: str) -> str:
    """The words with examples for what stands in brackets."""
    examples = {"rank": "1", "last": "3", "call": "all_reduce", "were": "were", "hang": "30"}
    return words.format(**examples)


if __name__ == "__main__":
    sys.exit(main())

"""Write ``docs/failures.md`` from the failure table: ``jupyter_dtrain/core/failures.py`` and the frameworks' rows.

python scripts/failures_page.py            write it
python scripts/failures_page.py --check    exit with 1 if it is not what the table says
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

from jupyter_dtrain.core.declarations import declarations
from jupyter_dtrain.core.failures import AFTER, INTERRUPT, SITUATIONS, Situation, Step, situations
from jupyter_dtrain.core.settings import Settings

PAGE = Path(__file__).resolve().parent.parent / "docs" / "failures.md"

HEAD = """<!-- Made by scripts/failures_page.py from core/failures.py and frameworks/*/declared.py: change those. -->

# What happens when something fails

A world has a main process, on each host a parent process of the ranks there, and in each rank a monitor, which is a
thread beside the cell. All act whether or not a notebook is open, and rank 0 is no exception. Times count from the
moment when the situation arises. Names of times, such as `release_grace`, are settings (`JUPYTER_DTRAIN_…`), with their
defaults in brackets. `make faults` plays every row (see `CONTRIBUTING.md`).

"""

BESIDE = """
## Replacing ranks: `%distributed replace`, `--auto-replace`, the button in Attention

The fault suite replaces the ranks after every play in which a rank has died on this machine, and compares it again.

* **The main process asks the living ranks** whether they are idle. One that works on a cell, or does not answer within
  3 s, ends the replacement. So does what makes it impossible: no rank is left, `mpiexec` has ended, MPI has no ULFM,
  the parent process of the ranks of the dead rank's host has ended, or `OMPI_MCA_btl` leaves out tcp. The error says
  which, and names `%distributed restart`.
* **On other hosts** a dead rank is replaced on its own host. While its last output is on its way, a replacement asks
  you to try again.
* **No cell begins** until the replacement has ended: the world would change under it. The error says so. A cell that
  was on its way when the ranks said that they are idle ends the replacement, and keeps the world that it has.
* **The living ranks form the world again** with a new process for each dead rank. They take it only when every rank has
  come so far, so they all have it or none has.
* **A rank that dies meanwhile**, a new one or another, ends the try, and the main process kills the new processes. A
  try in which no rank makes a step for `start_timeout` ends in the same way. The next try replaces all ranks that are
  dead by then. After three tries the replacement fails. The living ranks keep their variables, and a later one may
  work.
* **`mpiexec` dies meanwhile**: the replacement ends within 0.5 s.
* **A resize** (`%distributed resize`) is a replacement with another number of ranks. First it ends the ranks that the
  world is to lose, and waits up to 15 s for that. It ends none of them if the ranks have roles, or if each rank holds
  only a part of a model or array; the error says so. If it fails later, the ranks that it has ended are dead, and
  `%distributed replace` replaces them. On other hosts, a resize to more ranks is refused before it changes anything.
* **A resize that drops ranks** (`--drop`) gives those above them other numbers. The ranks take the new numbers together
  with the new world, so a resize that fails leaves all numbers as they were. A rank that dies meanwhile is reported
  under the number that it has in the world as it is then.
* **A loop is paused, or an act on it goes on**: a replacement and a resize are refused, as while any cell runs, and the
  pause stays. `%distributed restart` ends the cell and the act, whose error says that the ranks have ended.
* **A cell that fails on a new rank** (`--replay`), or a variable that cannot be copied, is an error of that cell. The
  world is whole by then.

## A cell with `--elastic` (torchft)

The rows above have the death of one rank, and of the one that replaces it; `make faults` plays them in a loop that
waits for nobody. `tests/frameworks/test_torchft.py` plays this section, but for its last line. It holds where the cell
waits for all ranks by torchft alone; the session refuses any other collective in the cell's text before it sends it.

* **A rank dies**: the others drop the step in which it died, and train on after 0.7 s; after up to 4 s if two ranks die
  within a second. The session has the dead rank replaced, as above, while they train. The new rank runs the set-up
  cells and joins the training at the others' step. The cell raises nothing, and lists show its run as **ok, rank 1 was
  replaced**.
* **The replacement fails**, or a rank dies three times within 60 s of its start: the cell says so and goes on without
  that rank. A later death begins another replacement. If the others end well, the cell raises nothing: **ok, rank 1 was
  lost**.
* **A set-up cell fails on the new rank**: the cell says which and why, and goes on without that rank.
* **The cell ends on the others before the new rank has joined**: the new rank does not begin, as it would train alone
  from step 0. The cell names the line that copies what it lacks, and is **ok, rank 1 was lost**.
* **Stop** ends the cell on all ranks. A replacement that has begun ends by itself.
* **The notebook's kernel dies**: the living ranks train on, and a rank that dies then is not replaced by itself. The
  store shows the run as **ok, rank 1 was lost**.

## A profile of a running loop: `%distributed profile`, and the button of a panel

No failure of a profile ends the loop. `make faults` plays each line but the last, which the server's tests play.

* **The profiler raises on a rank**: the trace has the other ranks, and a note says what it raised.
* **A rank dies while it is profiled**: its cell ends as any cell does that loses a rank. The trace has the steps of the
  others, where they have made any.
* **The file cannot be written**, as on a full disk: the verb says why, and the loop goes on.
* **Stop in the middle** ends the cell and the profile; the trace has the steps until then.
* **A rank is replaced in the middle**: the profile has ended by then, as the cell has. In an elastic run the cell goes
  on: the trace has the other ranks, and a note names the one that was replaced.
* **The process that makes a button's profile ends**, as where memory is short: the panel says so. The ranks drop what
  they have recorded after 15 s, and the server goes on.

## Beside these

* **A rank that waits for no other rank is never released.** When another rank fails, it computes on to its end.
* **A start that fails** leaves nothing behind. It gives the reason, with what the logs say. When nothing moves for 6 s,
  the main process launches the ranks again, with at most three launches.
* **A lost announcement loses no event.** Events are numbered, the rank keeps each one before it sends it, and readers
  ask for those that they miss.
* **When the store or TensorBoard's files cannot be written**, the cell says so once. The main process tries again every
  2 s and then stores what the ranks' logs hold. It does not touch a store that is damaged or that a newer version
  wrote; cells still run.
* **When Jupyter's data folder is read-only**, the ranks' logs are deleted when the world ends, and no run is stored.
  The notebook says both.
* **Libraries on PyTorch** wait in PyTorch's groups and are released with them. The fault suite also makes a rank raise
  in the middle of a training in Lightning, Accelerate, Transformers, DeepSpeed (ZeRO 2 and 3) and FSDP2; the next cell
  trains.
* **When a framework cannot make something again** after a release, the next cell names it, with the line that does.
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
    words = [
        "## Stop, `%distributed interrupt`, `--timeout`\n",
        "Each step below comes only if some rank has not ended the cell by then. Times count from the interrupt.\n",
        *map(step, INTERRUPT),
        "\nA second press takes the steps up to the exception at once, and the cell ends a second later. A third press",
        "ends the cell. No cell outlasts 10 s of this, whatever it does. The client keeps interrupting the ranks that",
        "are left behind.\n",
        "## In every world\n",
        *(line for row in SITUATIONS for line in situation(row)),
    ]
    for framework in declarations():
        if rows := [row for row in situations() if row.framework == framework.name]:
            words += [
                f"## In {framework.title or framework.name}\n",
                *(line for row in rows for line in situation(row)),
            ]
    return HEAD + "\n".join(words) + BESIDE


def situation(row: Situation) -> Iterator[str]:
    """One of them."""
    yield f"### {row.what.rstrip('.')}\n"
    yield from map(step, (row.noticed, *row.steps))
    if row.ends is None:
        yield item("The cell goes on until its code ends, or until you press Stop.")
    elif row.outcome == "ok":
        yield item("The cell goes on, and ends as **ok**.")
    else:
        yield item(f"The cell ends as **{row.outcome}** after {row.ends} at the latest.")
    if row.words:
        yield item(f"You read {read(row.words)}")
    yield item(row.kept)
    yield item(f"Afterwards, {AFTER[row.after]}")
    if row.interrupted != row.after:
        yield item(f"After Stop instead, {AFTER[row.interrupted]}")
    yield ""


def step(one: Step) -> str:
    """A step, as an item of a list."""
    if not one.at.of(Settings()):
        return item(one.does[0].upper() + one.does[1:])
    return item(f"{'Within' if one.latest else 'After'} {one.at}, {one.does}")


def item(sentences: str) -> str:
    """An item of a list, in lines of 120 characters."""
    return fill(sentences, 120, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False)


def read(parts: tuple[str, ...]) -> str:
    """The end of a sentence that quotes ``parts`` of what the user reads."""
    *first, last = [f"“{shown(part)}”" for part in parts]
    quoted = f"{', '.join(first)} and {last}" if first else last
    return quoted if quoted.endswith(".”") else f"{quoted}."


def shown(words: str) -> str:
    """The words with examples for what stands in brackets, and dots where the line goes on."""
    examples = {"rank": "1", "last": "3", "call": "all_reduce", "were": "were", "hang": "30"}
    text = words.format(**examples)
    return f"{text}…" if text.endswith(" ") else text


if __name__ == "__main__":
    sys.exit(main())

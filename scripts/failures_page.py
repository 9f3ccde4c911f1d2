"""Write ``docs/failures.md`` and ``docs/notices.md`` from the tables of ``core`` and the frameworks' rows.

python scripts/failures_page.py            write them
python scripts/failures_page.py --check    exit with 1 if they are not what the tables say
"""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import fill

from jupyter_dtrain.core.declarations import declarations
from jupyter_dtrain.core.failures import (
    AFTER,
    ERROR_REPORTED,
    EVERYTHING,
    EXIT_SEEN,
    INTERRUPT,
    LOGS_ALONE,
    LOST,
    OF_THE_OTHERS,
    RELEASE,
    STILL,
    TELL_HANG,
    UNTIL_KILLED,
    Situation,
    Step,
    situations,
)
from jupyter_dtrain.core.notices import GROUPS, Group, anchors_in, notices
from jupyter_dtrain.core.settings import Settings

DOCS = Path(__file__).resolve().parent.parent / "docs"

MADE = "<!-- Made by scripts/failures_page.py from {} and frameworks/*/declared.py: change those. -->\n\n"

HEAD = """# What happens when something fails

Find the situation, read the row. Quoted words are what the cell shows, and link to their meaning in the [index of
notices](notices.md). Times and mechanisms stand in the [annex](#annex-steps-and-times).

These go on until you press Stop, or until `--timeout`: ranks in different collectives or beside one that never comes, a
rank that is stopped or blocked in native code, an open prompt, and an endless loop of Python code. All but the prompt
and the loop are named after `hang_notice` (30 s). Stop ends the *cell* within 10 s, whatever its code does; a rank that
is blocked in native code may stay busy after it, until that code returns or you kill the rank.

After a cell that failed, all ranks keep their variables. After a death the *other* ranks keep theirs: they take cells
(`-r`), and `%distributed replace` brings a new process in the dead rank's place; `%distributed restart` starts fresh
ranks.

| situation | what you see | what to do |
| --- | --- | --- |
"""

ANNEX = """
## Annex: steps and times

A world has a main process, on each host a parent process of the ranks there, and in each rank a monitor, which is a
thread beside the cell. All act whether or not a notebook is open, and rank 0 is no exception. Times count from the
moment when the situation arises. Names of times, such as `release_grace`, are settings (`JUPYTER_DTRAIN_…`), with their
defaults in brackets. Tests cause each of these situations on purpose: `CONTRIBUTING.md` says how to run
them.

### Stop, `%distributed interrupt`, `--timeout`

Each step below comes only if some rank has not ended the cell by then. Times count from the interrupt.

"""

STOPPED = """
A second press takes the steps up to the exception at once, and the cell ends a second later. A third press
ends the cell. No cell outlasts 10 s of this, whatever it does. The client keeps interrupting the ranks that
are left behind.

### Every situation

Many rows share these steps:

"""

BESIDE = """
### Replacing ranks: `%distributed replace`, `--auto-replace`, the button in Attention

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

### A cell with `--elastic` (torchft)

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

### A profile of a running loop: `%distributed profile`, and the button of a panel

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

### Beside these

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


NOTICES = """# What a notice means

Each notice and error of jupyter-dtrain that has more to tell ends with “What this means” and the address of its heading
here: what it means, what it rests on, and what helps. An error of your own code has none. [What happens when something
fails](failures.md) lists situations; [why steps are slow](reference/slow-steps.md) has the rules of the last section.
"""

SHARED = {"E": ERROR_REPORTED, "X": EXIT_SEEN, "L": LOST, "R": RELEASE, "N": STILL, "H": TELL_HANG}
"""The steps that many rows share, by a letter."""

KEPT = {"all": EVERYTHING, "others": OF_THE_OTHERS, "until killed": UNTIL_KILLED, "logs": LOGS_ALONE}
"""What is kept, by a word."""


def main() -> int:
    """Write the pages, or compare them."""
    pages = {DOCS / "failures.md": page(), DOCS / "notices.md": notices_page()}
    if sys.argv[1:] == ["--check"]:
        return int(any(not path.exists() or path.read_text() != text for path, text in pages.items()))
    for path, text in pages.items():
        path.write_text(text)
    return 0


def page() -> str:
    """The page on situations."""
    rows = situations()
    user = [line(titled(row), read(row.words) or "Nothing in the cell.", row.advice) for row in rows]
    legend = [item(f"**{letter}**: {step(one)}") for letter, one in SHARED.items()]
    kept = [item(f"**{word}**: {sentence}") for word, sentence in KEPT.items()]
    after = [item(f"**{word}**: {sentence}") for word, sentence in AFTER.items()]
    table = [
        "| situation | steps | the cell ends | kept | then |",
        "| --- | --- | --- | --- | --- |",
        *(line(titled(row), steps(row), ends(row), kept_in(row), then(row)) for row in rows),
    ]
    return "\n".join(
        [
            MADE.format("core/failures.py") + HEAD + "\n".join(user),
            ANNEX + "\n".join(item(step(one)) for one in INTERRUPT),
            STOPPED + "\n".join(legend),
            "\nWhat is kept:\n",
            *kept,
            "\nThe world afterwards, and if Stop has ended the cell instead, where that differs:\n",
            *after,
            "",
            *table,
            BESIDE.rstrip("\n"),
            "",
        ]
    )


def notices_page() -> str:
    """The index of notices."""
    parts = [MADE.format("core/notices.py") + NOTICES]
    known = {row for group in GROUPS for row in group.rows}
    others = tuple(row for row in notices() if row not in known)
    for group in (*GROUPS, *([Group("In one framework", others)] if others else [])):
        parts.append(f"## {group.title}\n")
        for row in group.rows:
            parts += [
                f"### {row.title}\n",
                item(f"**Meaning**: {row.meaning}"),
                item(f"**Evidence**: {row.evidence}"),
                item(f"**What helps**: {row.fix}"),
                "",
            ]
    return "\n".join(parts)


def titled(row: Situation) -> str:
    """The situation, with the framework in which alone it comes about, unless its sentence names it."""
    title = next((one.title or one.name for one in declarations() if one.name == row.framework), "")
    what = row.what.rstrip(".")
    return what if not title or title in what else f"{title}: {what[0].lower()}{what[1:]}"


def steps(row: Situation) -> str:
    """The letters of shared steps, and the other steps in full."""
    letters = {one: letter for letter, one in SHARED.items()}
    said: list[str] = []
    for one in (row.noticed, *row.steps):
        letter = letters.get(one)
        if letter and said and said[-1].isupper():
            said[-1] += f", {letter}"
        else:
            said.append(letter or step(one).rstrip("."))
    return ". ".join(said)


def ends(row: Situation) -> str:
    """When the cell ends by itself, and how."""
    if row.ends is None:
        return "with its code, or by Stop"
    return "goes on: **ok**" if row.outcome == "ok" else f"**{row.outcome}** by {row.ends}"


def kept_in(row: Situation) -> str:
    """What is kept, by the word of the list and what else the row says."""
    for word, sentence in KEPT.items():
        if row.kept.startswith(sentence):
            return f"{word}. {row.kept.removeprefix(sentence).strip()}".removesuffix(". ").rstrip()
    return row.kept


def then(row: Situation) -> str:
    """The world afterwards."""
    return row.after if row.interrupted == row.after else f"{row.after}; after Stop {row.interrupted}"


def line(*cells: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def step(one: Step) -> str:
    """A step, as a sentence."""
    if not one.at.of(Settings()):
        return one.does[0].upper() + one.does[1:]
    return f"{'Within' if one.latest else 'After'} {one.at}, {one.does}"


def item(sentences: str) -> str:
    """An item of a list, in lines of 120 characters."""
    return fill(sentences, 120, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False)


def read(parts: tuple[str, ...]) -> str:
    """What the user reads, each part with a link to its meaning."""
    return ", ".join(linked(shown(part)) for part in parts)


def linked(words: str) -> str:
    """The words in quotation marks; the first kind of notice that they tell of is their link."""
    anchor = next(iter(anchors_in(words)), "")
    return f"[“{words}”](notices.md#{anchor})" if anchor else f"“{words}”"


def shown(words: str) -> str:
    """The words with examples for what stands in brackets, and dots where the line goes on."""
    examples = {"rank": "1", "last": "3", "call": "all_reduce", "were": "were", "hang": "30"}
    text = words.format(**examples)
    return f"{text}…" if text.endswith(" ") else text


if __name__ == "__main__":
    sys.exit(main())

"""Write ``docs/reference/patches.md`` from the declarations of patches, see ``jupyter_dtrain/plugins/patches.py``.

python scripts/patches_page.py            write it
python scripts/patches_page.py --check    exit with 1 if it is not what they say
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from textwrap import fill

from jupyter_dtrain.plugins.patches import Patch, table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "patches.md"

HEAD = """<!-- Made by scripts/patches_page.py from the Patch declarations of the modules: change those. -->

# What jupyter-dtrain changes in other libraries

Losses that appear without a line of logging code, and ranks that never hang, need parts of other libraries that have no
public hook. This page has all of them: what is replaced or read in a rank (and, of the Jupyter stack, in a notebook's
kernel), why, and what you lose in a version of the library where it is not possible.

* **A version that lacks such a part**, or whose functions take other parameters, is left as it is. Its import succeeds,
  it trains, and the cell that imports it says what you lose.
* **A replacement that fails in a call** does not fail the call: it ends as the library ends it. The cell says so once.
* **Outside ranks** only parts of the Jupyter stack and of Python are changed: in a notebook's kernel, in the processes
  that keep a world, and in a job that records itself. A JAX script that `%distributed export` writes has a few lines of
  its own, which you can read there: they give `jax.distributed.initialize()` the arguments that it lacks.

"""


def page() -> str:
    """The whole page."""
    rows = table()
    replaced = sum(len(one.replaces) * len(one.places) for one in rows)
    count = f"{replaced} replaced places, and what is private elsewhere, in {len(rows)} rows.\n"
    return HEAD + count + "".join("".join(section(name, list(part))) for name, part in groupby(rows, key=of))


def of(one: Patch) -> str:
    """The library of a row."""
    return one.library


def section(library: str, rows: list[Patch]) -> Iterator[str]:
    """The rows of one library."""
    yield f"\n## {library}\n"
    for one in rows:
        yield f"\n### {', '.join(f'`{place}`' for place in one.places)}\n\n"
        yield item("Why", one.why)
        yield item("Without it", f"{one.lost[0].upper()}{one.lost[1:]}.")
        for words, names in (("Replaces", one.replaces), ("Calls", one.calls), ("Reads", one.reads)):
            if names:
                yield item(words, ", ".join(f"`{name}`" for name in names))
        if one.upstream:
            yield item("Needless with", f"<{one.upstream}>")


def item(head: str, words: str) -> str:
    """An item of a list, in lines of 120 characters."""
    return fill(f"{head}: {words}", 120, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False) + "\n"


def main() -> int:
    """Write the page or check it."""
    words = page()
    if "--check" in sys.argv:
        return int(not PAGE.exists() or PAGE.read_text() != words)
    PAGE.write_text(words)
    return 0


if __name__ == "__main__":
    sys.exit(main())

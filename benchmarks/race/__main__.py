"""Run this package and what a user could pick instead side by side, into ``build/bench/race.json`` and ``race.html``.

    python -m benchmarks.race                     all sections; one that was interrupted goes on where it was
    python -m benchmarks.race --only start cells  only these, anew
    python -m benchmarks.race --fresh             all, anew
    python -m benchmarks.race --docs              write the last race into docs/comparison.md

A finished race is not continued but run anew. The tools must be installed beside this package: ``make race`` does that.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable

from . import answers, failure, objects, page, speed, training
from .docs import COMPARISON, write
from .players import marked
from .result import FILE, Race, Row, machine
from .tools import not_installed, versions

SECTIONS: dict[str, Callable[[], list[Row]]] = {
    "start": speed.start,
    "cells": speed.cells,
    "objects": objects.objects,
    "training": training.training,
    "failure": failure.failure,
    "correct": answers.correct,
}
GROWTH = "growth"
"""Made from the rows of others."""


def main() -> int:
    """Race, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.race", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[*SECTIONS], help="run these sections, anew")
    parser.add_argument("--fresh", action="store_true", help="run all sections, whatever a file has")
    parser.add_argument("--large", action="store_true", help="also move arrays of 1 GB, which needs 10 GB of memory")
    parser.add_argument(
        "--docs", action="store_true", help=f"write the last race into {COMPARISON}, and measure nothing"
    )
    wanted = parser.parse_args()
    if wanted.docs:
        write(Race.read())
        return 0
    # What is interrupted still ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    race = _opened(fresh=wanted.fresh, only=bool(wanted.only))
    todo = wanted.only or [name for name in SECTIONS if name not in race.sections]
    for name, reason in not_installed().items():
        print(f"{name} is left out: {reason}.", flush=True)
    for name in todo:
        print(f"\n{name} ...", flush=True)
        began = time.monotonic()
        rows = _section(name, large=wanted.large)
        race.sections[name] = rows
        race.seconds[name] = round(time.monotonic() - began, 1)
        race.sections.pop(GROWTH, None)
        race.sections[GROWTH] = [row.fill(GROWTH) for row in speed.growth(race.rows)]
        race.sections = {name: race.sections[name] for name in [*SECTIONS, GROWTH] if name in race.sections}
        race.write()
        FILE.with_suffix(".html").write_text(page.page(race))
        print("\n".join(_told(row) for row in rows), f"{race.seconds[name]:.0f} s", sep="\n", flush=True)
    print(f"\n{FILE} and {FILE.with_suffix('.html')}: {sum(race.seconds.values()):.0f} s in all.")
    return 0


def _opened(*, fresh: bool, only: bool) -> Race:
    """The race that goes on, or a new one."""
    new = Race(machine(), versions())
    try:
        race = Race.read()
    except OSError:
        return new
    finished = all(name in race.sections for name in SECTIONS)
    same = (race.machine, race.versions) == (new.machine, new.versions)
    return new if fresh or not same or (finished and not only) else race


def _section(name: str, *, large: bool) -> list[Row]:
    with marked() as env:
        before = dict(os.environ)
        os.environ.update(env)
        try:
            rows = objects.objects(large=True) if large and name == "objects" else SECTIONS[name]()
        finally:
            os.environ.clear()
            os.environ.update(before)
    return [row.fill(row.name.partition("-")[0]) for row in rows]


def _told(row: Row) -> str:
    """A row in a line: who is first, and all medians."""
    medians = [
        f"{name} {page.figure(entry.median, row.unit)}"
        for name, entry in row.entries.items()
        if entry.values and entry.median is not None and not entry.never
    ]
    never = [f"{name} never" for name, entry in row.entries.items() if entry.never]
    return f"  {row.title}: {', '.join([*medians, *never])}"


if __name__ == "__main__":
    sys.exit(main())

"""What happened in a draw, as its ranks wrote it down themselves, and what the cell told of it."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from tests.faults.draws import Draw

STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""A terminal's style in a text."""
RAISED = re.compile(r"^(\w+) on (ranks? [-\d, and]+)$")
LOST = re.compile(r"^Rank (\d+) \S")
INTERRUPTED = re.compile(r"^(Interrupted|(KeyboardInterrupt|CellStopped) on)\b")


class Truth:
    """The notes of the ranks on their way through the cell. The package has no part in them."""

    def __init__(self, notes: Path, drawn: Draw) -> None:
        self.struck: dict[int, float] = {}
        """When each rank came to its fault, in the seconds of ``time.monotonic()``."""
        self.waited: dict[int, tuple[float, float]] = {}
        """When a rank entered the collective that it did not complete, and when that threw it out; perhaps never."""
        self.made: defaultdict[int, Counter[str]] = defaultdict(Counter)
        """How often a rank has done what it does before collectives."""
        for rank in range(drawn.size):
            text = ""
            with contextlib.suppress(OSError):
                text = notes.with_name(f"{notes.name}-{rank}").read_text()
            for line in text.rpartition("\n")[0].splitlines():
                word, _, when = line.split()
                self._take(rank, word, float(when))

    def _take(self, rank: int, word: str, when: float) -> None:
        match word:
            case "struck":
                self.struck[rank] = when
                self.waited.pop(rank, None)
            case "enters":
                self.waited[rank] = when, math.inf
            case "thrown":
                self.waited[rank] = self.waited[rank][0], when
            case "leaves":
                self.waited.pop(rank, None)
            case _:
                self.waited.pop(rank, None)
                self.made[rank][word] += 1


class Block(NamedTuple):
    """The first line of a block of an error."""

    line: str
    name: str
    """The name of an exception; else empty."""
    ranks: frozenset[int]

    @property
    def interrupt(self) -> bool:
        """Whether it tells of Stop."""
        return bool(INTERRUPTED.match(self.line))


class Told:
    """The error of a cell, as a person reads it."""

    def __init__(self, text: str) -> None:
        self.text = STYLE.sub("", text)
        heads = [block.partition("\n")[0] for block in self.text.split("\n\n") if block]
        self.blocks = [_block(line) for line in heads]
        self.raised: defaultdict[str, set[int]] = defaultdict(set)
        """The ranks on which an exception of that name was raised."""
        self.lost: dict[int, str] = {}
        """The ranks that died, with the line that says so."""
        for block in self.blocks:
            if block.name:
                self.raised[block.name] |= block.ranks
            elif LOST.match(block.line):
                self.lost |= dict.fromkeys(block.ranks, block.line)

    @property
    def first(self) -> Block | None:
        """What it begins with."""
        return next(iter(self.blocks), None)

    def __str__(self) -> str:
        return repr([block.line for block in self.blocks])


def _block(line: str) -> Block:
    if found := RAISED.match(line):
        return Block(line, found[1], frozenset(_ranks(found[2])))
    if found := LOST.match(line):
        return Block(line, "", frozenset([int(found[1])]))
    return Block(line, "", frozenset())


def _ranks(text: str) -> set[int]:
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found

"""Flame graphs: where the main threads of ranks were, at many moments, as data.

:class:`Sampled` is what one rank sends. Ranks whose time goes to the same places share one graph (:func:`groups`),
which is the mean of theirs (:func:`merged`); :func:`hottest` has the same as rows of a table.

Under failure: a rank without samples has words that say why. What a rank sends is bounded, whatever its stacks look
like: :data:`MAX_NODES`, :data:`MAX_DEPTH`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from .events import Frame

RATE: Final = 100
"""Samples a second."""
MAX_NODES: Final = 20_000
"""Different stacks of a rank, each call of them counted once; a sample beyond that ends at a call that is known."""
MAX_DEPTH: Final = 200
"""Frames of a stack, from the cell on; deeper ones are left out."""
ALIKE: Final = 0.12
"""The share of time that ranks of one graph may spend at other places, beside what :data:`NOISE` allows."""
NOISE: Final = 1.5
"""How much more they may differ by chance: this, divided by the square root of the number of samples."""
SMALL: Final = 0.03
"""The share of time below which two ranks are not compared at a place: there, few samples differ by chance."""
NARROW: Final = 0.0025
"""The share of a rank's time below which a call is not told apart in a graph: a line of two or three points."""
MOST_GROUPS: Final = 6
"""Graphs of one picture."""
IDLE: Final = Frame("idle", 0, "", "", cell=False)
"""Stands for the time in which a rank runs no cell."""


class Sampled(msgspec.Struct, frozen=True):
    """Where the main thread of one rank was, a hundred times a second (:data:`RATE`).

    The stacks are a tree, whose nodes are the lists ``parents`` and ``places``: each sample is a node, and its stack
    the way there.
    """

    frames: list[Frame] = []
    parents: list[int] = []
    """The node above each node, which stands before it; -1 for the cell's own frame."""
    places: list[int] = []
    """The number of each node's frame in ``frames``."""
    samples: list[tuple[int, int]] = []
    """In their order: a node, or -1 while the rank is idle, and how many samples one after the other are there."""
    words: str = ""
    """Why there are no samples, or why they end early; empty else."""

    @property
    def count(self) -> int:
        """How many samples there are."""
        return sum(times for _, times in self.samples)

    def stack(self, node: int) -> list[Frame]:
        """The frames of a node, outermost first; those of -1 are :data:`IDLE`."""
        found = []
        while node >= 0:
            found.append(self.frames[self.places[node]])
            node = self.parents[node]
        return found[::-1] or [IDLE]


class SampledStacks:
    """Makes a :class:`Sampled` of stacks that come one after the other."""

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._nodes: dict[tuple[int, int], int] = {}
        self._samples: list[tuple[int, int]] = []

    def add(self, stack: Sequence[Frame], times: int = 1) -> None:
        """``stack``: from the cell on, outermost first; empty for an idle rank. ``times``: samples with this stack."""
        node = -1
        for frame in stack[:MAX_DEPTH]:
            place = self._frames.setdefault(frame, len(self._frames))
            below = self._nodes.get((node, place))
            if below is None:
                if len(self._nodes) >= MAX_NODES:
                    break
                below = self._nodes[node, place] = len(self._nodes)
            node = below
        if self._samples and self._samples[-1][0] == node:
            times += self._samples.pop()[1]
        self._samples.append((node, times))

    def collect(self, words: str = "") -> Sampled:
        """What was added. ``words``: why it ends early."""
        parents, places = [parent for parent, _ in self._nodes], [place for _, place in self._nodes]
        return Sampled(list(self._frames), parents, places, self._samples, words)


class Branch:
    """A call in a flame graph: how much of the time it takes, and the calls that it makes.

    Lines of a cell are told apart; of a library's function, all lines are one call.
    """

    __slots__ = ("below", "narrow", "share")

    def __init__(self) -> None:
        self.share = 0.0
        """The share of time, from 0 to 1, with that of the calls below."""
        self.narrow = 0.0
        """The share of the calls below that are shorter than :data:`NARROW` on their rank."""
        self.below: dict[Frame, Branch] = {}
        """The calls that it makes. The line of a library's frame is 0."""

    def call(self, frame: Frame) -> Branch:
        """The branch of a call that it makes."""
        found = self.below.get(frame)
        if found is None:
            found = self.below[frame] = Branch()
        return found


def merged(parts: Iterable[Sampled]) -> Branch:
    """The mean of the ranks' graphs, each of which counts alike. The branch that it returns stands for all the time."""
    told = [one for one in parts if one.samples]
    root = Branch()
    for one in told:
        keys = [_key(frame) for frame in one.frames]
        by_node = _by_node(one)
        total = one.count
        idle = by_node.pop(-1, 0) / total
        share = [by_node.get(node, 0) / total for node in range(len(one.parents))]
        for node in range(len(share) - 1, -1, -1):  # a parent stands before its children
            if one.parents[node] >= 0:
                share[one.parents[node]] += share[node]
        branches: list[Branch | None] = []
        for parent, place, part in zip(one.parents, one.places, share, strict=True):
            above = root if parent < 0 else branches[parent]
            branch = above.call(keys[place]) if above is not None and part >= NARROW else None
            if branch is not None:
                branch.share += part / len(told)
            elif above is not None:
                above.narrow += part / len(told)
            branches.append(branch)
        if idle:
            root.call(IDLE).share += idle / len(told)
        root.share += 1 / len(told)
    return root


def _key(frame: Frame) -> Frame:
    return frame if frame.cell else msgspec.structs.replace(frame, line=0)


Place = tuple[Frame, Frame]
"""The innermost line of a cell, and the library's function in which the rank was then; the line itself where none."""


def shares(one: Sampled) -> dict[Place, float]:
    """How much of the time a rank was at each place, from 0 to 1."""
    found: dict[Place, float] = {}
    total = one.count
    for node, times in _by_node(one).items():
        stack = one.stack(node)
        line = next((frame for frame in reversed(stack) if frame.cell), stack[0])
        place = line, _key(stack[-1])
        found[place] = found.get(place, 0.0) + times / total
    return found


def _by_node(one: Sampled) -> dict[int, int]:
    """How many samples each node has."""
    found: dict[int, int] = {}
    for node, times in one.samples:
        found[node] = found.get(node, 0) + times
    return found


def groups(ranks: Mapping[int, Sampled]) -> list[list[int]]:
    """The ranks that have samples, those whose time goes to the same places together; at most :data:`MOST_GROUPS`.

    The largest group comes first. Ranks are apart when their :func:`shares` differ by more than :data:`ALIKE`, and
    by more than few samples differ by chance.
    """
    found: list[tuple[list[int], dict[Place, float]]] = []
    limits = {rank: ALIKE + NOISE / math.sqrt(one.count) for rank, one in ranks.items() if one.samples}
    for rank, limit in limits.items():
        mine = shares(ranks[rank])
        far, nearest = min(
            ((_apart(mine, mean), index) for index, (_, mean) in enumerate(found)), default=(math.inf, -1)
        )
        if far <= limit or len(found) == MOST_GROUPS:
            members, mean = found[nearest]
            members.append(rank)
            for place in mine.keys() | mean.keys():
                mean[place] = mean.get(place, 0.0) + (mine.get(place, 0.0) - mean.get(place, 0.0)) / len(members)
        else:
            found.append(([rank], mine))
    return sorted((members for members, _ in found), key=lambda members: (-len(members), members))


def _apart(one: Mapping[Place, float], other: Mapping[Place, float]) -> float:
    """The share of time that would have to move to make both equal, from 0 to 1; small places count as one place."""
    apart, rest = 0.0, 0.0
    for place in one.keys() | other.keys():
        mine, theirs = one.get(place, 0.0), other.get(place, 0.0)
        if max(mine, theirs) < SMALL:
            rest += mine - theirs
        else:
            apart += abs(mine - theirs)
    return (apart + abs(rest)) / 2


def hottest(ranks: Mapping[int, Sampled], most: int) -> list[tuple[Place, dict[int, float]]]:
    """The places where some rank is longest, the longest first, with each rank's share of time there.

    Ranks without samples are left out.
    """
    by_rank = {rank: shares(one) for rank, one in ranks.items() if one.samples}
    found = {
        place: {rank: found.get(place, 0.0) for rank, found in by_rank.items()}
        for place in {place: None for found in by_rank.values() for place in found}
    }
    rows = sorted(found.items(), key=lambda row: (-max(row[1].values()), row[0][1] == IDLE))
    return rows[:most]


def speedscope(ranks: Mapping[int, Sampled], name: str) -> dict[str, Any]:
    """A file for speedscope (https://www.speedscope.app/file-format-schema.json) with one profile for each rank.

    ``name``: of the file. Its times are seconds.
    """
    frames: dict[Frame, int] = {}
    profiles = []
    for rank, one in ranks.items():
        if not one.samples:
            continue
        stacks = {node: [frames.setdefault(frame, len(frames)) for frame in one.stack(node)] for node in _by_node(one)}
        profiles.append(
            {
                "type": "sampled",
                "name": f"rank {rank}",
                "unit": "seconds",
                "startValue": 0,
                "endValue": one.count / RATE,
                "samples": [stacks[node] for node, _ in one.samples],
                "weights": [times / RATE for _, times in one.samples],
            }
        )
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": name,
        "exporter": "jupyter-dtrain",
        "activeProfileIndex": 0,
        "shared": {"frames": list(_speedscope_frames(frames))},
        "profiles": profiles,
    }


def _speedscope_frames(frames: Iterable[Frame]) -> Iterator[dict[str, Any]]:
    for frame in frames:
        if frame == IDLE:
            yield {"name": "idle"}
        elif frame.cell:
            yield {"name": label(frame), "file": frame.file, "line": frame.line}
        else:
            yield {"name": frame.function, "file": frame.file, "line": frame.line}


def label(frame: Frame) -> str:
    """A frame in few words: a line of a cell with its code, a library's function with its file."""
    if frame.cell:
        where = f"{frame.file}, line {frame.line}"
        of = f" in {frame.function}" if frame.function else ""
        return f"{where}{of}: {frame.source}" if frame.source else f"{where}{of}"
    if not frame.function:
        return short_file(frame.file)
    return f"{frame.function} ({short_file(frame.file)})"


def short_file(file: str) -> str:
    """The end of a library's path, which a person knows it by: ``numpy/linalg/linalg.py``."""
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in file:
            return file.rpartition(folder)[2]
    return file.rpartition("/")[2]

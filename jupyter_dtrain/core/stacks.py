"""Where ranks are: the stack of each rank's main thread, and a text that names each place once, with its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from .events import Frame
from .world import count_ranks, format_ranks


class Wait(msgspec.Struct, frozen=True):
    """A call in which a rank waits for others."""

    framework: str
    """The framework that can free the rank; empty means all of them."""
    call: str
    releasable: bool = True
    """Whether the framework can free it."""


class Collective(msgspec.Struct, frozen=True):
    """A collective that a rank has begun."""

    group: str
    """Name of the process group; equal on all its ranks. The default group's is 0."""
    ranks: list[int]
    """The ranks of the group."""
    number: int
    """The number of the collective in its group, from 1."""
    call: str
    """The collective and its data, such as ``all_reduce of float[64, 3]``."""
    alike: str = ""
    """The part of ``call`` that must be equal on all ranks, such as ``all_reduce of 192 float``; empty: all of it."""
    over: bool = False
    """Whether this rank has done with it."""


class Stack(msgspec.Struct, frozen=True):
    """Where the main thread of one rank is."""

    state: Literal["idle", "running", "native", "stopped", "silent"]
    """The agent reports ``idle`` or ``running``; the watch, which looks from outside, reports the other three.
    ``silent``: py-spy could not look either."""
    words: str = ""
    """Why the frames, or the native ones, are missing."""
    frames: list[Frame] = []
    """The frames from the cell on, outermost first."""
    waits: Wait | None = None
    """The call in which the main thread, or another thread of the cell, waits for other ranks; None if none does."""
    collectives: list[Collective] = []
    """The last collectives, where a framework records them."""
    call: str = ""
    """The call that the user's own code is in, by the name in that line; empty where the line does not show one."""


Stacks = Mapping[int, Stack | None]
"""The stack of each rank, by rank; None for a rank that did not answer."""
SILENT = "no answer (dead, or in native code that holds the interpreter lock)"
STOPPED = "stopped (SIGSTOP); SIGCONT lets it go on"
NATIVE = "no answer, in native code"


def with_native(stacks: Stacks, outside: Stacks) -> Stacks:
    """Add the native frames from ``outside`` to ``stacks``; silent ranks get all frames from there."""
    merged = dict(stacks)
    for rank, seen in outside.items():
        own = stacks.get(rank)
        if own is None or seen is None:
            merged[rank] = own or seen
        elif seen.state == "silent":
            merged[rank] = msgspec.structs.replace(own, words=seen.words)
        elif own.state != "idle":
            native = [frame for frame in seen.frames if not frame.line]
            # Agent and watch looked one after the other: if the rank moved in between, the second look counts.
            same = _last_line(own) == _last_line(seen)
            merged[rank] = msgspec.structs.replace(own, frames=[*own.frames, *native]) if same else seen
    return merged


def _last_line(stack: Stack) -> int:
    return next((frame.line for frame in reversed(stack.frames) if frame.cell), 0)


def describe_stacks(stacks: Stacks) -> str:
    """Each place with its whole stack, and collectives that differ between ranks."""
    places = {rank: _whole(stack) for rank, stack in stacks.items()}
    return "\n".join([*_grouped(places), *describe_collectives(stacks)])


def describe_hang(
    stacks: Stacks, still: list[int], seconds: float, ended: Mapping[int, str], outside: list[int]
) -> str:
    """A line for each place of the ranks that have been ``still`` for so many ``seconds``, and for those that ended.

    ``ended``: how other ranks of the run ended, and which of them all have not begun it, in words. ``outside``: ranks
    that do not run the cell.
    """
    has = "has" if len(still) == 1 else "have"
    who = "No rank has" if len(still) == len(stacks) > 1 else f"{count_ranks(still).capitalize()} {has} not"
    places = {rank: _brief(stacks.get(rank)) for rank in still}
    places = {rank: ended.get(rank, words) if words == "idle" else words for rank, words in places.items()}
    if any(stack is not None and stack.waits for rank, stack in stacks.items() if rank in still):
        # They may be the ones that the others wait for.
        places |= {rank: words for rank, words in ended.items() if rank not in still}
        places |= dict.fromkeys(outside, "not in this cell")
    return "\n".join(
        [
            f"{who} moved for {seconds:g} s.",
            *(f"  {line}" for line in [*_grouped(dict(sorted(places.items()))), *describe_collectives(stacks)]),
            "Nothing was ended: Stop interrupts the cell, %distributed stacks shows whole stacks.",
        ]
    )


def describe_stuck(waiting: Mapping[int, str]) -> str:
    """Name ranks that wait for others and cannot be released, by the calls in which they wait, and what helps."""
    calls: dict[str, list[int]] = {}
    for rank, call in sorted(waiting.items()):
        calls.setdefault(call, []).append(rank)
    places = [f"{count_ranks(ranks)} in {call}" for call, ranks in calls.items()]
    it, ends = ("it", "the rank") if len(waiting) == 1 else ("they", "these ranks")
    return (
        f"Cannot be released: {'; '.join(places)}. {it.capitalize()} may wait without end for other ranks. Stop ends "
        f"the cell, then %distributed kill {format_ranks(sorted(waiting))} ends {ends}, and %distributed restart "
        "starts fresh ones."
    )


def describe_collectives(stacks: Stacks) -> list[str]:
    """A line for each process group whose ranks are at different collectives, or at different numbers.

    Where a framework records them, see :class:`.Collective`.
    """
    groups: dict[str, dict[int, dict[int, Collective]]] = {}
    """The collectives that each rank began, by name of the group, rank and number."""
    for rank, stack in stacks.items():
        for one in stack.collectives if stack else ():
            members = groups.setdefault(one.group, {})
            for member in one.ranks:
                if stacks.get(member) is not None:
                    members.setdefault(member, {})
            members.setdefault(rank, {})[one.number] = one
    return [line for name, begun in groups.items() if (line := _disagreement(name, begun))]


def _disagreement(name: str, begun: dict[int, dict[int, Collective]]) -> str:
    of = "" if name == "0" else f" of process group {name}"
    for number in sorted({number for calls in begun.values() for number in calls}):
        calls: dict[str, dict[str, list[int]]] = {}
        for rank, own in begun.items():
            if one := own.get(number):
                calls.setdefault(one.alike or one.call, {}).setdefault(one.call, []).append(rank)
        # What all ranks have done with, they have done together.
        if len(calls) > 1 and not all(number in own and own[number].over for own in begun.values()):
            each = "; ".join(
                f"{call} on {count_ranks(ranks)}" for same in calls.values() for call, ranks in same.items()
            )
            return f"Collective {number}{of} is not the same on all ranks: {each}."
    last = {rank: max(calls, default=0) for rank, calls in begun.items()}
    top = max(last.values())
    behind = sorted(rank for rank, number in last.items() if number < top)
    if not behind:
        return ""
    call = next(calls[top].call for calls in begun.values() if top in calls)
    has = "has" if len(behind) == 1 else "have"
    return f"{count_ranks(behind).capitalize()} {has} not reached collective {top}{of}, {call}."


def _grouped(places: Mapping[int, str]) -> list[str]:
    groups: dict[str, list[int]] = {}
    for rank, words in places.items():
        groups.setdefault(words, []).append(rank)
    return [
        f"{count_ranks(ranks).capitalize()}: {text}"
        for text, ranks in sorted(groups.items(), key=lambda group: group[1])
    ]


def _whole(stack: Stack | None) -> str:
    if stack is None:
        return SILENT
    if words := _state(stack):
        return words
    lines = []
    for frame in stack.frames:
        function = f" in {frame.function}" if frame.function else ""
        place = f", line {frame.line}" if frame.line else ""
        source = f": {frame.source}" if frame.source else ""
        lines.append(f"\n    {frame.file}{place}{function}{source}")
    doing = NATIVE if stack.state == "native" else "running"
    if stack.words:
        lines.append(f"\n    ({stack.words})")
    return (f"waiting in {stack.waits.call}" if stack.waits else doing) + "".join(lines)


def _brief(stack: Stack | None) -> str:
    """The last line of the user's own code, the call that it makes, and the line of the cell that led there."""
    if stack is None:
        return SILENT
    if words := _state(stack):
        return words
    own = [index for index, frame in enumerate(stack.frames) if frame.cell]
    if not own:
        return NATIVE if stack.state == "native" else stack.state
    outer, frame = stack.frames[own[0]], stack.frames[own[-1]]
    where = _line(frame)
    if len(own) > 1 and (outer.file, outer.line) != (frame.file, frame.line):
        where += f" (called from {_line(outer)})"
    if stack.waits:
        return f"waiting in {stack.waits.call}, {where}"
    called = stack.frames[own[-1] + 1 :]
    if stack.call == "sleep" and not called:
        return f"sleeping in {where}"
    # The innermost native frame tells most; among a library's frames, the one that the user called.
    name = called[-1].function if called and stack.state == "native" else stack.call if called else ""
    return f"in {name or called[0].function}, {where}" if called else where


def _line(frame: Frame) -> str:
    return f"{frame.file}, line {frame.line}: {frame.source}"


def _state(stack: Stack) -> str:
    """Words for a main thread without known frames; empty where there are some."""
    match stack.state:
        case "idle":
            return "idle"
        case "stopped":
            return STOPPED
        case "silent":
            return f"{SILENT}; {stack.words}"
        case "native" if not stack.frames:
            return NATIVE
    return ""

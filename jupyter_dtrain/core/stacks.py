"""Where ranks are, in words: ranks at the same place share one line.

``stacks`` is what :meth:`.Session.stacks` finds: for each rank its threads, of which there is one, the main thread; or
None for a rank that did not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .world import count_ranks

Stacks = Mapping[int, list[dict[str, Any]] | None]

Answers = dict[int, dict[str, Any] | None]
"""Each rank's answer to a question; None for a rank that gave none."""
SILENT = "no answer (dead, or in native code that holds the interpreter lock)"
STOPPED = "stopped (SIGSTOP); SIGCONT lets it go on"
NATIVE = "no answer, in native code"


def stacks_of(answers: Mapping[int, dict[str, Any] | None]) -> Stacks:
    """The stacks in the agents' answers; None for a rank without one."""
    return {rank: None if answer is None else answer.get("threads") for rank, answer in answers.items()}


def with_native(stacks: Stacks, outside: Stacks) -> Stacks:
    """``stacks`` with the native frames that were seen from ``outside``; for silent ranks all that was seen there."""
    merged = dict(stacks)
    for rank, threads in outside.items():
        own = stacks.get(rank)
        if own is None or threads is None:
            merged[rank] = own or threads
        elif threads[0]["state"] == "silent":
            merged[rank] = [{**own[0], "words": threads[0]["words"]}]
        elif own[0]["state"] != "idle":
            native = [frame for frame in threads[0]["frames"] if not frame["line"]]
            # Both were taken one after the other: if the rank has gone on meanwhile, the later one counts.
            same = _last_line(own[0]) == _last_line(threads[0])
            merged[rank] = [{**own[0], "frames": [*own[0]["frames"], *native]}] if same else threads
    return merged


def _last_line(main: dict[str, Any]) -> int:
    return next((frame["line"] for frame in reversed(main["frames"]) if frame["cell"]), 0)


def describe_stacks(stacks: Stacks) -> str:
    """Each place with its whole stack, and what does not fit together."""
    return "\n".join([*_grouped(stacks, _whole), *describe_collectives(stacks)])


def describe_hang(stacks: Stacks, still: list[int], seconds: float) -> str:
    """A line for each place of the ranks that are ``still``: they have not moved for so long, and others have ended."""
    has = "has" if len(still) == 1 else "have"
    who = "No rank has" if len(still) == len(stacks) > 1 else f"{count_ranks(still).capitalize()} {has} not"
    places = {rank: threads for rank, threads in stacks.items() if rank in still}
    return "\n".join(
        [
            f"{who} moved for {seconds:g} s.",
            *(f"  {line}" for line in [*_grouped(places, _brief), *describe_collectives(stacks)]),
            "Nothing was ended: Stop interrupts the cell, %distributed stacks shows whole stacks.",
        ]
    )


def describe_collectives(stacks: Stacks) -> list[str]:
    """A line for each process group whose ranks are at different collectives, or at different numbers.

    Where a framework records them, see :class:`.Collective`.
    """
    groups: dict[str, dict[int, dict[int, str]]] = {}
    """By name of the group and rank: what was begun, by number."""
    for rank, threads in stacks.items():
        for one in threads[0]["collectives"] if threads else ():
            members = groups.setdefault(one["group"], {})
            for member in one["ranks"]:
                if stacks.get(member) is not None:
                    members.setdefault(member, {})
            members.setdefault(rank, {})[one["number"]] = one["call"]
    return [line for name, begun in groups.items() if (line := _disagreement(name, begun))]


def _disagreement(name: str, begun: dict[int, dict[int, str]]) -> str:
    of = "" if name == "0" else f" of process group {name}"
    for number in sorted({number for calls in begun.values() for number in calls}):
        calls: dict[str, list[int]] = {}
        for rank, own in begun.items():
            if number in own:
                calls.setdefault(own[number], []).append(rank)
        if len(calls) > 1:
            each = "; ".join(f"{call} on {count_ranks(ranks)}" for call, ranks in calls.items())
            return f"Collective {number}{of} is not the same on all ranks: {each}."
    last = {rank: max(calls, default=0) for rank, calls in begun.items()}
    top = max(last.values())
    behind = sorted(rank for rank, number in last.items() if number < top)
    if not behind:
        return ""
    call = next(calls[top] for calls in begun.values() if top in calls)
    has = "has" if len(behind) == 1 else "have"
    return f"{count_ranks(behind).capitalize()} {has} not come to collective {top}{of}, {call}."


def _grouped(stacks: Stacks, describe: Callable[[list[dict[str, Any]] | None], str]) -> list[str]:
    groups: dict[str, list[int]] = {}
    for rank, threads in stacks.items():
        groups.setdefault(describe(threads), []).append(rank)
    return [
        f"{count_ranks(ranks).capitalize()}: {text}"
        for text, ranks in sorted(groups.items(), key=lambda group: group[1])
    ]


def _whole(threads: list[dict[str, Any]] | None) -> str:
    if threads is None:
        return SILENT
    main = threads[0]
    if words := _state(main):
        return words
    lines = []
    for frame in main["frames"]:
        function = f" in {frame['function']}" if frame["function"] else ""
        place = f", line {frame['line']}" if frame["line"] else ""
        source = f": {frame['source']}" if frame["source"] else ""
        lines.append(f"\n    {frame['file']}{place}{function}{source}")
    doing = NATIVE if main["state"] == "native" else "running"
    if main.get("words"):
        lines.append(f"\n    ({main['words']})")
    return (f"waiting in {main['waits']['call']}" if main["waits"] else doing) + "".join(lines)


def _brief(threads: list[dict[str, Any]] | None) -> str:
    """The last line of the user's own code, and what it has called."""
    if threads is None:
        return SILENT
    main = threads[0]
    if words := _state(main):
        return words
    own = [index for index, frame in enumerate(main["frames"]) if frame["cell"]]
    if not own:
        return NATIVE if main["state"] == "native" else str(main["state"])
    frame = main["frames"][own[-1]]
    where = f"{frame['file']}, line {frame['line']}: {frame['source']}"
    if main["waits"]:
        return f"waiting in {main['waits']['call']}, {where}"
    called = main["frames"][own[-1] + 1 :]
    if not called:
        return where
    # The innermost native frame says most; among a library's frames, the one that the user called.
    return f"in {called[-1 if main['state'] == 'native' else 0]['function']}, {where}"


def _state(main: dict[str, Any]) -> str:
    """Words for a main thread without known frames; empty where there are some."""
    match main["state"]:
        case "idle":
            return "idle"
        case "stopped":
            return STOPPED
        case "silent":
            return f"{SILENT}; {main['words']}"
        case "native" if not main["frames"]:
            return NATIVE
    return ""

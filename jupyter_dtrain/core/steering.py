"""What a person can ask of a running loop between two of its steps, in the words of all who pass it on.

An act goes from a client over the steward to all ranks of a run. They stop their loops after the same step, do it, and
go on. Ranks, clients, pages and the store share these structs and the sentences that tell of them.

Under failure: :func:`parse_settings` raises :class:`~.errors.BadRequest` with what is wrong with a line, before any
rank has heard of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from .errors import BadRequest
from .events import PAUSES, Acted
from .snapshots import SnapshotOrder
from .world import count_ranks

if TYPE_CHECKING:
    from .fold import RunFold

ActKind = Literal["between", "set", "undo", "pause", "resume", "step", "stop-after", "until-differs", "save", "rewind"]
"""What is asked: to run code, to set values or put back those that the last ``set`` replaced, to pause and go on, to
make some steps and pause again, to end the loop, to stop the ranks where a value differs between them, to save a
snapshot, to load a kept state."""

SOURCES: Final = ("step()", "optimizer", "loop")
"""What counts the steps of a loop, the best first: the user's own call, the optimizer that steps first, or the items of
``progress()`` and tqdm."""

_PATH: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*|\[-?\d+\]|\[(?:'[^']*'|\"[^\"]*\")\])*")
"""A path such as ``opt.lr``, ``model.dropout.p``, ``opt[1].lr``, ``config['lr']``."""
_LONG: Final = 300
"""Characters of an error in the words for what became of an act."""
_WORDS: Final = 120
"""Characters of code in the words for an act."""


class NewValue(msgspec.Struct, frozen=True):
    """One value that is to be set."""

    path: str
    """A variable's name and what follows it: ``opt.lr``, ``config['lr']``."""
    value: str
    """The value as Python writes it: a number, text, True, None, or a list, tuple or dict of those."""


class LoopAct(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a person asks of a running loop."""

    kind: ActKind
    code: str = ""
    """``between``: the code; ``until-differs``: an expression."""
    settings: list[NewValue] = []
    """``set``: the values, all of them or none."""
    count: int = 0
    """``step``: how many steps; ``stop-after``: the step, 0 for the one after which it is done; ``rewind``: which of
    the kept states, 1 for the newest, and for a rank the step of that state."""
    tolerance: float = 0.0
    """``until-differs``: how far apart values may lie."""
    order: SnapshotOrder | None = None
    """``save``: the snapshot."""
    strict: bool = False
    """``between``: whether the loop ends on all ranks where the code raises on one."""

    @property
    def words(self) -> str:
        """What a person has asked for, as one line."""
        words: list[str] = [self.kind]
        match self.kind:
            case "between":
                words.append(_cut(self.code))
            case "set":
                words += [_cut(f"{one.path}={one.value}") for one in self.settings]
            case "step" | "stop-after" | "rewind" if self.count:
                words.append(str(self.count))
            case "until-differs":
                words += [_cut(self.code), *([f"by more than {self.tolerance:g}"] if self.tolerance else [])]
            case "save" if self.order is not None:
                words += [self.order.name, *self.order.names]
        return " ".join(words)


def _cut(code: str) -> str:
    line = " ".join(code.split())
    return f"{line[:_WORDS]}{'…' if len(line) > _WORDS else ''}"


def check_act(act: LoopAct) -> None:
    """Raise :class:`BadRequest` for an act that lacks what its kind needs."""
    lacks = {
        "between": "" if act.code.strip() else "code",
        "until-differs": "" if act.code.strip() else "an expression",
        "set": "" if act.settings else "values",
        "save": "" if act.order is not None else "a snapshot",
        "step": "" if act.count > 0 else "a number of steps above 0",
        "rewind": "" if act.count > 0 else "the number of a state, 1 for the newest",
    }.get(act.kind, "")
    if lacks:
        raise BadRequest(f"{act.kind} needs {lacks}.")
    if act.count < 0 or not act.tolerance >= 0:
        raise BadRequest(f"{act.kind} takes no number below 0.")
    for one in act.settings:
        _check_value(one)


class RecordedAct(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a person has asked of the loop of a run, and what became of it."""

    number: int
    """The number of the act, which counts the acts of the world."""
    words: str
    """What was asked for, such as ``set opt.lr=1e-4``."""
    by: str
    """Who has asked for it, such as the name of a notebook."""
    step: int
    """The step after which it was done, on all ranks, counted from the beginning of the cell."""
    at: int | None
    """The newest step of the metrics by then, as in charts; None where the run had logged none."""
    time: float
    """When the first rank began it, in seconds since the epoch."""
    said: str
    """What became of it, as a sentence or several; empty while ranks are at it."""
    failed: bool = False
    """Whether it has raised on a rank."""


def recorded(fold: RunFold, numbers: Collection[int] | None = None) -> list[RecordedAct]:
    """What persons have asked of the loop of a run, oldest first; ``numbers``: only these acts."""
    return [
        RecordedAct(
            one.number,
            one.words,
            one.by,
            one.step,
            one.at,
            one.time,
            describe_act(one.kind, one.step, one.found) if {*fold.unfinished} <= {*one.found} else "",
            bool(one.failed),
        )
        for one in fold.acts.values()
        if numbers is None or one.number in numbers
    ]


def parse_ring(text: str) -> tuple[int, int]:
    """The states that a cell keeps, and the steps between two of them, of ``3/100``. Raises :class:`BadRequest`."""
    found = re.fullmatch(r"\s*(\d{1,4})\s*/\s*(\d{1,9})\s*", text)
    if not found or not int(found[1]) or not int(found[2]):
        raise BadRequest(f"{text!r} is no ring: 3/100 keeps the last three states, one every hundred steps.")
    return int(found[1]), int(found[2])


def parse_settings(text: str) -> list[NewValue]:
    """The values of a line such as ``opt.lr=1e-4 model.dropout.p=0.1``.

    Raises :class:`BadRequest` for a path or a value that is none.
    """
    settings = []
    for part in _parts(text):
        found = _PATH.match(part)
        if not found or part[found.end() : found.end() + 1] != "=" or not part[found.end() + 1 :]:
            raise BadRequest(
                f"{part!r} is no PATH=VALUE such as opt.lr=1e-4: a path is a variable's name and attributes or items "
                f"of it, and a value has no spaces outside quotes and brackets."
            )
        settings.append(NewValue(found[0], part[found.end() + 1 :]))
        _check_value(settings[-1])
    if not settings:
        raise BadRequest("There is nothing to set: name values as in opt.lr=1e-4 model.dropout.p=0.1")
    return settings


def settings_of(values: Mapping[str, Any]) -> list[NewValue]:
    """The values by path, as a program has them; a number may be NumPy's. Raises as :func:`parse_settings`."""
    settings = []
    for path, value in values.items():
        # A number of NumPy or a tensor says so in its repr.
        plain = value.item() if callable(getattr(value, "item", None)) else value
        settings.append(NewValue(path, repr(plain)))
        _check_value(settings[-1])
    if not settings:
        raise BadRequest("There is nothing to set: name values by path, as in {'opt.lr': 1e-4}.")
    return settings


def _check_value(one: NewValue) -> None:
    if not (found := _PATH.match(one.path)) or found.end() < len(one.path):
        raise BadRequest(f"{one.path!r} is no path: a variable's name and attributes or items of it, as in opt.lr.")
    try:
        ast.literal_eval(one.value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise BadRequest(
            f"{one.value!r} is no value that set takes: a number, a text in quotes, True, False, None, or a list, "
            f"tuple or dict of those. For anything else: %distributed between"
        ) from None


def _parts(text: str) -> list[str]:
    """``text`` cut at the spaces that stand outside quotes and brackets."""
    parts: list[str] = []
    part, quote, depth = "", "", 0
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        if sign.isspace() and not quote and depth <= 0:
            parts, part = [*parts, part] if part else parts, ""
        else:
            part += sign
    return [*parts, part] if part else parts


def describe_act(kind: str, step: int, found: Mapping[int, Acted]) -> str:
    """What became of an act after ``step`` on the ranks of ``found``, as a sentence or several."""
    if kind in PAUSES:
        return f"The loop was paused after step {step}."
    if not found:
        return f"It was stopped after step {step}. It may have been done on some ranks."
    ran = {rank: one for rank, one in found.items() if one.ok}
    raised = {rank: one for rank, one in found.items() if not one.ok}
    if not raised and kind != "between":
        said = [f"{told} ({count_ranks(ranks)}, after step {step})" for told, ranks in _alike(ran)]
        return "\n".join(said)
    sentences = []
    if raised:
        for told, ranks in _alike(raised):
            sentences.append(f"After step {step} it raised on {count_ranks(ranks)}: {told}.")
        others = f"It ran on {count_ranks(sorted(ran))}: what they hold may differ now." if ran else ""
        sentences.append(others)
    else:
        seconds = max((one.seconds for one in ran.values()), default=0.0)
        took = f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
        sentences.append(f"It ran after step {step} on {count_ranks(sorted(ran))}, in {took}.")
    return " ".join(filter(None, sentences))


def refusal(found: Mapping[int, Acted]) -> str:
    """Why an act cannot be done, where ranks have refused it: a sentence for each reason."""
    return " ".join(
        f"{count_ranks(ranks).capitalize()}: {told}."
        for told, ranks in _alike({rank: one for rank, one in found.items() if not one.ok})
    )


def _alike(found: Mapping[int, Acted]) -> list[tuple[str, list[int]]]:
    """What ranks say, equal words once, with the ranks that say them."""
    groups: dict[str, list[int]] = {}
    for rank, one in sorted(found.items()):
        groups.setdefault(_told(one), []).append(rank)
    return list(groups.items())


def _told(one: Acted) -> str:
    if one.error is None:
        return one.text.rstrip(".")
    return f"{one.error.ename}: {one.error.evalue}"[:_LONG] if one.error.evalue else one.error.ename

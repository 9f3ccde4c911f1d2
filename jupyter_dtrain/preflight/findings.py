"""Findings with their fixes, as a person reads them, and the scene from which they come: machines with their facts.

The judges are :mod:`.machines`, :mod:`.software`, :mod:`.networks` and :mod:`.speed`. They are pure: the same scene
gives the same findings, and nothing is asked of any machine.
"""

from __future__ import annotations

import textwrap
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeVar

import msgspec

from jupyter_dtrain.core.notices import DOCTOR, pointer, pointer_html
from jupyter_dtrain.core.world import quantity
from jupyter_dtrain.launch.programs import Unreached
from jupyter_dtrain.view.tables import table

from .probe import Facts
from .reach import SSH, Fixes

HERE: Final = "this machine"
"""The name of the machine of the notebook, among hosts. No host can have it: it has a space."""

Severity = Literal["error", "warning", "note", "ok"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note", "ok")
"""In the order in which a person should read them."""
WIDTH: Final = 110
"""Columns of the text."""
MOST_NAMED: Final = 4
"""The most machines that a sentence names."""
_INDENT: Final = " " * 9

Key = TypeVar("Key", bound=Hashable)


class Finding(msgspec.Struct, frozen=True):
    """One thing that a person should know before ranks start."""

    severity: Severity
    """``error``: ranks cannot start or work together. ``warning``: they may fail later. ``note``: good to know."""
    what: str
    """What was found, as a sentence."""
    where: list[str] = []
    """The machines that it is about; empty for all of them."""
    why: str = ""
    """Why it matters; empty where nothing is wrong."""
    fix: str = ""
    """The way to mend it; empty where nothing needs to be done."""


class Chosen(msgspec.Struct, frozen=True):
    """The interface of a machine through which ranks talk to other machines."""

    name: str
    address: str
    loopback: bool = False


class Connection(msgspec.Struct, frozen=True):
    """A TCP connection that was tried."""

    source: str
    target: str
    address: str
    failure: str = ""
    """Why it failed, as Linux says it; empty if it was made."""
    tried: bool = True
    """Whether it was tried at all; else :attr:`failure` says why not."""


class Speeds(msgspec.Struct, frozen=True):
    """The seconds of an all-reduce over all hosts, of few bytes and of many."""

    small: float
    large: float


Examined = dict[str, Facts | Unreached]
"""Each machine's facts, or why there are none, by the host's name."""


class Scene(msgspec.Struct, frozen=True):
    """All that is known before the findings."""

    examined: Examined
    """This machine under :data:`HERE`, then the hosts in order."""
    python: str = "python"
    """The interpreter on the hosts."""
    fixes: Fixes = SSH
    """The sentences for the way to the hosts."""
    slots: dict[str, int] = {}
    """The ranks of each host."""
    chosen: dict[str, Chosen | None] = {}
    """The interface of each machine; None where there is none."""
    ways: dict[str, Chosen | None] = {}
    """The interface of this machine that leads to each host."""
    wanted: str | None = None
    """The interface that the person asked for."""
    connections: list[Connection] = []
    speeds: Speeds | str | None = None
    """The speeds of all-reduces, or why they could not be timed; None if that was not tried."""

    @property
    def facts(self) -> dict[str, Facts]:
        """The facts of each machine that answered."""
        return {name: one for name, one in self.examined.items() if isinstance(one, Facts)}

    @property
    def hosts(self) -> dict[str, Facts]:
        """The facts of the machines that get ranks: the hosts, or this machine where no host was named."""
        found = self.facts
        return found if len(self.examined) == 1 else {name: one for name, one in found.items() if name != HERE}

    @property
    def unreached(self) -> dict[str, Unreached]:
        """The machines that did not answer."""
        return {name: one for name, one in self.examined.items() if isinstance(one, Unreached)}

    @property
    def several(self) -> bool:
        """Whether ranks run on more than one machine, or elsewhere than here."""
        return len({one.place for one in self.facts.values()}) > 1


def group(values: Mapping[str, Key]) -> dict[Key, list[str]]:
    """The machines that share each value, in the order of the values' first machines."""
    found: dict[Key, list[str]] = {}
    for name, value in values.items():
        found.setdefault(value, []).append(name)
    return found


def spread(values: Mapping[str, str]) -> str:
    """``3.11.2 on gpu1, gpu2; 3.12.1 on gpu3``."""
    return "; ".join(f"{value} on {name_some(names)}" for value, names in group(values).items())


def name_some(names: Iterable[str]) -> str:
    """``gpu1, gpu2, gpu3 and 5 more``."""
    listed = list(names)
    more = len(listed) - MOST_NAMED
    return ", ".join(listed) if more <= 1 else f"{', '.join(listed[:MOST_NAMED])} and {more} more"


def gib(size: float) -> str:
    """``size`` bytes in GiB, in words."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def show(hosts: Sequence[str], findings: Sequence[Finding], seconds: float) -> dict[str, str]:
    """A MIME bundle with the findings in their order."""
    caption = _caption(hosts, findings, seconds)
    rows = [[one.severity, one.what, ", ".join(one.where) or "everywhere", one.why, one.fix] for one in findings]
    html = table(caption, ["", "what", "where", "why it matters", "what to do"], rows)["text/html"]
    kinds = [DOCTOR] if any(one.severity in SEVERITIES[:2] for one in findings) else []
    text = [caption, *map(_lines, findings), *filter(None, [pointer(kinds)])]
    return {"text/plain": "\n".join(text), "text/html": html + pointer_html(kinds)}


def sentences(finding: Finding) -> str:
    """Which machines, what and why, as the reason of an error."""
    unnamed = [name for name in finding.where if name not in finding.what]
    where = f"{name_some(unnamed)}: " if unnamed else ""
    # The words of another program end as it likes.
    end = "." if finding.why and not finding.what.endswith((".", "!", "?")) else ""
    return f"{where}{finding.what}{end} {finding.why}".rstrip()


def _caption(hosts: Sequence[str], findings: Sequence[Finding], seconds: float) -> str:
    who = HERE.capitalize() if not hosts else f"{HERE.capitalize()} and {quantity(len(hosts), 'host')}"
    numbers = {severity: sum(one.severity == severity for one in findings) for severity in SEVERITIES[:2]}
    counts = [quantity(number, severity) if number else f"no {severity}s" for severity, number in numbers.items()]
    return f"{who}: {', '.join(counts)} ({seconds:.1f} s)"


def _lines(finding: Finding) -> str:
    parts = [(finding.severity.ljust(len(_INDENT)), finding.what)]
    if finding.why:
        parts.append((f"{_INDENT}why: ", finding.why))
    if finding.fix:
        parts.append((f"{_INDENT}do:  ", finding.fix))
    return "\n".join(_wrap(begin, words) for begin, words in parts)


def _wrap(begin: str, words: str) -> str:
    return textwrap.fill(
        words,
        WIDTH,
        initial_indent=begin,
        subsequent_indent=" " * len(begin),
        break_long_words=False,
        break_on_hyphens=False,
    )

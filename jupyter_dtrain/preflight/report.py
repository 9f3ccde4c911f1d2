"""Findings as a person reads them: as text for a terminal, as a table for a notebook."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from jupyter_dtrain.view.tables import table

from .facts import HERE
from .findings import SEVERITIES, Finding, name_some

WIDTH: Final = 110
"""Columns of the text."""
_INDENT: Final = " " * 9


def show(hosts: Sequence[str], findings: Sequence[Finding], seconds: float) -> dict[str, str]:
    """A MIME bundle with the findings in their order."""
    caption = _caption(hosts, findings, seconds)
    rows = [[one.severity, one.what, ", ".join(one.where) or "everywhere", one.why, one.cure] for one in findings]
    html = table(caption, ["", "what", "where", "why it matters", "what to do"], rows)["text/html"]
    return {"text/plain": "\n".join([caption, *map(_lines, findings)]), "text/html": html}


def sentences(finding: Finding) -> str:
    """Which machines, what and why, as the reason of an error."""
    unnamed = [name for name in finding.where if name not in finding.what]
    where = f"{name_some(unnamed)}: " if unnamed else ""
    # The words of another program end as it likes.
    end = "." if finding.why and not finding.what.endswith((".", "!", "?")) else ""
    return f"{where}{finding.what}{end} {finding.why}".rstrip()


def _caption(hosts: Sequence[str], findings: Sequence[Finding], seconds: float) -> str:
    who = HERE.capitalize() if not hosts else f"{HERE.capitalize()} and {_count(len(hosts), 'host')}"
    counts = [_count(sum(one.severity == severity for one in findings), severity) for severity in SEVERITIES[:2]]
    return f"{who}: {', '.join(counts)} ({seconds:.1f} s)"


def _lines(finding: Finding) -> str:
    parts = [(finding.severity.ljust(len(_INDENT)), finding.what)]
    if finding.why:
        parts.append((f"{_INDENT}why: ", finding.why))
    if finding.cure:
        parts.append((f"{_INDENT}do:  ", finding.cure))
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


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"

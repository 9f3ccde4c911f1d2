"""What differs between runs: configuration, code, versions, commits and metrics.

Plain functions of what runs know of themselves. Everything is bounded, whatever their cells and configurations hold.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from jupyter_dtrain.view.made import CodeDifference, Differences, RunDifference

from .provenance import RunCommit
from .stored_run import StoredRun

LINES: Final = 2000
"""Lines of a cell that are compared, and lines of a difference."""
LONGEST: Final = 64 << 10
"""Characters of a difference."""
MOST: Final = 1000
"""Names in which runs differ that are told."""

_WIDE: Final = 2000  # characters of a line, and of a value


def differences(runs: Sequence[StoredRun], commits: Sequence[RunCommit | None]) -> Differences:
    """What differs between ``runs``, which have these commits. Raises :class:`StoreFailed` for an unreadable run."""
    configs = [{name: _plain(value) for name, value in run.config.items()} for run in runs]
    names = list(dict.fromkeys(name for config in configs for name in config))
    config = _differing(configs, names)
    return Differences(
        config,
        len(names) - sum(1 for name in names if _differ([one.get(name) for one in configs])),
        _versions(runs),
        _commits(commits),
        _code(runs, commits),
        _metrics(runs),
        [run.label for run in runs],
    )


def unified(before: str, after: str, name: str, other: str) -> str:
    """The lines in which two texts differ, as ``diff -u`` writes them; empty where they are equal, bounded."""
    if before == after:
        return ""
    pair = [[line[:_WIDE] for line in text.splitlines()] for text in (before, after)]
    cut = max(map(len, pair)) > LINES
    lines = list(difflib.unified_diff(pair[0][:LINES], pair[1][:LINES], name, other, lineterm=""))
    cut = cut or len(lines) > LINES
    text = "\n".join(lines[:LINES])
    if len(text) > LONGEST:
        text, cut = text[:LONGEST], True
    return text + ("\n… the rest is left out" if cut else "")


def _plain(value: Any) -> Any:
    """A value as differences show it: null stands for none at all, so None has its name."""
    if value is None:
        return "None"
    if isinstance(value, (bool, int, float)):
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _WIDE else text[: _WIDE - 1] + "…"


def _differ(values: Sequence[Any]) -> bool:
    # Equal values of other types, such as True and 1, differ.
    return any(type(value) is not type(values[0]) or value != values[0] for value in values[1:]) and not all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and value == values[0] for value in values
    )


def _differing(found: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[RunDifference]:
    rows = [RunDifference(name, [one.get(name) for one in found]) for name in names]
    return [row for row in rows if _differ(row.values)][:MOST]


def _versions(runs: Sequence[StoredRun]) -> list[RunDifference]:
    told: list[dict[str, Any]] = []
    for run in runs:
        environments = run.environments
        first = environments.get(min(environments, default=0))
        if first is None:
            told.append({})
            continue
        devices = dict.fromkeys(device for one in environments.values() for device in one.devices)
        told.append(
            {
                "Python": first.python,
                **first.packages,
                "devices": ", ".join(devices) or "none",
                "platform": first.platform,
                "folder": first.folder,
                "processors": first.cpus or None,
                "ranks": len(run.ranks),
            }
        )
    return _differing(told, list(dict.fromkeys(name for one in told for name in one)))


def _commits(commits: Sequence[RunCommit | None]) -> list[RunDifference]:
    told = [
        {}
        if one is None
        else {
            "commit": one.hash,
            "message": one.message,
            "branch": one.branch,
            "remote": one.remote,
            "uncommitted changes": "yes" if one.dirty else "unknown" if one.notes else "no",
        }
        for one in commits
    ]
    return _differing(told, list(dict.fromkeys(name for one in told for name in one)))


def _code(runs: Sequence[StoredRun], commits: Sequence[RunCommit | None]) -> list[CodeDifference]:
    patches = ["" if one is None else one.diff for one in commits]
    found = []
    for run, patch in zip(runs[1:], patches[1:], strict=True):
        for title, before, after in (
            ("cell", runs[0].source, run.source),
            ("uncommitted changes", patches[0], patch),
        ):
            if diff := unified(before, after, runs[0].label, run.label):
                found.append(CodeDifference(run.id, title, diff))
    return found


def _metrics(runs: Sequence[StoredRun]) -> list[RunDifference]:
    every = [run.figures for run in runs]
    names = list(dict.fromkeys(name for figures in every for name in figures))[: MOST // 3]
    found = []
    for name in names:
        figures = [one.get(name) for one in every]
        for title, values in (
            ("last", [one and one.last for one in figures]),
            ("lowest", [one and one.low for one in figures]),
            ("highest", [one and one.high for one in figures]),
        ):
            found.append(RunDifference(f"{title} {name}", values))
    return found

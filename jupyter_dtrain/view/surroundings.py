"""Ranks' reports on their surroundings, as tables: one for the world, one for each framework.

A value that is the same on all ranks appears once, different ones appear by rank. A rank without a report is named with
the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from jupyter_dtrain.core.framework_report import compare_tested
from jupyter_dtrain.core.processors import describe_processors
from jupyter_dtrain.core.stacks import SILENT, STOPPED
from jupyter_dtrain.core.world import World, count_ranks
from jupyter_dtrain.wire.agent_messages import Surroundings

from .tables import table

MOST_GROUPS = 6
"""How many values of one thing to list; of more, only the first and the last appear."""
NOT_SET = "(not set)"
HIDDEN = "•••"
OPEN = (
    "Other users of this host can connect to the servers by which ranks find each other (MASTER_PORT is one) and that "
    "ask for no password: this system does not let jupyter-dtrain shut them out."
)

Row = tuple[str, str]
"""A value, and a remark about it."""
Rows = dict[str, dict[int, Row]]
"""Name → rank → row."""


def surroundings_tables(
    world: World, found: Mapping[int, Surroundings | None], more: Sequence[str] = ()
) -> dict[str, str]:
    """A MIME bundle. ``found``: by rank; None for a rank without a report. ``more``: sentences below the tables."""
    told = {rank: one for rank, one in found.items() if one is not None}
    who = "" if len(told) == world.size else f", {count_ranks(list(told))}" if told else ""
    bundles = [table(f"World {world.name!r}{who}: variables", *_table(_surroundings(told), list(told)))] if told else []
    absent = []
    for name, title in _titles(told).items():
        if any(one.frameworks[name].version for one in told.values() if name in one.frameworks):
            rows = {**_facts(told, name), **_variables(told, name)}
            bundles.append(table(title, *_table(rows, list(told))))
        else:
            absent.append(title)
    notes = [f"Not installed: {', '.join(absent)}."] if absent else []
    notes += [OPEN] if any(one.open for one in told.values()) else []
    notes += [f"{count_ranks(ranks).capitalize()}: {words}." for words, ranks in _silent(world, found).items()]
    notes += more
    text = "\n".join(notes)
    plain = [bundle["text/plain"] for bundle in bundles]
    html = [bundle["text/html"] for bundle in bundles] + [f"<div>{note}</div>" for note in map(escape, notes)]
    return {"text/plain": "\n\n".join([*plain, *([text] if text else [])]), "text/html": "".join(html)}


def _titles(told: Mapping[int, Surroundings]) -> dict[str, str]:
    """Titles of all frameworks, by name; those that a rank has imported come first."""
    found: dict[str, tuple[bool, str]] = {}
    for one in told.values():
        for name, facts in one.frameworks.items():
            found[name] = (facts.imported or found.get(name, (False, ""))[0], facts.title)
    return {name: title for name, (_, title) in sorted(found.items(), key=lambda item: (not item[1][0], item[1][1]))}


def _facts(told: Mapping[int, Surroundings], name: str) -> Rows:
    rows: Rows = {"version": {}, "imported": {}}
    for rank, one in told.items():
        facts = one.frameworks.get(name)
        if facts is None:
            continue
        rows["version"][rank] = (facts.version, compare_tested(facts.version, facts.tested))
        rows["imported"][rank] = ("yes", "") if facts.imported else ("no", "a rank loads only what its cells import")
        for what, words in facts.details.items():
            value, _, why = words.partition(": ")
            rows.setdefault(what, {})[rank] = (value, why)
    return rows


def _surroundings(told: Mapping[int, Surroundings]) -> Rows:
    """The part that every rank has, whatever its frameworks."""
    seen = {rank: describe_processors(one.processors) for rank, one in told.items() if one.processors is not None}
    return {**_variables(told, ""), **({"processors": seen} if seen else {})}


def _variables(told: Mapping[int, Surroundings], framework: str) -> Rows:
    rows: Rows = {}
    for rank, one in told.items():
        for variable in one.variables:
            if variable.framework == framework:
                value = variable.value if variable.value is not None else HIDDEN if variable.hidden else NOT_SET
                rows.setdefault(variable.name, {})[rank] = (value, variable.why)
    return rows


def _table(rows: Rows, ranks: list[int]) -> tuple[list[str], list[list[str]]]:
    return ["", "value", ""], [
        [what, _by_rank(by_rank, ranks, 0), _by_rank(by_rank, ranks, 1)] for what, by_rank in rows.items()
    ]


def _silent(world: World, found: Mapping[int, Surroundings | None]) -> dict[str, list[int]]:
    """Reasons for missing reports, with their ranks."""
    groups: dict[str, list[int]] = {}
    for rank in [world.ranks[number] for number, one in found.items() if one is None]:
        words = {"dead": f"dead ({rank.words})" if rank.words else "dead", "stopped": STOPPED}.get(rank.state, SILENT)
        groups.setdefault(words, []).append(rank.rank)
    return groups


def _by_rank(rows: Mapping[int, Row], ranks: list[int], at: int) -> str:
    """A value once if all ranks share it, else each value with its ranks. ``at``: 0 for values, 1 for remarks."""
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        if rank in rows and rows[rank][at]:
            groups.setdefault(rows[rank][at], []).append(rank)
    if len(groups) == 1 and (at == 1 or list(groups.values()) == [ranks]):
        return next(iter(groups))
    said = [f"{count_ranks(who)}: {words}" for words, who in groups.items()]
    if len(said) > MOST_GROUPS:
        said = [*said[: MOST_GROUPS - 2], "…", said[-1]]
    return " / ".join(said)

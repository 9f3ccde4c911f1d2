"""The surroundings of ranks as tables: a row for all where they are alike, by rank where they differ."""

from __future__ import annotations

import re

import msgspec
import pytest

from jupyter_dtrain.core.framework_report import FrameworkReport, compare_tested
from jupyter_dtrain.core.processors import Processors
from jupyter_dtrain.core.variables import SeenVariable
from jupyter_dtrain.core.world import Rank, World
from jupyter_dtrain.view.surroundings import OPEN, surroundings_tables
from jupyter_dtrain.wire.agent_messages import Surroundings


def world_of(size: int) -> World:
    return World("w", "w-1", [Rank(rank, 0, "host", rank, "cpu", 100 + rank) for rank in range(size)])


def seen_by(rank: int, **details: str) -> Surroundings:
    """A rank's own number, and a framework that is not there."""
    variables = [SeenVariable("RANK", str(rank), "its number"), SeenVariable("SIZE", "3", "all"), SECRET]
    some = FrameworkReport("Some", "1.2.3", "1.2", imported=bool(details), details=details)
    return Surroundings(
        variables, {"some": some, "none": FrameworkReport("None", "", "1.0", imported=False, details={})}
    )


SECRET = SeenVariable("TOKEN", None, "given by --env, hidden", hidden=True)


def rows(text: str) -> dict[str, list[str]]:
    """The rows of all tables, by their first column."""
    found = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return {row[0]: row[1:] for row in found}


def test_equal_values_come_once_and_others_by_rank():
    """Values and what is to be said of them."""
    found = {0: seen_by(0, on="cpu: no GPU"), 1: seen_by(1, on="cpu: no GPU"), 2: seen_by(2, on="gpu")}
    text = surroundings_tables(world_of(3), found)["text/plain"]

    assert text.startswith("World 'w': variables\n")
    assert rows(text)["RANK"] == ["rank 0: 0 / rank 1: 1 / rank 2: 2", "its number"]
    assert rows(text)["SIZE"] == ["3", "all"]
    assert rows(text)["TOKEN"] == ["•••", "given by --env, hidden"]
    assert rows(text)["version"] == ["1.2.3", "tested with 1.2"]
    assert rows(text)["on"] == ["ranks 0-1: cpu / rank 2: gpu", "no GPU"]
    assert text.endswith("\nNot installed: None.")


def test_a_rank_without_a_value_is_left_out():
    """A rank may lack an import that others have."""
    text = surroundings_tables(world_of(2), {0: seen_by(0), 1: seen_by(1, on="cpu")})["text/plain"]

    assert rows(text)["imported"] == ["rank 0: no / rank 1: yes", "a rank loads only what its cells import"]
    assert rows(text)["on"] == ["rank 1: cpu"]


def test_the_first_and_the_last_of_many_values_are_shown():
    """The world has many ranks."""
    text = surroundings_tables(world_of(64), {rank: seen_by(rank) for rank in range(64)})["text/plain"]

    assert rows(text)["RANK"][0] == "rank 0: 0 / rank 1: 1 / rank 2: 2 / rank 3: 3 / … / rank 63: 63"


def test_ranks_that_say_nothing_are_named_with_why():
    """Ranks may be dead, stopped or silent; where no rank answers there is no table."""
    ranks = world_of(4).ranks
    dead = msgspec.structs.replace(ranks[1], state="dead", words="rank 1 was killed")
    world = World("w", "w-1", [ranks[0], dead, msgspec.structs.replace(ranks[2], state="stopped"), ranks[3]])
    text = surroundings_tables(world, {0: seen_by(0), 1: None, 2: None, 3: None})["text/plain"]

    assert text.startswith("World 'w', rank 0: variables\n")
    assert "Rank 1: dead (rank 1 was killed).\nRank 2: stopped (SIGSTOP)" in text
    assert "Rank 3: no answer" in text
    assert surroundings_tables(world, {1: None})["text/plain"] == "Rank 1: dead (rank 1 was killed)."


def test_html_has_the_same_and_is_escaped():
    """A table for the variables, one for the framework."""
    found = surroundings_tables(world_of(1), {0: seen_by(0, on="<b>")})["text/html"]

    assert found.count("<table>") == 2
    assert "&lt;b&gt;" in found
    assert "Not installed: None." in found


@pytest.mark.parametrize(
    ("version", "tested", "words"),
    [
        ("2.13.0+cpu", "2.13", "tested with 2.13"),
        ("2.13.7", "2.13", "tested with 2.13"),
        ("2.14.0a0+git", "2.13", "newer than the tested version, 2.13"),
        ("3.0", "2.13", "newer than the tested version, 2.13"),
        ("2.9.1", "2.13", "older than the tested version, 2.13"),
        ("unknown", "2.13", "tested with 2.13"),
        ("2.11.0+cu130", "2.11 and 2.13", "tested with 2.11 and 2.13"),
        ("2.12", "2.11 and 2.13", "tested with 2.11 and 2.13"),
        ("2.13.1", "2.11 and 2.13", "tested with 2.11 and 2.13"),
        ("2.10.9", "2.11 and 2.13", "older than the tested versions, 2.11 and 2.13"),
        ("2.14", "2.11 and 2.13", "newer than the tested versions, 2.11 and 2.13"),
    ],
)
def test_a_version_other_than_the_tested_one_is_reported(version, tested, words):
    """Numbers are compared, not texts."""
    assert compare_tested(version, tested).startswith(words)


def test_servers_that_hear_other_users_are_told_once():
    """One rank of each host knows; where they hear this user alone, nothing is said."""
    found = {rank: seen_by(rank) for rank in range(3)}
    assert OPEN not in surroundings_tables(world_of(3), found)["text/plain"]
    for rank in (0, 2):
        found[rank] = msgspec.structs.replace(found[rank], open=True)
    for text in surroundings_tables(world_of(3), found).values():
        assert text.count(OPEN) == 1


def test_processors_are_a_row_beside_the_variables():
    """By rank where hosts differ; a rank that does not know its own has no part in it."""
    of_host = {0: Processors([0, 1, 2, 3], [0, 2]), 1: Processors([6], [6], 0.5), 2: None}
    found = {rank: msgspec.structs.replace(seen_by(rank), processors=one) for rank, one in of_host.items()}
    text = surroundings_tables(world_of(3), found)["text/plain"]

    numbers, remark = rows(text)["processors"]
    assert numbers == "rank 0: 0-3 / rank 1: 6"
    assert remark.startswith("rank 0: 2 cores on which this rank may run / rank 1: 1 core on which")
    assert remark.endswith("with a quota of 0.5 processors")

"""The server's messages are those that the front end reads."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import msgspec
import pytest

from jupyter_dtrain.server.messages import AnyMessage, World

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "front_end_types.py"


@pytest.fixture(scope="module")
def types():
    """The script that makes the front end's types."""
    spec = importlib.util.spec_from_file_location("front_end_types", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_front_ends_types_are_those_of_the_structs(types) -> None:
    """Else: python scripts/front_end_types.py."""
    assert types.FILE.read_text() == types.generated()


def test_the_options_that_pills_know_are_those_of_the_parser(types) -> None:
    """All that take a value, and no switch."""
    line = next(line for line in types.options().splitlines() if "VALUED_OPTIONS" in line)
    listed = set(msgspec.json.decode(line.partition(" = ")[2].rstrip(";")))

    names = ("check", "check-every", "inputs", "name", "output", "pull", "ranks", "replay", "timeout", "hosts", "nodes")
    assert {*(f"--{name}" for name in names), "-i", "-o", "-r", "-n", "-N"} <= listed
    assert {"--run", "--every"} <= listed, "a cell of the release before has the former names"
    assert not {"--no-wait", "--no-metrics", "--elastic", "--slurm", "--auto-replace"} & listed


class Row(msgspec.Struct, array_like=True):
    """A row."""

    rank: int
    state: str | None


class Part(msgspec.Struct, tag_field="type", tag="part"):
    """A part."""

    rows: list[Row]
    """All of them."""
    left: float | msgspec.UnsetType = msgspec.UNSET


def test_a_struct_becomes_an_interface(types) -> None:
    """It has the comments; an optional field has a question mark, and rows are tuples."""
    found = {}
    types.collect(Part, found)

    part = """/** A part. */
export interface Part {
  type: "part";
  /** All of them. */
  rows: Row[];
  left?: number;
}"""
    assert [found[Row], found[Part]] == [
        "/** A row. */\nexport type Row = [\n  rank: number,\n  state: string | null,\n];",
        part,
    ]


def test_a_message_says_what_it_is() -> None:
    """The page tells messages apart by their type."""
    tags = sorted(kind.__struct_config__.tag for kind in AnyMessage.__args__)

    assert tags == ["attention", "news", "ranks", "run", "worlds"]
    with pytest.raises(TypeError):
        World(id="a world without the rest")

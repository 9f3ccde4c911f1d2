"""The tables of memory: devices, many ranks, and ranks that differ."""

from __future__ import annotations

from jupyter_dtrain.core.memory import DeviceMemory, Footprint, FreedMemory, HeldMemory, RankMemory
from jupyter_dtrain.core.world import Rank, World
from jupyter_dtrain.view.memory import RANKS, freed_words, memory_tables

OWN = Footprint(3_000_000_000, 2_500_000_000, 4_000_000_000, 64_000_000)


def world(size: int) -> World:
    """A world of so many ranks, all alive."""
    return World("world", "an-id", [Rank(rank, 0, "here", rank, f"cuda:{rank}", 100 + rank) for rank in range(size)])


def held(name: str, size: int, device: str, *, old: bool = False) -> HeldMemory:
    """A piece of memory."""
    return HeldMemory([name], 0, "parameter", False, "Parameter", [size // 4], "float32", device, size, old)


def on_device(rank: int, *pieces: HeldMemory) -> RankMemory:
    """The memory of a rank with a device of its own."""
    named = {f"cuda:{rank}": sum(one.size for one in pieces)}
    old = {f"cuda:{rank}": sum(one.size for one in pieces if one.old)}
    devices = [DeviceMemory(f"cuda:{rank}", 900_000_000, 1_200_000_000, 1_100_000_000)]
    kinds = {"parameter": sum(one.size for one in pieces)}
    kept = {device: size for device, size in old.items() if size}
    return RankMemory(OWN, devices, list(pieces), len(pieces), named, kinds, kept, False, False)


def test_a_device_has_columns_and_pieces_on_several_devices_share_a_row():
    """The memory that no name was found for stands beside what is named."""
    found = {rank: on_device(rank, held("model.weight", 600_000_000, f"cuda:{rank}")) for rank in range(2)}
    lines = memory_tables(world(2), found, 20)["text/plain"].splitlines()

    assert lines[2].split() == (
        [
            "0",
            "3",
            "GB",
            "2.5",
            "GB",
            "4",
            "GB",
            "64",
            "MB",
            "0",
            "bytes",
            "3",
            "GB",
            "cuda:0",
            "900",
            "MB",
            "1.2",
            "GB",
            "1.1",
            "GB",
            "600",
            "MB",
            "300",
            "MB",
        ]
    )
    (row,) = [line for line in lines if "model.weight" in line]
    assert row.split()[-2:] == ["cuda", "all"]
    assert lines[-1] == "Named on ranks 0-1: 600 MB of parameters."


def test_what_only_one_rank_has_is_told_of_that_rank():
    """A sentence names it."""
    found = {0: on_device(0), 1: on_device(1, held("Out[3]", 8_000_000, "cuda:1", old=True)), 2: None}
    text = memory_tables(world(3), found, 20)["text/plain"]

    assert "Only old outputs or the last error keep 8 MB on rank 1: %distributed free lets go of it." in text
    assert "Named on rank 0: nothing." in text
    assert text.endswith("Rank 2: no answer.")


def test_a_large_world_has_a_table_that_can_be_read():
    """All its ranks are in the second table and in the sentences."""
    size = 4 * RANKS
    found = {rank: on_device(rank, held("model.weight", 600_000_000, f"cuda:{rank}")) for rank in range(size)}
    lines = memory_tables(world(size), found, 20)["text/plain"].splitlines()

    assert len(lines) < RANKS + 12
    assert f"The first table has the lowest {RANKS} of {size} ranks; -r chooses others." in lines
    assert f"Named on ranks 0-{size - 1}: 600 MB of parameters." in lines


def test_what_came_free_is_told_by_groups_of_ranks():
    """One that had nothing says so."""
    much, nothing = FreedMemory(84_000_000, 1_200_000_000, 12, True), FreedMemory(0, 0, 0, False)

    came = "1.2 GB of the GPU's memory and 84 MB of the host's memory came free"
    assert freed_words({0: much, 1: much, 2: nothing}).splitlines() == [
        f"Ranks 0-1: let go of 12 old outputs and the last error; {came}.",
        "Rank 2: nothing old to let go of; next to no memory came free.",
    ]

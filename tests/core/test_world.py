"""Ranks as people write them, places of ranks, and the environment that follows from them."""

from __future__ import annotations

import pytest

from jupyter_dtrain import BadRequest, Rank, World
from jupyter_dtrain.core.variables import values_of
from jupyter_dtrain.core.world import (
    check_environment,
    check_name,
    count_ranks,
    format_ranks,
    parse_ranks,
    placements,
    rank_environment,
)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("all", [0, 1, 2, 3, 4, 5, 6, 7]),
        (" ALL ", [0, 1, 2, 3, 4, 5, 6, 7]),
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("0", [0]),
        ("-1", [7]),
        ("-8", [0]),
        ("0,2", [0, 2]),
        ("2, 0 ,2", [0, 2]),
        ("1-3", [1, 2, 3]),
        ("5 - 7", [5, 6, 7]),
        ("0,4-5,-1", [0, 4, 5, 7]),
        ("3,", [3]),
        (range(2, 4), [2, 3]),
        ({7, 1}, [1, 7]),
        (-8, [0]),
    ],
)
def test_ranks_are_read_in_every_form(text, ranks):
    """Ascending, each once, negative ones from the end."""
    assert ranks == parse_ranks(text, 8)


@pytest.mark.parametrize(
    "ranks",
    [
        "",
        ",",
        "8",
        "-9",
        "0-8",
        "3-1",
        "a",
        "1..3",
        "1-",
        "--1",
        "1--1",
        "0x1",
        "1e0",
        "all,0",
        [],
        [8],
        8,
        -9,
        False,
        2.0,
        object(),
        [True],
        ["0"],
        [0.0],
    ],
)
def test_a_selection_of_no_rank_is_refused(ranks):
    """The error is a request error, never another."""
    with pytest.raises(BadRequest):
        parse_ranks(ranks, 8)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([0], "0"), ([0, 1], "0-1"), ([3, 1, 2, 5], "1-3,5"), ([0, 2, 4], "0,2,4"), ([], ""), ([1, 1], "1")],
)
def test_ranks_are_written_in_the_shortest_form(ranks, text):
    """The text reads back as the same ranks."""
    assert text == format_ranks(ranks)
    assert not ranks or sorted(set(ranks)) == parse_ranks(text, 8)


def test_ranks_are_counted_in_words():
    """One, several."""
    assert ("rank 2", "ranks 0-1,3") == (count_ranks([2]), count_ranks([0, 1, 3]))


def test_a_rank_of_a_world_of_one_is_named_as_such():
    """The message names what there is."""
    with pytest.raises(BadRequest, match="this world has rank 0 only"):
        parse_ranks(1, 1)


def test_ranks_of_one_node_follow_the_order_of_the_world():
    """Local rank and rank are the same."""
    assert [(rank, 3, rank, 3, 0, 1) for rank in range(3)] == [
        (p.rank, p.size, p.local_rank, p.local_size, p.node, p.nodes) for p in placements(["a"] * 3)
    ]


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("aabb", [(0, 2, 0), (1, 2, 0), (0, 2, 1), (1, 2, 1)]),
        ("abab", [(0, 2, 0), (0, 2, 1), (1, 2, 0), (1, 2, 1)]),
        ("baaa", [(0, 1, 0), (0, 3, 1), (1, 3, 1), (2, 3, 1)]),
        ("zayz", [(0, 2, 0), (0, 1, 1), (0, 1, 2), (1, 2, 0)]),
    ],
)
def test_several_nodes_are_numbered_by_their_lowest_rank(hosts, expected):
    """(local rank, ranks on the node, node) of each rank: by block, in turn, uneven, in any order of names."""
    places = placements(list(hosts))

    assert expected == [(p.local_rank, p.local_size, p.node) for p in places]
    assert {(len(hosts), len(set(hosts)))} == {(p.size, p.nodes) for p in places}


def test_the_environment_of_several_nodes_is_torchruns():
    """Rank 3 is the second of the second node of two."""
    env = rank_environment(placements(list("aaabb"))[4], master_addr="10.0.0.1", master_port=29500, run_id="id")
    assert all(variable.why for variable in env.values())

    assert {
        "RANK": "4",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "NODE_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "4",
        "ROLE_WORLD_SIZE": "5",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "id",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    } == values_of(env)


def test_torchrun_sets_nothing_that_we_leave_out(tmp_path):
    """Asked of the torchrun that is installed: every variable that it adds to a worker's environment."""
    pytest.importorskip("torch", reason="torch is not installed")
    import json
    import os
    import subprocess
    import sys

    script = tmp_path / "worker.py"
    script.write_text(f"import json, os\njson.dump(dict(os.environ), open({str(tmp_path / 'env.json')!r}, 'w'))\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", str(script)]
    subprocess.run(command, check=True, timeout=100, capture_output=True)
    added = set(json.loads((tmp_path / "env.json").read_text())) - set(os.environ)
    ours = set(rank_environment(placements(["a"])[0], master_addr="a", master_port=1, run_id="x"))
    # The launcher's own: the places of its logs and of workers' error files, and additions of Python and torch.
    theirs = {name for name in added if name.startswith(("TORCHELASTIC_", "MASTER_"))} | {
        name for name in added if name.endswith(("RANK", "WORLD_SIZE"))
    }

    assert {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"} >= theirs - ours


@pytest.mark.parametrize("name", ["world", "a", "1", "World-2", "a.b_c-d", "x" * 40])
def test_an_ordinary_name_names_a_world(name):
    """The world gets the name as it is."""
    assert name == check_name(name)


@pytest.mark.parametrize("name", ["", "-a", ".a", "_a", "a b", "a/b", "a\n", "é", "x" * 41, "..", "a:b", "$HOME"])
def test_an_odd_name_does_not(name):
    """It would become part of a folder's name."""
    with pytest.raises(BadRequest, match="cannot name a world"):
        check_name(name)


def test_variables_have_names_and_values_that_can_be():
    """No message shows a value: it may be a secret."""
    check_environment({"A": "", "b_c": "x=y"})
    for env in ({"": "hunter2"}, {"A=B": "hunter2"}, {"A\0": "hunter2"}, {"A": "hunter2\0"}):
        with pytest.raises(BadRequest) as caught:
            check_environment(env)
        assert "hunter2" not in str(caught.value)


def test_a_world_knows_its_nodes_and_its_dead():
    """The representation needs its ranks alone."""
    ranks = [
        Rank(0, 0, "a", 0, "cpu", 10),
        Rank(1, 1, "b", 0, "cpu", 11, "dead", "rank 1 was killed"),
        Rank(2, 0, "a", 1, "cpu", 12),
    ]
    world = World("name", "id", ranks)

    assert 3 == world.size
    assert [(0, "a", [0, 2]), (1, "b", [1])] == [(node.index, node.host, node.ranks) for node in world.nodes]
    assert [ranks[1]] == world.dead

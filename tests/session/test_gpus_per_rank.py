"""``--gpus-per-rank``: the GPUs that each rank sees, by a driver's program that lists four; no framework looks here."""

from __future__ import annotations

import os

import pytest

from jupyter_dtrain import BadRequest, ReplaceFailed, Session, StartFailed
from tests.session.cells import run, values

pytestmark = pytest.mark.here("it puts another program in front of the driver's")

SEEN = """
import os
os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ["LOCAL_RANK"]
"""
WHY = "the rank's own GPUs, of --gpus-per-rank"


@pytest.fixture(autouse=True)
def four(tmp_path, monkeypatch):
    """Four GPUs, all of them visible; the PATH without them."""
    smi, before = tmp_path / "nvidia-smi", os.environ["PATH"]
    smi.write_text('#!/bin/sh\nfor i in 0 1 2 3; do echo "GPU $i: A (UUID: GPU-$i)"; done\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{before}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return before


def test_each_rank_sees_its_own_in_order_and_the_machine_has_as_many_ranks_as_it_has_gpus_for():
    """Also after a restart; more ranks than that are refused, and the world stays as it is."""
    with Session.start(gpus_per_rank=2) as session:
        assert [rank.device for rank in session.world.ranks] == ["cuda:0,1", "cuda:2,3"]
        assert values(run(session, SEEN)) == {0: ("0,1", "0"), 1: ("2,3", "1")}
        (info,) = (one for one in session.info(1).values() if one is not None)
        assert [one.why for one in info.variables if one.name == "CUDA_VISIBLE_DEVICES"] == [WHY]
        with pytest.raises(ReplaceFailed, match=r"it has 4 GPUs, too few for 3 ranks with 2 each"):
            session.resize(3)
        session.restart()
        assert values(run(session, SEEN)) == {0: ("0,1", "0"), 1: ("2,3", "1")}


def test_the_variable_says_which_gpus_there_are():
    """By number and by UUID, as the person gave them; a rank gets its share of these."""
    with Session.start(n=2, gpus_per_rank=1, env={"CUDA_VISIBLE_DEVICES": "3,GPU-1,0"}) as session:
        assert values(run(session, SEEN)) == {0: ("3", "0"), 1: ("GPU-1", "1")}


def test_without_the_option_each_rank_sees_all_gpus():
    """As under torchrun."""
    with Session.start(n=1) as session:
        assert session.world.ranks[0].device == "cuda:0"
        assert values(run(session, SEEN)) == {0: (None, "0")}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"gpus_per_rank": 3}, "This machine has 4 GPUs, which ranks with 3 each do not divide.* such as -n 1, to"),
        (
            {"gpus_per_rank": 2, "n": 3},
            "This machine has 4 GPUs, too few for 3 ranks with 2 GPUs each. Ask for at most 2",
        ),
        ({"gpus_per_rank": 5}, "4 GPUs, too few for a rank with 5 GPUs. Give --gpus-per-rank at most 4."),
        ({"gpus_per_rank": 0}, "gpus_per_rank must be a whole number, at least 1"),
        ({"gpus_per_rank": 1, "env": {"CUDA_VISIBLE_DEVICES": "-1"}}, "This machine has no GPU, .* Leave out --gpus"),
    ],
)
def test_what_the_machine_cannot_give_is_refused_before_anything_starts(asked, words):
    with pytest.raises(BadRequest, match=words) as caught:
        Session.start(**asked)
    assert caught.value.option == ("n" if "n" in asked else "gpus_per_rank")


def test_a_host_with_too_few_gpus_fails_the_start(four):
    """Only the host itself knows how many it has: here its PATH has no driver's program."""
    with pytest.raises(StartFailed, match=r"has no GPU, too few for [12] ranks? with 2 GPUs each"):
        Session.start(n=2, gpus_per_rank=2, env={"PATH": four})

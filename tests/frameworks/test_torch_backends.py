"""The backend that a rank takes, and its words on one that cannot work, with GPUs as torch would count them."""

from __future__ import annotations

import re

import pytest

from jupyter_dtrain.core.world import placements
from jupyter_dtrain.frameworks.torch.backends import Backends

torch = pytest.importorskip("torch", reason="torch is not installed")
GLOO = 'init_process_group("gloo") works here'


@pytest.fixture
def counted(monkeypatch):
    """``counted(gpus, has=…)``: so many GPUs, and a torch with these backends besides gloo."""

    def count(gpus: int, *, has: tuple[str, ...] = ("nccl",)) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        for name in ("nccl", "mpi", "ucc", "xccl"):
            monkeypatch.setattr(torch.distributed, f"is_{name}_available", lambda name=name: name in has)

    return count


def backends(wanted: str = "auto") -> Backends:
    """The back ends of the second of two ranks on one host."""
    return Backends(placements(["host", "host"])[1], wanted)


def check(one: Backends, backend: str, *, by_option: bool = False, whole: bool = True) -> None:
    one.check(torch.distributed, backend, by_option=by_option, whole=whole)


@pytest.mark.parametrize(
    ("gpus", "has", "backend", "why"),
    [
        (0, ("nccl",), "gloo", "no GPUs for 2 ranks of this host"),
        (1, ("nccl",), "gloo", "1 GPU for 2 ranks of this host"),
        (2, ("nccl",), "cpu:gloo,cuda:nccl", "2 GPUs for 2 ranks of this host"),
        (2, (), "gloo", "this PyTorch is built without NCCL"),
    ],
)
def test_the_backend_that_fits_is_taken(counted, gpus, has, backend, why):
    """The backend can be set up."""
    counted(gpus, has=has)
    one = backends()

    assert one.choose() == one.choose(at_set_up=True) == (backend, why)
    check(one, backend)


def test_a_rank_with_gpus_of_its_own_shares_them_with_no_other(counted):
    """``--gpus-per-rank``: two ranks of one host, of which each sees one GPU, another one."""
    counted(1)
    own = Backends(placements(["host", "host"])[1], "auto", own_gpus=True)

    assert own.choose() == ("cpu:gloo,cuda:nccl", "1 GPU for this rank")
    check(own, "nccl")


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (0, "NCCL needs a GPU, and PyTorch finds none in rank 1."),
        (1, "NCCL needs one GPU for each rank, but the 2 ranks of this host share 1 GPU."),
    ],
)
def test_nccl_without_a_gpu_for_each_rank_is_refused_with_what_works(counted, gpus, words):
    """Named in a cell, or when the world was started."""
    counted(gpus)
    with pytest.raises(
        ValueError,
        match=re.escape(f'init_process_group("nccl"): {words} {GLOO}; init_process_group() without a backend'),
    ):
        check(backends(), "nccl")
    with pytest.raises(ValueError, match=re.escape(f"--torch-backend nccl: {words} {GLOO}; a world started without")):
        check(backends("nccl"), backends("nccl").choose()[0], by_option=True)


def test_nccl_is_left_to_torch_where_it_may_work(counted, monkeypatch):
    """It may work for some ranks of the world, beside gloo, and where a cell has chosen a GPU for each rank."""
    counted(1)
    check(backends(), "nccl", whole=False)
    check(backends(), "cpu:gloo,cuda:nccl")
    one = backends()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    check(one, "nccl")


@pytest.mark.parametrize("backend", ["mpi", "MPI", "cpu:mpi", "cpu:gloo,cuda:ucc", "xccl"])
def test_a_backend_that_is_not_built_in_is_refused_with_those_that_are(counted, backend):
    """The GPUs do not matter."""
    counted(2)
    with pytest.raises(
        RuntimeError, match=r"is built without (MPI|UCC|XCCL); it has gloo, nccl\. .* works here; .* (comes|has it)"
    ):
        check(backends(), backend)


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo", "fake", "no-such-backend", torch.distributed.Backend("gloo")])
def test_an_unknown_back_end_is_left_to_torch(counted, backend):
    """Backends of others, and slips of the keyboard."""
    counted(0)
    check(backends(), backend)

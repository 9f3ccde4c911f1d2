"""Tensors travel between notebook and ranks beside their pickles, and arrive as they are."""

from __future__ import annotations

import pytest

from jupyter_dtrain.wire.lent_memory import LentMemory
from jupyter_dtrain.wire.values import LARGE, Received, pack, pickle_values
from tests.session.cells import run, same, values

torch = pytest.importorskip("torch")

PLAIN = {
    "float32": lambda: torch.arange(LARGE, dtype=torch.float32).reshape(4, -1),
    "bfloat16": lambda: torch.ones(LARGE, dtype=torch.bfloat16),
    "bool": lambda: torch.ones(LARGE, dtype=torch.bool),
    "complex": lambda: torch.ones(LARGE, dtype=torch.complex64),
    "a part": lambda: torch.arange(4 * LARGE).reshape(4, -1)[1:3],
    "data of a leaf": lambda: torch.ones(LARGE, requires_grad=True).data,
}
OTHERS = {
    "small": lambda: torch.ones(3),
    "in pieces": lambda: torch.arange(LARGE, dtype=torch.float32).reshape(4, -1).t(),
    "a leaf": lambda: torch.ones(LARGE, requires_grad=True),
    "conjugate": lambda: torch.full((LARGE,), 1j).conj(),
    "sparse": lambda: torch.eye(1500).to_sparse(),
    "named": lambda: _with_attribute(torch.ones(LARGE)),
}


def _with_attribute(tensor):
    tensor.meaning = "weights"
    return tensor


def sent(value, *, whole=False):
    """The value as a rank gets it, and the bytes of its pickle."""
    pickled = pickle_values({"got": value}, whole=whole)
    parcel = pack(pickled, None if whole else LentMemory.lend())
    got = next(iter(Received(parcel.values, parcel.frames, parcel.place))).load()
    parcel.close()
    return got, len(pickled[0].data)


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_plain_tensors_are_beside_their_pickles(make):
    """Also in a message; what arrives can be written and trained."""
    value = make()
    for whole in (False, True):
        got, pickled = sent(value, whole=whole)
        assert (pickled < 1000) is not whole
        assert got.dtype == value.dtype
        assert torch.equal(got, value)
        got[...] = 0


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_other_tensors_are_torch_s_affair(make):
    value = make()
    got, _ = sent(value)

    assert (got.layout, got.requires_grad, got.is_conj()) == (value.layout, value.requires_grad, value.is_conj())
    assert torch.equal(got.to_dense() if got.is_sparse else got, value.to_dense() if value.is_sparse else value)
    assert vars(got) == vars(value)


def test_a_module_goes_beside_its_pickle_and_learns():
    module = torch.nn.Linear(1000, 1000)
    module.tied = module.weight
    got, pickled = sent(module)

    assert pickled < 20_000
    assert got.tied is got.weight
    assert torch.equal(got.weight, module.weight)
    got(torch.ones(1, 1000)).sum().backward()
    torch.optim.SGD(got.parameters(), 0.1).step()
    assert not torch.equal(got.weight, module.weight)


def test_the_default_device_does_not_matter():
    value = torch.ones(LARGE)
    with torch.device("meta"):
        got, _ = sent(value)

    assert torch.equal(got, value)


def test_tensors_go_to_ranks_and_back(torch_pair):
    """The ranks import torch by that."""
    torch_pair.push({"got": torch.ones(LARGE)})

    assert same(float(LARGE), torch_pair.world.size) == values(run(torch_pair, "got += 0; got.sum().item()"))
    assert all(torch.equal(got, torch.ones(LARGE)) for got in torch_pair["got"].values())

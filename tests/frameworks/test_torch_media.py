"""Tensors are logged as pictures and distributions, and a model's weights while it trains."""

from __future__ import annotations

import msgspec
import pytest

from jupyter_dtrain import Histogram, Image, Store
from jupyter_dtrain.frameworks.torch.plugin import Torch
from jupyter_dtrain.rank.plugins import Plugins
from tests.rank.test_media import PATIENCE, Said, pixels
from tests.session.cells import run
from tests.steward.until import until

torch = pytest.importorskip("torch")


@pytest.fixture
def said():
    plugins = Plugins([("torch", Torch())])
    return Said(lambda value: plugins.parts("value", value, {}))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int64", "uint8", "bool"])
def test_tensors_of_every_type_are_taken(said, dtype):
    """As pictures and as distributions, whatever their graph and layout are."""
    tensor = torch.eye(5, 6).to(getattr(torch, dtype))
    if tensor.is_floating_point():
        tensor.requires_grad_()
    found = said.one(Image(tensor.t()))
    told = msgspec.json.decode(said.one(Histogram(tensor.t(), bins=2)).data)

    assert (pixels(found) > 0).tolist() == (torch.eye(6, 5) > 0).tolist()
    assert told["counts"] == [25, 5]


def test_a_copy_is_of_the_values_at_the_call(said):
    tensor = torch.zeros(3, 3)
    said.log.log("picture", tensor, 0)
    said.log.log("values", Histogram(tensor), 0)
    tensor += 1
    said.log.end(PATIENCE)

    assert pixels(said.kept("picture")[0]).max() == 0
    assert msgspec.json.decode(said.kept("values")[0].data)["highest"] == 0


def test_tensors_without_values_get_a_reason(said):
    for tensor in (torch.zeros(4, 4, device="meta"), torch.zeros(4, 4, dtype=torch.complex64)):
        with pytest.raises(ValueError, match=r"no values yet|it is complex"):
            said.log.log("it", Histogram(tensor), 0)
    sparse = torch.eye(4).to_sparse()
    assert msgspec.json.decode(said.one(Histogram(sparse, bins=1)).data)["total"] == 4


CELL = """
import jupyter_dtrain as dt
torch.manual_seed(rank)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dt.log_weights(model, every=2)
dt.log_weights(3)
for step in range(5):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).mean().backward()
    optimizer.step()
    dt.log(batch=torch.rand(2, 1, 8, 8))
"""


def test_weights_are_kept_while_an_optimizer_steps(torch_pair):
    """Parameters and gradients after every so many steps, with the step of the optimizer's points, on each rank."""
    ran = run(torch_pair, CELL)
    found = until(lambda: (kept := Store.open().run_of(ran)).outcome == "ok" and kept)
    names = {one.name for one in found.media}
    tensors = [f"model.{layer}.{kind}" for layer in (0, 1) for kind in ("bias", "weight")]

    assert names == {"batch", *(f"{kind}/{name}" for kind in ("weights", "gradients") for name in tensors)}
    for kind in ("weights", "gradients"):
        kept = [one for one in found.media if one.name == f"{kind}/model.0.weight"]
        assert [(one.step, one.rank) for one in kept] == [(step, rank) for step in (1, 3) for rank in (0, 1)]
        assert msgspec.json.decode(kept[0].data)["total"] == 12
    assert found.media_logged["batch"] == {0: 10, 1: 10}
    assert "log_weights(): int is no model whose parameters are known here" in ran.text(0, "stderr")

"""A read of a device's tensor is a wait for the device, also while a collective is under way: never communication."""

from __future__ import annotations

import ast

import pytest

from jupyter_dtrain.frameworks.torch.step_parts import part_at
from jupyter_dtrain.plugins.framework import Doing

torch = pytest.importorskip("torch")


def part(expression, **variables):
    """What ``expression`` does, called from a frame that has these variables."""
    code = "import sys\ndef here():\n    return sys._getframe()\nframe = here()"
    scope = dict(variables)
    exec(code, scope)  # noqa: S102 — a frame of its own, whose globals are the variables
    return part_at(scope["frame"], ast.parse(expression, mode="eval").body)


@pytest.fixture(scope="module")
def loss():
    """A tensor of a CUDA device, without one: PyTorch's own fake tensors have everything but values."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(1, device="cuda")


@pytest.mark.parametrize("read", ["loss.item()", "loss.tolist()", "loss.cpu()", "float(loss)"])
def test_a_read_waits_for_the_device(loss, read):
    assert part(read, loss=loss) == Doing("device")


@pytest.mark.parametrize("read", ["loss.item()", "loss.tolist()", "float(loss)"])
def test_a_read_of_the_host_waits_for_nothing(read):
    assert part(read, loss=torch.ones(1)) is None


def test_a_wait_for_a_collective_is_one(loss):
    assert part("work.wait()", work=torch.futures.Future(), loss=loss) == Doing("communication", "wait")

"""Lightning, Accelerate and Transformers on a CUDA device: they find it by themselves, and their losses are true."""

from __future__ import annotations

import importlib.util

import pytest

from tests.frameworks.test_libraries import code_of, play, true_losses
from tests.frameworks.torch_curves import points

pytestmark = pytest.mark.gpu

NOTED = "losses.append(loss.item())"


def on_cuda(library):
    """The program of the tests on processors, which also notes the device of each loss."""
    code = code_of(library)
    assert code.count(NOTED) == 1
    code = code.replace(NOTED, f"{NOTED}; devices.add(loss.device.type)")
    return "devices = set()\n" + code.replace('accelerator="cpu"', 'accelerator="gpu"')


@pytest.mark.parametrize(
    "library",
    [
        pytest.param(
            one,
            marks=pytest.mark.skipif(importlib.util.find_spec(one) is None, reason=f"needs {one}: it is not installed"),
        )
        for one in ("lightning", "accelerate", "transformers")
    ],
)
def test_a_program_trains_on_the_device_and_shows_its_true_loss(begun, library):
    """Twice in a world; the second training finds what the first has set up."""
    session = begun(1)
    for _ in range(2):
        run, found = play(session, on_cuda(library), "(devices, losses)")
        used, losses = found[0]

        assert used == {"cuda"}
        assert [value for _, value in points(run, "loss")] == pytest.approx(true_losses(losses), rel=1e-4)
        assert points(run, "lr")
    session.stop()

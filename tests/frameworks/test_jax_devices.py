"""JAX's share of a GPU's memory in each rank, and its errors when memory runs out; both without a GPU."""

from __future__ import annotations

import pytest

from jupyter_dtrain.core.world import placements
from jupyter_dtrain.frameworks.jax.plugin import MEMORY, Jax, memory_variables


@pytest.fixture
def place(monkeypatch):
    """The second of four ranks on one host, in an environment that says nothing of memory."""
    for name in MEMORY:
        monkeypatch.delenv(name, raising=False)
    return placements(["host"] * 4)[1]


@pytest.mark.parametrize(("gpus", "share"), [(1, "0.188"), (2, "0.375"), (3, "0.375")])
def test_ranks_that_share_a_gpu_divide_what_jax_takes_of_it(place, gpus, share):
    """The rank that shares it with most others decides: all of them fit."""
    assert {name: one.value for name, one in memory_variables(place, gpus).items()} == {MEMORY[0]: share}


@pytest.mark.parametrize("gpus", [0, 4, 8])
def test_a_rank_with_a_gpu_of_its_own_or_without_one_is_left_alone(place, gpus):
    assert memory_variables(place, gpus) == {}


@pytest.mark.parametrize("name", MEMORY)
def test_a_choice_of_the_users_own_counts(place, monkeypatch, name):
    """JAX refuses two of these variables together."""
    monkeypatch.setenv(name, "false")

    assert memory_variables(place, 1) == {}


def test_an_error_of_xlas_says_whether_memory_ran_out():
    """XLA has one class for all errors; it is called by an older name in older versions."""
    kinds = [type(name, (RuntimeError,), {}) for name in ("JaxRuntimeError", "XlaRuntimeError")]
    plugin = Jax()

    for kind in kinds:
        assert plugin.is_out_of_memory(kind("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes."))
        assert not plugin.is_out_of_memory(kind("INTERNAL: something else"))
    assert not plugin.is_out_of_memory(RuntimeError("RESOURCE_EXHAUSTED"))

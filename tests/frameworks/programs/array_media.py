"""Arrays of JAX and TensorFlow are logged as pictures and distributions. ../test_array_media.py runs it."""

from __future__ import annotations

import importlib

import msgspec
import numpy as np
import pytest

from jupyter_dtrain import Histogram
from jupyter_dtrain.rank.plugins import Plugins
from tests.rank.test_media import Said, pixels

LIBRARIES = {"jax": ("jax.numpy", "Jax"), "tensorflow": ("tensorflow", "TensorFlow")}
VALUES = np.arange(30, dtype="uint8").reshape(5, 6)


@pytest.fixture(params=list(LIBRARIES))
def library(request):
    """The library's module that makes arrays, and a log of media that knows them."""
    module, name = LIBRARIES[request.param]
    made = pytest.importorskip(module)
    plugin = importlib.import_module(f"jupyter_dtrain.frameworks.{request.param}.plugin")
    plugins = Plugins([(request.param, getattr(plugin, name)())])
    return made, Said(lambda value: plugins.parts("value", value, {}))


def test_arrays_are_taken(library):
    made, said = library
    array = made.constant(VALUES) if hasattr(made, "constant") else made.asarray(VALUES)
    found = said.one(array)
    told = msgspec.json.decode(said.one(Histogram(array, bins=3)).data)

    assert pixels(found).tolist() == VALUES.tolist()
    assert told["counts"] == [10, 10, 10]


def test_values_of_a_function_that_is_traced_are_left_to_others(library):
    """They have none yet: the words for numbers say so."""
    made, said = library
    seen = []

    def function(value):
        seen.append(said.log.log("it", value, 0))
        return value

    if hasattr(made, "function"):
        made.function(function, autograph=False)(made.constant(VALUES))
    else:
        importlib.import_module("jax").jit(function)(made.asarray(VALUES))

    assert seen == [False]

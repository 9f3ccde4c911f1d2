"""The variables of ranks in words."""

from __future__ import annotations

import pytest

from jupyter_dtrain.core.contents import NamedValue
from jupyter_dtrain.view.contents import inventory_words

OWN = {
    "rank": lambda rank: NamedValue("int", words=str(rank)),
    "loss": lambda rank: NamedValue("Tensor", [], digest=f"{rank}"),
}
BATCH = {"batch": lambda rank: NamedValue("list", parts=2, digest=f"{rank}")}
MODEL = {"model": lambda _: NamedValue("Linear", parts=2, digest="a"), "size": lambda _: NamedValue("int", words="2")}
UNREAD = {"model": lambda rank: NamedValue("Linear", parts=2, size=8, digest="" if rank else "a")}
DRIFTED = {"model": lambda rank: NamedValue("Linear", parts=2, digest=f"{rank}")}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({}, "none yet"),
        (MODEL, "all the same"),
        (OWN, "2 with a rank's own values"),
        (MODEL | OWN | BATCH, "models and optimizers are the same; 3 with a rank's own values"),
        (DRIFTED | OWN, "model differs; 2 more with a rank's own values"),
        (DRIFTED, "model differs"),
        (UNREAD, "1 not read (in use by the running cell, or time ran out)"),
        (
            UNREAD | {"size": MODEL["size"]},
            "1 not read (in use by the running cell, or time ran out); the others are the same",
        ),
        (UNREAD | OWN, "1 not read (in use by the running cell, or time ran out); 2 with a rank's own values"),
    ],
)
def test_a_model_that_differs_is_told_apart_from_values_of_each_rank(made, words):
    """A loss, a batch and the rank's number are never the same, and nothing is wrong with that."""
    found = {rank: {name: make(rank) for name, make in made.items()} for rank in (0, 1)}
    assert inventory_words(found) == words

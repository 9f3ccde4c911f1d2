"""torchft's declarations for the parts that have no ranks. Imports no framework."""

from __future__ import annotations

from jupyter_dtrain.core.declarations import Declaration, Extra

DECLARATION = Declaration(
    name="torchft",
    title="torchft",
    distributions={"torchft": "Its replicas speak a protocol that changes between versions."},
    forwards=("TORCHFT_",),
    # The wheels of torchft 0.2.0; there is no source that pip could build.
    extras=(Extra("torchft", "elastic", "elastic training", (3, 10), (3, 13), ("x86_64",)),),
    # Its DistributedDataParallel meets nobody, and a Manager's allreduce spans whoever is there.
    carries_on=("torchft",),
)

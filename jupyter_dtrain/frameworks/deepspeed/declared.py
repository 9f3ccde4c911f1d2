"""DeepSpeed's declarations for the parts that have no ranks: a sweep over its settings, as a method and a verb."""

from __future__ import annotations

from jupyter_dtrain.core.declarations import Declaration

DECLARATION = Declaration(
    name="deepspeed",
    forwards=("DS_",),
    title="DeepSpeed",
    methods={"tune": "jupyter_dtrain.frameworks.deepspeed.sweep:tune"},
    verbs="jupyter_dtrain.frameworks.deepspeed.verbs:VERBS",
)

"""What TensorFlow declares to the parts that have no ranks: the failures of its parameter servers."""

from __future__ import annotations

from jupyter_dtrain.core.declarations import Declaration

DECLARATION = Declaration(
    name="tensorflow",
    title="TensorFlow",
    situations="jupyter_dtrain.frameworks.tensorflow.situations:SITUATIONS",
)

"""JAX's declarations for the parts that have no ranks. Imports no framework."""

from __future__ import annotations

from typing import Final

from jupyter_dtrain.core.declarations import Declaration

SAME: Final = "Its processes must compile the same programs."
"""The reason why versions should agree."""

DECLARATION = Declaration(name="jax", title="JAX", distributions={"jax": SAME, "jaxlib": SAME})

"""JAX's declarations for the parts that have no ranks. Imports no framework."""

from __future__ import annotations

from jupyter_dtrain.core.declarations import Declaration

DECLARATION = Declaration(name="jax", title="JAX", place="jupyter_dtrain.frameworks.jax.sharding:place")

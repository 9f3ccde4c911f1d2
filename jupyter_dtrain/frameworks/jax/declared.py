"""JAX' declarations for the parts that have no ranks: what an exported script needs. Imports no framework."""

from __future__ import annotations

from jupyter_dtrain.core.declarations import Declaration, ScriptSupport

DECLARATION = Declaration(
    name="jax",
    title="JAX",
    scripts=ScriptSupport(
        modules=("jax",),
        family="mpi",
        set_up="jupyter_dtrain.frameworks.jax.script:join_jax",
        set_up_modules=("functools", "os", "zlib"),
    ),
)

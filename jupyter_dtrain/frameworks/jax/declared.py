"""JAX's declarations for the parts that have no ranks. Imports no framework."""

from __future__ import annotations

from typing import Final

from jupyter_dtrain.core.declarations import Declaration, ScriptSupport

SAME: Final = "Its processes must compile the same programs."
"""The reason why versions should agree."""

DECLARATION = Declaration(
    name="jax",
    title="JAX",
    distributions={"jax": SAME, "jaxlib": SAME},
    scripts=ScriptSupport(
        modules=("jax",),
        family="mpi",
        set_up="jupyter_dtrain.frameworks.jax.script:join_jax",
        set_up_modules=("functools", "os", "zlib"),
    ),
    place="jupyter_dtrain.frameworks.jax.sharding:place",
)

"""JAX: its coordinator, arrays that outlive a release, and waits; :mod:`.plugin` is where it meets the rank."""

"""JAX: its coordinator, arrays that outlive a release, and waits; :mod:`.plugin` connects them to the rank."""

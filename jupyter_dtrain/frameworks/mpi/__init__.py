"""MPI as the user's code calls it, through mpi4py; :mod:`.plugin` is where it meets the rank."""

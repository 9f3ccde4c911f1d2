"""From a request to a running ipyparallel cluster of MPI ranks.

A launcher knows the commands of one kind of place (this machine; later hosts over ssh, a Slurm allocation); the
steward runs them and owns the processes. :mod:`.request` holds what travels from the session to the steward and
from there to each rank.
"""

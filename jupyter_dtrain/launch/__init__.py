"""From a request to a running ipyparallel cluster of MPI ranks.

A launcher knows the commands of one kind of place (this machine; later hosts over ssh, a Slurm allocation); the
steward runs them and owns the processes. :mod:`.request` holds what travels from the session to the steward and
from there to each rank; :mod:`.options` what a person may say of a world.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from . import local

LAUNCHERS: Final[dict[str, Callable[[], dict[str, Any]]]] = {"local": local.describe}
"""Each launcher's own description: its name, what it is in words, its options as JSON Schema, and what it found."""

"""The request for a world, and the specification that each rank gets.

Both travel as JSON over a pipe or in the environment, never on a command line: they may hold secrets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from jupyter_dtrain.core.settings import Settings
from jupyter_dtrain.core.variables import HIDDEN, Variable
from jupyter_dtrain.core.world import TorchBackend

RANK_SPEC_VARIABLE: Final = "DTRAIN_RANK_SPEC"
"""The environment variable that carries a :class:`RankSpec` to every rank; the rank removes it once read."""


class WorldRequest(msgspec.Struct, frozen=True):
    """All that the steward needs to start a world. Sent to it on standard input."""

    name: str
    id: str
    size: int
    folder: str
    """Run-time folder of the world, 0700: connection files, logs, sockets."""
    sockets: str
    """Folder, 0700, of the steward's sockets."""
    scratch: str
    """Folder, 0700, in this machine's memory where it has a place for that: what MPI maps and shares among ranks."""
    spool: str
    """Folder, 0700, that keeps the ranks' events; it outlives the world."""
    cwd: str
    path: list[str]
    """The notebook's ``sys.path`` beyond what the interpreter sets by itself."""
    env: dict[str, str]
    mpiexec: str | None
    torch_backend: TorchBackend
    settings: Settings
    store: str
    """The file that keeps what is known of all runs."""
    tensorboard: str | None = None
    """Folder that gets TensorBoard's event files as well."""
    roles: list[str] = []
    """What each rank is for, by rank; empty where all are alike. See :func:`~jupyter_dtrain.world.assign_roles`."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """All fields, without the values of ``env``: they may be secrets."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return list((fields | {"env": dict.fromkeys(self.env, HIDDEN)}).items())

    def __repr__(self) -> str:
        return f"WorldRequest({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    @property
    def passing_folders(self) -> list[str]:
        """The folders that end with the world; the run-time folder, by which others find it, last."""
        return [self.sockets, self.scratch, self.folder]


class RankSpec(msgspec.Struct, frozen=True):
    """All that a rank and its watch need to start."""

    world: str
    world_id: str
    engine_file: str
    """ipyparallel's connection file for engines; it may appear after the rank has started."""
    folder: str
    spool: str
    path: list[str]
    master_addr: str
    master_port: int
    options: dict[str, str]
    """Settings of the frameworks, such as ``torch_backend``."""
    settings: Settings
    roles: list[str] = []
    """What each rank is for, by rank; empty where all are alike."""
    generation: int = 0
    launched: dict[str, Variable] = {}
    """Variables that were set for all ranks, which have them already."""
    given: list[str] = []
    """Names of the variables that the user gave; their values may be secrets."""

    @property
    def address(self) -> tuple[str, int]:
        """Where the world's ranks meet: host and port."""
        return self.master_addr, self.master_port

    def to_environment(self) -> dict[str, str]:
        """The variable that hands this over."""
        return {RANK_SPEC_VARIABLE: msgspec.json.encode(self).decode()}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> RankSpec:
        """What the steward handed over. Raises :class:`KeyError` outside a world."""
        environ = os.environ if environ is None else environ
        return msgspec.json.decode(environ[RANK_SPEC_VARIABLE], type=cls)


ADDRESS = "127.0.0.1"

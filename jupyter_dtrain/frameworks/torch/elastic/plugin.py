"""torchft in one rank: its Manager's defaults and rest (:mod:`.replicas`), and the server for new replicas.

Each rank is a replica group of its own. When one dies, torchft goes on with the others; nothing here releases them.

Under failure: another version of torchft, without the parts that this module patches, stays unchanged: a Manager then
needs all its arguments.
"""

from __future__ import annotations

import atexit
import importlib.util
import sys
from functools import partial
from typing import TYPE_CHECKING

from jupyter_dtrain.core.framework_report import FrameworkReport, facts_of_package
from jupyter_dtrain.core.variables import Variable
from jupyter_dtrain.plugins.framework import Framework
from jupyter_dtrain.rank.connectivity import interface_to
from jupyter_dtrain.wire.requests import ADDRESS

from .checkpoints import TRANSPORT, hook_transport
from .hooks import ERRORS, GRADIENTS, GROUPS, hook_ddp, hook_groups, hook_manager
from .replicas import MANAGERS, Replicas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyter_dtrain.core.world import Placement
    from jupyter_dtrain.wire.requests import RankSpec

TESTED = "0.2"
"""The version that the tests run with."""
UNUSED = "find_unused_parameters=True was specified in DDP constructor"
"""How torch's warning about unused parameters begins."""
INSTALLED = importlib.util.find_spec("torchft") is not None


class TorchFT(Framework):
    """The plug-in for torchft in one rank."""

    name = "torchft"
    server = "jupyter_dtrain.frameworks.torch.elastic.lighthouse" if INSTALLED else None

    def environment(self) -> dict[str, Variable]:
        """Keep torchft's native part from logging several lines a step: it reads this variable once, at its import."""
        return {"RUST_LOG": Variable("warn", "torchft logs each step otherwise")} if INSTALLED else {}

    def prepare(self, place: Placement, spec: RankSpec) -> None:
        """Wait for ``torchft`` to be imported."""
        own = interface_to(spec.remote).address if spec.remote else ADDRESS
        self._replicas = Replicas(place, spec.desk_of(self.name), own or ADDRESS)
        atexit.register(self._replicas.end_cell)
        MANAGERS.when_imported(self._replicas.hook)
        ERRORS.when_imported(hook_manager)
        GROUPS.when_imported(hook_groups)
        GRADIENTS.when_imported(hook_ddp)
        TRANSPORT.when_imported(partial(hook_transport, own=own or ADDRESS))

    def before_cell(self, run: int, ranks: Sequence[int]) -> None:
        """Wake this rank's Managers before the cell, so that the other replicas count on it."""
        self._replicas.begin_cell(run, ranks)

    def before_joining(self, _run: int, /) -> None:
        """Have the cell of a new rank take the other ranks' state first, so that it never begins to train alone."""
        self._replicas.seek()

    def after_cell(self) -> None:
        """Shut this rank's Managers down, so that the other replicas go on without it."""
        self._replicas.end_cell()

    def is_log(self, line: str) -> bool:
        """Whether ``line`` is torch's warning about unused parameters, which torchft's DDP always looks for."""
        return UNUSED in line and "torchft" in sys.modules

    def describe(self) -> FrameworkReport:
        """Name the Managers of this rank."""
        return facts_of_package(
            "torchft", "torchft", TESTED, lambda _: {"replica groups": ", ".join(self._replicas.names) or "none yet"}
        )

    def in_use(self) -> str:
        """Torchft is in use once it is imported."""
        return "torchft" if "torchft" in sys.modules else ""

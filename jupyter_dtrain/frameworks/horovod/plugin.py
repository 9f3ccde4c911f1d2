"""Horovod in one rank: set up in any cell, released when a peer is gone, set up again in the next cell.

Horovod needs no launcher and no variables here: its MPI controller uses the MPI world that the rank is in. Beyond that:

* ``hvd.init()`` first waits for the other ranks in MPI, where a release can free them; Horovod's own wait has no end.
* A new ``DistributedOptimizer`` for the same parameters takes them over, so a cell can run again.
* An optimizer of Keras 3 raises an error: Horovod 0.28 would train with it on each rank alone (:mod:`.keras`).
* Where Horovod is not installed, :func:`install_shim` offers its calls for PyTorch over torch.distributed
  (:mod:`.shim`). Their waits are waits in torch, whose plug-in releases them and sets torch up again.

Under failure: Horovod's own shutdown, on all ranks and each on a thread of its own, releases waiting ranks: it ends
unfinished work with an error. A rank that has died makes MPI end Horovod's thread; without ULFM nothing does. The next
cell on all ranks sets Horovod up again where it was in use, in MPI's new world, and resets ``DistributedOptimizer``
objects; a note names what cannot be set up again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.framework_report import FrameworkReport, facts_of_package, installed_version
from jupyter_dtrain.frameworks.horovod.shim.install import LACKING, SHIM_VERSION, is_shim
from jupyter_dtrain.frameworks.mpi.plugin import release_world
from jupyter_dtrain.frameworks.mpi.rounds import Pending
from jupyter_dtrain.plugins.framework import Doing, Framework
from jupyter_dtrain.plugins.libraries import file_in
from jupyter_dtrain.plugins.patches import Patch, raises_on_purpose

from .keras import KERAS, refuse_keras_3
from .libraries import OPTIMIZERS, Library, begin_optimizers_anew, hook_optimizers

if TYPE_CHECKING:
    from jupyter_dtrain.wire.requests import RankSpec

TESTED = "0.28"
"""The version that ``make horovod`` builds and tests."""
_WRAPPERS = {"wrapper", "inner", "error_handler", "apply", "_call_impl", "_wrapped_call_impl", "decorate_context"}
"""Functions whose names do not describe the call."""
_OF_GRAPHS = {"", "call_function"}
"""Functions by which TensorFlow runs a graph."""
_GENERATED = "<string>"
"""The file name of the code that TensorFlow generates for each Horovod operation."""

BASICS = Patch(
    "horovod.common.basics",
    replaces=("HorovodBasics.init", "HorovodBasics.shutdown"),
    calls=("HorovodBasics.is_initialized()",),
    why="Horovod's own wait for the other ranks has no end, and it knows no other MPI world than the first.",
    lost="ranks that wait in Horovod are not released",
)

_LOST = "Horovod is no longer set up (only some ranks had called hvd.init(), or with arguments): call it on all ranks."


class Horovod(Framework):
    """The plug-in for Horovod in one rank."""

    name = "horovod"
    recovers_last = True

    def prepare(self, spec: RankSpec) -> None:
        """Wait for Horovod's Python side to be imported."""
        self._first = self._generation = spec.generation
        self._libraries: dict[str, Library] = {}
        self._arriving = self._released = False
        BASICS.when_imported(self._hook)
        KERAS.when_imported(refuse_keras_3)
        OPTIMIZERS.when_imported(hook_optimizers)

    def before_cell(self, generation: int) -> None:
        """Remember the generation."""
        self._generation = generation
        self._released = False

    def describe(self) -> FrameworkReport:
        """Describe how Horovod is built and this rank's place in it, or name the stand-in."""
        module = sys.modules.get("horovod")
        if is_shim(module):
            details = {"stand-in": f"yes: {LACKING}"}
            return FrameworkReport("Horovod", SHIM_VERSION, f"Horovod {TESTED}", imported=True, details=details)
        return facts_of_package("Horovod", "horovod", TESTED, lambda _: self._details())

    def in_use(self) -> str:
        """Horovod is in use once it is imported."""
        module = sys.modules.get("horovod")
        return "" if module is None else "Horovod's stand-in" if is_shim(module) else "Horovod"

    def needs_regroup(self) -> bool:
        """Whether a release shut Horovod down during a cell."""
        return self._released

    def is_apart(self) -> bool:
        """Whether Horovod is set up: a failed cell may have begun operations, and would begin them a second time."""
        return any(library.ready for library in self._libraries.values())

    def waits(self, frame: FrameType, *, idle: bool) -> str:
        """Name the call to Horovod, or the TensorFlow call that runs a graph, which may have Horovod's operations."""
        if frame.f_code is _arrive.__code__:
            return "init"
        while frame.f_code.co_filename == _GENERATED and frame.f_back is not None:
            frame = frame.f_back
        horovod = _folder_of("horovod")
        if horovod and frame.f_code.co_filename.startswith(horovod):
            through = (horovod, _folder_of("torch"), _folder_of("tensorflow"))
            return _outermost(frame, through, horovod) or frame.f_code.co_name
        library = self._libraries.get("tensorflow")
        tensorflow = _folder_of("tensorflow")
        if not idle or library is None or not library.was_ready or not tensorflow:
            return ""
        if not frame.f_code.co_filename.startswith(f"{tensorflow}python{os.sep}"):
            return ""
        name = _outermost(frame, (horovod, tensorflow, _folder_of("tf_keras")), "")
        return "tf.function" if name in _OF_GRAPHS else name

    def part_of(self, code: CodeType) -> Doing | None:
        """Name Horovod's operations, and the waits for them."""
        if file_in("horovod", code.co_filename).endswith(("/mpi_ops.py", "torch/optimizer.py", "torch/functions.py")):
            return Doing("communication", code.co_name.strip("_"))
        return None

    def release(self) -> None:
        """Shut Horovod down, so that every wait in it raises. The control thread calls it."""
        self._released = True
        if self._arriving:
            release_world()
        for library in list(self._libraries.values()):
            if library.ready:
                library.begin_shutdown()

    def recover(self) -> list[str]:
        """Set Horovod up again with all ranks where it was set up, and reset its optimizers."""
        if not installed_version("horovod"):
            return []
        begin_optimizers_anew()
        mpi: Any = sys.modules["mpi4py.MPI"]
        mine = {name: library.plain for name, library in self._libraries.items() if library.was_ready}
        everybody: list[dict[str, bool]] = Pending(lambda: mpi.COMM_WORLD.allgather(mine)).wait()
        notes = []
        for name in sorted({name for one in everybody for name in one}):
            library = self._libraries.get(name)
            if library is not None:
                library.end()
            if all(one.get(name) for one in everybody):
                assert library is not None
                library.set_up_again()
            else:
                notes.append(_LOST)
        return notes[:1]

    def _hook(self, module: Any) -> None:
        """Patch ``HorovodBasics`` in ``horovod.common.basics``; each framework's part makes an object of it."""
        kind: Any = module.HorovodBasics
        self._native_shutdown = kind.shutdown
        BASICS.replace(kind, "init", self._init)
        BASICS.replace(kind, "shutdown", self._shutdown)

    def _library(self, basics: Any) -> Library:
        library = Library(basics, self._native_shutdown)
        return self._libraries.setdefault(library.name, library)

    def _init(self, original: Any, basics: Any, comm: Any = None, process_sets: Any = None) -> None:
        library = self._library(basics)
        library.settle()
        if library.ready:
            original(basics, comm, process_sets)
            return
        plain = comm is None or comm == []
        if plain:
            self._arrive()
            if self._generation != self._first:
                # MPI's old world may be revoked, and Horovod knows no other.
                comm = sys.modules["mpi4py.MPI"].COMM_WORLD
        original(basics, comm, process_sets)
        library.is_set_up(process_sets, plain=plain)

    @raises_on_purpose
    def _arrive(self) -> None:
        self._arriving = True
        try:
            _arrive(sys.modules["mpi4py.MPI"])
        finally:
            self._arriving = False

    def _shutdown(self, _original: Any, basics: Any) -> None:
        self._library(basics).shut_down()

    def _details(self) -> dict[str, str]:
        found = {f"for {name}": library.words() for name, library in self._libraries.items()}
        return found or {"state": "not set up yet: call hvd.init()"}


def _arrive(mpi: Any) -> None:
    """Wait until all ranks have reached ``hvd.init()``."""
    mpi.COMM_WORLD.Barrier()


def _folder_of(package: str) -> str:
    """Return the folder of a package's files; an empty text where the package is not imported."""
    module: ModuleType | None = sys.modules.get(package)
    file = getattr(module, "__file__", None)
    return f"{Path(file).parent}{os.sep}" if file else ""


def _outermost(frame: FrameType | None, folders: tuple[str, ...], wanted: str) -> str:
    """The function in the folder ``wanted`` that user code called, found outwards through ``folders``."""
    known = tuple(folder for folder in folders if folder)
    name = ""
    while frame is not None and frame.f_code.co_filename.startswith(known):
        code = frame.f_code
        if code.co_filename.startswith(wanted) and code.co_name not in _WRAPPERS and not code.co_name.startswith("_"):
            name = code.co_name
        frame = frame.f_back
    return name

"""Horovod's native libraries in one rank: one for PyTorch, one for TensorFlow, each with a thread and a world.

Shutting one down on any rank ends unfinished work on all of them, with an error: that is how ranks are released.
Two threads that shut down one library at once would end the process, so a lock guards the shutdown.

Under failure: where another rank does not answer, a shutdown waits for it, on a thread of its own.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_dtrain.plugins.patches import Patch, raises_on_purpose

END_PATIENCE = 10.0
"""Seconds in which a library must have been shut down before it is set up again."""

OPTIMIZERS = Patch(
    "horovod.torch.optimizer",
    replaces=("_DistributedOptimizer._make_hook",),
    reads=("_handles", "_allreduce_delay", "_group_counts", "_synchronized", "_should_synchronize", "_name"),
    why="A cell that runs again makes a second optimizer for the same parameters: both of them reduce each gradient, "
    "and Horovod rejects the second one's, whose name is taken.",
    lost="a DistributedOptimizer keeps the work of a failed step",
)

_FLAGS = ("mpi", "gloo", "nccl", "ccl", "ddl", "cuda", "rocm")


class Library:
    """One native library of Horovod. Only :meth:`begin_shutdown` and :meth:`words` may be called on any thread."""

    def __init__(self, basics: Any, shutdown: Callable[[Any], None]) -> None:
        """``basics``: Horovod's own object for the library; ``shutdown``: the method that shuts it down."""
        self._basics = basics
        self._shutdown = shutdown
        self._lock = threading.Lock()
        self._ending: threading.Thread | None = None
        self._process_sets: Any = None
        self.name = Path(str(getattr(basics.MPI_LIB_CTYPES, "_name", ""))).parent.name
        """``torch`` or ``tensorflow``: the library's folder."""
        self.plain = True
        """Whether user code has set the library up for all ranks."""
        self.was_ready = False
        """Whether user code has set the library up, and has not shut it down since."""

    @property
    def ready(self) -> bool:
        """Whether the library is set up."""
        return bool(self._basics.is_initialized())

    def is_set_up(self, process_sets: Any, *, plain: bool) -> None:
        """Note that user code has set the library up with these arguments."""
        self._process_sets, self.plain = process_sets, plain
        self.was_ready = True

    @raises_on_purpose
    def shut_down(self) -> None:
        """Shut the library down because user code says so."""
        self.was_ready = False
        self._shut_down()

    def begin_shutdown(self) -> None:
        """Begin to shut the library down, so that every wait in it raises. Any thread may call this method."""
        if self._ending is None or not self._ending.is_alive():
            self._ending = threading.Thread(target=self._shut_down, name="dtrain-horovod", daemon=True)
            self._ending.start()

    def _shut_down(self) -> None:
        with self._lock:
            self._shutdown(self._basics)

    def end(self) -> None:
        """Shut the library down and wait for that. Raises :class:`TimeoutError` when another rank prevents it."""
        self.was_ready = False
        self.begin_shutdown()
        self.settle()
        native: Any = getattr(sys.modules.get(f"horovod.{self.name}.mpi_ops"), "mpi_lib", None)
        if hasattr(native, "horovod_torch_reset"):
            # Unnamed tensors get a number for a name, which must be the same on all ranks.
            native.horovod_torch_reset()

    @raises_on_purpose
    def settle(self) -> None:
        """Wait until a shutdown that has begun is over. Raises :class:`TimeoutError`, see :meth:`end`."""
        if self._ending is not None:
            self._ending.join(END_PATIENCE)
            if self._ending.is_alive():
                raise TimeoutError(
                    "Horovod cannot shut down, because a rank does not answer: %distributed restart starts fresh ranks."
                )

    def set_up_again(self) -> None:
        """Set the library up with all ranks, as user code had set it up."""
        operations: Any = sys.modules[f"horovod.{self.name}.mpi_ops"]
        operations.init(process_sets=self._process_sets)

    def words(self) -> str:
        """Describe how the library was built, and this rank's place in it."""
        asked = {name: getattr(self._basics, f"{name}_built", None) for name in _FLAGS}
        built = [name for name, ask in asked.items() if ask is not None and ask()]
        place = f"rank {self._basics.rank()} of {self._basics.size()}" if self.ready else "not set up"
        return f"{place}: built with {', '.join(built) or 'nothing'}"


def hook_optimizers(module: Any) -> None:
    """Patch ``horovod.torch.optimizer``, just imported: only the newest optimizer of a parameter reduces it.

    Unpatched, each of its optimizers does, and Horovod rejects the second one because its name is taken.
    """
    newest: Any = sys.modules["torch"].utils.weak.WeakIdKeyDictionary()

    def _make_hook(original: Any, optimizer: Any, p: Any) -> Callable[..., None]:
        hook = original(optimizer, p)
        newest[p] = mark = object()  # a mark, because the hook itself would keep the parameter alive

        def reduce(hook: Any, *args: Any) -> None:
            if newest.get(p) is mark:
                hook(*args)

        return OPTIMIZERS.guard(reduce, hook)

    kind = module._DistributedOptimizer  # noqa: SLF001 — Horovod has no public way to its hooks
    OPTIMIZERS.replace(kind, "_make_hook", _make_hook)


def begin_optimizers_anew() -> None:
    """Make Horovod's ``DistributedOptimizer`` objects forget what they have begun."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not ("horovod.torch" in sys.modules and hasattr(torch, "optim")):
        return
    for one in gc.get_objects():
        # By ``type``: asking a proxy for ``__class__`` may run foreign code.
        of_torch = issubclass(type(one), torch.optim.Optimizer)
        if of_torch and hasattr(one, "_handles") and hasattr(one, "_allreduce_delay"):
            _begin_anew(one)


def _begin_anew(optimizer: Any) -> None:
    """Reset what Horovod resets when it loads a state, without loading one."""
    held = vars(optimizer)
    held["_handles"].clear()
    passes = getattr(optimizer, "backward_passes_per_step", 1)
    for counts, value in ((held["_allreduce_delay"], passes), (held.get("_group_counts", {}), 0)):
        counts.update(dict.fromkeys(counts, value))
    held.update(_synchronized=False, _should_synchronize=True)

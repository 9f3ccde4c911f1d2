"""A stand-in for ``horovod.torch`` over torch.distributed, where Horovod itself is not installed. It is not Horovod.

:func:`install_shim` makes ``import horovod.torch as hvd`` find :mod:`.calls`: the same calls with the same results, on
the process group that a rank has anyway, under ``torchrun`` as well as in a world. Any use of a missing part raises an
error that names it: process sets, elastic training, Adasum, join, the timeline, TensorFlow.

Under failure: where Horovod is installed, :func:`install_shim` changes nothing and raises the reason.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType

from jupyter_dtrain.core.framework_report import installed_version
from jupyter_dtrain.plugins.patches import Patch

SHIM_VERSION = "0+jupyter-dtrain: not Horovod, a stand-in over torch.distributed"
"""The stand-in's ``__version__``, which is no version of Horovod."""
LACKING = "without process sets, elastic training, Adasum, join and the timeline"
STAND_IN = Patch(
    "torch.distributed",
    reads=("_compute_bucket_assignment_by_size", "_foreach_copy_"),
    why="The stand-in's optimizer sends gradients in buckets, as DistributedDataParallel does.",
    lost="the stand-in's DistributedOptimizer cannot step",
)
"""Declared here, because :mod:`.calls` and :mod:`.collectives` need torch for their import."""
NOTICE = f"horovod.torch is not Horovod here: jupyter-dtrain's stand-in over torch.distributed, {LACKING}."


class NotInStandIn(NotImplementedError, AttributeError):
    """The stand-in lacks a part of Horovod."""

    def __init__(self, what: str) -> None:
        super().__init__(f"jupyter-dtrain's stand-in for Horovod has no {what}: that needs Horovod itself.")


def install_shim(*, replace: bool = False) -> ModuleType:
    """Make ``import horovod.torch`` find the stand-in, and return that module; a second call returns the same one.

    Raises :class:`RuntimeError` where Horovod is installed, unless ``replace``, and :class:`ImportError` without torch.
    """
    if is_shim(sys.modules.get("horovod")):
        return sys.modules["horovod.torch"]
    if "horovod" in sys.modules:
        raise RuntimeError("Horovod is imported already: the stand-in cannot take its place in this process.")
    if (installed := installed_version("horovod")) and not replace:
        raise RuntimeError(
            f"Horovod {installed} is installed: `import horovod.torch as hvd` finds it, and needs no stand-in. "
            f"install_shim(replace=True) installs the stand-in all the same."
        )
    calls = import_module(f"{__package__}.calls")
    package = module_from_spec(ModuleSpec("horovod", None, is_package=True))
    vars(package).update(__doc__=NOTICE, __version__=SHIM_VERSION, torch=calls)
    sys.modules.update({"horovod": package, "horovod.torch": calls})
    print(f"[jupyter-dtrain] {NOTICE}", file=sys.stderr)  # noqa: T201 — once in a process, for its users
    return calls


def is_shim(module: ModuleType | None) -> bool:
    """Whether a module called ``horovod`` is the stand-in."""
    return getattr(module, "__version__", None) == SHIM_VERSION

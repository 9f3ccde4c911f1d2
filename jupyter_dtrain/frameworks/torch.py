"""PyTorch: ``init_process_group`` that can be run again, and a store that outlives every rank.

Nothing is changed but two functions of ``torch.distributed``, when the user's code imports it: ``init_process_group``
and the rendezvous behind ``env://``. What they add:

* the store is the steward's, with a prefix per generation and set-up: a second set-up on the same port never meets
  the first one's keys (in torch 2.13 ``destroy`` + ``init`` on one port hangs once a DDP existed);
* ranks wait for each other in Python, so that an interrupt ends a set-up to which some rank never comes; a set-up that
  failed asks for a new generation, since it leaves torch's group counters different across ranks;
* a second ``init_process_group()`` in a live group is harmless; after a change of the world it joins the new one;
* without a backend the one that fits is taken: nccl (and gloo for CPU tensors) where every local rank has a GPU, else
  gloo.

Outside a world none of this exists: the same cell under torchrun meets plain torch.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

import wrapt

from ..world import count_ranks
from .torch_metrics import TorchMetrics, number

if TYPE_CHECKING:
    from ..engine.metrics import MetricBuffer, Read
    from ..launch.request import RankSpec
    from ..world import Placement
    from . import Watch

ARRIVAL_POLL = 0.02
"""Seconds between two looks at who has arrived at a set-up."""


class Torch:
    """PyTorch in one rank."""

    name = "torch"
    rendezvous: str | None = "jupyter_dtrain.frameworks.torch_store"

    def __init__(self) -> None:
        self._generation = 0
        self._attempts = 0
        self._group_generation: int | None = None
        self._half_made = False
        self._place: Placement | None = None
        self._backend = "auto"

    def environment(self, place: Placement, spec: RankSpec) -> dict[str, str]:  # noqa: ARG002 — the protocol's shape
        """Nothing beyond what torchrun sets, which every rank has."""
        return {}

    def install(self, place: Placement, spec: RankSpec, metrics: MetricBuffer) -> None:
        """Wait for ``torch`` and ``torch.distributed`` to be imported."""
        self._metrics = TorchMetrics(metrics)
        self._metrics.install()
        self._place = place
        self._generation = spec.generation
        self._backend = spec.options.get("torch_backend", "auto")
        wrapt.register_post_import_hook(self._hook, "torch.distributed")

    def before_cell(self, generation: int, watch: Watch) -> None:
        """Set-ups of a new generation are counted from 0 on every rank."""
        self._metrics.begin(watch)
        if generation != self._generation:
            self._generation = generation
            self._attempts = 0
        self._half_made = False

    def after_cell(self) -> None:
        """Losses that wait for their optimizer step are points now."""
        self._metrics.end()

    def number(self, value: Any) -> tuple[Any, Read] | None:
        """A tensor with one element is read when the metrics are flushed, on whatever device it is."""
        return number(value)

    def reserved(self) -> int | None:
        """What the caching allocator holds, once CUDA is in use."""
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
            return None
        return int(torch.cuda.memory_reserved())

    def needs_regroup(self) -> bool:
        """Whether a set-up failed on this rank during the last cell."""
        return self._half_made

    def _hook(self, module: ModuleType) -> None:
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        rendezvous = sys.modules.get("torch.distributed.rendezvous")
        if c10d is None or rendezvous is None:
            # A torch without distributed support: its own error says so when it is used.
            return
        handlers = rendezvous._rendezvous_handlers  # noqa: SLF001 — the public registration refuses a name twice
        handlers["env"] = self._rendezvous(module, handlers["env"])
        init = self._init(module, c10d, c10d.init_process_group)
        module.init_process_group = c10d.init_process_group = init  # type: ignore[attr-defined]

    def _init(self, dist: ModuleType, c10d: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init_process_group(
            backend: str | None = None, init_method: str | None = None, *args: Any, **kwargs: Any
        ) -> Any:
            if dist.is_initialized():
                if self._group_generation in (None, self._generation) and _same_backend(dist, backend):
                    return None
                if self._group_generation in (None, self._generation):
                    raise ValueError(
                        f"The process group is up with backend {dist.get_backend()!r}; call "
                        f"torch.distributed.destroy_process_group() before you set it up with {backend!r}."
                    )
                dist.destroy_process_group()
            if backend is None and kwargs.get("device_id") is None:
                backend = self._choose_backend()
            # A set-up that failed leaves this counter different across ranks, and the next one then waits for ever.
            c10d._world.group_count = 0  # noqa: SLF001 — torch has no public way
            self._half_made = True
            self._attempts += 1
            result = original(backend, init_method, *args, **kwargs)
            self._half_made = False
            self._group_generation = self._generation
            return result

        return init_process_group

    def _choose_backend(self) -> str | None:
        if self._backend != "auto":
            return self._backend
        import torch

        assert self._place is not None
        if torch.cuda.is_available() and torch.cuda.device_count() >= self._place.local_size:
            return "cpu:gloo,cuda:nccl"
        return "gloo"

    def _rendezvous(self, dist: ModuleType, original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        @functools.wraps(original)
        def env(url: str, timeout: timedelta = timedelta(minutes=30), **kwargs: Any) -> Iterator[Any]:
            for store, rank, size in original(url, timeout=timeout, **kwargs):
                prefix = f"generation-{self._generation}/setup-{self._attempts}"
                prefixed = dist.PrefixStore(prefix, store)
                _arrive(prefixed, rank, size, timeout)
                yield prefixed, rank, size

        return env


def _same_backend(dist: ModuleType, backend: str | None) -> bool:
    return (
        backend is None
        or backend.lower() == dist.get_backend().lower()
        or backend.lower() in dist.get_backend().lower()
    )


def _arrive(store: Any, rank: int, size: int, timeout: timedelta) -> None:
    """Wait, in Python, until all ranks are here: unlike a wait in native code it can be interrupted."""
    store.set(f"here/{rank}", "1")
    deadline = time.monotonic() + timeout.total_seconds()
    missing = list(range(size))
    while missing := [other for other in missing if not store.check([f"here/{other}"])]:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"init_process_group: {count_ranks(missing)} did not come within {timeout.total_seconds():g} s. "
                f"Every rank of the world must call it."
            )
        time.sleep(ARRIVAL_POLL)

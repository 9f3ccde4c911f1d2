"""Samplers and datasets of PyTorch's that read one rank's share. Imports torch: only :mod:`.sharding` imports this.

The classes are at the top level of a module, so that loaders with workers can pickle them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.sharding import Share


class RankSampler(DistributedSampler[Any]):
    """PyTorch's own sampler, which libraries know; it can also give ranks uneven shares."""

    def __init__(self, dataset: Any, share: Share, *, shuffle: bool) -> None:
        count = len(dataset)
        length = share.length(count)
        super().__init__(
            dataset,
            num_replicas=share.size,
            rank=share.rank,
            shuffle=shuffle,
            seed=share.seed,
            drop_last=share.mode == "even",
        )
        self.share = share
        if share.mode == "uneven":
            self.num_samples, self.total_size = length, count

    def __iter__(self) -> Iterator[int]:
        """Give the indices of this rank, in an order that ``set_epoch`` changes if they are shuffled."""
        if self.share.mode != "uneven":
            return super().__iter__()
        order = range(self.total_size)
        if not self.shuffle:
            return iter(order[self.rank :: self.num_replicas])
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        shuffled: list[int] = torch.randperm(len(order), generator=generator, device="cpu").tolist()
        return iter(shuffled[self.rank :: self.num_replicas])


class SamplerShare(Sampler[Any]):
    """A rank's part of what another sampler gives: of its indices, or of its batches.

    All ranks need the same order to take parts of it. So it is drawn with the share's seed and the epoch, and the
    process' own random numbers go on as if nothing had been drawn.
    """

    def __init__(self, sampler: Any, share: Share) -> None:
        if share.shuffle:
            raise BadRequest(f"The loader's {type(sampler).__name__} decides on the order: leave out shuffle=True.")
        self.sampler = sampler
        self.share = share
        self.epoch = 0
        if hasattr(sampler, "__len__"):
            share.length(len(sampler))  # raises where they are too few

    def set_epoch(self, epoch: int) -> None:
        """Draw another order from now on."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """Give the rank's part. A sampler without a length is read as it goes, with its own random numbers."""
        if not hasattr(self.sampler, "__len__"):
            return self.share.through(self.sampler)
        state = torch.default_generator.get_state()
        try:
            for one in (None, self.sampler, getattr(self.sampler, "sampler", None)):
                generator = torch.default_generator if one is None else getattr(one, "generator", None)
                if isinstance(generator, torch.Generator):
                    generator.manual_seed(self.share.seed + self.epoch)
            order = list(self.sampler)
        finally:
            torch.default_generator.set_state(state)
        return iter([order[place] for place in self.share.of(len(order))])

    def __len__(self) -> int:
        return self.share.length(len(self.sampler))


class BatchShare(SamplerShare):
    """A rank's part of the batches of a batch sampler, with whatever else that one has."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "sampler" not in vars(self):
            raise AttributeError(name)
        return getattr(self.sampler, name)


class StreamShare(IterableDataset[Any]):
    """A rank's items of a stream: in each worker of a loader, every N-th that the dataset gives there.

    All ranks need the same number of workers, and a dataset that gives all ranks the same items.
    """

    def __init__(self, dataset: IterableDataset[Any], share: Share) -> None:
        self.dataset = dataset
        self.share = share

    def __iter__(self) -> Iterator[Any]:
        return self.share.through(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "dataset" not in vars(self):
            raise AttributeError(name)
        return getattr(self.dataset, name)

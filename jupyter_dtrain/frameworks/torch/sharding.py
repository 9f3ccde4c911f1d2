"""``jupyter_dtrain.shard`` for PyTorch's datasets and data loaders, and this process' place in its default group.

Tensors need nothing of this: they are divided as arrays are. A module of its own, :mod:`.samplers`, has the classes
that derive from PyTorch's; it is imported once user code has imported torch.

Under failure: a loader that is divided already is refused, since a second division would leave out most of the data.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.sharding import Share
from jupyter_dtrain.plugins.patches import Patch

COPIES = Patch(
    "torch.utils.data.dataloader",
    reads=("_iterator",),
    why="A copy of a DataLoader with persistent workers would go on with those of the first, which read other data.",
    lost="shard() of a DataLoader with persistent workers may give data that belong to other ranks",
)


def shard(data: Any, share: Share) -> Any:
    """Divide ``data`` if it is a dataset or a loader of PyTorch's; return None otherwise."""
    kinds = sys.modules.get("torch.utils.data")
    if kinds is None:
        return None
    if isinstance(data, kinds.DataLoader):
        return _loader(data, share)
    if isinstance(data, kinds.IterableDataset):
        return _stream(data, share)
    if isinstance(data, kinds.Dataset):
        return kinds.Subset(data, share.of(len(data)))
    return None


def place() -> tuple[int, int] | None:
    """Return rank and size of the default process group; None where there is none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _stream(dataset: Any, share: Share) -> Any:
    from .samplers import StreamShare

    if share.shuffle:
        raise BadRequest("An IterableDataset has no length, so shard() cannot shuffle it: shuffle where it is made.")
    return StreamShare(dataset, share)


def _loader(loader: Any, share: Share) -> Any:
    """Return a loader of the same class and with the same settings that reads this rank's share."""
    kinds: Any = sys.modules["torch.utils.data"]
    changed: dict[str, Any] = {"_iterator": None}  # of persistent workers, which read other data
    if isinstance(loader.dataset, kinds.IterableDataset):
        changed["dataset"] = _stream(loader.dataset, share)
    elif loader.batch_size is None and loader.batch_sampler is not None:
        from .samplers import BatchShare

        if hasattr(loader.batch_sampler, "set_epoch"):
            raise _divided(loader.batch_sampler)
        changed["batch_sampler"] = BatchShare(loader.batch_sampler, share)
    else:
        sampler = changed["sampler"] = _sampler(loader, share)
        if loader.batch_size is not None:
            changed["batch_sampler"] = kinds.BatchSampler(sampler, loader.batch_size, loader.drop_last)
    divided = copy.copy(loader)
    # A loader refuses to set these after its constructor, which a class of the user's may have changed.
    vars(divided).update(changed)
    return divided


def _sampler(loader: Any, share: Share) -> Any:
    from .samplers import RankSampler, SamplerShare

    kinds: Any = sys.modules["torch.utils.data"]
    sampler = loader.sampler
    if hasattr(sampler, "set_epoch"):
        raise _divided(sampler)
    is_random = type(sampler) is kinds.RandomSampler
    if type(sampler) is kinds.SequentialSampler or (
        is_random and not sampler.replacement and sampler.num_samples == len(loader.dataset)
    ):
        return RankSampler(loader.dataset, share, shuffle=share.shuffle or is_random)
    return SamplerShare(sampler, share)


def _divided(sampler: Any) -> BadRequest:
    return BadRequest(f"The loader's {type(sampler).__name__} divides its data already: leave out shard().")

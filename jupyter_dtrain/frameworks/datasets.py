"""Hugging Face's ``datasets``: what :func:`jupyter_dtrain.shard` does with them. Imports no framework."""

from __future__ import annotations

import sys
from typing import Any

from jupyter_dtrain.core.declarations import Declaration
from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.sharding import Share


def shard(data: Any, share: Share) -> Any:
    """Divide ``data`` if it is a dataset of this library, or a dictionary of them by split; return None otherwise."""
    library = sys.modules.get("datasets")
    if library is None or not hasattr(library, "IterableDatasetDict"):
        return None
    if isinstance(data, (library.DatasetDict, library.IterableDatasetDict)):
        return type(data)({name: shard(split, share) for name, split in data.items()})
    if isinstance(data, library.Dataset):
        return data.select(share.of(len(data)))
    if isinstance(data, library.IterableDataset):
        return _stream(data, share)
    return None


def _stream(dataset: Any, share: Share) -> Any:
    if share.shuffle:
        dataset = dataset.shuffle(seed=share.seed)
    if share.mode == "uneven":
        from datasets.distributed import split_dataset_by_node

        return split_dataset_by_node(dataset, rank=share.rank, world_size=share.size)
    if share.mode == "pad":
        raise BadRequest(
            "A stream of unknown length cannot be padded: use mode='even', which leaves out the last few examples, or "
            "mode='uneven'."
        )
    groups = dataset.batch(share.size, drop_last_batch=True)
    return groups.map(lambda group: {name: column[share.rank] for name, column in group.items()})


DECLARATION = Declaration(name="datasets", title="Hugging Face Datasets", shard=f"{__name__}:shard")

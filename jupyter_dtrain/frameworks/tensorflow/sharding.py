"""``jupyter_dtrain.shard`` for ``tf.data`` and TensorFlow's tensors."""

from __future__ import annotations

import sys
from typing import Any

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.sharding import Share

BUFFER = 10_000
"""Elements among which a dataset of unknown length is shuffled."""


def shard(data: Any, share: Share) -> Any:
    """Divide ``data`` if it is TensorFlow's; return None otherwise."""
    tf = sys.modules.get("tensorflow")
    if tf is None or not hasattr(tf, "data"):
        return None
    if isinstance(data, tf.data.Dataset):
        return _dataset(tf, data, share)
    if isinstance(data, (tf.Tensor, tf.Variable)):
        if data.shape.rank == 0:
            raise BadRequest("shard() divides along the first axis, and this tensor has none.")
        return tf.gather(data, list(share.of(int(tf.shape(data)[0]))))
    return None


def _dataset(tf: Any, dataset: Any, share: Share) -> Any:
    """Divide a dataset, then shuffle it: an order of TensorFlow's may differ between ranks, shares never do."""
    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        divided = dataset.shard(share.size, share.rank)
    elif count == tf.data.UNKNOWN_CARDINALITY:
        divided = _of_unknown_length(tf, dataset, share)
    else:
        own = share.length(count)
        if share.mode == "pad" and count % share.size:
            dataset = dataset.repeat().take(own * share.size)
        divided = dataset.shard(share.size, share.rank).take(own)
        divided = divided.apply(tf.data.experimental.assert_cardinality(own))
    if not share.shuffle:
        return divided
    return divided.shuffle(share.length(count) or 1 if count >= 0 else BUFFER, seed=share.seed + share.rank)


def _of_unknown_length(tf: Any, dataset: Any, share: Share) -> Any:
    if share.mode == "uneven":
        return dataset.shard(share.size, share.rank)
    if share.mode == "pad":
        raise BadRequest(
            "TensorFlow does not know how many elements this dataset has, so it cannot be padded: use mode='even', or "
            "tell it with dataset.apply(tf.data.experimental.assert_cardinality(n))."
        )

    def pick(*window: Any) -> Any:
        whole = tf.data.Dataset.zip(window[0] if len(window) == 1 else window)
        return whole.skip(share.rank).take(1)

    return dataset.window(share.size, drop_remainder=True).flat_map(pick)

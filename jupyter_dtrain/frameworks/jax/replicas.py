"""Takes values that a failed computation destroyed from a rank that still has them.

JAX computes asynchronously: ``params, state, loss = step(params, state, batch)`` binds the names to results that are
still being computed. When the ranks that wait for a failed one are released, these results are lost, and the earlier
values with them. A failed rank has not begun that step, so its names still hold the earlier values. If an array is a
replica on every process, the other ranks had the same values. So all ranks take them, and the loop goes on.

Under failure: a rank that does not take part within the patience leaves all ranks without the values, as before.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from jupyter_dtrain.plugins.patches import Patch

if TYPE_CHECKING:
    from .arrays import Carried, Replica


REPLICAS = Patch(
    "jax._src.distributed",
    calls=("global_state.client",),
    reads=("blocking_key_value_get", "key_value_set", "wait_at_barrier"),
    why=(
        "Ranks tell each other which arrays they lack where no collective may begin yet. JAX's coordinator can pass "
        "that on, but has no public client."
    ),
    lost="arrays that are lost with a failed computation are not taken from other ranks",
)


def refill(carried: Carried, client: Any, meeting: str, rank: int, size: int, patience: float) -> list[str]:
    """Fill the lost replicas of ``carried`` with the values of ranks that have them; returns notes on what was taken.

    All ranks of the world call it, right after they have met. ``client``: the client of JAX's coordinator, through
    which they exchange, below the name ``meeting``, which values each lacks and has. Each answer of a rank may take
    ``patience`` seconds.
    """
    told = _Exchange(client, meeting, rank, size, patience)
    lost = carried.lost_replicas()
    lacking = told.exchange("lacks", sorted(lost))
    wanted = sorted({replica for replicas in lacking for replica in replicas})
    if not wanted:
        return []
    from jax.experimental import multihost_utils  # before the ranks agree: an import may take a while

    kept = carried.kept_replicas()
    having = told.exchange("has", [replica for replica in wanted if replica in kept])
    # From here on all take part, or none: one that missed its patience must not leave the others in a collective.
    client.wait_at_barrier(f"dtrain/{meeting}/agreed", int(patience * 1000))
    sources = {replica: next((who for who, found in enumerate(having) if replica in found), None) for replica in wanted}
    notes = []
    for source in sorted({one for one in sources.values() if one is not None}):
        replicas = [replica for replica in wanted if sources[replica] == source]
        parts = [_bytes(replica, kept if source == rank else {}) for replica in replicas]
        values = [np.asarray(one) for one in multihost_utils.broadcast_one_to_all(parts, is_source=source == rank)]
        taken = [replica for replica in replicas if replica in lost]
        for replica, data in zip(replicas, values, strict=True):
            if replica in lost:
                carried.fill(lost[replica], data)
        if taken:
            names = ", ".join(sorted({replica.name for replica in taken}))
            notes.append(f"{names}: lost with the failed computation, and restored with the values of rank {source}.")
    return notes


class _Exchange:
    """Lists that all ranks exchange through JAX's coordinator."""

    def __init__(self, client: Any, meeting: str, rank: int, size: int, patience: float) -> None:
        self._client = client
        self._meeting = meeting
        self._rank = rank
        self._size = size
        self._patience = patience

    def exchange(self, what: str, own: list[Replica]) -> list[list[Replica]]:
        """Return the lists of all ranks, by rank. Raises what JAX raises when a rank does not come."""
        from .arrays import Replica

        place = f"dtrain/{self._meeting}/{what}"
        self._client.key_value_set(f"{place}/{self._rank}", json.dumps(own))
        found = [
            json.loads(self._client.blocking_key_value_get(f"{place}/{rank}", int(self._patience * 1000)))
            for rank in range(self._size)
        ]
        return [[Replica(name, place, tuple(shape), dtype) for name, place, shape, dtype in one] for one in found]


def _bytes(replica: Replica, kept: dict[Replica, Any]) -> Any:
    """The values to send, or as much room for those to receive: as bytes, which no collective converts."""
    if replica in kept:
        return np.frombuffer(np.ascontiguousarray(kept[replica]).tobytes(), np.uint8)
    return np.zeros(int(np.prod(replica.shape, dtype=np.int64)) * np.dtype(replica.dtype).itemsize, np.uint8)

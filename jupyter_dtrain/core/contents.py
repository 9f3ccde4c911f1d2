"""Facts about the contents of variables on the ranks, as data: what their parts are, and where ranks differ.

A part is one tensor of a variable, such as a model's weight, its gradient or what an optimizer keeps for it. A digest
of some bytes stands for its values: ranks compare those, so no tensor travels to be compared.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Kind = Literal[
    "value",
    "parameter",
    "buffer",
    "broadcast buffer",
    "gradient",
    "optimizer state",
    "setting",
    "random state",
    "step counter",
]
"""The role of a part in the variable that has it."""

ORDER: Final[tuple[Kind, ...]] = (
    "value",
    "parameter",
    "buffer",
    "optimizer state",
    "setting",
    "step counter",
    "random state",
    "broadcast buffer",
    "gradient",
)
"""The order in which differences are told: a weight that differs explains what comes after it; :data:`PASSING` last."""

PASSING: Final[dict[Kind, str]] = {
    "broadcast buffer": "the next forward pass takes from rank 0",
    "gradient": "the next backward pass makes anew",
}
"""Parts that the training makes alike, or anew, by itself: replicas may differ in them. And how, for "which …"."""

COMPARISON: Final = "application/vnd.jupyter-dtrain.comparison+json"
"""The type of the display in which a rank sends a :class:`Compared`."""


class PartSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one rank knows about one part: its shape, where it lies, and the digest of its values."""

    name: str
    kind: Kind
    type: str
    shape: list[int] | None = None
    dtype: str = ""
    device: str = ""
    placement: str = ""
    """How the whole tensor is laid out over the ranks, such as ``Shard(dim=0)``; empty where this rank has all of it.
    """
    piece: str = ""
    """The piece of the whole that this rank has: only ranks with the same piece must have the same values."""
    size: int = 0
    """Bytes on this rank."""
    digest: str = ""
    """The digest of the values in their order; empty where they cannot be read."""
    norm: float | None = None


class Amount(msgspec.Struct, frozen=True):
    """How far one rank's part is from that of the reference."""

    rank: int
    largest: float
    """The largest absolute difference of two elements."""
    norm: float
    """The 2-norm of the difference."""
    count: int
    """Elements that differ."""


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part that is not the same on all ranks."""

    name: str
    kind: Kind
    what: Literal["values", "shape", "dtype", "placement", "type", "missing"]
    reference: int
    """The rank with which the others are compared: the lowest of the largest group of ranks that agree."""
    ranks: list[int]
    """The ranks that differ from it."""
    words: dict[int, str] = {}
    """For anything but values: what each rank has instead; for a short value, the value itself."""
    amounts: list[Amount] = []
    """For values of a tensor, unless too many parts differ."""
    norm: float | None = None
    """The norm of the reference's part."""
    size: int = 0
    """Bytes of the reference's part."""


class Compared(msgspec.Struct, frozen=True, omit_defaults=True):
    """The findings of a comparison over ranks."""

    name: str
    ranks: list[int]
    parts: int
    """How many different parts were compared."""
    size: int
    """Bytes on the lowest rank."""
    seconds: float
    kinds: dict[str, int]
    """How many parts of each kind there are on the lowest rank."""
    differences: list[Difference] = []
    left_out: int = 0
    """How many further differences were found and are not listed."""
    unread: list[str] = []
    """Names of parts whose values cannot be compared."""
    moved: int = 0
    """Bytes that ranks sent to each other to measure the differences."""


class NamedValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one rank's variable holds: type, shape, size, digest."""

    type: str
    shape: list[int] | None = None
    """The shape of a tensor; None for anything else."""
    dtype: str = ""
    device: str = ""
    placement: str = ""
    parts: int = 0
    """How many tensors are in the variable, where it is no tensor itself."""
    size: int = 0
    """Bytes of its tensors on this rank."""
    norm: float | None = None
    digest: str = ""
    """Empty where the values cannot be read, or were not read in time."""
    piece: str = ""
    """The pieces of sharded tensors that this rank has: only ranks with the same must have the same digest."""
    whole: str = ""
    """Beside sharded tensors: the digest of those that are not."""
    words: str = ""
    """The value itself where it is short; else empty."""

"""Facts about the memory of ranks, as data: how much a rank has, and the names that hold the biggest parts of it.

Sizes are bytes. Memory that several tensors share, such as that of views, counts once.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .contents import Kind

HOST: Final = "cpu"
"""The device of memory on the host."""
SHARED: Final = "/dev/shm"  # noqa: S108 — no file is made there
"""Where processes share memory as files."""


class Footprint(msgspec.Struct, frozen=True):
    """What Linux says of the process of one rank; 0 for what it does not say."""

    rss: int
    """Resident memory."""
    pss: int
    """Resident memory, with the rank's part of the pages that it shares with other processes."""
    peak: int
    """The most resident memory that the process has had."""
    shm: int
    """Memory in ``/dev/shm`` that the rank has mapped or open; other ranks may have the same."""


class DeviceMemory(msgspec.Struct, frozen=True):
    """The memory of one device, as the allocator of a framework knows it."""

    device: str
    """Such as ``cuda:0``."""
    allocated: int
    """In use by tensors."""
    reserved: int
    """Taken from the device, in use or kept for the next tensors; 0 where the framework does not say."""
    peak: int
    """The most that tensors have used; 0 where the framework does not say."""


class HeldMemory(msgspec.Struct, frozen=True):
    """A piece of memory with the names that hold it."""

    names: list[str]
    """Such as ``model.layers.3.weight`` or ``Out[7]``; of many, the first ones."""
    more: int
    """How many further names hold it."""
    kind: Kind
    graph: bool
    """Whether it is a result that also keeps the graph of a backward pass, with its activations."""
    type: str
    shape: list[int] | None
    """The shape of the tensor or array that was found first; None for bytes and texts."""
    dtype: str
    device: str
    size: int
    old: bool
    """Whether only old outputs and the last error hold it, as far as names are known."""


class RankMemory(msgspec.Struct, frozen=True):
    """The memory of one rank."""

    footprint: Footprint
    devices: list[DeviceMemory]
    largest: list[HeldMemory]
    """The biggest pieces, biggest first."""
    pieces: int
    """How many pieces have names, those of :attr:`largest` included."""
    named: dict[str, int]
    """By device, how much is held by names."""
    kinds: dict[str, int]
    """By kind, how much is held by names."""
    old: dict[str, int]
    """By device, how much only old outputs and the last error hold."""
    unread: bool
    """Whether gradients were left out, since a running cell may replace them."""
    cut: bool
    """Whether the time, or the number of objects that a look may take, was over before all names were followed."""

    def unnamed(self, device: str) -> int:
        """How much of a device's memory in use no name was found for."""
        used = sum(one.allocated for one in self.devices if one.device == device)
        return max(0, (self.footprint.rss if device == HOST else used) - self.named.get(device, 0))


class FreedMemory(msgspec.Struct, frozen=True):
    """How much a rank has given back, and what it has left."""

    host: int
    device: int
    outputs: int
    """How many old outputs it has let go of."""
    error: bool
    """Whether it has let go of the last error, with the variables of the calls that had failed."""

"""What a framework's plug-in says of one part of a user's variable: what it is, its digest, its norm and its bytes.

Under failure: a part whose values cannot be read has an empty digest, and nobody takes it for equal.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from jupyter_dtrain.core.contents import Kind, PartSummary


class Part(ABC):
    """One part of a variable. A framework has a class of its own for its tensors."""

    name: str
    kind: Kind
    steady: bool = True
    """Whether another thread may read its values while a cell runs, which may free their memory meanwhile."""

    @abstractmethod
    def facts(self) -> PartSummary:
        """Describe the part, without looking at its values."""

    @abstractmethod
    def digest(self) -> str:
        """Digest the values in their order; empty where they cannot be read. Devices make no difference."""

    @abstractmethod
    def norm(self) -> float | None:
        """The 2-norm of the values; None where they are no numbers."""

    def words(self) -> str:
        """The value itself as text, where it is short; else empty."""
        return ""

    def read(self, _start: int, _stop: int) -> bytes:
        """The bytes of the values from ``start`` to ``stop``."""
        return b""

    def distance(self, _start: int, _data: bytes) -> tuple[float, float, int]:
        """How far the bytes from ``start`` on are from ``data``, which :meth:`read` has read on another rank.

        The largest absolute difference, the sum of the squares of all, and the number of elements that differ.
        """
        return math.nan, math.nan, 0

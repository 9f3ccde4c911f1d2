"""The steward's acts for the runs of a session, as the thread that folds them sees the steward.

Under failure: each act raises as the link's requests do; the thread goes on without it.
"""

from __future__ import annotations

from typing import Protocol

from jupyter_dtrain.core.interruption import Acts


class StewardActs(Acts, Protocol):
    """The steward's acts for runs; see :class:`.Link`."""

    def advance(self, run: int) -> int:
        """The generation of what is sent after ``run``, whose process groups are broken. Raises as ``release``."""

    def renew_soon(self) -> None:
        """Ask at once what this client may have missed."""

    @property
    def drives(self) -> bool:
        """Whether this client may run cells."""

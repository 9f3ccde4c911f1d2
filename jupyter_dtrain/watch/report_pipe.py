"""The watch's way to the steward: reports on its standard output, without ever waiting for the reader.

On another host the pipe is ssh's, and as slow as the network. Text that the pipe does not take now waits in memory; the
watch sends nothing that can wait while some of it is left (:attr:`ReportPipe.free`).

Under failure: once the reader is gone, reports go nowhere.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import deque

from jupyter_dtrain.wire.reports import Report, encode_report

PIECE = 1 << 16


class ReportPipe:
    """The end of the pipe in which the watch writes. Not locked: the watch has one thread."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._waiting: deque[bytes] = deque()
        os.set_blocking(fd, False)

    @property
    def free(self) -> bool:
        """Whether no text waits for the pipe."""
        return not self._waiting

    def send(self, report: Report) -> None:
        """Send a report after those that wait."""
        data = encode_report(report)
        self._waiting.extend(data[begin : begin + PIECE] for begin in range(0, len(data), PIECE))
        self.flush()

    def flush(self) -> None:
        """Send as much as the pipe takes."""
        try:
            while self._waiting:
                piece = self._waiting[0]
                sent = os.write(self.fd, piece)
                if sent < len(piece):
                    self._waiting[0] = piece[sent:]
                else:
                    self._waiting.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._waiting.clear()

    def finish(self, deadline: float) -> None:
        """Wait until all is sent, but not beyond ``deadline`` (monotonic)."""
        while self._waiting and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(OSError):
                select.select([], [self.fd], [], left)
            self.flush()

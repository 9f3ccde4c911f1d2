"""The road of text that native code and child processes write to a rank's descriptors 1 and 2, to the recorder.

The descriptors are pipes. The watch reads them, since it goes on where the rank cannot: native code that holds the
interpreter lock may print as much as it likes, and a dead rank leaves no text behind in its memory. The watch passes
the text on, and holds it until the rank says that it is spooled::

    native code ── pipe ──▶ DescriptorHolder (watch) ── channel: pieces ──▶ DescriptorReader (rank) ──▶ Recorder
                                          ◀── bytes kept, "drain"

Every event with such text says how many bytes of its descriptor are in events by then. With that number and the text
it holds, the watch knows exactly which text of a dead rank is still to be recorded.

Under failure: when a rank takes nothing for :data:`PATIENCE` while the watch holds :data:`HELD_BYTES`, the watch drops
the oldest text, and a line in its place says how much. While the rank is stopped (SIGSTOP), its children wait instead.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import os
import resource
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

import psutil

from .recorder import Recorder

Stream = Literal["stdout", "stderr"]
STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")

PIECE = 1 << 15
"""Bytes in one message of the channel."""
HELD_BYTES = 32 << 20
PATIENCE = 1.0
"""Seconds of silence after which the watch takes the rank to be unable to read."""
DRAIN_TIMEOUT = 2.0
"""Seconds that a rank waits for the text written so far; then the cell ends without it."""

_KEPT = struct.Struct("<QQ")
"""A message of the rank: the bytes of each stream, in the order of :data:`STREAMS`, that it has spooled."""
_DRAIN = b"d"
_DRAINED = b"d"


def make_channel() -> tuple[socket.socket, socket.socket]:
    """The two ends of the channel between a holder and a reader: the watch's, the rank's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


class DescriptorHolder:
    """The watch's end: reads the pipes, and holds text until it is spooled. Not locked: the watch has one thread."""

    def __init__(self, pipes: Mapping[Stream, int], channel: socket.socket, rank: psutil.Process) -> None:
        """``pipes``: the read ends by stream, not blocking."""
        self.pipes = dict(pipes)
        """The pipes that are still open, by stream."""
        self.channel = channel
        self.hears = True
        """Whether the rank has its end open: user code may close all descriptors."""
        self._rank = rank
        # Text that the rank has not spooled yet, in order: stream, bytes. The first ``_sent`` entries are on their way.
        # An entry without bytes answers the rank's request: the rank then has all text from before that.
        self._held: deque[tuple[Stream, bytes]] = deque()
        self._sent = 0
        self._size = 0
        self._begins = dict.fromkeys(STREAMS, 0)
        """By stream, bytes that the rank has spooled and the watch has dropped."""
        self._heard = time.monotonic()
        # Stands in place of dropped text, and says how much.
        self._note: tuple[Stream, bytes] | None = None
        self._lost = 0

    @property
    def reads(self) -> bool:
        """Whether the watch has room to hold more text."""
        return self._size < HELD_BYTES

    @property
    def sends(self) -> bool:
        """Whether the channel is full, and something waits to be sent."""
        return self._sent < len(self._held)

    def read(self, stream: Stream) -> None:
        """Read a pipe, as far as there is room."""
        # The end of a pipe may have been seen since it was found to be readable.
        while stream in self.pipes and self.reads and self._read_piece(stream):
            pass

    def _read_piece(self, stream: Stream) -> bool:
        try:
            data = os.read(self.pipes[stream], PIECE)
        except BlockingIOError:
            return False
        if not data:
            del self.pipes[stream]
            return False
        if not self._held:
            self._heard = time.monotonic()
        self._held.append((stream, data))
        self._size += len(data)
        return True

    def send(self) -> None:
        """Pass on as much as the channel takes."""
        while self.sends:
            stream, data = self._held[self._sent]
            try:
                self.channel.send(_letter(stream) + data if data else _DRAINED)
            except OSError:
                # Full, or the rank is gone.
                return
            self._sent += 1

    def hear(self) -> None:
        """Read the rank's messages."""
        while True:
            try:
                message = self.channel.recv(64)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not message:
                self.hears = False
                return
            self._heard = time.monotonic()
            if message == _DRAIN:
                for stream in tuple(self.pipes):
                    self.read(stream)
                self._held.append(("stdout", b""))
                self.send()
            else:
                self._let_go(dict(zip(STREAMS, _KEPT.unpack(message), strict=True)))

    def _let_go(self, kept: Mapping[Stream, int]) -> None:
        while self._sent:
            stream, data = self._held[0]
            if self._begins[stream] + len(data) > kept[stream]:
                return
            self._held.popleft()
            self._sent -= 1
            self._size -= len(data)
            self._begins[stream] += len(data)

    def make_room(self) -> float | None:
        """Drop text that a rank cannot read, so that no writer waits for ever; seconds until to ask again."""
        if self.reads:
            return None
        waits = self._heard + PATIENCE - time.monotonic()
        if waits > 0:
            return waits
        self._heard = time.monotonic()
        with contextlib.suppress(psutil.Error):
            if self._rank.status() == psutil.STATUS_STOPPED:
                return PATIENCE
        sent = [self._held.popleft() for _ in range(self._sent)]
        lost = 0
        if self._held[0] is self._note:
            lost, _ = self._lost, self._held.popleft()
        enough = lost + HELD_BYTES // 2
        while self._held and lost < enough:
            lost += len(self._held.popleft()[1])
        words = f"\n[jupyter-dtrain] {lost} bytes of output are missing here: the rank took none for {PATIENCE:g} s\n"
        note: tuple[Stream, bytes] = ("stderr", words.encode())
        self._lost, self._note = lost, note
        self._held.extendleft(reversed([*sent, note]))
        self._size = sum(len(data) for _, data in self._held)
        return None

    def rest(self, kept: Mapping[Stream, int]) -> list[tuple[Stream, str]]:
        """The text that a dead rank wrote and has not spooled, in order.

        ``kept``: by stream, the bytes that are spooled, as its events say.
        """
        self.hear()
        for stream in tuple(self.pipes):
            # A process that outlives the rank may write for ever.
            while stream in self.pipes and self._size < 2 * HELD_BYTES and self._read_piece(stream):
                pass
        position = dict(self._begins)
        left: list[tuple[Stream, bytearray]] = []
        for stream, data in self._held:
            begin = position[stream]
            position[stream] += len(data)
            rest = data[max(0, kept.get(stream, 0) - begin) :]
            if left and left[-1][0] == stream:
                left[-1][1].extend(rest)
            elif rest:
                left.append((stream, bytearray(rest)))
        return [(stream, text.decode("utf-8", "replace")) for stream, text in left]


class DescriptorReader:
    """The rank's end: takes the text from the channel, and hands it to the recorder."""

    def __init__(
        self, channel: socket.socket, recorder: Recorder, is_log: Callable[[str], bool] = lambda _: False
    ) -> None:
        """``is_log``: whether a line is a library's log, which the cell does not show."""
        self._channel = channel
        self._recorder = recorder
        self._is_log = is_log
        self._in_log = dict.fromkeys(STREAMS, False)
        """By stream, whether the line that is not finished is a library's log."""
        self._unfinished = dict.fromkeys(STREAMS, False)
        self._decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in STREAMS}
        self._counts = dict.fromkeys(STREAMS, 0)
        self._kept = dict.fromkeys(STREAMS, 0)
        self._drained = threading.Semaphore(0)
        self._draining = threading.RLock()  # a signal handler may print while its thread drains
        self._used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._libc = ctypes.CDLL(None)
        self._thread = threading.Thread(target=self._loop, name="dtrain-descriptors", daemon=True)

    def start(self) -> None:
        """Begin to read, in a thread of its own."""
        self._thread.start()

    def drain(self) -> None:
        """Hand over all text written so far, C's own buffers included."""
        self._libc.fflush(None)
        with self._recorder.shield, self._draining:
            while self._drained.acquire(blocking=False):
                # An answer that came after its request had timed out.
                pass
            with contextlib.suppress(OSError):
                self._channel.send(_DRAIN, socket.MSG_DONTWAIT)
                self._drained.acquire(timeout=DRAIN_TIMEOUT)

    def drain_ended(self) -> None:
        """Hand over the text of child processes that have ended since, so that what comes next comes after it.

        The rank has waited for such a child, so what the kernel adds up for those has changed: no hook is needed in
        the many ways to start a process, and a rank without children pays for one system call.
        """
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        if used != self._used:
            self._used = used
            self.drain()

    def _loop(self) -> None:
        while True:
            try:
                message = self._channel.recv(PIECE + 1)
            except OSError:
                return
            if not message:
                return
            if message == _DRAINED:
                self._drained.release()
            else:
                self._take(next(stream for stream in STREAMS if message[:1] == _letter(stream)), message[1:])

    def _take(self, stream: Stream, data: bytes) -> None:
        decoder = self._decoders[stream]
        self._counts[stream] += len(data)
        text = decoder.decode(data)
        self._kept[stream] = self._counts[stream] - len(decoder.getstate()[0])
        *parts, last = self._split(stream, text)
        for log, part in parts:
            self._recorder.write(stream, part, log=log)
        self._recorder.write(stream, last[1], self._kept[stream], log=last[0])
        self._recorder.flush()
        with contextlib.suppress(BlockingIOError):
            # The next message says as much.
            self._channel.send(_KEPT.pack(*self._kept.values()), socket.MSG_DONTWAIT)

    def _split(self, stream: Stream, text: str) -> list[tuple[bool, str]]:
        """Stretches of ``text``, each with whether it is a library's log."""
        parts: list[tuple[bool, list[str]]] = []
        for line in text.splitlines(keepends=True):
            # Native code writes a line of its log in one piece; the rest of an unfinished line belongs to it.
            if not self._unfinished[stream]:
                self._in_log[stream] = self._is_log(line)
            self._unfinished[stream] = not line.endswith("\n")
            log = self._in_log[stream]
            if not parts or parts[-1][0] != log:
                parts.append((log, []))
            parts[-1][1].append(line)
        return [(log, "".join(lines)) for log, lines in parts] or [(False, text)]


def _letter(stream: Stream) -> bytes:
    return b"1" if stream == "stdout" else b"2"

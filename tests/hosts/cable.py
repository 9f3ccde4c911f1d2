"""A bad cable: passes frames between a host's port and the switch late, loses some, and drops those to blocked ports.

The kernel's own netem and packet filter would do the same, but many kernels lack the one and many machines the other.
A program of its own, in the switch's network namespace: ``cable.py PORT PLUG DELAY LOSS WAY [TCP-PORT...]``, where WAY
is ``open``, ``closed`` or the address that the host may not call. It says ``ready`` once frames pass, and runs until it
is killed; the switch then takes the port back.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
SOL_PACKET, PACKET_VNET_HDR, PACKET_OUTGOING = 263, 15, 4
ETH_P_ALL, ETH_P_IP = 0x0003, 0x0800
HEADER = 10
"""Bytes before each frame that say how much of it the sender left to do: checksums and cutting into packets."""
LARGEST = 1 << 17
SSH = 22
SYN, ACK = 2, 16
"""Bits among the flags of TCP."""
QUEUE = 4096
"""Frames on the way; a cable that holds more loses what comes next, as netem does."""


class Way:
    """One direction of the cable."""

    def __init__(
        self,
        send: Callable[[bytes], object],
        delay: float,
        loss: float,
        blocked: set[int],
        *,
        closed: bool = False,
        target: str = "",
    ) -> None:
        self.send = send
        self.delay = delay
        self.loss = loss
        self.blocked = blocked
        self.closed = closed
        self.target = socket.inet_aton(target) if target else b""
        self.under_way: deque[tuple[float, bytes]] = deque()

    def take(self, frame: bytes) -> None:
        """A frame that came in, which may be lost."""
        if random.random() < self.loss or len(self.under_way) >= QUEUE:  # noqa: S311 — noise, no secret
            return
        if self.target:
            if self.calls_target(frame[HEADER:]):
                return
        elif self.blocked and tcp_port(frame[HEADER:]) in self.blocked:
            return
        if self.closed and begins(frame[HEADER:]) and tcp_port(frame[HEADER:]) != SSH:
            return
        self.under_way.append((time.monotonic() + self.delay, frame))

    def calls_target(self, frame: bytes) -> bool:
        """Whether a frame asks the target for a connection, to one of the blocked ports, or to any but ssh's."""
        port = tcp_port(frame)
        return begins(frame) and frame[30:34] == self.target and (port in self.blocked if self.blocked else port != SSH)

    def pass_on(self) -> float | None:
        """Send the frames whose time has come; the seconds until the next one's."""
        while self.under_way:
            wait = self.under_way[0][0] - time.monotonic()
            if wait > 0:
                return wait
            try:
                self.send(self.under_way.popleft()[1])
            except OSError:
                continue  # a link that is down loses its frames
        return None


def tcp_port(frame: bytes) -> int | None:
    """The port that an IPv4 frame of TCP goes to."""
    if len(frame) < 14 + 20 + 20 or int.from_bytes(frame[12:14], "big") != ETH_P_IP:
        return None
    if frame[14 + 9] != socket.IPPROTO_TCP:
        return None
    header = 14 + (frame[14] & 15) * 4
    return int.from_bytes(frame[header + 2 : header + 4], "big")


def begins(frame: bytes) -> bool:
    """Whether an IPv4 frame of TCP asks for a new connection."""
    if tcp_port(frame) is None:
        return False
    flags = frame[14 + (frame[14] & 15) * 4 + 13]
    return bool(flags & SYN) and not flags & ACK


def main(port: str, plug: str, delay: float, loss: float, way: str, blocked: set[int]) -> None:
    """Pass frames between the interface ``port`` and a new one named ``plug``.

    ``way``: ``closed`` drops what asks the host at ``port`` for a connection, but for ssh; an address drops what the
    host asks of it, at the ``blocked`` ports, or at any but ssh's.
    """
    far = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(far, TUNSETIFF, struct.pack("16sH", plug.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    near = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    near.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    near.bind((port, ETH_P_ALL))
    target = "" if way in ("open", "closed") else way
    out = Way(lambda frame: os.write(far, frame), delay, loss, blocked, target=target)
    back = Way(near.send, delay, loss, set() if target else blocked, closed=way == "closed")
    ends: list[socket.socket | int] = [near, far]
    print("ready", flush=True)
    while True:
        waits = [wait for way in (out, back) if (wait := way.pass_on()) is not None]
        for ready in select.select(ends, [], [], min(waits, default=None))[0]:
            if ready is far:
                back.take(os.read(far, LARGEST))
                continue
            try:
                frame, (_, _, kind, *_) = near.recvfrom(LARGEST)
            except OSError:
                continue  # the link went down: the host was cut off
            if kind != PACKET_OUTGOING:
                out.take(frame)


if __name__ == "__main__":
    ports = {int(word) for word in sys.argv[6:]}
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), sys.argv[5], ports)

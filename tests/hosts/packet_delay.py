"""Passes packets between pairs of interfaces, each so much later: not every kernel has ``netem``.

packet_delay.py MICROSECONDS A1 B1 A2 B2 ... in the network namespace of the interfaces, until it is killed.
"""

import contextlib
import select
import socket
import sys
import time
from collections import deque

_ALL_PROTOCOLS = 3
_SOL_PACKET, _ADD_MEMBERSHIP, _VNET_HDR, _IGNORE_OUTGOING = 263, 1, 15, 23
_PROMISCUOUS = 1
_MAX_PACKET_BYTES = 1 << 17
_BUFFER_BYTES = 64 << 20
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33


def open_interface(name):
    """Returns a socket that receives all packets of an interface, whole and with unfinished checksums."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    opened.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
    opened.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    member = socket.if_nametoindex(name).to_bytes(4, sys.byteorder)
    member += _PROMISCUOUS.to_bytes(2, sys.byteorder) + bytes(10)
    opened.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, member)
    opened.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES)
    opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    opened.bind((name, _ALL_PROTOCOLS))
    opened.setblocking(False)
    return opened


def main():
    delay = int(sys.argv[1]) / 1e6
    names = sys.argv[2:]
    sockets = [open_interface(name) for name in names]
    other = {sockets[i]: sockets[i ^ 1] for i in range(len(sockets))}
    on_the_way = deque()  # all wait as long, so they are due in the order in which they came
    while True:
        wait = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
        readable, _, _ = select.select(sockets, [], [], wait)
        for source in readable:
            with contextlib.suppress(BlockingIOError):
                for _ in range(16):
                    packet = source.recv(_MAX_PACKET_BYTES)
                    on_the_way.append((time.monotonic() + delay, other[source], packet))
        now = time.monotonic()
        while on_the_way and on_the_way[0][0] <= now:
            _, target, packet = on_the_way.popleft()
            with contextlib.suppress(OSError):  # a full queue loses packets, as a switch does
                target.send(packet)


if __name__ == "__main__":
    main()

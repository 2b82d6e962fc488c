"""Peers that no listener has asked for: silent, slow, cut off, garbled, and those who repeat others."""

import contextlib
import itertools
import json
import os
import random
import socket
import struct
import threading
import time

_RESET = struct.pack("ii", 1, 0)
# What ended a job once, beside a connection that says nothing.
_SURROGATES = json.dumps({"challenge": "\ud800" * 64, "proof": ""}).encode()
GARBAGE = {
    "nothing": b"",
    "a newline": b"\n",
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
    "tls": bytes.fromhex("1603010200010001fc0303") + os.urandom(300),
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "noise": os.urandom(4096),
    "a megabyte of noise": os.urandom(1 << 20),
    "an empty object": b"\x00\x00\x00\x02{}",
    "surrogates": len(_SURROGATES).to_bytes(4, "big") + _SURROGATES,
    "deep json": b"\x00\x00\x03\xe8" + b"[" * 1000,
}


class Strangers:
    """Connect to listeners in every way that they should not, in a thread, while entered.

    Args:
        addresses: Of the listeners.
        overheard: Bytes that a rightful peer once sent: repeated, cut off and changed.
    """

    def __init__(self, addresses, overheard=()):
        self.rounds = 0
        self._addresses = addresses
        self._stop = threading.Event()
        self._held = []
        self._says = list(GARBAGE.values())
        for heard in overheard:
            cuts = sorted(
                {1, len(heard) // 2, len(heard) - 1, *random.sample(range(len(heard)), 5)}
            )
            flipped = bytearray(heard)
            flipped[random.randrange(len(heard))] ^= 1
            self._says += [heard, *(heard[:cut] for cut in cuts), bytes(flipped), heard[::-1]]
        self._thread = threading.Thread(target=self._pester)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        for held in self._held:
            held.close()

    def _pester(self):
        ways = (_leave_at_once, _reset, _half_close, self._hold, _read_first, _speak_slowly)
        while not self._stop.is_set():
            for address, says, way in itertools.product(self._addresses, self._says, ways):
                if self._stop.is_set():
                    return
                with contextlib.suppress(OSError):
                    connection = socket.create_connection(address, timeout=1.0)
                    connection.settimeout(0.02)
                    try:
                        way(connection, says)
                    finally:
                        if connection not in self._held:
                            connection.close()
            self.rounds += 1

    def _hold(self, connection, says):
        connection.sendall(says)
        # Some at a time: an attack that takes all the places is another matter.
        self._held.append(connection)
        if len(self._held) > 16:
            self._held.pop(0).close()


def _leave_at_once(connection, says):
    connection.sendall(says)


def _reset(connection, says):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.sendall(says)


def _half_close(connection, says):
    connection.sendall(says)
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1024)


def _read_first(connection, says):
    with contextlib.suppress(TimeoutError):
        connection.recv(1024)
    connection.sendall(says)


def _speak_slowly(connection, says):
    for start in range(4):
        connection.sendall(says[start : start + 1])
        time.sleep(0.002)


class Overhearing:
    """A way through to a listener that keeps what goes by in each connection, while entered."""

    def __init__(self, target):
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.heard = []
        self._open = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self):
        self._threads[0].start()
        return self

    def __exit__(self, *_):
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in (self._listener, *self._open):
            one.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                try:
                    server = socket.create_connection(self._target, timeout=5)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                self._open.append(server)
                heard = bytearray()
                self.heard.append(heard)
                for source, to, keep in ((client, server, heard), (server, client, None)):
                    thread = threading.Thread(target=self._pass_on, args=(source, to, keep))
                    thread.start()
                    self._threads.append(thread)

    @staticmethod
    def _pass_on(source, to, keep):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if keep is not None:
                    keep += data
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)

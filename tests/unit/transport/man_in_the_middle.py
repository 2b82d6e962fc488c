"""Somebody between two tasks, who can do with their records what he likes."""

import contextlib
import socket
import struct
import threading

HELLO_BYTES, OFFER_BYTES, PROOF_BYTES = 329, 81, 32
TAG_BYTES = 16


class ManInTheMiddle:
    """Passes greetings on as they are, and records as `edit` says.

    `edit(direction, number, record)` returns the records to send on instead, as pairs of a direction
    and bytes; `None` closes both connections. Directions are "to server" and "to client".
    """

    def __init__(self, endpoint, edit):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        host, port = endpoint.address.rsplit(":", 1)
        self._to = host, int(port)
        self._edit = edit
        self._ends = {}
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def address(self):
        return self._address

    def _accept(self):
        try:
            client, _ = self._listening.accept()
        except OSError:
            return
        self._listening.close()
        server = socket.create_connection(self._to, timeout=10)
        client.settimeout(10)
        self._ends = {"to server": server, "to client": client}
        self._pass_on(client, server, HELLO_BYTES)
        self._pass_on(server, client, OFFER_BYTES)
        self._pass_on(client, server, PROOF_BYTES)
        self._pass_on(server, client, 1 + PROOF_BYTES)
        for direction, source in (("to server", client), ("to client", server)):
            thread = threading.Thread(target=self._relay, args=(direction, source))
            self._threads.append(thread)
            thread.start()

    def _relay(self, direction, source):
        number = 0
        try:
            while True:
                header = _exactly(source, 4)
                (size,) = struct.unpack("<I", header)
                record = header + _exactly(source, size + TAG_BYTES)
                edited = self._edit(direction, number, record)
                number += 1
                if edited is None:
                    break
                for where, data in edited:
                    self._ends[where].sendall(data)
        except OSError:
            pass
        for end in self._ends.values():
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _pass_on(source, to, num_bytes):
        to.sendall(_exactly(source, num_bytes))

    def close(self):
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(10)
        self._listening.close()
        for end in self._ends.values():
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for end in self._ends.values():
            end.close()


def _exactly(source, num_bytes):
    data = b""
    while len(data) < num_bytes:
        received = source.recv(num_bytes - len(data))
        if not received:
            raise ConnectionError("the end")
        data += received
    return data

"""Somebody without the secret listens on the port of a dead worker and passes greetings on."""

import os
import pickle
import socket
import threading

from stratagem._src.transport import Message
from stratagem._src.transport.wire_format import Kind, encode


class Touch:
    """Makes a file wherever it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mknod, (str(self.path),)


class Relay:
    """Passes the coordinator's greeting on to a parameter server, then speaks in its place."""

    def __init__(self, at, to, injected):
        self.answers = []
        self.errors = []
        self._listening = socket.create_server(at)
        self._to = to
        self._injected = injected
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            coordinator, _ = self._listening.accept()
            with coordinator, socket.create_connection(self._to, timeout=10) as server:
                coordinator.settimeout(10)
                for _ in range(2):
                    server.sendall(coordinator.recv(4096))
                    coordinator.sendall(server.recv(4096))
                coordinator.recv(4096)
                server.sendall(self._injected)
                self.answers.append(server.recv(4096))
        except OSError as error:
            self.errors.append(error)
        finally:
            self._listening.close()

    def join(self):
        self._thread.join(20)
        assert not self._thread.is_alive()


def place(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


def test_a_relay_on_the_port_of_a_dead_worker_gets_nothing(cluster, tmp_path):
    touched = tmp_path / "touched"
    pieces = encode(Kind.REQUEST, "ps/add_function", Message(pickle.dumps(Touch(touched))))
    cluster.stop("worker", 0)
    relay = Relay(
        at=place(cluster.spec.task_address("worker", 0)),
        to=place(cluster.spec.task_address("ps", 0)),
        injected=b"".join(pieces),
    )
    coordinator = cluster.coordinator()
    relay.join()
    assert not touched.exists()
    assert not any(relay.answers)
    assert coordinator.schedule(lambda: 7).fetch() == 7
    cluster.start("worker", 0)
    assert coordinator.schedule(lambda: 8, worker=0).fetch() == 8

"""The membership server: a small process that the leader starts.

It is a separate process so that it survives the leader: the workers still learn about each other, and JAX's
coordination service stays up, whose clients abort their process when it goes away. The server releases the
leader's port when the leader ends. It exits when the last worker has gone or, after the leader has ended,
when all remaining workers have exceeded the heartbeat timeout. It does not import JAX, so it starts fast.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem._src.control_plane.identities import MEMBERSHIP_SERVER, RELAY_ROLE, WORKER_ROLE
from stratagem._src.control_plane.membership_state import MembershipState, Send
from stratagem._src.control_plane.private_socket import PrivateSocket
from stratagem._src.control_plane.relay import serve_relay
from stratagem._src.jax_compat.coordination_service import host_service
from stratagem._src.process.background import Background
from stratagem._src.process.rlimits import raise_open_file_limit
from stratagem._src.transport import Connection, Credentials, Listener
from stratagem._src.transport.duplex_stream import DuplexStream, encode_message

__all__ = ["MembershipServer", "main"]

_TICK_SECONDS = 0.5
_NEWS_DELAY_SECONDS = 0.02
_REST_AFTER_TELLING = 4.0
_HANDSHAKE_TIMEOUT = 10.0
_REJECT_TIMEOUT = 5.0
_CONNECTIONS_PER_WORKER = 4  # membership, relay, and both ends of the relay's local connection


class MembershipServer:
    """Serves the workers of one job, in the threads of their connections.

    Args:
        num_workers: The number of workers to expect.
        service: The path of the socket of JAX's coordination service.
    """

    def __init__(self, num_workers: int, service: str) -> None:
        self._state = MembershipState(num_workers)
        self._service = service
        self._members: dict[int, DuplexStream] = {}
        self._leader_is_gone = False
        self._changed = threading.Condition()

    def serve(self, connection: Connection) -> None:
        """Serves one connection until it ends."""
        assert connection.peer is not None
        if connection.peer.role == RELAY_ROLE:
            serve_relay(connection, self._service)
        elif connection.peer.role == WORKER_ROLE:
            self._serve_worker(DuplexStream(connection), connection.peer.index)

    def open(self, start: dict[str, Any]) -> None:
        """Sets the start message, which workers get once all have joined."""
        with self._changed:
            self._send(self._state.open(start))

    def wait(self) -> None:
        """Sends heartbeats and news until the last worker has gone."""
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._state.has_news or self._is_abandoned, _TICK_SECONDS
                )
                begun = time.monotonic()
                self._send(self._state.tick(begun))
                is_over = self._state.is_over(begun, leader_has_ended=self._leader_is_gone)
                if is_over or self._is_abandoned:
                    return
            # Batches what happens meanwhile. With many workers sending takes a while: the pause leaves time
            # for those that join and send.
            spent = time.monotonic() - begun
            time.sleep(max(_NEWS_DELAY_SECONDS, _REST_AFTER_TELLING * spent))

    @property
    def _is_abandoned(self) -> bool:
        return self._leader_is_gone and not self._members

    def leader_is_gone(self) -> None:
        """Records that the leader's process has ended."""
        with self._changed:
            self._leader_is_gone = True
            self._changed.notify()

    def _serve_worker(self, stream: DuplexStream, worker: int) -> None:
        try:
            opening = stream.receive(time.monotonic() + _HANDSHAKE_TIMEOUT)
            reason = self._admit(stream, worker, opening.get("num_workers"))
            if reason is not None:
                stream.send({"refused": reason})
                stream.finish(_REJECT_TIMEOUT)
                return
            try:
                while True:
                    message = stream.receive()
                    with self._changed:
                        self._publish(self._state.receive(worker, message, time.monotonic()))
            finally:
                with self._changed:
                    del self._members[worker]
                    self._state.lose(worker)
                    self._publish([])
        finally:
            stream.close()

    def _admit(self, stream: DuplexStream, worker: int, num_workers: object) -> str | None:
        with self._changed:
            reason = self._state.refusal(worker, num_workers)
            if reason is None:
                self._members[worker] = stream
                stream.send({"welcome": True})
                self._publish(self._state.join(worker, time.monotonic()))
        return reason

    def _publish(self, urgent: list[Send]) -> None:
        """Sends urgent messages at once, and wakes ``wait`` if there is news."""
        self._send(urgent)
        if self._state.has_news:
            self._changed.notify()

    def _send(self, messages: list[Send]) -> None:
        # Usually one message object goes to all workers; encode it once.
        for _, alike in itertools.groupby(messages, key=lambda send: id(send.message)):
            sends = list(alike)
            body = encode_message(sends[0].message)
            for worker, _ in sends:
                if worker in self._members:
                    self._members[worker].send_encoded(body)


def _host_service(num_workers: int, host: str, place: PrivateSocket) -> tuple[Any, dict[str, Any]]:
    """Starts JAX's coordination service; returns it and the start message for the workers.

    If this version of JAX cannot host the service here, the start message tells the leader to host it.
    """
    service = host_service(place.grpc_address, num_workers)
    if service is None:
        with ReservedPorts(1, host) as ports:
            return None, {"hosted": False, "service_port": next(iter(ports))}
    return service, {"hosted": True}


def main() -> None:
    """Runs the server with the listening sockets and settings that the leader passes on standard input."""
    # These signals are meant for the workers. They get them at the same time, and need this process to shut
    # down in a coordinated way.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    settings = json.loads(sys.stdin.readline())
    raise_open_file_limit(_CONNECTIONS_PER_WORKER * settings["num_workers"])
    place = PrivateSocket()
    code, _service = 1, None
    server = MembershipServer(settings["num_workers"], place.path)
    try:
        # Referenced until the end, so that it is never shut down; see below.
        _service = _open(settings, place, server)
        server.wait()
        code = 0
    except Exception:
        traceback.print_exc()
    place.close()
    # Exit without shutting the service down: a shutdown cancels pending calls, and the client of a worker
    # that was suspended and resumes later aborts its process when it sees that.
    os._exit(code)


def _open(settings: dict[str, Any], place: PrivateSocket, server: MembershipServer) -> Any:
    """Starts to accept workers; returns JAX's coordination service."""
    listener = Listener(
        settings["address"],
        Credentials.from_environment(),
        MEMBERSHIP_SERVER,
        server.serve,
        listening=[socket.socket(fileno=number) for number in settings["listeners"]],
    )
    listener.start()
    # Workers can connect while JAX's service starts.
    service, start = _host_service(
        settings["num_workers"], Address.parse(settings["address"]).host, place
    )
    server.open(start)

    def watch_leader() -> None:
        with contextlib.suppress(OSError):
            sys.stdin.read()
        # At once: the leader of the next job may need the port. Existing connections stay open.
        listener.release_port()
        server.leader_is_gone()

    Background("the membership server").start(watch_leader, name="watch-leader")
    return service


if __name__ == "__main__":
    main()

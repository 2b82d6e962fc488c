"""The meeting point: a small process beside the leader's.

It is a process of its own so that the workers can still hear of each other, and JAX's clients of its
coordination service do not abort theirs, when the leader dies. The leader's port is free
when the leader has ended. The process ends when the last worker has gone, or after the leader when all
that are left have missed heartbeats for their timeout. It does not import JAX, to be there at once.
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
from stratagem._src.cluster.held_ports import HeldPorts
from stratagem._src.control_plane.identities import MEETING, RELAY_ROLE, WORKER_ROLE
from stratagem._src.control_plane.membership_state import Board, Send
from stratagem._src.control_plane.private_socket import PrivateSocket
from stratagem._src.control_plane.relay import serve_relay
from stratagem._src.jax_compat.coordination_service import host_service
from stratagem._src.process.background import Background
from stratagem._src.process.rlimits import allow_open_files
from stratagem._src.transport import Connection, Credentials, Listener
from stratagem._src.transport.duplex_stream import Conversation, body_of

__all__ = ["MeetingServer", "main"]

_TICK_SECONDS = 0.5
_SECONDS_TO_COLLECT_NEWS = 0.02
_REST_AFTER_TELLING = 4.0
_SECONDS_TO_SAY_WHO = 10.0
_SECONDS_TO_REFUSE = 5.0
_CONNECTIONS_OF_A_WORKER = 4  # its line, its relay, and both ends of what the relay leads to


class MeetingServer:
    """Serves one job, in the threads of those who call.

    Args:
        num_workers: How many workers are expected.
        service: The path of the socket of JAX's coordination service.
    """

    def __init__(self, num_workers: int, service: str) -> None:
        self._board = Board(num_workers)
        self._service = service
        self._members: dict[int, Conversation] = {}
        self._leader_is_gone = False
        self._changed = threading.Condition()

    def serve(self, connection: Connection) -> None:
        """Serves one connection until it ends."""
        assert connection.peer is not None
        if connection.peer.role == RELAY_ROLE:
            serve_relay(connection, self._service)
        elif connection.peer.role == WORKER_ROLE:
            self._serve_worker(Conversation(connection), connection.peer.index)

    def open(self, start: dict[str, Any]) -> None:
        """Says what workers are told once all are there."""
        with self._changed:
            self._tell(self._board.open(start))

    def wait(self) -> None:
        """Returns when the last worker has gone, and tells them of each other until then."""
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._board.has_news or self._is_deserted, _TICK_SECONDS
                )
                begun = time.monotonic()
                self._tell(self._board.tick(begun))
                is_over = self._board.is_over(begun, leader_has_ended=self._leader_is_gone)
                if is_over or self._is_deserted:
                    return
            # More may happen meanwhile, of which all are then told at once. With many workers, to tell
            # takes a while: it must leave time for those who come and speak.
            spent = time.monotonic() - begun
            time.sleep(max(_SECONDS_TO_COLLECT_NEWS, _REST_AFTER_TELLING * spent))

    @property
    def _is_deserted(self) -> bool:
        return self._leader_is_gone and not self._members

    def leader_is_gone(self) -> None:
        """Notes that the leader's process ended."""
        with self._changed:
            self._leader_is_gone = True
            self._changed.notify()

    def _serve_worker(self, conversation: Conversation, worker: int) -> None:
        try:
            opening = conversation.hear(time.monotonic() + _SECONDS_TO_SAY_WHO)
            reason = self._admit(conversation, worker, opening.get("num_workers"))
            if reason is not None:
                conversation.say({"refused": reason})
                conversation.finish(_SECONDS_TO_REFUSE)
                return
            try:
                while True:
                    message = conversation.hear()
                    with self._changed:
                        self._note(self._board.receive(worker, message, time.monotonic()))
            finally:
                with self._changed:
                    del self._members[worker]
                    self._board.lose(worker)
                    self._note([])
        finally:
            conversation.close()

    def _admit(self, conversation: Conversation, worker: int, num_workers: object) -> str | None:
        with self._changed:
            reason = self._board.refusal(worker, num_workers)
            if reason is None:
                self._members[worker] = conversation
                conversation.say({"welcome": True})
                self._note(self._board.join(worker, time.monotonic()))
        return reason

    def _note(self, urgent: list[Send]) -> None:
        """Tells at once what cannot wait, and has ``wait`` tell the news."""
        self._tell(urgent)
        if self._board.has_news:
            self._changed.notify()

    def _tell(self, messages: list[Send]) -> None:
        # Mostly one message for all: it is written once.
        for _, alike in itertools.groupby(messages, key=lambda send: id(send.message)):
            sends = list(alike)
            body = body_of(sends[0].message)
            for worker, _ in sends:
                if worker in self._members:
                    self._members[worker].say_body(body)


def _host_service(num_workers: int, host: str, place: PrivateSocket) -> tuple[Any, dict[str, Any]]:
    """Starts JAX's coordination service; returns it and what to tell the workers.

    Where this JAX has no such thing to host, the leader is told to.
    """
    service = host_service(place.grpc_address, num_workers)
    if service is None:
        with HeldPorts(1, host) as ports:
            return None, {"hosted": False, "service_port": next(iter(ports))}
    return service, {"hosted": True}


def main() -> None:
    """Serves on the socket and with the settings that the leader hands over on standard input."""
    # They are for the workers, who get them at the same time and need this process to come to an end
    # together.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    settings = json.loads(sys.stdin.readline())
    allow_open_files(_CONNECTIONS_OF_A_WORKER * settings["num_workers"])
    place = PrivateSocket()
    code, _service = 1, None
    server = MeetingServer(settings["num_workers"], place.path)
    try:
        # Held until the very end, for what is said below.
        _service = _open(settings, place, server)
        server.wait()
        code = 0
    except Exception:
        traceback.print_exc()
    place.close()
    # Not by the service's own end: it would tell a worker that was stopped and wakes up later that its
    # calls are cancelled, and JAX's client aborts the process that hears so.
    os._exit(code)


def _open(settings: dict[str, Any], place: PrivateSocket, server: MeetingServer) -> Any:
    """Lets workers come; returns JAX's coordination service."""
    listener = Listener(
        settings["address"],
        Credentials.from_environment(),
        MEETING,
        server.serve,
        listening=[socket.socket(fileno=number) for number in settings["listeners"]],
    )
    listener.start()
    # Meanwhile workers come.
    service, start = _host_service(
        settings["num_workers"], Address.parse(settings["address"]).host, place
    )
    server.open(start)

    def watch_leader() -> None:
        with contextlib.suppress(OSError):
            sys.stdin.read()
        # At once: the next job may have its leader here. Workers that are still connected stay so.
        listener.release_port()
        server.leader_is_gone()

    Background("the meeting point").start(watch_leader, name="watch-leader")
    return service


if __name__ == "__main__":
    main()

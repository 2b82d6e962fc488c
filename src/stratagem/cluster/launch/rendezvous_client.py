"""``RendezvousClient``: another node's end of the conversation with node 0."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable

from stratagem.cluster.errors import RendezvousError
from stratagem.cluster.launch.event_loop import EventLoop
from stratagem.cluster.launch.events import Finish, Interrupted, NodeStopped, Order, Report, Stop
from stratagem.cluster.launch.frames import (
    LARGEST_FRAME,
    LARGEST_GREETING,
    FrameReader,
    next_body,
    to_json,
)
from stratagem.cluster.launch.greeting import Seals, answer_challenge
from stratagem.cluster.launch.messages import order_from_json, report_to_json
from stratagem.cluster.launch.rendezvous import Rendezvous, watch_over

__all__ = ["RendezvousClient"]

_SECONDS_BETWEEN_TRIES = 0.2


class RendezvousClient:
    """Takes part in the job of node 0.

    Args:
        loop: The event loop that drives it.
        rendezvous: Where node 0 is.
        grace_seconds: How long tasks have to end when node 0 is lost.

    Raises:
        RendezvousError: If node 0 does not answer in time, or refuses.
    """

    def __init__(self, loop: EventLoop, rendezvous: Rendezvous, grace_seconds: float) -> None:
        self._loop = loop
        self._rendezvous = rendezvous
        self._grace_seconds = grace_seconds
        self._obey: Callable[[Order], None] = lambda _: None
        self._was_interrupted = False
        self._is_lost = False
        self._connection, self._seals = _connect(rendezvous)
        self._reader = FrameReader(LARGEST_FRAME)
        watch_over(self._connection)
        loop.add_reader(self._connection, self._read)

    @property
    def own_host(self) -> str:
        """The address of this machine on the way to node 0, where the other nodes reach it."""
        return str(self._connection.getsockname()[0])

    def obey_with(self, obey: Callable[[Order], None]) -> None:
        """Calls back with every order from now on."""
        self._obey = obey

    def report(self, report: Report) -> None:
        """Tells node 0 something; when it is lost, ends this node's part of the job."""
        if self._is_lost:
            if isinstance(report, NodeStopped):
                self._obey(Finish(1, f"node 0 at {self._rendezvous.endpoint} is gone"))
            elif isinstance(report, Interrupted):
                self._obey(Stop(signal.SIGKILL, 0.0))
            return
        if isinstance(report, Interrupted):
            if self._was_interrupted:  # node 0 may be slow, the second Ctrl-C is not
                self._obey(Stop(signal.SIGKILL, 0.0))
            self._was_interrupted = True
        try:
            self._connection.sendall(self._seals.to_node_0.seal(report_to_json(report)))
        except OSError:
            self._lose()

    def _read(self) -> None:
        try:
            received = self._connection.recv(64 * 1024)
            bodies = self._reader.feed(received)
            orders = [order_from_json(self._seals.from_node_0.open(body)) for body in bodies]
        except (OSError, RendezvousError):
            received, orders = b"", []
        for order in orders:
            self._obey(order)
            if isinstance(order, Finish):
                return
        if not received:
            self._lose()

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self.close()
            self._obey(Stop(signal.SIGTERM, self._grace_seconds))

    def close(self) -> None:
        """Ends the conversation."""
        self._loop.remove_reader(self._connection)
        self._connection.close()

    def __enter__(self) -> RendezvousClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _MayRetry(Exception):
    """Node 0 cannot be joined yet."""


def _connect(rendezvous: Rendezvous) -> tuple[socket.socket, Seals]:
    deadline = time.monotonic() + rendezvous.timeout_seconds
    while True:
        try:
            return _try_to_connect(rendezvous, deadline)
        except (OSError, _MayRetry) as error:
            if time.monotonic() + _SECONDS_BETWEEN_TRIES > deadline:
                raise RendezvousError(
                    f"Node {rendezvous.node_rank} waited {rendezvous.timeout_seconds:g} s for "
                    f"node 0 at {rendezvous.endpoint}, but: {error}. Start 'stratagem run' there "
                    "with --node-rank 0 and the same --rdzv-endpoint."
                ) from None
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _try_to_connect(rendezvous: Rendezvous, deadline: float) -> tuple[socket.socket, Seals]:
    endpoint = (rendezvous.endpoint.host, rendezvous.endpoint.port)
    seconds = max(0.1, deadline - time.monotonic())
    connection = socket.create_connection(endpoint, timeout=min(seconds, 10.0))
    try:
        seals, answer = answer_challenge(
            rendezvous.secret,
            next_body(connection, LARGEST_GREETING),
            rendezvous.node_rank,
            rendezvous.num_nodes,
        )
        connection.sendall(answer)
        _check_welcome(rendezvous, seals, next_body(connection, LARGEST_GREETING))
    except BaseException:
        connection.close()
        raise
    return connection, seals


def _check_welcome(rendezvous: Rendezvous, seals: Seals, body: bytes) -> None:
    try:
        seals.from_node_0.open(body)
    except RendezvousError:
        refused = to_json(body)
        reason = str(refused.get("refused"))
        if refused.get("may_retry") is True:
            raise _MayRetry(reason) from None
        raise RendezvousError(
            f"Node 0 at {rendezvous.endpoint} refused node {rendezvous.node_rank}: {reason}. Run "
            "the same command with the same secret on every node."
        ) from None

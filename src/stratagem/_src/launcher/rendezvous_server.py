"""``RendezvousServer``: the connections of node 0 to the other nodes."""

from __future__ import annotations

import functools
import logging
import threading
import time

from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.core.errors import UnavailableError
from stratagem._src.launcher.event_loop import EventLoop
from stratagem._src.launcher.event_serialization import order_to_json, report_from_json
from stratagem._src.launcher.events import (
    NodeJoined,
    NodeLost,
    NodeStopped,
    Order,
    Report,
    TaskEnded,
)
from stratagem._src.launcher.job_dispatcher import JobDispatcher
from stratagem._src.launcher.rendezvous import (
    HEARTBEAT_SECONDS,
    HEARTBEAT_TIMEOUT,
    HOST,
    NODE_ROLE,
    Rendezvous,
)
from stratagem._src.process.background import Background
from stratagem._src.process.rlimits import raise_open_file_limit
from stratagem._src.transport import Connection, Listener
from stratagem._src.transport.duplex_stream import DuplexStream, HeartbeatTimeout, encode_message

__all__ = ["RendezvousServer"]

_log = logging.getLogger("stratagem")
_HANDSHAKE_TIMEOUT = 10.0
_SHUTDOWN_TIMEOUT = 1.0


class RendezvousServer:
    """Accepts the other nodes of a job, forwards their reports and sends them orders.

    Each connection has a thread, which decodes messages. The loop's thread acts on them.

    Args:
        loop: The event loop that drives the job.
        rendezvous: The address to listen on, and the credentials that nodes must prove.
        dispatcher: The dispatcher of the job.

    Raises:
        RendezvousError: If it cannot listen there.
    """

    def __init__(self, loop: EventLoop, rendezvous: Rendezvous, dispatcher: JobDispatcher) -> None:
        self._loop = loop
        self._num_nodes = rendezvous.num_nodes
        self._dispatcher = dispatcher
        self._timeout_seconds = rendezvous.timeout_seconds
        self._nodes: dict[int, DuplexStream] = {}
        self._lost: dict[int, DuplexStream] = {}
        self._open: set[DuplexStream] = set()
        self._last_order: Order | None = None
        self._last_body = b""
        raise_open_file_limit(rendezvous.num_nodes)
        self._left = threading.Condition()
        self._listener = Listener(
            str(rendezvous.endpoint), rendezvous.credentials, HOST, self._serve
        )
        self._closed = threading.Event()
        # Heartbeats have their own thread: the loop blocks while a pipe reader does not read the
        # launcher's output.
        self._background = Background("the rendezvous")
        try:
            self._listener.start()
        except UnavailableError as error:
            raise RendezvousError(
                f"Node 0 cannot listen on port {rendezvous.endpoint.port} of --rdzv-endpoint "
                f"{rendezvous.endpoint}. {error}"
            ) from None
        self._background.start(self._send_heartbeats, name="rendezvous-heartbeat")

    @property
    def lost_nodes(self) -> list[int]:
        """The ranks above 0 that are not connected."""
        return [node for node in range(1, self._num_nodes) if node not in self._nodes]

    def close(self) -> None:
        """Closes every connection, after the nodes have received the last order and disconnected."""
        with self._left:
            self._left.wait_for(lambda: not self._open, _SHUTDOWN_TIMEOUT)
        self._closed.set()
        self._listener.shutdown()

    def __enter__(self) -> RendezvousServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(HEARTBEAT_SECONDS):
            with self._left:
                streams = list(self._open)
            for stream in streams:
                stream.send_heartbeat()

    # --- in the thread of a connection --------------------------------------------------------------

    def _serve(self, connection: Connection) -> None:
        assert connection.peer is not None
        if connection.peer.role != NODE_ROLE:
            return
        stream = DuplexStream(connection, HEARTBEAT_TIMEOUT)
        with self._left:
            self._open.add(stream)
        try:
            self._listen_to(stream, connection.peer.index)
        finally:
            stream.close()
            with self._left:
                self._open.discard(stream)
                self._left.notify_all()

    def _listen_to(self, stream: DuplexStream, node: int) -> None:
        opening = stream.receive(time.monotonic() + _HANDSHAKE_TIMEOUT)
        num_nodes = opening.get("num_nodes")
        self._loop.call_soon(lambda: self._admit(stream, node, num_nodes))
        try:
            while True:
                report = report_from_json(stream.receive())
                self._loop.call_soon(functools.partial(self._receive, stream, node, report))
        except HeartbeatTimeout as error:
            _log.warning("%s: its host is down or hangs, or the network is down", error)
        finally:
            self._loop.call_soon(lambda: self._lose(stream, node))

    # --- in the thread of the loop ------------------------------------------------------------------

    def _admit(self, stream: DuplexStream, node: int, num_nodes: object) -> None:
        phase = self._dispatcher.state.phase
        if num_nodes != self._num_nodes or not 0 < node < self._num_nodes:
            reason = f"node 0 has --nnodes {self._num_nodes}, this is node {node} of {num_nodes}"
            stream.send({"refused": reason, "may_retry": False})
        elif node in self._nodes:
            reason = f"node {node} is connected already"
            stream.send({"refused": reason, "may_retry": True})
        elif not self._dispatcher.state.expects(node):
            stream.send({"refused": f"the job is {phase.value}", "may_retry": True})
        else:
            self._nodes[node] = stream
            stream.send({"welcome": node})
            self._dispatcher.add_node(node, lambda order: stream.send_encoded(self._encode(order)))

    def _encode(self, order: Order) -> bytes:
        """Returns the encoded order; encodes it once for all nodes, because it may name all of them."""
        if self._last_order is not order:
            self._last_order, self._last_body = order, encode_message(order_to_json(order))
        return self._last_body

    def _receive(self, stream: DuplexStream, node: int, report: Report) -> None:
        if self._nodes.get(node) is not stream:
            return
        if self._may_report(node, report):
            self._dispatcher.report(report)
        else:
            _log.warning("node %d sent a report that belongs to another node: %s", node, report)
            stream.interrupt()

    def _may_report(self, node: int, report: Report) -> bool:
        match report:
            case NodeJoined():
                return report.offer.node == node
            case NodeStopped():
                return report.node == node
            case TaskEnded():
                return report.ending.task in self._dispatcher.state.tasks_of(node)
        return True

    def _lose(self, stream: DuplexStream, node: int) -> None:
        if self._nodes.get(node) is stream:
            del self._nodes[node]
            self._dispatcher.remove_node(node)
            self._dispatcher.report(NodeLost(node))
            moment = time.monotonic() + self._timeout_seconds
            self._loop.call_at(moment, lambda: self._lose_for_good(node, stream))
            self._lost[node] = stream

    def _lose_for_good(self, node: int, stream: DuplexStream) -> None:
        if node not in self._nodes and self._lost.get(node) is stream:
            self._dispatcher.report(NodeLost(node, for_good=True))

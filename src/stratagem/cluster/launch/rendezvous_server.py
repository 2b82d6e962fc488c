"""``RendezvousServer``: node 0's end of the conversations with the other nodes."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable

from stratagem.cluster.errors import RendezvousError
from stratagem.cluster.launch.event_loop import EventLoop
from stratagem.cluster.launch.events import NodeJoined, NodeLost, NodeStopped, Order
from stratagem.cluster.launch.frames import LARGEST_FRAME, LARGEST_GREETING, FrameReader
from stratagem.cluster.launch.greeting import Answer, challenge, check_answer, refusal
from stratagem.cluster.launch.job_host import JobHost
from stratagem.cluster.launch.job_state import Phase
from stratagem.cluster.launch.messages import order_to_json, report_from_json
from stratagem.cluster.launch.rendezvous import Rendezvous, watch_over

__all__ = ["RendezvousServer"]

_MOST_STRANGERS = 64
_SECONDS_TO_GREET = 10.0
_SECONDS_TO_LEAVE = 1.0


class RendezvousServer:
    """Lets the other nodes take part in a job.

    Args:
        loop: The event loop that drives it.
        rendezvous: Where it listens, and the secret that others have to know.
        host: The job.
        say: Called with what the person who started the launcher should know.

    Raises:
        RendezvousError: If it cannot listen there.
    """

    def __init__(
        self,
        loop: EventLoop,
        rendezvous: Rendezvous,
        host: JobHost,
        say: Callable[[str], None],
    ) -> None:
        self.rendezvous = rendezvous
        self.host = host
        self.say = say
        self.nodes: dict[int, _Peer] = {}
        self.strangers: set[_Peer] = set()
        self._loop = loop
        self._socket = _listen(rendezvous)
        loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        try:
            connection, address = self._socket.accept()
        except OSError:
            return
        if len(self.strangers) >= _MOST_STRANGERS:
            connection.close()
            return
        peer = _Peer(self, self._loop, connection, str(address[0]))
        self.strangers.add(peer)

    def close(self) -> None:
        """Ends every conversation."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for node in self.nodes.values():
            node.let_go()
        for peer in [*self.strangers, *self.nodes.values()]:
            peer.close()

    def __enter__(self) -> RendezvousServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Peer:
    """The conversation with one other node, or with somebody who wants to be one."""

    def __init__(
        self, server: RendezvousServer, loop: EventLoop, connection: socket.socket, address: str
    ) -> None:
        self._server = server
        self._loop = loop
        self._connection = connection
        self._address = address
        self._reader = FrameReader(LARGEST_GREETING)
        self._answer: Answer | None = None
        watch_over(connection)
        loop.add_reader(connection, self._read)
        loop.call_at(time.monotonic() + _SECONDS_TO_GREET, self._expect_answer)
        self._challenge, greeting = challenge()
        with contextlib.suppress(OSError):
            connection.sendall(greeting)

    def _read(self) -> None:
        try:
            received = self._connection.recv(64 * 1024)
        except OSError:
            received = b""
        if not received:
            self._leave()
            return
        try:
            for body in self._reader.feed(received):
                if self._answer is None:
                    self._greet(body)
                else:
                    self._hear(body, self._answer)
        except RendezvousError as error:
            self._server.say(f"refused {self._address}: {error}")
            self._refuse("the secrets of node 0 and this node differ", may_retry=False)

    def _greet(self, body: bytes) -> None:
        answer = check_answer(self._server.rendezvous.secret, self._challenge, body)
        num_nodes = self._server.rendezvous.num_nodes
        if answer.num_nodes != num_nodes or not 0 < answer.node < num_nodes:
            self._refuse(
                f"node 0 has --nnodes {num_nodes}, this is node {answer.node} of "
                f"{answer.num_nodes}",
                may_retry=False,
            )
        elif answer.node in self._server.nodes:
            self._refuse(f"there is a node {answer.node} already", may_retry=True)
        elif self._server.host.state.phase is not Phase.GATHERING:
            self._refuse(f"the job is {self._server.host.state.phase.value}", may_retry=True)
        else:
            self._answer = answer
            self._reader.limit = LARGEST_FRAME
            self._server.strangers.discard(self)
            self._server.nodes[answer.node] = self
            self._server.host.add_node(answer.node, self._order)
            self._send(answer.seals.from_node_0.seal({"kind": "Welcome"}))

    def _hear(self, body: bytes, answer: Answer) -> None:
        report = report_from_json(answer.seals.to_node_0.open(body))
        node = answer.node
        if isinstance(report, NodeJoined):
            node = report.offer.node
        elif isinstance(report, NodeStopped):
            node = report.node
        if node != answer.node:
            raise RendezvousError(f"Node {answer.node} must not speak for node {node}.")
        self._server.host.report(report)

    def _order(self, order: Order) -> None:
        assert self._answer is not None
        self._send(self._answer.seals.from_node_0.seal(order_to_json(order)))

    def _send(self, data: bytes) -> None:
        try:
            self._connection.sendall(data)
        except OSError:
            # Not now: the job may be in the middle of giving this order to all nodes.
            self._loop.call_at(time.monotonic(), self._leave)

    def _expect_answer(self) -> None:
        if self._answer is None:
            self._leave()

    def _refuse(self, reason: str, may_retry: bool) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(refusal(reason, may_retry))
        self._leave()

    def _leave(self) -> None:
        self.close()
        self._server.strangers.discard(self)
        if self._answer is not None and self._server.nodes.get(self._answer.node) is self:
            del self._server.nodes[self._answer.node]
            self._server.host.remove_node(self._answer.node)
            self._server.host.report(NodeLost(self._answer.node))

    def let_go(self) -> None:
        """Waits until the node has left: closing before would take the last order from it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            self._connection.settimeout(_SECONDS_TO_LEAVE)
            while self._connection.recv(4096):
                continue

    def close(self) -> None:
        self._loop.remove_reader(self._connection)
        self._connection.close()


def _listen(rendezvous: Rendezvous) -> socket.socket:
    endpoint = (rendezvous.bind_host, rendezvous.endpoint.port)
    is_ipv6 = ":" in rendezvous.endpoint.host
    try:
        return socket.create_server(endpoint, family=socket.AF_INET6 if is_ipv6 else socket.AF_INET)
    except OSError as error:
        raise RendezvousError(
            f"Node 0 must be able to listen on port {rendezvous.endpoint.port} of --rdzv-endpoint "
            f"{rendezvous.endpoint}, but: {error}. Use a free port."
        ) from None

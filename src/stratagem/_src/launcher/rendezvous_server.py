"""``RendezvousServer``: node 0's end of the conversations with the other nodes."""

from __future__ import annotations

import functools
import logging
import threading
import time

from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.core.errors import UnavailableError
from stratagem._src.launcher.events import (
    NodeJoined,
    NodeLost,
    NodeStopped,
    Order,
    Report,
    TaskEnded,
)
from stratagem._src.launcher.events_as_json import order_to_json, report_from_json
from stratagem._src.launcher.job_host import JobHost
from stratagem._src.launcher.rendezvous import (
    HEARTBEAT_SECONDS,
    HEARTBEAT_TIMEOUT,
    HOST,
    NODE_ROLE,
    Rendezvous,
)
from stratagem._src.launcher.task_loop import TaskLoop
from stratagem._src.process.background import Background
from stratagem._src.process.rlimits import allow_open_files
from stratagem._src.transport import Connection, Listener
from stratagem._src.transport.duplex_stream import Conversation, HeartbeatTimeout, body_of

__all__ = ["RendezvousServer"]

_log = logging.getLogger("stratagem")
_SECONDS_TO_SAY_WHO = 10.0
_SECONDS_TO_LEAVE = 1.0


class RendezvousServer:
    """Lets the other nodes take part in a job.

    Each conversation has a thread. What nodes say is understood there, and acted upon in the loop.

    Args:
        loop: The event loop that drives the job.
        rendezvous: Where it listens, and what others have to prove.
        host: The job.

    Raises:
        RendezvousError: If it cannot listen there.
    """

    def __init__(self, loop: TaskLoop, rendezvous: Rendezvous, host: JobHost) -> None:
        self._loop = loop
        self._num_nodes = rendezvous.num_nodes
        self._host = host
        self._timeout_seconds = rendezvous.timeout_seconds
        self._nodes: dict[int, Conversation] = {}
        self._lost: dict[int, Conversation] = {}
        self._open: set[Conversation] = set()
        self._last_order: Order | None = None
        self._last_body = b""
        allow_open_files(rendezvous.num_nodes)
        self._left = threading.Condition()
        self._listener = Listener(
            str(rendezvous.endpoint), rendezvous.credentials, HOST, self._serve
        )
        self._closed = threading.Event()
        # Not in the loop: that waits where somebody does not read what the launcher prints.
        self._background = Background("the rendezvous")
        try:
            self._listener.start()
        except UnavailableError as error:
            raise RendezvousError(
                f"Node 0 must be able to listen on port {rendezvous.endpoint.port} of --rdzv-endpoint "
                f"{rendezvous.endpoint}. {error}"
            ) from None
        self._background.start(self._beat, name="rendezvous-beat")

    @property
    def lost_nodes(self) -> list[int]:
        """The nodes that are not here, of those that come from elsewhere."""
        return [node for node in range(1, self._num_nodes) if node not in self._nodes]

    def close(self) -> None:
        """Ends every conversation, once the nodes have heard the last order and left."""
        with self._left:
            self._left.wait_for(lambda: not self._open, _SECONDS_TO_LEAVE)
        self._closed.set()
        self._listener.shutdown()

    def __enter__(self) -> RendezvousServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_SECONDS):
            with self._left:
                conversations = list(self._open)
            for conversation in conversations:
                conversation.beat()

    # --- in the thread of a conversation ------------------------------------------------------------

    def _serve(self, connection: Connection) -> None:
        assert connection.peer is not None
        if connection.peer.role != NODE_ROLE:
            return
        conversation = Conversation(connection, HEARTBEAT_TIMEOUT)
        with self._left:
            self._open.add(conversation)
        try:
            self._listen_to(conversation, connection.peer.index)
        finally:
            conversation.close()
            with self._left:
                self._open.discard(conversation)
                self._left.notify_all()

    def _listen_to(self, conversation: Conversation, node: int) -> None:
        opening = conversation.hear(time.monotonic() + _SECONDS_TO_SAY_WHO)
        num_nodes = opening.get("num_nodes")
        self._loop.call_soon(lambda: self._admit(conversation, node, num_nodes))
        try:
            while True:
                report = report_from_json(conversation.hear())
                self._loop.call_soon(functools.partial(self._hear, conversation, node, report))
        except HeartbeatTimeout as error:
            _log.warning("%s: its host is off or hangs, or the network is down", error)
        finally:
            self._loop.call_soon(lambda: self._lose(conversation, node))

    # --- in the thread of the loop ------------------------------------------------------------------

    def _admit(self, conversation: Conversation, node: int, num_nodes: object) -> None:
        phase = self._host.state.phase
        if num_nodes != self._num_nodes or not 0 < node < self._num_nodes:
            reason = f"node 0 has --nnodes {self._num_nodes}, this is node {node} of {num_nodes}"
            conversation.say({"refused": reason, "may_retry": False})
        elif node in self._nodes:
            reason = f"there is a node {node} already"
            conversation.say({"refused": reason, "may_retry": True})
        elif not self._host.state.expects(node):
            conversation.say({"refused": f"the job is {phase.value}", "may_retry": True})
        else:
            self._nodes[node] = conversation
            conversation.say({"welcome": node})
            self._host.add_node(node, lambda order: conversation.say_body(self._written(order)))

    def _written(self, order: Order) -> bytes:
        """Returns an order as it travels. It is for all nodes, and may name all of them."""
        if self._last_order is not order:
            self._last_order, self._last_body = order, body_of(order_to_json(order))
        return self._last_body

    def _hear(self, conversation: Conversation, node: int, report: Report) -> None:
        if self._nodes.get(node) is not conversation:
            return
        if self._may_report(node, report):
            self._host.report(report)
        else:
            _log.warning("node %d said what only another node can know: %s", node, report)
            conversation.interrupt()

    def _may_report(self, node: int, report: Report) -> bool:
        match report:
            case NodeJoined():
                return report.offer.node == node
            case NodeStopped():
                return report.node == node
            case TaskEnded():
                return report.ending.task in self._host.state.tasks_of(node)
        return True

    def _lose(self, conversation: Conversation, node: int) -> None:
        if self._nodes.get(node) is conversation:
            del self._nodes[node]
            self._host.remove_node(node)
            self._host.report(NodeLost(node))
            moment = time.monotonic() + self._timeout_seconds
            self._loop.call_at(moment, lambda: self._lose_for_good(node, conversation))
            self._lost[node] = conversation

    def _lose_for_good(self, node: int, conversation: Conversation) -> None:
        if node not in self._nodes and self._lost.get(node) is conversation:
            self._host.report(NodeLost(node, for_good=True))

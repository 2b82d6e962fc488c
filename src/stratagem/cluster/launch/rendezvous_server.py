"""``RendezvousServer``: node 0's end of the conversations with the other nodes."""

from __future__ import annotations

import threading
import time
from typing import Any

from stratagem.cluster.conversation import Conversation
from stratagem.cluster.errors import RendezvousError
from stratagem.cluster.launch.event_loop import EventLoop
from stratagem.cluster.launch.events import (
    NodeJoined,
    NodeLost,
    NodeStopped,
    Order,
    Report,
    TaskEnded,
)
from stratagem.cluster.launch.job_host import JobHost
from stratagem.cluster.launch.job_state import Phase
from stratagem.cluster.launch.messages import order_to_json, report_from_json
from stratagem.cluster.launch.rendezvous import HOST, NODE_ROLE, Rendezvous
from stratagem.cluster.transport import Connection, Listener
from stratagem.core.errors import UnavailableError

__all__ = ["RendezvousServer"]

_SECONDS_TO_SAY_WHO = 10.0
_SECONDS_TO_REFUSE = 5.0
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

    def __init__(self, loop: EventLoop, rendezvous: Rendezvous, host: JobHost) -> None:
        self._loop = loop
        self._num_nodes = rendezvous.num_nodes
        self._host = host
        self._nodes: dict[int, Conversation] = {}
        self._listener = Listener(
            str(rendezvous.endpoint), rendezvous.credentials, HOST, self._serve
        )
        try:
            self._listener.start()
        except UnavailableError as error:
            raise RendezvousError(
                f"Node 0 must be able to listen on port {rendezvous.endpoint.port} of --rdzv-endpoint "
                f"{rendezvous.endpoint}, but: {error}"
            ) from None

    def close(self) -> None:
        """Ends every conversation, after the last order has reached the nodes."""
        # They leave when they are told to finish. Who leaves first may take the last order with it.
        deadline = time.monotonic() + _SECONDS_TO_LEAVE
        while self._nodes and (seconds := deadline - time.monotonic()) > 0:
            self._loop.call_at(time.monotonic() + seconds, lambda: None)
            self._loop.run_once()
        self._listener.shutdown()

    def __enter__(self) -> RendezvousServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- in the threads of the conversations --------------------------------------------------------

    def _serve(self, connection: Connection) -> None:
        assert connection.peer is not None
        if connection.peer.role != NODE_ROLE:
            return
        node = connection.peer.index
        conversation = Conversation(connection)
        try:
            opening = conversation.hear(time.monotonic() + _SECONDS_TO_SAY_WHO)
            refusal = self._in_loop(lambda: self._admit(node, opening, conversation))
            if refusal is not None:
                conversation.say(refusal)
                conversation.finish(_SECONDS_TO_REFUSE)
                return
            try:
                while True:
                    report = report_from_json(conversation.hear())
                    self._loop.call_soon(lambda report=report: self._report(node, report))
            finally:
                self._loop.call_soon(lambda: self._lose(node, conversation))
        finally:
            conversation.close()

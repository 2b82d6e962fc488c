"""``PeerService``: direct RPC between the processes of an elastic job, without the membership server.

Elastic recovery uses it because the membership server may be lost with the leader. Every process listens
at the address of its task from its start. A response carries the incarnation of the process that sent it,
so that a restarted process with the same address is not mistaken for the old member.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.control_plane.generation import Generation, Member
from stratagem._src.control_plane.identities import PEER
from stratagem._src.control_plane.quorum import JoinRequests, Quorum
from stratagem._src.core.errors import (
    DeadlineExceededError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem._src.transport import Credentials, Message, TransportClient, TransportServer

__all__ = ["Answer", "PeerService"]

_RESPONSE_TIMEOUT = 1.0


class Answer(dict[str, Any]):
    """The response of a process of the job.

    ``by`` is its incarnation, and ``generation`` its current or last generation, if any.
    """

    @property
    def is_over(self) -> bool:
        """Whether the process has finished training."""
        return bool(self.get("is_over"))

    @property
    def is_left(self) -> bool:
        """Whether the requesting process is not a member of the responder's generation."""
        return bool(self.get("is_left"))

    @property
    def generation(self) -> Generation | None:
        """The current or last generation of the process."""
        data = self.get("generation")
        return None if data is None else Generation.from_json(data)


class PeerService:
    """Serves the requests of other processes of an elastic job, and sends requests to them.

    Args:
        me: This process. It listens at its address.
        credentials: The credentials of the job.
        peers: The hosts of all processes.

    Attributes:
        generation: The current or last generation of this process.
        join_requests: The workers that request to join.
        is_over: Whether this process has finished training.
        boundary: The last boundary that this process reached; 0 before it trains.

    Raises:
        UnavailableError: If the address is in use.
        PermissionDeniedError: If the address is not loopback and there are no credentials.
    """

    def __init__(self, me: Member, credentials: Credentials, peers: Iterable[str] = ()) -> None:
        self.me: Member = me
        self.generation: Generation | None = None
        self.join_requests: JoinRequests = JoinRequests()
        self.is_over: bool = False
        self.boundary: int = 0
        self.lock: threading.RLock = threading.RLock()
        self._quorum: Quorum | None = None
        self._credentials = credentials
        self._clients: dict[str, TransportClient] = {}
        handlers = {"ask": self._ask, "ready": self._ready, "join": self._join_request}
        self._server = TransportServer(me.address, handlers, credentials, PEER, peers=peers)
        self._server.start()

    def close(self) -> None:
        """Stops the server and closes all connections."""
        self._server.shutdown()
        for client in self._clients.values():
            client.close()

    # --- requests to other processes ------------------------------------------------------------------

    def call(self, address: str, method: str, **said: Any) -> Answer | None:
        """Calls a method of the process at an address; returns ``None`` if it does not respond."""
        with self.lock:
            client = self._clients.get(address)
            if client is None:
                client = TransportClient(address, self._credentials, wanted=PEER, own=PEER)
                self._clients[address] = client
        try:
            message = Message(json.dumps(said).encode())
            answer = client.call(method, message, timeout=_RESPONSE_TIMEOUT)
        except (UnavailableError, DeadlineExceededError):
            return None
        except UnauthenticatedError:
            return Answer(by="")  # another program uses the port
        return Answer(_parse(answer))

    def has_ended(self, member: Member) -> bool:
        """Returns whether the process of a member is known to have ended.

        It has if another incarnation responds at its address, or if its host refuses the connection. A
        timeout proves nothing: it may be a network partition.
        """
        answer = self.call(member.address, "ask")
        if answer is not None:
            return bool(answer["by"] != member.incarnation)
        where = Address.parse(member.address)
        try:
            socket.create_connection((where.host, where.port), _RESPONSE_TIMEOUT).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False

    # --- quorum -----------------------------------------------------------------------------------

    def set_quorum(self, quorum: Quorum | None) -> None:
        """Sets the quorum that receives ready reports; ``None`` when it is decided."""
        with self.lock:
            self._quorum = quorum

    def adopt(self, generation: Generation) -> None:
        """Makes a generation the current one and drops the join requests of its members."""
        with self.lock:
            self.generation = generation
            self.join_requests.admit(generation.members)

    # --- request handlers, in threads of the server -----------------------------------------------------

    def _answer(self, **said: Any) -> Message:
        generation = None if self.generation is None else self.generation.to_json()
        answer = {"by": self.me.incarnation, "generation": generation, "is_over": self.is_over}
        return Message(json.dumps(answer | said).encode())

    def _ask(self, _: Message) -> Message:
        with self.lock:
            return self._answer()

    def _ready(self, message: Message) -> Message:
        said = _parse(message)
        incarnation, theirs = str(said["by"]), Generation.from_json(said["generation"])
        with self.lock:
            mine = self.generation
            is_newer = mine is None or theirs.number > mine.number
            if is_newer and theirs.rank_of(self.me.incarnation) is not None:
                # The sender has learned of the decision, and this process missed it.
                self.generation = mine = theirs
            is_left = mine is not None and mine.rank_of(incarnation) is None
            quorum = self._quorum
            if quorum is not None and mine is quorum.generation and not is_left:
                quorum.ready(incarnation, now=time.monotonic())
            return self._answer(is_left=is_left)

    def _join_request(self, message: Message) -> Message:
        joining = Member.from_json(_parse(message)["member"])
        with self.lock:
            generation = self.generation
            is_in = generation is not None and generation.rank_of(joining.incarnation) is not None
            if not is_in:
                self.join_requests.add(joining, now=time.monotonic())
            return self._answer()


def _parse(message: Message) -> dict[str, Any]:
    try:
        said = json.loads(message.body)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise RendezvousError(
            "All workers must run the same version of stratagem, but one sent a message that is not a JSON "
            "object."
        )
    return said

"""``Council``: what the processes of an elastic job ask each other when the meeting point may be gone.

Each answers at the address of its task, from the time it starts. An answer says which process gives it,
so that another one in the place of a member is not taken for it.
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
from stratagem._src.control_plane.identities import COUNCIL
from stratagem._src.control_plane.quorum import Newcomers, Succession
from stratagem._src.core.errors import (
    DeadlineExceededError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem._src.transport import Caller, Credentials, Endpoint, Message

__all__ = ["Answer", "Council"]

_SECONDS_TO_ANSWER = 1.0


class Answer(dict[str, Any]):
    """What a process of the job answered.

    ``by`` is its incarnation, and ``generation`` the one it is or was in, if any.
    """

    @property
    def is_over(self) -> bool:
        """Whether the process trains no more."""
        return bool(self.get("is_over"))

    @property
    def is_left(self) -> bool:
        """Whether the caller is not in its generation."""
        return bool(self.get("is_left"))

    @property
    def generation(self) -> Generation | None:
        """The generation that the process is or was in."""
        data = self.get("generation")
        return None if data is None else Generation.from_json(data)


class Council:
    """Answers for this process, and asks others.

    Args:
        me: This process. It answers at its address.
        credentials: What the processes prove to each other.
        peers: The hosts of all of them.

    Attributes:
        generation: The generation that this process is in, or was in last.
        newcomers: Who asks this process to be let in.
        is_over: Whether it trains no more.
        pause_at: The boundary at which it is to stop so that others can be let in.
        boundary: The boundary at which it is; 0 before it trains.
        seconds_per_boundary: How long it took to come there from the one before.

    Raises:
        UnavailableError: If somebody else listens at the address.
        PermissionDeniedError: If it is not loopback and nobody has anything to prove.
    """

    def __init__(self, me: Member, credentials: Credentials, peers: Iterable[str] = ()) -> None:
        self.me: Member = me
        self.generation: Generation | None = None
        self.newcomers: Newcomers = Newcomers()
        self.is_over: bool = False
        self.boundary: int = 0
        self.seconds_per_boundary: float = 1.0
        self.pause_at: int | None = None
        self.lock: threading.RLock = threading.RLock()
        self._succession: Succession | None = None
        self._credentials = credentials
        self._callers: dict[str, Caller] = {}
        handlers = {"ask": self._ask, "ready": self._ready, "knock": self._knock}
        handlers |= {"pause": self._pause}
        self._endpoint = Endpoint(me.address, handlers, credentials, COUNCIL, peers=peers)
        self._endpoint.start()

    def close(self) -> None:
        """Answers nobody any more."""
        self._endpoint.shutdown()
        for caller in self._callers.values():
            caller.close()

    # --- asking ---------------------------------------------------------------------------------------

    def call(self, address: str, method: str, **said: Any) -> Answer | None:
        """Returns what the process at an address answers, or ``None`` if it does not."""
        with self.lock:
            caller = self._callers.get(address)
            if caller is None:
                caller = Caller(address, self._credentials, wanted=COUNCIL, own=COUNCIL)
                self._callers[address] = caller
        try:
            message = Message(json.dumps(said).encode())
            answer = caller.call(method, message, timeout=_SECONDS_TO_ANSWER)
        except (UnavailableError, DeadlineExceededError):
            return None
        except UnauthenticatedError:
            return Answer(by="")  # somebody else has the port
        return Answer(_understand(answer))

    def has_ended(self, member: Member) -> bool:
        """Returns whether the process of a member has ended, for sure.

        Another process answers in its place; or nobody listens there, and its machine says so.
        """
        answer = self.call(member.address, "ask")
        if answer is not None:
            return bool(answer["by"] != member.incarnation)
        where = Address.parse(member.address)
        try:
            socket.create_connection((where.host, where.port), _SECONDS_TO_ANSWER).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False

    # --- succession -----------------------------------------------------------------------------------

    def begin_succession(self, succession: Succession | None) -> None:
        """Takes in from now on who can go on; ``None`` when that is decided."""
        with self.lock:
            self._succession = succession

    def adopt(self, generation: Generation) -> None:
        """Is in a generation from now on; its members do not knock any more."""
        with self.lock:
            self.generation = generation
            self.newcomers.admit(generation.members)
            self.pause_at = None

    # --- answering: in threads of the endpoint ----------------------------------------------------------

    def _answer(self, **said: Any) -> Message:
        generation = None if self.generation is None else self.generation.to_json()
        answer = {"by": self.me.incarnation, "generation": generation, "is_over": self.is_over}
        return Message(json.dumps(answer | said).encode())

    def _ask(self, _: Message) -> Message:
        with self.lock:
            return self._answer()

    def _ready(self, message: Message) -> Message:
        said = _understand(message)
        incarnation, theirs = str(said["by"]), Generation.from_json(said["generation"])
        with self.lock:
            mine = self.generation
            is_newer = mine is None or theirs.number > mine.number
            if is_newer and theirs.rank_of(self.me.incarnation) is not None:
                # It was told what was decided, and this process was not.
                self.generation = mine = theirs
            is_left = mine is not None and mine.rank_of(incarnation) is None
            succession = self._succession
            if succession is not None and mine is succession.generation and not is_left:
                succession.ready(incarnation, now=time.monotonic())
            return self._answer(is_left=is_left)

    def _knock(self, message: Message) -> Message:
        newcomer = Member.from_json(_understand(message)["member"])
        with self.lock:
            generation = self.generation
            is_in = generation is not None and generation.rank_of(newcomer.incarnation) is not None
            if not is_in:
                self.newcomers.knock(newcomer, now=time.monotonic())
            return self._answer()

    def _pause(self, message: Message) -> Message:
        said = _understand(message)
        with self.lock:
            if self.generation is not None and list(self.generation.identity) == said["generation"]:
                self.pause_at = max(int(said["at"]), self.boundary + 1)
            return self._answer()


def _understand(message: Message) -> dict[str, Any]:
    try:
        said = json.loads(message.body)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise RendezvousError(
            "All workers must run the same version of stratagem, but one sent something else than a "
            "JSON object."
        )
    return said

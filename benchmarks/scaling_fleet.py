"""Simulated tasks for scaling_control_plane.py: many real connections in few threads.

Each is one to the code under load: it proves who it is, introduces itself, speaks as often as a real one
and understands what it is told. It does not compute, and shares its process and its thread with others.
"""

from __future__ import annotations

import json
import multiprocessing
import select
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Any, NamedTuple

from stratagem._src.cluster.address import Address
from stratagem._src.core.errors import UnavailableError
from stratagem._src.transport import Credentials, Identity, connect
from stratagem._src.transport.duplex_stream import DuplexStream, encode_message

SECONDS = 120.0
_SECONDS_BETWEEN_TRIES = 0.05


class Role(NamedTuple):
    """How the tasks of a fleet meet a server.

    Attributes:
        address: Of the server.
        credentials: What all prove.
        wanted: Who the server must be.
        role: What the tasks are.
        opening: What each says first.
        beat: What each says again and again; ``None`` for nothing.
        beat_seconds: How often.
    """

    address: Address
    credentials: Credentials
    wanted: Identity
    role: str
    opening: dict[str, Any]
    beat: dict[str, Any] | None = None
    beat_seconds: float = 0.5


class Fleet:
    """Some of the tasks, all served by the thread that calls.

    Args:
        role: How they meet the server.
        members: Their numbers.
    """

    def __init__(self, role: Role, members: Sequence[int]) -> None:
        self._role = role
        self._poll = select.poll()
        self._lines: dict[int, tuple[int, DuplexStream, Any]] = {}
        self._beat = None if role.beat is None else encode_message(role.beat)
        self._next_beat = time.monotonic() + role.beat_seconds
        for member in members:
            self._join(member)

    def _join(self, member: int) -> None:
        role = self._role
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                connection = connect(
                    role.address,
                    role.credentials,
                    own=Identity(role.role, member),
                    wanted=role.wanted,
                    deadline=deadline,
                )
                break
            except UnavailableError:  # the server greets so many at a time
                time.sleep(_SECONDS_BETWEEN_TRIES)
        stream = DuplexStream(connection)
        stream.send(role.opening)
        # Not what a user would touch: one thread is to wait for many connections.
        descriptor = connection._stream._socket.fileno()
        self._lines[descriptor] = member, stream, connection
        self._poll.register(descriptor, select.POLLIN)

    def say(self, message_of: Callable[[int], dict[str, Any]]) -> None:
        """Has every task say something."""
        for member, stream, _ in self._lines.values():
            stream.send(message_of(member))

    def lose(self, member: int) -> float | None:
        """Breaks the connection of one task, if it is one of these, and returns when."""
        for descriptor, (number, stream, _) in self._lines.items():
            if number == member:
                self._poll.unregister(descriptor)
                del self._lines[descriptor]
                stream.close()
                return time.monotonic()
        return None

    def listen(self, is_awaited: Callable[[dict[str, Any]], bool]) -> float:
        """Hears what all are told until each has heard something awaited; returns when the last had."""
        deadline = time.monotonic() + SECONDS
        deaf = set(self._lines)
        heard = time.monotonic()
        while deaf:
            if time.monotonic() > deadline:
                sys.exit(
                    f"{len(deaf)} of {len(self._lines)} tasks were not told within {SECONDS} s"
                )
            for descriptor, message in self._hear():
                if descriptor in deaf and is_awaited(message):
                    deaf.discard(descriptor)
                    heard = time.monotonic()
        return heard

    def listen_for(self, seconds: float) -> None:
        """Hears what all are told for a while."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._hear()

    def next_command(self, pipe: Pipe) -> Any:
        """Hears what all are told, and says beats, until the process is told what to do next."""
        while not pipe.poll():
            self.listen_for(_SECONDS_BETWEEN_TRIES)
        return pipe.recv()

    def _hear(self) -> list[tuple[int, dict[str, Any]]]:
        wait = 100
        if self._beat is not None:
            now = time.monotonic()
            if now >= self._next_beat:
                self._next_beat = now + self._role.beat_seconds
                for _, stream, _ in self._lines.values():
                    stream.send_encoded(self._beat)
            wait = min(wait, max(0, int(1000 * (self._next_beat - time.monotonic()))))
        messages = []
        for descriptor, _ in self._poll.poll(wait):
            _, stream, connection = self._lines[descriptor]
            while True:
                # Not `receive`, which would wait for something other than a heartbeat.
                heard = stream._next(time.monotonic() + SECONDS)
                messages.append((descriptor, json.loads(heard.body)))
                if connection._reader.is_empty:
                    break
        return messages

    def close(self) -> None:
        """Ends all connections."""
        for _, stream, _ in self._lines.values():
            stream.close()


class Fleets:
    """Fleets in processes of their own, which do in step what they are told.

    Args:
        act: Called in each process with its pipe, the role, and the numbers of its tasks.
        role: How they meet the server.
        members: The numbers of all tasks.
        num_processes: In how many processes.
    """

    def __init__(
        self,
        act: Callable[[Pipe, Role, Sequence[int]], None],
        role: Role,
        members: Sequence[int],
        num_processes: int,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for number in range(num_processes):
            ours, theirs = context.Pipe()
            arguments = theirs, role, members[number::num_processes]
            process = context.Process(target=act, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def tell(self, command: Any) -> None:
        """Tells every process what to do next."""
        for pipe in self._pipes:
            pipe.send(command)

    def answers(self) -> list[Any]:
        """Returns what every process says it has done."""
        found = []
        for pipe in self._pipes:
            if not pipe.poll(SECONDS + 10):
                sys.exit("a fleet of simulated tasks does not answer")
            found.append(pipe.recv())
        return found

    def ask(self, command: Any) -> list[Any]:
        """Tells every process what to do next, and returns what each says it has done."""
        self.tell(command)
        return self.answers()

    def __enter__(self) -> Fleets:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.join(10)

"""The meeting point: a small process beside the leader's.

It is a process of its own so that the workers can still hear of each other, and JAX's clients of its
coordination service do not abort theirs, when the leader dies. It ends when the last worker has gone.
It imports neither JAX nor the rest of the library, to be there at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from typing import Any

from stratagem.cluster.errors import RendezvousError
from stratagem.cluster.launch.frames import LARGEST_FRAME, LARGEST_GREETING, FrameReader
from stratagem.cluster.launch.greeting import Seals, challenge, check_answer, refusal
from stratagem.cluster.launch.held_ports import HeldPorts
from stratagem.cluster.meeting.board import Board, Send

__all__ = ["MeetingServer", "main"]

_TICK_SECONDS = 0.5
_GREETING_SECONDS = 10.0
_CHUNK = 65536
_NEVER = 10**7


class MeetingServer:
    """Serves one job.

    Args:
        num_workers: How many workers are expected.
        secret: What they share.
        start: What they are told once all are there.
    """

    def __init__(self, num_workers: int, secret: str, start: dict[str, Any]) -> None:
        self._board = Board(num_workers, start)
        self._secret = secret
        self._writers: dict[int, tuple[asyncio.StreamWriter, Seals]] = {}
        self._leader_is_gone = False
        self._look_up = asyncio.Event()

    async def serve(self, listener: socket.socket) -> None:
        """Serves until the last worker has gone."""
        server = await asyncio.start_server(self._serve_connection, sock=listener)
        async with server:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._look_up.wait(), _TICK_SECONDS)
                self._look_up.clear()
                now = time.monotonic()
                self._send(self._board.tick(now))
                if self._board.is_over(now) or (self._leader_is_gone and not self._writers):
                    return

    def leader_is_gone(self) -> None:
        """Notes that the leader's process ended."""
        self._leader_is_gone = True

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        worker: int | None = None
        frames = FrameReader(LARGEST_GREETING)
        with contextlib.suppress(RendezvousError, OSError, asyncio.IncompleteReadError):
            try:
                nonce, greeting = challenge()
                writer.write(greeting)
                [body] = await asyncio.wait_for(_read(reader, frames), _GREETING_SECONDS)
                try:
                    answer = check_answer(self._secret, nonce, body)
                except RendezvousError:
                    writer.write(refusal("it does not know the job's secret", may_retry=False))
                    await writer.drain()
                    return
                reason = self._board.refusal(answer.node, answer.num_nodes)
                if reason is not None:
                    writer.write(refusal(reason, may_retry=False))
                    await writer.drain()
                    return
                worker = answer.node
                frames.limit = LARGEST_FRAME
                self._writers[worker] = (writer, answer.seals)
                self._send(self._board.join(worker, time.monotonic()))
                while True:
                    for body in await _read(reader, frames):
                        message = answer.seals.to_node_0.open(body)
                        self._send(self._board.receive(worker, message, time.monotonic()))
            except (TimeoutError, asyncio.CancelledError):
                pass
            finally:
                writer.close()
                if worker is not None:
                    del self._writers[worker]
                    self._send(self._board.lose(worker, time.monotonic()))
                    self._look_up.set()

    def _send(self, messages: list[Send]) -> None:
        for worker, message in messages:
            if worker in self._writers:
                writer, seals = self._writers[worker]
                writer.write(seals.from_node_0.seal(message))


async def _read(reader: asyncio.StreamReader, frames: FrameReader) -> list[bytes]:
    """Returns the next messages, at least one.

    Raises:
        IncompleteReadError: At the end of the connection.
    """
    while True:
        data = await reader.read(_CHUNK)
        if not data:
            raise asyncio.IncompleteReadError(b"", None)
        bodies = frames.feed(data)
        if bodies:
            return bodies


def _host_service(num_workers: int) -> tuple[Any, dict[str, Any]]:
    """Starts JAX's coordination service; returns it and what to tell the workers.

    Where this JAX has no such thing to host, the leader is told to.
    """
    with HeldPorts(1) as ports:
        [port] = ports
        try:
            from jaxlib import _jax

            # It never takes a worker for dead: that is for us to say, because it would abort the rest.
            service = _jax.get_distributed_runtime_service(
                f"[::]:{port}",
                num_workers,
                heartbeat_timeout=_NEVER,
                cluster_register_timeout=_NEVER,
                recoverable=True,
            )
        except (ImportError, AttributeError, TypeError):
            return None, {"service_port": port, "hosted": False}
    return service, {"service_port": port, "hosted": True}


def main() -> None:
    """Serves on the socket and with the settings that the leader hands over on standard input."""
    settings = json.loads(sys.stdin.readline())
    listener = socket.socket(fileno=settings["listener"])
    # The service lives as long as this function.
    _service, start = _host_service(settings["num_workers"])

    async def serve() -> None:
        server = MeetingServer(settings["num_workers"], settings["secret"], start)

        def watch_leader() -> None:
            sys.stdin.read()
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                loop.call_soon_threadsafe(server.leader_is_gone)

        loop = asyncio.get_running_loop()
        threading.Thread(target=watch_leader, daemon=True).start()
        await server.serve(listener)

    code = 1
    try:
        asyncio.run(serve())
        code = 0
    except Exception:
        traceback.print_exc()
    # Not by the service's own end: it would tell a worker that was stopped and wakes up later that its
    # calls are cancelled, and JAX's client aborts the process that hears so.
    os._exit(code)

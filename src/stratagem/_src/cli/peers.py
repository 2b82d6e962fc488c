"""Checks whether the other tasks of a cluster can be reached."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.leadership import Task
from stratagem._src.cluster.listening import listen
from stratagem._src.process.background import Background
from stratagem._src.transport import Credentials

__all__ = ["reach_peers"]

_RETRY_INTERVAL = 0.2
_MAX_CONCURRENT = 64


def reach_peers(
    own_address: str | None, addresses: Mapping[Task, str], timeout: float
) -> dict[Task, str]:
    """Returns for every task the error of connecting to it, or ``""`` if it responds.

    Meanwhile this process listens on its own address, unless another process does, until the others have
    connected. So the check can run in all tasks at once, before anything else runs there.

    Args:
        own_address: The address of this task, if it has one.
        addresses: The addresses of the other tasks.
        timeout: Seconds to wait for responses and connections.

    Raises:
        PermissionDeniedError: If there are no credentials for tasks on other machines.
    """
    if not addresses:
        return {}
    deadline = time.monotonic() + timeout
    hosts = [Address.parse(address).host for address in addresses.values()]
    with _listening(own_address, hosts) as all_connected:
        with ThreadPoolExecutor(min(len(addresses), _MAX_CONCURRENT)) as pool:
            results = pool.map(
                lambda address: _connection_error(address, deadline), addresses.values()
            )
            errors = dict(zip(addresses, results, strict=True))
        all_connected.wait(max(0.0, deadline - time.monotonic()))
    return errors


def _connection_error(address: str, deadline: float) -> str:
    target = Address.parse(address)
    while True:
        seconds = max(0.1, deadline - time.monotonic())
        try:
            socket.create_connection((target.host, target.port), timeout=seconds).close()
        except OSError as error:
            if time.monotonic() + _RETRY_INTERVAL > deadline:
                return f"does not respond ({error})"
            time.sleep(_RETRY_INTERVAL)
        else:
            return ""


@contextlib.contextmanager
def _listening(address: str | None, peers: Sequence[str]) -> Iterator[threading.Event]:
    """Listens in the background; the event is set when all peers have connected, or none can."""
    all_connected = threading.Event()
    servers = [] if address is None else _listen(Address.parse(address), peers)
    if not servers:
        all_connected.set()
        yield all_connected
        return
    connections = itertools.count(1)

    def accept(server: socket.socket) -> None:
        # Sends and reads nothing: an accepted connection is sufficient.
        while not all_connected.is_set():
            try:
                server.accept()[0].close()
            except OSError:
                return
            if next(connections) >= len(peers):
                all_connected.set()

    background = Background("stratagem doctor")
    threads = [background.start(accept, server, name="doctor-accept") for server in servers]
    try:
        yield all_connected
    finally:
        for server in servers:
            # Closing a socket does not wake a thread that is blocked in accept.
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()
        for thread in threads:
            thread.join()
    background.check()


def _listen(address: Address, peers: Sequence[str]) -> list[socket.socket]:
    """Returns listening sockets on the task's own address; none if the task itself listens there."""
    Credentials.from_environment().for_host(address.host)
    with contextlib.suppress(OSError):
        return listen(address, [address.host, *peers])
    return []

"""Whether the other tasks of a cluster can be reached."""

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

_SECONDS_BETWEEN_TRIES = 0.2
_MOST_AT_ONCE = 64


def reach_peers(
    own_address: str | None, addresses: Mapping[Task, str], timeout: float
) -> dict[Task, str]:
    """Returns for every task why it does not answer, or ``""`` if it does.

    Meanwhile this process listens on its own address, if nobody does, and until the others have
    called: so that it can run in all tasks at once, where nothing else runs yet.

    Args:
        own_address: Where this task listens, if it does.
        addresses: Where the others listen.
        timeout: Seconds to wait for answers and calls.

    Raises:
        PermissionDeniedError: If tasks on other machines have nothing to prove themselves with.
    """
    if not addresses:
        return {}
    deadline = time.monotonic() + timeout
    hosts = [Address.parse(address).host for address in addresses.values()]
    with _listening(own_address, hosts) as all_called:
        with ThreadPoolExecutor(min(len(addresses), _MOST_AT_ONCE)) as pool:
            answers = pool.map(lambda address: _why_not(address, deadline), addresses.values())
            found = dict(zip(addresses, answers, strict=True))
        all_called.wait(max(0.0, deadline - time.monotonic()))
    return found


def _why_not(address: str, deadline: float) -> str:
    target = Address.parse(address)
    while True:
        seconds = max(0.1, deadline - time.monotonic())
        try:
            socket.create_connection((target.host, target.port), timeout=seconds).close()
        except OSError as error:
            if time.monotonic() + _SECONDS_BETWEEN_TRIES > deadline:
                return f"does not answer ({error})"
            time.sleep(_SECONDS_BETWEEN_TRIES)
        else:
            return ""


@contextlib.contextmanager
def _listening(address: str | None, peers: Sequence[str]) -> Iterator[threading.Event]:
    """Listens in the background; the event is set when everybody has called, or nobody can."""
    all_called = threading.Event()
    servers = [] if address is None else _listen(Address.parse(address), peers)
    if not servers:
        all_called.set()
        yield all_called
        return
    calls = itertools.count(1)

    def accept(server: socket.socket) -> None:
        # Says nothing and reads nothing: to be reached is all.
        while not all_called.is_set():
            try:
                server.accept()[0].close()
            except OSError:
                return
            if next(calls) >= len(peers):
                all_called.set()

    background = Background("stratagem doctor")
    threads = [background.start(accept, server, name="doctor-accept") for server in servers]
    try:
        yield all_called
    finally:
        for server in servers:
            # Closing alone does not wake the thread.
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()
        for thread in threads:
            thread.join()
    background.check()


def _listen(address: Address, peers: Sequence[str]) -> list[socket.socket]:
    """Returns sockets that listen, where the task itself might; none if it does already."""
    Credentials.from_environment().for_host(address.host)
    with contextlib.suppress(OSError):
        return listen(address, [address.host, *peers])
    return []

"""``ParameterClient``: one process's RPC client of all parameter servers of a cluster."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import hashlib
import logging
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from stratagem._src.core.errors import DeadlineExceededError, PSUnavailableError, UnavailableError
from stratagem._src.core.waiting_notice import WaitingNotice
from stratagem._src.parameter_server.client.request_coalescing import RequestCoalescer
from stratagem._src.parameter_server.client.unclaimed_variables import (
    UnclaimedVariables,
    VariableRecord,
)
from stratagem._src.parameter_server.client.variable_registry import VariableRegistry
from stratagem._src.parameter_server.parameter_messages import (
    ReadRequest,
    UpdateRequest,
    decode_fields,
    encode_fields,
    encode_reads,
    encode_updates,
)
from stratagem._src.parameter_server.server.stored_array import Array
from stratagem._src.telemetry.measurement.recorder import span
from stratagem._src.transport import Credentials, Identity, Message, TransportClient
from stratagem._src.transport.remote_error import exception_from_bytes

__all__ = ["ParameterClient", "ReadRequest", "UpdateRequest", "client_for"]

T = TypeVar("T")

_RPC_TIMEOUT_SECONDS = 60.0
_MIN_BYTES_PER_SECOND = 10e6
_ATTACH_TIMEOUT_SECONDS = 60.0
_log = logging.getLogger("stratagem")
_RETRY_INTERVAL_SECONDS = 0.1
_MAX_COALESCED_BYTES = 64 << 10
_OWN = Identity("parameter-client")


class ServerStatus(NamedTuple):
    """A server's reply to a heartbeat.

    Attributes:
        is_same: Whether it is the incarnation that this client attached to; else it was restarted.
        num_updates: Number of updates that it has applied since it started.
    """

    is_same: bool
    num_updates: int


class ParameterClient:
    """Reads and updates variables on the parameter servers of one cluster.

    All methods are thread-safe. If a server is lost, times out or has lost its variables, they raise
    ``PSUnavailableError`` with its name. No request is retried, because an update could then be applied
    twice.

    Args:
        servers: The addresses, in the order of their task indices.
        credentials: The credentials of this process.

    Attributes:
        registry: The variables of the coordinator, if this is its process.
        on_server_lost: Called with the index of a server before ``PSUnavailableError`` is raised for it.
        restarting_at_zero: Variables that need not be in a checkpoint, such as counts of metrics, by id.
    """

    def __init__(self, servers: Sequence[str], credentials: Credentials) -> None:
        self.servers: tuple[str, ...] = tuple(servers)
        self.registry: VariableRegistry = VariableRegistry(len(self.servers))
        self._clients_by_server = [
            TransportClient(address, credentials, wanted=Identity.of_task("ps", index), own=_OWN)
            for index, address in enumerate(servers)
        ]
        self._threads = concurrent.futures.ThreadPoolExecutor(
            max_workers=8 * len(self.servers), thread_name_prefix="parameter-client"
        )
        self._submitting: set[int] = set()
        self._coalescers = [
            RequestCoalescer(functools.partial(self._push_groups, index))
            for index in range(len(self.servers))
        ]
        self._garbage: collections.deque[tuple[int, str]] = collections.deque()
        self.on_server_lost: Callable[[int], None] = lambda server: None
        self.restarting_at_zero: dict[str, weakref.ref[Any]] = {}
        self._closed = False
        self._finalizer = weakref.finalize(
            self, _close_connections, self._threads, self._clients_by_server
        )
        self._finalizer.atexit = False  # connections end with the process

    @property
    def num_servers(self) -> int:
        """Number of parameter servers."""
        return len(self.servers)

    # --- called by the coordinator --------------------------------------------------------------

    def attach(self, timeout: float = _ATTACH_TIMEOUT_SECONDS) -> None:
        """Waits for every server and attaches: from now on they hold this coordinator's variables.

        Raises:
            PSUnavailableError: If a server does not reply within ``timeout`` seconds.
        """
        statuses = self._call_all("ps/attach", timeout, **self.registry.identification())
        self.registry.attach([status["incarnation"] for status in statuses])

    def take_over(self, timeout: float = _ATTACH_TIMEOUT_SECONDS) -> bool:
        """Waits for every server and takes over the variables of an earlier coordinator.

        Returns:
            Whether the servers hold variables of one and the same coordinator. If not, because one was
            restarted or never had a coordinator, nothing has changed.

        Raises:
            PSUnavailableError: If a server does not reply within ``timeout`` seconds.
            VariableError: If another coordinator takes over at the same time.
        """
        replies = self._call_all("ps/holdings", timeout)
        unclaimed = UnclaimedVariables.from_replies(replies)
        if unclaimed is None:
            return False
        fields = {"owner": self.registry.owner, "previous": unclaimed.owner}
        statuses = self._call_all("ps/take_over", timeout, **fields)
        self.registry.take_over(unclaimed, [status["incarnation"] for status in statuses])
        return True

    def publish_record(self, variable: VariableRecord) -> None:
        """Stores the record of an initialized variable on its server, for a coordinator that takes over."""
        self._publish_record(self.registry.add(variable))

    def _publish_record(self, record: VariableRecord) -> None:
        first = record.shards[0]
        self.request(first.server, "ps/note", variable=first.id, record=record)

    def _call_all(self, method: str, timeout: float, **fields: Any) -> list[dict[str, Any]]:
        """Calls a method on all servers and returns their replies; retries servers that are not up yet."""
        deadline = time.monotonic() + timeout

        def ask(server: int) -> dict[str, Any]:
            notice = WaitingNotice()
            while True:
                remaining = deadline - time.monotonic()
                try:
                    message = encode_fields(**fields)
                    reply = self._clients_by_server[server].call(
                        method, message, timeout=max(remaining, 0.1)
                    )
                    return decode_fields(reply)
                except (UnavailableError, DeadlineExceededError) as error:
                    if remaining <= _RETRY_INTERVAL_SECONDS:
                        raise PSUnavailableError(
                            f"Timed out after {timeout:g} s waiting for {self._name(server)}: {error} "
                            "Start its Server, or look in its log for why it ended."
                        ) from error
                    if notice.is_due():
                        waited = f"{notice.seconds:.0f} s of {timeout:g}"
                        _log.warning("waiting for %s (%s): %s", self._name(server), waited, error)
                    time.sleep(_RETRY_INTERVAL_SECONDS)

        servers = dict.fromkeys(range(self.num_servers))
        replies = self.in_parallel(servers, lambda server, _: ask(server))
        return [replies[server] for server in servers]

    def create(
        self,
        variable: str,
        server: int,
        name: str,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        value: Array | None = None,
    ) -> None:
        """Creates a variable or shard on ``server``; without a value, it must be filled before use."""
        self._collect_garbage()
        fields = {"variable": variable, "name": name, "shape": list(shape), "dtype": dtype.name}
        arrays = () if value is None else (value,)
        owner = self.registry.owner
        self._call(server, "ps/create", encode_fields(arrays, owner=owner, **fields))

    def recreate_shards(self, server: int) -> None:
        """Creates this client's shards again on a restarted server, uninitialized.

        Until a shard has a value again, using it raises ``PSUnavailableError``.
        """
        status = self.request(
            server, "ps/attach", to_restore=True, **self.registry.identification()
        )
        for shard in self.registry.shards_on(server):
            self.request(server, "ps/create", owner=self.registry.owner, **shard)
        self.registry.mark_restarted(server, status["incarnation"])

    def mark_restored(self, server: int) -> None:
        """Tells a restarted server that its shards are restored, so another coordinator can take over."""
        for record in self.registry.records_on(server):
            self._publish_record(record)
        self.request(server, "ps/restored")

    def request(self, server: int, method: str, **fields: Any) -> dict[str, Any]:
        """Calls a method of a server with named fields and returns the fields of its reply."""
        reply = self._call(server, method, encode_fields(**fields))
        return decode_fields(reply) if reply.body else {}

    def request_work(
        self, server: int, method: str, work_bytes: int, fields: Mapping[str, Any]
    ) -> None:
        """Calls a long-running method of a server; the timeout grows with ``work_bytes``.

        Args:
            server: The server.
            method: The method.
            work_bytes: Number of bytes that the server reads or writes.
            fields: The fields to send.
        """
        self._call(server, method, encode_fields(**fields), work_bytes)

    def fill(self, variable: str, server: int, start: int, rows: Array) -> None:
        """Sets consecutive rows of a variable or shard that is not published yet."""
        self._call(server, "ps/fill", encode_fields((rows,), variable=variable, start=start))

    def discard(self, variable: str, server: int) -> None:
        """Queues a variable for deletion; a later request deletes it on its server."""
        self._garbage.append((server, variable))

    def _collect_garbage(self) -> None:
        by_server: dict[int, list[str]] = {}
        while self._garbage:
            server, variable = self._garbage.popleft()
            by_server.setdefault(server, []).append(variable)
        for server, variables in by_server.items():
            # A lost server has nothing left to free.
            with contextlib.suppress(PSUnavailableError):
                self._call(server, "ps/delete", encode_fields(variables=variables))

    def check(self, server: int, timeout: float) -> ServerStatus:
        """Sends a heartbeat to a server and returns its status.

        Raises:
            PSUnavailableError: If it does not reply within ``timeout`` seconds.
        """
        fields = decode_fields(self._call(server, "ps/ping", Message(), timeout=timeout))
        is_same = self.registry.is_same(server, fields["incarnation"])
        return ServerStatus(is_same, fields["num_updates"])

    def check_held(self, shards: Iterable[tuple[int, str]]) -> None:
        """Checks that servers hold shards, initialized or not.

        Args:
            shards: Pairs of server index and shard id.

        Raises:
            PSUnavailableError: If a server is lost, or does not hold a shard.
        """
        by_server: dict[int, list[str]] = {}
        for server, shard in shards:
            by_server.setdefault(server, []).append(shard)
        self.in_parallel(
            by_server, lambda server, those: self.request(server, "ps/check_held", variables=those)
        )

    # --- reading and updating -------------------------------------------------------------------

    def pull(self, requests: Sequence[ReadRequest]) -> list[Array]:
        """Reads the requested rows, with one message per server; returns one array per request."""
        by_server = _by_server(requests)

        def ask(server: int, positions: list[int]) -> tuple[Array, ...]:
            reads = [requests[position] for position in positions]
            nbytes = sum(read.nbytes for read in reads)
            return self._call(server, "ps/pull", encode_reads(reads), nbytes).arrays

        results: list[Any] = [None] * len(requests)
        with span("pull", "pull", reads=len(requests), servers=len(by_server)):
            replies = self.in_parallel(by_server, ask)
        for server, arrays in replies.items():
            for position, array in zip(by_server[server], arrays, strict=True):
                results[position] = array
        return results

    def push(self, requests: Sequence[UpdateRequest]) -> None:
        """Applies updates with one message per server; those of one server are applied in order."""
        if self._garbage:
            self._collect_garbage()

        def send(server: int, positions: list[int]) -> None:
            updates = [requests[position] for position in positions]
            if (
                sum(array.nbytes for update in updates for array in update.operands)
                < _MAX_COALESCED_BYTES
            ):
                self._coalescers[server].submit(updates)
            else:
                (error,) = self._push_groups(server, [updates])
                if error is not None:
                    raise error

        by_server = _by_server(requests)
        with span("push", "push", updates=len(requests), servers=len(by_server)):
            self.in_parallel(by_server, send)

    def _push_groups(
        self, server: int, groups: Sequence[Sequence[UpdateRequest]]
    ) -> list[BaseException | None]:
        """Sends groups of updates in one message; returns the error of each group, or ``None``."""
        reply = self._send_updates(server, "ps/push", groups)
        errors: dict[int, bytes] = pickle.loads(reply.body) if reply.body else {}
        return [
            self._remote_error(server, errors[index]) if index in errors else None
            for index in range(len(groups))
        ]

    def _remote_error(self, server: int, data: bytes) -> BaseException:
        error = exception_from_bytes(data, f"{_task(server)} at {self.servers[server]}")
        if isinstance(error, UnavailableError):
            return PSUnavailableError(f"Lost {self._name(server)}: {error}")
        return error

    def call(self, requests: Sequence[UpdateRequest], work_bytes: int = 0) -> list[Any]:
        """Applies function updates and returns the result of each function.

        Args:
            requests: The updates.
            work_bytes: Number of bytes that a function writes; the timeout grows with it.
        """

        def send(_: int, request: UpdateRequest) -> Any:
            reply = self._send_updates(request.server, "ps/call", [[request]], work_bytes)
            return pickle.loads(reply.body)

        return list(self.in_parallel(dict(enumerate(requests)), send).values())

    def _send_updates(
        self,
        server: int,
        method: str,
        groups: Sequence[Sequence[UpdateRequest]],
        work_bytes: int = 0,
    ) -> Message:
        functions: dict[str, bytes] = {}

        def with_digest(update: UpdateRequest) -> tuple[UpdateRequest, str]:
            if not update.body:
                return update, ""
            digest = _digest(update.body)
            functions[digest] = update.body
            return update, digest

        message = encode_updates([map(with_digest, group) for group in groups])
        reply = self._call(server, method, message, work_bytes)
        if reply.body.startswith(b"{"):
            # The server did not apply anything: it lacks these functions. Send them, then retry once.
            for digest in decode_fields(reply)["missing"]:
                function = Message(pickle.dumps((digest, functions[digest])))
                self._call(server, "ps/add_function", function)
            reply = self._call(server, method, message, work_bytes)
        return reply

    # --- messages -------------------------------------------------------------------------------

    def _call(
        self,
        server: int,
        method: str,
        message: Message,
        work_bytes: int = 0,
        timeout: float | None = None,
    ) -> Message:
        if timeout is None:
            nbytes = work_bytes + sum(array.nbytes for array in message.arrays)
            timeout = _RPC_TIMEOUT_SECONDS + nbytes / _MIN_BYTES_PER_SECOND
        try:
            return self._clients_by_server[server].call(method, message, timeout=timeout)
        except (UnavailableError, DeadlineExceededError) as error:
            self.on_server_lost(server)
            raise PSUnavailableError(f"Lost {self._name(server)}: {error}") from error

    def _name(self, server: int) -> str:
        return f"parameter server {_task(server)} at {self.servers[server]}"

    def in_parallel(self, work: dict[int, Any], call: Callable[[int, Any], T]) -> dict[int, T]:
        """Calls ``call`` for each item, the first on this thread, and waits for all of them."""
        if len(work) == 1:
            return {key: call(key, value) for key, value in work.items()}
        if not work:
            return {}
        (first, argument), *others = work.items()
        thread = threading.get_ident()
        if thread in self._submitting:
            # This is a signal handler that interrupted submit() below in the same thread, which may hold
            # the executor's lock: submitting here would deadlock, so run everything on this thread.
            return {key: call(key, value) for key, value in work.items()}
        try:
            self._submitting.add(thread)
            futures = {key: self._threads.submit(call, key, value) for key, value in others}
        finally:
            self._submitting.discard(thread)
        try:
            results = {first: call(first, argument)}
        finally:
            concurrent.futures.wait(futures.values())
        for key, future in futures.items():
            results[key] = future.result()
        return results

    def close(self) -> None:
        """Closes the connections. Garbage collection of the client does the same."""
        self._closed = True
        self._finalizer()


def _close_connections(
    threads: concurrent.futures.Executor, clients: Sequence[TransportClient]
) -> None:
    threads.shutdown(wait=False)
    for client in clients:
        client.close()


def _task(index: int) -> str:
    return f"/job:ps/task:{index}"


def _by_server(requests: Sequence[ReadRequest | UpdateRequest]) -> dict[int, list[int]]:
    positions: dict[int, list[int]] = {}
    for position, request in enumerate(requests):
        positions.setdefault(request.server, []).append(position)
    return positions


@functools.lru_cache(maxsize=128)
def _digest(pickled: bytes) -> str:
    return hashlib.blake2b(pickled, digest_size=16).hexdigest()


_clients: weakref.WeakValueDictionary[tuple[str, ...], ParameterClient] = (
    weakref.WeakValueDictionary()
)
_clients_lock = threading.RLock()  # reentrant: a signal handler may interrupt its holder


def client_for(servers: Sequence[str]) -> ParameterClient:
    """Returns this process's client of the cluster with these parameter servers.

    All callers share it, and it is closed with the last reference. Its credentials come from the
    environment on the first call.
    """
    key = tuple(servers)
    with _clients_lock:
        client = _clients.get(key)
        if client is None or client._closed:
            client = _clients[key] = ParameterClient(key, Credentials.from_environment())
        return client

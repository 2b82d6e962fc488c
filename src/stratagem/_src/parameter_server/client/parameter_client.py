"""``ParameterClient``: one process's way to the parameter servers of a cluster."""

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
from stratagem._src.parameter_server.client.holdings import HeldVariable, Holdings
from stratagem._src.parameter_server.client.ownership import Ownership
from stratagem._src.parameter_server.client.request_coalescing import JointSending
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
from stratagem._src.transport import Caller, Credentials, Identity, Message
from stratagem._src.transport.remote_error import exception_from_bytes

__all__ = ["ParameterClient", "ReadRequest", "UpdateRequest", "client_for"]

T = TypeVar("T")

_PATIENCE_SECONDS = 60.0
_SLOWEST_BYTES_PER_SECOND = 10e6
_ATTACH_SECONDS = 60.0
_log = logging.getLogger("stratagem")
_RETRY_SECONDS = 0.1
_SMALL = 64 << 10
_OWN = Identity("parameter-client")


class ServerSign(NamedTuple):
    """A sign of life of a server.

    Attributes:
        is_same: Whether it holds what it held when this client attached; else it was started anew.
        num_updates: How many updates it has carried out since it was started.
    """

    is_same: bool
    num_updates: int


class ParameterClient:
    """Reads and updates variables on the parameter servers of one cluster.

    All methods may be called by several threads. A server that is gone, does not answer in time or
    has lost its variables: ``PSUnavailableError``, which names it. Nothing is tried twice, because an
    update might then take place twice.

    Args:
        servers: The addresses, in the order of their task indices.
        credentials: How to prove who we are.

    Attributes:
        ownership: What the servers hold for the coordinator, if this is its process.
        when_lost: Called with the number of a server before ``PSUnavailableError`` is raised for it.
    """

    def __init__(self, servers: Sequence[str], credentials: Credentials) -> None:
        self.servers: tuple[str, ...] = tuple(servers)
        self.ownership: Ownership = Ownership(len(self.servers))
        self._callers = [
            Caller(address, credentials, wanted=Identity.of_task("ps", index), own=_OWN)
            for index, address in enumerate(servers)
        ]
        self._threads = concurrent.futures.ThreadPoolExecutor(
            max_workers=8 * len(self.servers), thread_name_prefix="parameter-client"
        )
        self._submitting: set[int] = set()
        self._joint = [
            JointSending(functools.partial(self._push_groups, index))
            for index in range(len(self.servers))
        ]
        self._garbage: collections.deque[tuple[int, str]] = collections.deque()
        self.when_lost: Callable[[int], None] = lambda server: None
        self._closed = False
        self._end = weakref.finalize(self, _end, self._threads, self._callers)
        self._end.atexit = False  # connections end with the process

    @property
    def num_servers(self) -> int:
        """Number of parameter servers."""
        return len(self.servers)

    # --- the coordinator's part -----------------------------------------------------------------

    def attach(self, timeout: float = _ATTACH_SECONDS) -> None:
        """Waits for every server and makes this client the one whose variables they hold.

        Raises:
            PSUnavailableError: If a server does not answer in ``timeout`` seconds.
        """
        signs = self._ask_all("ps/attach", timeout, **self.ownership.introduction())
        self.ownership.attach([sign["incarnation"] for sign in signs])

    def take_over(self, timeout: float = _ATTACH_SECONDS) -> bool:
        """Waits for every server and makes what they hold for an earlier coordinator that of this one.

        Returns:
            Whether they hold something that belongs together. If not, because one of them was started
            anew or never had a coordinator, nothing has changed.

        Raises:
            PSUnavailableError: If a server does not answer in ``timeout`` seconds.
            VariableError: If another coordinator does the same.
        """
        answers = self._ask_all("ps/holdings", timeout)
        holdings = Holdings.of(answers)
        if holdings is None:
            return False
        fields = {"owner": self.ownership.owner, "previous": holdings.owner}
        signs = self._ask_all("ps/take_over", timeout, **fields)
        self.ownership.take_over(holdings, [sign["incarnation"] for sign in signs])
        return True

    def note(self, variable: HeldVariable) -> None:
        """Lets the servers know of a variable that is complete, for a coordinator that takes over."""
        self._note(self.ownership.add(variable))

    def _note(self, held: HeldVariable) -> None:
        first = held.shards[0]
        self.ask(first.server, "ps/note", variable=first.id, record=held)

    def _ask_all(self, method: str, timeout: float, **fields: Any) -> list[dict[str, Any]]:
        """Returns the answers of all servers, waiting for those that are not there yet."""
        deadline = time.monotonic() + timeout

        def ask(server: int) -> dict[str, Any]:
            notice = WaitingNotice()
            while True:
                remaining = deadline - time.monotonic()
                try:
                    message = encode_fields(**fields)
                    answer = self._callers[server].call(
                        method, message, timeout=max(remaining, 0.1)
                    )
                    return decode_fields(answer)
                except (UnavailableError, DeadlineExceededError) as error:
                    if remaining <= _RETRY_SECONDS:
                        raise PSUnavailableError(
                            f"Waited {timeout:g} s for {self._name(server)}, which does not answer: "
                            f"{error} Start its Server, or look at why it ended."
                        ) from error
                    if notice.is_due():
                        waited = f"{notice.seconds:.0f} s of {timeout:g}"
                        _log.warning("waiting for %s (%s): %s", self._name(server), waited, error)
                    time.sleep(_RETRY_SECONDS)

        servers = dict.fromkeys(range(self.num_servers))
        answers = self.in_parallel(servers, lambda server, _: ask(server))
        return [answers[server] for server in servers]

    def create(
        self,
        variable: str,
        server: int,
        name: str,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        value: Array | None = None,
    ) -> None:
        """Makes a variable or shard on ``server``; without a value it must be filled before it is used."""
        self._collect_garbage()
        fields = {"variable": variable, "name": name, "shape": list(shape), "dtype": dtype.name}
        arrays = () if value is None else (value,)
        owner = self.ownership.owner
        self._call(server, "ps/create", encode_fields(arrays, owner=owner, **fields))

    def create_again(self, server: int) -> None:
        """Makes what this client has created on a server that was started anew, without the values.

        Until they have a value again, whoever uses them gets ``PSUnavailableError``.
        """
        sign = self.ask(server, "ps/attach", to_restore=True, **self.ownership.introduction())
        for shard in self.ownership.shards_on(server):
            self.ask(server, "ps/create", owner=self.ownership.owner, **shard)
        self.ownership.restarted(server, sign["incarnation"])

    def restored(self, server: int) -> None:
        """Lets a server that was started anew know that all is complete again, for whoever takes over."""
        for held in self.ownership.noted_on(server):
            self._note(held)
        self.ask(server, "ps/restored")

    def ask(self, server: int, method: str, **fields: Any) -> dict[str, Any]:
        """Sends named values to a method of a server and returns those that it answers with."""
        answer = self._call(server, method, encode_fields(**fields))
        return decode_fields(answer) if answer.body else {}

    def have_done(
        self, server: int, method: str, work_bytes: int, fields: Mapping[str, Any]
    ) -> None:
        """Sends named values to a method of a server that may take its time.

        Args:
            server: The server.
            method: The method.
            work_bytes: How much the server has to read or write.
            fields: The values.
        """
        self._call(server, method, encode_fields(**fields), work_bytes)

    def fill(self, variable: str, server: int, start: int, rows: Array) -> None:
        """Sets consecutive rows of a variable or shard that no one else knows yet."""
        self._call(server, "ps/fill", encode_fields((rows,), variable=variable, start=start))

    def discard(self, variable: str, server: int) -> None:
        """Notes that a variable is not needed any more; its server hears of it some time later."""
        self._garbage.append((server, variable))

    def _collect_garbage(self) -> None:
        by_server: dict[int, list[str]] = {}
        while self._garbage:
            server, variable = self._garbage.popleft()
            by_server.setdefault(server, []).append(variable)
        for server, variables in by_server.items():
            # A server that is gone has nothing left to free.
            with contextlib.suppress(PSUnavailableError):
                self._call(server, "ps/delete", encode_fields(variables=variables))

    def check(self, server: int, timeout: float) -> ServerSign:
        """Asks a server for a sign of life.

        Returns:
            Whether it is the one that this client knows, and how many updates it has carried out.

        Raises:
            PSUnavailableError: If it gives none in ``timeout`` seconds.
        """
        fields = decode_fields(self._call(server, "ps/ping", Message(), timeout=timeout))
        is_same = self.ownership.is_same(server, fields["incarnation"])
        return ServerSign(is_same, fields["num_updates"])

    def check_held(self, shards: Iterable[tuple[int, str]]) -> None:
        """Checks that servers, given by number, hold shards, given by id, be it without a value.

        Raises:
            PSUnavailableError: If one is gone, or does not hold a shard.
        """
        by_server: dict[int, list[str]] = {}
        for server, shard in shards:
            by_server.setdefault(server, []).append(shard)
        self.in_parallel(
            by_server, lambda server, those: self.ask(server, "ps/check_held", variables=those)
        )

    # --- reading and updating -------------------------------------------------------------------

    def pull(self, requests: Sequence[ReadRequest]) -> list[Array]:
        """Returns what each request reads, with one message to each server."""
        by_server = _by_server(requests)

        def ask(server: int, positions: list[int]) -> tuple[Array, ...]:
            reads = [requests[position] for position in positions]
            nbytes = sum(read.nbytes for read in reads)
            return self._call(server, "ps/pull", encode_reads(reads), nbytes).arrays

        results: list[Any] = [None] * len(requests)
        with span("pull", "pull", reads=len(requests), servers=len(by_server)):
            answers = self.in_parallel(by_server, ask)
        for server, arrays in answers.items():
            for position, array in zip(by_server[server], arrays, strict=True):
                results[position] = array
        return results

    def push(self, requests: Sequence[UpdateRequest]) -> None:
        """Carries out updates, those of one server in order, with one message to each server."""
        if self._garbage:
            self._collect_garbage()

        def send(server: int, positions: list[int]) -> None:
            updates = [requests[position] for position in positions]
            if sum(array.nbytes for update in updates for array in update.operands) < _SMALL:
                self._joint[server].submit(updates)
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
        """Carries out groups of updates in one message; returns what went wrong with each."""
        answer = self._send_updates(server, "ps/push", groups)
        errors: dict[int, bytes] = pickle.loads(answer.body) if answer.body else {}
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
        """Carries out function updates and returns what each function returned.

        Args:
            requests: The updates.
            work_bytes: How much one of the functions has to write, which may take its time.
        """

        def send(_: int, request: UpdateRequest) -> Any:
            answer = self._send_updates(request.server, "ps/call", [[request]], work_bytes)
            return pickle.loads(answer.body)

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
        answer = self._call(server, method, message, work_bytes)
        if answer.body.startswith(b"{"):
            # Nothing has happened yet: the server does not know these functions.
            for digest in decode_fields(answer)["missing"]:
                function = Message(pickle.dumps((digest, functions[digest])))
                self._call(server, "ps/add_function", function)
            answer = self._call(server, method, message, work_bytes)
        return answer

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
            timeout = _PATIENCE_SECONDS + nbytes / _SLOWEST_BYTES_PER_SECOND
        try:
            return self._callers[server].call(method, message, timeout=timeout)
        except (UnavailableError, DeadlineExceededError) as error:
            self.when_lost(server)
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
            # A signal handler interrupts what follows, and with it a lock of the executor.
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
        """Closes the connections, as happens too when nobody uses the client any more."""
        self._closed = True
        self._end()


def _end(threads: concurrent.futures.Executor, callers: Sequence[Caller]) -> None:
    threads.shutdown(wait=False)
    for caller in callers:
        caller.close()


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
_clients_lock = threading.RLock()  # reentrant for the sake of signal handlers


def client_for(servers: Sequence[str]) -> ParameterClient:
    """Returns this process's client of the cluster with these parameter servers.

    It lasts as long as somebody uses it. Credentials come from the environment when it is first needed.
    """
    key = tuple(servers)
    with _clients_lock:
        client = _clients.get(key)
        if client is None or client._closed:
            client = _clients[key] = ParameterClient(key, Credentials.from_environment())
        return client
